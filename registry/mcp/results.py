"""What an MCP server answers to a call, as a tool's result."""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from registry.errors import DagwrightError
from registry.result_text import Artifact
from registry.text import clean


class McpError(DagwrightError):
    """The MCP server failed."""

    code = "mcp"


@dataclass(frozen=True, slots=True)
class McpArtifact(Artifact):
    """A file from a server, and what else its answer says."""

    said: str = ""

    @property
    def line(self) -> str:
        """What the model sees."""
        own = Artifact(self.name, self.mime, self.content).line
        return f"{self.said}\n{own}" if self.said else own


def result_of(result: Any) -> str | Artifact:
    """The texts of a CallToolResult joined, structured content as JSON; its first image or file as an artifact.

    Raises McpError for a result that is an error.
    """
    texts: list[str] = []
    files: list[Artifact] = []
    for part in result.content:
        taken = _part(part)
        if isinstance(taken, Artifact):
            files.append(taken)
        elif taken:
            texts.append(taken)
    if result.structured_content is not None and not _repeats(result.structured_content, texts):
        texts.append(json.dumps(result.structured_content, ensure_ascii=False))
    texts += [f"[one more file, not kept: {file.name} ({file.mime}, {len(file.data):,} bytes)]" for file in files[1:]]
    said = "\n".join(texts)
    if result.is_error:
        raise McpError(said or "the server reports an error and says nothing of it")
    return McpArtifact(files[0].name, files[0].mime, files[0].content, said) if files else said


def _part(part: Any) -> str | Artifact:
    match part.type:
        case "text":
            return str(part.text)
        case "image" | "audio":
            return _file(part.type, part.mime_type, part.data)
        case "resource" if (text := getattr(part.resource, "text", None)) is not None:
            return f"{part.resource.uri}:\n{text}"
        case "resource":
            name = PurePosixPath(urlsplit(str(part.resource.uri)).path).name or "resource"
            return _file(name, part.resource.mime_type or "application/octet-stream", part.resource.blob)
        case "resource_link":
            return f"[a resource, not read: {part.name} at {part.uri}]"
        case _:
            return f"[content of the kind {part.type}, which is not shown]"


def _file(name: str, mime: str, data: str) -> str | Artifact:
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return f"[{name}: a file that is no valid base64]"
    ending = mimetypes.guess_extension(mime) or ".bin"
    return Artifact(name if "." in name else f"{name}{ending}", mime, content)


def _repeats(structured: Any, texts: list[str]) -> bool:
    """Whether the texts already hold the structured content, as servers are told to do for older clients."""
    inner = structured["result"] if isinstance(structured, dict) and set(structured) == {"result"} else structured
    if inner is None:
        return True
    if isinstance(inner, str) and inner in texts:
        return True
    if isinstance(inner, list) and len(inner) == len(texts) > 1:  # one text an entry
        return all(_same(entry, text) for entry, text in zip(inner, texts, strict=True))
    return any(_same(inner, text) or _same(structured, text) for text in texts)


def _same(value: Any, text: str) -> bool:
    try:
        return bool(json.loads(clean(text)) == value) or text == value
    except (ValueError, RecursionError):
        return bool(text == value)

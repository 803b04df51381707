"""Reading, listing and writing files of a workspace, for models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from registry.text import clean
from registry.toolbox.workspace import MAX_LISTED, MAX_READ, Entry, Workspace, WorkspaceError
from registry.tools import Tool, tool

SNIFFED = 8_192
"""Bytes searched for a NUL, which text does not have."""


def workspace_tools(root: str | os.PathLike[str]) -> tuple[Tool, ...]:
    """The tools `read_file`, `list_files` and `write_file`, bound to a folder, which is made where it is missing."""
    Path(root).mkdir(parents=True, exist_ok=True)
    workspace = Workspace(root)
    return (_read_tool(workspace), _list_tool(workspace), _write_tool(workspace))


def _read_tool(workspace: Workspace) -> Tool:
    from pydantic import Field

    @tool(read_only=True, idempotent=True, filesystem=True, untrusted=True, origin="a file of the workspace")
    def read_file(
        path: str,
        first_line: Annotated[int, Field(ge=1)] = 1,
        max_lines: Annotated[int, Field(ge=1)] = 2_000,
    ) -> str:
        """Reads a text file of the workspace and returns its lines.

        Args:
            path: The file's path, relative to the workspace.
            first_line: The number of the first line to return, counted from 1.
            max_lines: How many lines to return at most.
        """
        return _lines(workspace, path, first_line, max_lines)

    return read_file


def _lines(workspace: Workspace, path: str, first_line: int, max_lines: int) -> str:
    found = workspace.read(path)
    if b"\x00" in found.data[:SNIFFED]:
        raise WorkspaceError(f"{path!r} is a binary file of {found.size:,} bytes, not text")
    lines = found.data.decode("utf-8", "replace").splitlines(keepends=True)
    if first_line > max(1, len(lines)):
        raise WorkspaceError(f"{path!r} has only {len(lines)} lines")
    wanted = lines[first_line - 1 : first_line - 1 + max_lines]
    text = "".join(wanted)
    if len(found.data) < found.size:
        text += f"\n[only the first {MAX_READ:,} of {found.size:,} bytes can be read]"
    if first_line > 1 or len(wanted) < len(lines):
        text += f"\n[lines {first_line} to {first_line + len(wanted) - 1} of {len(lines)}]"
    return text or "(the file is empty)"


def _list_tool(workspace: Workspace) -> Tool:
    @tool(read_only=True, idempotent=True, filesystem=True)
    def list_files(folder: str = "", recursive: bool = False) -> str:
        """Lists the files and folders of the workspace, one a line; folders end with a slash, files have their size.

        Args:
            folder: The folder's path, relative to the workspace; the workspace itself when left out.
            recursive: Whether the contents of inner folders are listed too.
        """
        entries, cut = workspace.entries(folder, recursive=recursive)
        lines = [_line(entry) for entry in entries]
        if cut:
            lines.append(f"[more than {MAX_LISTED:,} entries or very deep folders: the rest is left out]")
        return "\n".join(lines) or "(the folder is empty)"

    return list_files


def _line(entry: Entry) -> str:
    path = entry.path if entry.path.isprintable() else repr(entry.path)
    if entry.kind == "folder":
        return f"{path}/"
    return f"{path} ({entry.size:,} bytes)" if entry.kind == "file" else f"{path} ({entry.kind}, not followed)"


def _write_tool(workspace: Workspace) -> Tool:
    @tool(idempotent=True, filesystem=True)
    def write_file(path: str, content: str) -> str:
        """Writes a text file of the workspace, in place of the one of that path if there is one.

        Missing folders are made. The whole content must be given.

        Args:
            path: The file's path, relative to the workspace.
            content: The file's whole new content.
        """
        data = clean(content).encode("utf-8")
        new = workspace.write(path, data)
        return f"{'Wrote' if new else 'Replaced'} {path} ({len(data):,} bytes)"

    return write_file

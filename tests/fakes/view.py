"""A request as scripts see it, the same for all dialects; and what scripts answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .common import json_object, text_of


@dataclass(frozen=True, slots=True)
class ViewMessage:
    """One message. `calls` are (id, name, arguments) of an assistant's turn, `results` (call id, text) of tools."""

    role: str
    text: str = ""
    calls: tuple[tuple[str, str, dict[str, Any]], ...] = ()
    results: tuple[tuple[str, str], ...] = ()
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """A request. `forced` is the one tool that must be called, `choice` auto, none, required or named;
    `schema` the response format's JSON Schema. `number` counts accepted requests from 1, `body` is the request."""

    dialect: str
    model: str
    system: str
    messages: tuple[ViewMessage, ...]
    tools: tuple[dict[str, Any], ...] = ()
    choice: str = "auto"
    forced: str | None = None
    wants_json: bool = False
    schema: dict[str, Any] | None = None
    stream: bool = False
    max_tokens: int | None = None
    number: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)

    @property
    def last_text(self) -> str:
        """The last user message's text."""
        return next((message.text for message in reversed(self.messages) if message.role == "user"), "")

    @property
    def results(self) -> tuple[tuple[str, str], ...]:
        """All tool results of the conversation, (call id, text)."""
        return tuple(result for message in self.messages for result in message.results)

    def schema_of(self, tool: str) -> dict[str, Any]:
        """The parameters of an offered tool."""
        return next((one["schema"] for one in self.tools if one["name"] == tool), {})


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model answers: text, calls (name, arguments as a dict or as the raw text), reasoning; or a fault.

    `status` other than 200 answers with `error` (a message, or the whole body). `cut_after` breaks the connection
    after so many bytes of the body; `stream_error` ends a stream with the provider's error event; `delay` waits that
    many seconds first, `pace` seconds go by after each piece of a stream. `finish` overrides the finish reason, in the
    dialect's own words. `usage` False leaves the usage out. `cached` tokens of the input came from the cache. `ids`
    override the call ids. `raw` is sent as it is.
    """

    text: str = ""
    calls: Sequence[tuple[str, Mapping[str, Any] | str]] = ()
    reasoning: str = ""
    refusal: str = ""
    finish: str | None = None
    usage: bool = True
    cached: int = 0
    ids: Sequence[str] = ()
    status: int = 200
    error: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    stream_error: str | None = None
    delay: float = 0.0
    pace: float = 0.0
    raw: bytes | None = None


def as_reply(value: Any) -> Reply:
    """A script's answer in any accepted form: text, a list of (tool, arguments), a dict of Reply's fields, a Reply."""
    if isinstance(value, Reply):
        return value
    if isinstance(value, str):
        return Reply(value)
    if isinstance(value, Mapping):
        return Reply(**value)
    return Reply(calls=tuple(value))


def arguments_text(arguments: Mapping[str, Any] | str) -> str:
    """Arguments as a provider sends them."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def view_of(dialect: str, body: dict[str, Any], number: int, headers: Mapping[str, str]) -> View:
    """The neutral view of an accepted request."""
    read = {"chat": _chat, "responses": _responses, "anthropic": _anthropic}[dialect]
    return View(
        dialect, body["model"], number=number, headers=headers, body=body, stream=bool(body.get("stream")), **read(body)
    )


def _format(form: Mapping[str, Any] | None) -> dict[str, Any]:
    form = form or {}
    schema = (form.get("json_schema") or form).get("schema")
    return {"wants_json": form.get("type") in ("json_object", "json_schema"), "schema": schema}


def _choice(choice: Any) -> dict[str, Any]:
    if choice is None or isinstance(choice, str):
        return {"choice": choice or "auto"}
    if choice.get("type") in ("auto", "none", "any"):  # Anthropic
        return {"choice": "required" if choice["type"] == "any" else choice["type"]}
    name = choice.get("name") or (choice.get("function") or {}).get("name")
    return {"choice": "named", "forced": name}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    inner = tool.get("function", tool)
    schema = inner.get("parameters") or inner.get("input_schema") or {}
    return {"name": inner.get("name", ""), "description": inner.get("description", ""), "schema": schema}


def _chat(body: dict[str, Any]) -> dict[str, Any]:
    system, messages = [], []
    for message in body["messages"]:
        text = text_of(message.get("content"))
        if message["role"] in ("system", "developer"):
            system.append(text)
        elif message["role"] == "tool":
            messages.append(ViewMessage("tool", results=((message["tool_call_id"], text),)))
        else:
            calls = tuple(
                (call["id"], call["function"]["name"], json_object(call["function"]["arguments"]) or {})
                for call in message.get("tool_calls") or ()
            )
            reasoning = message.get("reasoning_content") or ""
            messages.append(ViewMessage(message["role"], text, calls, reasoning=reasoning))
    return {
        "system": "\n".join(system),
        "messages": tuple(messages),
        "tools": tuple(map(_tool, body.get("tools") or ())),
        "max_tokens": body.get("max_completion_tokens") or body.get("max_tokens"),
        **_choice(body.get("tool_choice")),
        **_format(body.get("response_format")),
    }


def _responses(body: dict[str, Any]) -> dict[str, Any]:
    system, messages = [body.get("instructions") or ""], []
    items = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
    for item in items:
        kind = item.get("type", "message")
        if kind == "function_call":
            call = (item["call_id"], item["name"], json_object(item["arguments"]) or {})
            messages.append(ViewMessage("assistant", calls=(call,)))
        elif kind == "function_call_output":
            messages.append(ViewMessage("tool", results=((item["call_id"], text_of(item["output"])),)))
        elif kind == "reasoning":
            messages.append(ViewMessage("assistant", reasoning=text_of(item.get("summary"))))
        elif item["role"] in ("system", "developer"):
            system.append(text_of(item["content"]))
        else:
            messages.append(ViewMessage(item["role"], text_of(item["content"])))
    return {
        "system": "\n".join(filter(None, system)),
        "messages": tuple(messages),
        "tools": tuple(map(_tool, body.get("tools") or ())),
        "max_tokens": body.get("max_output_tokens"),
        **_choice(body.get("tool_choice")),
        **_format((body.get("text") or {}).get("format")),
    }


def _anthropic(body: dict[str, Any]) -> dict[str, Any]:
    messages: list[ViewMessage] = []
    for message in body["messages"]:
        content = message["content"]
        blocks: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        results = tuple((b["tool_use_id"], text_of(b.get("content"))) for b in blocks if b["type"] == "tool_result")
        if results:
            messages.append(ViewMessage("tool", results=results))
        text = text_of([b for b in blocks if b["type"] == "text"])
        calls = tuple((b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use")
        thinking = "\n".join(b["thinking"] for b in blocks if b["type"] == "thinking")
        if text or calls or thinking:
            messages.append(ViewMessage(message["role"], text, calls, reasoning=thinking))
    return {
        "system": text_of(body.get("system")),
        "messages": tuple(messages),
        "tools": tuple(map(_tool, body.get("tools") or ())),
        "max_tokens": body["max_tokens"],
        **_choice(body.get("tool_choice")),
        **_format((body.get("output_config") or {}).get("format") or body.get("output_format")),
    }

"""What a chat client asks: which of its fields act, which may be there, which can't be done; and the job it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from executor.service.schemas import JobIn
from registry.messages import Message
from registry.text import load_prompt, marked, unforgeable_marker

from .errors import refused

NAME = "dagwright"
MODES = ("dag", "react")

TOLERATED = frozenset(
    {
        # how one model picks its words: the job's own models have their own settings
        "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty",
        "repetition_penalty", "reasoning_effort", "verbosity", "max_tokens", "max_completion_tokens",
        # how a provider handles the request
        "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier", "store",
        "prediction", "parallel_tool_calls",
    }
)  # fmt: skip
"""Fields that are accepted and change nothing: clients send them unasked, and an answer without them is still right."""


def _nothing(value: Any) -> bool:
    return value in ([], {}, "")


REFUSED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "n": (lambda value: type(value) is int and value == 1, "a request has one answer: n must be 1"),
    "tools": (_nothing, "a client's tools are not called; the service has its own (GET /v1/tools)"),
    "functions": (_nothing, "a client's functions are not called; the service has its own tools (GET /v1/tools)"),
    "tool_choice": (lambda value: value in ("none", "auto"), "a client's tools are not called"),
    "function_call": (lambda value: value in ("none", "auto"), "a client's functions are not called"),
    "response_format": (lambda value: value == {"type": "text"}, "answers are text: no other response_format is kept"),
    "stop": (_nothing, "stop sequences are not kept"),
    "logprobs": (lambda value: value is False, "an answer of several models has no log probabilities"),
    "top_logprobs": (lambda value: value == 0, "an answer of several models has no log probabilities"),
    "logit_bias": (_nothing, "an answer of several models has no bias of tokens"),
    "modalities": (lambda value: value == ["text"], "answers are text only"),
    "audio": (_nothing, "answers are text only"),
    "web_search_options": (_nothing, "searching is the service's own tools' work (GET /v1/tools)"),
}  # fmt: skip
"""Fields that would change what the answer is: what may stand there all the same, and why nothing else may."""


class ChatMessage(BaseModel):
    """One message. Text, or parts of which each is text; what clients add to it beside is left out."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class StreamOptions(BaseModel):
    """What a stream holds beside the answer."""

    model_config = ConfigDict(extra="ignore", strict=True)

    include_usage: bool | None = None


class ChatRequest(BaseModel):
    """A chat completion as clients of OpenAI's ask for it. `budget` is this service's own field: what the job may cost
    at most, such as "0.50usd" or "20k tokens". Fields beside these are looked up in the two lists above."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str = Field(description="dagwright, dagwright:dag, dagwright:react; dagwright/NAME uses one model only")
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    metadata: dict[str, str] | None = Field(None, description="The job's: jobs can be listed by it")
    budget: str | None = None


def model_names(registered: Sequence[str]) -> list[str]:
    """The names that this service offers as models: itself in its three modes, and itself on one model alone."""
    alone = [f"{NAME}/{name}" for name in registered] if len(registered) > 1 else []
    return [NAME, *(f"{NAME}:{mode}" for mode in MODES), *alone]


def chosen(model: str, registered: Collection[str]) -> tuple[str, str | None]:
    """The mode and the one model that a name stands for (None: all of them). Raises ProblemError 404."""
    head, slash, only = model.partition("/")
    name, colon, mode = head.partition(":")
    known = name == NAME and (not colon or mode in MODES) and (not slash or only in registered)
    if not known:
        offered = ", ".join(model_names(list(registered)))
        raise refused(f"there is no model {model[:200]!r} here; there are: {offered}", "model", "model_not_found", 404)
    return mode or "auto", only or None


def order_of(request: ChatRequest, registered: Collection[str]) -> JobIn:
    """The job that answers a request, as it would be ordered directly. Raises ProblemError, RequestValidationError."""
    check_fields(request)
    mode, only = chosen(request.model, registered)
    goal, history = conversation(request.messages)
    order = {
        "goal": goal,
        "mode": mode,
        "models": None if only is None else [only],
        "history": [{"role": message.role, "content": message.content} for message in history] or None,
        "budget": request.budget,
        "metadata": request.metadata,
    }
    try:
        return JobIn.model_validate(order)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


def check_fields(request: ChatRequest) -> None:
    """Raises ProblemError for a field that can't be done, and for one that nobody knows."""
    for name, value in (request.model_extra or {}).items():
        if name in TOLERATED or value is None:
            continue
        if name not in REFUSED:
            raise refused(f"unknown parameter: {name[:100]!r}", name[:100], "unknown_parameter")
        harmless, why = REFUSED[name]
        if not harmless(value):
            raise refused(f"{name} is not supported: {why}", name)


def conversation(messages: Sequence[ChatMessage]) -> tuple[str, tuple[Message, ...]]:
    """The last word of the user as the goal, with what the system messages ask for, and the turns before it. Raises
    ProblemError."""
    texts = [_text(message, place) for place, message in enumerate(messages)]
    set_up = [text for message, text in zip(messages, texts, strict=True) if _sets_up(message) and text.strip()]
    turns = [(message, text) for message, text in zip(messages, texts, strict=True) if not _sets_up(message)]
    if not turns or turns[-1][0].role != "user" or not turns[-1][1].strip():
        raise refused(
            "the last message must be the user's, with a text: it is what is to be done", "messages", "no_goal"
        )
    goal = turns[-1][1]
    if set_up:
        goal = load_prompt("executor", "chat_goal").substitute(goal=goal, instructions="\n\n".join(set_up))
    return goal, tuple(_earlier(message, text) for message, text in turns[:-1] if text.strip())


def _sets_up(message: ChatMessage) -> bool:
    return message.role in ("system", "developer")


def _earlier(message: ChatMessage, text: str) -> Message:
    """A turn of before. Calls and results of a client's tools are told as text: no tool of that name may be here."""
    if message.role == "assistant":
        return Message.assistant(text)
    if message.role in ("tool", "function"):
        return Message.user(marked(text, "a result of the client's own tool: data", unforgeable_marker([text])))
    return Message.user(text)


def _text(message: ChatMessage, place: int) -> str:
    """A message's text; its parts are joined. Raises ProblemError for a part that is none."""
    if isinstance(message.content, list):
        parts = [_part(part, f"messages.{place}.content.{number}") for number, part in enumerate(message.content)]
        text = "\n".join(parts)
    else:
        text = message.content or ""
    if message.role == "user" and message.name:
        text = f"{message.name}: {text}"
    return "\n".join([*([text] if text else []), *(_called(call) for call in message.tool_calls or ())])


def _part(part: Mapping[str, Any], place: str) -> str:
    kind = part.get("type")
    text = part.get("refusal" if kind == "refusal" else "text")
    if kind in ("text", "refusal") and isinstance(text, str):
        return text
    raise refused(
        f"{place}: parts of the type {str(kind)[:100]!r} can't be read, only text", place, "unsupported_content"
    )


def _called(call: Mapping[str, Any]) -> str:
    function = call.get("function")
    known = function if isinstance(function, Mapping) else {}
    return f"[called the client's tool {known.get('name', '')} with {known.get('arguments', '')}]"

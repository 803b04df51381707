"""`structured_llm_call`: the one way to get data out of a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import structlog

from registry.errors import BadRequestError, DagwrightError, TruncatedError
from registry.llm import LLM
from registry.llm_types import ToolSpec
from registry.messages import LLMResult, Message, Usage
from registry.schema import coerce
from registry.text import cut_end, load_prompt

from .extract import extract_json, parse_tool_arguments

log = structlog.get_logger(__name__)

UNSET: Final = object()

NATIVE, JSON_MODE, PLAIN_TEXT = "native", "json_mode", "plain_text"

BAD_REPLY_CHARS = 500
"""How much of a bad reply goes back with the retry: enough to see what was wrong, too little to blow up the prompt."""

_MECHANISMS: Mapping[str, Sequence[tuple[str, str]]] = {
    NATIVE: (
        ("tool_choice", "tool_choice"),
        ("tool", "tool_call"),
        ("function", "tool_call"),
        ("thinking", "tool_choice"),
    ),
    JSON_MODE: (("json_schema", "json_schema"), ("response_format", "json_mode"), ("json", "json_mode")),
    PLAIN_TEXT: (),
}
"""Words in a 400 that refuse a level's own mechanism, and the ability that the server thereby denies."""


class StructuredOutputError(DagwrightError):
    """No level of the structured call gave a usable value.

    `last_reply` is the model's last text, `causes` says per level what was wrong, `usage` what it all cost.
    """

    code: ClassVar[str] = "structured_output"

    def __init__(self, message: str, *, last_reply: str, causes: Sequence[tuple[str, str]], usage: Usage) -> None:
        super().__init__(message)
        self.last_reply = last_reply
        self.causes = tuple(causes)
        self.usage = usage


class StructuredTruncatedError(StructuredOutputError, TruncatedError):
    """Every level's reply was cut by the output limit."""

    code: ClassVar[str] = "truncated"

    def __init__(self, message: str, *, last_reply: str, causes: Sequence[tuple[str, str]], usage: Usage) -> None:
        TruncatedError.__init__(self, message, usage=usage)
        self.last_reply, self.causes = last_reply, tuple(causes)


@dataclass(frozen=True, slots=True)
class StructuredCallResult:
    """`value` in the caller's type, `raw_data` the dict it came from, `level_used` one of native, json_mode,
    plain_text and default, `llm_calls` the number of calls and `usage` their sum, failed ones included."""

    value: Any
    raw_data: Any
    level_used: str
    llm_calls: int
    usage: Usage


class _Unusable(Exception):
    """This reply has no usable value; the text goes back to the model."""


async def structured_llm_call(
    llm: LLM,
    messages: Sequence[Message],
    schema: Any,
    function_name: str,
    *,
    parse_fn: Callable[[Any], Any] | None = None,
    regex_fallback: Callable[[str], Any] | None = None,
    default_value: Any = UNSET,
    description: str = "",
    temperature: float | None = None,
    max_tokens: int | None = None,
    validate: bool = True,
) -> StructuredCallResult:
    """Asks for data of a schema: a forced tool call, then JSON mode, then plain text, as far as the model can.

    `schema` is a JSON Schema or a pydantic model; with a model, `value` is an instance. `parse_fn` turns the data into
    a domain object; what it raises counts as a bad reply and is told to the model. `regex_fallback` reads a plain text
    that holds no JSON; where it raises, there is no value in it. With `default_value` nothing is raised for bad
    replies. With `validate=False` the schema is only told to the model, and data that doesn't fit it is handed on as
    it is: the caller's own reading forgives more. At most 5 calls, most need one.

    Raises StructuredOutputError; LLMError for what the provider refuses or fails at.
    """
    call = _StructuredCall(llm, tuple(messages), schema, function_name, description, parse_fn, regex_fallback, validate)
    options = {"temperature": temperature, "max_tokens": max_tokens}
    for level in _levels(llm):
        found = await call.level(level, options)
        if found is not None:
            value, data = found
            return StructuredCallResult(value, data, level, call.calls, call.usage)
    if default_value is not UNSET:
        return StructuredCallResult(default_value, None, "default", call.calls, call.usage)
    raise call.error()


def _levels(llm: LLM) -> tuple[str, ...]:
    able = llm.abilities
    native = able["tool_call"] and not llm.refuses("tool_choice")
    by_json = able["json_mode"] or able["json_schema"]
    if native:
        return (NATIVE, JSON_MODE, PLAIN_TEXT) if by_json else (NATIVE, PLAIN_TEXT)
    return (JSON_MODE, PLAIN_TEXT) if by_json else (PLAIN_TEXT,)


class _StructuredCall:
    """The state of one structured call: what it asks, and what has come of it so far."""

    def __init__(
        self,
        llm: LLM,
        messages: tuple[Message, ...],
        schema: Any,
        name: str,
        description: str,
        parse_fn: Callable[[Any], Any] | None,
        regex_fallback: Callable[[str], Any] | None,
        validate: bool = True,
    ) -> None:
        self.validate = validate
        self.llm, self.messages, self.name, self.description = llm, messages, name, description
        self.model = None if isinstance(schema, Mapping) else schema
        self.schema: Mapping[str, Any] = schema if isinstance(schema, Mapping) else schema.model_json_schema()
        self.parse_fn, self.regex_fallback = parse_fn, regex_fallback
        self.calls, self.usage = 0, Usage.zero()
        self.last_reply, self.causes, self.cut = "", [], 0  # type: ignore[var-annotated]

    async def level(self, level: str, options: Mapping[str, Any]) -> tuple[Any, Any] | None:
        """The value and its data that a level brings, or None; a refused mechanism is remembered."""
        messages = self.messages if level == NATIVE else self._with_schema()
        tries = 1 if level == NATIVE else 2
        while tries:
            tries -= 1
            try:
                result = await self._ask(level, messages, options)
            except BadRequestError as error:
                denied = _denied(level, error)
                if denied is None:
                    raise
                self.llm.refuse(denied)
                self.causes.append((level, str(error)))
                if denied == "json_schema" and self.llm.abilities["json_mode"]:
                    tries += 1
                    continue
                return None
            try:
                return self._read(level, result)
            except _Unusable as error:
                self.causes.append((level, str(error)))
                messages = self._retry(messages, result, str(error))
        return None

    async def _ask(self, level: str, messages: Sequence[Message], options: Mapping[str, Any]) -> LLMResult:
        extra: dict[str, Any] = {}
        if level == NATIVE:
            extra["tools"] = [ToolSpec(self.name, self.description or f"Hands over the {self.name}.", self.schema)]
            extra["tool_choice"] = {"name": self.name}
        elif level == JSON_MODE and self.llm.abilities["json_schema"]:
            json_schema = {"name": self.name, "schema": self.schema, "strict": False}
            extra["response_format"] = {"type": "json_schema", "json_schema": json_schema}
        elif level == JSON_MODE:
            extra["response_format"] = {"type": "json_object"}
        result = await self.llm.chat(messages, **extra, **options)
        self.calls += 1
        self.usage += result.usage or Usage.unknown()
        return result

    def _read(self, level: str, result: LLMResult) -> tuple[Any, Any]:
        message, cut = result.message, result.finish_reason == "length"
        self.last_reply = message.content or (message.tool_calls[0].raw or "" if message.tool_calls else "")
        if cut:
            self.cut += 1
            raise _Unusable("it was cut by the output limit; answer more briefly")
        data = self._native_data(result) if level == NATIVE and message.tool_calls else None
        if data is None:
            data = extract_json(message.content, self.schema, result.finish_reason)
        if data is None and not self.validate:
            data = extract_json(message.content, None, result.finish_reason)
        if data is None and level == PLAIN_TEXT and self.regex_fallback is not None:
            data = self._by_regex(self.regex_fallback, message.content)
        if data is None:
            raise _Unusable(self._why_not(message.content))
        fitted, problems = coerce(data, self.schema)
        if problems and self.validate:
            raise _Unusable("; ".join(problems))
        data = data if problems else fitted
        return self._typed(data), data

    @staticmethod
    def _by_regex(fallback: Callable[[str], Any], text: str) -> Any:
        try:
            return fallback(text)
        except Exception as error:  # noqa: BLE001 - the caller's own code: what it can't read is no value
            log.warning("regex_fallback_failed", error=f"{type(error).__name__}: {error}")
            return None

    def _native_data(self, result: LLMResult) -> Any:
        calls = [call for call in result.message.tool_calls if call.name == self.name] or result.message.tool_calls
        values = []
        for call in calls:
            try:
                values.append(
                    dict(call.arguments)
                    if call.decoded
                    else parse_tool_arguments(call.raw, self.schema, result.finish_reason)
                )
            except ValueError as error:
                value = None if self.validate else extract_json(call.raw or "", None, result.finish_reason)
                if value is None:
                    raise _Unusable(str(error)) from error
                values.append(value)
        if any(value != values[0] for value in values):
            raise _Unusable("it held several different values; give exactly one")
        return values[0]

    def _typed(self, data: Any) -> Any:
        try:
            value = self.model.model_validate(data) if self.model is not None else data
            return self.parse_fn(value if self.model is not None else data) if self.parse_fn is not None else value
        except Exception as error:  # whatever the caller's own reading refuses is told to the model
            raise _Unusable(str(error) or type(error).__name__) from error

    def _why_not(self, text: str) -> str:
        if not text.strip():
            return "it was empty"
        value = extract_json(text)
        if value is None:
            return "there was no single JSON value in it"
        return "; ".join(coerce(value, self.schema)[1]) or "it was not a value of the schema"

    def _with_schema(self) -> tuple[Message, ...]:
        text = load_prompt("agent", "structured_schema").substitute(schema=json.dumps(self.schema, ensure_ascii=False))
        if self.messages and self.messages[0].role == "system":
            head, *rest = self.messages
            return (Message.system(f"{head.content}\n\n{text}"), *rest)
        return (Message.system(text), *self.messages)

    def _retry(self, messages: Sequence[Message], result: LLMResult, problem: str) -> tuple[Message, ...]:
        told = Message.user(load_prompt("agent", "structured_retry").substitute(problem=problem.rstrip(".")))
        if result.finish_reason == "length" or not self.last_reply.strip():
            return (*messages, told)
        return (*messages, Message.assistant(cut_end(self.last_reply, BAD_REPLY_CHARS)), told)

    def error(self) -> StructuredOutputError:
        """What to raise when all levels failed."""
        kind = StructuredTruncatedError if self.calls and self.cut == self.calls else StructuredOutputError
        causes = "; ".join(f"{level}: {cause}" for level, cause in self.causes)
        return kind(
            f"the model gave no usable {self.name} in {self.calls} calls ({causes})",
            last_reply=self.last_reply,
            causes=self.causes,
            usage=self.usage,
        )


def _denied(level: str, error: BadRequestError) -> str | None:
    """The ability that a 400 denies, when it is the level's own mechanism that was refused."""
    text = f"{error.param or ''} {error}".lower()
    return next((ability for word, ability in _MECHANISMS[level] if word in text), None)

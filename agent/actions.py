"""JSON objects that mean a tool call or a final answer, in the many spellings that models use."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from registry.schema import coerce, properties, required

from .json_text import BLANK_CHARS, strict
from .lenient import decoded, parse_value

FORMAT = (
    'Answer with one JSON object: {"type": "tool_call", "reasoning": "...", "tool_name": "...", "tool_args": {...}} '
    'or {"type": "final_answer", "reasoning": "...", "answer": "..."}.'
)

_NAMES = ("tool_name", "tool", "action", "function_name", "recipient_name", "name", "function")
_ARGUMENTS = (
    *("tool_args", "tool_arguments", "tool_input", "tool_parameters", "arguments", "args", "parameters"),
    *("action_input", "action_args", "input", "params", "kwargs"),
)
_THOUGHTS = ("reasoning", "thought", "thoughts")
_ANSWERS = ("answer", "final_answer", *_ARGUMENTS, "output", "response", "content")
_WRAPPERS = ("tool_call", "tool_calls", "function_call", "function_calls", "tool_uses", "calls")
_BESIDE = frozenset({"type", "id", "tool_call_id", "call_id", "index", *_THOUGHTS})
_FINAL = frozenset({"final", "finalanswer", "finish", "answer"})
_PREFIX = re.compile(r"(?:functions|function|tools|tool|default_api|tool_calls?)[.:/]")
_KIMI_SUFFIX = re.compile(r":\d{1,4}\Z")
_IDENTIFIER = re.compile(r"[\w.:|/-]{1,100}")
_LISTED = 50


class UnknownToolError(ValueError):
    """A call of a tool that does not exist. `name`: as written; `nearest`: the most similar tool, or None."""

    def __init__(self, name: str, names: Sequence[str]) -> None:
        self.name = name[:100]
        near = difflib.get_close_matches(self.name, names, 1, cutoff=0.0)
        self.nearest = near[0] if near else None
        if self.nearest is None:
            hint = "There are no tools."
        else:
            listed = ", ".join(names[:_LISTED]) + (", …" if len(names) > _LISTED else "")
            hint = f"The nearest tool is {self.nearest!r}. Tools: {listed}."
        super().__init__(f"unknown tool {self.name!r}. {hint} {FORMAT}")


@dataclass(frozen=True, slots=True)
class TextCall:
    """A tool call read from a text: an existing tool, the arguments coerced to its schema but not validated."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Action:
    """Calls, or a final answer. `only_first`: the form stands for one action a turn."""

    calls: tuple[TextCall, ...] = ()
    final: str | None = None
    reasoning: str = ""
    only_first: bool = False


class KnownTools:
    """The tools of a turn by name; accepts names, {name, parameters} mappings and Tool objects."""

    def __init__(self, tools: Iterable[Any]) -> None:
        self.schemas: dict[str, Any] = {}
        for tool in tools:
            if isinstance(tool, str):
                self.schemas[tool] = None
            elif isinstance(tool, Mapping):
                inner = tool.get("function")
                spec = inner if isinstance(inner, Mapping) else tool
                self.schemas[spec["name"]] = spec.get("parameters")
            else:
                self.schemas[tool.name] = tool.parameters
        self._folded = {_folded(name): name for name in self.schemas}

    def resolve(self, name: str) -> str | None:
        """The tool that is meant: the exact name, else without a namespace, else whatever the case."""
        name = name.strip()
        if name in self.schemas:
            return name
        bare = _KIMI_SUFFIX.sub("", _PREFIX.sub("", name, count=1))
        if bare in self.schemas:
            return bare
        return self._folded.get(_folded(bare))

    def fields(self, name: str) -> dict[str, Any]:
        """The declared parameters of a tool."""
        return properties(self.schemas.get(name))

    def unknown(self, name: str) -> UnknownToolError:
        """The error for a name that is no tool."""
        return UnknownToolError(_PREFIX.sub("", name.strip(), count=1), list(self.schemas))

    def call(self, name: str, arguments: Any) -> TextCall | None:
        """The call; None where the text is only call-shaped: an unknown name without an object of arguments.

        Raises UnknownToolError, or ValueError where an existing tool's arguments are no object.
        """
        known = self.resolve(name)
        if isinstance(arguments, str):
            arguments = self._from_text(known, arguments)
        if known is None:
            if isinstance(arguments, dict):
                raise self.unknown(name)
            return None
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            raise ValueError(f"the arguments of {known!r} must be one JSON object. {FORMAT}")
        return TextCall(known, self.coerced(known, arguments))

    def coerced(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments in the schema's types; what does not fit stays, the loop says what is wrong with it."""
        schema = self.schemas.get(name)
        return dict(coerce(arguments, schema, parse=parse_value)[0]) if isinstance(schema, Mapping) else arguments

    def _from_text(self, known: str | None, text: str) -> Any:
        """Arguments that came as a string: an encoded object, nothing, or the text for a tool with one parameter."""
        body = text.strip(BLANK_CHARS)
        if body[:1] in ("{", '"') and isinstance(value := _object_of(body), dict):
            return value
        if known is None:
            return text
        schema = self.schemas[known]
        names = required(schema) or tuple(properties(schema))
        if (not body or body.lower() in ("none", "null")) and not required(schema):
            return {}
        if len(names) == 1:
            return {names[0]: text}
        return {"input": text} if schema is None else text


def read_action(value: Any, tools: KnownTools, *, marked: bool = False) -> Action | None:
    """The action that a JSON value stands for, None where it is other data. `marked`: a markup says that it is a call.

    Raises UnknownToolError and ValueError as `KnownTools.call` does.
    """
    if isinstance(value, list):
        return _several(value, tools, marked)
    if not isinstance(value, dict):
        return None
    reasoning = next((value[key] for key in _THOUGHTS if isinstance(value.get(key), str)), "")
    for key in _WRAPPERS:
        if isinstance(value.get(key), dict | list) and value.keys() <= {key, *_BESIDE, "content", "role"}:
            inner = read_action(value[key], tools, marked=marked)
            return inner and Action(inner.calls, inner.final, inner.reasoning or reasoning, inner.only_first)
    if isinstance(value.get("function"), dict):
        return read_action(value["function"], tools, marked=marked)
    if (final := _final(value, tools)) is not None:
        return Action(final=final, reasoning=reasoning, only_first=True)
    call = _call(value, tools, marked)
    only_first = "action" in value or value.get("type") == "tool_call"
    return Action((call,), reasoning=reasoning, only_first=only_first) if call else None


def looks_like_action(keys: Iterable[str]) -> bool:
    """Whether an object with these keys could be a call or a final answer."""
    names = set(keys)
    return bool(names & {"tool_name", "tool_args", "action", "tool_call"}) or bool(
        names & set(_NAMES) and names & set(_ARGUMENTS)
    )


def is_final_name(name: str) -> bool:
    """Whether an action's name means that the answer follows."""
    return _folded(name) in _FINAL


def _several(value: list[Any], tools: KnownTools, marked: bool) -> Action | None:
    actions = [read_action(item, tools, marked=marked) if isinstance(item, dict) else None for item in value]
    if not actions or any(action is None or not action.calls for action in actions):
        return None
    return Action(tuple(call for action in actions if action for call in action.calls))


def _final(value: Mapping[str, Any], tools: KnownTools) -> str | None:
    """The answer of a final action."""
    name = next((value[key] for key in ("action", "tool_name", "tool") if isinstance(value.get(key), str)), "")
    named = bool(name) and is_final_name(name) and tools.resolve(name) is None
    alone = "final_answer" in value and value.keys() <= {"final_answer", *_BESIDE}
    if value.get("type") != "final_answer" and not named and not alone:
        return None
    if not (found := [value[key] for key in _ANSWERS if key in value]):
        raise ValueError(f"the final answer has no answer. {FORMAT}")
    answer = found[0]
    if isinstance(answer, dict) and len(answer) == 1 and isinstance(inner := next(iter(answer.values())), str):
        answer = inner
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)


def _call(value: dict[str, Any], tools: KnownTools, marked: bool) -> TextCall | None:
    if len(value) == 1:
        name, inner = next(iter(value.items()))
        if isinstance(inner, dict) and name in tools.schemas:
            return tools.call(name, inner)
    key = next((key for key in _NAMES if isinstance(value.get(key), str)), None)
    declared = value.get("type") == "tool_call"
    if key is None:
        if declared or (marked and value.keys() & set(_ARGUMENTS)):
            raise ValueError(f"the tool call names no tool. {FORMAT}")
        return None
    name = value[key]
    place = next((place for place in _ARGUMENTS if place in value and place != key), None)
    if place is not None and _is_declaration(value[place], tools.fields(tools.resolve(name) or "")):
        return None
    if place is not None:
        call = tools.call(name, value[place])
    else:
        call = _flat(name, {k: v for k, v in value.items() if k != key and k not in _BESIDE}, tools, marked or declared)
    if call is None and (declared or (marked and place) or (key == "action" and place and _IDENTIFIER.fullmatch(name))):
        raise tools.unknown(name)
    return call


def _is_declaration(arguments: Any, fields: Mapping[str, Any]) -> bool:
    """Whether the "arguments" are a schema: the model repeated the declaration of a tool, it does not call it."""
    return (
        isinstance(arguments, dict)
        and arguments.get("type") == "object"
        and isinstance(arguments.get("properties"), dict)
        and not fields.keys() >= {"type", "properties"}
    )


def _flat(name: str, rest: dict[str, Any], tools: KnownTools, sure: bool) -> TextCall | None:
    """A call whose arguments stand beside the name, or that has none."""
    known = tools.resolve(name)
    if known is None or (not sure and not rest.keys() <= tools.fields(known).keys()):
        return None
    missing = [field for field in required(tools.schemas[known]) if field not in rest]
    return None if missing and not sure else tools.call(name, rest)


def _object_of(text: str) -> Any:
    found = strict(text)
    if found is not None:
        return decoded(found.value)
    try:
        return decoded(parse_value(text))
    except ValueError:
        return None


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]", "", name[:200]).casefold()

"""A whole turn in text: the tool calls in it, whatever their markup, or the answer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .actions import FORMAT, Action, KnownTools, TextCall, looks_like_action, read_action
from .json_text import BLANK_CHARS, Found, strict
from .lenient import Reader, decoded
from .markup import read_markup, read_tool_elements
from .pythonic import read_python_calls
from .react_text import OBSERVATION, read_react
from .reasoning import strip_reasoning
from .values import Values, find_values

_CALL_KEY = re.compile(
    r"""["'“]?(?:tool_name|tool_args|tool_call|action_input|arguments|parameters|action)["'”]?[ ]?:"""
    r"""|"type"[ ]?:[ ]?"(?:tool_call|final_answer)\""""
)
_NAME_KEY = re.compile(r"""["'“](?:name|function|action|tool|tool_name)["'”]\s?:""")
_STOP_TOKENS = re.compile(
    r"(?:<\|(?:im_end|eot_id|eom_id|end|return|endoftext|end_of_text)\|>|</s>|<end_of_turn>)\s*\Z"
)
_FINAL_CHANNEL = re.compile(r"<\|channel\|>final(?:[ ]?<\|constrain\|>\w{1,20})?<\|message\|>")


@dataclass(frozen=True, slots=True)
class TextTurn:
    """A model's turn read from its text.

    Either `calls`, or `final`: the answer. `explicit` says that the answer was marked as one (a final action,
    "Final Answer:"), not just text without a call.
    """

    calls: tuple[TextCall, ...] = ()
    final: str | None = None
    reasoning: str = ""
    explicit: bool = False


def parse_tool_text(text: str, tools: Iterable[Any], finish_reason: str | None = None) -> dict[str, Any]:
    """{"tool_calls": [{"name", "arguments"}]} or {"final": text}, out of a whole reply.

    `tools`: names, {name, parameters} mappings, or Tool objects; only these exist. Raises ValueError for a call that
    can't be read, that the output limit cut, or that names no existing tool.
    """
    turn = read_turn(text, tools, finish_reason)
    if turn.calls:
        return {"tool_calls": [{"name": call.name, "arguments": call.arguments} for call in turn.calls]}
    return {"final": turn.final or ""}


def read_turn(text: str, tools: Iterable[Any], finish_reason: str | None = None) -> TextTurn:
    """The same as `parse_tool_text`, with the reasoning. Raises ValueError likewise."""
    try:
        return _read(text.strip(BLANK_CHARS), KnownTools(tools), finish_reason == "length")
    except RecursionError:
        raise ValueError(f"the reply is nested too deeply. {FORMAT}") from None


def _read(text: str, known: KnownTools, cut: bool) -> TextTurn:
    thoughts, rest = "", text
    if (whole := strict(text)) is None:
        thoughts, rest = strip_reasoning(text)
        rest = rest.strip(BLANK_CHARS)
        whole = strict(rest) if rest != text else None
    if not rest and cut:
        raise ValueError("the output limit cut the reply inside its reasoning")
    action = _whole(whole, known) if whole else _mixed(rest, known, cut)
    if action is None:
        return TextTurn(final=_plain(rest), reasoning=thoughts)
    reasoning = "\n".join(part for part in (thoughts, action.reasoning) if part)
    if action.calls and cut:
        raise ValueError("the output limit cut the reply: its calls are not run")
    if action.calls:
        return TextTurn(action.calls, reasoning=reasoning)
    return TextTurn(final=action.final, reasoning=reasoning, explicit=True)


def _whole(found: Found, known: KnownTools) -> Action | None:
    """A reply that is one strict JSON value."""
    value = decoded(found.value)
    if found.conflict is not None:
        _refuse_conflict(found)
        return None
    return read_action(value, known)


def _mixed(text: str, known: KnownTools, cut: bool) -> Action | None:
    if final := _FINAL_CHANNEL.search(text):
        return Action(final=_plain(text[final.end() :]))
    body = _plain(text)
    if body.startswith("<final_answer>") and body.endswith("</final_answer>"):
        return Action(final=body[len("<final_answer>") : -len("</final_answer>")].strip())
    reader = Reader(text)
    if text[:1] in ("{", "[") or text.startswith("```"):
        ways = (_from_values, _from_markup, _from_react)
    else:
        ways = (_from_markup, _from_react, _from_values)
    for way in ways:
        if (action := way(text, known, reader, cut)) is not None:
            return action
    return None


def _from_markup(text: str, known: KnownTools, reader: Reader, cut: bool) -> Action | None:
    calls = read_markup(text, known, reader, cut)
    if not calls:
        return None
    invented = OBSERVATION.search(text, calls[0][0])
    last = invented.start() if invented else len(text)
    prose = text[: calls[0][0]].strip()
    return Action(tuple(call for start, call in calls if start < last), reasoning=prose)


def _from_react(text: str, known: KnownTools, reader: Reader, cut: bool) -> Action | None:
    return read_react(text, known, reader)


def _from_values(text: str, known: KnownTools, reader: Reader, cut: bool) -> Action | None:
    """Actions among the JSON values of the text, fenced or bare."""
    values = find_values(text, Reader(text))
    calls: list[TextCall] = []
    reasoning = ""
    end = len(text)
    for candidate in values.candidates:
        found = candidate.found
        if found.start >= end:
            break
        if found.conflict is not None:
            _refuse_conflict(found)
            continue
        action = read_action(found.value, known, marked="tool" in candidate.label)
        if action is None:
            continue
        if not found.closed and found.end >= len(text) and text[-1] not in "]}":
            raise ValueError(f"the tool call is not complete. {FORMAT}")
        if action.only_first and not calls:
            return action
        if not action.calls:
            break
        if not calls:
            reasoning = action.reasoning
            invented = OBSERVATION.search(text, found.end)
            end = invented.start() if invented else end
        calls += action.calls
    if calls:
        return Action(tuple(calls), reasoning=reasoning)
    _refuse_unreadable(text, values, cut)
    if elements := read_tool_elements(text, known, reader):
        return Action(tuple(elements))
    return _bare_python(text, known, reader)


def _bare_python(text: str, known: KnownTools, reader: Reader) -> Action | None:
    """A reply that is nothing but calls in Python's form, of existing tools."""
    body = text.strip("` \n")
    start = text.find(body) if body else 0
    read = read_python_calls(text, start, known, reader)
    if read is None or text[read[1] :].strip("` \n") or not all(known.resolve(name) for name, _ in read[0]):
        return None
    calls = [known.call(name, arguments) for name, arguments in read[0]]
    return Action(tuple(call for call in calls if call))


def _refuse_conflict(found: Found) -> None:
    value = found.value
    if isinstance(value, dict) and looks_like_action(value):
        raise ValueError(f"the key {found.conflict!r} comes twice with different values. {FORMAT}")


def _refuse_unreadable(text: str, values: Values, cut: bool) -> None:
    """Raises where a call was meant but can't be read: it is no answer."""
    if values.complete and not values.broken:
        return
    if cut:
        raise ValueError("the output limit cut the reply inside its JSON")
    starts = text[:1] in ("{", "[") or text.startswith("```")
    head = text[:2_000]
    if starts and (_CALL_KEY.search(head) and (_NAME_KEY.search(head) or "type" in head)):
        raise ValueError(f"the reply is not valid JSON. {FORMAT}")


def _plain(text: str) -> str:
    return _STOP_TOKENS.sub("", text[-100:]).join((text[:-100], "")).strip() if text else ""

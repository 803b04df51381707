"""The ReAct form in plain text: Thought, Action, Action Input, Observation, Final Answer; the paper's name[input]."""

# ruff: noqa: RUF001 - curly and full-width marks are meant

from __future__ import annotations

import re

from registry.schema import required

from .actions import Action, KnownTools, is_final_name, read_action
from .json_text import BLANK_CHARS, Found
from .lenient import Reader
from .pythonic import read_python_calls

_LABEL = re.compile(
    r"^[ \t*#>_]{0,8}(thought|action[ _]?input|action|observation|final[ _]answer|answer)"
    r"[ \t]{0,4}\d{0,3}[ \t*_]{0,4}[:：][ \t*_]{0,4}",
    re.MULTILINE | re.IGNORECASE,
)
OBSERVATION = re.compile(
    r"^[ \t*#>_]{0,8}observation[ \t]{0,4}\d{0,3}[ \t*_]{0,4}[:：]"
    r"|<\|?tool_(?:response|output|result)|<function_results?>|<｜tool▁outputs?▁begin｜>|\[TOOL_RESULTS\]",
    re.MULTILINE | re.IGNORECASE,
)
"""Where the model begins to invent what only a tool can say."""

_INLINE = re.compile(r"\bAction:[ \t]{0,4}([\w.-]{1,100})[ \t]{1,4}(?=Action Input:)")
_INLINE_INPUT = re.compile(r"[ \t]{0,4}(?:Action[ _]?)?Input:[ \t]{0,4}", re.IGNORECASE)
_BRACKETED = re.compile(r"[ \t*`\"']{0,4}([\w.-]{1,100})[ \t]?\[")
_NAMED = re.compile(
    r"[ \t*`\"'\[]{0,4}([^\W_][\w.:/-]{0,100}(?:[ ][\w.:/-]{1,30}){0,3})"
    r"[*`\"'\]]{0,4}[ \t]{0,4}(?:\n|\Z|(?=\{)|(?=Action Input:))"
)
_CALLED = re.compile(r"[ \t*`\"']{0,4}(?=[A-Za-z_][\w.-]{0,100}\()")
_FENCE = re.compile(r"```[a-z_]{0,12}\s{0,10}")
_STOP_WORD = re.compile(r"\n[ \t]{0,8}Obs(?:e|er|erv|erva|ervat|ervati|ervatio|ervation)?[ \t]?:?\s{0,8}\Z")
_NO_TOOL = frozenset({"n/a", "na", "none", "null", "no", "nothing", "-"})
_MAX_LABELS = 1_000


def read_react(text: str, known: KnownTools, reader: Reader) -> Action | None:
    """The first action or answer that is labelled as one; None where there is none.

    Raises UnknownToolError for an action with an input whose tool does not exist.
    """
    labels = [match for _, match in zip(range(_MAX_LABELS), _LABEL.finditer(text), strict=False)]
    names = [re.sub(r"[ _]", "", match.group(1)).lower() for match in labels]
    for place, name in enumerate(names):
        match = labels[place]
        if name == "finalanswer" or (name == "answer" and _is_answer(text, match, names[:place])):
            end = next(
                (labels[i].start() for i in range(place + 1, len(names)) if names[i] == "observation"), len(text)
            )
            return Action(final=text[match.end() : end].strip(), reasoning=_thought(text, labels, names, place))
        if name == "action":
            follows = labels[place + 1] if place + 1 < len(names) and names[place + 1] == "actioninput" else None
            action = _action(text, match, follows, known, reader)
            if action is not None:
                reasoning = action.reasoning or _thought(text, labels, names, place)
                return Action(action.calls, action.final, reasoning, only_first=True)
    inline = _INLINE.search(text)
    if inline and known.resolve(inline.group(1)) and (label := _INLINE_INPUT.match(text, inline.end())):
        return _with_input(text, inline.group(1), label.end(), known, reader)
    return None


def _is_answer(text: str, match: re.Match[str], before: list[str]) -> bool:
    """A bare "Answer:" counts at the start of the reply or after a thought; elsewhere it is a line of prose."""
    return "thought" in before or not text[: match.start()].strip()


def _thought(text: str, labels: list[re.Match[str]], names: list[str], place: int) -> str:
    for index in range(place - 1, -1, -1):
        if names[index] == "thought":
            return text[labels[index].end() : labels[index + 1].start()].strip()
    return text[: labels[0].start()].strip()


def _action(
    text: str, match: re.Match[str], follows: re.Match[str] | None, known: KnownTools, reader: Reader
) -> Action | None:
    """What stands behind one "Action:" label; None where it names no action."""
    at = match.end()
    if not text[at : text.find("\n", at) if "\n" in text[at : at + 200] else len(text)].strip():
        at = reader.skip_blank(at)  # the name stands on the next line
    if fence := _FENCE.match(text, at):
        at = fence.end()
    if text[at : at + 1] == "{":
        found = reader.read(at)
        return read_action(found.value, known) if isinstance(found, Found) and found.conflict is None else None
    if fence:
        return None
    if bracketed := _BRACKETED.match(text, at):
        return _paper(text, bracketed, known)
    if called := _CALLED.match(text, at):
        return _python(text, called.end(), known, reader)
    return _named(text, at, follows, known, reader)


def _named(text: str, at: int, follows: re.Match[str] | None, known: KnownTools, reader: Reader) -> Action | None:
    """A bare name, its input beside it, behind the next label, or missing."""
    named = _NAMED.match(text, at)
    if named is None:
        return None
    name = named.group(1)
    if name.lower() in _NO_TOOL:
        return None
    if text.startswith("{", named.end()):
        return _with_input(text, name, named.end(), known, reader)
    if inline := _INLINE_INPUT.match(text, named.end()):
        return _with_input(text, name, inline.end(), known, reader)
    if follows is not None:
        return _with_input(text, name, follows.end(), known, reader)
    tool = known.resolve(name)
    if tool is None:
        return None
    if missing := required(known.schemas[tool]):
        raise ValueError(f"the action {name!r} has no Action Input: it needs {', '.join(missing)}")
    call = known.call(name, {})
    return Action((call,)) if call else None


def _with_input(text: str, name: str, at: int, known: KnownTools, reader: Reader) -> Action | None:
    """An action and its input: an object, or plain text up to the next label."""
    start = reader.skip_blank(at)
    for fence in ("```json", "```"):
        if text.startswith(fence, start):
            start = reader.skip_blank(start + len(fence))
    final = is_final_name(name) and known.resolve(name) is None
    if text.startswith("{", start) and not final:
        found = reader.read(start)
        if isinstance(found, Found):
            if found.conflict is not None:
                raise ValueError(f"the key {found.conflict!r} comes twice with different values")
            call = known.call(name, found.value)
            return Action((call,)) if call else None
    label = _LABEL.search(text, at)
    body = text[start : label.start() if label else len(text)] if not label or label.start() > start else ""
    body = _STOP_WORD.sub("", body[-100:]).join((body[:-100], "")).strip(BLANK_CHARS).removesuffix("```").rstrip()
    if final:
        return Action(final=body)
    if known.resolve(name) is None:
        if " " in name:
            return None  # words, not the name of a tool
        raise known.unknown(name)
    if body.startswith("{"):
        raise ValueError(f"the Action Input of {name!r} is not valid JSON")
    call = known.call(name, unquoted(body))
    return Action((call,)) if call else None


def _paper(text: str, match: re.Match[str], known: KnownTools) -> Action | None:
    """name[input] with balanced brackets; finish[answer] ends the run."""
    depth, end = 1, -1
    for bracket in re.finditer(r"[\[\]]", text[match.end() :]):
        depth += 1 if bracket.group() == "[" else -1
        if depth == 0:
            end = match.end() + bracket.start()
            break
    if end < 0:  # never balanced: the last bracket of the line closes it
        line = text.find("\n", match.end())
        end = text.rfind("]", match.end(), line if line >= 0 else len(text))
        if end < 0:
            raise ValueError(f"the bracket of the action {match.group(1)!r} is never closed")
    name, body = match.group(1), text[match.end() : end].strip()
    if is_final_name(name) and known.resolve(name) is None:
        return Action(final=body)
    if known.resolve(name) is None:
        raise known.unknown(name)
    call = known.call(name, unquoted(body))
    return Action((call,)) if call else None


def _python(text: str, at: int, known: KnownTools, reader: Reader) -> Action | None:
    read = read_python_calls(text, at, known, reader)
    if read is None:
        return None
    name, arguments = read[0][0]
    if is_final_name(name) and known.resolve(name) is None and len(arguments) == 1:
        return Action(final=str(next(iter(arguments.values()))))
    call = known.call(name, arguments)
    return Action((call,)) if call else None


def unquoted(text: str) -> str:
    """A plain input without the quotes around it."""
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'`" and text[0] not in text[1:-1]
    return text[1:-1] if quoted else text

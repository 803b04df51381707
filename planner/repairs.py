"""How the shape of a written plan is repaired: wrappers, names of fields, texts, references. Meaning is not touched."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from registry.text import clean

MAX_TEXT_CHARS = 1_000_000
"""A plan as text is not read beyond this: no planner writes 250,000 tokens."""
MAX_ID_CHARS = 200
MAX_DEPTH = 6
"""Wrappers within wrappers, and lists within lists, that are looked through."""

NOTHING = frozenset({"", "none", "null", "nil", "n/a", "na", "-", "—", "[]", "{}", "no", "nothing", "undefined"})
"""Words that stand for "no value" where a name is expected (compared in lower case)."""

WRAPPERS = ("steps", "plan", "tasks", "subtasks", "nodes", "dag", "graph", "workflow", "plan_steps")
"""Keys under which planners put their steps, in the order in which they are looked for."""

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "id": ("stepid", "taskid", "step", "number"),
    "task": ("description", "instruction", "instructions", "objective", "title"),
    "dependencies": (
        *("dependson", "deps", "dependency", "dependencyids", "requires", "needs", "after", "prerequisites"),
        *("blockedby", "waitfor", "waitsfor", "parents", "predecessors"),
    ),
    "tool_hint": ("tool", "tools", "toolname"),
    "model_hint": ("model", "modelname"),
    "on_failure": (),
}
"""Other names of a step's fields, without case, blanks, `-` and `_`. The list for dependencies is long on purpose: one
that is overlooked would let its step start too early."""

_FIELDS = {name: field for field, others in SYNONYMS.items() for name in (field.replace("_", ""), *others)}


class NotAPlan(Exception):
    """Nothing in the value can be read as steps; the text says why."""


def find_steps(value: Any, notes: list[str], depth: int = 0) -> list[Any]:
    """The list of raw steps in whatever the planner wrote; what had to be looked through is added to `notes`.

    Raises NotAPlan.
    """
    if depth > MAX_DEPTH:
        raise NotAPlan("it is nested too deeply")
    if isinstance(value, str):
        notes.append("json_text:plan")
        return find_steps(read_text(value), notes, depth + 1)
    if isinstance(value, Mapping):
        return _steps_of_mapping(value, notes, depth)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        if len(value) == 1 and isinstance(value[0], list | tuple):
            notes.append("nested_list:plan")
            return find_steps(value[0], notes, depth + 1)
        if depth == 0:
            notes.append("bare_list:plan")
        return list(value)
    raise NotAPlan(f"it is {describe(value)}")


def _steps_of_mapping(value: Mapping[Any, Any], notes: list[str], depth: int) -> list[Any]:
    keys = {squeeze(key): key for key in value if isinstance(key, str)}
    for wrapper in WRAPPERS:
        key = keys.get(wrapper.replace("_", ""))
        if key is None:
            continue
        inner = value[key]
        if wrapper != "steps" and is_step(value) and not _holds_steps(inner):
            continue  # a field of a bare step, not a wrapper
        if wrapper != "steps":
            notes.append(f"wrapper:{key}")
        if inner is None:
            return []
        if isinstance(inner, Mapping) and wrapper == "steps":
            return _keyed_steps(inner, notes)
        return find_steps(inner, notes, depth + 1)
    if is_step(value):
        notes.append("bare_step:plan")
        return [value]
    if value and all(isinstance(item, Mapping) and is_step(item) for item in value.values()) and len(value) > 1:
        return _keyed_steps(value, notes)
    return _steps_of_other_wrapper(value, notes, depth)


def _holds_steps(value: Any) -> bool:
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return any(is_step(item) for item in items)


def _steps_of_other_wrapper(value: Mapping[Any, Any], notes: list[str], depth: int) -> list[Any]:
    """A key we don't know is a wrapper where exactly one of them leads to steps."""
    found = []
    for key, inner in value.items():
        if not isinstance(inner, Mapping | list | tuple | str) or (isinstance(inner, str) and "{" not in inner):
            continue
        inner_notes: list[str] = []
        try:
            steps = find_steps(inner, inner_notes, depth + 1)
        except NotAPlan:
            continue
        if any(is_step(step) for step in steps):
            found.append((key, steps, inner_notes))
    if len(found) != 1:
        raise NotAPlan("there are no steps in it" if not found else "more than one of its keys holds steps")
    key, steps, inner_notes = found[0]
    notes.extend([f"wrapper:{scalar_text(key) or repr(key)}", *inner_notes])
    return steps


def _keyed_steps(value: Mapping[Any, Any], notes: list[str]) -> list[Any]:
    if is_step(value):
        notes.append("bare_step:plan")
        return [value]
    notes.append("keyed_by_id:plan")
    steps: list[Any] = []
    for key, item in value.items():
        if not isinstance(item, Mapping):
            steps.append({"id": key, "task": item} if isinstance(item, str) else item)
            continue
        steps.append({**item, "id": key} if is_nothing(fields_of(item)[0].get("id")) else dict(item))
    return steps


def is_step(value: Any) -> bool:
    """Whether a value has the look of a step: a mapping with a task, or with an id and nothing that wraps steps."""
    if not isinstance(value, Mapping):
        return False
    fields = {_FIELDS.get(squeeze(key)) for key in value if isinstance(key, str)}
    if "task" in fields:
        inner = next(value[key] for key in value if isinstance(key, str) and _FIELDS.get(squeeze(key)) == "task")
        return not isinstance(inner, Mapping) or "id" in fields
    keys = {squeeze(key) for key in value if isinstance(key, str)}
    return "id" in keys and not keys & {wrapper.replace("_", "") for wrapper in WRAPPERS}


def fields_of(step: Mapping[Any, Any]) -> tuple[dict[str, Any], list[str]]:
    """A step's fields under their right names, and the other names that were used. The right name wins; dependencies
    under several names are joined."""
    fields: dict[str, Any] = {name: step[name] for name in SYNONYMS if name in step}
    renamed = []
    ranked = sorted(
        ((key, squeeze(key)) for key in step if isinstance(key, str) and key not in SYNONYMS),
        key=lambda pair: _rank(pair[1]),
    )
    for key, squeezed in ranked:
        field = _FIELDS.get(squeezed)
        if field is None:
            continue
        if field == "dependencies" and not is_nothing(step[key]) and not is_nothing(fields.get(field)):
            fields[field] = [fields[field], step[key]]
        elif field in fields and not is_nothing(fields[field]):
            continue
        else:
            fields[field] = step[key]
        renamed.append(key)
    return fields, renamed


def _rank(squeezed: str) -> int:
    field = _FIELDS.get(squeezed)
    others = SYNONYMS[field] if field else ()
    return others.index(squeezed) + 1 if squeezed in others else 0


def read_text(text: str) -> Any:
    """The JSON value in a text (fenced, in prose, or plain). Raises NotAPlan."""
    from agent.extract import extract_json

    if len(text) > MAX_TEXT_CHARS:
        raise NotAPlan(f"its text has {len(text)} characters, at most {MAX_TEXT_CHARS} are read")
    value = extract_json(text)
    if not isinstance(value, Mapping | list):
        raise NotAPlan("it is a text without a JSON object or list of steps")
    return value


def squeeze(key: str) -> str:
    """A key without case, blanks, `-` and `_`."""
    return re.sub(r"[\s_\-]+", "", key).casefold()


def is_nothing(value: Any) -> bool:
    """Whether a value stands for "none"."""
    if value is None or value is False:
        return True
    if isinstance(value, str):
        return value.strip().casefold() in NOTHING
    return isinstance(value, Mapping | list | tuple | set) and not value


def scalar_text(value: Any) -> str | None:
    """A text or number as an id or name: trimmed, blanks in it single, 1.0 as 1. None for anything else."""
    if isinstance(value, str):
        return " ".join(clean(value).split())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return str(value) if abs(value) < 10**300 else None  # beyond, Python itself refuses to write it out


def describe(value: Any) -> str:
    """A JSON value in words, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return "a text"
    if isinstance(value, int | float):
        return "a number"
    return "an object" if isinstance(value, Mapping) else "a list" if isinstance(value, list | tuple) else "no JSON"


_STEP_WORD = re.compile(r"^step(?=[\s\-_.:#$\d])[\s\-_.:#$]*", re.IGNORECASE)
_POINTER = re.compile(r"^(?:\$\{(.+)\}|\{\{(.+)\}\}|<(.+)>)$", re.DOTALL)
_NUMBER = re.compile(r"0*(\d+)(?:\.0+)?")


def spelling(name: str) -> str:
    """A name without what a reference may differ by: case, blanks, `#`, `$`, the word step, the form of a number."""
    text = name.strip()
    if pointer := _POINTER.match(text):
        text = next(group for group in pointer.groups() if group)
    text = _STEP_WORD.sub("", text.strip().lstrip("#$").strip()) or text
    text = re.sub(r"[\s#$]+", "", text).casefold()
    number = _NUMBER.fullmatch(text)
    return number[1] if number else text


class References:
    """The known ids of a plan, to look up what a reference means."""

    def __init__(self, ids: Iterable[str]) -> None:
        self.ids = dict.fromkeys(ids)
        self._by_spelling: dict[str, list[str]] = {}
        self._by_suffix: dict[str, list[str]] = {}
        for known in self.ids:
            if len(known) > MAX_ID_CHARS:
                continue
            self._by_spelling.setdefault(spelling(known), []).append(known)
            lowered = known.casefold()
            for at, char in enumerate(lowered):
                if char in "-_.:/" and at + 1 < len(lowered):
                    self._by_suffix.setdefault(lowered[at + 1 :], []).append(known)

    def find(self, reference: str, own_id: str) -> str | None:
        """The one id a reference means: itself, the only one that differs by spelling, or the only one it is the
        suffix of; None where there is none or several. A repaired reference never means the step itself."""
        if reference in self.ids:
            return reference
        spelt = self._by_spelling.get(spelling(reference), [])
        candidates = spelt or self._by_suffix.get(reference.strip().lstrip("#$").strip().casefold(), [])
        return candidates[0] if len(candidates) == 1 and candidates[0] != own_id else None

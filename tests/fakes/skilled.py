"""Models of stated quality, for the provider fake: they find values and add them up, and are wrong as often as stated.

The world has items; an item's value is a number that only this module knows. A step says `Find the value of NAME.` or
`Add the values of NAME, NAME, … and call the sum NAME.`; a right answer is `NAME = NUMBER`. A step that adds takes the
values that it is told, so that a wrong value makes a wrong sum. Whether a model is right about an item is decided by
the two names alone: asked again it says the same, which is what makes experiments repeatable.

How often models fail on the same items is `SHARED`: each has a normal number, of which this part of the variance is the
item's own (a Gaussian copula), so that the rates stay as they are stated.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from .brain import filled
from .view import View

SHARED = 0.6
NORMAL = NormalDist()
NAME = r"[a-z][a-z0-9]*(?:-[a-z0-9]+)+"
STEP = re.compile(
    rf"Your step: (?:Find the value of ({NAME})\.|Add the values of ([^.]+?) and call the sum ({NAME})\.)"
)
VALUE = re.compile(rf"({NAME}) = (\d+)")
TASK_OF_CHECK = re.compile(rf"(?:Find the value of ({NAME})\.|Add the values of ([^.]+?) and call the sum ({NAME})\.)")


@dataclass(frozen=True, slots=True)
class Skill:
    """How good a model is. `easy`, `hard`: how often it is right about items of that kind, adding is always right.
    `checks`: how often its look at a result is right; `knows`: how often its own report tells right from wrong.
    `delay`: seconds per reply."""

    easy: float
    hard: float
    checks: float = 0.9
    knows: float = 0.8
    delay: float = 0.0


def value_of(item: str) -> int:
    """The item's true value, 100 to 999."""
    return 100 + int(_uniform("value", item) * 900)


def is_hard(item: str) -> bool:
    """Names say it: `…-hard`."""
    return item.endswith("-hard")


def is_right(model: str, skill: Skill, item: str) -> bool:
    """Whether the model is right about the item: as often as stated over many items."""
    own = NORMAL.inv_cdf(_uniform("luck", item, model))
    z = SHARED**0.5 * NORMAL.inv_cdf(_uniform("difficulty", item)) + (1 - SHARED) ** 0.5 * own
    return NORMAL.cdf(z) < (skill.hard if is_hard(item) else skill.easy)


def found(model: str, skill: Skill, item: str) -> int:
    """What the model says the value is."""
    return (
        value_of(item) if is_right(model, skill, item) else value_of(item) + 1 + int(_uniform("off", item, model) * 9)
    )


class Skilled:
    """A script for `ProviderFake`: `skills` by the model's name at the provider."""

    def __init__(self, skills: Mapping[str, Skill]) -> None:
        self.skills = skills

    async def __call__(self, view: View) -> Any:
        """Answers steps, checks, self-reports, verdicts and the final text."""
        skill = self.skills[view.model]
        if skill.delay:
            await asyncio.sleep(skill.delay)
        if view.forced is not None:
            return [(view.forced, self._structured(view.schema_of(view.forced), view, skill))]
        if view.schema is not None:
            return json.dumps(self._structured(view.schema, view, skill))
        if (step := STEP.search(_said(view))) is not None:
            return self._step(step, view, skill)
        return _final(_said(view))

    def _step(self, step: re.Match[str], view: View, skill: Skill) -> str:
        if step[1] is not None:
            return f"{step[1]} = {found(view.model, skill, step[1])}"
        told = dict(VALUE.findall(_said(view)))
        return f"{step[3]} = {sum(int(told.get(name, 0)) for name in re.findall(NAME, step[2]))}"

    def _structured(self, schema: dict[str, Any], view: View, skill: Skill) -> dict[str, Any]:
        value = filled(schema, view)
        wanted = schema.get("properties", {})
        if "passed" in wanted:
            passed = _passes(_said(view), view.model, skill)
            return {**value, "passed": passed, "feedback": "" if passed else "The value does not hold."}
        if "final_answer" in wanted:
            return {**value, "final_answer": _final(_said(view))}
        if "confidence" in wanted:
            return {**value, "confidence": _confidence(_said(view), view.model, skill)}
        return value


def _passes(said: str, model: str, skill: Skill) -> bool:
    """Its opinion of the result between the tags."""
    task, result = TASK_OF_CHECK.search(said), VALUE.search(said.rpartition("<result>")[2])
    if task is None or result is None:
        return False
    if task[1] is None:  # a sum that is right for what was found
        return True
    right = int(result[2]) == value_of(result[1])
    return right == (_uniform("check", model, *result.groups()) < skill.checks)


def _confidence(said: str, model: str, skill: Skill) -> float:
    """Its own report on the last value that it named."""
    named = VALUE.findall(said)
    if not named or named[-1][0].endswith("-sum"):
        return 0.95
    return 0.9 if _seems_right(model, skill, named[-1][0], int(named[-1][1])) else 0.3


def says_sure(model: str, skill: Skill, item: str) -> bool:
    """Whether the model calls itself sure of what it found."""
    return _seems_right(model, skill, item, found(model, skill, item))


def _seems_right(model: str, skill: Skill, item: str, number: int) -> bool:
    return (number == value_of(item)) == (_uniform("report", model, item, str(number)) < skill.knows)


def _final(said: str) -> str:
    """The sum, from all that was found."""
    sums = [(name, number) for name, number in VALUE.findall(said) if name.endswith("-sum")]
    return f"{sums[-1][0]} = {sums[-1][1]}" if sums else "There is no sum."


def _said(view: View) -> str:
    return "\n".join((view.system, *(message.text for message in view.messages)))


def _uniform(*words: str) -> float:
    """A number strictly between 0 and 1 that the words decide."""
    digest = hashlib.sha256("\0".join(words).encode()).digest()
    return (int.from_bytes(digest[:7], "big") + 0.5) / 2**56


def plan_task(number: int, *, easy: int = 3, hard: int = 2, hint_right: float = 0.85) -> dict[str, Any]:
    """A task as a line of an experiment's file: find some values, then add them up. The plan's hints say `fast` for
    easy items and `reasoning` for hard ones, as often as `hint_right` says, as a planner's would."""
    items = [f"q{number}-{place}" for place in range(easy)] + [f"q{number}-{place}-hard" for place in range(hard)]
    steps: list[dict[str, Any]] = []
    for place, item in enumerate(items, 1):
        wise = _uniform("hint", item) < hint_right
        hint = "reasoning" if is_hard(item) == wise else "fast"
        steps.append({"id": f"s{place}", "task": f"Find the value of {item}.", "dependencies": [], "model_hint": hint})
    total = f"q{number}-sum"
    steps.append(
        {
            "id": "sum",
            "task": f"Add the values of {', '.join(items)} and call the sum {total}.",
            "dependencies": [step["id"] for step in steps],
            "model_hint": "fast",
        }
    )
    goal = f"What is the sum of the values of {', '.join(items)}?"
    right = sum(map(value_of, items))
    return {"id": f"q{number}", "input": goal, "target": right, "plan": {"goal": goal, "steps": steps}}

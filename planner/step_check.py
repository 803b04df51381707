"""A second look: does a step's result do what its task asks, and does it rest on what the step has seen?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agent.structured import structured_llm_call
from registry.clock import SYSTEM_CLOCK, Clock
from registry.context import calling
from registry.fallback import Told, with_fallback
from registry.llm import LLM
from registry.messages import Message
from registry.models import ModelRegistry
from registry.text import cut_end, cut_middle

from .material import model_for, prompt, today
from .schemas import check_schema

ROLE = "check"
"""The role of the model that looks; where nobody has it, the general model does."""
RESULT_CHARS = 20_000
EVIDENCE_CHARS = 40_000
"""Characters of all that the step has seen, where the model's context allows it."""
MIN_EVIDENCE_CHARS = 300
GOAL_CHARS = 4_000
FEEDBACK_CHARS = 4_000
UNKNOWN_CONTEXT = 128_000
SHARE = 0.6
"""Of the model's context for result and evidence; at 2 characters a token, which is few on purpose."""
CHARS_PER_TOKEN = 2

PASSED = frozenset({"true", "yes", "y", "1", "pass", "passed", "ok", "correct"})
FAILED = frozenset({"false", "no", "n", "0", "fail", "failed", "wrong", "incorrect"})


@dataclass(frozen=True, slots=True)
class Evidence:
    """A text that a step has seen: where it came from, in words, and what it says."""

    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found. `feedback` says what is wrong, for whoever corrects it; empty where all is well."""

    passed: bool
    feedback: str = ""


async def check_step(
    models: LLM | ModelRegistry,
    task: str,
    goal: str,
    result: str,
    evidence: Sequence[Evidence] = (),
    *,
    clock: Clock = SYSTEM_CLOCK,
    on_fallback: Told | None = None,
) -> Finding:
    """A model's opinion of a result, by one structured call in the role `check`. While the provider is out the model's
    fallbacks look; `on_fallback` hears of it.

    Raises LLMError and StructuredOutputError where no opinion was to be had: that says nothing about the result.
    """
    look = partial(_look, task, goal, result, evidence, clock)
    with calling(role=ROLE):
        return await with_fallback(models, model_for(models, ROLE), look, on_fallback)


async def _look(task: str, goal: str, result: str, evidence: Sequence[Evidence], clock: Clock, llm: LLM) -> Finding:
    room = int((llm.context_size or UNKNOWN_CONTEXT) * SHARE * CHARS_PER_TOKEN)
    told = prompt(
        "step_check_input",
        task=task,
        goal=cut_middle(goal, GOAL_CHARS),
        evidence=evidence_text(evidence, min(EVIDENCE_CHARS, room // 2)),
        result=cut_middle(result, min(RESULT_CHARS, room // 2)),
    )
    call = await structured_llm_call(
        llm,
        [Message.system(prompt("step_check", date=today(clock))), Message.user(told)],
        check_schema(),
        "check_result",
        parse_fn=read_finding,
        validate=False,
    )
    finding: Finding = call.value
    return finding


def evidence_text(evidence: Sequence[Evidence], room: int) -> str:
    """What the step has seen, in about `room` characters: short texts stay whole, long ones share the rest."""
    left, share = room, room
    for number, length in enumerate(sorted(len(item.text) for item in evidence)):
        share = left // (len(evidence) - number)
        if length > share:
            break
        left -= length
    limit = max(MIN_EVIDENCE_CHARS, share)
    blocks = [f"[{cut_end(' '.join(item.source.split()), 300)}]\n{cut_middle(item.text, limit)}" for item in evidence]
    return "\n\n".join(blocks) or "(nothing: it used no tools and depends on no other step)"


def read_finding(data: Any) -> Finding:
    """A finding from what the model wrote. Raises ValueError where it doesn't say whether the result passed."""
    if not isinstance(data, Mapping):
        raise ValueError("a finding is an object with passed and feedback")
    word = str(data.get("passed")).strip().strip("\"'.!").casefold()
    if word not in PASSED | FAILED:
        raise ValueError(f"passed must be true or false, not {cut_end(word, 100)!r}")
    if word in PASSED:
        return Finding(True)
    feedback = data.get("feedback")
    lines = feedback if isinstance(feedback, list | tuple) else [feedback]
    text = "\n".join(str(line).strip() for line in lines if line is not None).strip()
    if not text:
        raise ValueError("feedback must say what is wrong with a result that did not pass")
    return Finding(False, cut_middle(text, FEEDBACK_CHARS))

"""How sure a model is of its own work: one structured question to it, for policies that go on to a stronger one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import structlog

from agent.context import FATAL
from agent.events import Emit
from agent.structured import StructuredOutputError, structured_llm_call
from planner.material import today
from planner.step_check import CHARS_PER_TOKEN, SHARE, UNKNOWN_CONTEXT, evidence_text
from registry.clock import Clock
from registry.context import calling
from registry.errors import LLMError, RefusalError
from registry.llm import LLM
from registry.messages import Message
from registry.routing import Trial
from registry.text import cut_end, cut_middle, load_prompt

from .step_checks import evidence_of
from .step_prompt import StepBrief

ROLE = "self_report"
"""The role of these calls, and the kind of the note that tells what came of one."""
GOAL_CHARS = 4_000
RESULT_CHARS = 20_000
EVIDENCE_CHARS = 20_000
WHY_CHARS = 1_000
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "why": {"type": "string", "maxLength": WHY_CHARS},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    },
    "required": ["why", "confidence"],
    "additionalProperties": False,
}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(%?)")
_IN_TEXT = re.compile(
    r"confidence\W{0,20}?(?<!-)((?:\d+(?:\.\d+)?|\.\d+)\s{0,5}%?)(?![\w%]|[.,]\d|\s{0,5}/|\s{1,5}(?:out\s{1,5})?of\b)",
    re.IGNORECASE,
)
"""A number by itself: no part of another one ("1e-3"), none of a scale ("1/10", "1 out of 10"), no negative one."""

log = structlog.get_logger(__name__)


async def self_reported(
    llm: LLM, tried: Trial, brief: StepBrief, emit: Emit, clock: Clock, known: Mapping[str, Mapping[str, Any]]
) -> Trial:
    """The trial with what the model says of it. One that gives no readable number is asked, and has no confidence; one
    that can't be reached was not asked: that says nothing about the result. `known`: notes of before, by kind; what is
    among them is not asked again.

    Raises LLMError only for what fails a job at once (auth, quota).
    """
    if (told := known.get(ROLE)) is None:
        told = await _asked(llm, tried, brief, clock)
        emit("note", kind=ROLE, **told)
    return replace(tried, confidence=told["confidence"], asked=told["asked"])


async def _asked(llm: LLM, tried: Trial, brief: StepBrief, clock: Clock) -> dict[str, Any]:
    room = int((llm.context_size or UNKNOWN_CONTEXT) * SHARE * CHARS_PER_TOKEN)
    text = load_prompt("executor", "self_report_input").substitute(
        task=brief.step.task,
        goal=cut_middle(brief.goal, GOAL_CHARS),
        evidence=evidence_text(evidence_of(brief), min(EVIDENCE_CHARS, room // 2)),
        result=cut_middle(tried.output, min(RESULT_CHARS, room // 2)),
    )
    system = load_prompt("executor", "self_report").substitute(date=today(clock))
    try:
        with calling(role=ROLE):
            call = await structured_llm_call(
                llm,
                [Message.system(system), Message.user(text)],
                SCHEMA,
                "report_confidence",
                parse_fn=read_report,
                regex_fallback=_from_text,
                validate=False,
            )
    except StructuredOutputError as error:
        log.warning("self_report_unreadable", error=str(error))
        return {"content": f"not readable: {cut_middle(str(error), 500)}", "confidence": None, "asked": True}
    except LLMError as error:
        if error.code in FATAL:
            raise
        log.warning("self_report_failed", error=str(error), code=error.code)
        refused = isinstance(error, RefusalError)  # its own doing, as an answer that nobody can read
        return {"content": f"could not be asked: {cut_middle(str(error), 500)}", "confidence": None, "asked": refused}
    confidence, why = call.value
    return {"content": why, "confidence": confidence, "asked": True}


def read_report(data: Any) -> tuple[float, str]:
    """Confidence and reason from what a model wrote: a number from 0 to 1, or a percentage. Raises ValueError."""
    if not isinstance(data, Mapping):
        raise ValueError("a report is an object with why and confidence")
    why = data.get("why")
    return _confidence(data.get("confidence")), cut_end(" ".join(str(why or "").split()), WHY_CHARS)


def _confidence(value: Any) -> float:
    wrong = ValueError(f"confidence must be a number from 0 to 1, not {cut_end(str(value), 60)!r}")
    if isinstance(value, str) and (match := _NUMBER.fullmatch(value.strip())):
        value = float(match[1]) / (100 if match[2] else 1)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise wrong
    if 10 < value <= 100:  # per cent; up to 10 it may be a mark out of ten, or anything
        value = value / 100
    if not 0 <= value <= 1:
        raise wrong
    return round(float(value), 4)


def _from_text(text: str) -> dict[str, Any]:
    found = _IN_TEXT.search(text)
    if found is None:
        raise ValueError("there is no confidence in it")
    return {"confidence": found[1], "why": ""}

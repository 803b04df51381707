"""From results to a verdict: is the goal reached?"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from agent.structured import structured_llm_call
from registry.clock import SYSTEM_CLOCK, Clock
from registry.context import calling
from registry.fallback import Told, with_fallback
from registry.llm import LLM
from registry.messages import Message
from registry.models import ModelRegistry

from .material import model_for, prompt, results_of, shortened, step_report, today
from .schemas import verdict_schema

RESULT_CHARS = 10_000
"""Characters of each step's result that the analyzer sees, where the model's context allows it."""
MIN_RESULT_CHARS = 500
UNKNOWN_CONTEXT = 128_000
CHARS_PER_TOKEN = 2
"""Few on purpose: results may be in scripts that need a token for every one or two characters."""
RESULTS_SHARE = 0.6
"""Of the model's context; the rest is for the goal, the rules and the answer."""
PERCENT_FROM = 2
"""A confidence from here on is meant in percent; between 1 and this it is just too high."""

UNREADABLE = "The analysis could not be read."


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the goal is reached, how sure that is (0 to 1), why, and the answer as far as there is one."""

    achieved: bool
    confidence: float
    reasoning: str = ""
    final_answer: str = ""

    def to_json(self) -> dict[str, Any]:
        """The verdict as plain JSON data."""
        return asdict(self)


class PlanAnalyzer:
    """Judges results by one structured call to the smart model. `llm` is a model or a registry; while the smart model's
    provider is out its fallbacks judge, and `on_fallback` hears of it."""

    def __init__(
        self, llm: LLM | ModelRegistry, *, clock: Clock = SYSTEM_CLOCK, on_fallback: Told | None = None
    ) -> None:
        self.llm, self.clock, self.on_fallback = llm, clock, on_fallback

    async def analyze(self, goal: str, result: Any) -> Verdict:
        """The verdict on a PlanResult. An analysis that can't be read is a verdict of its own: not achieved,
        confidence 0. Raises LLMError: a provider that fails has not judged anything."""
        with calling(role="analyzer"):
            short = await shortened(goal, self.llm)
            judge = partial(self._judge, short, result)
            return await with_fallback(self.llm, model_for(self.llm, "smart"), judge, self.on_fallback)

    async def _judge(self, goal: str, result: Any, llm: LLM) -> Verdict:
        plan = getattr(result, "plan", None)
        report = step_report(result, self._limit(llm, len(results_of(result))), getattr(plan, "steps", ()))
        call = await structured_llm_call(
            llm,
            [
                Message.system(prompt("analyze", date=today(self.clock))),
                Message.user(prompt("analyze_input", goal=goal, steps=report)),
            ],
            verdict_schema(),
            "judge_result",
            parse_fn=read_verdict,
            regex_fallback=verdict_in_text,
            default_value=Verdict(False, 0.0, UNREADABLE),
            validate=False,
        )
        verdict: Verdict = call.value
        return verdict

    @staticmethod
    def _limit(llm: LLM, steps: int) -> int:
        room = (llm.context_size or UNKNOWN_CONTEXT) * RESULTS_SHARE * CHARS_PER_TOKEN
        return max(MIN_RESULT_CHARS, min(RESULT_CHARS, int(room / max(1, steps))))


def read_verdict(data: Any) -> Verdict:
    """A verdict from what the model wrote, with its types put right. Raises ValueError where it says nothing."""
    if not isinstance(data, Mapping):
        raise ValueError("a verdict is an object with achieved, confidence, reasoning and final_answer")
    return Verdict(
        read_bool(data.get("achieved")),
        read_confidence(data.get("confidence")),
        _text(data.get("reasoning")),
        _text(data.get("final_answer")),
    )


def read_bool(value: Any) -> bool:
    """yes, true, 1 and their opposites. Raises ValueError for anything else."""
    word = str(value).strip().strip("\"'.!").casefold()
    if word in ("true", "yes", "y", "1", "1.0", "achieved"):
        return True
    if word in ("false", "no", "n", "0", "0.0", "not achieved", "partially", "partly", "partial"):
        return False
    raise ValueError(f"achieved must be true or false, not {str(value)[:100]!r}")


def read_confidence(value: Any) -> float:
    """0.8, "0.8", "80%", 80 and "80/100" as 0.8, within 0 and 1. Raises ValueError for what is no number."""
    if isinstance(value, bool) or value is None:
        raise ValueError(f"confidence must be a number from 0 to 1, not {value!r}")
    text = str(value).strip().replace(",", ".")
    found = re.match(
        r"([+-]?\d{0,20}(?:\.\d{0,30})?(?:[eE][+-]?\d{1,3})?)\s*(%|percent|(?:/|out of)\s*(\d{1,4}))?", text
    )
    try:
        number = float(value) if isinstance(value, int | float) else float(found[1] if found else "")
    except (ValueError, OverflowError):
        raise ValueError(f"confidence must be a number from 0 to 1, not {text[:100]!r}") from None
    if not math.isfinite(number):
        return 0.0
    if found and found[3]:
        number /= int(found[3]) or 1
    elif (found and found[2]) or number >= PERCENT_FROM:
        number /= 100
    return min(1.0, max(0.0, number))


_ACHIEVED = re.compile(
    r"\b(?:goal[ _]?)?achieved\W{1,6}(?:is\W{1,3})?(true|false|yes|no|partially|partly)\b", re.IGNORECASE
)
_CONFIDENCE = re.compile(
    r"\bconfidence\W{1,6}(?:is\W{1,3})?(\d{1,3}(?:[.,]\d{1,6})?\s{0,3}(?:%|percent|(?:/|out of)\s{0,3}\d{1,4})?)",
    re.IGNORECASE,
)
_LABELLED = r"\b{label}\W{{0,3}}:\s*(.+?)(?=\n\s*\W{{0,4}}(?:achieved|confidence|reasoning|final[ _]answer)\b|\Z)"
_REASONING = re.compile(_LABELLED.format(label="reasoning"), re.IGNORECASE | re.DOTALL)
_ANSWER = re.compile(_LABELLED.format(label="final[ _]answer"), re.IGNORECASE | re.DOTALL)


def verdict_in_text(text: str) -> dict[str, Any] | None:
    """The verdict in a plain text with labels ("Achieved: yes"); None where it doesn't say, or says both."""
    said = {read_bool(word) for word in _ACHIEVED.findall(text)}
    if len(said) != 1:
        return None
    confidence, reasoning, answer = (pattern.search(text) for pattern in (_CONFIDENCE, _REASONING, _ANSWER))
    return {
        "achieved": said.pop(),
        "confidence": confidence[1] if confidence else 0.0,
        "reasoning": reasoning[1].strip(" *\n") if reasoning else text.strip(),
        "final_answer": answer[1].strip(" *\n") if answer else "",
    }


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "\n".join(_text(item) for item in value)
    return "" if value is None else str(value).strip()

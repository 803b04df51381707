"""The checks of a step's result: a second look by a model, and its citations. What can't be checked is no failure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import structlog

from agent.context import FATAL
from agent.events import Emit
from agent.structured import StructuredOutputError
from planner.citation_check import check_claims, claims_of
from planner.citations import UNVERIFIED, Seen, admitted, find_citations, unseen_citations
from planner.step_check import Evidence, Finding, check_step
from registry.clock import Clock
from registry.errors import LLMError
from registry.fallback import Told
from registry.messages import canonical_json
from registry.models import ModelRegistry
from registry.text import cut_end, cut_middle

from .options import RunOptions
from .step_prompt import StepBrief

if TYPE_CHECKING:
    from .step_trail import CallDone

ARGUMENT_CHARS = 300
CITED_CHARS = 300
UNSEEN = (
    "These citations occur in nothing that was seen while working on this step, neither in its tools' results nor in "
    f"those of the steps before it. Cite what was seen, leave them out, or write {UNVERIFIED} right after one that you "
    "know from memory and that the reader needs:"
)

log = structlog.get_logger(__name__)


class StepChecks:
    """The checks that the options ask for. `models` are those of the step's own account. `known` are the notes of
    checks of this very result, by kind, from before the step's worker changed: they are not made again."""

    def __init__(
        self,
        options: RunOptions,
        models: ModelRegistry,
        emit: Emit,
        clock: Clock,
        on_fallback: Told | None = None,
        known: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        self.known = known
        self.options, self.models, self.emit, self.clock = options, models, emit, clock
        self.on_fallback = on_fallback

    async def feedback(self, brief: StepBrief, result: str) -> str:
        """What is wrong with the result, all checks together; empty where they found nothing.

        Raises LLMError only for what fails a job at once (auth, quota); other errors leave the result as it is.
        """
        evidence = evidence_of(brief)
        found: list[str] = []
        if self.options.citation_verification:
            found += await self._citations(brief, result, evidence)
        if self.options.step_verification:
            look = partial(
                check_step,
                self.models,
                brief.step.task,
                brief.goal,
                result,
                evidence,
                clock=self.clock,
                on_fallback=self.on_fallback,
            )
            found.append(await self._found("step_check", look))
        return "\n\n".join(text for text in found if text)

    async def _citations(self, brief: StepBrief, result: str, evidence: list[Evidence]) -> list[str]:
        citations = [one for one in find_citations(result) if not admitted(result, one)]
        if not citations:
            return []
        given = [brief.step.task, brief.goal]
        unseen = unseen_citations(citations, Seen([*given, *(f"{one.source}\n{one.text}" for one in evidence)]))
        text = "\n".join([UNSEEN, *(f"- {cut_end(one.text, CITED_CHARS)}" for one in unseen)]) if unseen else ""
        self._tell("citations_seen", text, citations=len(citations), unseen=len(unseen))
        claims = claims_of(result, [one for one in citations if one not in unseen], evidence)
        if not claims:
            return [text]
        look = partial(check_claims, self.models, claims, clock=self.clock, on_fallback=self.on_fallback)
        return [text, await self._found("citation_check", look)]

    async def _found(self, kind: str, look: Callable[[], Awaitable[Finding]]) -> str:
        """The feedback of a model's look; nothing where it could not be had."""
        if (known := self.known.get(kind)) is not None:
            return str(known["content"]) if known["passed"] is False else ""
        try:
            finding = await look()
        except (LLMError, StructuredOutputError) as error:
            if error.code in FATAL:
                raise
            log.warning("check_failed", kind=kind, error=str(error), code=error.code)
            self.emit("note", kind=kind, content=f"could not be made: {cut_middle(str(error), 500)}", passed=None)
            return ""
        self._tell(kind, finding.feedback)
        return finding.feedback

    def _tell(self, kind: str, feedback: str, **counts: Any) -> None:
        if kind not in self.known:
            self.emit("note", kind=kind, content=feedback or "passed", passed=not feedback, **counts)


def evidence_of(brief: StepBrief) -> list[Evidence]:
    """What a step has seen: the results of the steps it depends on, and of its tools' calls that succeeded."""
    seen = [
        Evidence(f"result of step {dependency.id}", dependency.result.output)
        for dependency in brief.dependencies
        if dependency.result.output
    ]
    return seen + [_evidence(call) for call in brief.done if call.observation and not call.is_error]


def _evidence(call: CallDone) -> Evidence:
    return Evidence(
        f"{call.name}({cut_middle(canonical_json(call.arguments), ARGUMENT_CHARS)})", call.observation or ""
    )

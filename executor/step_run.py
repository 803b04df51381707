"""Agents at one attempt of a step, one after another, until the result of one stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agent.events import Emitter
from agent.trust import joined_taint, origin_of
from registry.context import caller, calling
from registry.errors import LLMError
from registry.fallback import OUTAGES, Fallback
from registry.metering import Meter
from registry.routing import Trial

from .recovery.step_past import AttemptStart
from .recovery.uncertain import ask_about
from .results import StepOutcome
from .routed import Routed
from .schedule_types import UNCERTAIN
from .step_prompt import StepBrief

if TYPE_CHECKING:
    from agent.state import AgentResult

    from .step_runner import AgentRunner, Emit

CHECK_FAILED = "check_failed"
"""The code of a step whose result did not pass its checks, not even worked over. The result stays as its output."""

_WHY = {
    "max_iterations": "the iteration limit was reached before there was an answer",
    "loop_detected": "it repeated the same calls with the same results",
    "truncated": "the output limit cut the answer",
    "empty_response": "the model answered with neither text nor a call",
    "refusal": "the model refused",
    "content_filter": "the provider's content filter blocked the answer",
    "context_length": "the conversation did not fit into the model's context",
    "budget_exceeded": "the budget is used up",
    "unparsed": "the answer could not be read",
}


class StepRun:
    """Agents one after another, until the result of one stands."""

    def __init__(self, runner: AgentRunner, brief: StepBrief, emit: Emit | None, meter: Meter) -> None:
        self.runner, self.brief, self.meter, self.trail = runner, brief, meter, brief.trail
        if self.trail.route is None:
            self.trail.route = runner.route_of(brief.step)
        self.route = self.trail.route
        self.names = self.route.names
        self.observer = self.trail.watching(emit)
        self.tell = Emitter(self.observer, runner.clock)
        self.place = self.iterations = self.calls = 0
        self.told_until = 1
        self.services = runner.services
        if self.trail.goes_on is not None:
            self._go_on(self.trail.goes_on)
            self.trail.goes_on = None

    def _go_on(self, start: AttemptStart) -> None:
        """From the attempt that was under way when the step's worker died."""
        if start.model is not None:
            if start.model not in self.names:
                self.names = (start.model, *self.names)
            self.place = self.names.index(start.model)
        self.iterations, self.calls = start.iterations, start.tool_calls
        self.told_until = start.attempt
        if start.rejected is not None:
            self.brief = replace(self.brief, failure=None, rejected=start.rejected)
        for attempt in range(1, start.attempt):
            self._uncertain_of(attempt)

    def _uncertain_of(self, attempt: int) -> None:
        """Calls of an agent that is not run again, whose effect nobody knows."""
        who = caller()
        past = None if self.services is None else self.services.past.get((who.step_id, who.round, attempt))
        if past is not None:
            self.trail.uncertain |= {call.call_id: call for call in past.uncertain}

    async def outcome(self) -> StepOutcome:
        """What came of it in the end."""
        while True:
            outcome = await self._agent()
            self.trail.output = outcome.output or self.trail.output
            if outcome.error_code in OUTAGES and self._next_model(outcome.error_code or ""):
                continue
            outcome = self._summed(outcome)
            if outcome.error_code is not None or not outcome.output.strip():
                return outcome
            checked = await self._rejected(outcome)
            if checked is not None:
                return await self._settled(checked)

    async def _agent(self) -> StepOutcome:
        """One agent's work."""
        name, self.trail.model = self.names[self.place], self.names[self.place]
        brief = self._knowing_all(self.brief, before=self.trail.attempts)
        self._tell_attempt()
        agent = self.runner.resolve_agent(brief.step, self.observer, self.meter, brief.taint, name)
        with calling(attempt=max(1, self.trail.attempts)):
            result = await agent.run(brief.query(agent.guard.budget(agent.llm)))
        self.iterations += result.iterations
        self.calls += len(result.tool_calls)
        self.trail.uncertain |= {call.call_id: call for call in result.uncertain}
        taint = joined_taint(self.brief.taint, result.taint)
        self.brief, self.trail.taint = replace(self.brief, taint=taint), joined_taint(self.trail.taint, taint)
        return outcome_of(result)

    def _tell_attempt(self) -> None:
        """Writes down where an attempt other than the first begins: who takes the step over needs to know."""
        trail, brief = self.trail, self.brief
        if trail.attempts <= self.told_until:
            return
        self.told_until = trail.attempts
        start = AttemptStart(
            trail.attempts,
            trail.model,
            trail.retries,
            brief.failure,
            brief.rejected,
            trail.rechecked,
            trail.output,
            joined_taint(brief.taint, trail.taint),
            self.iterations,
            self.calls,
        )
        self.tell("note", kind="attempt", content="", **start.to_json())

    def _knowing_all(self, brief: StepBrief, before: int | None = None) -> StepBrief:
        """The brief with all that the step's agents did until now, or before an attempt."""
        done = self.trail.calls(self.runner.tools, before)
        read = [self.runner.tools.get(call.name) for call in done if call.name in self.runner.tools]
        taint = joined_taint(brief.taint, (origin_of(tool) for tool in read if not tool.trusted))
        return replace(brief, done=done, taint=taint)

    def _summed(self, outcome: StepOutcome) -> StepOutcome:
        """An agent's outcome as the step's: with the counts of all agents, and all models that were tried."""
        error = outcome.error
        if outcome.error_code in OUTAGES and self.place:
            error += f" (tried in this order: {', '.join(self.names[: self.place + 1])})"
        output = outcome.output
        if outcome.error_code is not None and not output.strip() and self.brief.rejected is not None:
            output = self.brief.rejected[1]
        return replace(
            outcome,
            output=output,
            error=error,
            iterations=self.iterations,
            tool_calls=self.calls,
            taint=self.brief.taint,
        )

    def _next_model(self, error: str) -> bool:
        """Goes on to the next model of the chain; False where there is none left."""
        if self.place + 1 >= len(self.names):
            return False
        self._fell_back(Fallback(self.names[self.place], self.names[self.place + 1], error, caller().role))
        self.place += 1
        self.trail.attempts += 1
        return True

    def _fell_back(self, change: Fallback) -> None:
        if self.trail.fell_back(change):
            self.tell("fallback", **change.to_json())

    async def _settled(self, outcome: StepOutcome) -> StepOutcome:
        """The outcome, once it is known of each call of the step that it took effect; else it is none."""
        if outcome.error_code is not None or self.services is None:
            return outcome
        effects = self.trail.effects
        open_calls = [call for key, call in self.trail.uncertain.items() if key in effects.open]
        await ask_about(self.services.waits, open_calls, self.tell)
        unclear = effects.in_words()
        return replace(outcome, error_code=UNCERTAIN, error=f"{UNCERTAIN}: {unclear}") if unclear else outcome

    # Whether it does

    async def _rejected(self, outcome: StepOutcome) -> StepOutcome | None:
        """The outcome once it is looked at; None where the work goes on, by another model or on the same."""
        try:
            feedback = await self._checked(outcome)
            tried = Trial(self.route.now.model, outcome.output, check=feedback)
            if not feedback and self.route.now.asks and self.trail.model == self.route.now.model:
                tried = await self._asked(tried, outcome)
        except LLMError as error:  # auth or quota: nothing else can succeed either
            return replace(outcome, error_code=error.code, error=f"{error.code}: {error}")
        if self.route.escalate(tried, self.trail.model, self.trail.attempts + 1, self._tell_route) is not None:
            self.names, self.place = self.route.names, 0
        elif not feedback:
            return outcome
        elif self.trail.rechecked:
            return replace(outcome, error_code=CHECK_FAILED, error=f"{CHECK_FAILED}: {feedback}")
        else:
            self.trail.rechecked = True
        self.trail.attempts += 1
        rejected = (feedback, outcome.output) if feedback else None
        self.brief = replace(self.brief, failure=None, rejected=rejected)
        return None

    async def _checked(self, outcome: StepOutcome) -> str:
        """What the checks found wrong with the result, those that the options ask for or the routing does."""
        options = self.runner.options
        if self.route.now.checks and not options.step_verification:
            options = replace(options, step_verification=True)
        if not (options.step_verification or options.citation_verification):
            return ""
        from .step_checks import StepChecks

        models = self.runner.models.each(self.meter.metered)
        checks = StepChecks(options, models, self.tell, self.runner.clock, self._fell_back, self._known_notes())
        with calling(attempt=max(1, self.trail.attempts)):
            return await checks.feedback(self._knowing_all(self.brief), outcome.output)

    async def _asked(self, tried: Trial, outcome: StepOutcome) -> Trial:
        """The trial with the model's own word on how sure it is."""
        from .self_report import self_reported

        llm = self.meter.metered(self.runner.models.get(tried.model))
        brief = self._knowing_all(self.brief)
        with calling(attempt=max(1, self.trail.attempts)):
            return await self_reported(llm, tried, brief, self.tell, self.runner.clock, self._known_notes())

    def _known_notes(self) -> Mapping[str, Mapping[str, Any]]:
        """The notes of checks of this very result, by kind, from before the step's worker changed."""
        return self.trail.past.checks if self.trail.attempts == self.trail.past.start.attempt else {}

    def _tell_route(self, routed: Routed) -> None:
        self.tell("route", **routed.to_json())


def outcome_of(result: AgentResult) -> StepOutcome:
    """What an agent's end means for its step: only a readable final answer is a result; else what it had is kept."""
    text, turns, calls, taint = result.answer, result.iterations, len(result.tool_calls), result.taint
    reason = "unparsed" if result.stop_reason == "final_answer" and result.unparsed else result.stop_reason
    if reason == "final_answer":
        return StepOutcome(text, None, "", turns, calls, taint=taint)
    why = result.error_message or _WHY.get(reason, "the model's provider failed")
    if reason == "llm_error" and result.error:  # the cause says more: auth, quota, rate_limit, …
        return StepOutcome(text, result.error, f"{reason}: {result.error}: {why}", turns, calls, taint=taint)
    return StepOutcome(text, reason, f"{reason}: {why}", turns, calls, taint=taint)

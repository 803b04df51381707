"""The models of a whole goal that one agent works on, and whether what came of it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agent.state import AgentResult
from planner.plan import PlanStep
from registry.context import calling
from registry.llm import LLM
from registry.routing import RouteRequest, Trial

from .agent_run import Successor
from .job_state import JobState
from .routed import Routed
from .step_attempts import NEVER_AGAIN
from .step_prompt import StepBrief
from .step_route import StepRoute
from .step_run import outcome_of
from .step_trail import StepTrail

WHOLE = "goal"
"""The name, as a step, of the whole work."""


class GoalRoute:
    """`route` is the goal's. The choice of its first model is told."""

    def __init__(self, job: JobState) -> None:
        self.job = job
        request = RouteRequest(
            job.request.goal, job.goal, None, job.facts.kind, domain=job.domain, room=job.facts.room()
        )
        self.route = StepRoute(job.routing, job.models, request, job.routes)
        if self.route.untold is not None:
            job.emit("route", **self.route.untold.to_json())

    async def goes_on(
        self, query: str, trail: StepTrail, result: AgentResult, llm: LLM, *, known: bool
    ) -> Successor | None:
        """Who begins again after this result on this model; None: it stands. `known`: what came after it stands in the
        log already, so that nothing new is chosen."""
        job, route = self.job, self.route
        outcome = outcome_of(result)
        code = outcome.error_code
        if code is None and not outcome.output.strip():
            code = "empty_output"
        if code in NEVER_AGAIN:
            return None
        known = known or job.stopping
        brief = StepBrief(PlanStep(WHOLE, query), job.goal, done=trail.calls(job.tools), taint=trail.taint)
        done_by = job.models.name_of(llm)
        tried = Trial(route.now.model, outcome.output, code)
        if code is None:
            tried = await self._looked_at(tried, brief, trail, done_by, known=known)
        routed = route.escalate(tried, done_by, trail.attempts + 1, self._tell, only_known=known)
        if routed is None:
            return None
        failure = None if code is None else (code, outcome.error)
        rejected = (tried.check, outcome.output) if tried.check else None
        return Successor(job.models.get(routed.model), replace(brief, failure=failure, rejected=rejected))

    async def _looked_at(self, tried: Trial, brief: StepBrief, trail: StepTrail, done_by: str, *, known: bool) -> Trial:
        """The trial with what its check found, and with the model's own word where it was not another one that stood
        in for it; where nothing new is chosen, as far as that is known. Raises LLMError for what fails a job at once
        (auth, quota)."""
        job, now = self.job, self.route.now
        notes: Mapping[str, Mapping[str, Any]] = {} if job.past is None else job.past.checks.get(trail.attempts, {})
        with calling(attempt=trail.attempts):
            if now.checks and (not known or "step_check" in notes):
                from .step_checks import StepChecks

                options = replace(job.options.run, step_verification=True, citation_verification=False)
                checks = StepChecks(options, job.models, job.emit, job.clock, job.fell_back, notes)
                tried = replace(tried, check=await checks.feedback(brief, tried.output))
            if now.asks and done_by == now.model and not tried.check and (not known or "self_report" in notes):
                from .self_report import self_reported

                llm = job.models.get(tried.model)
                tried = await self_reported(llm, tried, brief, job.emit, job.clock, notes)
        return tried

    def _tell(self, routed: Routed) -> None:
        self.job.emit("route", **routed.to_json())
        if self.job.request.answer_mode == "direct":  # what the agent that ended gave as its answer is void
            self.job.emit("answer", status="reset")

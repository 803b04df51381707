"""One way to run a job: route, plan, execute, analyze, replan, write up. The ports differ, the pipeline does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

import structlog

from agent.context import FATAL, ContextGuard
from agent.hooks import HookRegistry
from agent.interrupts import InterruptQueue
from agent.react import ReActAgent
from agent.services import Services
from agent.state import AgentResult
from agent.synthesis import format_trace
from agent.trust import new_marker
from planner.analyzer import PlanAnalyzer, Verdict
from planner.checks import PlanError
from planner.plan import Plan
from planner.planner import DAGPlanner
from planner.replan import diff_plans
from planner.router import Route, route
from registry import telemetry
from registry.artifacts import ArtifactStore, MemoryArtifacts
from registry.call_cache import CallCache
from registry.clock import SYSTEM_CLOCK, Clock
from registry.context import calling
from registry.errors import BudgetExceededError, DagwrightError, LLMError, UsageError
from registry.fallback import Fallback
from registry.llm import LLM
from registry.messages import Event, Message
from registry.models import ModelRegistry
from registry.redaction import error_fields
from registry.tools import ToolRegistry

from .agent_run import run_agent
from .answer import joined, plain_statement, work_of
from .budget_end import trace_of
from .dag import DAGExecutor
from .job_options import JobOptions
from .job_time import JobTime
from .job_types import Job, JobRequest, JobStatus
from .ledger import Ledger
from .log.memory import MemoryLog
from .results import PlanResult, StepResult
from .rounds import after_round
from .step_trail import StepTrail
from .waits import Approve, JobWaits
from .write_up import Writer

FOLLOW_UP = "[User follow-up]: "
CHANGED = "Skipped — user changed requirements"
STOPPED = "Skipped — stopped by the user"
DOMAIN_RULE = (
    "This is a {domain} question: name the source of every fact, and say where a qualified person must be asked. Name "
    "sources that were read in this work; write [unverified] right after one that you only know from memory."
)

NOT_WRITTEN = "the budget did not allow to write up the answer: it is what the work came to"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Ending:
    """How the work came out, before it is put into a Job."""

    status: JobStatus
    answer: str
    error: str | None = None
    error_code: str | None = None


class JobRunner:
    """Runs one job. `send`, `stop` and `cancel_step` may be called while it runs, from the same thread."""

    def __init__(
        self,
        request: JobRequest,
        models: ModelRegistry,
        tools: ToolRegistry,
        *,
        log: MemoryLog,
        hooks: HookRegistry | None = None,
        options: JobOptions | None = None,
        approve: Approve | None = None,
        open_to_decisions: bool = False,
        artifacts: ArtifactStore | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.request, self.tools, self.log = request, tools, log
        self.hooks, self.options, self.clock = hooks, options or JobOptions(), clock
        for name in models.names():
            models.fallbacks(name)  # one that is not registered is a mistake now, not in the middle of an outage
        budget = request.budget
        self.time = JobTime(None if budget is None else budget.seconds, clock)
        self.ledger = Ledger(log.append, budget, models, self.time)
        self.models = models.scoped(self.ledger)
        self.writer = Writer(self.models, self.ledger, self.time, self._emit)
        self.inbox = InterruptQueue()
        self.waits = JobWaits(self._tell_approval, self._parked, approve=approve, open_to_decisions=open_to_decisions)
        self.artifacts = artifacts or MemoryArtifacts()
        self.services = Services(self.models.resolve, self.waits, CallCache(), self.artifacts, new_marker())
        self.mode: str = request.mode if request.plan is None else "dag"
        self.goal = request.goal
        self.plan = request.plan
        self.steps: Mapping[str, StepResult] = {}
        self.rounds, self.iterations = 0, 0
        self.stopping = False
        self.cancelling = False
        self.domain: str | None = None
        self._executor: DAGExecutor | None = None
        self._agent: ReActAgent | None = None
        self.job: Job | None = None
        self._started = clock.time()
        self._clock0 = clock.monotonic()
        self._span: telemetry.AnySpan = telemetry.NO_SPAN

    # From outside

    def send(self, text: str) -> None:
        """A message of the user's: planned for in plan mode, an interrupt for a single agent."""
        self.inbox.put(text)
        if self._executor is not None and len(self.inbox):
            self._executor.stop(CHANGED)

    def stop(self) -> None:
        """Ends with grace: what runs finishes, the answer is made of what there is."""
        self.stopping = True
        if self._executor is not None:
            self._executor.stop(STOPPED)
        if self._agent is not None:
            self.waits.reject_all("the job was stopped")
            self._agent.finish()

    @property
    def status(self) -> JobStatus:
        """Where the job stands: running, needs_decision when nothing goes on without a human's word, or its end."""
        if self.job is not None:
            return self.job.status
        going = () if self._executor is None else self._executor.results.values()
        if self.waits.pending and not any(step.status == "running" for step in going):
            return "needs_decision"
        return "running"

    def cancel_step(self, step_id: str) -> None:
        """Cancels one step of the running plan. Raises UsageError when no plan runs."""
        if self._executor is None:
            raise UsageError("no plan is running: there is no step to cancel")
        self._executor.cancel_step(step_id)

    # The pipeline

    async def run(self) -> Job:
        """Runs to the end. Whatever happens, the last event is `done` and says what happened.

        Raises only CancelledError, when it is cancelled from outside, and UsageError for a misuse of the library.
        """
        with calling(job_id=self.log.job_id), telemetry.workflow(self.mode) as self._span:
            self._tell_started()
            try:
                ending = await self._within_budget()
            except asyncio.CancelledError:
                job = self._ended(self._with_what_there_is("cancelled", "cancelled", "The job was cancelled."))
                task = asyncio.current_task()
                if self.cancelling and task is not None and task.uncancel() == 0:
                    return job
                raise
            except DagwrightError as error:
                job = self._ended(self._with_what_there_is("failed", error.code, str(error)))
                if isinstance(error, UsageError):
                    raise
                return job
            except Exception as error:  # noqa: BLE001 - somebody's bug: the job's account says so, the log where it is
                log.error("job_error", job_id=self.log.job_id, **error_fields(error))
                return self._ended(self._with_what_there_is("failed", "internal", f"{type(error).__name__}: {error}"))
            except BaseException as error:  # the process ends
                self._ended(self._with_what_there_is("failed", "internal", f"{type(error).__name__}: {error}"))
                raise
            return self._ended(ending)

    async def _within_budget(self) -> _Ending:
        try:
            return await self.time.work(self._worked)
        except BudgetExceededError as error:
            return await self._out_of_budget(str(error))

    async def _worked(self) -> _Ending:
        if self.mode == "auto":
            await self._route()
        if self.mode == "react":
            return await self._react()
        return await self._dag()

    async def _route(self) -> None:
        chosen = Route("dag", None)
        if self.options.router:
            try:
                chosen = await route(self.models, self.goal, self.request.history, on_fallback=self._fell_back)
            except LLMError as error:
                if error.code in FATAL:
                    raise
                log.warning("routing_failed", error=str(error), code=error.code)
        self.mode, self.domain = chosen.mode, chosen.domain_hint
        self.log.append("route", {"mode": self.mode, "domain_hint": self.domain})

    # One agent does it all

    async def _react(self) -> _Ending:
        llm = self.models.for_role("reasoning") if self.domain else self.models.get_default()
        history: Sequence[Message] = self.request.history
        query, trail = self.goal, StepTrail()
        while True:
            result, llm = await run_agent(
                self._new_agent,
                self.models,
                llm,
                query,
                history,
                self.tools,
                trail,
                self._pass_on,
                self._agent_fell_back,
            )
            self.iterations += result.iterations
            if result.stop_reason == "budget_exceeded":
                raise BudgetExceededError(result.error_message or "")
            answer = await self._react_answer(llm, query, result)
            if waiting := self.inbox.drain():
                self.log.append("inject", {"type": "inject", "content": "\n\n".join(waiting)})
                history, query = result.messages, "\n\n".join(waiting)
                self.goal += "".join(f"\n\n{FOLLOW_UP}{text}" for text in waiting)
                self.writer.void()
                continue
            self._agent = None
            return self._react_ending(result, answer)

    def _new_agent(self, llm: LLM, on_event: Callable[[Event], None]) -> ReActAgent:
        self._agent = ReActAgent(
            llm,
            self.tools,
            hooks=self.hooks,
            interrupts=self.inbox,
            context_guard=ContextGuard(compact_llm=self.models.for_role("compact")),
            on_event=on_event,
            answer_mode=self.request.answer_mode,
            services=self.services,
            clock=self.clock,
            **{**self.options.run.agent, "system_prompt": self._rules()},
        )
        if self.stopping:
            self._agent.finish()
        return self._agent

    async def _react_answer(self, llm: LLM, query: str, result: AgentResult) -> str:
        if result.stop_reason != "final_answer" or self.request.answer_mode == "direct":
            return result.answer
        text = await self.writer.write(llm, query, format_trace(result.messages), result.answer, self._spoken_to)
        return result.answer if text is None else text

    def _react_ending(self, result: AgentResult, answer: str) -> _Ending:
        if self.stopping:
            return _Ending(
                "cancelled", answer or plain_statement({}, "It was stopped."), "stopped by the user", "stopped"
            )
        if result.stop_reason == "final_answer" and not result.unparsed:
            return _Ending("completed", answer)
        code = "unparsed" if result.unparsed else result.error or result.stop_reason
        cause = result.error_message or f"the agent ended with {code}"
        found = result.unparsed or any(not record.is_error for record in result.tool_calls)
        status: JobStatus = "partial" if found and code not in FATAL else "failed"
        return _Ending(status, answer or plain_statement({}, f"Cause: {cause}."), cause, code)

    # A plan and its rounds

    async def _dag(self) -> _Ending:
        planner = self.options.planner(self.models, self.tools, self.clock, self._fell_back)
        fixed = self.plan is not None
        if self.plan is None:
            await self._make_plan(planner)
        used = 0
        while True:
            if self.stopping:  # stopped while a plan was made
                return self._with_what_there_is("cancelled", "stopped", "The job was stopped.")
            result = await self._execute()
            used += 1
            if (over := self._over(result)) is not None:
                return over
            verdict, failure = await self._judge(result)
            if failure is not None and not len(self.inbox):
                return self._with_what_there_is("partial", failure.code, f"the analysis failed: {failure}")
            move = after_round(
                message_waits=bool(len(self.inbox)),
                achieved=verdict.achieved,
                confidence=verdict.confidence,
                used=used,
                rounds=self.options.max_replan_rounds,
                enough=self.options.replan_stop_confidence,
                fixed=fixed,
            )
            if move not in ("replan", "replan_for_message"):
                ending = await self._write_up(result, verdict)
                if ending is not None:
                    return ending
                move = "replan_for_message"
            if move == "replan_for_message":
                used -= 1
                self._hear()
            if self.stopping:  # stopped while the result was judged
                return self._with_what_there_is("cancelled", "stopped", "The job was stopped.")
            trouble = await self._change_plan(planner, verdict, heard=move == "replan_for_message")
            while len(self.inbox) and not self.stopping:  # said while the plan was changed, or could not be
                self._hear()
                trouble = await self._change_plan(planner, verdict, heard=True)
            if trouble is not None:
                return self._with_what_there_is("partial", trouble.code, f"no new plan could be made: {trouble}")

    def _over(self, result: PlanResult) -> _Ending | None:
        """The job's end where an execution brings it: nothing can go on, or it was stopped. Raises
        BudgetExceededError where a step met the budget's end."""
        by_code = {step.error_code: step for step in result.steps.values() if step.status == "failed"}
        for code in FATAL:
            if code in by_code:
                return self._with_what_there_is("failed", code, by_code[code].error or "")
        if result.status == "budget_exceeded":
            hit = by_code.get("budget_exceeded")  # None: it was cancelled meanwhile
            raise BudgetExceededError((hit and hit.error) or "")
        if self.stopping:
            return self._with_what_there_is("cancelled", "stopped", "The job was stopped.")
        return None

    async def _make_plan(self, planner: DAGPlanner) -> None:
        """The first plan; a message that comes meanwhile is planned for before anything runs."""
        while True:
            self.log.append("phase", {"phase": "planning"})
            with telemetry.plan(1):
                plan = await planner.plan(self.goal, self.request.history)
            self._set_plan(plan)
            if self.stopping or not len(self.inbox):
                return
            self._hear()

    async def _change_plan(self, planner: DAGPlanner, verdict: Verdict, *, heard: bool) -> DagwrightError | None:
        """The next round's plan: a diff of this one; for a message that was `heard` it may be one without new steps. A
        failure to make it is returned."""
        assert self.plan is not None
        self.log.append("phase", {"phase": "replanning", "reasoning": verdict.reasoning})
        try:
            with telemetry.plan(self.rounds + 1):
                plan = await planner.replan(
                    self.goal, self.plan, self.steps, verdict.reasoning, self.request.history, may_rest=heard
                )
        except (LLMError, PlanError) as error:
            if error.code in FATAL or isinstance(error, BudgetExceededError):
                raise
            return error
        except DagwrightError as error:
            if isinstance(error, UsageError):
                raise
            return error
        self.log.append("plan_diff", diff_plans(self.plan, plan).to_json())
        self._set_plan(plan)
        return None

    def _set_plan(self, plan: Plan) -> None:
        if self.domain:
            steps = (replace(step, model_hint=step.model_hint or "reasoning") for step in plan.steps)
            plan = replace(plan, steps=tuple(steps))
        self.plan = plan
        self.log.append("plan", plan.to_json())

    async def _execute(self) -> PlanResult:
        assert self.plan is not None
        self.log.append("phase", {"phase": "executing"})
        kept = {name: self.steps[name] for name in self.plan.kept if name in self.steps}
        agent = {**self.options.run.agent, "system_prompt": self._rules()}
        cited = self.options.run.citation_verification or self.domain is not None
        executor = DAGExecutor(
            self.models,
            self.tools,
            hooks=self.hooks,
            on_event=self._pass_on,
            options=replace(self.options.run, agent=agent, citation_verification=cited),
            services=self.services,
            clock=self.clock,
        )
        self._executor = executor
        try:
            plan = replace(self.plan, goal=self.goal)
            result = await executor.execute(plan, kept=kept)
        finally:
            self._executor = None
            self.steps = executor.results or self.steps  # also when it is cancelled in the middle
        self.rounds += any(name not in kept for name in result.steps)
        self.steps = result.steps
        self.iterations += sum(step.iterations for name, step in result.steps.items() if name not in kept)
        return result

    async def _judge(self, result: PlanResult) -> tuple[Verdict, LLMError | None]:
        """The verdict; a provider's error is none and is returned beside an empty one."""
        if not any(step.status == "completed" for step in result.steps.values()):
            failed = (f"{name}: {step.error}" for name, step in result.steps.items() if step.status == "failed")
            verdict = Verdict(False, 0.0, f"No step has a result. {'; '.join(failed)}", "")
        elif not self.options.analyze:
            verdict = Verdict(result.status == "completed", 1.0, "not analyzed", "")
        else:
            self.log.append("phase", {"phase": "analyzing"})
            try:
                analyzer = PlanAnalyzer(self.models, clock=self.clock, on_fallback=self._fell_back)
                verdict = await analyzer.analyze(self.goal, result)
            except LLMError as error:
                if error.code in FATAL or isinstance(error, BudgetExceededError):
                    raise
                return Verdict(False, 0.0, str(error), ""), error
        self.log.append("verdict", verdict.to_json())
        return verdict, None

    async def _write_up(self, result: PlanResult, verdict: Verdict) -> _Ending | None:
        """The answer, streamed by the smart model; None when a message came meanwhile, which voids it."""
        assert self.plan is not None
        done = any(step.status == "completed" for step in result.steps.values())
        cause = None if verdict.achieved else verdict.reasoning
        fallback = verdict.final_answer or joined(self.plan, result.steps) or plain_statement(result.steps, cause)
        llm = self.models.for_role("smart")
        query = self.goal if verdict.achieved else f"{self.goal}\n\n(A reviewer says of the work: {verdict.reasoning})"
        answer = await self.writer.write(llm, query, self._work(llm), fallback, self._spoken_to) if done else None
        if answer is None:
            answer = fallback
            self.writer.say(answer)
        if self._spoken_to():
            self.writer.void()
            return None
        status = _status(result, verdict)
        if status == "completed":
            return _Ending(status, answer)
        first = next((step for step in result.steps.values() if step.status == "failed"), None)
        error = (first.error if first is not None else None) or verdict.reasoning or "the goal was not reached"
        return _Ending(status, answer, error, (first.error_code if first else None) or "not_achieved")

    async def _out_of_budget(self, cause: str) -> _Ending:
        """The end of a job whose budget is used up: an answer written from what is kept for it, else what there is."""
        plain = self._with_what_there_is("budget_exceeded", "budget_exceeded", cause)
        work = ""
        if self.mode == "react":
            work = trace_of(self.log.events, self.services.marker)
            if found := trace_of(self.log.events):
                plain = replace(plain, answer=f"{plain.answer}\n\n{found}")
        elif any(step.output.strip() for step in self.steps.values()):
            work = self._work(self.models.for_role("smart"))
        if self.stopping or not work:
            return plain
        return replace(plain, answer=await self.writer.write_last(self.goal, work, plain.answer))

    # Small parts

    def _work(self, llm: LLM) -> str:
        """The steps' work as text, as much as the model's context holds."""
        return "" if self.plan is None else work_of(self.plan, self.steps, ContextGuard().budget(llm) * 2)

    def _spoken_to(self) -> bool:
        return bool(len(self.inbox))

    def _hear(self) -> None:
        """Takes the waiting messages into the goal that planner, analyzer and synthesis see."""
        texts = self.inbox.drain()
        if texts:
            self.log.append("inject", {"type": "inject", "content": "\n\n".join(texts)})
            self.goal += "".join(f"\n\n{FOLLOW_UP}{text}" for text in texts)

    def _rules(self) -> str | None:
        """What agents are told beside the built-in rules: the options' own text, and what the domain asks for."""
        rules = [self.options.run.agent.get("system_prompt"), self.domain and DOMAIN_RULE.format(domain=self.domain)]
        return "\n".join(rule for rule in rules if rule) or None

    def _tell_approval(self, payload: Mapping[str, Any], step_id: str | None) -> None:
        self.log.append("approval", payload, step_id)

    def _parked(self, step_id: str | None) -> AbstractAsyncContextManager[None]:
        """A step that waits gives up its slot and its clock stands, a single agent's job stands as a whole."""
        if self._executor is None or step_id is None:
            return self.time.parked()
        return self._executor.parked(step_id)

    def _pass_on(self, event: Event) -> None:
        if event.channel == "step_progress" and event.step_id is not None:
            self.time.step(event.step_id, event.payload["status"])
        self.log.append(event.channel, event.payload, event.step_id)

    def _fell_back(self, change: Fallback) -> None:
        self.log.append("fallback", change.to_json())

    def _agent_fell_back(self, change: Fallback) -> None:
        self._fell_back(change)
        if self.request.answer_mode == "direct":  # what the agent that ended gave as its answer is void
            self._emit("answer", status="reset")

    def _emit(self, channel: str, **payload: Any) -> None:
        self.log.append(channel, payload)

    def _with_what_there_is(self, status: JobStatus, code: str, error: str) -> _Ending:
        """An ending without another model call: the completed steps' results, else what failed."""
        found = joined(self.plan, self.steps)
        if status == "partial" and not found:
            status = "failed"
        return _Ending(status, found or plain_statement(self.steps, error), error, code)

    def _tell_started(self) -> None:
        self.log.append(
            "job_started",
            {
                "goal": self.goal,
                "mode": self.mode,
                "models": {name: self.models.get(name).model_id for name in self.models.names()},
                "tools": list(self.tools.names()),
                "history": [message.to_json() for message in self.request.history],
                "max_replan_rounds": self.options.max_replan_rounds,
                "marker": self.services.marker,
                "budget": None if self.request.budget is None else str(self.request.budget),
            },
        )
        if self.plan is not None:
            self.log.append("plan", self.plan.to_json())

    def _ended(self, ending: _Ending) -> Job:
        if self.ledger.cut_by_budget and ending.error_code == "truncated":
            cause = f"the budget allowed too short a reply: {ending.error}"
            ending = replace(ending, status="budget_exceeded", error=cause, error_code="budget_exceeded")
        if self.ledger.answer_refused and ending.status == "completed":
            ending = replace(ending, status="budget_exceeded", error=NOT_WRITTEN, error_code="budget_exceeded")
        if (late := self.inbox.drain()) and ending.status != "completed":
            ending = replace(ending, error=f"{ending.error or ending.status}; came too late: {'; '.join(late)}")
        self.ledger.close()
        job = self.job = Job(
            self.log.job_id,
            ending.status,
            self.goal,
            self.mode,
            ending.answer,
            self.plan,
            self.steps,
            self.ledger.usage,
            self.clock.monotonic() - self._clock0,
            ending.error,
            ending.error_code,
            self.rounds,
            self.iterations,
            self._started,
            self._started,
            self.clock.time(),
            dict(self.ledger.by_role),
            dict(self.ledger.by_model),
            self.request.metadata,
            artifacts=self.artifacts.names(),
            fallbacks=tuple(Fallback.from_json(one.payload) for one in self.log.events if one.channel == "fallback"),
        )
        telemetry.workflow_ended(self._span, job)
        usage = job.to_json()["usage"]
        self.log.append(
            "done",
            {
                "answer": job.answer,
                "iterations": self.iterations,
                "usage": usage,
                "elapsed": round(job.elapsed, 3),
                "cost": usage["cost_usd"],
                "status": ending.status,
                "error": ending.error,
                "error_code": ending.error_code,
            },
        )
        self.log.close()
        return job


def _status(result: PlanResult, verdict: Verdict) -> JobStatus:
    if result.status == "completed":
        return "completed" if verdict.achieved else "partial"
    return "partial" if any(step.status == "completed" for step in result.steps.values()) else "failed"

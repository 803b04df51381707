"""A job in mode dag: plan, execute, judge, and change the plan until the goal is reached or nothing more is allowed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias, Union

from agent.context import FATAL
from agent.trust import joined_taint
from planner.analyzer import PlanAnalyzer, Verdict
from planner.checks import PlanError
from planner.plan import Plan
from planner.planner import DAGPlanner
from planner.replan import diff_plans
from registry import telemetry
from registry.errors import BudgetExceededError, DagwrightError, LLMError, UsageError

from .answer import joined, plain_statement
from .dag import DAGExecutor
from .job_state import Ending, JobState, Recorder
from .job_types import JobStatus
from .recovery import JobPast
from .results import PlanResult, StepResult
from .rounds import CHANGED, STOPPED, after_round
from .schedule_types import ENDED

Stage: TypeAlias = Callable[[], Awaitable[Union["Stage", Ending]]]
"""Does its part of a round; what comes next, or how the job ends."""


async def run_rounds(job: JobState) -> Ending:
    """Rounds of a plan until one of them ends the job; the rule of what comes next is `after_round`. A job that goes on
    does so with the stage that it was at.

    Raises BudgetExceededError, and what keeps a first plan from being made.
    """
    rounds = _Rounds(job)
    stage = await rounds.entry()
    while True:
        following = await stage()
        if isinstance(following, Ending):
            return following
        stage = following


async def run_plan_only(job: JobState) -> Ending:
    """Makes the plan and runs nothing. Raises what keeps a plan from being made."""
    rounds = _Rounds(job)
    missing = job.plan is None or (not rounds.fixed and job.past is not None and job.past.position.stage == "plan")
    while missing or (len(job.inbox) and not job.stopping and not rounds.fixed):
        if not missing:
            job.hear()
        await rounds.plan()
        missing = False
    assert job.plan is not None
    lines = (f"{number}. {step.task}" for number, step in enumerate(job.plan.steps, 1))
    return Ending("completed", "\n".join(["The plan:", *lines]))


class _Rounds:
    """The stages of a round, and what one leaves to the next: the last execution's `result`, the `verdict` on it, how
    many rounds were `used`, and whether the plan is being changed for a message that was `heard`."""

    def __init__(self, job: JobState) -> None:
        self.job = job
        self.planner = job.options.planner(job.models, job.tools, job.clock, job.fell_back)
        self.fixed = job.request.plan is not None
        self.result = PlanResult("completed", {}, job.ledger.tally.usage)
        self.verdict = Verdict(False, 0.0)
        self.used, self.executed, self.heard = 0, False, False
        self.going: JobPast | None = None

    async def entry(self) -> Stage:
        """The stage to begin with."""
        past = self.job.past
        if past is None or past.position.stage == "route":
            return self.plan if self.job.plan is None else self.execute
        where = past.position
        self.used, self.executed, self.heard = where.used, where.executed, where.heard
        self.verdict = where.verdict or self.verdict
        match where.stage:
            case "plan":
                return self.execute if self.fixed else self.plan
            case "planned":
                return self.execute if self.fixed and not self.executed else self.planned
            case "change":
                return self.change
            case "execute":
                self.used -= 1  # it is not over
                self.going = past
                return self.execute
        self.result = await _result_again(self.job)
        return {"judge": self.judge, "decide": self.decide}.get(where.stage, self.write)

    # The stages

    async def plan(self) -> Stage | Ending:
        """The first plan."""
        job = self.job
        if job.stopping:
            return job.with_what_there_is("cancelled", "stopped", "The job was stopped.")
        job.emit("phase", phase="planning")
        with telemetry.plan(1):
            plan = await self.planner.plan(job.goal, job.request.history)
        _set_plan(job, plan)
        return self.planned

    async def planned(self) -> Stage | Ending:
        """There is a plan; a message that came meanwhile is planned for before anything runs."""
        job = self.job
        if job.stopping:
            return job.with_what_there_is("cancelled", "stopped", "The job was stopped.")
        if not len(job.inbox):
            return self.execute
        job.hear()
        self.heard = self.executed
        return self.change if self.executed else self.plan

    async def execute(self) -> Stage | Ending:
        """Runs what the plan has that is not done."""
        job = self.job
        going, self.going = self.going, None
        if job.stopping and going is None:  # stopped while a plan was made
            return job.with_what_there_is("cancelled", "stopped", "The job was stopped.")
        self.result = await _execute(job, going)
        self.used, self.executed = self.used + 1, True
        return _over(job, self.result) or self.judge

    async def judge(self) -> Stage | Ending:
        """What the results are worth."""
        job = self.job
        self.verdict, failure = await _judge(job, self.result)
        if failure is not None and not len(job.inbox):
            return job.with_what_there_is("partial", failure.code, f"the analysis failed: {failure}")
        return self.decide

    async def decide(self) -> Stage | Ending:
        """What comes of it."""
        job, options = self.job, self.job.options
        move = after_round(
            message_waits=bool(len(job.inbox)),
            achieved=self.verdict.achieved,
            confidence=self.verdict.confidence,
            used=self.used,
            rounds=options.max_replan_rounds,
            enough=options.replan_stop_confidence,
            fixed=self.fixed,
        )
        if move == "replan_for_message":
            return self.hear
        if move != "replan":
            return self.write
        self.heard = False
        return self.change

    async def write(self) -> Stage | Ending:
        """The answer, unless a message voids it."""
        if self.job.spoken_to():  # before the job went on
            if self.job.writer.written is not None:
                self.job.writer.void()
            return self.hear
        return await _write_up(self.job, self.result, self.verdict) or self.hear

    async def hear(self) -> Stage | Ending:
        """The message that came; the round that it changes does not count."""
        self.used -= 1
        self.heard = True
        self.job.hear()
        return self.change

    async def change(self) -> Stage | Ending:
        """The next round's plan."""
        job = self.job
        if job.stopping:  # stopped while the result was judged
            return job.with_what_there_is("cancelled", "stopped", "The job was stopped.")
        trouble = await _change_plan(job, self.planner, self.verdict, heard=self.heard)
        if trouble is None:
            return self.planned
        if not len(job.inbox) or job.stopping:
            return job.with_what_there_is("partial", trouble.code, f"no new plan could be made: {trouble}")
        job.hear()
        self.heard = True
        return self.change


def _over(job: JobState, result: PlanResult) -> Ending | None:
    """The job's end where an execution brings it: nothing can go on, or it was stopped. Raises
    BudgetExceededError where a step met the budget's end."""
    kept = () if job.plan is None else job.plan.kept
    failed = (step for name, step in result.steps.items() if step.status == "failed" and name not in kept)
    by_code = {step.error_code: step for step in failed}
    for code in FATAL:
        if code in by_code:
            return job.with_what_there_is("failed", code, by_code[code].error or "")
    if result.status == "budget_exceeded":
        hit = by_code.get("budget_exceeded")  # None: it was cancelled meanwhile
        raise BudgetExceededError((hit and hit.error) or "")
    if job.stopping:
        return job.with_what_there_is("cancelled", "stopped", "The job was stopped.")
    return None


async def _change_plan(job: JobState, planner: DAGPlanner, verdict: Verdict, *, heard: bool) -> DagwrightError | None:
    """The next round's plan: a diff of this one; for a message that was `heard` it may be one without new steps. A
    failure to make it is returned."""
    assert job.plan is not None
    job.emit("phase", phase="replanning", reasoning=verdict.reasoning)
    try:
        with telemetry.plan(job.rounds + 1):
            plan = await planner.replan(
                job.goal, job.plan, job.steps, verdict.reasoning, job.request.history, may_rest=heard
            )
    except (LLMError, PlanError) as error:
        if error.code in FATAL or isinstance(error, BudgetExceededError):
            raise
        return error
    except DagwrightError as error:
        if isinstance(error, UsageError):
            raise
        return error
    job.emit("plan_diff", **diff_plans(job.plan, plan).to_json())
    _set_plan(job, plan)
    return None


def _set_plan(job: JobState, plan: Plan) -> None:
    if job.domain:
        steps = (replace(step, model_hint=step.model_hint or "reasoning") for step in plan.steps)
        plan = replace(plan, steps=tuple(steps))
    job.plan = plan
    job.log.append("plan", plan.to_json())


async def _execute(job: JobState, going: JobPast | None) -> PlanResult:
    """A round. The steps of a later one were written by a planner that had read what the earlier ones brought: they
    carry its taint. With `going` it is one that another worker began: what ended in it is kept, what was begun goes
    on."""
    assert job.plan is not None
    job.emit("phase", phase="executing")
    kept = {name: job.steps[name] for name in job.plan.kept if name in job.steps}
    ended = {} if going is None else _ended_in(job.plan, going)
    executor = job.executor = _executor(job)
    cancelled, job.cancels = job.cancels or (), None
    if going is not None and (job.stopping or job.spoken_to()):
        executor.stop(STOPPED if job.stopping else CHANGED)
    try:
        result = await executor.execute(
            replace(job.plan, goal=job.goal),
            kept=kept | ended,
            begun=None if going is None else going.begun,
            cancelled=cancelled,
            routed={} if going is None else going.routed,
        )
    finally:
        job.executor = None
        job.steps = executor.results or job.steps  # also when it is cancelled in the middle
    job.rounds += any(name not in kept for name in result.steps)
    job.steps = result.steps
    job.iterations += sum(step.iterations for name, step in result.steps.items() if name not in kept)
    return result


def _executor(job: JobState) -> DAGExecutor:
    agent = {**job.options.run.agent, "system_prompt": job.rules()}
    cited = job.options.run.citation_verification or job.domain is not None
    assert job.plan is not None
    routing = job.routing if job.plan.round == 1 else job.options.run.routing  # a later round's steps are others
    recorder = Recorder(job)
    return job.new_executor(
        job.models,
        job.tools,
        hooks=job.hooks,
        on_event=recorder.observe,
        recorder=recorder,
        options=replace(job.options.run, agent=agent, citation_verification=cited, routing=routing),
        services=replace(job.services, taint=joined_taint(*(step.taint for step in job.steps.values()))),
        clock=job.clock,
        facts=job.facts,
    )


def _ended_in(plan: Plan, going: JobPast) -> dict[str, StepResult]:
    """The steps that ended in a round which goes on."""
    own = (name for name in plan.by_id if name not in plan.kept and name in going.steps)
    return {name: going.steps[name] for name in own if going.steps[name].status in ENDED}


async def _result_again(job: JobState) -> PlanResult:
    """The last execution's result, from the results of its steps: nothing is run."""
    assert job.plan is not None
    return await DAGExecutor(job.models, options=job.options.run).execute(job.plan, kept=job.steps, begun={})


async def _judge(job: JobState, result: PlanResult) -> tuple[Verdict, LLMError | None]:
    """The verdict; a provider's error is none and is returned beside an empty one."""
    if not any(step.status == "completed" for step in result.steps.values()):
        failed = (f"{name}: {step.error}" for name, step in result.steps.items() if step.status == "failed")
        verdict = Verdict(False, 0.0, f"No step has a result. {'; '.join(failed)}", "")
    elif not job.options.analyze:
        verdict = Verdict(result.status == "completed", 1.0, "not analyzed", "")
    else:
        job.emit("phase", phase="analyzing")
        try:
            analyzer = PlanAnalyzer(job.models, clock=job.clock, on_fallback=job.fell_back)
            verdict = await analyzer.analyze(job.goal, result)
        except LLMError as error:
            if error.code in FATAL or isinstance(error, BudgetExceededError):
                raise
            return Verdict(False, 0.0, str(error), ""), error
    job.log.append("verdict", verdict.to_json())
    return verdict, None


async def _write_up(job: JobState, result: PlanResult, verdict: Verdict) -> Ending | None:
    """The answer, streamed by the smart model; None when a message came meanwhile, which voids it."""
    assert job.plan is not None
    done = any(step.status == "completed" for step in result.steps.values())
    cause = None if verdict.achieved else verdict.reasoning
    fallback = verdict.final_answer or joined(job.plan, result.steps) or plain_statement(result.steps, cause)
    llm = job.models.for_role("smart")
    query = job.goal if verdict.achieved else f"{job.goal}\n\n(A reviewer says of the work: {verdict.reasoning})"
    answer = await job.writer.write(llm, query, job.work(llm), fallback, job.spoken_to) if done else None
    if answer is None:
        answer = fallback
        job.writer.say(answer)
    if job.spoken_to():
        job.writer.void()
        return None
    status = _status(result, verdict)
    if status == "completed":
        return Ending(status, answer)
    first = next((step for step in result.steps.values() if step.status == "failed"), None)
    error = (first.error if first is not None else None) or verdict.reasoning or "the goal was not reached"
    return Ending(status, answer, error, (first.error_code if first else None) or "not_achieved")


def _status(result: PlanResult, verdict: Verdict) -> JobStatus:
    if result.status == "completed":
        return "completed" if verdict.achieved else "partial"
    return "partial" if any(step.status == "completed" for step in result.steps.values()) else "failed"

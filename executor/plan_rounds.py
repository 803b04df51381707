"""A job in mode dag: plan, execute, judge, and change the plan until the goal is reached or nothing more is allowed."""

from __future__ import annotations

from dataclasses import replace

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
from .results import PlanResult
from .rounds import after_round


async def run_rounds(job: JobState) -> Ending:
    """Rounds of a plan until one of them ends the job; the rule of what comes next is `after_round`.

    Raises BudgetExceededError, and what keeps a first plan from being made.
    """
    planner = job.options.planner(job.models, job.tools, job.clock, job.fell_back)
    fixed = job.plan is not None
    if job.plan is None:
        await _make_plan(job, planner)
    used = 0
    while True:
        if job.stopping:  # stopped while a plan was made
            return job.with_what_there_is("cancelled", "stopped", "The job was stopped.")
        result = await _execute(job)
        used += 1
        if (over := _over(job, result)) is not None:
            return over
        verdict, failure = await _judge(job, result)
        if failure is not None and not len(job.inbox):
            return job.with_what_there_is("partial", failure.code, f"the analysis failed: {failure}")
        move = after_round(
            message_waits=bool(len(job.inbox)),
            achieved=verdict.achieved,
            confidence=verdict.confidence,
            used=used,
            rounds=job.options.max_replan_rounds,
            enough=job.options.replan_stop_confidence,
            fixed=fixed,
        )
        if move not in ("replan", "replan_for_message"):
            ending = await _write_up(job, result, verdict)
            if ending is not None:
                return ending
            move = "replan_for_message"
        if move == "replan_for_message":
            used -= 1
            job.hear()
        if job.stopping:  # stopped while the result was judged
            return job.with_what_there_is("cancelled", "stopped", "The job was stopped.")
        trouble = await _change_plan(job, planner, verdict, heard=move == "replan_for_message")
        while len(job.inbox) and not job.stopping:  # said while the plan was changed, or could not be
            job.hear()
            trouble = await _change_plan(job, planner, verdict, heard=True)
        if trouble is not None:
            return job.with_what_there_is("partial", trouble.code, f"no new plan could be made: {trouble}")


async def run_plan_only(job: JobState) -> Ending:
    """Makes the plan and runs nothing. Raises what keeps a plan from being made."""
    if job.plan is None:
        await _make_plan(job, job.options.planner(job.models, job.tools, job.clock, job.fell_back))
    assert job.plan is not None
    lines = (f"{number}. {step.task}" for number, step in enumerate(job.plan.steps, 1))
    return Ending("completed", "\n".join(["The plan:", *lines]))


def _over(job: JobState, result: PlanResult) -> Ending | None:
    """The job's end where an execution brings it: nothing can go on, or it was stopped. Raises
    BudgetExceededError where a step met the budget's end."""
    by_code = {step.error_code: step for step in result.steps.values() if step.status == "failed"}
    for code in FATAL:
        if code in by_code:
            return job.with_what_there_is("failed", code, by_code[code].error or "")
    if result.status == "budget_exceeded":
        hit = by_code.get("budget_exceeded")  # None: it was cancelled meanwhile
        raise BudgetExceededError((hit and hit.error) or "")
    if job.stopping:
        return job.with_what_there_is("cancelled", "stopped", "The job was stopped.")
    return None


async def _make_plan(job: JobState, planner: DAGPlanner) -> None:
    """The first plan; a message that comes meanwhile is planned for before anything runs."""
    while True:
        job.log.append("phase", {"phase": "planning"})
        with telemetry.plan(1):
            plan = await planner.plan(job.goal, job.request.history)
        _set_plan(job, plan)
        if job.stopping or not len(job.inbox):
            return
        job.hear()


async def _change_plan(job: JobState, planner: DAGPlanner, verdict: Verdict, *, heard: bool) -> DagwrightError | None:
    """The next round's plan: a diff of this one; for a message that was `heard` it may be one without new steps. A
    failure to make it is returned."""
    assert job.plan is not None
    job.log.append("phase", {"phase": "replanning", "reasoning": verdict.reasoning})
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
    job.log.append("plan_diff", diff_plans(job.plan, plan).to_json())
    _set_plan(job, plan)
    return None


def _set_plan(job: JobState, plan: Plan) -> None:
    if job.domain:
        steps = (replace(step, model_hint=step.model_hint or "reasoning") for step in plan.steps)
        plan = replace(plan, steps=tuple(steps))
    job.plan = plan
    job.log.append("plan", plan.to_json())


async def _execute(job: JobState) -> PlanResult:
    """A round. The steps of a later one were written by a planner that had read what the earlier ones brought: they
    carry its taint."""
    assert job.plan is not None
    job.log.append("phase", {"phase": "executing"})
    kept = {name: job.steps[name] for name in job.plan.kept if name in job.steps}
    agent = {**job.options.run.agent, "system_prompt": job.rules()}
    cited = job.options.run.citation_verification or job.domain is not None
    recorder = Recorder(job)
    executor = DAGExecutor(
        job.models,
        job.tools,
        hooks=job.hooks,
        on_event=recorder.observe,
        recorder=recorder,
        options=replace(job.options.run, agent=agent, citation_verification=cited),
        services=replace(job.services, taint=joined_taint(*(step.taint for step in job.steps.values()))),
        clock=job.clock,
    )
    job.executor = executor
    try:
        plan = replace(job.plan, goal=job.goal)
        result = await executor.execute(plan, kept=kept)
    finally:
        job.executor = None
        job.steps = executor.results or job.steps  # also when it is cancelled in the middle
    job.rounds += any(name not in kept for name in result.steps)
    job.steps = result.steps
    job.iterations += sum(step.iterations for name, step in result.steps.items() if name not in kept)
    return result


async def _judge(job: JobState, result: PlanResult) -> tuple[Verdict, LLMError | None]:
    """The verdict; a provider's error is none and is returned beside an empty one."""
    if not any(step.status == "completed" for step in result.steps.values()):
        failed = (f"{name}: {step.error}" for name, step in result.steps.items() if step.status == "failed")
        verdict = Verdict(False, 0.0, f"No step has a result. {'; '.join(failed)}", "")
    elif not job.options.analyze:
        verdict = Verdict(result.status == "completed", 1.0, "not analyzed", "")
    else:
        job.log.append("phase", {"phase": "analyzing"})
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

"""A job in mode react: one agent does it all, its answer is written up, and what is said meanwhile goes on with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from agent.context import FATAL, ContextGuard
from agent.react import ReActAgent
from agent.state import AgentResult
from agent.synthesis import format_trace
from agent.waits import PendingCall
from registry.errors import BudgetExceededError
from registry.fallback import Fallback
from registry.llm import LLM
from registry.messages import Event, Message

from .agent_run import AgentRun
from .answer import plain_statement
from .goal_route import GoalRoute
from .job_state import Ending, JobState
from .job_types import JobStatus
from .recovery.uncertain import ask_about
from .schedule_types import UNCERTAIN
from .step_trail import StepTrail


async def run_single_agent(job: JobState) -> Ending:
    """The agent's work to its end, and a further round for what was said meanwhile. Raises BudgetExceededError.

    In a job that goes on all its agents work again, from their records: those that had ended come to the same end, and
    what was said after that is known; the last one goes on.
    """
    trail, work = StepTrail(), GoalRoute(job)
    trail.route = work.route
    llm = job.models.get(work.route.now.model)
    history: Sequence[Message] = job.request.history
    query = job.request.goal
    further = deque(() if job.past is None else job.past.said.further)
    trail.recorded(() if job.past is None else job.past.calls)
    uncertain: dict[str, PendingCall] = {}
    while True:
        run = AgentRun(
            partial(_new_agent, job),
            job.models,
            query,
            history,
            job.tools,
            trail,
            job.pass_on,
            partial(_agent_fell_back, job),
        )
        result, llm = await run.outcome(llm, partial(work.goes_on, query, trail, known=bool(further)))
        job.iterations += result.iterations
        if result.stop_reason == "budget_exceeded":
            raise BudgetExceededError(result.error_message or "")
        uncertain |= {call.call_id: call for call in result.uncertain}
        if further:
            history, query = result.messages, further.popleft()
            continue
        await ask_about(job.waits, [call for key, call in uncertain.items() if key in job.effects.open], job.emit)
        answer = result.answer if job.spoken_to() else await _answer(job, llm, query, result)
        if said := job.hear():
            history, query = result.messages, said
            job.writer.void()
            continue
        job.agent = None
        ending, unclear = _ending(job, result, answer), job.effects.in_words()
        if ending.status != "completed" or not unclear:
            return ending
        return replace(ending, status="partial", error=unclear, error_code=UNCERTAIN)


def _new_agent(job: JobState, llm: LLM, on_event: Callable[[Event], None]) -> ReActAgent:
    job.agent = ReActAgent(
        llm,
        job.tools,
        hooks=job.hooks,
        interrupts=job.inbox,
        context_guard=ContextGuard(compact_llm=job.models.for_role("compact")),
        on_event=on_event,
        answer_mode=job.request.answer_mode,
        services=job.services,
        clock=job.clock,
        **{**job.options.run.agent, "system_prompt": job.rules()},
    )
    if job.stopping:
        job.waits.reject_all("the job was stopped")
        job.agent.finish()
    return job.agent


async def _answer(job: JobState, llm: LLM, query: str, result: AgentResult) -> str:
    if result.stop_reason != "final_answer" or job.request.answer_mode == "direct":
        return result.answer
    text = await job.writer.write(llm, query, format_trace(result.messages), result.answer, job.spoken_to)
    return result.answer if text is None else text


def _ending(job: JobState, result: AgentResult, answer: str) -> Ending:
    if job.stopping:
        return Ending("cancelled", answer or plain_statement({}, "It was stopped."), "stopped by the user", "stopped")
    if result.stop_reason == "final_answer" and not result.unparsed:
        return Ending("completed", answer)
    code = "unparsed" if result.unparsed else result.error or result.stop_reason
    cause = result.error_message or f"the agent ended with {code}"
    found = result.unparsed or any(not record.is_error for record in result.tool_calls)
    status: JobStatus = "partial" if found and code not in FATAL else "failed"
    return Ending(status, answer or plain_statement({}, f"Cause: {cause}."), cause, code)


def _agent_fell_back(job: JobState, change: Fallback) -> None:
    new = job.fell_back(change)
    if new and job.request.answer_mode == "direct":  # what the agent that ended gave as its answer is void
        job.emit("answer", status="reset")

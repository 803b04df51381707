"""The key of a tool call is its own in the whole job; what is asked of a human is the call that runs."""

from __future__ import annotations

from typing import Any

from agent.waits import Decision, PendingCall
from executor import JobOptions, run_job
from planner import Plan, PlanStep
from registry import tool
from registry.messages import ToolCall
from registry.testing import ScriptedLLM
from registry.tool_context import ToolContext

OPTIONS = JobOptions(replan_stop_confidence=1.0)


async def test_a_step_that_a_later_round_replaces_has_keys_of_its_own() -> None:
    seen: list[str] = []

    @tool
    def send(ctx: ToolContext) -> str:
        """Sends."""
        seen.append(ctx.key)
        return "sent it"

    verdicts = [False, True]

    def script(request: Any) -> Any:
        kind = request.tool_choice["name"] if isinstance(request.tool_choice, dict) else ""
        steps = [{"id": "s1", "task": f"send {len(verdicts)}", "dependencies": []}]
        if kind in ("make_plan", "revise_plan"):
            return [ToolCall("f", kind, {"steps": steps} if kind == "make_plan" else {"keep": [], "steps": steps})]
        if kind:
            verdict = {"achieved": verdicts.pop(0), "confidence": 0.9, "reasoning": "r", "final_answer": "a"}
            return [ToolCall("f", kind, verdict)]
        told = any(message.role == "tool" for message in request.messages)
        return [ToolCall("c1", "send", {})] if request.tools and not told else "done"

    job = await run_job("send", ScriptedLLM(script), tools=[send], mode="dag", options=OPTIONS)
    assert (job.status, job.rounds, list(job.steps)) == ("completed", 2, ["s1"])
    assert len(seen) == len(set(seen)) == 2


async def test_who_is_asked_for_approval_changes_nothing_of_the_call() -> None:
    sent: list[Any] = []

    @tool(requires_approval=True)
    def send(to: list[str]) -> str:
        """Sends."""
        sent.append(to)
        return "sent it"

    async def approve(call: PendingCall) -> Decision:
        arguments: Any = call.tool_args
        arguments["to"].append("Eve")
        arguments["to"] = "***"
        return Decision(True)

    def script(request: Any) -> Any:
        told = any(message.role == "tool" for message in request.messages)
        return "done" if told else [ToolCall("c1", "send", {"to": ["Ada"]})]

    plan = Plan("g", (PlanStep("s1", "send"),))
    await run_job(plan, ScriptedLLM(script), tools=[send], options=JobOptions(analyze=False), approve=approve)
    assert sent == [["Ada"]]

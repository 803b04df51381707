"""No key comes out at the small doors either: lines about hooks, an artifact's type, the error of a job that broke."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from agent.hooks import HookContext, HookResult, PreToolUseHook
from executor import JobOptions, run_job
from planner import Plan, PlanStep
from registry import tool
from registry.messages import ToolCall
from registry.redaction import know_secret
from registry.testing import ScriptedLLM
from registry.tool_run import Artifact, run_tool

KEY = "zq-Very-Secret-Key-2"
PLAN = Plan("g", (PlanStep("s1", "look"),))


@tool
def look() -> str:
    """Looks."""
    return "seen it"


def looks_once(request: Any) -> Any:
    told = [message.content for message in request.messages if message.role == "tool"]
    return told[-1] if told else [ToolCall("c1", "look", {})]


class Noting(PreToolUseHook):
    async def execute(self, ctx: HookContext) -> HookResult:
        return HookResult(side_effects=(f"noted {KEY}",))


class Blocking(PreToolUseHook):
    async def execute(self, ctx: HookContext) -> HookResult:
        return HookResult(False, f"blocked for {KEY}")


class Breaking(PreToolUseHook):
    async def execute(self, ctx: HookContext) -> HookResult:
        raise RuntimeError(f"broken by {KEY}")


@pytest.mark.parametrize(("hook", "line"), [(Noting, "noted"), (Blocking, "blocked for"), (Breaking, "broken by")])
async def test_lines_about_hooks_where_nothing_is_set_up(
    hook: type[PreToolUseHook], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    know_secret(KEY)
    structlog.reset_defaults()
    await run_job(PLAN, ScriptedLLM(looks_once), tools=[look], hooks=[hook()], options=JobOptions(analyze=False))
    shown = capsys.readouterr()
    assert f"{line} ***" in shown.out + shown.err
    assert KEY not in shown.out + shown.err


async def test_the_type_of_an_artifact() -> None:
    know_secret(KEY)

    @tool
    def draw() -> Artifact:
        """Draws."""
        return Artifact("a.txt", f"text/plain; by={KEY}", "nothing")

    outcome = await run_tool(draw, {})
    assert outcome.artifact is not None
    assert outcome.artifact.mime == "text/plain; by=***"


async def test_the_error_of_a_job_that_broke() -> None:
    know_secret(KEY)

    def breaks(request: Any) -> Any:
        raise KeyError(KEY)

    job = await run_job("look", ScriptedLLM(breaks), mode="react")
    assert (job.error_code, job.error) == ("internal", "KeyError: '***'")

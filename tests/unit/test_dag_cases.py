"""The execution cases about the graph, on scripted models: each is a plan in words, run for real."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from executor.dag import DAGExecutor
from executor.results import PlanResult
from planner.plan import Plan, PlanStep
from registry.context import caller
from registry.errors import ProviderError
from registry.llm_types import ChatRequest
from registry.testing import ScriptedLLM

LINES = (Path(__file__).parent.parent / "cases" / "execution.jsonl").read_text(encoding="utf-8").splitlines()
CASES = [case for case in map(json.loads, LINES) if case["context"]["scope"] == "executor"]


class Ran:
    """A case's plan, executed: the result, and each step's queries as its model saw them."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        specs = {name: spec if isinstance(spec, dict) else {"dependencies": spec} for name, spec in given.items()}
        self.specs: dict[str, dict[str, Any]] = specs
        self.plan = Plan(
            "the goal",
            tuple(
                PlanStep(name, spec.get("task", f"do {name}"), tuple(spec.get("dependencies", ())))
                for name, spec in specs.items()
            ),
        )
        self.queries: dict[str, list[str]] = {name: [] for name in specs}
        self.result: PlanResult

    def output_of(self, step: str) -> str:
        return str(self.specs[step].get("output", f"what {step} found"))

    async def run(self, fail: list[str], cancel: str | None) -> None:
        async def reply(request: ChatRequest) -> Any:
            step = caller().step_id or ""
            self.queries[step].append(request.messages[-1].content)
            if step == cancel:
                executor.cancel_step(step)
                await asyncio.Event().wait()
            return ProviderError("it broke", retryable=False) if step in fail else self.output_of(step)

        executor = DAGExecutor(ScriptedLLM(reply))
        async with asyncio.timeout(10):
            self.result = await executor.execute(self.plan)


def check_status(ran: Ran, wanted: Mapping[str, str]) -> None:
    assert {name: ran.result.steps[name].status for name in wanted} == wanted


def check_reasons(ran: Ran, wanted: Mapping[str, str]) -> None:
    assert {name: ran.result.steps[name].root_cause for name in wanted} == wanted


def check_calls(ran: Ran, wanted: Mapping[str, int]) -> None:
    assert {name: len(ran.queries[name]) for name in wanted} == wanted


def check_prompts(ran: Ran, wanted: Mapping[str, Mapping[str, Any]]) -> None:
    for name, rule in wanted.items():
        (query,) = ran.queries[name]
        parts = [*rule.get("contains", ())]
        if "contains_output_of" in rule:
            parts.append(ran.output_of(rule["contains_output_of"]))
        assert all(part in query for part in parts)
        assert not any(part in query for part in rule.get("not_contains", ()))


def check_outputs(ran: Ran, wanted: list[str]) -> None:
    assert [ran.result.steps[name].output for name in wanted] == [ran.output_of(name) for name in wanted]


def check_run_status(ran: Ran, wanted: str) -> None:
    assert wanted == "failed or partial, never completed"
    assert ran.result.status in ("failed", "partial")


def check_rule(ran: Ran, wanted: str) -> None:
    assert wanted == "s2 runs the model; its expected-output text is never used as its output"
    assert len(ran.queries["s2"]) == 1
    assert ran.result.steps["s2"].output == ran.output_of("s2")


CHECKS = {
    "status": check_status,
    "reason_of": check_reasons,
    "model_calls_for": check_calls,
    "prompt_of": check_prompts,
    "outputs_of": check_outputs,
    "run_status": check_run_status,
    "rule": check_rule,
    "run_ends": lambda ran, wanted: None,  # it has: `execute` returned within its time
}


def test_there_are_cases() -> None:
    assert CASES


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
async def test_execution_case(case: dict[str, Any]) -> None:
    given = case["input"]
    assert set(given) <= {"steps", "fail", "cancel_step"}
    ran = Ran(given["steps"])
    await ran.run(given.get("fail", []), given.get("cancel_step"))
    for key, wanted in case["expect"].items():
        CHECKS[key](ran, wanted)  # type: ignore[operator]

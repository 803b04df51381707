"""The figures for Prometheus: what a job's events add up to, and that labels stay bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.parser import text_string_to_metric_families

from executor.job_handle import run_job
from planner.plan import Plan, PlanStep
from registry import metrics
from registry.errors import AuthError, OverloadedError
from registry.messages import Event
from registry.metrics import MAX_VALUES, Metrics
from registry.prices import Price
from registry.testing import FakeClock, ScriptedLLM
from registry.tools import tool


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    yield
    metrics.switch_off()


@tool
def look(word: str) -> str:
    """Looks a word up.

    Args:
        word: The word; "fail" fails.
    """
    if word == "fail":
        raise RuntimeError("no")
    return word


def figures(page: bytes) -> dict[tuple[str, ...], float]:
    """The page's samples by name and label values."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if not sample.name.endswith(("_bucket", "_created"))
    }


def event(channel: str, step: str | None = None, job: str = "j", **payload: Any) -> Event:
    return Event(job, 1, 0.0, channel, step, payload)


async def test_off_nothing_is_counted() -> None:
    await run_job("g", ScriptedLLM(["a", "a"]), mode="react")
    assert metrics.render() == b""


async def test_a_jobs_events_add_up() -> None:
    metrics.switch_on()
    assert metrics.switch_on() is metrics.switch_on()
    looked = [("look", {"word": "a"}), ("look", {"word": "fail"}), ("invented", {})]
    calls = [looked, "found", "all is done", "found", "written"]
    llm = ScriptedLLM([OverloadedError("busy"), *calls], clock=FakeClock(), price=Price(1, 2), model_id="m")
    plan = Plan("g", (PlanStep("s1", "look"),))
    job = await run_job(plan, llm, tools=[look], mode="dag", options=_without_analysis())
    assert job.status == "completed"
    got = figures(metrics.render())
    assert got["dagwright_jobs_total", "completed"] == 1
    assert got["dagwright_jobs_going",] == 0
    assert got["dagwright_job_seconds_count", "completed"] == 1
    assert got["dagwright_steps_total", "completed"] == 1
    assert got["dagwright_steps_going", "running"] == 0
    assert got["dagwright_model_calls_total", "m", "ok", "step"] == 4
    assert got["dagwright_model_calls_total", "m", "overloaded", "step"] == 1
    assert got["dagwright_model_calls_total", "m", "ok", "synthesis"] == 1
    assert got["dagwright_model_call_seconds_count", "m", "step"] == 5
    assert got["dagwright_tool_calls_total", "ok", "look"] == 1
    assert got["dagwright_tool_calls_total", "error", "look"] == 1
    assert ("dagwright_tool_calls_total", "error", "invented") not in got
    assert got["dagwright_tokens_total", "input", "m"] == job.usage.input_tokens
    assert got["dagwright_tokens_total", "output", "m"] == job.usage.output_tokens
    assert got["dagwright_cost_usd_total", "m"] == pytest.approx(float(job.usage.cost or 0))


def _without_analysis() -> Any:
    from executor.job_options import JobOptions

    return JobOptions(analyze=False)


async def test_a_job_that_fails_is_one_that_failed() -> None:
    metrics.switch_on()
    job = await run_job("g", ScriptedLLM([AuthError("no")]), mode="dag")
    assert job.status == "failed"
    got = figures(metrics.render())
    assert got["dagwright_jobs_total", "failed"] == 1
    assert got["dagwright_model_calls_total", "scripted", "auth", "planner"] == 1


def test_steps_under_way_are_counted_up_and_down() -> None:
    counted = Metrics()

    def going() -> tuple[float, float, float]:
        got = figures(counted.render())
        waiting = got.get(("dagwright_steps_going", "waiting"), 0)
        return got["dagwright_jobs_going",], got.get(("dagwright_steps_going", "running"), 0), waiting

    counted.observe(event("job_started", tools=[]))
    counted.observe(event("job_started", tools=[]))  # told again after a restart
    for step in ("a", "b"):
        counted.observe(event("step_progress", step, status="running"))
    assert going() == (1, 2, 0)
    counted.observe(event("step_progress", "a", status="waiting"))
    assert going() == (1, 1, 1)
    counted.observe(event("step_progress", "a", status="running"))
    counted.observe(event("step_progress", "a", status="completed"))
    counted.observe(event("step_progress", "c", status="skipped"))
    assert going() == (1, 1, 0)
    counted.observe(event("done", status="cancelled", elapsed=3))
    assert going() == (0, 0, 0)
    counted.observe(event("step_progress", "b", status="running", job="unknown"))
    counted.observe(event("done", status="failed", job="unknown"))
    assert going() == (0, 0, 0)
    got = figures(counted.render())
    assert [got["dagwright_steps_total", status] for status in ("completed", "skipped")] == [1, 1]
    assert got["dagwright_job_seconds_sum", "cancelled"] == 3


def test_a_job_that_goes_on_elsewhere_is_under_way_there() -> None:
    here, there = metrics.Metrics(), metrics.Metrics()

    def told(who: metrics.Metrics, channel: str, payload: dict[str, Any], step: str | None = None) -> None:
        who.observe(Event("job_1", 1, 0.0, channel, step, payload))

    told(here, "job_started", {"tools": []})
    told(here, "step_progress", {"status": "completed", "kept": True}, "k")  # another job's
    told(here, "step_progress", {"status": "running"}, "a")
    here.left("job_1")
    told(there, "note", {"kind": "restored"})
    assert (here.jobs_going._value.get(), there.jobs_going._value.get()) == (0, 1)
    assert here.steps_going.labels("running")._value.get() == 0
    assert b'dagwright_steps_total{status="completed"}' not in here.render()
    told(there, "done", {"status": "completed"})
    assert there.jobs_going._value.get() == 0


def test_labels_are_bounded() -> None:
    counted = Metrics()
    counted.observe(event("job_started", tools=[f"tool{n}" for n in range(3 * MAX_VALUES)]))
    for n in range(3 * MAX_VALUES):
        counted.observe(event("call", status="end", tool_name=f"tool{n}", is_error=False))
        counted.observe(event("call", status="start", tool_name="look"))
        turn = {"model": f"m{n}", "role": f"role{n}", "elapsed": 1, "error": {"code": f"code{n}"}, "usage": None}
        counted.observe(event("turn", **turn))
        counted.observe(event("done", status=f"status{n}"))
        counted.observe(event("approval", status=f"status{n}"))
        counted.observe(event("budget", reason=f"reason{n}"))
    got = figures(counted.render())
    by_name: dict[str, int] = {}
    for name, *_ in got:
        by_name[name] = by_name.get(name, 0) + 1
    assert max(by_name.values()) <= MAX_VALUES + 1
    assert got["dagwright_tool_calls_total", "ok", "other"] == 2 * MAX_VALUES
    assert got["dagwright_jobs_total", "other"] == 3 * MAX_VALUES
    assert got["dagwright_approvals_total", "other"] == got["dagwright_budget_events_total", "other"] == 3 * MAX_VALUES


def test_budgets_and_approvals() -> None:
    counted = Metrics()
    for reason in ("refused", "lowered", "end"):
        counted.observe(event("budget", reason=reason))
    for status in ("waiting", "approved"):
        counted.observe(event("approval", status=status))
    got = figures(counted.render())
    assert {key[1:] for key in got if key[0] == "dagwright_budget_events_total"} == {("refused",), ("lowered",)}
    assert {key[1:] for key in got if key[0] == "dagwright_approvals_total"} == {("waiting",), ("approved",)}


def test_what_cannot_be_counted_costs_nothing() -> None:
    metrics.switch_on()
    with structlog.testing.capture_logs() as logged:
        metrics.observe(event("turn", model="m", role="step", elapsed="soon"))
        metrics.observe(event("phase", phase="planning"))
    assert [line["event"] for line in logged] == ["event_not_counted"]


def test_the_content_type_is_that_of_the_text_format() -> None:
    assert metrics.CONTENT_TYPE == CONTENT_TYPE_PLAIN_0_0_4

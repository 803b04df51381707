"""A provider goes out in the middle of a plan: over real HTTP, the job ends on the next model and says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from executor import Job, run_job, start_job
from registry import AnthropicLLM, ModelRegistry, OpenAIChatLLM, tool
from registry.messages import Event
from registry.retry import RetryPolicy
from tests.fakes import ProviderFake, View, brain
from tests.fakes.brain import ANSWER, DIAMOND
from tests.fakes.view import Reply, as_reply

GOAL = "Work out six times seven in two halves and put them together."
THOUGHT = "A thought of the first model."
QUICK = RetryPolicy(tries=2, first_wait=0.01)


class Provider:
    """Answers whole jobs with thoughts, until `fails(view)` is true: from then on it is out, in the way given."""

    def __init__(self, outage: dict[str, Any], fails: Callable[[View], bool]) -> None:
        self.outage, self.fails, self.out = outage, fails, False
        self.tries_while_out = 0

    def __call__(self, view: View) -> Reply:
        self.out = self.out or self.fails(view)
        if self.out:
            self.tries_while_out += 1
            return as_reply(self.outage) if "status" in self.outage else replace(as_reply(brain(view)), **self.outage)
        return replace(as_reply(brain(view)), reasoning=THOUGHT)


def heedful(view: View) -> Any:
    """The backup's model: it does not repeat a call that it is told of."""
    if view.tools and view.forced is None and "may have had an effect, succeeded" in view.last_text:
        return ANSWER
    return brain(view)


def after_a_tool_of(task: str) -> Callable[[View], bool]:
    return lambda view: bool(view.results) and any(f"Your step: {task}" in message.text for message in view.messages)


async def job_with(first: ProviderFake, second: ProviderFake, **options: Any) -> tuple[Job, list[str], list[Event]]:
    effects: list[str] = []

    @tool
    def calculate(expression: str) -> str:
        """Calculates, and writes it down in the ledger."""
        effects.append(expression)
        return "42"

    models = ModelRegistry()
    primary = AnthropicLLM(
        "fake-claude", base_url=first.anthropic_url, api_key="k", retry=QUICK, max_output_tokens=4_096
    )
    backup = OpenAIChatLLM("fake-model", base_url=second.openai_url, api_key="k", retry=QUICK)
    models.register("primary", primary, roles=["general", "smart"], fallbacks=["backup"])
    models.register("backup", backup)
    try:
        handle = start_job(GOAL, models, tools=[calculate], **options)
        job = await handle.result()
        return job, effects, list(handle.log.events)
    finally:
        await models.aclose()


@pytest.mark.parametrize(
    ("outage", "code"),
    [
        ({"status": 529, "error": "Overloaded"}, "overloaded"),
        ({"status": 500}, "provider_error"),
        ({"status": 429, "error": "slow down"}, "rate_limit"),
        ({"cut_after": 1}, "connection"),
    ],
)
async def test_a_provider_that_goes_out_in_the_middle_of_a_plan(outage: dict[str, Any], code: str) -> None:
    provider = Provider(outage, after_a_tool_of(DIAMOND[1]["task"]))
    async with ProviderFake(provider) as first, ProviderFake(heedful) as second:
        job, effects, events = await job_with(first, second)
        assert not first.refusals
        assert not second.refusals
        assert (job.status, job.error) == ("completed", None)
        steps = job.steps
        assert [step.status for step in steps.values()] == ["completed"] * 4
        assert (steps["s1"].model, steps["s2"].model, steps["s4"].model) == ("primary", "backup", "backup")
        assert steps["s1"].fallbacks == ()
        assert [(one.model, one.to, one.error, one.where) for one in steps["s2"].fallbacks] == [
            ("primary", "backup", code, "step")
        ]
        assert steps["s2"].attempts == 2
        assert len(effects) == 4, "each step's effect happened once, also where another model went on"
        assert {one.where for one in job.fallbacks} == {"step", "analyzer", "synthesis"}
        assert [event.payload for event in events if event.channel == "fallback"] == [
            one.to_json() for one in job.fallbacks
        ]
        assert all(THOUGHT not in str(request) for request in second.requests), "thinking never crosses models"
        assert any(THOUGHT in str(request) for request in first.requests)
        if "status" in outage:  # what is refused costs nothing and is billed to nobody
            assert job.usage.calls == first.billed.calls + second.billed.calls
            assert job.usage.input_tokens == first.billed.input_tokens + second.billed.input_tokens
        else:
            assert job.usage.partial


async def test_a_wrong_key_is_no_outage() -> None:
    refusing = Provider({"status": 401, "error": "invalid x-api-key"}, after_a_tool_of(DIAMOND[1]["task"]))
    async with ProviderFake(refusing) as first, ProviderFake(heedful) as second:
        job, _, _ = await job_with(first, second)
        assert (job.status, job.error_code, job.fallbacks) == ("failed", "auth", ())
        assert not second.requests


async def test_when_both_are_out_the_job_keeps_what_it_has() -> None:
    first_out = Provider({"status": 503}, after_a_tool_of(DIAMOND[3]["task"]))
    async with ProviderFake(first_out) as first, ProviderFake(lambda view: {"status": 503}) as second:
        job, _, _ = await job_with(first, second)
        assert job.status == "partial"
        assert job.error_code == "overloaded"
        assert job.steps["s4"].status == "failed"
        assert "tried in this order: primary, backup" in (job.steps["s4"].error or "")
        assert ANSWER in job.answer


async def test_an_answer_that_breaks_off_is_written_anew_by_the_next_model() -> None:
    answers: list[Event] = []
    provider = Provider({"cut_after": 700}, lambda view: view.stream and not view.tools)
    async with ProviderFake(provider) as first, ProviderFake(heedful) as second:
        primary = AnthropicLLM(
            "fake-claude", base_url=first.anthropic_url, api_key="k", retry=QUICK, max_output_tokens=4_096
        )
        backup = OpenAIChatLLM("fake-model", base_url=second.openai_url, api_key="k", retry=QUICK)
        models = ModelRegistry()
        models.register("primary", primary, fallbacks=["backup"])
        models.register("backup", backup)
        try:
            job = await run_job(GOAL, models, on_event=answers.append)
        finally:
            await models.aclose()
    assert job.status == "completed"
    assert provider.tries_while_out == QUICK.tries
    assert [(one.where, one.error) for one in job.fallbacks] == [("synthesis", "connection")]
    shown = ""
    for event in answers:
        if event.channel == "answer":
            shown = "" if event.payload["status"] == "reset" else shown + event.payload.get("content", "")
    assert shown == job.answer != ""

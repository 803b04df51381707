"""A routed job that goes on: what was chosen stands, and nobody is asked for it again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from executor import JobOptions
from registry import Choice, ModelRegistry, RouteRequest, RoutingPolicy, Trial
from registry.cascade import Cascade
from tests.support.cuts import choices, run
from tests.support.routed_scenarios import unsure


class Forbidden(RoutingPolicy):
    """Must not be asked any more which model begins the step x, and what follows there on the weak one."""

    name = "forbidden"

    def choose(self, request: RouteRequest, models: ModelRegistry) -> Choice:
        assert request.task != "count alpha"
        return Cascade().choose(request, models)

    def escalate(self, request: RouteRequest, models: ModelRegistry, tried: Trial) -> Choice | None:
        assert (request.task, tried.model) != ("count alpha", "weak")
        return Cascade().escalate(request, models, tried)

    def asks(self, request: RouteRequest, models: ModelRegistry, model: str) -> bool:
        return Cascade().asks(request, models, model)

    def to_json(self) -> dict[str, Any]:
        return {"use": "forbidden"}


async def test_a_job_that_goes_on_asks_nobody_about_what_was_chosen() -> None:
    """Neither between a choice and the step's first word, nor between an escalation and its first."""
    whole = await run(unsure())
    mine = [event.seq for event in whole.events if event.channel == "route" and event.step_id == "x"]
    assert len(mine) == 2
    scenario = unsure()
    scenario.options = JobOptions(replace(scenario.options.run, routing=Forbidden()))
    again = await run(scenario, whole.events[: mine[1]])
    assert again.job.steps["x"].escalated_from == "weak"
    assert choices(again.events)[:2] == choices(whole.events)[:2]
    begun = await run(unsure(), whole.events[: mine[0]])
    following = [(event.channel, event.step_id) for event in begun.events[mine[0] :]]
    assert following[:2] == [("note", None), ("step_progress", "x")]
    assert choices(begun.events) == choices(whole.events)

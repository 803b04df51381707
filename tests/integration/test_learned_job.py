"""A learned policy in a job: each step goes to the model that its text calls for, and the log says by what score."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

from executor import JobOptions, RunOptions
from executor.job_handle import start_job
from executor.routed import is_choice
from planner import Plan, PlanStep
from registry import ModelRegistry, OpenAIChatLLM, Price
from registry.learned_route import LearnedPolicy, RouteModel
from registry.route_features import NAMES
from registry.routing import RouteRequest
from registry.routing_config import policy_of
from tests.fakes import ProviderFake, brain

PLAN = Plan("Work it out.", (PlanStep("a", "Prove the lemma."), PlanStep("b", "Add the figures.", ("a",))))
FLAT = (0.0, 1.0, 0.0, 0.0)


def saved(path: Path) -> LearnedPolicy:
    """A policy by which the strong model gains on what is to be proved."""
    model = RouteModel((1.0, 1.5), (FLAT,) * len(NAMES), words={"prove": (1.0, -2.0, 0.0), "add": (1.0, 1.0, 0.5)})
    return LearnedPolicy("fast", "strong", 0.3, model).save(path / "policy.json")


async def test_steps_go_to_the_model_that_their_text_calls_for(tmp_path: Path) -> None:
    policy = saved(tmp_path)
    async with ProviderFake(brain, models=("weak", "strong")) as fake:
        models = ModelRegistry()
        for name, roles in (("weak", ["fast"]), ("strong", ["general"])):
            price = Price(Decimal(1), Decimal(1))
            llm = OpenAIChatLLM(name, base_url=fake.openai_url, api_key="k", price=price)
            models.register(name, llm, roles)
        routing = policy_of({"use": "learned", "file": "policy.json"}, base=tmp_path)
        handle = start_job(PLAN, models, options=JobOptions(RunOptions(routing=routing)))
        job = await handle.result()
        events = [event async for event in handle.log.read(internal=True)]
        await models.aclose()
    assert job.status == "completed"
    assert {name: step.model for name, step in job.steps.items()} == {"a": "strong", "b": "weak"}
    told = {event.step_id: event.payload for event in events if is_choice(event.payload) and event.channel == "route"}
    for step in PLAN.steps:
        score = policy.score(RouteRequest(task=step.task))
        assert told[step.id]["score"] == score
        assert f"gain {score:.3f}" in json.dumps(told[step.id]["reason"])

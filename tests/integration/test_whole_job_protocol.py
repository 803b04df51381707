"""Whole jobs over real HTTP against a provider that keeps its rules: no request of ours may break one."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from executor import run_job
from registry import LLM, AnthropicLLM, OpenAIChatLLM, OpenAIResponsesLLM, tool
from tests.fakes import ProviderFake, View, brain
from tests.fakes.view import Reply, as_reply

ADAPTERS: dict[str, Callable[..., LLM]] = {
    "chat": OpenAIChatLLM,
    "responses": OpenAIResponsesLLM,
    "anthropic": AnthropicLLM,
}
STRATEGIES: dict[str, dict[str, bool]] = {
    "native": {},
    "native-without-tool-choice": {"tool_choice": False},
    "json-schema": {"tool_call": False, "json_mode": True, "json_schema": True},
    "json-mode": {"tool_call": False, "json_mode": True, "json_schema": False},
    "no-abilities": {"tool_call": False, "json_mode": False, "json_schema": False},
}
CASES = [
    (dialect, strategy)
    for dialect in ADAPTERS
    for strategy in STRATEGIES
    if (dialect, strategy) != ("anthropic", "json-mode")  # Anthropic has schemas, but no JSON mode without one
]
GOAL = "Work out six times seven in two halves and put them together."


@tool(read_only=True, pure=True)
def calculate(expression: str) -> str:
    """Calculates an arithmetic expression and gives the number."""
    left, _, right = expression.partition("*")
    return str(int(left) * int(right))


@asynccontextmanager
async def connected(fake: ProviderFake, dialect: str, model: str = "fake-model", **options: Any) -> AsyncIterator[LLM]:
    url = fake.anthropic_url if dialect == "anthropic" else fake.openai_url
    llm = ADAPTERS[dialect](model, base_url=url, api_key="k", **options)
    try:
        yield llm
    finally:
        await llm.aclose()


def refused(fake: ProviderFake) -> Counter[str]:
    return Counter(refusal.rule.id for refusal in fake.refusals)


@pytest.mark.parametrize(("dialect", "strategy"), CASES)
async def test_a_job_breaks_no_rule(dialect: str, strategy: str, provider_fake: ProviderFake) -> None:
    async with connected(provider_fake, dialect, abilities=STRATEGIES[strategy]) as llm:
        job = await run_job(GOAL, llm, tools=[calculate])
    assert refused(provider_fake) == {}
    assert job.status == "completed", job
    assert job.answer
    assert [step.status for step in job.steps.values()] == ["completed"] * 4
    native = [view for view in provider_fake.views if view.tools and view.forced is None]
    assert bool(native) == strategy.startswith("native")
    assert any(view.stream for view in provider_fake.views)


@pytest.mark.parametrize("dialect", ADAPTERS)
async def test_the_job_counts_what_the_provider_bills(dialect: str, provider_fake: ProviderFake) -> None:
    async with connected(provider_fake, dialect) as llm:
        job = await run_job(GOAL, llm, tools=[calculate])
    billed = provider_fake.billed
    counted = (job.usage.calls, job.usage.input_tokens, job.usage.output_tokens)
    assert counted == (billed.calls, billed.input_tokens, billed.output_tokens)


def thoughtful(view: View) -> Reply:
    """The same brain, thinking aloud before everything it says, and with part of its input from the cache."""
    return replace(as_reply(brain(view)), reasoning="First things first.", cached=2)


@pytest.mark.parametrize("dialect", ADAPTERS)
async def test_reasoning_goes_back_as_the_provider_wants_it(dialect: str) -> None:
    async with ProviderFake(thoughtful) as fake, connected(fake, dialect) as llm:
        job = await run_job(GOAL, llm, tools=[calculate])
    assert refused(fake) == {}
    assert job.status == "completed", job
    assert job.usage.cached_tokens == fake.billed.cached_tokens


@pytest.mark.parametrize(
    ("dialect", "model", "lessons"),
    [
        ("chat", "fake-strict-template", {"chat-alternation", "chat-system-first"}),
        ("chat", "fake-needs-echo", {"chat-reasoning-echo"}),
        ("chat", "fake-llamacpp", set()),
        (
            "chat",
            "fake-reasoning",
            {"chat-reasoning-max-tokens", "chat-reasoning-temperature", "chat-reasoning-tools"},
        ),
        ("responses", "fake-reasoning", {"responses-reasoning-temperature"}),
        ("anthropic", "fake-claude-new", {"anthropic-no-sampling"}),
    ],
)
async def test_a_peculiar_model_teaches_each_lesson_once(
    dialect: str, model: str, lessons: set[str], provider_fake: ProviderFake
) -> None:
    """What a model's class refuses is learned from its error; steps that run side by side may each hit it once."""
    async with connected(provider_fake, dialect, model, max_output_tokens=2048) as llm:
        job = await run_job(GOAL, llm, tools=[calculate])
        assert job.status == "completed", job
        assert set(refused(provider_fake)) <= lessons
        assert all(times <= 2 for times in refused(provider_fake).values())
        before = len(provider_fake.refusals)
        again = await run_job(GOAL, llm, tools=[calculate])
    assert again.status == "completed"
    assert len(provider_fake.refusals) == before


async def test_a_refused_mechanism_is_tried_once() -> None:
    """A server that refuses forced tools is asked once; after that the next level does the work."""

    def script(view: View) -> Any:
        if view.forced:
            return {"status": 400, "error": "tool_choice: a named tool is not supported by this model"}
        return brain(view)

    async with ProviderFake(script) as fake, connected(fake, "chat") as llm:
        job = await run_job(GOAL, llm, tools=[calculate])
    assert job.status == "completed", job
    assert sum(view.forced is not None for view in fake.views) == 1

"""Whole jobs under a budget over real HTTP: what the provider billed never passes it."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from executor import JobOptions, RunOptions, start_job
from planner import Plan, PlanStep
from registry import LLM, AnthropicLLM, Budget, Event, ModelRegistry, OpenAIChatLLM, OpenAIResponsesLLM, Price, tool
from registry.retry import RetryPolicy
from tests.fakes import ProviderFake, View, brain
from tests.fakes.server import Billed
from tests.fakes.view import Reply, as_reply
from tests.support.command import command

PRICE = Price(Decimal(3), Decimal(15), cached_input=Decimal(4))
"""A cached token costs more than another one here: the bound must know."""
WIDE = Plan(
    "Work out six times seven in many parts.",
    (
        *(PlanStep(f"s{n}", "Work out a part with a tool.", ()) for n in range(8)),
        PlanStep("sum", "Put the parts together.", tuple(f"s{n}" for n in range(8))),
    ),
)
ADAPTERS: dict[str, type[Any]] = {
    "chat": OpenAIChatLLM,
    "responses": OpenAIResponsesLLM,
    "anthropic": AnthropicLLM,
}


@tool(read_only=True)
def calculate(expression: str) -> str:
    """Calculates an arithmetic expression and gives the number."""
    left, _, right = expression.partition("*")
    return str(int(left) * int(right))


def model(fake: ProviderFake, dialect: str, **options: Any) -> LLM:
    url = fake.anthropic_url if dialect == "anthropic" else fake.openai_url
    retry = RetryPolicy(tries=3, wait_cap=0.01, first_wait=0.01)
    llm: LLM = ADAPTERS[dialect]("fake-model", base_url=url, api_key="k", retry=retry, **options)
    return llm


def charged(billed: Billed) -> Decimal:
    plain = billed.input_tokens - billed.cached_tokens
    return Decimal(plain * 3 + billed.cached_tokens * 4 + billed.output_tokens * 15) / 1_000_000


def unreliable(seed: int) -> Any:
    """The brain, wordy, with lost connections, broken streams, overload and missing usage in between."""
    rng = Random(seed)

    def script(view: View) -> Reply:
        reply = as_reply(brain(view))
        wordy = (
            reply.text + " and more" * rng.randrange(400)
            if reply.text == brain(view) and not view.schema
            else reply.text
        )
        fault = rng.random()
        more: dict[str, Any] = {}
        if fault < 0.08:
            more = {"status": 529 if view.dialect == "anthropic" else 503, "error": "overloaded"}
        elif fault < 0.16:
            more = {"cut_after": rng.randrange(1, 400)}
        elif fault < 0.22 and view.stream:
            more = {"stream_error": "overloaded"}
        elif fault < 0.3:
            more = {"usage": False}
        return Reply(wordy, reply.calls, cached=rng.randrange(200), delay=rng.random() / 100, **more)

    return script


@pytest.mark.parametrize("dialect", ADAPTERS)
@pytest.mark.parametrize(
    "budget", [Budget(usd=Decimal("0.40")), Budget(tokens=60_000), Budget(Decimal("0.15"), 45_000)]
)
async def test_parallel_steps_never_spend_more_than_the_budget(dialect: str, budget: Budget) -> None:
    statuses = set()
    for seed in range(2):
        async with ProviderFake(unreliable(seed)) as fake:
            llm = model(fake, dialect, price=PRICE, max_output_tokens=3_000)
            handle = start_job(
                WIDE, llm, tools=[calculate], budget=budget, options=JobOptions(RunOptions(max_concurrency=8))
            )
            job = await handle.result()
            await llm.aclose()
        statuses.add(job.status)
        assert fake.refusals == []
        assert fake.billed.calls > 3
        assert budget.usd is None or charged(fake.billed) <= budget.usd
        assert budget.tokens is None or fake.billed.input_tokens + fake.billed.output_tokens <= budget.tokens
        assert job.answer.strip()
        told = [event.payload for event in handle.log.events if event.channel == "budget"]
        assert told[-1]["reason"] == "end"
        for limit in ("usd", "tokens"):
            if limit in told[-1]:
                assert Decimal(told[-1][limit]["reserved"]) == 0
                assert Decimal(told[-1][limit]["left"]) >= 0
        assert all(view.max_tokens for view in fake.views)
    assert "budget_exceeded" in statuses


async def test_steps_run_side_by_side_where_the_budget_has_room() -> None:
    async def script(view: View) -> Reply:
        return Reply(as_reply(brain(view)).text, as_reply(brain(view)).calls, delay=0.05)

    async with ProviderFake(script) as fake:
        llm = model(fake, "chat", price=PRICE, max_output_tokens=1_000)
        options = JobOptions(RunOptions(max_concurrency=8))
        handle = start_job(WIDE, llm, tools=[calculate], budget="5usd", options=options)
        job = await handle.result()
        await llm.aclose()
    assert job.status == "completed"
    assert fake.most_open == 8


async def test_a_model_whose_limits_nobody_knows_gets_one_under_a_budget() -> None:
    async with ProviderFake(brain) as fake:
        llm = model(fake, "chat")
        free = start_job(WIDE, llm, tools=[calculate])
        await free.result()
        unlimited = {view.max_tokens for view in fake.views}
        fake.views.clear()
        held = start_job(WIDE, llm, tools=[calculate], budget={"tokens": 400_000})
        job = await held.result()
        await llm.aclose()
    assert unlimited == {None}
    assert job.status == "completed"
    assert all(view.max_tokens for view in fake.views)


async def test_the_answer_of_a_used_up_budget_is_written_by_the_smart_model() -> None:
    def script(view: View) -> Any:
        return "The last word." if view.model == "smart-model" and view.stream else brain(view)

    events: list[Event] = []
    async with ProviderFake(script, models=("work-model", "smart-model")) as fake:
        models = ModelRegistry()
        for name, role in (("work-model", "general"), ("smart-model", "smart")):
            llm = OpenAIChatLLM(name, base_url=fake.openai_url, api_key="k", price=PRICE, max_output_tokens=2_000)
            models.register(name, llm, roles=[role])
        chain = tuple(PlanStep(f"s{n}", "Do it.", (f"s{n - 1}",) if n else ()) for n in range(20))
        handle = start_job(Plan("goal", chain), models, tools=[calculate], budget="$0.09", on_event=events.append)
        job = await handle.result()
        await models.aclose()
    assert (job.status, job.answer) == ("budget_exceeded", "The last word.")
    assert charged(fake.billed) <= Decimal("0.09")
    shown = "".join(event.payload["content"] for event in events if event.payload.get("status") == "delta")
    assert shown == "The last word."
    assert events[-1].payload["status"] == "budget_exceeded"


def models_toml(fake: ProviderFake, price: str) -> str:
    return (
        f'[models.main]\nprovider = "openai_chat"\nmodel = "fake-model"\nbase_url = "{fake.openai_url}"\n'
        f'api_key_env = "KEY"\nmax_output_tokens = 2000\n{price}\n'
    )


async def test_the_command_ends_with_4_and_the_answer(tmp_path: Path, provider_fake: ProviderFake) -> None:
    file = tmp_path / "models.toml"
    file.write_text(models_toml(provider_fake, "price = { input = 3, output = 15 }"), "utf-8")
    words = ("run", "Work it out.", "--mode", "dag", "--json", "--budget", "0.045usd, 10m")
    result = await command(*words, home=tmp_path, env={"KEY": "k"})
    assert result.code == 4, result.err
    assert result.data["status"] == "budget_exceeded"
    assert result.data["answer"]
    assert Decimal(result.data["usage"]["cost_usd"]) <= Decimal("0.045")


async def test_the_command_refuses_money_for_a_model_without_a_price(
    tmp_path: Path, provider_fake: ProviderFake
) -> None:
    (tmp_path / "models.toml").write_text(models_toml(provider_fake, ""), "utf-8")
    result = await command("run", "goal", "--budget", "1", "--json", home=tmp_path, env={"KEY": "k"})
    assert result.code == 2
    assert result.data["error"]["code"] == "budget_unpriced"
    assert "[models.main] price = {" in result.data["error"]["message"]
    assert provider_fake.views == []


async def test_the_setting_holds_for_the_command(tmp_path: Path, provider_fake: ProviderFake) -> None:
    (tmp_path / "models.toml").write_text(models_toml(provider_fake, ""), "utf-8")
    env = {"KEY": "k", "DAGWRIGHT_BUDGET": "2k tokens"}
    result = await command("run", "goal", "--json", home=tmp_path, env=env)
    assert result.code == 4, result.err
    assert "2000tokens" in result.data["error"]


@pytest.mark.parametrize("dialect", ADAPTERS)
async def test_a_call_that_never_reached_a_server_leaves_the_budget_as_it_was(dialect: str) -> None:
    async with ProviderFake(brain) as gone:
        dead = model(gone, dialect, price=PRICE, max_output_tokens=2_000)
    async with ProviderFake(brain) as fake:
        models = ModelRegistry()
        models.register("dead", dead, roles=["general", "smart"], fallbacks=["spare"])
        models.register("spare", model(fake, dialect, price=PRICE, max_output_tokens=2_000))
        plan = Plan("goal", (PlanStep("a", "Do it.", ()),))
        handle = start_job(
            plan, models, tools=[calculate], budget="0.20usd"
        )  # two tries of the dead one's would use it up
        job = await handle.result()
        await models.aclose()
    assert job.status == "completed", job.error
    told = [event.payload for event in handle.log.events if event.channel == "budget"]
    assert Decimal(told[-1]["usd"]["spent"]) == charged(fake.billed) == job.cost

"""Routing at work: cascades over real HTTP, what the API takes, the command, forks, replays."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from executor import JobOptions, RunOptions, run_job
from executor.job_handle import start_job
from executor.log.stored import stored_events
from executor.replay.run import replay
from executor.store.database import Database
from planner import Plan, PlanStep
from registry import ModelRegistry, OpenAIChatLLM, Price, RoutingPolicy
from registry.cascade import Cascade
from registry.llm_types import ChatRequest
from registry.messages import ToolCall
from registry.retry import RetryPolicy
from registry.testing import ScriptedLLM
from registry.tools import ToolRegistry
from tests.fakes import ProviderFake, View, brain
from tests.fakes.view import Reply
from tests.support import routed_scenarios
from tests.support.command import command
from tests.support.cuts import run
from tests.support.service import Service, running
from tests.support.stored_jobs import Brain, events_of, new_job, ran, told, workshop

TWO = Plan("Work it out.", (PlanStep("a", "Work out the base figure."), PlanStep("b", "Double it.", ("a",))))


# Over real HTTP


def over_http(fake: ProviderFake) -> ModelRegistry:
    models = ModelRegistry()
    for name, roles, price in (("weak", ["fast"], 1), ("strong", ["general"], 20)):
        llm = OpenAIChatLLM(
            name,
            base_url=fake.openai_url,
            api_key="k",
            price=Price(Decimal(price), Decimal(price)),
            retry=RetryPolicy(tries=1),
        )
        models.register(name, llm, roles)
    return models


def weak_gives(what: str) -> Callable[[View], Any]:
    """A script in which the weak model does something badly in the first step."""

    def script(view: View) -> Any:
        first = "base figure" in view.last_text and "Your step: Double" not in view.last_text
        structured = str(view.forced or (view.schema or {}).get("title") or "")
        if what == "error" and view.model == "weak" and first and not structured:
            return Reply(status=400, error="the weak model can not do this")
        if what == "low" and structured == "report_confidence" and first:
            return [("report_confidence", {"why": "a guess", "confidence": 0.1})]
        if what == "check" and structured == "check_result" and first and "result of weak" in view.last_text:
            return [("check_result", {"passed": False, "feedback": "show the figure"})]
        if structured:
            return brain(view)
        return f"the result of {view.model}"

    return script


@pytest.mark.parametrize("what", ["error", "low", "check"])
async def test_a_cascade_by_a_real_provider(what: str) -> None:
    async with ProviderFake(weak_gives(what), models=("weak", "strong")) as fake:
        models = over_http(fake)
        options = RunOptions(routing=Cascade(("weak", "strong")), step_verification=what == "check")
        job = await run_job(TWO, models, options=JobOptions(options))
        await models.aclose()
    first, second = job.steps["a"], job.steps["b"]
    assert (job.status, first.model, first.escalated_from, second.model, second.escalated_from) == (
        "completed", "strong", "weak", "weak", None,
    )  # fmt: skip
    assert first.output == "the result of strong"
    assert job.usage.cost is not None
    assert not job.usage.partial
    assert job.by_model["weak"].calls >= 2  # the try is paid for, too
    assert job.usage.cost == sum(usage.cost or 0 for usage in job.by_model.values())


async def test_a_whole_goal_by_a_real_provider() -> None:
    async with ProviderFake(weak_gives("low"), models=("weak", "strong")) as fake:
        models = over_http(fake)
        options = JobOptions(RunOptions(routing=Cascade(("weak", "strong"))))
        job = await run_job("the base figure", models, mode="react", options=options, answer_mode="direct")
        await models.aclose()
    assert (job.status, job.answer) == ("completed", "the result of strong")


# Replay


@pytest.mark.parametrize("make", routed_scenarios.ROUTED, ids=lambda make: make.__name__)
async def test_a_replay_takes_the_choices_from_the_log(make: Any) -> None:
    scenario = make()
    whole = await run(scenario)
    tools = ToolRegistry(scenario.tools([]))
    assert (await replay(whole.events, tools)).departures == ()
    half = await run(make(), whole.events[: len(whole.events) // 2])
    assert (await replay(half.events, tools)).departures == ()


async def test_a_replay_needs_no_code_of_the_policy() -> None:
    class Mine(RoutingPolicy):
        name = "mine"

        def choose(self, request: Any, models: Any) -> Any:
            return Cascade(("weak", "strong")).choose(request, models)

        def escalate(self, request: Any, models: Any, tried: Any) -> Any:
            return Cascade(("weak", "strong")).escalate(request, models, tried)

        def asks(self, request: Any, models: Any, model: str) -> bool:
            return model == "weak"

        def to_json(self) -> dict[str, Any]:
            return {"use": "mine"}

    scenario = routed_scenarios.unsure()
    models = routed_scenarios.two_models(lambda request: scripted(scenario.brain, request))
    options = JobOptions(RunOptions(agent={"completion_check": False}, routing=Mine()))
    handle = start_job(routed_scenarios.PLAN, models, tools=scenario.tools([]), options=options)
    job = await handle.result()
    assert job.steps["x"].escalated_from == "weak"
    assert handle.log.events[0].payload["routing"] == {"use": "mine"}
    del Mine
    assert (await replay(handle.log.events, scenario.tools([]))).departures == ()


def scripted(brain: Any, request: ChatRequest) -> Any:
    from tests.support.cuts import kind_of

    reply = brain(kind := kind_of(request), request, lambda *words, **more: None)
    return [ToolCall("f", kind, reply)] if isinstance(reply, dict) else reply


# The API


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    policies = {"mine": {"use": "os.path:join"}, "frugal": {"use": "cascade", "models": ["small", "large"]}}
    async with running(database_url, routing_policies=policies) as found:
        yield found


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"routing": "cascde"}, "options.routing", "did you mean 'cascade'"),
        ({"routing": {"use": "cascade", "threshold": 3}}, "options.routing", "from 0 to 1"),
        ({"routing": "fixed:huge"}, "options.routing", "neither a model nor a role"),
        ({"routing": "learned:/etc/passwd"}, "options.routing", "reads a file"),
        ({"routing": "os:system"}, "options.routing", "code to be imported"),
        ({"routing": {"use": "subprocess:run", "args": "ls"}}, "options.routing", "mine, frugal"),
        ({"routing": {"use": "frugal", "models": ["large"]}}, "options.routing", "no keys beside use"),
        ({"routing": "mine"}, "options.routing", "tell the operator"),
        ({"roles": {"smart": "huge"}}, "options.roles", "no model 'huge'"),
    ],
)
async def test_what_can_not_be_had_is_refused(
    service: Service, options: dict[str, Any], field: str, words: str
) -> None:
    response = await service.http.post("/v1/jobs", json={"goal": "g", "options": options})
    problem = response.json()
    assert response.status_code == 422, problem
    assert problem["code"] in ("routing_invalid", "unknown_model")
    assert words in problem["detail"]
    assert problem["problems"][0][1] == [field]


@pytest.mark.parametrize("routing", [7, {"a": {"b": 1}} | {"use": 3}, ["cascade"]])
async def test_what_is_no_policy_at_all(service: Service, routing: Any) -> None:
    response = await service.http.post("/v1/jobs", json={"goal": "g", "options": {"routing": routing}})
    assert response.status_code == 422


async def test_what_may_be_asked_for(service: Service) -> None:
    for options in (
        {"routing": "cascade"}, {"routing": {"use": "fixed", "model": "large"}}, {"routing": "frugal"},
        {"routing": {"use": "budget"}, "roles": {"smart": "small"}},
    ):  # fmt: skip
        response = await service.http.post("/v1/jobs", json={"goal": "g", "options": options})
        assert response.status_code == 202, response.text
        row = await service.database.row("jobs.get", response.json()["id"], "")
        assert row is not None
        assert row["request"]["options"] == options
    narrow = {"goal": "g", "models": ["small"], "options": {"routing": "frugal"}}
    refused = await service.http.post("/v1/jobs", json=narrow)
    assert (refused.status_code, refused.json()["code"]) == (422, "routing_invalid")


async def test_a_line_of_a_batch_with_a_wrong_policy_is_that_lines_fault(service: Service) -> None:
    lines = [
        {"custom_id": "good", "goal": "g", "options": {"routing": "cascade"}},
        {"custom_id": "bad", "goal": "g", "options": {"routing": "os:system"}},
    ]
    body = "\n".join(map(json.dumps, lines)).encode()
    headers = {"content-type": "application/jsonl"}
    batch = (await service.http.post("/v1/batches?mode=run", content=body, headers=headers)).json()
    assert batch["counts"] | {"total": 2} == {**batch["counts"], "total": 2, "errored": 1}


# Stored jobs and forks


def routed_models(step: Callable[[str], str]) -> ModelRegistry:
    models = ModelRegistry()
    for name, roles in (("small", ["fast"]), ("large", ["general"])):
        brain = Brain(lambda request, name=name: step(name), report_confidence={"why": "", "confidence": 0.2})
        models.register(name, ScriptedLLM(brain, model_id=name), roles)
    return models


async def test_a_forks_model_holds_whatever_the_policy_says(database: Database) -> None:
    plan = {"steps": [{"id": "a", "task": "find x"}, {"id": "b", "task": "double x", "dependencies": ["a"]}]}
    work = workshop(routed_models(lambda name: f"by {name}"))
    parent = await new_job(database, plan=plan, options={"routing": {"use": "cascade", "models": ["small", "large"]}})
    row = await ran(database, work, parent)
    assert [(step["model"], step["escalated_from"]) for step in row["summary"]["steps"]] == [("large", "small")] * 2
    from executor.fork import Fork, Told, forked
    from executor.store.jobs import JobStore

    new = forked(row, Told(), Fork("a", model="small"), ("small", "large"))
    made, _ = await JobStore(database).create("", new)
    ended = await ran(database, work, made["id"])
    steps = {step["id"]: (step["model"], step["escalated_from"]) for step in ended["summary"]["steps"]}
    assert steps == {"a": ("small", None), "b": ("large", "small")}
    choices = [event["payload"] for event in await events_of(database, made["id"]) if event["channel"] == "route"]
    assert (choices[0]["policy"], choices[0]["model"]) == ("pinned", "small")
    events = [event async for event in stored_events(database, made["id"])]
    assert (await replay(events)).departures == ()
    again = forked(ended, Told(), Fork("a"), None)
    assert again.request["pins"] == {"a": "small"}


async def test_a_job_whose_policy_is_not_there_fails_before_it_runs(database: Database) -> None:
    work = workshop(routed_models(lambda name: "x"))
    for routing, words in (("learned:nowhere.json", "no such file"), ("fixed:huge", "neither a model nor a role")):
        row = await ran(database, work, await new_job(database, options={"routing": routing}))
        assert (row["status"], row["seq"]) == ("failed", 1)
        assert words in row["summary"]["error"]
        assert told(await events_of(database, row["id"]), "turn") == []


# The command


MODELS = """
[models.weak]
provider = "openai_chat"
model = "weak"
base_url = "{url}"
roles = ["fast", "general"]
price = {{ input = 1, output = 1 }}
[models.strong]
provider = "openai_chat"
model = "strong"
base_url = "{url}"
price = {{ input = 10, output = 10 }}
"""


async def test_the_command_takes_a_policy_and_roles(tmp_path: Path) -> None:
    async with ProviderFake(weak_gives("low"), models=("weak", "strong")) as fake:
        (tmp_path / "models.toml").write_text(MODELS.format(url=fake.openai_url), encoding="utf-8")
        (tmp_path / "dagwright.toml").write_text(
            '[routing_policies.ours]\nuse = "cascade"\nmodels = ["weak", "strong"]\n', encoding="utf-8"
        )
        words = ("run", "--mode", "react", "--json", "the base figure")
        done = await command(*words, "--routing", "ours", home=tmp_path)
        assert done.code == 0, done.err
        assert set(done.data["usage"]["by_model"]) == {"weak", "strong"}
        done = await command(*words, "--routing", "fixed:reasoning", "--role", "reasoning=strong", home=tmp_path)
        assert done.code == 0, done.err
        assert set(done.data["usage"]["by_model"]) == {"strong"}
        for option, told_so in (
            (("--routing", "fixed:huge"), "neither a model nor a role"),
            (("--routing", "cascade: no"), "no policy"),
            (("--routing", "learned:nowhere.json"), f"{tmp_path}/nowhere.json: no such file"),
            (("--role", "smart=huge"), "no model 'huge'"),
            (("--role", "smart"), "models by their roles"),
        ):
            wrong = await command(*words, *option, home=tmp_path)
            assert (wrong.code, told_so in wrong.err) == (2, True), wrong.err


async def test_config_check_shows_the_policy_and_tries_it(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(MODELS.format(url="http://127.0.0.1:9/v1"), encoding="utf-8")
    settings = tmp_path / "dagwright.toml"
    settings.write_text('routing = { use = "cascade", models = ["weak", "strong"], threshold = 0.5 }\n', "utf-8")
    good = await command("config", "check", "--json", home=tmp_path)
    assert good.code == 0, good.err
    shown = good.data["settings"]["routing"]
    assert shown["value"] == 'cascade {"models": ["weak", "strong"], "threshold": 0.5}'
    assert shown["origin"].endswith("dagwright.toml")
    for text, words in (
        ('routing = "fixed:huge"\n', "neither a model nor a role"),
        ('[routing_policies.cascade]\nuse = "hint"\n', "none of hint, fixed"),
        ('[routing_policies.other]\nuse = "no_such:Thing"\n', "can't be imported"),
        ('roles = { smart = "huge" }\n', "no model 'huge'"),
        ("[roles]\nsmart = 3\n", "models by their roles"),
    ):
        settings.write_text(text, encoding="utf-8")
        wrong = await command("config", "check", home=tmp_path)
        assert (wrong.code, words in wrong.err) == (2, True), wrong.err

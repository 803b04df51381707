"""Steps and single agents in a cascade: who does what, who is told what, and what it may cost at most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor import DAGExecutor, JobOptions, RunOptions, run_job
from executor.routed import is_choice
from planner import Plan, PlanStep
from registry import Choice, ModelRegistry, RouteRequest, RoutingPolicy, Trial
from registry.cascade import Cascade
from registry.context import caller
from registry.errors import (
    AuthError,
    BadRequestError,
    LLMError,
    OverloadedError,
    QuotaError,
    RefusalError,
    UsageError,
)
from registry.llm_types import ChatRequest
from registry.messages import Event, ToolCall
from registry.retry import RetryPolicy
from registry.testing import ScriptedLLM
from registry.tools import tool

ONE = Plan("add up", (PlanStep("a", "add the parts"),))
SURE = {"why": "nothing", "confidence": 0.95}
UNSURE = {"why": "a guess", "confidence": 0.3}
AGENT = {"completion_check": False}


class World:
    """A weak and a strong model. `works` gives what an agent's turn comes to, `reports` what the weak one says of its
    work, `checks` what a check finds; each by the model's name and the number of such calls before. `calls` counts
    them, `agents` has the model of each attempt."""

    def __init__(
        self,
        works: Callable[[str, int], Any] = lambda name, count: f"{name} result",
        reports: Callable[[int], Any] = lambda count: SURE,
        checks: Callable[[int], str] = lambda count: "",
        fallbacks: tuple[str, ...] = (),
    ) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.works, self.reports, self.checks = works, reports, checks
        self.requests: list[tuple[str, ChatRequest]] = []
        self.agents: dict[int, str] = {}
        self.models = ModelRegistry()
        for name, roles in (("weak", ["fast"]), ("strong", ["reasoning"]), ("other", ["general"])):
            llm = ScriptedLLM(self._answers(name), model_id=name)
            llm.retry = RetryPolicy(tries=1)
            self.models.register(name, llm, roles, fallbacks if name == "weak" else ())

    def _answers(self, name: str) -> Callable[[ChatRequest], Any]:
        def answer(request: ChatRequest) -> Any:
            kind = {"self_report": "report", "check": "check"}.get(caller().role, "work")
            count = self.calls[name, kind]
            self.calls[name, kind] += 1
            self.requests.append((name, request))
            if kind == "work":
                self.agents.setdefault(caller().attempt, name)
            if kind == "report":
                told = self.reports(count)
                return [ToolCall("r", "report_confidence", told)] if isinstance(told, dict) else told
            if kind == "check":
                feedback = self.checks(count)
                return [ToolCall("c", "check_result", {"passed": not feedback, "feedback": feedback})]
            return self.works(name, count)

        return answer

    async def step(self, policy: RoutingPolicy | None = None, plan: Plan = ONE, tools: Any = (), **run: Any) -> Any:
        self.events: list[Event] = []
        options = RunOptions(agent=AGENT, routing=policy or Cascade(), **run)
        executor = DAGExecutor(self.models, tools, options=options, on_event=self.events.append)
        return (await executor.execute(plan)).steps["a"]

    @property
    def routes(self) -> list[tuple[str, str | None]]:
        told = [event.payload for event in self.events if event.channel == "route"]
        return [(one["model"], one.get("from")) for one in told]


class TestSteps:
    async def test_a_sure_result_of_the_weak_model_stands(self) -> None:
        world = World()
        step = await world.step()
        assert (step.output, step.model, step.attempts, step.escalated_from) == ("weak result", "weak", 1, None)
        assert world.calls == {("weak", "work"): 1, ("weak", "report"): 1}
        (route,) = [event for event in world.events if event.channel == "route"]
        assert route.step_id == "a"
        assert route.payload == {
            "policy": "cascade", "model": "weak", "reason": "cascade: the cheapest first", "attempt": 1, "asks": True,
        }  # fmt: skip
        running = next(event for event in world.events if event.channel == "step_progress")
        assert world.events.index(route) < world.events.index(running)
        assert running.payload["model"] == "weak"

    async def test_an_unsure_one_is_done_anew_by_the_strong_model(self) -> None:
        world = World(reports=lambda count: UNSURE)
        step = await world.step()
        assert (step.output, step.model, step.attempts) == ("strong result", "strong", 2)
        assert step.to_json()["escalated_from"] == "weak"
        assert world.events[-1].payload["escalated_from"] == "weak"
        assert world.routes == [("weak", None), ("strong", "weak")]
        assert world.calls == {("weak", "work"): 1, ("weak", "report"): 1, ("strong", "work"): 1}
        assert step.usage.calls == 3
        told = next(event.payload for event in world.events if event.payload.get("kind") == "self_report")
        assert (told["confidence"], told["content"]) == (0.3, "a guess")
        assert "weak result" not in world.requests[-1][1].messages[-1].content

    @pytest.mark.parametrize(
        ("report", "model"),
        [
            ("Hm.", "strong"),
            (RefusalError("no"), "strong"),
            (BadRequestError("bad"), "weak"),
            (OverloadedError("full"), "weak"),
            ("I would say: confidence: 85 %", "weak"),
        ],
    )
    async def test_what_it_says_may_be_unreadable_or_not_to_be_had(self, report: Any, model: str) -> None:
        world = World(reports=lambda count: report)
        assert (await world.step()).model == model

    async def test_a_result_that_fails_its_check_is_told_to_the_strong_model(self) -> None:
        world = World(checks=lambda count: "" if count else "the sum is 42")
        step = await world.step(step_verification=True)
        assert (step.output, step.model, step.attempts) == ("strong result", "strong", 2)
        told = world.requests[-2][1].messages[-1].content
        assert "the sum is 42" in told
        assert "weak result" in told
        assert world.calls["weak", "report"] == 0

    async def test_a_check_only_of_the_weak_model(self) -> None:
        world = World(checks=lambda count: "wrong")
        step = await world.step(Cascade(check_results=True))
        assert (step.status, step.model) == ("completed", "strong")
        assert world.calls["other", "check"] == 1

    async def test_the_strong_model_has_the_work_over_and_the_retries(self) -> None:
        def works(name: str, count: int) -> Any:
            return RefusalError("no") if (name, count) == ("strong", 0) else f"{name} {count}"

        world = World(works, checks=lambda count: "wrong" if count < 2 else "")
        step = await world.step(step_verification=True, step_retries=1)
        assert (step.status, step.output, step.attempts) == ("completed", "strong 2", 4)
        assert [world.calls[name, "work"] for name in ("weak", "strong")] == [1, 3]

    @pytest.mark.parametrize("error", [RefusalError("no"), BadRequestError("bad"), ""])
    async def test_after_an_error_the_strong_model_is_told_of_it(self, error: Any) -> None:
        world = World(lambda name, count: error if name == "weak" else "done")
        step = await world.step()
        assert (step.status, step.model, step.attempts) == ("completed", "strong", 2)
        code = "empty_response" if error == "" else error.code
        assert code in world.requests[-1][1].messages[-1].content

    @pytest.mark.parametrize("error", [AuthError("no key"), QuotaError("no money")])
    async def test_what_fails_a_job_at_once_does_so(self, error: LLMError) -> None:
        for world in (World(lambda name, count: error), World(reports=lambda count: error)):
            step = await world.step(step_retries=2)
            assert (step.status, step.error_code, step.model) == ("failed", error.code, "weak")
            assert world.routes == [("weak", None)]

    async def test_the_strong_one_knows_which_calls_were_made(self) -> None:
        sent: list[str] = []

        @tool
        def send(text: str) -> str:
            """Sends a text."""
            sent.append(text)
            return "sent"

        def works(name: str, count: int) -> Any:
            return [ToolCall("1", "send", {"text": "hello"})] if (name, count) == ("weak", 0) else f"{name} done"

        world = World(works, reports=lambda count: UNSURE)
        step = await world.step(tools=[send])
        told = world.requests[-1][1].messages[-1].content
        assert (step.output, sent, step.tool_calls) == ("strong done", ["hello"], 1)
        assert 'send({"text":"hello"}): may have had an effect, succeeded' in told

    async def test_an_outage_is_no_escalation(self) -> None:
        """Who stands in is not asked how sure it is; what does not pass is its own to work over."""
        world = World(
            lambda name, count: OverloadedError("down") if name == "weak" else f"{name} {count}",
            checks=lambda count: "" if count else "wrong",
            fallbacks=("strong",),
        )
        step = await world.step(step_verification=True)
        assert (step.output, step.model, step.escalated_from) == ("strong 1", "strong", None)
        assert world.routes == [("weak", None)]
        assert [one.to for one in step.fallbacks] == ["strong"]
        assert ("weak", "report") not in world.calls

    async def test_the_strong_models_outage_is_its_fallbacks_business(self) -> None:
        world = World(lambda name, count: OverloadedError("down") if name == "strong" else f"{name} {count}",
                      reports=lambda count: UNSURE)  # fmt: skip
        world.models = ModelRegistry()
        for name, fallbacks in (("weak", ()), ("strong", ("other",)), ("other", ())):
            llm = ScriptedLLM(world._answers(name), model_id=name)
            llm.retry = RetryPolicy(tries=1)
            world.models.register(name, llm, [], fallbacks)
        step = await world.step(Cascade(("weak", "strong")))
        assert (step.output, step.model, step.attempts, step.escalated_from) == ("other 0", "other", 3, "weak")

    async def test_three_models_one_after_the_other(self) -> None:
        world = World(lambda name, count: RefusalError("no") if name != "strong" else "done")
        step = await world.step(Cascade(("weak", "other", "strong")))
        assert (step.model, step.attempts, step.escalated_from) == ("strong", 3, "weak")
        assert world.routes == [("weak", None), ("other", "weak"), ("strong", "other")]


class Restless(RoutingPolicy):
    """Never content: always wants the other model."""

    name = "restless"

    def choose(self, request: RouteRequest, models: ModelRegistry) -> Choice:
        return Choice("weak", "to begin with")

    def escalate(self, request: RouteRequest, models: ModelRegistry, tried: Trial) -> Choice:
        return Choice("strong" if tried.model == "weak" else "weak", "the other one")

    def to_json(self) -> dict[str, Any]:
        return {"use": "restless"}


class Faulty(Restless):
    """Breaks when it is asked again."""

    def escalate(self, request: RouteRequest, models: ModelRegistry, tried: Trial) -> Choice:
        raise KeyError("oh")


class TestPoliciesOfOnesOwn:
    async def test_no_model_comes_twice(self) -> None:
        world = World(lambda name, count: RefusalError("no"))
        step = await world.step(Restless())
        assert (step.status, step.attempts, step.model) == ("failed", 2, "strong")

    async def test_a_fault_in_it_is_told_as_such(self) -> None:
        world = World(lambda name, count: RefusalError("no"))
        with pytest.raises(UsageError, match="the routing policy 'restless' failed: KeyError: 'oh'"):
            await world.step(Faulty())


WORK = st.sampled_from(["result", "", RefusalError("no"), OverloadedError("down")])
REPORT = st.sampled_from([SURE, UNSURE, "Hm.", BadRequestError("bad")])


@settings(deadline=None)
@given(
    st.lists(WORK, min_size=8, max_size=8),
    st.lists(REPORT, min_size=2, max_size=2),
    st.lists(st.sampled_from(["", "wrong"]), min_size=10, max_size=10),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([(), ("strong",)]),
)
async def test_never_more_than_the_strong_model_alone_and_the_cheap_try(
    works: list[Any], reports: list[Any], checks: list[str], retries: int, check: bool, fallbacks: tuple[str, ...]
) -> None:
    """Alone the strong model has an attempt, its retries, and one work-over in all of them together."""
    world = World(
        lambda name, count: works[count] if name == "weak" else works[-1 - count],
        lambda count: reports[min(count, 1)],
        lambda count: checks[count],
        fallbacks,
    )
    step = await world.step(step_verification=check, step_retries=retries)
    most, agents = 1 + retries + check, list(world.agents.values())
    assert list(world.agents) == list(range(1, step.attempts + 1))
    assert agents.count("strong") <= most
    assert agents.count("weak") <= (1 + retries if fallbacks else 1)
    assert world.calls["strong", "report"] == 0
    assert world.calls["weak", "report"] <= 5  # a structured call's tries
    assert world.calls["other", "check"] <= most + 1
    if step.escalated_from is not None:  # from there on it is the strong one's
        begins = [event for event in world.events if event.channel == "route"][-1].payload["attempt"]
        assert agents[begins - 2 :] == ["weak", *["strong"] * (len(agents) - begins + 1)]
    assert step.status == "completed" or step.model == "strong"


class TestSingleAgent:
    async def run(self, world: World, policy: RoutingPolicy | None = None, **more: Any) -> tuple[Any, list[Event]]:
        from executor.job_handle import start_job

        options = JobOptions(run=RunOptions(agent=AGENT, routing=policy or Cascade()))
        handle = start_job("what is x?", world.models, mode="react", options=options, **more)
        job = await handle.result()
        return job, list(handle.log.events)

    async def test_a_whole_goal_is_one_request(self) -> None:
        world = World(reports=lambda count: UNSURE)
        job, events = await self.run(world)
        assert job.status == "completed"
        told = [event for event in events if event.channel == "route"]
        assert [(one.step_id, one.payload["model"], one.payload.get("from")) for one in told] == [
            (None, "weak", None),
            (None, "strong", "weak"),
        ]
        assert all(is_choice(one.payload) for one in told)
        assert world.calls["strong", "work"] == 2  # the work and the answer
        started = events[0].payload
        assert started["routing"] == {
            "use": "cascade", "models": ["fast", "reasoning"], "threshold": 0.7, "check": False,
        }  # fmt: skip

    async def test_a_failure_goes_on_with_the_strong_one(self) -> None:
        world = World(lambda name, count: RefusalError("no") if name == "weak" else "x is 41")
        job, _ = await self.run(world, answer_mode="direct")
        assert (job.status, job.answer) == ("completed", "x is 41")

    async def test_a_direct_answer_that_was_void_is_taken_back(self) -> None:
        world = World(reports=lambda count: UNSURE)
        job, events = await self.run(world, answer_mode="direct")
        statuses = [event.payload["status"] for event in events if event.channel == "answer"]
        assert job.answer == "strong result"
        assert statuses.count("reset") == 1
        reset = statuses.index("reset")
        assert statuses[:reset].count("done") == statuses[reset:].count("done") == 1

    async def test_what_a_check_found_is_told(self) -> None:
        world = World(checks=lambda count: "" if count else "not a word of why")
        job, _ = await self.run(world, Cascade(check_results=True))
        assert job.status == "completed"
        told = next(request for name, request in world.requests if name == "strong").messages[-1].content
        assert "not a word of why" in told

    async def test_a_domain_is_the_policys_business(self) -> None:
        world = World()
        plan_events = (await self.run(world, Cascade(threshold=0.0)))[1]
        assert [event.payload["model"] for event in plan_events if event.channel == "route"] == ["weak"]


class TestJobs:
    async def test_what_is_wrong_with_it_is_told_before_anything_runs(self) -> None:
        world = World()
        options = JobOptions(run=RunOptions(routing=Cascade(("weak", "huge"))))
        with pytest.raises(UsageError, match="'huge'"):
            await run_job(ONE, world.models, options=options)
        with pytest.raises(UsageError, match="no model 'huge'"):
            await run_job(ONE, world.models, options=JobOptions(roles={"smart": "huge"}))
        assert not world.requests

    async def test_roles_of_a_job(self) -> None:
        world = World()
        seen: list[str] = []

        def plans(request: ChatRequest) -> Any:
            seen.append(caller().role)
            return "x is 41"

        world.models.register("planner", ScriptedLLM(plans, model_id="planner"))
        job = await run_job("what is x?", world.models, mode="react", options=JobOptions(roles={"general": "planner"}))
        assert (job.status, set(job.by_model)) == ("completed", {"planner"})

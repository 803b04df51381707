"""Outages: who takes over, what is told to them, and what stays on record."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.synthesis import stream_synthesis
from executor import DAGExecutor, JobOptions, RunOptions, StepResult, run_job
from executor.step_trail import CallDone, StepTrail, told_calls
from planner import Plan, PlanStep
from registry import ModelRegistry, Price
from registry.context import caller
from registry.errors import (
    AuthError,
    BadRequestError,
    BudgetExceededError,
    ContextLengthError,
    LLMConnectionError,
    LLMError,
    LLMTimeoutError,
    OverloadedError,
    ProviderError,
    QuotaError,
    RateLimitError,
    RefusalError,
    UsageError,
)
from registry.fallback import OUTAGES, Fallback, with_fallback
from registry.llm import LLM
from registry.llm_types import ChatRequest
from registry.messages import Event, Message, ToolCall
from registry.retry import RetryPolicy
from registry.testing import ScriptedLLM
from registry.tools import tool

OUT = [LLMConnectionError, LLMTimeoutError, OverloadedError, RateLimitError, ProviderError]
NOT_OUT = [AuthError, QuotaError, BadRequestError, RefusalError, ContextLengthError, BudgetExceededError]
ONE = Plan("goal", (PlanStep("a", "send the letter"),))


def scripted(replies: Any, name: str, **options: Any) -> ScriptedLLM:
    llm = ScriptedLLM(replies, model_id=name, **options)
    llm.retry = RetryPolicy(tries=1)
    return llm


def chain(*llms: ScriptedLLM) -> ModelRegistry:
    """The first is general and falls back to the others in order."""
    models = ModelRegistry()
    names = [llm.model_id for llm in llms]
    models.register(names[0], llms[0], roles=["general"], fallbacks=names[1:])
    for llm in llms[1:]:
        models.register(llm.model_id, llm)
    return models


def out(request: ChatRequest) -> Exception:
    return LLMConnectionError("no route")


class TestWrapper:
    @pytest.mark.parametrize("kind", OUT)
    async def test_an_outage_goes_to_the_next_model(self, kind: type[LLMError]) -> None:
        models, told = chain(scripted([kind()], "a"), scripted(["hi"], "b")), []
        result = await with_fallback(models, models.get("a"), ask, told.append)
        assert result == "hi"
        assert told == [Fallback("a", "b", kind.code, "step")]
        assert kind.code in OUTAGES

    @pytest.mark.parametrize("kind", NOT_OUT)
    async def test_other_errors_do_not(self, kind: type[LLMError]) -> None:
        backup = scripted(["hi"], "b")
        models = chain(scripted([kind()], "a"), backup)
        with pytest.raises(kind):
            await with_fallback(models, models.get("a"), ask)
        assert not backup.requests

    async def test_the_last_error_is_raised_when_all_are_out(self) -> None:
        models, told = chain(scripted([OverloadedError()], "a"), scripted([RateLimitError()], "b")), []
        with pytest.raises(RateLimitError):
            await with_fallback(models, models.get("a"), ask, told.append)
        assert len(told) == 1

    async def test_a_bare_model_or_one_without_a_chain_is_alone(self) -> None:
        lonely = scripted([OverloadedError()] * 2, "a")
        for models in (lonely, chain(lonely)):
            with pytest.raises(OverloadedError):
                await with_fallback(models, lonely, ask)

    async def test_a_fallback_that_is_not_there_is_said_before_the_first_call(self) -> None:
        llm, models = scripted(["hi"], "a"), ModelRegistry()
        models.register("a", llm, fallbacks=["gone"])
        with pytest.raises(UsageError, match="gone"):
            await with_fallback(models, llm, ask)
        with pytest.raises(UsageError, match="gone"):
            await run_job("goal", models)
        assert not llm.requests

    @given(st.lists(st.sampled_from([*OUT, None]), min_size=1, max_size=6))
    async def test_the_first_that_is_not_out_answers(self, kinds: list[type[LLMError] | None]) -> None:
        llms = [scripted([kind() if kind else f"m{n}"], f"m{n}") for n, kind in enumerate(kinds)]
        models, told = chain(*llms), []
        first = kinds.index(None) if None in kinds else None
        try:
            answer: str | None = await with_fallback(models, models.get("m0"), ask, told.append)
        except LLMError:
            answer = None
        assert answer == (None if first is None else f"m{first}")
        tried = len(kinds) if first is None else first + 1
        assert [len(llm.requests) for llm in llms] == [1] * tried + [0] * (len(llms) - tried)
        assert [(one.model, one.to) for one in told] == [(f"m{n}", f"m{n + 1}") for n in range(tried - 1)]


async def ask(llm: LLM) -> str:
    return (await llm.chat([Message.user("?")])).message.content


class TestSteps:
    async def test_a_fresh_agent_goes_on_and_effects_are_not_repeated(self) -> None:
        sent: list[str] = []

        @tool
        def send(text: str) -> str:
            """Sends a letter."""
            sent.append(text)
            return f"sent as no. {len(sent)}"

        @tool(read_only=True)
        def address(name: str) -> str:
            """Looks up an address."""
            return f"{name} Street 1"

        first = scripted(
            [[("address", {"name": "Baker"})], [("send", {"text": "hello"})], OverloadedError("busy")], "first"
        )
        second = scripted([[("address", {"name": "Again"})], "the letter is sent"], "second")
        events: list[Event] = []
        result = await DAGExecutor(chain(first, second), [send, address], on_event=events.append).execute(ONE)
        step = result.steps["a"]
        assert (step.status, step.output, step.model, step.attempts) == ("completed", "the letter is sent", "second", 2)
        assert sent == ["hello"]
        change = Fallback("first", "second", "overloaded", "step")
        assert step.fallbacks == (change,)
        assert [(event.step_id, dict(event.payload)) for event in events if event.channel == "fallback"] == [
            ("a", {"from": "first", "to": "second", "error": "overloaded", "where": "step"})
        ]
        query = second.requests[0].messages[-1].content
        assert '1. address({"name":"Baker"}): only read, succeeded\nBaker Street 1' in query
        assert '2. send({"text":"hello"}): may have had an effect, succeeded\nsent as no. 1' in query
        assert len(second.requests[0].messages) == 2  # nothing else of the first model's conversation
        assert (step.usage.calls, step.tool_calls, step.iterations) == (4, 3, 4)  # a refused call is none
        keys = [event.payload["key"] for event in events if event.channel == "call" and "tool_args" in event.payload]
        assert len(keys) == len(set(keys)) == 3  # each agent's calls have keys of their own
        assert StepResult.from_json(step.to_json()).fallbacks == (change,)

    async def test_when_all_are_out_the_step_says_who_was_tried(self) -> None:
        models = chain(scripted(out, "a"), scripted([OverloadedError()], "b"), scripted(out, "c"))
        step = (await DAGExecutor(models).execute(ONE)).steps["a"]
        assert (step.status, step.error_code, step.model, step.attempts) == ("failed", "connection", "c", 3)
        assert "tried in this order: a, b, c" in (step.error or "")
        assert [(one.model, one.to, one.error) for one in step.fallbacks] == [
            ("a", "b", "connection"),
            ("b", "c", "overloaded"),
        ]

    @pytest.mark.parametrize("error", [AuthError(), QuotaError(), RefusalError("no"), BadRequestError("no")])
    async def test_what_is_no_outage_fails_the_step(self, error: LLMError) -> None:
        backup = scripted(["hi"], "b")
        step = (await DAGExecutor(chain(scripted(lambda request: error, "a"), backup)).execute(ONE)).steps["a"]
        assert (step.status, step.error_code, step.model) == ("failed", error.code, "a")
        assert not backup.requests

    async def test_a_failed_step_tried_again_knows_what_was_done(self) -> None:
        sent: list[str] = []

        @tool
        def send(text: str) -> str:
            """Sends."""
            sent.append(text)
            raise ValueError("the line broke")

        llm = scripted([[("send", {"text": "hello"})], RefusalError("I stop"), "done"], "a")
        result = await DAGExecutor(llm, [send], options=RunOptions(step_retries=1)).execute(ONE)
        assert result.steps["a"].output == "done"
        query = llm.requests[-1].messages[-1].content
        assert 'send({"text":"hello"}): may have had an effect, failed' in query
        assert "the line broke" in query
        assert "I stop" in query

    async def test_an_outage_does_not_use_up_a_retry(self) -> None:
        first, second = scripted(out, "a"), scripted([RefusalError("no"), "done"], "b")
        step = (await DAGExecutor(chain(first, second), options=RunOptions(step_retries=1)).execute(ONE)).steps["a"]
        assert (step.status, step.model, step.attempts) == ("completed", "b", 4)
        assert len(first.requests) == 2  # a new attempt begins with the step's own model

    async def test_an_observer_of_the_agents_own_hides_no_call(self) -> None:
        @tool
        def send(text: str) -> str:
            """Sends."""
            return "sent"

        seen: list[str] = []
        first = scripted([[("send", {"text": "x"})], OverloadedError()], "a")
        second = scripted(["done"], "b")
        options = RunOptions(agent={"on_event": lambda event: seen.append(event.channel)})
        await DAGExecutor(chain(first, second), [send], options=options).execute(ONE)
        assert "call" in seen
        assert 'send({"text":"x"})' in second.requests[0].messages[-1].content

    async def test_the_attempt_is_known_to_each_agents_calls(self) -> None:
        seen: list[tuple[str, int]] = []

        def reply(request: ChatRequest, name: str, answer: Any) -> Any:
            seen.append((name, caller().attempt))
            return answer

        first = scripted(lambda request: reply(request, "a", OverloadedError()), "a")
        second = scripted(lambda request: reply(request, "b", "ok"), "b")
        await DAGExecutor(chain(first, second)).execute(ONE)
        assert seen == [("a", 1), ("b", 2)]


class TestToldCalls:
    def test_a_call_under_way_has_an_unknown_outcome(self) -> None:
        trail = StepTrail()
        watch = trail.watching(None)
        start = {"status": "start", "key": "k", "tool_name": "send", "tool_args": {"text": "x"}}
        watch(Event("job", 1, 0.0, "call", "a", start))
        assert trail.calls(DAGExecutor(scripted([], "a"))._agents.tools) == (CallDone("send", {"text": "x"}),)
        assert "may have had an effect, outcome unknown" in told_calls(
            [CallDone("send")], 1_000, lambda texts, room: [""]
        )

    def test_the_same_key_in_another_attempt_is_another_call(self) -> None:
        trail = StepTrail()
        for attempt in (1, 2):
            trail.attempts = attempt
            payload = {"status": "start", "key": "k", "tool_name": f"t{attempt}", "tool_args": {}}
            trail.watching(None)(Event("job", 1, 0.0, "call", "a", payload))
        assert [call.name for call in trail.calls(DAGExecutor(scripted([], "a"))._agents.tools)] == ["t1", "t2"]

    @given(
        st.lists(
            st.builds(
                CallDone,
                st.text(max_size=30),
                st.dictionaries(st.text(max_size=5), st.text(max_size=300), max_size=3),
                st.none() | st.text(max_size=1_500),
                st.booleans(),
                st.booleans(),
            ),
            max_size=25,
        ),
        st.integers(500, 12_000),
    )
    def test_all_writing_calls_are_told_within_the_room(self, calls: list[CallDone], room: int) -> None:
        from executor.step_prompt import share_out

        told = told_calls(calls, room, share_out)
        assert told.count("may have had an effect") >= sum(call.writes for call in calls)
        assert bool(told) == bool(calls)
        assert len(told) <= room + 400 * max(1, len(calls))


class TestSynthesis:
    async def told(
        self, models: ModelRegistry | LLM, fallback: str = "plain text"
    ) -> tuple[str, list[tuple[str, Any]]]:
        events: list[tuple[str, Any]] = []
        registry = models if isinstance(models, ModelRegistry) else None
        llm = models.get_default() if isinstance(models, ModelRegistry) else models
        text = ""
        stream = stream_synthesis(
            llm, [Message.user("?")], fallback, lambda channel, **payload: events.append((channel, payload)),
            models=registry,
        )  # fmt: skip
        async for delta in stream:
            text = "" if delta.reset else text + delta
        shown = ""
        for channel, payload in events:
            if channel == "answer" and payload["status"] in ("delta", "reset"):
                shown = "" if payload["status"] == "reset" else shown + payload["content"]
        assert shown == text
        assert events[-1] == ("answer", {"status": "done"})
        return text, events

    async def test_an_outage_in_the_middle_resets_and_the_next_model_writes(self) -> None:
        models = chain(Breaking("half of an ans"), scripted(["the whole answer"], "b"))
        text, events = await self.told(models)
        assert text == "the whole answer"
        assert ("answer", {"status": "reset"}) in events
        change = {"from": "breaking", "to": "b", "error": "connection", "where": "synthesis"}
        assert ("fallback", change) in events

    async def test_when_all_are_out_the_fallback_text_stands(self) -> None:
        text, _ = await self.told(chain(Breaking("half"), scripted([OverloadedError()], "b")))
        assert text == "plain text"

    async def test_another_error_is_no_reason_to_ask_the_next_model(self) -> None:
        backup = scripted(["answer"], "b")
        text, _ = await self.told(chain(scripted([BadRequestError("no")], "a"), backup))
        assert (text, backup.requests) == ("plain text", [])

    @pytest.mark.parametrize("blank", ["", " \n\t "])
    async def test_a_blank_answer_is_none(self, blank: str) -> None:
        text, events = await self.told(scripted([blank], "a"))
        assert text == "plain text"
        assert (("answer", {"status": "reset"}) in events) == bool(blank)


class Breaking(ScriptedLLM):
    """Streams some text, then the connection breaks."""

    def __init__(self, text: str) -> None:
        super().__init__([], model_id="breaking")
        self.text, self.retry = text, RetryPolicy(tries=1)

    async def open_stream(self, prepared: Any) -> Any:
        from registry.messages import StreamChunk

        yield StreamChunk(self.text)
        raise LLMConnectionError("broke off")


def forced(request: ChatRequest) -> str:
    return str(request.tool_choice["name"]) if isinstance(request.tool_choice, dict) else ""


VALUES: dict[str, Any] = {
    "choose_mode": {"mode": "dag", "domain_hint": None},
    "make_plan": {"steps": [{"id": "a", "task": "do it", "dependencies": []}]},
    "judge_result": {"achieved": True, "confidence": 0.9, "reasoning": "fine", "final_answer": "judged"},
}


def worker(request: ChatRequest) -> Any:
    kind = forced(request)
    return [ToolCall("f", kind, VALUES[kind])] if kind else "written" if request.stream else "done"


class TestJobs:
    async def test_every_role_goes_on_with_the_next_model(self) -> None:
        events: list[Event] = []
        job = await run_job("goal", chain(scripted(out, "a"), scripted(worker, "b")), on_event=events.append)
        assert (job.status, job.answer, job.steps["a"].model) == ("completed", "written", "b")
        assert [(one.where, one.model, one.to) for one in job.fallbacks] == [
            (where, "a", "b") for where in ("router", "planner", "step", "analyzer", "synthesis")
        ]
        assert job.to_json()["fallbacks"][0]["where"] == "router"
        assert {name: usage.calls for name, usage in job.by_model.items()}["b"] == 5
        assert not any(event.channel == "fallback" for event in events)  # for the record, not for readers

    async def test_a_wrong_key_fails_the_job_at_once(self) -> None:
        backup = scripted(worker, "b")
        job = await run_job("goal", chain(scripted(lambda request: AuthError("bad key"), "a"), backup))
        assert (job.status, job.error_code, job.fallbacks) == ("failed", "auth", ())
        assert not backup.requests

    async def test_when_all_are_out_the_job_says_so(self) -> None:
        job = await run_job("goal", chain(scripted(out, "a"), scripted(out, "b")), mode="dag")
        assert (job.status, job.error_code) == ("failed", "connection")

    async def test_the_budget_holds_for_the_fallback_too(self) -> None:
        dear = Price(input=Decimal(1_000), output=Decimal(1_000))  # USD per million tokens
        backup = scripted(worker, "b", price=dear)
        free = Price(input=Decimal(0), output=Decimal(0))
        models = chain(scripted(lambda request: OverloadedError(), "a", price=free), backup)
        job = await run_job("goal", models, mode="dag", budget={"usd": "0.01"})
        assert (job.status, job.cost) == ("budget_exceeded", Decimal(0))
        assert [one.to for one in job.fallbacks] == ["b"]
        assert not backup.requests  # what it might cost did not fit, so it was not asked

    async def test_a_single_agent_goes_on_with_the_next_model(self) -> None:
        sent: list[str] = []

        @tool
        def send(text: str) -> str:
            """Sends."""
            sent.append(text)
            return "sent"

        first = scripted([[("send", {"text": "hello"})], OverloadedError()], "a")
        second = scripted(worker, "b")
        job = await run_job("write a letter", chain(first, second), tools=[send], mode="react")
        assert (job.status, job.answer, sent, job.iterations) == ("completed", "written", ["hello"], 2)
        assert [(one.where, one.to) for one in job.fallbacks] == [("agent", "b")]
        query = second.requests[0].messages[-1].content
        assert query.startswith("write a letter")
        assert 'send({"text":"hello"}): may have had an effect, succeeded\nsent' in query

    async def test_in_direct_mode_what_the_first_agent_showed_is_void(self) -> None:
        @tool(read_only=True)
        def look(key: str) -> str:
            """Looks."""
            return "found"

        events: list[Event] = []
        models = chain(scripted([[("look", {"key": "k"})], OverloadedError()], "a"), scripted(["the answer"], "b"))
        job = await run_job("goal", models, tools=[look], mode="react", answer_mode="direct", on_event=events.append)
        shown = ""
        for payload in (event.payload for event in events if event.channel == "answer"):
            shown = "" if payload["status"] == "reset" else shown + payload.get("content", "")
        assert shown == job.answer == "the answer"

    async def test_what_was_said_meanwhile_reaches_the_next_model(self) -> None:
        from executor import start_job

        @tool(read_only=True)
        def look(key: str) -> str:
            """Looks."""
            handle.send("also in French")
            return "found"

        first = scripted([[("look", {"key": "k"})], OverloadedError()], "a")
        second = scripted(worker, "b")
        handle = start_job("write a letter", chain(first, second), tools=[look], mode="react")
        assert (await handle.result()).status == "completed"
        assert "also in French" in second.requests[0].messages[-1].content

    async def test_a_planner_that_is_out_in_a_replan_is_replaced(self) -> None:
        verdicts = [{**VALUES["judge_result"], "achieved": False, "confidence": 0.1}, VALUES["judge_result"]]

        def dying(request: ChatRequest) -> Any:
            if forced(request) == "judge_result":
                return [ToolCall("f", "judge_result", verdicts.pop(0))]
            return LLMTimeoutError() if forced(request) == "revise_plan" else worker(request)

        change = {"keep": ["a"], "steps": [{"id": "b", "task": "more", "dependencies": ["a"]}]}
        backup = scripted([[ToolCall("f", "revise_plan", change)]], "b")
        job = await run_job("goal", chain(scripted(dying, "a"), backup), mode="dag", options=JobOptions())
        assert (job.status, job.rounds) == ("completed", 2)
        assert [(one.where, one.error) for one in job.fallbacks] == [("planner", "timeout")]

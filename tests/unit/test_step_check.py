"""The second look at a step's result, and what a step makes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.structured import StructuredOutputError
from executor import DAGExecutor, JobOptions, PlanResult, RunOptions, run_job
from executor.settings import load_settings
from planner import Plan, PlanStep
from planner.step_check import Evidence, Finding, check_step, evidence_text, read_finding
from registry import ModelRegistry
from registry.errors import AuthError, OverloadedError, RefusalError
from registry.llm_types import ChatRequest
from registry.messages import Event, ToolCall
from registry.retry import RetryPolicy
from registry.testing import ScriptedLLM
from registry.tools import tool

PASSED = {"passed": True, "feedback": ""}
FAILED = {"passed": False, "feedback": "the sum is 42, not 41"}
TWO = Plan("add up", (PlanStep("a", "find the parts"), PlanStep("b", "add them", ("a",))))
ONE = Plan("add up", (PlanStep("a", "add the parts"),))


class TestOpinion:
    async def test_a_model_sees_task_result_and_evidence(self) -> None:
        llm = ScriptedLLM([[("check_result", FAILED)]])
        finding = await check_step(llm, "add them", "goal", "it is 41", [Evidence("add(40, 2)", "42")])
        assert finding == Finding(False, "the sum is 42, not 41")
        told = llm.requests[0].messages[-1].content
        for part in ("add them", "goal", "it is 41", "[add(40, 2)]\n42"):
            assert part in told

    async def test_what_cannot_be_read_is_no_opinion(self) -> None:
        with pytest.raises(StructuredOutputError):
            await check_step(ScriptedLLM(lambda request: "Hm."), "task", "goal", "result")

    async def test_the_check_role_looks_else_the_general_model(self) -> None:
        general, checker = ScriptedLLM([[("check_result", PASSED)]]), ScriptedLLM([[("check_result", PASSED)]])
        models = ModelRegistry()
        models.register("general", general, roles=["general"])
        await check_step(models, "task", "goal", "result")
        models.register("checker", checker, roles=["check"])
        await check_step(models, "task", "goal", "result")
        assert (len(general.requests), len(checker.requests)) == (1, 1)

    @pytest.mark.parametrize("word", [True, "yes", "True.", "PASS", 1])
    def test_words_for_passed(self, word: Any) -> None:
        assert read_finding({"passed": word, "feedback": "fine"}) == Finding(True)

    @pytest.mark.parametrize("word", [False, "no", "fail"])
    def test_words_for_failed(self, word: Any) -> None:
        assert read_finding({"passed": word, "feedback": ["one", " two "]}) == Finding(False, "one\ntwo")

    @pytest.mark.parametrize(
        "value",
        [None, [], {}, {"passed": "maybe", "feedback": "x"}, {"passed": False}, {"passed": False, "feedback": " "}],
    )
    def test_what_says_nothing_is_refused(self, value: Any) -> None:
        with pytest.raises(ValueError, match=r"finding|passed|feedback"):
            read_finding(value)

    @given(
        st.lists(st.builds(Evidence, st.text(max_size=20), st.text(max_size=1_200)), max_size=12), st.integers(0, 9_000)
    )
    def test_evidence_has_a_bound(self, evidence: list[Evidence], room: int) -> None:
        text = evidence_text(evidence, room)
        assert len(text) <= max(room, 300 * len(evidence)) + 30 * len(evidence) + 60
        assert bool(text)


def forced(request: ChatRequest) -> str:
    return str(request.tool_choice["name"]) if isinstance(request.tool_choice, dict) else ""


class Worker:
    """Answers steps and checks from lists, in order."""

    def __init__(self, steps: list[Any], **checks: list[Any]) -> None:
        self.steps, self.checks = steps, checks
        self.llm = ScriptedLLM(self)
        self.llm.retry = RetryPolicy(tries=1)

    def __call__(self, request: ChatRequest) -> Any:
        kind = forced(request)
        if not kind:
            return self.steps.pop(0)
        answer = self.checks[kind].pop(0)
        return [ToolCall("f", kind, answer)] if isinstance(answer, dict) else answer

    def queries(self) -> list[str]:
        return [request.messages[1].content for request in self.llm.requests if not forced(request)]

    def told(self, kind: str) -> list[str]:
        return [request.messages[-1].content for request in self.llm.requests if forced(request) == kind]


async def run(worker: Worker, plan: Plan = ONE, tools: Any = (), **options: Any) -> tuple[PlanResult, list[Event]]:
    events: list[Event] = []
    executor = DAGExecutor(worker.llm, tools, options=RunOptions(**options), on_event=events.append)
    return await executor.execute(plan), events


def notes(events: list[Event]) -> list[tuple[str, bool | None]]:
    kinds = ("step_check", "citation_check", "citations_seen")
    found = (event.payload for event in events if event.channel == "note")
    return [(note["kind"], note["passed"]) for note in found if note["kind"] in kinds]


class TestSteps:
    async def test_without_the_option_nobody_looks(self) -> None:
        result, _ = await run(Worker(["41 https://a.example/x"]))
        assert result.status == "completed"

    async def test_a_result_that_passes_stands(self) -> None:
        worker = Worker(["42"], check_result=[PASSED])
        result, events = await run(worker, step_verification=True)
        step = result.steps["a"]
        assert (step.status, step.output, step.attempts, step.usage.calls) == ("completed", "42", 1, 2)
        assert notes(events) == [("step_check", True)]

    async def test_a_result_that_fails_is_worked_over_once(self) -> None:
        worker = Worker(["it is 41", "it is 42"], check_result=[FAILED, PASSED])
        result, events = await run(worker, step_verification=True)
        step = result.steps["a"]
        assert (step.status, step.output, step.attempts) == ("completed", "it is 42", 2)
        assert "the sum is 42, not 41" in worker.queries()[1]
        assert "it is 41" in worker.queries()[1]
        assert notes(events) == [("step_check", False), ("step_check", True)]
        assert step.usage.calls == 4  # the checks are paid from the step's account

    async def test_failing_again_the_step_has_failed_and_keeps_its_result(self) -> None:
        worker = Worker(["41", "43"], check_result=[FAILED, FAILED])
        result, _ = await run(worker, step_verification=True)
        step = result.steps["a"]
        assert (result.status, step.status, step.error_code, step.output) == ("failed", "failed", "check_failed", "43")
        assert step.error == "check_failed: the sum is 42, not 41"
        assert step.attempts == 2

    async def test_step_retries_go_on_from_there_but_the_check_has_its_new_attempt_once(self) -> None:
        worker = Worker(["1", "2", "3"], check_result=[FAILED, FAILED, FAILED])
        result, _ = await run(worker, step_verification=True, step_retries=1)
        assert (result.steps["a"].attempts, result.steps["a"].error_code) == (3, "check_failed")
        assert worker.steps == []

    @pytest.mark.parametrize("trouble", [["Hm."] * 5, [OverloadedError()], [RefusalError("I don't judge")]])
    async def test_a_check_that_cannot_be_made_is_a_warning(self, trouble: list[Any]) -> None:
        def reply(request: ChatRequest) -> Any:
            if "You check the result" in request.messages[0].content:
                return trouble.pop(0) if len(trouble) > 1 else trouble[0]
            return "42"

        worker = Worker([])
        worker.llm._reply = reply
        result, events = await run(worker, step_verification=True)
        assert result.status == "completed"
        assert notes(events) == [("step_check", None)]

    async def test_a_wrong_key_fails_the_step_at_once(self) -> None:
        worker = Worker(["42"], check_result=[AuthError("bad key")])
        result, _ = await run(worker, step_verification=True)
        step = result.steps["a"]
        assert (step.status, step.error_code, step.output, step.attempts) == ("failed", "auth", "42", 1)

    async def test_a_failed_attempt_is_not_looked_at(self) -> None:
        result, events = await run(Worker([RefusalError("no")]), step_verification=True)
        assert (result.steps["a"].error_code, notes(events)) == ("refusal", [])

    async def test_the_checker_sees_tools_and_dependencies(self) -> None:
        @tool(read_only=True)
        def add(a: int, b: int) -> int:
            """Adds."""
            return a + b

        worker = Worker(["the parts are 40 and 2", [("add", {"a": 40, "b": 2})], "42"], check_result=[PASSED, PASSED])
        await run(worker, TWO, [add], step_verification=True)
        told = worker.told("check_result")[1]
        assert "[result of step a]\nthe parts are 40 and 2" in told
        assert '[add({"a":40,"b":2})]\n42' in told

    async def test_what_the_first_agent_did_is_told_to_the_second(self) -> None:
        sent: list[str] = []

        @tool
        def send(text: str) -> str:
            """Sends."""
            sent.append(text)
            return "sent"

        worker = Worker([[("send", {"text": "x"})], "41", "42"], check_result=[FAILED, PASSED])
        result, _ = await run(worker, ONE, [send], step_verification=True)
        assert (result.steps["a"].output, sent, result.steps["a"].tool_calls) == ("42", ["x"], 1)
        assert 'send({"text":"x"}): may have had an effect, succeeded' in worker.queries()[-1]

    async def test_a_second_attempt_that_brings_nothing_keeps_the_first_result(self) -> None:
        worker = Worker(["41", RefusalError("no")], check_result=[FAILED])
        result, _ = await run(worker, step_verification=True)
        assert (result.steps["a"].error_code, result.steps["a"].output) == ("refusal", "41")

    async def test_time_that_runs_out_in_a_check_keeps_the_result(self) -> None:
        async def reply(request: ChatRequest) -> Any:
            if forced(request):
                await asyncio.Event().wait()
            return "42"

        options = RunOptions(step_verification=True, step_timeout=0.2)
        step = (await DAGExecutor(ScriptedLLM(reply), options=options).execute(ONE)).steps["a"]
        assert (step.status, step.error_code, step.output) == ("failed", "timeout", "42")

    async def test_a_cancelled_check_leaves_nothing_running(self) -> None:
        began = asyncio.Event()

        async def reply(request: ChatRequest) -> Any:
            if forced(request):
                began.set()
                await asyncio.Event().wait()
            return "42"

        executor = DAGExecutor(ScriptedLLM(reply), options=RunOptions(step_verification=True))
        task = asyncio.create_task(executor.execute(ONE))
        await began.wait()
        executor.cancel_step("a")
        result = await task
        assert (result.steps["a"].status, result.steps["a"].attempts) == ("cancelled", 1)
        assert result.steps["a"].output == "42"
        assert result.steps["a"].usage.partial  # what the cut-off check cost is not known


@tool(read_only=True)
def fetch(url: str) -> str:
    """Fetches a page."""
    return f"The page at {url} says: it rained 12 mm in May."


SEEN = [("fetch", {"url": "https://a.example/rain"})]
GOOD = "It rained 12 mm (https://a.example/rain)."
INVENTED = "It rained 12 mm (https://a.example/rain) and hailed (https://b.example/hail)."
FINE: dict[str, Any] = {"unsupported": []}


class TestCitations:
    async def test_sources_that_were_seen_and_fit_pass(self) -> None:
        worker = Worker([SEEN, GOOD], check_citations=[FINE])
        result, events = await run(worker, tools=[fetch], citation_verification=True)
        assert result.status == "completed"
        assert notes(events) == [("citations_seen", True), ("citation_check", True)]
        assert "it rained 12 mm in May" in worker.told("check_citations")[0]

    async def test_an_invented_source_is_named_and_the_result_worked_over(self) -> None:
        worker = Worker([SEEN, INVENTED, GOOD], check_citations=[FINE, FINE])
        result, events = await run(worker, tools=[fetch], citation_verification=True)
        step = result.steps["a"]
        assert (step.status, step.output, step.attempts) == ("completed", GOOD, 2)
        assert "\n- https://b.example/hail\n" in worker.queries()[-1]
        assert notes(events) == [
            ("citations_seen", False), ("citation_check", True), ("citations_seen", True), ("citation_check", True),
        ]  # fmt: skip

    async def test_invented_twice_the_step_has_failed(self) -> None:
        worker = Worker([INVENTED, INVENTED])
        result, _ = await run(worker, citation_verification=True)
        step = result.steps["a"]
        assert (step.status, step.error_code, step.output) == ("failed", "check_failed", INVENTED)
        assert "https://b.example/hail" in (step.error or "")

    async def test_a_source_that_says_something_else_fails(self) -> None:
        wrong = {"unsupported": [{"number": 1, "reason": "the page says 12 mm, not 20"}]}
        worker = Worker([SEEN, GOOD.replace("12", "20"), GOOD], check_citations=[wrong, FINE])
        result, _ = await run(worker, tools=[fetch], citation_verification=True)
        assert result.steps["a"].output == GOOD
        assert "the page says 12 mm, not 20" in worker.queries()[-1]

    async def test_both_checks_share_one_new_attempt(self) -> None:
        worker = Worker([SEEN, INVENTED, GOOD], check_citations=[FINE, FINE], check_result=[FAILED, PASSED])
        result, _ = await run(worker, tools=[fetch], citation_verification=True, step_verification=True)
        assert (result.status, result.steps["a"].attempts) == ("completed", 2)
        assert "https://b.example/hail" in worker.queries()[-1]
        assert "the sum is 42" in worker.queries()[-1]

    async def test_a_source_of_a_dependency_or_of_the_goal_was_seen(self) -> None:
        plan = Plan("Read https://c.example/given", (PlanStep("a", "x"), PlanStep("b", "y", ("a",))))
        worker = Worker([SEEN, GOOD, f"{GOOD} And https://c.example/given."], check_citations=[FINE, FINE])
        result, _ = await run(worker, plan, [fetch], citation_verification=True)
        assert result.status == "completed"

    async def test_an_error_page_is_not_a_source(self) -> None:
        @tool(read_only=True)
        def broken(url: str) -> str:
            """Fetches."""
            raise ValueError(f"404 {url}")

        worker = Worker([[("broken", {"url": "https://a.example/rain"})], GOOD, "It may have rained."])
        result, _ = await run(worker, tools=[broken], citation_verification=True)
        assert (result.steps["a"].output, result.steps["a"].attempts) == ("It may have rained.", 2)

    async def test_a_source_that_is_marked_as_unverified_deceives_nobody(self) -> None:
        worker = Worker(
            ["Liable under § 823 BGB.", "Liable under § 823 BGB [unverified]; see § 5 StGB, *[Unverified]*."]
        )
        result, events = await run(worker, citation_verification=True)
        assert (result.status, result.steps["a"].attempts) == ("completed", 2)
        assert "[unverified] right after" in worker.queries()[1]
        assert notes(events) == [("citations_seen", False)]

    async def test_a_result_without_citations_costs_nothing(self) -> None:
        result, events = await run(Worker(["It rained."]), citation_verification=True)
        assert (result.status, result.usage.calls, notes(events)) == ("completed", 1, [])


VALUES: dict[str, Any] = {
    "make_plan": {"steps": [{"id": "a", "task": "find out", "dependencies": []}]},
    "judge_result": {"achieved": True, "confidence": 0.9, "reasoning": "", "final_answer": "judged"},
}


class TestJobs:
    @pytest.mark.parametrize(("domain", "attempts"), [("medical", 2), (None, 1)])
    async def test_a_domain_has_its_citations_checked(self, domain: str | None, attempts: int) -> None:
        steps = [INVENTED, "It rained."]

        def reply(request: ChatRequest) -> Any:
            kind = forced(request)
            if kind == "choose_mode":
                return [ToolCall("f", kind, {"mode": "dag", "domain_hint": domain})]
            return [ToolCall("f", kind, VALUES[kind])] if kind else "written" if request.stream else steps.pop(0)

        job = await run_job("goal", ScriptedLLM(reply))
        assert (job.status, job.steps["a"].attempts) == ("completed", attempts)

    async def test_a_rejected_result_is_written_up_as_such(self) -> None:
        steps = ["fine", "41", "43"]

        def reply(request: ChatRequest) -> Any:
            kind = forced(request)
            if kind == "make_plan":
                tasks = [{"id": name, "task": name, "dependencies": []} for name in ("a", "b")]
                return [ToolCall("f", kind, {"steps": tasks})]
            if kind == "check_result":
                return [ToolCall("f", kind, PASSED if "fine" in request.messages[-1].content else FAILED)]
            if request.stream:
                asked.append(request.messages[-1].content)
            return [ToolCall("f", kind, VALUES[kind])] if kind else "written" if request.stream else steps.pop(0)

        asked: list[str] = []
        options = JobOptions(RunOptions(step_verification=True, max_concurrency=1))
        job = await run_job("goal", ScriptedLLM(reply), mode="dag", options=options)
        assert (job.status, job.error_code) == ("partial", "check_failed")
        assert "not to be relied on: check_failed: the sum is 42, not 41" in asked[0]

    def test_the_settings_ask_for_them(self) -> None:
        env = {"DAGWRIGHT_STEP_VERIFICATION": "true", "DAG_CITATION_VERIFICATION": "true"}
        run_options = JobOptions.from_settings(load_settings(env=env)).run
        assert (run_options.step_verification, run_options.citation_verification) == (True, True)
        assert JobOptions.from_settings(load_settings(env={})).run == RunOptions(agent=run_options.agent)

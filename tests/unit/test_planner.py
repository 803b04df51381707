"""Planning, replanning, judging and routing with a scripted model."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

from planner import DAGPlanner, Plan, PlanAnalyzer, PlanError, PlanStep, Route, Verdict, diff_plans, route, step_key
from planner.analyzer import read_confidence, verdict_in_text
from planner.replan import parse_replan
from registry.errors import AuthError, ProviderError
from registry.messages import Message
from registry.models import ModelRegistry
from registry.retry import RetryPolicy
from registry.testing import FakeClock, ScriptedLLM
from tests.support.scopes import Note


@dataclass(frozen=True)
class Done:
    """A step result as the executor's look to the planner."""

    status: str = "completed"
    output: str | None = None
    error: str | None = None


def step(step_id: str, task: str = "do it", *dependencies: str, **more: Any) -> dict[str, Any]:
    return {"id": step_id, "task": task, "dependencies": list(dependencies), **more}


def text_of(llm: ScriptedLLM, call: int = 0) -> str:
    return "\n".join(message.content for message in llm.requests[call].messages)


GOOD = {"steps": [step("s1", "Find A"), step("s2", "Use A", "s1")]}


class TestPlan:
    async def test_one_native_call_makes_a_plan(self) -> None:
        llm = ScriptedLLM([[("make_plan", GOOD)]])
        clock = FakeClock(1_795_996_800.0)
        tools = [{"name": "search", "description": "Searches the web.\nMore."}, "sum"]
        plan = await DAGPlanner(llm, tools=tools, clock=clock).plan("Vergleiche $x und ${date}")
        assert [item.id for item in plan.steps] == ["s1", "s2"]
        assert plan.goal == "Vergleiche $x und ${date}"
        assert len(llm.requests) == 1
        told = text_of(llm)
        assert "- search: Searches the web.\n- sum\n" in told
        assert "Vergleiche $x und ${date}" in told  # data: nothing is filled in there
        assert "30 November 2026" in told
        assert "same language as the goal" in told
        assert "- fast: simple deterministic work" in told

    @pytest.mark.parametrize(
        "reply",
        [
            json.dumps(GOOD),
            "Here is the plan:\n```json\n" + json.dumps(GOOD["steps"]) + "\n```",
            json.dumps({"plan": GOOD["steps"]}),
            json.dumps({"steps": [step("1"), step("2", "do it", "1") | {"dependencies": 1}]}),
        ],
    )
    async def test_what_can_be_repaired_needs_no_second_call(self, reply: str) -> None:
        llm = ScriptedLLM([reply])
        plan = await DAGPlanner(llm).plan("goal")
        assert len(plan.steps) == 2
        assert plan.steps[1].dependencies == (plan.steps[0].id,)

    async def test_all_problems_go_back_once(self) -> None:
        bad = {"steps": [step("a", "do it", "b"), step("b", "do it", "a"), step("c", "", "nowhere")]}
        llm = ScriptedLLM([[("make_plan", bad)], [("make_plan", GOOD)]])
        plan = await DAGPlanner(llm).plan("goal")
        assert len(plan.steps) == 2
        correction = llm.requests[1].messages[-1].content
        assert all(word in correction for word in ('"a", "b"', "cycle", '"c" has no task', '"nowhere"'))
        assert llm.requests[1].messages[-2].role == "assistant"

    async def test_problems_that_remain_are_raised(self) -> None:
        bad = {"steps": [step("a", "do it", "a")]}
        llm = ScriptedLLM([[("make_plan", bad)], [("make_plan", bad)]])
        with pytest.raises(PlanError) as caught:
            await DAGPlanner(llm).plan("goal")
        assert [problem.code for problem in caught.value.problems] == ["self_dependency"]
        assert len(llm.requests) == 2

    async def test_a_model_that_will_not_plan_is_a_plan_error(self) -> None:
        llm = ScriptedLLM(lambda request: "I can answer this directly.")
        with pytest.raises(PlanError) as caught:
            await DAGPlanner(llm).plan("goal")
        assert caught.value.problems[0].code == "not_a_plan"

    async def test_provider_errors_are_not_plan_errors(self) -> None:
        with pytest.raises(AuthError):
            await DAGPlanner(ScriptedLLM([AuthError()])).plan("goal")

    async def test_the_smart_model_plans_and_hints_come_from_the_registry(self) -> None:
        models = ModelRegistry()
        models.register("small", ScriptedLLM([]), roles=("general",))
        smart = ScriptedLLM(
            [[("make_plan", {"steps": [step("s1", model_hint="mega"), step("s2", model_hint="small")]})]]
        )
        models.register("large", smart, roles=("smart",))
        plan = await DAGPlanner(models).plan("goal")
        assert plan.warnings == ("unknown_model:mega",)
        assert [item.model_hint for item in plan.steps] == [None, "small"]
        assert "- small: " in text_of(smart)

    async def test_calls_are_labelled(self) -> None:
        llm = ScriptedLLM([[("make_plan", GOOD)], [("judge_result", VERDICT)], [("choose_mode", {"mode": "dag"})]])
        seen = Note()
        scoped = llm.scoped(seen)
        await DAGPlanner(scoped).plan("goal")
        await PlanAnalyzer(scoped).analyze("goal", {})
        await route(scoped, "goal")
        assert [record.caller.role for record in seen.records] == ["planner", "analyzer", "router"]

    async def test_the_conversation_is_told(self) -> None:
        llm = ScriptedLLM([[("make_plan", GOOD)]])
        await DAGPlanner(llm).plan("goal", [Message.user("We sail on Monday."), Message.assistant("Noted.")])
        assert "user: We sail on Monday." in text_of(llm)

    async def test_a_very_long_goal_is_summarised_first(self) -> None:
        models = ModelRegistry()
        small = ScriptedLLM(["Compare the harbours."])
        smart = ScriptedLLM([[("make_plan", GOOD)]])
        models.register("small", small, roles=("compact",))
        models.register("large", smart, roles=("smart", "general"))
        goal = "tide " * 20_000
        plan = await DAGPlanner(models).plan(goal)
        assert plan.goal == goal
        assert "Compare the harbours." in text_of(smart)
        assert len(text_of(smart)) < 10_000

    async def test_where_the_summary_fails_the_end_is_used(self) -> None:
        models = ModelRegistry()
        small = ScriptedLLM([ProviderError("down")])
        small.retry = RetryPolicy(tries=1)
        smart = ScriptedLLM([[("make_plan", GOOD)]])
        models.register("small", small, roles=("compact",))
        models.register("large", smart, roles=("smart", "general"))
        await DAGPlanner(models).plan("START " + "tide " * 20_000 + "END")
        told = text_of(smart)
        assert "END" in told
        assert "START" not in told
        assert 20_000 < len(told) < 30_000

    async def test_the_short_prompt_is_short(self) -> None:
        llm = ScriptedLLM([[("make_plan", GOOD)]])
        await DAGPlanner(llm, prompt_name="plan_short").plan("goal")
        assert len(llm.requests[0].messages[0].content.split()) < 120
        schema = llm.requests[0].tools[0].parameters
        assert schema["properties"]["steps"]["maxItems"] == 6

    async def test_every_array_and_text_of_the_schema_is_bounded(self) -> None:
        llm = ScriptedLLM([[("make_plan", GOOD)]])
        await DAGPlanner(llm).plan("goal")

        def check(schema: Any) -> None:
            kinds = schema.get("type", ())
            assert "array" not in kinds or "maxItems" in schema
            assert "string" not in kinds or "maxLength" in schema
            for inner in (*schema.get("properties", {}).values(), *filter(None, [schema.get("items")])):
                check(inner)

        check(llm.requests[0].tools[0].parameters)


OLD = Plan(
    "goal",
    (
        PlanStep("s1", "Find A"),
        PlanStep("s2", "Find B", tool_hint="search"),
        PlanStep("s3", "Compare A and B", ("s1", "s2")),
        PlanStep("s4", "Write", ("s3",)),
    ),
)
RESULTS = {
    "s1": Done(output="A is 1. " + "x" * 2_000),
    "s2": Done(output="B is 2."),
    "s3": Done("failed", error="timeout"),
    "s4": Done("skipped"),
}


class TestReplan:
    async def test_the_planner_sees_results_and_answers_with_a_difference(self) -> None:
        change = {"keep": ["s1", "s2"], "steps": [step("s3", "Compare again", "s1", "s2"), step("s5", "Check", "s3")]}
        llm = ScriptedLLM([[("revise_plan", change)]])
        plan = await DAGPlanner(llm).replan("goal", OLD, RESULTS, "B was not compared")
        assert plan.round == 2
        assert plan.kept == ("s1", "s2")
        assert [item.id for item in plan.steps] == ["s1", "s2", "s3", "s5"]
        assert diff_plans(OLD, plan).to_json() == {
            "kept": ["s1", "s2"],
            "replaced": ["s3"],
            "added": ["s5"],
            "dropped": ["s4"],
        }
        told = text_of(llm)
        assert "B was not compared" in told
        assert "[s3] failed" in told
        assert re.search(r"(<<\w+>>) error of \w+\ntimeout\n\1 end of error", told)
        assert "x" * 300 in told
        assert "x" * 500 not in told

    def test_a_finished_step_written_anew_is_kept(self) -> None:
        value = {"keep": [], "steps": [step("n1", " Find  A"), step("n2", "Compare", "n1")]}
        plan = parse_replan(value, OLD, RESULTS)
        assert plan.kept == ("s1",)
        assert plan.by_id["n2"].dependencies == ("s1",)
        assert "n1" not in plan.by_id
        assert "kept:s1" in plan.repairs

    def test_another_task_or_hint_is_another_step(self) -> None:
        for changed in (step("s1", "Find A and more"), step("s1", "Find A", model_hint="reasoning")):
            plan = parse_replan({"keep": [], "steps": [changed]}, OLD, RESULTS)
            assert plan.kept == ()
            assert diff_plans(OLD, plan).replaced == ("s1",)

    def test_a_failed_step_written_anew_runs_again(self) -> None:
        plan = parse_replan({"keep": ["s1", "s2"], "steps": [step("s3", "Compare A and B", "s1", "s2")]}, OLD, RESULTS)
        assert plan.kept == ("s1", "s2")
        assert [item.id for item in plan.steps] == ["s1", "s2", "s3"]

    def test_a_step_that_rests_on_a_replaced_one_runs_again(self) -> None:
        done = {**RESULTS, "s3": Done(output="2 > 1")}
        value = {"keep": [], "steps": [step("s1", "Find A elsewhere"), step("s3", "Compare A and B", "s1", "s2")]}
        plan = parse_replan(value, OLD, done)
        assert plan.kept == ("s2",)
        assert {item.id for item in plan.steps} == {"s1", "s2", "s3"}

    def test_what_new_steps_depend_on_is_kept(self) -> None:
        plan = parse_replan({"keep": [], "steps": [step("s9", "Use B", "s2")]}, OLD, RESULTS)
        assert plan.kept == ("s2",)

    def test_without_a_list_all_that_is_finished_is_kept(self) -> None:
        assert parse_replan([step("s9", "Use B", "s2")], OLD, RESULTS).kept == ("s1", "s2")

    def test_an_unfinished_step_cannot_be_kept(self) -> None:
        plan = parse_replan({"keep": ["s1", "s3"], "steps": [step("s9", "Go on", "s1")]}, OLD, RESULTS)
        assert plan.kept == ("s1",)
        assert plan.warnings == ("not_kept:s3",)
        with pytest.raises(PlanError, match="s3"):
            parse_replan({"keep": ["s3"], "steps": [step("s9", "Go on", "s3")]}, OLD, RESULTS)

    def test_a_kept_id_cannot_be_taken(self) -> None:
        with pytest.raises(PlanError) as caught:
            parse_replan({"keep": ["s1"], "steps": [step("s1", "Something else")]}, OLD, RESULTS)
        assert caught.value.problems[0].code == "duplicate_id"

    def test_nothing_new_is_no_plan(self) -> None:
        for steps in ([], [step("s1", "Find A")]):
            with pytest.raises(PlanError) as caught:
                parse_replan({"keep": ["s1", "s2"], "steps": steps}, OLD, RESULTS)
            assert caught.value.problems[0].code == "empty_plan"

    def test_after_a_message_all_may_be_kept_and_nothing_added(self) -> None:
        keep = ["s1", "s2"]
        changes = [
            {"keep": keep, "steps": []},
            {"keep": keep},
            {"steps": []},
            {"keep": [], "steps": [step("s1", "Find A"), step("x", "Find B", tool_hint="search")]},
        ]
        for change in changes:
            plan = parse_replan(change, OLD, RESULTS, may_rest=True)
            assert (plan.kept, [item.id for item in plan.steps]) == (("s1", "s2"), keep)
        for change in ({"keep": ["s1"], "steps": []}, {"steps": []}):
            results = RESULTS if "keep" in change else {}
            with pytest.raises(PlanError) as caught:
                parse_replan(change, OLD, results, may_rest=True)
            assert caught.value.problems[0].code == "empty_plan"

    async def test_only_after_a_message_the_planner_is_told_so(self) -> None:
        for may_rest in (True, False):
            change = {"keep": ["s1", "s2"], "steps": [] if may_rest else [step("n", "More")]}
            llm = ScriptedLLM([[("revise_plan", change)]])
            await DAGPlanner(llm).replan("goal", OLD, RESULTS, "", may_rest=may_rest)
            assert ("leave `steps` empty" in text_of(llm)) == may_rest
            least = llm.requests[0].tools[0].parameters["properties"]["steps"]["minItems"]
            assert least == (0 if may_rest else 1)

    def test_a_third_round_can_keep_the_first(self) -> None:
        second = parse_replan({"keep": ["s1"], "steps": [step("n1", "Find B", "s1")]}, OLD, RESULTS)
        third = parse_replan(
            {"keep": ["s1", "n1"], "steps": [step("n2", "Compare", "s1", "n1")]},
            second,
            {"s1": RESULTS["s1"], "n1": Done(output="B")},
        )
        assert third.kept == ("s1", "n1")
        assert third.round == 3

    def test_the_key_follows_results_not_ids(self) -> None:
        one = PlanStep("a", "Use it", ("x",))
        two = PlanStep("b", "Use  it", ("y",))
        assert step_key(one, {"x": Done(output="1")}) == step_key(two, {"y": "1"})
        assert step_key(one, {"x": "1"}) != step_key(one, {"x": "2"})


VERDICT = {"reasoning": "Both are there.", "achieved": True, "confidence": 0.9, "final_answer": "Six."}


class TestAnalyzer:
    async def test_a_verdict(self) -> None:
        llm = ScriptedLLM([[("judge_result", VERDICT)]])
        result = {"s1": Done(output="y" * 30_000), "s2": Done("failed", error="no net")}
        assert await PlanAnalyzer(llm).analyze("goal", result) == Verdict(True, 0.9, "Both are there.", "Six.")
        told = text_of(llm)
        assert 9_000 < told.count("y") < 11_000
        assert re.search(r"\[s2\] failed\n(<<\w+>>) error of s2\nno net\n\1 end of error of s2", told)

    @pytest.mark.parametrize(
        ("written", "meant"),
        [
            ("80%", 0.8),
            (85, 0.85),
            ("0.7", 0.7),
            ("0,7", 0.7),
            (1, 1.0),
            (1.3, 1.0),
            (-2, 0.0),
            (400, 1.0),
            ("8/10", 0.8),
            ("85 %", 0.85),
            ("90 percent", 0.9),
            (float("nan"), 0.0),
        ],
    )
    def test_confidence_is_a_number_from_0_to_1(self, written: Any, meant: float) -> None:
        assert read_confidence(written) == pytest.approx(meant)

    @pytest.mark.parametrize("written", [None, True, "high", "", [], {}])
    def test_confidence_is_not_guessed(self, written: Any) -> None:
        with pytest.raises(ValueError, match="confidence"):
            read_confidence(written)

    async def test_types_are_put_right_without_another_call(self) -> None:
        llm = ScriptedLLM([json.dumps({**VERDICT, "achieved": "yes", "confidence": "80%", "final_answer": None})])
        assert await PlanAnalyzer(llm).analyze("goal", {}) == Verdict(True, 0.8, "Both are there.", "")

    async def test_a_plain_text_is_read_by_its_labels(self) -> None:
        text = "**Achieved:** no\n**Confidence:** 60%\nReasoning: B is missing.\nFinal answer: A is 1."
        llm = ScriptedLLM(lambda request: text, abilities={})
        assert await PlanAnalyzer(llm).analyze("goal", {}) == Verdict(False, 0.6, "B is missing.", "A is 1.")

    def test_a_text_that_says_both_says_nothing(self) -> None:
        assert verdict_in_text("achieved: yes ... achieved: no") is None

    async def test_what_cannot_be_read_is_a_verdict_not_a_crash(self) -> None:
        llm = ScriptedLLM(lambda request: "Hm.")
        verdict = await PlanAnalyzer(llm).analyze("goal", {})
        assert (verdict.achieved, verdict.confidence) == (False, 0.0)

    async def test_a_provider_error_is_no_verdict(self) -> None:
        with pytest.raises(AuthError):
            await PlanAnalyzer(ScriptedLLM([AuthError()])).analyze("goal", {})


class TestRouter:
    async def test_a_route(self) -> None:
        llm = ScriptedLLM([[("choose_mode", {"mode": "react", "domain_hint": "medical"})]])
        assert await route(llm, "What helps?") == Route("react", "medical")
        assert len(llm.requests) == 1

    async def test_an_unreadable_route_is_a_plan(self) -> None:
        assert await route(ScriptedLLM(lambda request: "Hm."), "goal") == Route("dag", None)

    async def test_an_unknown_domain_is_none(self) -> None:
        llm = ScriptedLLM([json.dumps({"mode": "DAG", "domain_hint": "none"})])
        assert await route(llm, "goal", [Message.user("before")]) == Route("dag", None)
        assert "user: before" in text_of(llm)

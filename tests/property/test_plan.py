"""Plans in any shape: what was valid stays what it was, what is wrong is named, and nothing else ever happens."""

from __future__ import annotations

import json
import string
from typing import Any

import networkx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner import Plan, PlanError, PlanStep, parse_plan

common = settings(deadline=None, max_examples=100)

IDS = st.lists(st.text(string.ascii_lowercase, min_size=1, max_size=6), min_size=1, max_size=9, unique=True)
TASKS = st.text(string.ascii_letters + " äß水", min_size=1, max_size=30).filter(lambda text: text.strip())


@st.composite
def edges(draw: Any, ids: list[str], *, back: bool = False) -> dict[str, list[str]]:
    deps = {}
    for at, step_id in enumerate(ids):
        others = [other for other in ids if other != step_id] if back else ids[:at]
        deps[step_id] = draw(st.lists(st.sampled_from(others), unique=True, max_size=4)) if others else []
    return deps


@st.composite
def plans(draw: Any) -> Plan:
    ids = draw(IDS)
    deps = draw(edges(ids))
    steps = [
        PlanStep(
            step_id,
            draw(TASKS).strip(),
            tuple(deps[step_id]),
            draw(st.sampled_from([None, "search", "sum"])),
            draw(st.sampled_from([None, "fast", "reasoning"])),
            draw(st.sampled_from(["skip_dependents", "continue", "fail_fast"])),
        )
        for step_id in draw(st.permutations(ids))
    ]
    return Plan("The goal", tuple(steps))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.sampled_from(
                ["steps", "plan", "id", "task", "dependencies", "depends_on", "step", "tool_hint", "a", "1"]
            )
            | st.text(max_size=8),
            inner,
            max_size=5,
        )
    ),
    max_leaves=15,
)


@common
@given(plans())
def test_what_is_valid_stays_what_it_is(plan: Plan) -> None:
    parsed = parse_plan({"steps": [step.to_json() for step in plan.steps]}, goal=plan.goal)
    assert parsed == plan
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert parse_plan(json.loads(json.dumps(plan.to_json()))) == plan
    plan.check()


@common
@given(plans())
def test_layers_path_and_edges_are_those_of_networkx(plan: Plan) -> None:
    graph = plan.graph
    assert [set(layer) for layer in plan.generations] == [
        set(layer) for layer in networkx.topological_generations(graph)
    ]
    assert len(plan.critical_path) == len(networkx.dag_longest_path(graph))
    assert all(graph.has_edge(*pair) for pair in zip(plan.critical_path, plan.critical_path[1:], strict=False))
    assert set(plan.edges) == set(networkx.transitive_reduction(graph).edges)


@common
@given(st.data())
def test_every_cycle_is_found_and_only_its_members_are_named(data: st.DataObject) -> None:
    ids = data.draw(IDS)
    deps = data.draw(edges(ids, back=True))
    graph = networkx.DiGraph([(other, step_id) for step_id, others in deps.items() for other in others])
    graph.add_nodes_from(ids)
    groups = {frozenset(group) for group in networkx.strongly_connected_components(graph) if len(group) > 1}
    value = {"steps": [{"id": step_id, "task": "do it", "dependencies": deps[step_id]} for step_id in ids]}
    if not groups:
        assert {step.id: list(step.dependencies) for step in parse_plan(value).steps} == deps
        return
    with pytest.raises(PlanError) as caught:
        parse_plan(value)
    assert {problem.code for problem in caught.value.problems} == {"cycle"}
    assert {frozenset(problem.names) for problem in caught.value.problems} == groups
    for problem in caught.value.problems:
        named = set(problem.message.split('"')[1::2])
        assert named == set(problem.names)


@settings(deadline=None, max_examples=150)
@given(JSON, st.integers(1, 5))
def test_nothing_but_a_plan_or_a_plan_error_comes_of_any_value(value: Any, max_steps: int) -> None:
    try:
        plan = parse_plan(value, tools=("a",), models=("1",), max_steps=max_steps, kept=("k",))
    except PlanError as error:
        assert error.problems  # noqa: PT017 - both outcomes are right here
        assert str(error)  # noqa: PT017
        json.dumps(error.to_json())
        return
    assert 1 <= len(plan.steps) <= max_steps
    plan.check()
    json.dumps(plan.to_json()).encode()
    assert parse_plan(plan.to_json(), kept=("k",)).steps == plan.steps


@settings(deadline=None, max_examples=150)
@given(st.lists(JSON, min_size=1, max_size=4), JSON)
def test_steps_with_any_fields(dependencies: list[Any], task: Any) -> None:
    steps = [{"id": str(at), "task": task, "dependencies": item} for at, item in enumerate(dependencies)]
    try:
        plan = parse_plan({"steps": steps})
    except PlanError:
        return
    plan.check()
    assert all(len(set(step.dependencies)) == len(step.dependencies) for step in plan.steps)


@common
@given(IDS, st.data())
def test_a_misspelt_reference_is_never_guessed(ids: list[str], data: st.DataObject) -> None:
    """One letter changed, dropped or added: no step, unless the result happens to be one."""
    victim = data.draw(st.sampled_from(ids))
    at = data.draw(st.integers(0, len(victim) - 1))
    letter = data.draw(st.sampled_from(string.ascii_lowercase))
    kind = data.draw(st.sampled_from(["change", "drop", "add"]))
    wrong = victim[:at] + {"change": letter, "drop": "", "add": letter + victim[at]}[kind] + victim[at + 1 :]
    assume(wrong and wrong not in ids and wrong not in ("none", "null", "nil", "na", "no", "nothing", "undefined"))
    steps = [{"id": step_id, "task": "do it"} for step_id in ids]
    with pytest.raises(PlanError) as caught:
        parse_plan({"steps": [*steps, {"id": "LAST", "task": "do it", "dependencies": [wrong]}]})
    assert [(problem.code, problem.names) for problem in caught.value.problems] == [
        ("unknown_dependency", ("LAST", wrong))
    ]


@common
@given(plans(), st.data())
def test_references_in_another_spelling_mean_the_same_step(plan: Plan, data: st.DataObject) -> None:
    def respelt(step_id: str) -> str:
        form = data.draw(st.sampled_from(["{}", "#{}", "${}", " {} ", "step {}", "Step_{}", "${{{}}}", "{{{{{}}}}}"]))
        return form.format(data.draw(st.sampled_from([step_id, step_id.upper()])))

    steps = [{**step.to_json(), "dependencies": [respelt(other) for other in step.dependencies]} for step in plan.steps]
    assert parse_plan({"steps": steps}, goal=plan.goal).steps == plan.steps

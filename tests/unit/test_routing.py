"""Routing policies: what each chooses, and what is told of wrong ones."""

from __future__ import annotations

import re
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry import Choice, ModelRegistry, Price, RouteRequest, RoutingPolicy, Trial, policy_of, register_policy
from registry.budget import Amount, Room
from registry.budget_route import PRIOR, BudgetPolicy, expected
from registry.cascade import THRESHOLD, Cascade
from registry.errors import UsageError
from registry.routing import ByKind, Fixed, Hint, Pinned, chosen, kinds_of
from registry.routing_config import anchored, foreign, policy_names, table_of
from registry.testing import ScriptedLLM


def registry(**prices: int | None) -> ModelRegistry:
    """Models with these prices (USD per million tokens, input and output alike), the first with the role fast, the
    last with the role reasoning, the default in the middle."""
    models, names = ModelRegistry(), list(prices)
    for place, (name, price) in enumerate(prices.items()):
        roles = [*(["fast"] if place == 0 else []), *(["general"] if place == len(names) // 2 else [])]
        roles += ["reasoning"] if place == len(names) - 1 else []
        cost = None if price is None else Price(Decimal(price), Decimal(price))
        models.register(name, ScriptedLLM([], model_id=name, price=cost), roles)
    return models


THREE = registry(small=1, medium=5, large=25)
WORK = RouteRequest("do it", "goal", "a")


class TestFixedAndHint:
    def test_the_hint_is_the_plans_own_word(self) -> None:
        assert Hint().choose(WORK, THREE) == Choice("medium", "no hint: the default model")
        hinted = RouteRequest("do it", "goal", "a", model_hint="fast")
        assert Hint().choose(hinted, THREE) == Choice("small", "hint 'fast'")

    def test_a_whole_goal_of_a_domain_goes_to_the_reasoning_model(self) -> None:
        assert Hint().choose(RouteRequest("may I?", domain="legal"), THREE).model == "large"
        assert Hint().choose(RouteRequest("may I?"), THREE).model == "medium"

    def test_fixed_takes_names_and_roles(self) -> None:
        assert [Fixed(name).choose(WORK, THREE).model for name in ("large", "fast", "smart")] == [
            "large",
            "small",
            "medium",
        ]
        with pytest.raises(UsageError, match="'huge', which is neither a model nor a role: there are fast"):
            Fixed("huge").check(THREE)


KINDS = st.sampled_from(["math", "law", "tool:web", "hint:fast", "domain:legal"])
REQUESTS = st.builds(
    RouteRequest,
    st.text(max_size=5),
    kind=st.sampled_from([None, "math", "law"]),
    tool_hint=st.sampled_from([None, "web", "files"]),
    model_hint=st.sampled_from([None, "fast", "large"]),
    domain=st.sampled_from([None, "legal"]),
    step_id=st.just("a"),
)


class TestTable:
    @given(st.dictionaries(KINDS, st.sampled_from(["small", "medium", "large"])), REQUESTS, st.booleans())
    def test_the_most_particular_kind_goes_first(
        self, table: dict[str, str], request: RouteRequest, default: bool
    ) -> None:
        choice = ByKind(table, "medium" if default else None).choose(request, THREE)
        fitting = [key for key in kinds_of(request) if key in table]
        if fitting:
            assert choice == Choice(table[fitting[0]], f"table: {fitting[0]}")
        elif default:
            assert choice == Choice("medium", "table: default")
        else:
            assert choice == Hint().choose(request, THREE)

    def test_all_its_models_must_be_there(self) -> None:
        ByKind({"math": "large"}).check(THREE)
        for table in (ByKind({"math": "huge"}), ByKind({"math": "large"}, "huge")):
            with pytest.raises(UsageError, match="huge"):
                table.check(THREE)


ROOMS = st.builds(
    Room,
    st.none() | st.decimals("-0.1", "5", places=4),
    st.none() | st.integers(-100, 3_000_000),
)


class TestBudget:
    BEST_FIRST = ("large", "medium", "small")

    def choice(self, room: Room | None, steps: int = 1, tokens: tuple[int, int] | None = None) -> Choice:
        request = RouteRequest("do it", step_id="a", steps_left=steps, room=room, tokens=tokens)
        return BudgetPolicy(self.BEST_FIRST).choose(request, THREE)

    @given(ROOMS, st.integers(0, 70), st.none() | st.tuples(st.integers(0, 200_000), st.integers(0, 20_000)))
    def test_the_best_that_fits_else_the_cheapest(self, room: Room, steps: int, tokens: tuple[int, int] | None) -> None:
        request = RouteRequest("do it", step_id="a", steps_left=steps, room=room, tokens=tokens)
        policy = BudgetPolicy(self.BEST_FIRST)
        choice = policy.choose(request, THREE)
        assert choice == policy.choose(request, THREE)
        if room == Room():
            assert choice.model == "large"
            return
        taken, left = tokens or PRIOR, max(1, steps)
        costs = {name: expected(THREE, name, taken) or Decimal(0) for name in self.BEST_FIRST}
        call = 4 * taken[0] + 1_024 + 256  # tokens that are set aside for one

        def fits(name: str) -> bool:
            rate = {"small": 1, "medium": 5, "large": 25}[name]
            whole = Amount(costs[name] * left, sum(taken) * left)
            aside = Amount(Decimal(rate * call) / 1_000_000, call)
            return room.holds(whole) and room.holds(Amount(costs[name], sum(taken)) + aside)

        fitting = [name for name in self.BEST_FIRST if fits(name)]
        if fitting:
            assert choice.model == fitting[0]
        else:
            assert costs[choice.model] == min(costs.values())

    @given(st.integers(1, 60), st.tuples(st.integers(1, 50_000), st.integers(0, 5_000)))
    def test_more_room_never_makes_it_worse(self, steps: int, tokens: tuple[int, int]) -> None:
        places = [
            self.BEST_FIRST.index(self.choice(Room(Decimal(usd) / 100), steps, tokens).model)
            for usd in (0, 1, 5, 20, 100, 500, 5_000)
        ]
        assert places == sorted(places, reverse=True)

    def test_without_a_budget_or_prices_it_is_the_best(self) -> None:
        assert self.choice(None).model == "large"
        unpriced = registry(small=None, large=None)
        request = RouteRequest("do it", step_id="a", room=Room(Decimal(1)))
        assert BudgetPolicy(("large", "small")).choose(request, unpriced).model == "large"

    def test_what_ended_steps_took_replaces_the_prior(self) -> None:
        room = Room(Decimal("0.5"))
        assert self.choice(room).model == "medium"
        assert self.choice(room, tokens=(1_000, 100)).model == "large"
        assert self.choice(room, steps=20, tokens=(1_000, 100)).model == "medium"

    def test_left_out_the_models_are_those_of_the_roles_else_all_by_price(self) -> None:
        assert BudgetPolicy().names(THREE) == self.BEST_FIRST
        models = ModelRegistry()
        for name, price in (("a", 2), ("b", 9), ("c", 4)):
            models.register(name, ScriptedLLM([], price=Price(Decimal(price), Decimal(price))))
        assert BudgetPolicy().names(models) == ("b", "c", "a")


class TestCascade:
    CASCADE = Cascade(("small", "medium", "large"), 0.6)

    def after(self, **trial: Any) -> str | None:
        choice = self.CASCADE.escalate(WORK, THREE, Trial(**{"model": "small", **trial}))
        return None if choice is None else choice.model

    def test_the_cheapest_goes_first(self) -> None:
        assert self.CASCADE.choose(WORK, THREE).model == "small"
        assert Cascade().names(THREE) == ("small", "large")

    @pytest.mark.parametrize(
        ("trial", "model"),
        [
            ({}, None),
            ({"error": "refusal"}, "medium"),
            ({"check": "wrong"}, "medium"),
            ({"confidence": 0.59, "asked": True}, "medium"),
            ({"confidence": 0.6, "asked": True}, None),
            ({"asked": True}, "medium"),
            ({"error": "refusal", "model": "medium"}, "large"),
            ({"error": "refusal", "model": "large"}, None),
            ({"error": "refusal", "model": "unknown"}, None),
        ],
    )
    def test_what_goes_on_to_the_next(self, trial: dict[str, Any], model: str | None) -> None:
        assert self.after(**trial) == model

    def test_only_those_that_have_a_next_one_are_asked_and_checked(self) -> None:
        cascade = Cascade(("small", "large"), check_results=True)
        told = [(cascade.asks(WORK, THREE, name), cascade.checks(WORK, THREE, name)) for name in ("small", "large")]
        assert told == [(True, True), (False, False)]
        assert not Cascade(("small", "large"), 0.0).asks(WORK, THREE, "small")
        assert Cascade(("small", "large"), 0.0).escalate(WORK, THREE, Trial("small", asked=True)) is None

    def test_roles_of_one_model_are_one(self) -> None:
        models = ModelRegistry()
        models.register("only", ScriptedLLM([]), roles=["general"])
        assert Cascade().names(models) == ("only",)
        assert not Cascade().asks(WORK, models, "only")
        assert Cascade().escalate(WORK, models, Trial("only", error="refusal")) is None


def test_a_pinned_step_is_nobody_elses_business() -> None:
    pinned = Pinned({"a": "large"}, Cascade())
    other = RouteRequest("do it", step_id="b")
    assert pinned.choose(WORK, THREE) == Choice("large", "pinned: large")
    assert pinned.choose(other, THREE).model == "small"
    assert (pinned.asks(WORK, THREE, "large"), pinned.asks(other, THREE, "small")) == (False, True)
    failed = Trial("small", error="refusal")
    assert pinned.escalate(WORK, THREE, failed) is None
    assert pinned.escalate(other, THREE, failed) == Cascade().escalate(other, THREE, failed)


class LongestFirst(RoutingPolicy):
    """One's own: long tasks to the strong model."""

    name = "by_length"

    def __init__(self, chars: int = 10, base: Path | None = None) -> None:
        self.chars, self.base = chars, base

    def choose(self, request: RouteRequest, models: ModelRegistry) -> Choice:
        return Choice("large" if len(request.task) > self.chars else "small", "its length", len(request.task))

    def to_json(self) -> dict[str, Any]:
        return {"use": self.name, "chars": self.chars}


KEYS = st.sampled_from(["use", "models", "threshold", "file", "model", "base", "tokens", "check", "default"])
WORDS = st.text(max_size=8) | st.sampled_from(["hint", "fixed", "table", "cascade", "budget", "learned", "a:B"])
DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)


class TestAsData:
    @pytest.mark.parametrize(
        ("value", "policy"),
        [
            ("hint", Hint()),
            ("fixed:large", Fixed("large")),
            ({"use": "fixed", "model": "large"}, Fixed("large")),
            ("cascade", Cascade(("fast", "reasoning"), THRESHOLD)),
            ('{use="cascade", threshold=0.5, check=true}', Cascade(threshold=0.5, check_results=True)),
            ('{"use": "cascade", "models": ["small", "large"]}', Cascade(("small", "large"))),
            ({"use": "cascade", "threshold": Decimal("0.25")}, Cascade(threshold=0.25)),
            ("budget", BudgetPolicy()),
            ({"use": "budget", "models": ["large"], "tokens": [10, 2]}, BudgetPolicy(("large",), (10, 2))),
            ({"use": "table", "models": {"math": "large"}, "default": "fast"}, ByKind({"math": "large"}, "fast")),
        ],
    )  # fmt: skip
    def test_what_is_written_and_what_it_is(self, value: Any, policy: RoutingPolicy) -> None:
        assert policy_of(value) == policy
        assert policy_of(policy.to_json()) == policy
        assert policy_of(policy) is policy

    @pytest.mark.parametrize(
        ("value", "told"),
        [
            ("cascde", "no policy 'cascde': did you mean 'cascade'"),
            ("fixed", "model is missing"),
            (7, "must be the name of a policy"),
            ("{use=", "neither TOML nor JSON"),
            ({"model": "large"}, "use is missing"),
            ({"use": "cascade", "models": ["small"]}, "2 or more"),
            ({"use": "cascade", "threshold": 1.5}, "from 0 to 1"),
            ({"use": "cascade", "threshold": True}, "without quotes"),
            ({"use": "cascade", "tries": 2}, "unknown key 'tries'"),
            ({"use": "cascade", "check": "yes"}, "true or false"),
            ({"use": "budget", "tokens": [1]}, "two counts"),
            ({"use": "table", "models": {}}, "a table from kinds to models"),
            ("learned", "file is missing"),
            ("learned:nowhere.json", "no such file"),
            ("no_such_module:Policy", "can't be imported"),
            ("registry.routing:Choice", "must be a subclass"),
            ("registry.routing:Hinnt", "did you mean 'Hint'"),
        ],
    )
    def test_wrong_ones_are_told_with_what_is_right(self, value: Any, told: str) -> None:
        with pytest.raises(UsageError, match=told):
            policy_of(value)

    def test_a_class_of_ones_own_beside_the_file(self, tmp_path: Path) -> None:
        code = "from tests.unit.test_routing import LongestFirst\nclass Mine(LongestFirst):\n    name = 'mine'\n"
        source = code.replace("from tests.unit.test_routing import LongestFirst\n", OWN)
        (tmp_path / "own_policies.py").write_text(source, encoding="utf-8")
        stored = anchored({"use": "own_policies:Mine", "chars": 3}, tmp_path)
        policy = policy_of(stored)
        assert policy.choose(RouteRequest("long"), THREE).model == "large"
        with pytest.raises(UsageError, match="can't be made: TypeError"):
            policy_of({**stored, "colour": "red"})

    def test_a_registered_one(self) -> None:
        register_policy("by_length", LongestFirst)
        register_policy("by_length", LongestFirst)
        assert "by_length" in policy_names()
        policy = policy_of({"use": "by_length", "chars": 2}, base="/somewhere")
        assert isinstance(policy, LongestFirst)
        assert (policy.chars, policy.base) == (2, Path("/somewhere"))
        for name in ("cascade", "no spaces", "by_length"):
            with pytest.raises(UsageError):
                register_policy(name, Fixed)

    def test_what_a_stranger_may_not_name(self) -> None:
        register_policy("by_length", LongestFirst)
        for value in ("hint", "cascade", "fixed:x", {"use": "budget", "models": ["a"]}, "by_length"):
            assert foreign(value) is None
        for value in ("learned:x.json", "os:system", {"use": "a.b:C", "x": 1}, {"use": "by_length", "chars": 1}):
            assert foreign(value) is not None

    @given(DATA)
    def test_whatever_is_written_it_is_a_policy_or_a_usage_error(self, value: Any) -> None:
        try:
            table_of(value)
            policy = policy_of(value) if foreign(value) is None else None
        except UsageError:
            return
        assert policy is None or isinstance(policy, RoutingPolicy)


class TestDocument:
    """What docs/routing.md shows holds."""

    TEXT = (Path(__file__).parents[2] / "docs" / "routing.md").read_text(encoding="utf-8")

    def test_its_tables_are_policies(self) -> None:
        blocks = re.findall(r"```toml\n(.*?)```", self.TEXT, re.DOTALL)
        tables = [tomllib.loads(block) for block in blocks]
        values = [table["routing"] for table in tables if "routing" in table]
        values += [value for table in tables for value in table.get("routing_policies", {}).values()]
        assert len(values) >= 7
        for value in values:
            if table_of(value)["use"] != "learned":
                policy_of(value)

    def test_its_defaults_are_the_defaults(self) -> None:
        (cascade,) = re.findall(r"routing = (\{ use = \"cascade\".*\})", self.TEXT)
        assert policy_of(cascade) == Cascade()
        assert f"tokens = {list(PRIOR)}" in self.TEXT

    def test_its_class_is_a_policy(self) -> None:
        (code,) = re.findall(r"```python\n(.*?)```", self.TEXT, re.DOTALL)
        names: dict[str, Any] = {}
        exec(code, names)
        policy = names["LongTasks"](chars=10)
        policy.check(THREE)
        assert policy.choose(RouteRequest("a long task"), THREE).model == "large"
        assert isinstance(policy, RoutingPolicy)


OWN = """from registry import Choice, RoutingPolicy


class Base(RoutingPolicy):
    name = "base"

    def __init__(self, chars):
        self.chars = chars

    def choose(self, request, models):
        return Choice("large" if len(request.task) > self.chars else "small", "its length")

    def to_json(self):
        return {"use": self.name}


LongestFirst = Base
"""


class Broken(LongestFirst):
    """Chooses what is not there."""

    def choose(self, request: RouteRequest, models: ModelRegistry) -> Choice:
        return Choice("nobody", "no reason")


def test_a_policy_is_tried_before_anything_runs() -> None:
    LongestFirst().check(THREE)
    with pytest.raises(UsageError, match="chose 'nobody', which is no model: there are small, medium, large"):
        Broken().check(THREE)
    with pytest.raises(UsageError, match=r"chose \['small'\], which is no model"):
        chosen(LongestFirst(), Choice(["small"], "a list"), THREE)  # type: ignore[arg-type]

"""Names, roles, hints and fallbacks of models."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry import ModelRegistry, Price, as_registry
from registry.errors import NoModelError, UnknownModelError, UsageError
from registry.messages import Message
from registry.models import ROLES, STAND_INS
from registry.testing import ScriptedLLM
from tests.support.scopes import Note


def registry(**roles: list[str]) -> ModelRegistry:
    made = ModelRegistry()
    for name, given_roles in roles.items():
        made.register(name, ScriptedLLM(["ok"] * 9, model_id=f"id-of-{name}"), given_roles)
    return made


def test_the_default_is_general_else_the_first() -> None:
    assert registry(a=["fast"], b=["general"], c=["general"]).resolve_name(None) == "b"
    assert registry(a=["fast"], b=["smart"]).resolve_name("general") == "a"
    with pytest.raises(NoModelError, match="register one"):
        ModelRegistry().get_default()


def test_a_hint_is_a_role_or_a_name_and_an_unknown_one_is_the_default() -> None:
    models = registry(small=["general", "fast"], large=["reasoning"], law=["legal"])
    assert [models.resolve_name(hint) for hint in ("fast", "reasoning", "legal", "law", "small", "mega-9000", "")] == [
        "small",
        "large",
        "law",
        "law",
        "small",
        "small",
        "small",
    ]


def test_a_role_goes_before_a_model_of_that_name() -> None:
    models = registry(general=["reasoning"], reasoning=["general"])
    assert models.resolve_name("reasoning") == "general"
    assert models.resolve_name("general") == "reasoning"
    assert models.resolve_name(None) == "reasoning"


@pytest.mark.parametrize(
    ("role", "present", "taken"),
    [
        ("smart", ["general", "smart"], "smart"),
        ("smart", ["general", "fast"], "general"),
        ("compact", ["general", "fast", "compact"], "compact"),
        ("compact", ["general", "fast"], "fast"),
        ("compact", ["general"], "general"),
        ("fast", ["general", "smart"], "general"),
        ("reasoning", ["general", "smart"], "smart"),
        ("reasoning", ["general", "fast"], "general"),
        ("legal", ["general", "smart"], "general"),
    ],
)
def test_who_stands_in_for_a_role(role: str, present: list[str], taken: str) -> None:
    models = registry(**{f"m-{name}": [name] for name in present})
    assert models.for_role(role) is models.get(f"m-{taken}")


def test_several_models_of_a_role_keep_their_order() -> None:
    models = registry(b=["fast"], a=["fast"])
    assert models.get_by_role("fast") is models.get("b")
    assert models.all_by_role("fast") == (models.get("b"), models.get("a"))


def test_unknown_names_and_roles_are_told_with_those_there_are() -> None:
    models = registry(a=["fast"])
    with pytest.raises(UnknownModelError, match=r"no model 'b': there are only these: a$"):
        models.get("b")
    with pytest.raises(KeyError, match="fast"):
        models.get_by_role("smart")


def test_registration_refuses_doubles_and_nonsense() -> None:
    models, llm = registry(a=[]), ScriptedLLM([])
    for arguments, text in (
        (("a", llm), "already"),
        (("", llm), "needs a name"),
        (("b", "gpt"), "is a str, not an LLM"),
        (("b", llm, ["fast", "fast"]), "twice"),
        (("b", llm, [], ["a", "a"]), "twice"),
        (("b", llm, [], ["b"]), "its own fallback"),
        (("b", llm, [7]), "is a text"),
    ):
        with pytest.raises(UsageError, match=text):
            models.register(*arguments)
    assert models.names() == ("a",)


def test_fallbacks_may_be_registered_later_but_must_be() -> None:
    models, llm = ModelRegistry(), ScriptedLLM([])
    models.register("a", llm, "general", "b")
    with pytest.raises(UsageError, match="falls back to 'b', which is not registered"):
        models.fallbacks("a")
    models.register("b", ScriptedLLM([]))
    assert models.fallbacks("a") == ("b",)
    assert models.fallbacks("b") == ()


def test_a_bare_model_is_general() -> None:
    llm = ScriptedLLM([])
    models = as_registry(llm)
    assert models.get_default() is llm
    assert models.get_by_role("general") is llm
    assert as_registry(models) is models
    with pytest.raises(UsageError, match="not str"):
        as_registry("gpt")


def test_a_model_takes_the_name_it_is_registered_under_unless_it_has_one() -> None:
    models = registry(small=["general"])
    assert models.get("small").name == "small"
    named = ScriptedLLM([])
    named.name = "mine"
    models.register("other", named)
    assert named.name == "mine"
    assert models.name_of(named) == "other"


def test_a_planner_is_told_what_hints_are_for() -> None:
    hints = registry(small=["general", "fast"], law=["legal"]).hints()
    assert hints["fast"] == ROLES["fast"]
    assert hints["reasoning"] == ROLES["reasoning"]
    assert {"small", "law", "legal"} <= set(hints)


async def test_scoped_models_report_to_their_job_and_share_everything_else() -> None:
    models = registry(a=["general"], b=["fast"])
    models.register("c", ScriptedLLM([]), [], ["a"], origin="a test")
    mine, yours = Note(), Note()
    one, two = models.scoped(mine), models.scoped(yours)
    await one.resolve("fast").chat([Message.user("hello")])
    await two.get_default().chat([Message.user("hello")])
    await models.get_default().chat([Message.user("hello")])
    assert [record.model_name for record in mine.records] == ["b"]
    assert [record.model_name for record in yours.records] == ["a"]
    assert one.get("c") is not models.get("c")
    assert (one.names(), one.roles(), one.fallbacks("c"), one.origin) == (
        models.names(),
        models.roles(),
        ("a",),
        {"c": "a test"},
    )
    one.register("d", ScriptedLLM([]), ["fast"])
    assert "d" not in models
    assert len(models.all_by_role("fast")) == 1


class Closing(ScriptedLLM):
    closed = 0

    async def aclose(self) -> None:
        self.closed += 1
        if self.model_id == "broken":
            raise OSError("cannot close")


async def test_all_models_are_closed_once_even_where_one_fails() -> None:
    models, twice, broken, last = ModelRegistry(), Closing([]), Closing([], model_id="broken"), Closing([])
    for name, llm in {"a": twice, "b": twice, "c": broken, "d": last}.items():
        models.register(name, llm)
    with pytest.raises(OSError, match="cannot close"):
        await models.aclose()
    assert [llm.closed for llm in (twice, broken, last)] == [1, 1, 1]


ROLE = st.sampled_from([*ROLES, "legal", "x"])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(ROLE, unique=True), min_size=1, max_size=5), st.one_of(st.none(), ROLE, st.text(max_size=4)))
def test_every_hint_comes_to_a_registered_model(role_lists: list[list[str]], hint: str | None) -> None:
    models = ModelRegistry()
    for number, roles in enumerate(role_lists):
        models.register(f"m{number}", ScriptedLLM([]), roles)
    name = models.resolve_name(hint)
    assert models.resolve(hint) is models.get(name)
    having = [f"m{number}" for number, roles in enumerate(role_lists) if hint in roles]
    if having:
        assert name == having[0]
    elif hint not in models and hint not in STAND_INS:
        assert models.get(name) is models.get_default()


def test_price_is_public() -> None:
    assert Price.from_toml({"input": 1, "output": 2}).output == 2

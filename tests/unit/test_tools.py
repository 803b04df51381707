"""Tools: what a model is told, how arguments are checked, what a registry refuses."""

import enum
import functools
import subprocess
import sys
from datetime import date
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from registry.errors import UsageError
from registry.llm_types import ToolSpec, tool_specs
from registry.tool_run import run_tool
from registry.tools import Tool, ToolArgumentsError, ToolRegistry, UnknownToolError, tool

ANY = {"type": "object", "properties": {}}


class Unit(enum.Enum):
    KM = "km"
    MILE = "mile"


class Place(BaseModel):
    title: str
    height: float = 0.0


@tool
def search(query: str, limit: int = 10, kind: Literal["news", "all"] = "all") -> str:
    """Searches the archive.

    Newest entries come first.

    Args:
        query: What to look for,
            in words.
        limit (int): How many entries at most.
    """
    return f"{query}/{limit}/{kind}"


def test_the_whole_docstring_and_the_parameters_reach_the_model():
    assert isinstance(search, Tool)
    assert search.spec == ToolSpec("search", search.description, search.parameters)
    assert search.spec is search.spec
    assert tool_specs([search]) == (search.spec,)
    assert search.description.startswith("Searches the archive.\n\nNewest entries come first.")
    assert search.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for, in words."},
            "limit": {"type": "integer", "description": "How many entries at most.", "default": 10},
            "kind": {"type": "string", "enum": ["news", "all"], "default": "all"},
        },
        "required": ["query"],
        "additionalProperties": False,
    }


def test_the_tool_is_still_callable_as_the_function():
    assert search("a", 3) == "a/3/all"
    assert search.run(query="a", limit=3) == "a/3/all"


async def test_an_async_tool_is_awaited():
    @tool(name="later", read_only=True, timeout=5)
    async def function(n: int) -> int:
        """Gives it back."""
        return n

    assert (function.name, function.read_only, function.timeout) == ("later", True, 5)
    assert await function(4) == 4
    assert await function.run(n=4) == 4
    assert (await run_tool(function, function.check({"n": "4"}))).text == "4"


def test_declarations_default_to_the_careful_side():
    declared = (search.read_only, search.idempotent, search.pure, search.pinned, search.requires_approval)
    assert declared == (False,) * 5
    assert (search.timeout, search.max_result_chars, search.verify) == (60.0, 20_000, None)


def test_descriptions_from_annotated_win_over_the_docstring():
    @tool
    def f(a: Annotated[int, Field(description="from the hint", ge=1)], b: Annotated[int, Field(ge=1)] = 2):
        """Does it.

        Args:
            a: from the docstring
            b: also
        """

    assert f.parameters["properties"]["a"] == {"type": "integer", "minimum": 1, "description": "from the hint"}
    assert f.parameters["properties"]["b"] == {"type": "integer", "minimum": 1, "description": "also", "default": 2}


def test_rest_style_parameters_are_read():
    @tool
    def f(a: int, b: str):
        """Does it.

        :param a: the first
        :param str b: the second,
            on two lines
        :returns: nothing
        """

    notes = {name: entry["description"] for name, entry in f.parameters["properties"].items()}
    assert notes == {"a": "the first", "b": "the second, on two lines"}


async def test_typed_parameters_are_converted_before_the_call():
    seen = []

    @tool
    def visit(day: date, unit: Unit, place: Place, others: list[Place] = [], note: str = None):  # noqa: B006, RUF013
        """Plans a visit."""
        seen.append((day, unit, place, others, note))
        return "ok"

    arguments = visit.check({"day": "2026-11-30", "unit": "km", "place": '{"title": "Etna", "height": "3.3"}'})
    assert arguments == {"day": "2026-11-30", "unit": "km", "place": {"title": "Etna", "height": 3.3}}
    assert (await run_tool(visit, arguments)).text == "ok"
    assert seen == [(date(2026, 11, 30), Unit.KM, Place(title="Etna", height=3.3), [], None)]
    place = visit.parameters["$defs"]["Place"]
    assert list(place["properties"]) == ["title", "height"]
    assert place["properties"]["title"] == {"type": "string"}
    visit.check({"day": "2026-11-30", "unit": "km", "place": {"title": "Etna"}, "note": None})


def test_names_that_pydantic_keeps_for_itself_may_be_parameters():
    @tool
    def f(schema: str, json: str, model_config: int, _x: int = 1, copy: bool = False):
        """Does it."""
        return (schema, json, model_config, _x, copy)

    arguments = {"schema": "a", "json": "b", "model_config": 3, "_x": 4, "copy": True}
    assert list(f.parameters["properties"]) == list(arguments)
    assert f.run(**f.check(arguments)) == ("a", "b", 3, 4, True)


def test_types_of_the_enclosing_function_and_texts_as_hints_are_found():
    class Local(BaseModel):
        n: int

    @tool
    def f(a: "Local"):
        """Does it."""
        return a

    @tool(read_only=True)
    def g(a: "list[Local]"):
        """Does it."""
        return a

    assert f.run(a={"n": 1}) == Local(n=1)
    assert g.run(a=[{"n": 1}]) == [Local(n=1)]


def test_methods_and_partials_may_be_tools():
    class Shop:
        stock = 3

        def count(self, extra: int = 0) -> int:
            """Counts the stock."""
            return self.stock + extra

    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    assert tool(Shop().count).run(extra="2") == 5
    assert tool(name="add_two")(functools.partial(add, b=2)).run(a=1) == 3


def test_a_default_that_json_cannot_hold_is_left_out_of_the_schema():
    marker = float("nan")

    @tool
    def f(a: float = marker):
        """Does it."""
        return a

    assert f.parameters["properties"]["a"] == {"type": "number"}
    assert f.run() is marker


def no_docstring(a: int): ...


def no_hint(a):
    """Does it."""


def star(*parts: int):
    """Does it."""


def keywords(**parts: int):
    """Does it."""


def positional(a: int, /):
    """Does it."""


def odd_type(a: subprocess.Popen):
    """Does it."""


def unknown_type(a: "Nowhere"):  # noqa: F821
    """Does it."""


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (no_docstring, "docstring"),
        (no_hint, "'a' has no type hint"),
        (star, "name every parameter"),
        (keywords, "name every parameter"),
        (positional, "positional-only"),
        (odd_type, "can't be described in JSON"),
        (unknown_type, "Nowhere"),
        (lambda: 1, "name="),
        (search, "tool already"),
        (3, "not on 3"),
    ],
)
def test_bad_signatures_are_refused_with_what_to_do(function, says):
    with pytest.raises(UsageError, match=says):
        tool()(function)


def test_unknown_declarations_are_refused():
    with pytest.raises(UsageError, match="readonly"):
        tool(readonly=True)


@pytest.mark.parametrize(
    "options",
    [
        {"name": " "},
        {"run": None},
        {"parameters": {"type": "array"}},
        {"parameters": None},
        {"timeout": 0},
        {"max_result_chars": 10},
    ],
)
def test_bad_tools_are_refused(options):
    with pytest.raises(UsageError):
        Tool(**{"name": "t", "description": "d", "parameters": ANY, "run": print, **options})


def test_tools_are_frozen():
    with pytest.raises(AttributeError):
        search.name = "other"


# Arguments


def test_good_arguments_are_coerced_where_that_is_safe():
    assert search.check({"query": "x", "limit": "10"}) == {"query": "x", "limit": 10}


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"query": "x", "limit": "ten"}, ["limit", "ten"]),
        ({}, ["query"]),
        ({"query": "x", "colour": 1}, ["colour"]),
        ({"query": "x", "kind": "old"}, ["kind"]),
        (["x"], ["object"]),
    ],
)
def test_wrong_arguments_name_the_field_and_give_what_is_expected(arguments, names):
    with pytest.raises(ToolArgumentsError) as caught:
        search.check(arguments)
    error = caught.value
    assert isinstance(error, ValueError)
    assert error.problems
    for name in names:
        assert name in error.problems[0]
    assert "search" in str(error)
    assert "- query (string, required): What to look for, in words." in str(error)


def test_what_only_pydantic_knows_is_checked_too():
    @tool
    def f(day: date):
        """Does it."""

    with pytest.raises(ToolArgumentsError, match="day"):
        f.check({"day": "soon"})


def test_a_tool_without_pydantic_is_checked_by_its_schema():
    schema = {"type": "object", "properties": {"limit": {"type": "integer"}}, "required": ["limit"]}
    plain = Tool("search", "Searches.", schema, lambda limit: limit)
    with pytest.raises(ToolArgumentsError, match="limit"):
        plain.check({"limit": "ten"})
    assert plain.check({"limit": "7"}) == {"limit": 7}


# The registry


def named(name: str, description: str = "Does it.") -> Tool:
    return Tool(name, description, ANY, lambda: name)


def test_a_registry_holds_tools_in_order():
    tools = ToolRegistry([named("b"), named("a")])
    assert tools.names() == ("b", "a")
    assert [each.name for each in tools] == ["b", "a"]
    assert len(tools) == 2
    assert "a" in tools
    assert "c" not in tools
    assert tools.get("a") in tools
    assert tools.subset(["a"]).names() == ("a",)


def test_a_bare_function_is_taken_as_by_the_decorator():
    def shout(text: str) -> str:
        """Shouts."""
        return text.upper()

    assert ToolRegistry([shout]).get("shout").run(text="a") == "A"


def test_taken_names_and_empty_descriptions_are_refused():
    tools = ToolRegistry([named("a")])
    with pytest.raises(UsageError, match="already"):
        tools.register(named("a"))
    with pytest.raises(UsageError, match="no description"):
        tools.register(named("b", " "))


def test_an_unknown_name_gets_the_nearest_and_the_list():
    tools = ToolRegistry([named("web_search"), named("calculate")])
    with pytest.raises(UnknownToolError) as caught:
        tools.get("web-serach")
    assert (
        str(caught.value) == "There is no tool 'web-serach'. Did you mean 'web_search'? Tools: web_search, calculate."
    )
    assert isinstance(caught.value, KeyError)
    assert tools.nearest("Calculator") == "calculate"
    assert tools.nearest("zzz") is None
    with pytest.raises(UnknownToolError, match="There are no tools"):
        ToolRegistry().get("x")


def test_near_identical_descriptions_are_found():
    tools = ToolRegistry(
        [
            named("a", "Searches the archive for entries by their words."),
            named("b", "Searches the archive for entries by their word."),
            named("c", "Calculates an arithmetic expression."),
        ]
    )
    assert tools.similar_descriptions() == (("a", "b"),)


def test_importing_the_tools_brings_in_no_heavy_package():
    heavy = "pydantic jsonschema trafilatura AntiSSRF requests aiohttp networkx"
    code = f"import sys, registry.toolbox, registry.tool_run; print([n for n in '{heavy}'.split() if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

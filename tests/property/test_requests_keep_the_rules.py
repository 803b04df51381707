"""Whatever history and settings come, no request that an adapter prepares breaks a provider's rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry import LLM, AnthropicLLM, Message, OpenAIChatLLM, OpenAIResponsesLLM, ToolCall
from registry.errors import UsageError
from registry.llm_types import ChatRequest, ToolSpec, tool_specs
from tests.fakes.rules import first_broken

ADAPTERS: dict[str, Callable[..., LLM]] = {
    "chat": OpenAIChatLLM,
    "responses": OpenAIResponsesLLM,
    "anthropic": AnthropicLLM,
}
TEXTS = st.sampled_from(["", " \n", "hello", "ends with blanks  ", "half \ud83d a pair", "\x00 and \u2028"])
USER_TEXTS = st.one_of(TEXTS, st.just("as json"))
IDS = st.sampled_from(["c1", "c2", "", "functions.add:0", "with blank", "x" * 30, "ü", "toolu_01"])
NAMES = st.sampled_from(["add", "drive.search", "a tool with blanks", "n" * 90, "ünï"])
ARGUMENTS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [{}, {"a": 1}, {"text": "half \ud83d"}, {"deep": {"list": [1, None, "x"]}}]
)
BROKEN_RAW = st.sampled_from([None, '{"a": "cut', "null", "[1]"])


@st.composite
def calls(draw: st.DrawFn) -> ToolCall:
    raw = draw(BROKEN_RAW)
    arguments: dict[str, Any] = {} if raw is not None else draw(ARGUMENTS)
    return ToolCall(draw(IDS), draw(NAMES), arguments, raw, raw is None)


MESSAGES = st.one_of(
    st.builds(Message.system, TEXTS),
    st.builds(Message.user, USER_TEXTS),
    st.builds(Message.assistant, TEXTS, st.lists(calls(), max_size=3)),
    st.builds(Message.tool, IDS, TEXTS, st.booleans()),
)
TOOLS: tuple[ToolSpec, ...] = tool_specs(
    [
        {"name": name, "description": "Does it.", "parameters": {"type": "object", "properties": {}}}
        for name in ("add", "drive.search", "a tool with blanks", "n" * 90, "ünï")
    ]
)
CLOSED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
FORMATS: list[dict[str, Any] | None] = [
    None,
    {"type": "json_object"},
    {"type": "json_schema", "json_schema": {"name": "answer", "schema": CLOSED, "strict": True}},
]
CHOICES = st.sampled_from([None, "auto", "none", "required", {"name": "add"}, {"name": "drive.search"}])


@st.composite
def requests(draw: st.DrawFn) -> ChatRequest:
    tools = draw(st.sampled_from([(), TOOLS]))
    before, after = draw(st.lists(MESSAGES, max_size=4)), draw(st.lists(MESSAGES, max_size=4))
    return ChatRequest(
        (*before, Message.user("go"), *after),
        tools,
        draw(CHOICES) if tools else None,
        draw(st.sampled_from(FORMATS)),
        draw(st.sampled_from([None, 0.0, 1.0])),
        draw(st.sampled_from([None, 1, 4096])),
        stream=draw(st.booleans()),
    )


@pytest.mark.parametrize("dialect", ADAPTERS)
@settings(max_examples=150, deadline=None)
@given(request=requests())
def test_no_request_breaks_a_rule(dialect: str, request: ChatRequest) -> None:
    llm = ADAPTERS[dialect]("fake-model", base_url="http://127.0.0.1:1/v1", api_key="k")
    try:
        body = llm.prepare(request).body
    except UsageError:
        return  # said to the developer before anything is sent
    broken = first_broken(dialect, body, json.loads(body))
    assert broken is None, (broken.rule.id, broken.message, body.decode())

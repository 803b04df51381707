"""Every form of a tool call in text: what is a call, what is an answer, what is an error."""

# ruff: noqa: E501 - replies as they came

from __future__ import annotations

from typing import Any

import pytest

from agent.extract import UnknownToolError, parse_tool_text, read_turn, strip_reasoning
from registry.tools import Tool


def parameters(*optional: str, **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": [name for name in fields if name not in optional]}


TEXT = {"type": "string"}
TOOLS = [
    {"name": "web_search", "parameters": parameters(query=TEXT)},
    {"name": "read_file", "parameters": parameters("limit", path=TEXT, limit={"type": "integer"})},
    {"name": "get_time", "parameters": parameters("tz", tz=TEXT)},
    {
        "name": "put",
        "parameters": parameters(
            items={"type": "array", "items": {"type": "integer"}}, opts={"type": "object"}, ok={"type": "boolean"}
        ),
    },
]
MOON: list[tuple[str, dict[str, Any]]] = [("web_search", {"query": "moon"})]
ERROR = object()

CASES: list[tuple[str, Any]] = [
    ('<tool_call>{"name": "web_search", "arguments": {"query": "moon"}</tool_call>', MOON),
    ('<tool_call>{"name": "web_search", "arguments": "{\\"query\\": \\"moon\\"}"}</tool_call>', MOON),
    ("<tool_call>{'name': 'web_search', 'arguments': {'query': 'moon'}}</tool_call>", MOON),
    ('<tool_call>[{"name": "web_search", "arguments": {"query": "moon"}}]</tool_call>', MOON),
    ('<tool_calls>[{"name": "web_search", "arguments": {"query": "moon"}}]</tool_calls>', MOON),
    ('<tool_call>\n```json\n{"name": "web_search", "arguments": {"query": "moon"}}\n```\n</tool_call>', MOON),
    (
        '<tool_call>{"name": "web_search", "arguments": {"query": "</tool_call> moon"}}</tool_call>',
        [("web_search", {"query": "</tool_call> moon"})],
    ),
    ('[TOOL_CALLS][{"name": "web_search", "arguments": {"query": "moon"}}]', MOON),
    (
        '[TOOL_CALLS] [{"name": "web_search", "arguments": {"query": "moon"}}, {"name": "get_time", "arguments": {}}]</s>',
        [*MOON, ("get_time", {})],
    ),
    ('[TOOL_CALLS]web_search{"query": "moon"}[TOOL_CALLS]get_time{}', [*MOON, ("get_time", {})]),
    ('[TOOL_CALLS]web_search[CALL_ID]abc123[ARGS]{"query": "moon"}', MOON),
    ('<function=web_search>{"query": "moon"}</function>', MOON),
    ('<function=web_search>{"query": "moon"}', MOON),
    ('<function name="web_search"><parameter name="query">moon</parameter></function>', MOON),
    (
        '<function=put><parameter=items>[1,2]</parameter><parameter=opts>{"a": 1}</parameter><parameter=ok>true</parameter></function>',
        [("put", {"items": [1, 2], "opts": {"a": 1}, "ok": True})],
    ),
    ('<|python_tag|>{"name": "web_search", "parameters": {"query": "moon"}}', MOON),
    ('<|python_tag|>{"type":"function","name": "web_search", "parameters": {"query": "moon"}}<|eom_id|>', MOON),
    ('<|python_tag|>web_search.call(query="moon")', MOON),
    (
        '<|python_tag|>{"name": "web_search", "parameters": {"query": "moon"}}; {"name": "get_time", "parameters": {}}',
        [*MOON, ("get_time", {})],
    ),
    (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>web_search<｜tool▁sep｜>{"query": "moon"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [*MOON, ("get_time", {})],
    ),
    (
        '<｜｜DSML｜｜tool_calls>\n<｜｜DSML｜｜invoke name="web_search">\n<｜｜DSML｜｜parameter name="query" string="true">moon</｜｜DSML｜｜parameter>\n</｜｜DSML｜｜invoke>\n</｜｜DSML｜｜tool_calls>',
        MOON,
    ),
    (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="read_file">\n<｜DSML｜parameter name="path" string="true">a</｜DSML｜parameter>\n<｜DSML｜parameter name="limit" string="false">5</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="get_time">\n</｜DSML｜invoke></｜DSML｜function_calls>',
        [("read_file", {"path": "a", "limit": 5}), ("get_time", {})],
    ),
    (
        '<function_calls>\n<invoke name="web_search">\n<parameter name="query">moon</parameter>\n</invoke>\n</function_calls>',
        MOON,
    ),
    ('call\n<invoke name="web_search">\n<parameter name="query">moon</parameter>\n</invoke>', MOON),
    (
        '<function_calls><invoke name="web_search"><parameter name="query">moon</parameter></invoke></function_calls>',
        MOON,
    ),
    ("<start_function_call>call:web_search{query:<escape>moon<escape>}<end_function_call>", MOON),
    ('<|tool_call>call:web_search{query:<|"|>moon<|"|>}<tool_call|>', MOON),
    (
        '<|tool_call>call:read_file{path:<|"|>a, limit: 3}<|"|>,limit:7}<tool_call|><|tool_call>call:get_time{}<tool_call|>',
        [("read_file", {"path": "a, limit: 3}", "limit": 7}), ("get_time", {})],
    ),
    (
        '<|tool_call>call:put{items:[1,2],opts:{a:<|"|>x"y<|"|>},ok:true}<tool_call|>',
        [("put", {"items": [1, 2], "opts": {"a": 'x"y'}, "ok": True})],
    ),
    ('<|tool_call>call:web_search(query: "moon")<tool_call|>', MOON),
    ('call:web_search{query: "moon"}', MOON),
    ('```tool_code\nprint(default_api.web_search(query="moon"))\n```', MOON),
    ('```tool_code\nweb_search(query="moon")\n```', MOON),
    ("<tool_call>web_search\n<arg_key>query</arg_key>\n<arg_value>moon</arg_value>\n</tool_call>", MOON),
    (
        "<tool_call>read_file<arg_key>path</arg_key><arg_value>a</arg_value><arg_key>limit</arg_key><arg_value>5</arg_value></tool_call>",
        [("read_file", {"path": "a", "limit": 5})],
    ),
    ("<tool_call>get_time</tool_call>", [("get_time", {})]),
    ("<tool_call>get_time\n</tool_call>", [("get_time", {})]),
    (
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.web_search:0<|tool_call_argument_begin|>{"query": "moon"}<|tool_call_end|><|tool_calls_section_end|>',
        MOON,
    ),
    (
        '<|channel|>analysis<|message|>Need to search.<|end|><|start|>assistant<|channel|>commentary to=functions.web_search <|constrain|>json<|message|>{"query": "moon"}<|call|>',
        MOON,
    ),
    ('<|start|>assistant to=functions.web_search<|channel|>commentary json<|message|>{"query": "moon"}<|call|>', MOON),
    ('commentary to=functions.web_search json<|message|>{"query": "moon"}', MOON),
    ("<|channel|>commentary to=functions.get_time<|message|>{}<|call|>", [("get_time", {})]),
    (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>It is 12.<|return|>",
        "It is 12.",
    ),
    (
        '<minimax:tool_call>\n<invoke name="put">\n<parameter name="items">[1, 2]</parameter>\n<parameter name="ok">false</parameter>\n</invoke>\n</minimax:tool_call>',
        [("put", {"items": [1, 2], "ok": False})],
    ),
    ('<tool_use>\n<name>web_search</name>\n<arguments>{"query": "moon"}</arguments>\n</tool_use>', MOON),
    ("<tool_use><name>web_search</name><arguments><query>moon</query></arguments></tool_use>", MOON),
    ('<tool_use name="web_search">{"query": "moon"}</tool_use>', MOON),
    ('<tool_call name="web_search"><query>moon</query></tool_call>', MOON),
    ("<web_search>\n<query>moon</query>\n</web_search>", MOON),
    (
        "<tool_call>\n<tool_name>web_search</tool_name>\n<parameters>\n<query>moon</query>\n</parameters>\n</tool_call>",
        MOON,
    ),
    ("<tool>web_search</tool><tool_input>moon</tool_input>", MOON),
    ('<invoke name="web_search">{"query": "moon"}</invoke>', MOON),
    ('functools[{"name": "web_search", "arguments": {"query": "moon"}}]', MOON),
    (
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "web_search", "parameters": {"query": "moon"}}]<|END_ACTION|>',
        MOON,
    ),
    ('Action: ```json\n[{"tool_name": "web_search", "parameters": {"query": "moon"}}]\n```', MOON),
    ('✿FUNCTION✿: web_search\n✿ARGS✿: {"query": "moon"}\n✿RESULT✿', MOON),
    ('<TOOLCALL>[{"name": "web_search", "arguments": {"query": "moon"}}]</TOOLCALL>', MOON),
    ('<|action_start|><|plugin|>\n{"name": "web_search", "parameters": {"query": "moon"}}<|action_end|>', MOON),
    ('<functioncall> {"name": "web_search", "arguments": \'{"query": "moon"}\'} <|endoftext|>', MOON),
    ('<|tool_call|>[{"name": "web_search", "arguments": {"query": "moon"}}]<|/tool_call|>', MOON),
    ('<|tool_call|>{"name": "web_search", "arguments": {"query": "moon"}}', MOON),
    ('[Calling tool: web_search({"query": "moon"})]', MOON),
    ('[web_search(query="moon"), get_time()]', [*MOON, ("get_time", {})]),
    ('web_search(query="moon")', MOON),
    ('web_search("moon")', MOON),
    ('Thought: x\nAction: web_search("moon")', MOON),
    ('Thought: x\nAction: web_search(query="moon")\nObservation: hi', MOON),
    ("Thought 1: I need it\nAction 1: web_search[moon]\nObservation 1: x\nAction 2: finish[12]", MOON),
    ("Action: web_search[list [a] of [b]]", [("web_search", {"query": "list [a] of [b]"})]),
    ("Thought: done\nAction: Finish[the answer is [42]]", "the answer is [42]"),
    ("Action: finish[12]", "12"),
    ('**Thought:** x\n**Action:** web_search\n**Action Input:** {"query": "moon"}', MOON),
    ('Thought: x\nAction: `web_search`\nAction Input: "moon"\n', MOON),
    ('Action: web_search\nAction Input:\n```json\n{"query": "moon"}\n```', MOON),
    ('Thought: I will. Action: web_search Action Input: {"query": "moon"}', MOON),
    ('Action: web_search {"query": "moon"}', MOON),
    ('Action:\n```json\n{"action": "web_search", "action_input": {"query": "moon"}}\n```\nObservation: hi', MOON),
    ('Thought: x\nAction:\n{"action": "Final Answer", "action_input": "12"}', "12"),
    ('Thought: x\n```json\n{"action": "Final Answer", "action_input": "12"}\n```', "12"),
    ("Thought: x\nAction: Final Answer\nAction Input: 12", "12"),
    ("Thought: I know\nFinal Answer: line 1\nline 2", "line 1\nline 2"),
    ("Final Answer: 12\n\nObservation: ok", "12"),
    ("Thought: I know\nAnswer: 12", "12"),
    ('Action: searchx\nAction Input: {"q": 1}', ERROR),
    ("Action: searchx\nAction Input: moon", ERROR),
    ("Action: searchx[moon]", ERROR),
    ('{"type": "tool_call", "reasoning": "r", "tool_name": "web_search", "tool_args": {"query": "moon"}}', MOON),
    ('{"type": "final_answer", "reasoning": "r", "answer": "12"}', "12"),
    (
        '{"type": "tool_call", "tool_name": "web_search", "tool_args": {"query": "moon"}}\n{"type": "final_answer", "answer": "x"}',
        MOON,
    ),
    (
        '{"type": "final_answer", "answer": "x"}\n{"type": "tool_call", "tool_name": "web_search", "tool_args": {"query": "moon"}}',
        "x",
    ),
    ('Sure:\n{"type": "tool_call", "tool_name": "web_search", "tool_args": {"query": "moon"}}\nok', MOON),
    ('{"type": "tool_call", "tool_name": "nope", "tool_args": {"query": "moon"}}', ERROR),
    ('{"tool_name": "web_search", "tool_args": {"query": "moon"}', MOON),
    ('{"tool_name": "web_search", "tool_args": {"query": "mo', ERROR),
    ('{"name": "nope", "arguments": {}}', ERROR),
    ('{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}'),
    ('{"answer": "42"}', '{"answer": "42"}'),
    ('{"function_call": {"name": "web_search", "arguments": "{\\"query\\": \\"moon\\"}"}}', MOON),
    (
        '{"tool_calls": [{"id": "1", "type": "function", "function": {"name": "web_search", "arguments": "{\\"query\\": \\"moon\\"}"}}]}',
        MOON,
    ),
    ('[{"name": "web_search", "arguments": {"query": "moon"}}]', MOON),
    ('{"tool_uses": [{"recipient_name": "functions.web_search", "parameters": {"query": "moon"}}]}', MOON),
    ('{"web_search": {"query": "moon"}}', MOON),
    ('{"function": "web_search", "parameters": {"query": "moon"}}', MOON),
    ('{"tool": "web_search", "query": "moon"}', MOON),
    (
        '{"name": "web_search", "arguments": {"query": "moon"}}\n{"name": "get_time", "arguments": {}}',
        [*MOON, ("get_time", {})],
    ),
    ('Let me.\n\n{"name": "web_search", "arguments": {"query": "moon"}}', MOON),
    ('{{"name": "web_search", "arguments": {{"query": "moon"}}}}', MOON),
    ('{{"name": "web_search", "arguments": {"query": "moon"}}}', MOON),
    ("The model emits <tool_call> tags to call tools.", "The model emits <tool_call> tags to call tools."),
    ("Use [TOOL_CALLS] for that.", "Use [TOOL_CALLS] for that."),
    ("Use `Action: x` lines.", "Use `Action: x` lines."),
    ('I would call web_search(query="x") here.', 'I would call web_search(query="x") here.'),
    ("<think>a</think>\n\nHello", "Hello"),
    ("reason </think>Hello", "Hello"),
    ('<think>\n<tool_call>{"name": "web_search", "arguments": {"query": "moon"}}</tool_call>', ""),
    (
        '<tool_call>{"name": "web_search", "arguments": {"query": "moon"}}</tool_call>\n<tool_response>x</tool_response>\n<tool_call>{"name": "get_time", "arguments": {}}</tool_call>',
        MOON,
    ),
    ('<tool_call>{"name": "nope", "arguments": {}}</tool_call>', ERROR),
    ('<tool_call>{"name": "web_search", "arguments": {"query": "moon"</tool_call>', MOON),
    ('<tool_call>{"name": "web_search", "arguments": {"query": "mo</tool_call>', ERROR),
    ('<tool_call>{"name": "web_search", "arguments": {"query": "moon"', ERROR),
    ("<function=web_search><parameter=query>mo", ERROR),
    (
        '<|open|>tools<|sep|><|open|>call tool="web_search" index="1"<|sep|><|open|>argument key="query" type="string"<|sep|>moon<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        MOON,
    ),
    ('{"query": "moon"}', '{"query": "moon"}'),
    ("", ""),
    ("Thought: no tool needed\nAction: None\nAction Input: None\nFinal Answer: hi", "hi"),
    ("Action: web_search\nInput: moon", MOON),
    ("<final_answer>\n42\n</final_answer>", "42"),
    ('<tool_call>\n{{"name": "web_search", "arguments": {"query": "moon"}}}\n</tool_call>', MOON),
    ('<tool_call>{"arguments": {"query": "moon"}}</tool_call>', ERROR),
    ('<invoke name="nope"></invoke>', ERROR),
    ('{"name": "web_search", "arguments": []}', ERROR),
    (
        '{"name": "web_search", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}',
        '{"name": "web_search", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}',
    ),
    ('{"name": "web_search"}', '{"name": "web_search"}'),
    ('{"tool_name": "get_time"}', [("get_time", {})]),
    ("The API call: nope{x}", "The API call: nope{x}"),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_a_turn_in_text(text: str, expected: Any) -> None:
    if expected is ERROR:
        with pytest.raises(ValueError, match=r"\w"):
            read_turn(text, TOOLS)
        return
    turn = read_turn(text, TOOLS)
    if isinstance(expected, str):
        assert (turn.calls, turn.final) == ((), expected)
    else:
        assert [(call.name, call.arguments) for call in turn.calls] == expected
        assert turn.final is None


CUT_CALLS = [text for text, expected in CASES if isinstance(expected, list)]


@pytest.mark.parametrize("text", CUT_CALLS)
def test_a_call_in_a_reply_that_the_output_limit_cut_never_runs(text: str) -> None:
    with pytest.raises(ValueError, match="cut"):
        parse_tool_text(text, TOOLS, "length")


@pytest.mark.parametrize("text", CUT_CALLS)
def test_no_beginning_of_a_call_runs_with_other_arguments_than_the_whole(text: str) -> None:
    whole = parse_tool_text(text, TOOLS)["tool_calls"]
    for end in range(1, len(text)):
        try:
            part = parse_tool_text(text[:end], TOOLS, "length")
        except ValueError:
            continue
        assert "tool_calls" not in part, (text[:end], whole)


def test_tools_may_be_names_mappings_or_tools() -> None:
    tool = Tool("web_search", "", parameters(query=TEXT), lambda query: query)
    for tools in (["web_search"], [{"name": "web_search"}], [tool]):
        assert parse_tool_text('{"name": "web_search", "arguments": {"query": "moon"}}', tools) == {
            "tool_calls": [{"name": "web_search", "arguments": {"query": "moon"}}]
        }


def test_an_unknown_tool_is_told_with_the_nearest_one() -> None:
    with pytest.raises(UnknownToolError) as caught:
        read_turn('{"name": "web_serch", "arguments": {}}', TOOLS)
    assert (caught.value.name, caught.value.nearest) == ("web_serch", "web_search")
    with pytest.raises(UnknownToolError, match="There are no tools"):
        read_turn('{"name": "web_serch", "arguments": {}}', [])


def test_reasoning_and_explicitness() -> None:
    turn = read_turn('<think>hm</think>{"type": "final_answer", "reasoning": "so", "answer": "12"}', TOOLS)
    assert (turn.final, turn.reasoning, turn.explicit) == ("12", "hm\nso", True)
    turn = read_turn("Thought: look it up\nAction: get_time\nAction Input: {}", TOOLS)
    assert turn.reasoning == "look it up"
    assert read_turn("Final Answer: 12", TOOLS).explicit
    assert not read_turn("12", TOOLS).explicit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", ("", "plain")),
        ("<think>a</think>b", ("a", "b")),
        ("<thinking>a</thinking>b", ("a", "b")),
        ("<reasoning>a</reasoning>b", ("a", "b")),
        ("<THINK>a</THINK>b", ("a", "b")),
        ("[THINK]a[/THINK]b", ("a", "b")),
        ("a</think>b", ("a", "b")),
        ("<think>a", ("a", "")),
        ("x <think>a</think> y", ("a", "x  y")),
        ("<think>a</think>b<think>c</think>d", ("a\nc", "bd")),
        ("<think>a <think>b</think> c</think>d", ("a <think>b\nc", "d")),
        ('{"html": "<think>x</think>"}', ("", '{"html": "<think>x</think>"}')),
    ],
)
def test_reasoning_is_taken_out(text: str, expected: tuple[str, str]) -> None:
    assert strip_reasoning(text) == expected

"""For every rule a request that breaks it, and for every dialect conversations that break none."""

from __future__ import annotations

from typing import Any

from .common import seal

Body = dict[str, Any]

USER = {"role": "user", "content": "Add 2 and 3."}
CHAT_TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}
OPEN_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
FLAT_TOOL = {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}}
CLAUDE_TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {}}}


def chat(*messages: Any, model: str = "fake-model", **more: Any) -> Body:
    return {"model": model, "messages": list(messages) or [USER], **more}


def says(*ids: Any, name: str = "add", arguments: Any = "{}", **more: Any) -> Body:
    calls = [{"id": one, "type": "function", "function": {"name": name, "arguments": arguments}} for one in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls, **more}


def result(call_id: str) -> Body:
    return {"role": "tool", "tool_call_id": call_id, "content": "5"}


def responses(*items: Any, model: str = "fake-model", **more: Any) -> Body:
    return {"model": model, "input": list(items) or [USER], "store": False, **more}


def call(call_id: Any = "c1", name: str = "add", **more: Any) -> Body:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}", **more}


def output(call_id: Any = "c1") -> Body:
    return {"type": "function_call_output", "call_id": call_id, "output": "5"}


def thought(own: str = "rs_1", **more: Any) -> Body:
    return {"type": "reasoning", "id": own, "summary": [], "encrypted_content": seal(own, "enc"), **more}


def claude(*messages: Any, model: str = "fake-claude", **more: Any) -> Body:
    return {"model": model, "max_tokens": 4096, "messages": list(messages) or [USER], **more}


def uses(*ids: Any, name: str = "add", before: tuple[Body, ...] = (), given: Any = None) -> Body:
    blocks = [{"type": "tool_use", "id": one, "name": name, "input": {} if given is None else given} for one in ids]
    return {"role": "assistant", "content": [*before, *blocks]}


def results(*ids: str, content: Any = "5", before: tuple[Body, ...] = ()) -> Body:
    blocks = [{"type": "tool_result", "tool_use_id": one, "content": content} for one in ids]
    return {"role": "user", "content": [*before, *blocks]}


def text(value: str) -> Body:
    return {"type": "text", "text": value}


def thinking(value: str = "hm", signature: str | None = None) -> Body:
    return {"type": "thinking", "thinking": value, "signature": signature or seal(value, "sig")}


BUDGET = {"type": "enabled", "budget_tokens": 2048}
TOOLED: Body = {"tools": [CHAT_TOOL]}
FLAT: Body = {"tools": [FLAT_TOOL]}
CLAUDE: Body = {"tools": [CLAUDE_TOOL]}
SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": OPEN_SCHEMA, "strict": True}}

BREAKS: dict[str, Body | bytes] = {
    "body-json": b'{"model": "fake-model", "messages": [{"role": "user", "content": "\xff"}]}',
    "body-surrogate": b'{"model": "fake-model", "messages": [{"role": "user", "content": "\\ud83d"}]}',
    "chat-required": {"model": "fake-model", "messages": []},
    "chat-unknown-parameter": chat(reasoning={"effort": "low"}),
    "chat-roles": chat({"role": "model", "content": "hi"}),
    "chat-content": chat({"role": "user", "content": None}),
    "chat-empty-tools": chat(tools=[]),
    "chat-call-id": chat(USER, says(""), result(""), **TOOLED),
    "chat-unique-id": chat(USER, says("c1", "c1"), result("c1"), **TOOLED),
    "chat-calls-answered": chat(USER, says("c1", "c2"), result("c1"), USER, **TOOLED),
    "chat-orphan-tool": chat(result("c1"), USER),
    "chat-tool-name": chat(tools=[{"type": "function", "function": {"name": "drive.search"}}]),
    "chat-history-arguments": chat(USER, says("c1", arguments='{"a": "cut'), result("c1"), **TOOLED),
    "chat-history-arguments-llamacpp": chat(
        USER, says("c1", arguments="null"), result("c1"), model="fake-llamacpp", **TOOLED
    ),
    "chat-tool-choice-without-tools": chat(tool_choice="auto"),
    "chat-parallel-without-tools": chat(parallel_tool_calls=False),
    "chat-tool-choice-known": chat(tool_choice={"type": "function", "function": {"name": "sub"}}, **TOOLED),
    "chat-json-word": chat(response_format={"type": "json_object"}),
    "chat-json-schema": chat(response_format={"type": "json_schema", "json_schema": {"schema": OPEN_SCHEMA}}),
    "chat-strict-schema": chat(response_format=SCHEMA_FORMAT),
    "chat-stream-options": chat(stream_options={"include_usage": True}),
    "chat-reasoning-max-tokens": chat(model="fake-reasoning", max_tokens=100),
    "chat-reasoning-temperature": chat(model="fake-reasoning", temperature=0),
    "chat-reasoning-tools": chat(model="fake-reasoning", **TOOLED),
    "chat-alternation": chat(USER, USER, model="fake-strict-template"),
    "chat-system-first": chat(USER, {"role": "system", "content": "late"}, model="fake-strict-template"),
    "chat-reasoning-echo": chat(USER, says("c1"), result("c1"), model="fake-needs-echo", **TOOLED),
    "responses-required": {"model": "fake-model"},
    "responses-input-empty": {"model": "fake-model", "input": []},
    "responses-unknown-parameter": responses(messages=[USER]),
    "responses-item-field": responses(USER, thought(status=None), call(), output()),
    "responses-roles": responses({"role": "tool", "content": "5"}),
    "responses-content-type": responses({"role": "user", "content": [text("hi")]}),
    "responses-call-id": responses(USER, call(""), output("")),
    "responses-unique-item": responses(USER, call(), output(), output()),
    "responses-item-id": responses(USER, call(id="call_1"), output()),
    "responses-output-has-call": responses(USER, output()),
    "responses-call-has-output": responses(USER, call(), USER),
    "responses-tool-name": responses(tools=[{**FLAT_TOOL, "name": "a b"}]),
    "responses-tool-choice-without-tools": responses(tool_choice="required"),
    "responses-tool-choice-known": responses(tool_choice={"type": "function", "name": "sub"}, **FLAT),
    "responses-json-word": responses(instructions="Answer in JSON.", text={"format": {"type": "json_object"}}),
    "responses-json-schema": responses(text={"format": {"type": "json_schema", "schema": OPEN_SCHEMA}}),
    "responses-strict-schema": responses(
        text={"format": {"type": "json_schema", "name": "n", "schema": OPEN_SCHEMA, "strict": True}}
    ),
    "responses-reasoning-followed": responses(USER, thought(), USER),
    "responses-reasoning-before": responses(USER, call(id="fc_1x0_after_rs_1"), output()),
    "responses-reasoning-encrypted": responses(
        USER, {"type": "reasoning", "id": "rs_1", "summary": []}, call(), output()
    ),
    "responses-encrypted-intact": responses(USER, thought(encrypted_content="enc_other"), call(), output()),
    "responses-reasoning-summary": responses(USER, thought(summary=None), call(), output()),
    "responses-reasoning-temperature": responses(model="fake-reasoning", temperature=0.2),
    "anthropic-required": {"model": "fake-claude", "messages": [USER]},
    "anthropic-unknown-parameter": claude(response_format={"type": "json_object"}),
    "anthropic-extra-field": claude({**USER, "reasoning_content": "hm"}),
    "anthropic-roles": claude({"role": "system", "content": "s"}, USER),
    "anthropic-first-user": claude({"role": "assistant", "content": "hi"}, USER),
    "anthropic-empty-message": claude(USER, {"role": "assistant", "content": []}, USER),
    "anthropic-empty-text": claude(USER, uses("t1"), results("t1", content=[text("")]), **CLAUDE),
    "anthropic-blank-text": claude({"role": "user", "content": [text(" \n")]}),
    "anthropic-system-text": claude(system=[text("")]),
    "anthropic-use-id": claude(USER, uses("functions.add:0"), results("functions.add:0"), **CLAUDE),
    "anthropic-unique-use": claude(USER, uses("t1"), results("t1"), uses("t1"), results("t1"), **CLAUDE),
    "anthropic-use-input": claude(USER, uses("t1", given="{}"), results("t1"), **CLAUDE),
    "anthropic-uses-answered": claude(USER, uses("t1", "t2"), results("t1"), **CLAUDE),
    "anthropic-results-first": claude(USER, uses("t1"), results("t1", before=(text("So:"),)), **CLAUDE),
    "anthropic-result-has-use": claude(results("t1"), **CLAUDE),
    "anthropic-one-result": claude(USER, uses("t1"), results("t1", "t1"), **CLAUDE),
    "anthropic-tool-name": claude(tools=[{**CLAUDE_TOOL, "name": "a/b"}]),
    "anthropic-unique-tool": claude(tools=[CLAUDE_TOOL, CLAUDE_TOOL]),
    "anthropic-tool-schema": claude(tools=[{"name": "add", "input_schema": {}}]),
    "anthropic-tool-choice-form": claude(tool_choice="auto", **CLAUDE),
    "anthropic-tool-choice-without-tools": claude(tool_choice={"type": "auto"}),
    "anthropic-tool-choice-known": claude(tool_choice={"type": "tool", "name": "sub"}, **CLAUDE),
    "anthropic-no-prefill": claude(USER, {"role": "assistant", "content": "So"}, model="fake-claude-new"),
    "anthropic-trailing-blank": claude(USER, {"role": "assistant", "content": "So "}),
    "anthropic-no-sampling": claude(model="fake-claude-new", temperature=0.0),
    "anthropic-thinking-type": claude(model="fake-claude-new", thinking=BUDGET),
    "anthropic-thinking-forced-tool": claude(thinking=BUDGET, tool_choice={"type": "tool", "name": "add"}, **CLAUDE),
    "anthropic-thinking-budget": claude(thinking={"type": "enabled", "budget_tokens": 4096}),
    "anthropic-thinking-temperature": claude(thinking=BUDGET, temperature=0.5),
    "anthropic-thinking-first": claude(USER, uses("t1"), results("t1"), thinking=BUDGET, **CLAUDE),
    "anthropic-thinking-unchanged": claude(
        USER, uses("t1", before=(thinking(signature="sig_other"),)), results("t1"), thinking=BUDGET, **CLAUDE
    ),
}

CLOSED_SCHEMA = {**OPEN_SCHEMA, "required": ["n"], "additionalProperties": False}
JSON_USER = {"role": "user", "content": "Answer in JSON."}

GOOD: dict[str, tuple[Body, ...]] = {
    "chat": (
        chat(),
        chat({"role": "system", "content": "s"}, USER, says("c1", "c2"), result("c2"), result("c1"), USER, **TOOLED),
        chat(tool_choice={"type": "function", "function": {"name": "add"}}, parallel_tool_calls=False, **TOOLED),
        chat(JSON_USER, response_format={"type": "json_object"}, max_tokens=50, temperature=0),
        chat(
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": CLOSED_SCHEMA, "strict": True},
            }
        ),
        chat(model="fake-reasoning", max_completion_tokens=50, reasoning_effort="none", temperature=1, **TOOLED),
        chat(
            {"role": "system", "content": "s"}, USER, says("c1"), result("c1"), model="fake-strict-template", **TOOLED
        ),
        chat(USER, says("c1", reasoning_content=""), result("c1"), model="fake-needs-echo", **TOOLED),
    ),
    "responses": (
        responses(),
        {"model": "fake-model", "input": "hi"},
        responses(USER, thought(), call(id="fc_1x0_after_rs_1"), output(), USER, **FLAT),
        responses(JSON_USER, instructions="s", text={"format": {"type": "json_object"}}, temperature=0),
        responses(text={"format": {"type": "json_schema", "name": "n", "schema": CLOSED_SCHEMA, "strict": True}}),
        responses(model="fake-reasoning", reasoning={"effort": "low"}, max_output_tokens=50, **FLAT),
    ),
    "anthropic": (
        claude(),
        claude(USER, uses("t1", "t2", before=(text("So:"),)), results("t2", "t1"), system="s", temperature=0, **CLAUDE),
        claude(USER, uses("t1", before=(thinking(),)), results("t1"), thinking=BUDGET, **CLAUDE),
        claude(USER, {"role": "assistant", "content": "So"}),
        claude(USER, uses("t1"), results("t1"), model="fake-claude-new", thinking={"type": "adaptive"}, **CLAUDE),
        claude(tool_choice={"type": "tool", "name": "add", "disable_parallel_tool_use": True}, **CLAUDE),
        claude(USER, uses("t1"), results("t1", content="")),
    ),
}

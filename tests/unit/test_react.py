"""The agent's loop: limits, modes, repetition, checklist, interrupts, failures."""

from __future__ import annotations

import asyncio

import pytest

from agent import InterruptQueue, ReActAgent
from registry.errors import (
    AuthError,
    BadRequestError,
    ContentFilterError,
    ContextLengthError,
    OverloadedError,
    RefusalError,
)
from registry.messages import LLMResult, Message, ToolCall, Usage
from registry.testing import FakeClock, ScriptedLLM
from registry.tools import Tool, tool

JSON_ONLY = {"json_mode": True, "streaming": True}
NOTHING: dict[str, bool] = {}


@tool(read_only=True)
def look_up(key: str) -> str:
    """Looks a key up in the table."""
    return f"value of {key}"


def call(name: str, number: int = 1, **arguments: object) -> ToolCall:
    return ToolCall(f"c{number}", name, arguments)


def roles(result: object) -> list[str]:
    return [message.role for message in result.messages]  # type: ignore[attr-defined]


async def test_native_run_answers_with_the_trace():
    llm = ScriptedLLM([[call("look_up", key="a")], "the answer"])
    result = await ReActAgent(llm, [look_up]).run("what is a?")
    assert (result.answer, result.stop_reason, result.iterations) == ("the answer", "final_answer", 2)
    assert roles(result) == ["system", "user", "assistant", "tool", "assistant"]
    told = result.messages[3]
    assert (told.role, told.tool_call_id, told.is_error) == ("tool", "c1", False)
    assert "\nvalue of a\n" in told.content
    assert [(one.name, one.observation) for one in result.tool_calls] == [("look_up", "value of a")]
    assert result.usage.calls == 2
    assert llm.requests[0].tools[0].name == "look_up"


async def test_json_run_one_tool_a_turn_observation_as_user_message():
    llm = ScriptedLLM(
        [
            '{"type": "tool_call", "reasoning": "need a", "tool_name": "look_up", "tool_args": {"key": "a"}}',
            '{"type": "final_answer", "reasoning": "done", "answer": "it is a"}',
        ],
        abilities=JSON_ONLY,
    )
    result = await ReActAgent(llm, [look_up]).run("q")
    assert result.answer == "it is a"
    assert roles(result) == ["system", "user", "assistant", "user", "assistant"]
    assert "value of a" in result.messages[3].content
    assert llm.requests[0].response_format == {"type": "json_object"}
    assert not llm.requests[0].tools
    assert "look_up" in llm.requests[0].messages[0].content


async def test_no_abilities_runs_the_json_form_without_response_format():
    llm = ScriptedLLM(['{"type": "final_answer", "reasoning": "", "answer": "hi"}'], abilities=NOTHING)
    result = await ReActAgent(llm, [look_up]).run("hello")
    assert result.answer == "hi"
    assert llm.requests[0].response_format is None


async def test_unparseable_twice_makes_the_text_the_answer():
    llm = ScriptedLLM(["well, let me think", "still only prose"], abilities=JSON_ONLY)
    result = await ReActAgent(llm, [look_up]).run("q")
    assert (result.answer, result.unparsed, result.iterations) == ("still only prose", True, 2)
    retry = result.messages[3].content
    assert retry.startswith("Your previous response could not be parsed as valid JSON")


async def test_results_follow_in_call_order_whatever_finishes_first():
    async def slow(k: int) -> str:
        await asyncio.sleep(0.02 / k)
        return f"r{k}"

    wait = Tool("wait", "Waits.", {"type": "object", "properties": {"k": {"type": "integer"}}}, slow)
    llm = ScriptedLLM([[call("wait", n, k=n) for n in (1, 2, 3)], "done"])
    result = await ReActAgent(llm, [wait], completion_check=False).run("q")
    assert [message.content for message in result.messages if message.role == "tool"] == ["r1", "r2", "r3"]


async def test_max_iterations_keeps_what_was_found():
    count = iter(range(100))
    llm = ScriptedLLM(lambda request: [call("look_up", key=str(next(count)))])
    result = await ReActAgent(llm, [look_up], max_iterations=6).run("q")
    assert (result.stop_reason, result.iterations, len(llm.requests)) == ("max_iterations", 6, 6)
    assert "value of 0" in result.answer
    assert len(result.tool_calls) == 5
    assert llm.requests[-1].tool_choice == "none"
    assert llm.requests[-1].tools
    pairs = {c.id for message in result.messages for c in message.tool_calls}
    assert pairs  # every call is answered, the last one too
    assert result.messages[-1].role == "tool"


async def test_last_turn_may_still_answer():
    llm = ScriptedLLM([[call("look_up", key="a")], "short but true"])
    result = await ReActAgent(llm, [look_up], max_iterations=2).run("q")
    assert (result.stop_reason, result.answer) == ("final_answer", "short but true")
    assert "last turn" in llm.requests[1].messages[-1].content


async def test_identical_calls_are_warned_about_refused_and_end_the_run():
    runs = []

    def note() -> str:
        runs.append(1)
        return "same"

    same = Tool("same", "Says the same.", {"type": "object", "properties": {}}, note)
    llm = ScriptedLLM(lambda request: [call("same")])
    result = await ReActAgent(llm, [same], max_iterations=30).run("q")
    assert (result.stop_reason, len(runs), len(llm.requests)) == ("loop_detected", 3, 6)
    warning = (
        "You have called same with identical arguments 3 times and received the same result. "
        "Please try a different approach or tool."
    )
    assert [message.content for message in result.messages].count(warning) == 1


async def test_argument_spelling_makes_no_difference():
    spellings = iter([{"a": 1, "b": 2}, {"b": 2, "a": 1.0}, {"a": 1, "b": 2.0}, {"b": 2, "a": 1}] * 3)
    add = Tool("add", "Adds.", {"type": "object", "properties": {"a": {}, "b": {}}}, lambda a, b: "3")
    llm = ScriptedLLM(lambda request: [ToolCall("c", "add", next(spellings))])
    result = await ReActAgent(llm, [add]).run("q")
    assert result.stop_reason == "loop_detected"


async def test_a_constrained_model_is_not_offered_what_it_repeats():
    call_text = '{"type": "tool_call", "reasoning": "", "tool_name": "look_up", "tool_args": {"key": "a"}}'
    other = Tool("other", "Something else.", {"type": "object", "properties": {}}, lambda: "x")
    final = '{"type": "final_answer", "reasoning": "", "answer": "ok"}'
    llm = ScriptedLLM([call_text, call_text, final], abilities={"json_mode": True, "json_schema": True})
    await ReActAgent(llm, [look_up, other]).run("q")

    def offered(number: int) -> set[str]:
        schema = llm.requests[number].response_format["json_schema"]["schema"]  # type: ignore[index]
        return {one["properties"].get("tool_name", {}).get("const", "") for one in schema["anyOf"]} - {""}

    assert offered(1) == {"look_up", "other"}
    assert offered(2) == {"other"}


async def test_polling_stays_legal():
    ticks = iter(range(100))
    poll = Tool("poll", "Polls.", {"type": "object", "properties": {}}, lambda: f"tick {next(ticks)}")
    script = [[call("poll")] for _ in range(10)] + ["ready"]
    llm = ScriptedLLM(script)
    result = await ReActAgent(llm, [poll], completion_check=False).run("q")
    assert (result.answer, len(result.tool_calls)) == ("ready", 10)


@pytest.mark.parametrize("period", [2, 3, 4])
async def test_cycles_are_loops_too(period: int):
    turns = iter(range(1000))
    llm = ScriptedLLM(lambda request: [call("look_up", key=str(next(turns) % period))])
    result = await ReActAgent(llm, [look_up], max_iterations=40).run("q")
    assert result.stop_reason == "loop_detected"
    assert len([one for one in result.tool_calls if one.ran]) == 3 * period


async def test_unknown_tools_are_bounded_whatever_their_names():
    names = iter(range(100))
    llm = ScriptedLLM(lambda request: [call(f"nope_{next(names)}")])
    result = await ReActAgent(llm, [look_up], max_iterations=20).run("q")
    assert result.stop_reason == "loop_detected"
    assert len(llm.requests) <= 6
    assert "look_up" in result.tool_calls[0].observation


async def test_checklist_turn_is_consumed():
    script = [[call("look_up", n, key=str(n))] for n in range(3)] + ["draft", "I checked all.", "final text"]
    llm = ScriptedLLM(script)
    result = await ReActAgent(llm, [look_up]).run("q")
    assert (result.answer, result.iterations) == ("final text", 6)


async def test_checklist_may_lead_back_to_tools_and_comes_once():
    script = [[call("look_up", n, key=str(n))] for n in range(3)]
    script += ["draft", [call("look_up", 9, key="more")], "better"]
    llm = ScriptedLLM(script)
    result = await ReActAgent(llm, [look_up]).run("q")
    assert (result.answer, len(result.tool_calls)) == ("better", 4)


async def test_no_checklist_without_tools_or_when_switched_off():
    assert (await ReActAgent(ScriptedLLM(["hello"]), [look_up], completion_check_min_tools=1).run("hi")).iterations == 1
    script = [[call("look_up", n, key=str(n))] for n in range(3)] + ["answer"]
    result = await ReActAgent(ScriptedLLM(script), [look_up], completion_check=False).run("q")
    assert result.answer == "answer"


async def test_checklist_skipped_when_too_few_iterations_remain():
    script = [[call("look_up", n, key=str(n))] for n in range(3)] + ["answer"]
    result = await ReActAgent(ScriptedLLM(script), [look_up], max_iterations=5).run("q")
    assert (result.answer, result.iterations) == ("answer", 4)


async def test_reflection_after_all_results_every_six_tool_turns():
    script = [[call("look_up", n, key=str(n))] for n in range(6)] + ["answer"]
    result = await ReActAgent(ScriptedLLM(script), [look_up], completion_check=False).run("q")
    assert roles(result)[-3:] == ["tool", "user", "assistant"]
    assert "most direct next step" in result.messages[-2].content


async def test_interrupt_holds_back_a_native_answer():
    queue = InterruptQueue()

    def reply(request: object) -> str:
        if len(llm.requests) == 1:
            queue.put("also Porto")
            queue.put("in kilometres")
            return "only Lyon"
        return "Lyon and Porto"

    llm = ScriptedLLM(reply)
    result = await ReActAgent(llm, [look_up], interrupts=queue).run("q")
    assert result.answer == "Lyon and Porto"
    taken = [message for message in result.messages if message.content.startswith("[USER INTERRUPT]")]
    assert len(taken) == 1
    assert taken[0].pinned
    assert "also Porto" in taken[0].content
    assert "in kilometres" in taken[0].content


async def test_native_interrupt_stands_after_the_tool_results():
    queue = InterruptQueue()

    def note(key: str) -> str:
        queue.put("hurry")
        return key

    noted = Tool("noted", "Notes.", {"type": "object", "properties": {"key": {"type": "string"}}}, note)
    llm = ScriptedLLM([[call("noted", 1, key="a"), call("noted", 2, key="b")], "done"])
    result = await ReActAgent(llm, [noted], interrupts=queue).run("q")
    assert roles(result) == ["system", "user", "assistant", "tool", "tool", "user", "assistant"]


async def test_json_interrupt_comes_before_the_final_answer_counts():
    queue = InterruptQueue()

    def reply(request: object) -> str:
        if len(llm.requests) == 1:
            queue.put("wait")
            return '{"type": "final_answer", "reasoning": "", "answer": "early"}'
        return '{"type": "final_answer", "reasoning": "", "answer": "late"}'

    llm = ScriptedLLM(reply, abilities=JSON_ONLY)
    assert (await ReActAgent(llm, [look_up], interrupts=queue).run("q")).answer == "late"


@pytest.mark.parametrize(
    ("error", "reason", "code"),
    [
        (AuthError("wrong key"), "llm_error", "auth"),
        (RefusalError("no"), "refusal", "refusal"),
        (ContentFilterError(), "content_filter", "content_filter"),
        (ContextLengthError("too long"), "context_length", "context_length"),
        (BadRequestError("no reason"), "llm_error", "bad_request"),
    ],
)
async def test_provider_errors_end_the_run_with_what_was_gathered(error: Exception, reason: str, code: str):
    llm = ScriptedLLM([[call("look_up", key="a")], error, error])
    result = await ReActAgent(llm, [look_up]).run("q")
    assert (result.stop_reason, result.error) == (reason, code)
    assert "value of a" in result.answer
    assert len(llm.requests) == 2  # nothing identical is sent twice


async def test_outages_are_retried_by_the_model_not_by_the_loop():
    clock = FakeClock()
    llm = ScriptedLLM([OverloadedError(), OverloadedError(), "fine"], clock=clock)
    result = await ReActAgent(llm).run("q")
    assert (result.answer, result.iterations, len(clock.sleeps)) == ("fine", 1, 2)


async def test_context_overflow_compacts_harder_once():
    long = "x" * 40_000

    def reply(request: object) -> object:
        size = sum(len(message.content) for message in request.messages)  # type: ignore[attr-defined]
        if "Summarise" in request.messages[0].content or "earlier part" in request.messages[0].content:  # type: ignore[attr-defined]
            return "summary of old work"
        if size > 50_000:
            return ContextLengthError("prompt is too long")
        return "done" if size > 100 and turns.pop() == 0 else [call("big", len(turns), n=len(turns))]

    turns = [0, 1, 1, 1, 1, 1]
    big = Tool("big", "Gives much.", {"type": "object", "properties": {"n": {"type": "integer"}}}, lambda n: long)
    llm = ScriptedLLM(reply, context_size=60_000)
    result = await ReActAgent(llm, [big], completion_check=False).run("q")
    sent = [tuple((message.role, message.content) for message in request.messages) for request in llm.requests]
    assert len(sent) == len(set(sent))
    assert result.stop_reason in ("final_answer", "context_length")


async def test_empty_replies_are_nudged_twice_then_an_error():
    llm = ScriptedLLM([[call("look_up", key="a")], "", " ", ""])
    result = await ReActAgent(llm, [look_up]).run("q")
    assert (result.stop_reason, result.iterations) == ("empty_response", 4)
    assert "value of a" in result.answer
    recovered = await ReActAgent(ScriptedLLM(["", "here"]), [look_up]).run("q")
    assert recovered.answer == "here"


def cut(text: str = "", calls: tuple[ToolCall, ...] = ()) -> LLMResult:
    return LLMResult(Message.assistant(text, calls), Usage(10, 5), "length", "m")


async def test_cut_calls_are_never_run():
    llm = ScriptedLLM([cut(calls=(call("look_up", key="a"),)), "done"])
    result = await ReActAgent(llm, [look_up]).run("q")
    assert result.tool_calls[0].ran is False
    assert "output limit" in result.tool_calls[0].observation
    assert result.messages[3].is_error


async def test_a_cut_answer_is_continued_once():
    result = await ReActAgent(ScriptedLLM([cut("first half "), "second half"])).run("q")
    assert (result.answer, result.stop_reason) == ("first half second half", "final_answer")
    result = await ReActAgent(ScriptedLLM([cut("first half "), cut("more")])).run("q")
    assert (result.answer, result.stop_reason) == ("first half more", "truncated")


async def test_the_output_limit_reached_exactly_is_a_cut():
    reply = LLMResult(Message.assistant(tool_calls=[call("look_up", key="a")]), Usage(10, 300), "tool_calls", "m")
    llm = ScriptedLLM([reply, "done"], max_output_tokens=300)
    result = await ReActAgent(llm, [look_up]).run("q")
    assert result.tool_calls[0].ran is False


async def test_pause_goes_on_without_a_word():
    pause = LLMResult(Message.assistant("searching"), Usage(1, 1), "pause", "m")
    llm = ScriptedLLM([pause, "found"])
    result = await ReActAgent(llm).run("q")
    assert result.answer == "found"
    assert [message.role for message in llm.requests[1].messages] == ["system", "user", "assistant"]


async def test_leaked_text_calls_are_run_and_paired():
    llm = ScriptedLLM(['<tool_call>{"name": "look_up", "arguments": {"key": "a"}}</tool_call>', "done"])
    result = await ReActAgent(llm, [look_up]).run("q")
    assert result.tool_calls[0].observation == "value of a"
    assert result.messages[2].tool_calls[0].id == result.messages[3].tool_call_id


async def test_a_server_that_refuses_tools_is_asked_in_json():
    llm = ScriptedLLM(
        [BadRequestError("tools are not supported"), '{"type": "final_answer", "reasoning": "", "answer": "ok"}']
    )
    result = await ReActAgent(llm, [look_up]).run("q")
    assert result.answer == "ok"
    assert not llm.abilities["tool_call"]


async def test_cancelling_cancels_and_awaits_the_tools():
    ended = []

    async def wait() -> str:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(1)
        return ""

    slow = Tool("slow", "Waits.", {"type": "object", "properties": {}}, wait)
    agent = ReActAgent(ScriptedLLM([[call("slow", 1), call("slow", 2)]]), [slow])
    task = asyncio.create_task(agent.run("q"))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(ended) == 2
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_many_tools_are_preselected():
    tools = [Tool(f"t{n}", f"Tool {n}.", {"type": "object", "properties": {}}, lambda: "x") for n in range(20)]
    llm = ScriptedLLM([[ToolCall("s", "select_tools", {"tools": ["t3", "zzz", "t1"]})], "done"])
    await ReActAgent(llm, tools).run("q")
    assert [spec.name for spec in llm.requests[1].tools] == ["t1", "t3"]
    llm = ScriptedLLM([[ToolCall("s", "select_tools", {"tools": ["zzz"]})], "done"])
    await ReActAgent(llm, tools).run("q")
    assert len(llm.requests[1].tools) == 20


async def test_events_tell_the_run():
    events = []
    llm = ScriptedLLM([[call("look_up", key="a")], "the answer"])
    agent = ReActAgent(llm, [look_up], on_event=events.append)
    result = await agent.run("q")
    llm._script.append("written for the reader")
    text = "".join([delta async for delta in agent.stream_answer("q", result)])
    assert text == "written for the reader"
    told = [(event.channel, event.payload.get("type"), event.payload.get("status")) for event in events]
    public = [line for line in told if line[0] in ("step", "answer")]
    assert public[:6] == [
        ("step", "thinking", "start"),
        ("step", "thinking", "done"),
        ("step", "iteration", "start"),
        ("step", "iteration", "done"),
        ("step", "thinking", "start"),
        ("step", "thinking", "done"),
    ]
    assert public[6] == ("step", "answer", "start")
    assert public[7] == ("answer", None, "start")
    assert public[-1] == ("answer", None, "done")
    assert [event.seq for event in events] == list(range(1, len(events) + 1))


async def test_failed_synthesis_falls_back_after_a_reset():
    llm = ScriptedLLM(["loop answer", AuthError("gone")])
    agent = ReActAgent(llm)
    result = await agent.run("q")
    assert "".join([delta async for delta in agent.stream_answer("q", result)]) == "loop answer"


@pytest.mark.parametrize("abilities", [None, JSON_ONLY])
async def test_direct_mode_streams_the_last_turn(abilities: dict[str, bool] | None):
    events = []
    final = (
        "a long answer, “quoted” \\ and more"
        if abilities is None
        else (
            '{"type": "final_answer", "reasoning": "r", "answer": "a long answer, \\u201cquoted\\u201d \\\\ and more"}'
        )
    )
    first = (
        [call("look_up", key="a")]
        if abilities is None
        else ('{"type": "tool_call", "reasoning": "", "tool_name": "look_up", "tool_args": {"key": "a"}}')
    )
    llm = ScriptedLLM([first, final], abilities=abilities)
    agent = ReActAgent(llm, [look_up], answer_mode="direct", on_event=events.append)
    result = await agent.run("q")
    deltas = [e.payload["content"] for e in events if e.channel == "answer" and e.payload["status"] == "delta"]
    assert "".join(deltas) == result.answer == "a long answer, “quoted” \\ and more"
    assert len(deltas) > 1
    assert len(llm.requests) == 2


async def test_the_query_stays_when_an_earlier_conversation_had_one_too():
    earlier = [Message.user("earlier " * 2_000, pinned=True), Message.assistant("done")]
    llm = ScriptedLLM(lambda request: "the gist" if "Summarise" in request.messages[0].content else "answer")
    llm.context_size, llm.max_output_tokens = 8_000, 4_000
    result = await ReActAgent(llm, []).run("what now? " + "x" * 7_000, history=earlier)
    sent = llm.requests[-1].messages
    assert result.answer == "answer"
    assert [message.content[:9] for message in sent if message.pinned] == ["what now?"]
    old = [message for message in sent if message.content.startswith("earlier")]
    assert all(len(message.content) < len(earlier[0].content) for message in old)
    assert sent[-1].content.endswith("x" * 7_000)

"""structured_llm_call: levels, retries, what counts as a failure and what does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import BaseModel

from agent import StructuredOutputError, structured_llm_call
from registry.errors import AuthError, BadRequestError, OverloadedError, RefusalError, TruncatedError
from registry.messages import LLMResult, Message, ToolCall, Usage
from registry.testing import FakeClock, ScriptedLLM

SCHEMA = {
    "type": "object",
    "properties": {"steps": {"type": "array", "items": {"type": "object"}}},
    "required": ["steps"],
}
GOOD = '{"steps": [{"id": "s1", "task": "x"}]}'
ASK = [Message.user("plan it")]
FULL = {"tool_call": True, "json_mode": True}
NATIVE = {"tool_call": True}
JSON = {"json_mode": True}
PLAIN: dict[str, bool] = {}


async def ask(llm: ScriptedLLM, **options: object) -> object:
    return await structured_llm_call(llm, ASK, SCHEMA, "make_plan", **options)  # type: ignore[arg-type]


async def test_native_is_one_forced_call():
    llm = ScriptedLLM([[ToolCall("c", "make_plan", json.loads(GOOD))]], abilities=FULL)
    result = await ask(llm)
    assert (result.value, result.level_used, result.llm_calls) == (json.loads(GOOD), "native", 1)
    assert llm.requests[0].tool_choice == {"name": "make_plan"}
    assert llm.requests[0].tools[0].parameters == SCHEMA


async def test_json_in_the_content_of_a_forced_call_is_used():
    result = await ask(ScriptedLLM([GOOD], abilities=FULL))
    assert (result.level_used, result.llm_calls) == ("native", 1)


@pytest.mark.parametrize(
    ("abilities", "calls", "levels"),
    [
        (FULL, 5, ["native", "json_mode", "plain_text"]),
        (NATIVE, 3, ["native", "plain_text"]),
        (JSON, 4, ["json_mode", "plain_text"]),
        (PLAIN, 2, ["plain_text"]),
    ],
)
async def test_most_calls_per_ability(abilities: dict[str, bool], calls: int, levels: list[str]):
    llm = ScriptedLLM(lambda request: "no json here", abilities=abilities)
    with pytest.raises(StructuredOutputError) as caught:
        await ask(llm)
    assert len(llm.requests) == calls
    assert list(dict.fromkeys(level for level, _ in caught.value.causes)) == levels
    assert caught.value.last_reply == "no json here"
    assert caught.value.usage.calls == calls


async def test_retry_shows_little_of_the_bad_reply_and_what_was_wrong():
    llm = ScriptedLLM(['{"steps": "' + "y" * 3000 + '"}', GOOD], abilities=JSON)
    result = await ask(llm)
    assert result.llm_calls == 2
    *_, bad, retry = llm.requests[1].messages
    assert len(bad.content) <= 500
    assert retry.content.startswith("Your previous response could not be parsed as valid JSON")
    assert "steps" in retry.content
    assert json.dumps(SCHEMA) in llm.requests[1].messages[0].content


async def test_parse_fn_failures_go_into_the_retry():
    def strict(data: object) -> object:
        if not data["steps"]:  # type: ignore[index]
            raise ValueError("a plan needs a step")
        return data

    llm = ScriptedLLM(['{"steps": []}', GOOD], abilities=JSON)
    assert (await ask(llm, parse_fn=strict)).value == json.loads(GOOD)
    assert "a plan needs a step" in llm.requests[1].messages[-1].content


async def test_pydantic_models_give_instances():
    class City(BaseModel):
        name: str
        population: int

    llm = ScriptedLLM(['{"name": "Lyon", "population": "522000"}'], abilities=JSON)
    result = await structured_llm_call(llm, ASK, City, "city")
    assert result.value == City(name="Lyon", population=522000)


async def test_json_schema_is_enforced_where_the_model_can():
    llm = ScriptedLLM([GOOD], abilities={"json_mode": True, "json_schema": True})
    await ask(llm)
    assert llm.requests[0].response_format["json_schema"]["schema"] == SCHEMA  # type: ignore[index]


async def test_default_and_regex_fallback():
    llm = ScriptedLLM(["nothing", "nothing"], abilities=PLAIN)
    result = await ask(llm, default_value=None)
    assert (result.value, result.level_used, result.llm_calls) == (None, "default", 2)
    found = await ask(ScriptedLLM(["steps: none"], abilities=PLAIN), regex_fallback=lambda text: {"steps": []})
    assert (found.value, found.llm_calls) == ({"steps": []}, 1)


async def test_a_regex_fallback_that_raises_found_no_value():
    def broken(text: str) -> object:
        raise KeyError(text)

    result = await ask(ScriptedLLM(["a", "b"], abilities=PLAIN), regex_fallback=broken, default_value=None)
    assert (result.level_used, result.llm_calls) == ("default", 2)


async def test_outages_never_burn_through_the_levels():
    clock = FakeClock()
    llm = ScriptedLLM([OverloadedError(), [ToolCall("c", "make_plan", json.loads(GOOD))]], abilities=FULL, clock=clock)
    result = await ask(llm)
    assert (result.level_used, result.llm_calls, len(clock.sleeps)) == ("native", 1, 1)
    lasting = ScriptedLLM(lambda request: OverloadedError(), abilities=FULL, clock=FakeClock())
    with pytest.raises(OverloadedError):
        await ask(lasting)
    assert len(lasting.requests) == 6
    assert all(request.tools for request in lasting.requests)


@pytest.mark.parametrize("error", [AuthError("wrong"), RefusalError("I cannot help with that.")])
async def test_auth_and_refusal_raise_at_once(error: Exception):
    llm = ScriptedLLM([error], abilities=FULL)
    with pytest.raises(type(error)):
        await ask(llm)
    assert len(llm.requests) == 1


async def test_a_refused_mechanism_leads_on_and_is_remembered():
    def reply(request: object) -> object:
        if request.tools:  # type: ignore[attr-defined]
            return BadRequestError("tools are not supported")
        if request.response_format:  # type: ignore[attr-defined]
            return BadRequestError("response_format of type json_object is not supported with this model")
        return "Plan:\n" + GOOD

    llm = ScriptedLLM(reply, abilities=FULL)
    assert (await ask(llm)).level_used == "plain_text"
    assert len(llm.requests) == 3
    await ask(llm)
    assert len(llm.requests) == 4


async def test_another_400_is_not_a_refused_mechanism():
    llm = ScriptedLLM([BadRequestError("invalid user id")], abilities=FULL)
    with pytest.raises(BadRequestError):
        await ask(llm)


async def test_cut_replies_are_not_pasted_back_and_end_as_truncated():
    def cut(request: object) -> LLMResult:
        return LLMResult(Message.assistant('{"steps": [' + '{"id": 1},' * 2000), Usage(50, 3000), "length", "m")

    llm = ScriptedLLM(cut, abilities=FULL)
    question = [Message.user("Plan this. " * 60)]
    with pytest.raises(TruncatedError) as caught:
        await structured_llm_call(llm, question, SCHEMA, "make_plan")
    assert caught.value.code == "truncated"
    assert isinstance(caught.value, StructuredOutputError)
    sizes = [sum(len(message.content) for message in request.messages) for request in llm.requests]
    assert max(sizes[1:]) <= 1.5 * sizes[1]  # the first one has the schema beside the messages
    assert caught.value.usage.output_tokens == 3000 * len(llm.requests)


def cases() -> list[dict[str, object]]:
    file = Path(__file__).parent.parent / "cases" / "provider_protocol.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["context"]["direction"] == "structured"]


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
async def test_protocol_cases_of_the_structured_call(case: dict[str, dict[str, object]]):
    """The levels 1 to 3 answer as the case says; an outcome beside `expect` in `also_ok` counts too."""
    given = case["input"]
    asked: list[int] = []

    def level_of(request: object) -> int:
        return 1 if request.tools else 2 if request.response_format else 3  # type: ignore[attr-defined]

    def reply(request: object) -> object:
        level = level_of(request)
        asked.append(level)
        if error := given.get(f"level_{level}_error"):
            kind = AuthError if error["status"] == 401 else BadRequestError
            return kind(error["message"], status=error["status"])
        if text := given.get(f"level_{level}_reply"):
            return text if isinstance(text, str) else text["content"]
        message = given["message"]
        return LLMResult(Message.assistant(message["refusal"]), Usage(1, 1), "refusal", "m")

    llm = ScriptedLLM(reply, abilities=FULL)
    expect = case["expect"]
    if kind := expect.get("raises") or expect.get("structured", {}).get("raises"):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the code below says which
            await ask(llm)
        assert caught.value.code == kind  # type: ignore[attr-defined]
        assert caught.value.retryable is False  # type: ignore[attr-defined]
        assert expect.get("message_contains", "") in str(caught.value)
        assert len(asked) == expect.get("calls", 1)
        return
    result = await ask(llm)
    allowed = [expect["structured"], *(other["structured"] for other in case.get("also_ok", ()))]
    assert any(asked == one["levels_called"] and result.value == one["value"] for one in allowed)

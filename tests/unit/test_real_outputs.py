"""Replies of small real models: values are recovered where there is one to recover, everything else is told apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.extract import extract_json, parse_tool_text

META, *OUTPUTS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "cases" / "real_outputs.jsonl").read_text(encoding="utf-8").splitlines()
]
TOOLS = [tool["function"] for tool in META["tools"]]
PARAMETER = {tool["name"]: tool["parameters"]["required"][0] for tool in TOOLS}
TURNS = [entry for entry in OUTPUTS if entry["kind"] == "react_turn"]
PLANS = [entry for entry in OUTPUTS if entry["kind"] == "plan"]


def meant(expected: Any) -> dict[str, Any]:
    """The turn that the recorded value stands for: a list of calls, or thought, action and input."""
    if isinstance(expected, list):
        return {"tool_calls": expected}
    if expected["action"] == "final":
        return {"final": expected["input"]}
    name = expected["action"]
    return {"tool_calls": [{"name": name, "arguments": {PARAMETER[name]: expected["input"]}}]}


@pytest.mark.parametrize("entry", [turn for turn in TURNS if turn["expected"] is not None], ids=lambda turn: turn["id"])
def test_a_recoverable_turn_is_recovered(entry: dict[str, Any]) -> None:
    assert parse_tool_text(entry["raw"], TOOLS, entry["finish_reason"]) == meant(entry["expected"])


@pytest.mark.parametrize("entry", [turn for turn in TURNS if turn["expected"] is None], ids=lambda turn: turn["id"])
def test_what_is_no_turn_is_an_answer_in_words_or_an_error(entry: dict[str, Any]) -> None:
    if any(wrong.startswith("final_text") for wrong in entry["wrong"]):
        assert parse_tool_text(entry["raw"], TOOLS, entry["finish_reason"]) == {"final": entry["raw"]}
    else:
        with pytest.raises(ValueError, match=r"unknown tool|limit cut"):
            parse_tool_text(entry["raw"], TOOLS, entry["finish_reason"])


@pytest.mark.parametrize("entry", PLANS, ids=lambda plan: plan["id"])
@pytest.mark.parametrize("schema", [META["plan_schema"], None], ids=["schema", "bare"])
def test_a_plan_is_recovered_or_nothing(entry: dict[str, Any], schema: dict[str, Any] | None) -> None:
    assert extract_json(entry["raw"], schema, entry["finish_reason"]) == entry["expected"]


def test_unknown_tools_are_named_with_the_nearest_one_and_the_format() -> None:
    text = '{"name": "calculater", "arguments": {"expression": "1+1"}}'
    with pytest.raises(ValueError, match=r"unknown tool 'calculater'.*'calculator'.*\"type\": \"tool_call\""):
        parse_tool_text(text, TOOLS)

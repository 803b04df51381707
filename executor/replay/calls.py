"""Whether the calls of tools in a log are those that its replies ask for: results are found by their calls' places, so
that the job itself would not notice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from agent.modes import JSON, NATIVE, Mode
from agent.past import OPENING, TURN, AgentPast, CallPast, Key
from registry.errors import DagwrightError
from registry.messages import LLMResult, ToolCall
from registry.tools import ToolRegistry

from .departures import Departure
from .script import Script


def differing_calls(script: Script, tools: ToolRegistry) -> Iterator[Departure]:
    """The calls that differ from what the model asked for, by their tool or, where no hook may have changed them, by
    their arguments; and those that it did not ask for."""
    seqs: dict[str, int] = {}
    for event in script.events:
        if event.channel == "call":
            seqs.setdefault(event.payload["key"], event.seq)
    for agent, past in AgentPast.read(script.events).items():
        turns = iter(script.turns(*agent, past.role or ("agent" if agent[0] is None else "step")))
        for iteration, calls in _asked(past, turns, tools):
            known = {key: call for key, call in past.calls.items() if call.iteration == iteration}
            for key, call in known.items():
                number = int(key.rpartition("/")[2])
                asked = calls[number - 1] if number <= len(calls) else None
                wrong = _wrong(asked, call, tools, hooks=script.opening["hooks"])
                if wrong is not None:
                    yield _departure(agent, past, key, seqs.get(key), *wrong)


def _asked(
    past: AgentPast, turns: Iterator[LLMResult], tools: ToolRegistry
) -> Iterator[tuple[int, tuple[ToolCall, ...]]]:
    """The calls that each of an agent's turns asks for, by the number of the turn, from 1."""
    mode: Mode = NATIVE
    mine, iteration = tools, 0
    for mark, told in past.line:
        if mark == OPENING:
            mode = JSON if told["mode"] == JSON.name else NATIVE
            mine = tools.subset([name for name in told["tools"] if name in tools])
        elif mark == TURN:
            iteration += 1
            yield iteration, mode.read(next(turns), mine, iteration).calls


def _wrong(asked: ToolCall | None, call: CallPast, tools: ToolRegistry, *, hooks: bool) -> tuple[str, Any, Any] | None:
    """What is wrong with a call: in words, what the log has, what was asked for."""
    told = call.begun or call.over or call.asked
    if told is None:
        return None
    if asked is None:
        return "the reply asks for no such call", told["tool_name"], None
    if asked.name != told["tool_name"]:
        return "the reply asks for another tool", told["tool_name"], asked.name
    if hooks or call.begun is None or not asked.decoded:
        return None
    arguments: Mapping[str, Any] = asked.arguments
    with suppress(DagwrightError):
        arguments = tools.get(asked.name).check(arguments)
    if _loose(arguments) != _loose(call.begun["tool_args"]):
        return "the reply asks for it with other arguments", dict(call.begun["tool_args"]), dict(arguments)
    return None


def _loose(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Arguments as texts: a tool that is not known here can't say whether it wanted a number or its digits."""
    return {name: value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
            for name, value in arguments.items()}  # fmt: skip


def _departure(
    agent: Key, past: AgentPast, key: str, seq: int | None, why: str, expected: Any, found: Any
) -> Departure:
    step, round_, attempt = agent
    where = f"step {step}, " if step is not None else ""
    message = f"{where}round {round_}, attempt {attempt}: the log has the call {key}; {why}"
    role = past.role or ("agent" if step is None else "step")
    return Departure("call", message, seq, step, round_, attempt, role, key, expected, found)

"""The arm that is measured: this project's planner and agent, as anyone would call them for such a model."""

from __future__ import annotations

import argparse
import time
from collections.abc import AsyncGenerator
from typing import Any

from common import (
    MAX_TURNS,
    PEOPLE_AND_CITIES,
    PLAN_TOKENS,
    TURN_TOKENS,
    Record,
    calculator,
    items,
    lookup,
    right,
)

from agent import ReActAgent
from planner import DAGPlanner, PlanError
from registry import LLM, LLMResult, OpenAIChatLLM, StreamChunk, Tool
from registry.errors import DagwrightError
from registry.llm_types import ChatRequest, Prepared

ABILITIES = {"tool_call": False, "json_mode": True, "json_schema": True}


MODELS = {"fast": "easy steps", "reasoning": "hard steps"}


class KeptLLM(LLM):
    """A model whose replies are kept: what was asked before, at the same turn of the same item, isn't asked again."""

    def __init__(self, inner: LLM, record: Record) -> None:
        super().__init__(
            inner.model_id,
            abilities=inner.abilities,
            context_size=inner.context_size,
            max_output_tokens=inner.max_output_tokens,
        )
        self.inner, self.record = inner, record

    def prepare(self, request: ChatRequest) -> Prepared:
        """Nothing of its own."""
        return Prepared(request, b"", request.max_tokens)

    async def send(self, prepared: Prepared) -> LLMResult:
        """The kept reply, or a new one at temperature 0."""
        request = prepared.request
        asked: dict[str, Any] = {"response_format": request.response_format, "max_tokens": request.max_tokens}
        body = {"messages": [message.to_json() for message in request.messages], **asked}
        if known := self.record.known(body):
            return LLMResult.from_json(known["result"])
        started = time.monotonic()
        result = await self.inner.chat(request.messages, temperature=0, **asked)
        self.record.keep(body, result=result.to_json(), seconds=round(time.monotonic() - started, 1))
        return result

    def parse(self, reply: LLMResult, prepared: Prepared) -> LLMResult:
        """It is a result already."""
        return reply

    async def open_stream(self, prepared: Prepared) -> AsyncGenerator[StreamChunk, None]:
        """The reply in one piece."""
        result = await self.send(prepared)
        yield StreamChunk(result.message.content)
        yield StreamChunk(result=result)


def _tool(name: str, description: str, argument: str, run: Any) -> Tool:
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string"}},
        "required": [argument],
        "additionalProperties": False,
    }
    return Tool(name, description, parameters, run, read_only=True, pure=True)


TOOLS = (
    _tool("calculator", "evaluates arithmetic made of numbers", "expression", calculator),
    _tool("lookup", f"gives facts about {PEOPLE_AND_CITIES}", "name", lookup),
)


async def plan(row: dict[str, Any], llm: LLM) -> dict[str, Any]:
    """A goal planned by the planner; valid is what it returns."""
    try:
        made = await DAGPlanner(llm, tools=TOOLS, models=MODELS, prompt_name="plan_short", max_task_chars=160).plan(
            row["goal"]
        )
    except PlanError as error:
        return {"valid": False, "error": "PlanError", "detail": str(error)}
    except DagwrightError as error:
        return {"valid": False, "error": type(error).__name__, "detail": str(error)}
    steps = [[step.id, step.task, list(step.dependencies), step.tool_hint, step.model_hint] for step in made.steps]
    return {
        "valid": True,
        "error": None,
        "steps": steps,
        "repairs": list(made.repairs),
        "warnings": list(made.warnings),
    }


async def question(row: dict[str, Any], llm: LLM) -> dict[str, Any]:
    """A question answered by the agent; a run that gave up has no answer."""
    agent = ReActAgent(llm, TOOLS, use_native_tools=False, max_iterations=MAX_TURNS)
    result = await agent.run(row["question"])
    calls = [[call.name, dict(call.arguments), call.observation] for call in result.tool_calls]
    if result.stop_reason != "final_answer":
        return {"answer": None, "error": result.stop_reason, "calls": calls}
    return {"answer": result.answer, "error": "unparsed" if result.unparsed else None, "calls": calls}


async def run(options: argparse.Namespace) -> None:
    """The set, one item after the other: the server answers one request at a time."""
    record = Record.load("ours")
    for kind, row in items(options.kind, options.limit):
        record.begin(row["id"])
        inner = OpenAIChatLLM(
            "local",
            api_key="none",
            base_url=options.base_url,
            abilities=ABILITIES,
            context_size=8_192,
            max_output_tokens=PLAN_TOKENS if kind == "plan" else TURN_TOKENS,
        )
        llm = KeptLLM(inner, record)
        try:
            outcome = await (plan(row, llm) if kind == "plan" else question(row, llm))
        finally:
            await inner.aclose()
        record.finish(type=kind, **outcome)
        ok = outcome["valid"] if kind == "plan" else right(outcome["answer"], row)
        print(row["id"], "ok" if ok else "--", outcome.get("answer") or outcome["error"] or "", flush=True)

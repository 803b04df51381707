"""What of a tool call is kept, and when: its beginning before it runs, its end at once, and nobody waits for that."""

from __future__ import annotations

from typing import Any

import pytest

from agent import ReActAgent
from agent.services import Services
from registry.llm_types import ChatRequest
from registry.messages import ToolCall
from registry.testing import ScriptedLLM
from registry.tools import Tool

PARAMETERS = {"type": "object", "properties": {}}


@pytest.mark.parametrize("writes", [True, False])
async def test_the_end_of_a_call_that_may_change_something_is_on_its_way_before_anything_is_made_of_it(
    writes: bool,
) -> None:
    seen: list[str] = []

    def told(channel: str, payload: Any) -> None:
        if channel == "call":
            seen.append(payload["status"])

    def brain(request: ChatRequest) -> Any:
        seen.append("model")
        return "done" if any(message.role == "tool" for message in request.messages) else [ToolCall("c", "work", {})]

    async def work() -> str:
        seen.append("work")
        return "worked"

    async def barrier() -> None:
        seen.append("barrier")

    services = Services(barrier=barrier, store=lambda: seen.append("store"))
    agent = ReActAgent(
        ScriptedLLM(brain),
        [Tool("work", "Works.", PARAMETERS, work, read_only=not writes)],
        on_event=lambda event: told(event.channel, event.payload),
        services=services,
    )
    assert (await agent.run("do it")).answer == "done"
    if writes:
        assert seen == ["model", "start", "barrier", "work", "end", "store", "model"]
    else:
        assert seen == ["model", "start", "work", "end", "model"]

"""A chat-completions server that takes so many requests in a time, and what fifty steps of a plan make of it."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

from executor.dag import DAGExecutor
from planner.plan import Plan, PlanStep
from registry.adapters.openai_chat import OpenAIChatLLM
from registry.gate import ProviderGate
from registry.tools import Tool

from .http_script import Answer, HttpScript, chat_reply

STEPS = 50
LOOKS = 2
"""Tool calls of a step; one more request of it gives the answer."""
REQUESTS = STEPS * (LOOKS + 1)


@dataclass
class Window:
    """Takes `limit` calls in `seconds`: in windows that a call opens, or in any stretch of time (`sliding`)."""

    limit: int
    seconds: float
    sliding: bool
    _taken: deque[float] = field(default_factory=deque)

    def refused(self, now: float) -> float | None:
        """Takes a call, or says in how many seconds one is taken again."""
        taken = self._taken
        if self.sliding:
            while taken and taken[0] + self.seconds <= now:
                taken.popleft()
        elif taken and taken[0] + self.seconds <= now:
            taken.clear()
        if len(taken) >= self.limit:
            return taken[0] + self.seconds - now
        taken.append(now)
        return None


@dataclass
class Windows:
    """Takes `limit` requests in `seconds`: in windows that a request opens, or in any stretch of time (`sliding`).

    `told`: whether a refusal says when to come back, exactly or in whole seconds. Times are of `time.monotonic`.
    """

    limit: int = 60
    seconds: float = 3.0
    sliding: bool = False
    told: Literal["exactly", "in whole seconds", "not"] = "exactly"
    latency: float = 0.05
    accepted: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._window = Window(self.limit, self.seconds, self.sliding)

    def answer(self, body: Any) -> Answer:
        """What a request gets."""
        now = time.monotonic()
        if (left := self._window.refused(now)) is not None:
            self.refused.append(now)
            said = {"exactly": f"{left:.6f}", "in whole seconds": str(math.ceil(left)), "not": ""}[self.told]
            return Answer({"error": {"message": "slow"}}, 429, {"retry-after": said} if said else {})
        self.accepted.append(now)
        looked = sum(message["role"] == "tool" for message in body["messages"])
        if looked >= LOOKS:
            return Answer(chat_reply("Done: nothing more to see."), delay=self.latency)
        function = {"name": "look", "arguments": f'{{"at": "page {looked}"}}'}
        calls = [{"id": f"c{looked}", "type": "function", "function": function}]
        return Answer(chat_reply(None, tool_calls=calls, finish_reason="tool_calls"), delay=self.latency)

    @property
    def least(self) -> float:
        """The least seconds that all requests take."""
        return (math.ceil(REQUESTS / self.limit) - 1) * self.seconds

    @property
    def least_told(self) -> float:
        """The least seconds for whom the server's word is all there is: a window ends when it first said."""
        if self.told != "in whole seconds":
            return self.least
        first = self.refused[0] - self.accepted[0]
        return (math.ceil(REQUESTS / self.limit) - 1) * (first + math.ceil(self.seconds - first))

    def later_refusals(self, grace: float = 0.25) -> int:
        """Refusals of requests that were not on their way when the first one was refused."""
        return sum(at > self.refused[0] + grace for at in self.refused)


@dataclass(frozen=True)
class Outcome:
    """How it went: the plan's status, all seconds, and the seconds of the requests alone."""

    status: str
    seconds: float
    spanned: float


async def run_steps(windows: Windows) -> Outcome:
    """Fifty steps of a plan at once, each an agent with two tool calls, against the server."""
    look = Tool("look", "Looks at a page.", {"type": "object", "properties": {"at": {"type": "string"}}}, _look)
    plan = Plan("See everything", tuple(PlanStep(f"s{n}", f"Look at part {n}.") for n in range(STEPS)))
    async with HttpScript(windows.answer) as server:
        llm = OpenAIChatLLM("m", base_url=f"{server.url}/v1", gate=ProviderGate())
        began = time.monotonic()
        result = await DAGExecutor(llm, [look], max_concurrency=STEPS).execute(plan)
        seconds = time.monotonic() - began
        await llm.aclose()
    return Outcome(result.status, seconds, windows.accepted[-1] - windows.accepted[0])


def _look(at: str) -> str:
    return f"seen {at}"

"""Jobs of every kind, each made by a seed, run to their end on scripted models: what is left of them is their log."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any

from agent.hooks import HookContext, HookRegistry, HookResult, PostToolUseHook, PreToolUseHook
from agent.waits import ApprovalRequest, Decision, PendingCall
from executor.job_handle import JobHandle, start_job
from executor.job_options import JobOptions
from executor.job_types import Job
from executor.options import RunOptions
from planner.plan import Plan, PlanStep
from registry import ModelRegistry
from registry.budget_route import BudgetPolicy
from registry.cascade import Cascade
from registry.context import caller
from registry.errors import BadRequestError, ContextLengthError, OverloadedError, ProviderError, RefusalError
from registry.llm_types import ChatRequest
from registry.messages import Event, LLMResult, Message, ToolCall, Usage
from registry.prices import Price
from registry.retry import RetryPolicy
from registry.routing import Hint
from registry.testing import FakeClock, ScriptedLLM
from registry.tools import ToolRegistry, tool

POLICIES = ("skip_dependents", "skip_dependents", "continue", "fail_fast")


@dataclass
class Recorded:
    """What is left of a job. `did` counts what it called: models and tools."""

    seed: int
    job: Job
    events: tuple[Event, ...]
    tools: ToolRegistry
    did: Counter[str]


@dataclass
class World:
    """One seed's job: what it is asked, how its models answer, what is said to it meanwhile."""

    seed: int
    rng: Random = field(init=False)
    routes: Random = field(init=False)
    did: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    job: str = ""

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.routes = Random(-1 - self.seed)  # of its own: a job is what it was before there was routing
        self.wordy = self.chance(0.25)  # its tools say much, and its models can hold little

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    # Models

    def models(self) -> ModelRegistry:
        models = ModelRegistry()
        price = Price(Decimal(1), Decimal(2))
        for name, roles, fallbacks in (
            ("main", ["general"], ["backup"] if self.chance(0.6) else []),
            ("backup", ["smart"] if self.chance(0.4) else [], []),
            ("small", ["fast", "compact", "check"], ["main"]),
        ):
            able = {"tool_call": True, "tool_choice": True, "json_mode": True, "streaming": True}
            llm = ScriptedLLM(
                self._answers(name),
                model_id=f"the {name} one",
                abilities=able if name != "small" or self.chance(0.5) else {"json_mode": True, "streaming": True},
                context_size=5_000 if self.wordy else 128_000,
                price=price,
                clock=FakeClock(),
                chunk_size=7,
            )
            llm.retry = RetryPolicy(tries=2)
            models.register(name, llm, roles, fallbacks)
        return models

    def _answers(self, name: str) -> Callable[[ChatRequest], Any]:
        outage = self.chance(0.12)

        async def answer(request: ChatRequest) -> Any:
            self.did["model"] += 1
            for _ in range(self.rng.randrange(12)):
                await asyncio.sleep(0)
            if outage or self.chance(0.03):
                raise self.rng.choice([ProviderError("down"), OverloadedError("full")])
            if self.chance(0.01):
                raise self.rng.choice([RefusalError("no"), BadRequestError("bad"), ContextLengthError("too long")])
            return self.reply(request)

        return answer

    def reply(self, request: ChatRequest) -> Any:
        """The reply to a call of any kind: by a forced tool call, else as text."""
        choice = request.tool_choice
        if isinstance(choice, dict):
            kind = str(choice["name"])
            return [ToolCall("f", kind, data)] if isinstance(data := self.data(kind), dict) else data
        text = request.messages[0].content + request.messages[-1].content
        for kind, word in (
            ("make_plan", '"steps"'), ("judge_result", '"achieved"'), ("check_result", '"passed"'),
            ("choose_mode", '"domain_hint"'),
        ):  # fmt: skip
            if word in text and "{" in text and not request.tools and "tool_args" not in text:
                import json

                return json.dumps(self.data(kind))
        if request.stream:
            return f"the answer {self.rng.randrange(1000)} " * self.rng.randrange(1, 4)
        return self.step(request)

    def data(self, kind: str) -> Any:
        """What a structured call gives."""
        match kind:
            case "choose_mode":
                hint = self.rng.choice([None, None, "legal"])
                return {"mode": self.rng.choice(["react", "dag"]), "domain_hint": hint}
            case "make_plan":
                if self.chance(0.1):
                    return {"steps": [{"id": "a", "task": "wait for b", "dependencies": ["b"]},
                                      {"id": "b", "task": "wait for a", "dependencies": ["a"]}]}  # fmt: skip
                return {"steps": self.steps()}
            case "revise_plan":
                self.rounds += 1
                new = [{"id": f"r{self.rounds}_{at}", "task": f"more {at}", "dependencies": []} for at in range(2)]
                return {"keep": [f"s{at}" for at in range(9)], "steps": new[: self.rng.randrange(1, 3)]}
            case "judge_result":
                achieved = self.chance(0.6)
                return {"achieved": achieved, "confidence": 0.9 if achieved else self.rng.choice([0.1, 0.9]),
                        "reasoning": f"because {self.rng.randrange(100)}", "final_answer": "judged"}  # fmt: skip
            case "report_confidence":
                return {"why": "a guess", "confidence": self.routes.choice([0.1, 0.6, 0.9])}
            case "check_result":
                passed = self.chance(0.7)
                return {"feedback": "" if passed else "be exact", "passed": passed}
            case "select_tools":
                return {"tools": ["look_up"]}
        return {"unsupported": []}

    def steps(self) -> list[dict[str, Any]]:
        """A plan's steps."""
        size = self.rng.randrange(1, 8)
        return [
            {
                "id": f"s{at}",
                "task": f"do {at}",
                "dependencies": [f"s{other}" for other in range(at) if self.chance(0.35)],
                "model_hint": self.rng.choice([None, None, "fast", "backup", "reasoning"]),
                "on_failure": self.rng.choice(POLICIES),
            }
            for at in range(size)
        ]

    def step(self, request: ChatRequest) -> Any:
        """A turn of an agent: calls of tools, or an answer, now and then a bad one."""
        done = sum(message.role == "tool" for message in request.messages)
        if not request.tools:  # the JSON mode, or the last turn
            if self.chance(0.4) and "tool_args" in request.messages[0].content:
                return '{"type": "tool_call", "reasoning": "r", "tool_name": "look_up", "tool_args": {"key": "j"}}'
            return f'{{"type": "final_answer", "reasoning": "r", "answer": "result {self.rng.randrange(1000)}"}}'
        if self.chance(0.03):
            return LLMResult(Message.assistant("half a"), Usage(10, 10), "length", "")
        if self.chance(0.05):
            return ""
        if done < 6 and self.chance(0.6):
            return [self.call(at) for at in range(self.rng.choice([1, 1, 2, 3]))]
        return f"result {self.rng.randrange(1000)}"

    def call(self, at: int) -> ToolCall:
        """A call of a tool; some are wrong."""
        key = self.rng.randrange(3)
        name, arguments = self.rng.choice(
            [
                ("look_up", {"key": f"k{key}"}), ("note", {"text": f"t{key}"}), ("square", {"number": key}),
                ("breaks", {}), ("send", {"to": f"p{key}"}), ("nowhere", {"x": 1}), ("square", {"number": "two"}),
                ("square", {"number": "3"}),
            ]
        )  # fmt: skip
        return ToolCall(f"c{self.rng.randrange(10**6)}_{at}", name, arguments)

    # Tools and hooks

    def tools(self) -> ToolRegistry:
        did, world = self.did, self

        async def a_while() -> None:
            did["tool"] += 1
            for _ in range(world.rng.randrange(8)):
                await asyncio.sleep(0)

        @tool(read_only=True)
        async def look_up(key: str) -> str:
            """Looks a key up."""
            await a_while()
            return f"value of {key} {world.rng.randrange(100)} " * (300 if world.wordy else 1)

        @tool
        async def note(text: str) -> str:
            """Writes a text down."""
            await a_while()
            return f"noted: {text} " * (300 if world.wordy else 1)

        @tool(pure=True)
        async def square(number: int) -> int:
            """Squares a number."""
            await a_while()
            return number * number

        @tool(untrusted=True)
        async def breaks() -> str:
            """Does not work."""
            await a_while()
            if world.chance(0.3) and caller().step_id is not None:
                await asyncio.sleep(60)
            raise RuntimeError("broken")

        @tool(requires_approval=True)
        async def send(to: str) -> str:
            """Sends something."""
            await a_while()
            return f"sent to {to}"

        return ToolRegistry([look_up, note, square, breaks, send])

    def hooks(self) -> HookRegistry | None:
        if not self.chance(0.3):
            return None
        world = self

        class Guard(PreToolUseHook):
            name = "guard"

            async def execute(self, ctx: HookContext) -> HookResult | None:
                world.did["hook"] += 1
                if world.chance(0.2):
                    return HookResult(allow=False, error="not now")
                if ctx.tool_name == "note" and world.chance(0.5):
                    return HookResult(modified_args={"text": f"masked {world.rng.randrange(10)}"})
                return HookResult(approval=ApprovalRequest("sure?")) if world.chance(0.1) else None

        class Editor(PostToolUseHook):
            name = "editor"

            async def execute(self, ctx: HookContext) -> HookResult | None:
                if world.chance(0.3):
                    return HookResult(modified_result=f"{ctx.tool_result} (edited {world.rng.randrange(10)})")
                return None

        return HookRegistry([Guard(), Editor()])

    async def approve(self, call: PendingCall) -> Decision:
        for _ in range(self.rng.randrange(60)):
            await asyncio.sleep(0)
        return Decision(self.chance(0.7), "a human said so")

    # The job

    def options(self) -> JobOptions:
        agent: dict[str, Any] = {"max_iterations": self.rng.choice([3, 8, 20]), "completion_check": self.chance(0.3),
                                 "completion_check_min_tools": 1, "use_native_tools": self.chance(0.8)}  # fmt: skip
        run = RunOptions(
            max_concurrency=self.rng.randrange(1, 5),
            step_timeout=0.15,
            step_retries=self.rng.choice([0, 0, 1]),
            agent=agent,
            step_verification=self.chance(0.2),
            routing=self.routes.choice(
                [
                    Hint(),
                    Hint(),
                    Cascade(("small", "main"), 0.7, self.routes.random() < 0.3),
                    BudgetPolicy(("main", "small")),
                ]
            ),
        )
        return JobOptions(run, max_replan_rounds=self.rng.randrange(1, 4))

    def work(self) -> tuple[str | Plan, str]:
        mode = self.rng.choice(["dag", "dag", "dag", "react", "react", "auto", "given"])
        if mode != "given":
            return "sum it up", mode
        steps = (PlanStep(one["id"], one["task"], tuple(one["dependencies"]), None, one["model_hint"],
                          one["on_failure"]) for one in self.steps())  # fmt: skip
        return Plan("carry it out", tuple(steps)), "auto"

    def budget(self) -> Any:
        if self.chance(0.8):
            return None
        return self.rng.choice(["1500 tokens", "4000 tokens", "20000 tokens", "0.4s"])

    def words(self, handle: JobHandle) -> Callable[[Event], None]:
        """What is said to the job after so many events."""
        said = [("message", 0.5), ("stop", 0.15), ("cancel", 0.15), ("step", 0.3)]
        when = {self.rng.randrange(3, 90): kind for kind, share in said if self.chance(0.5 * share * 2)}
        count = 0

        def hear(event: Event) -> None:
            nonlocal count
            count += 1
            if kind := when.get(count):
                asyncio.get_running_loop().call_soon(self.say, handle, kind)

        return hear

    def say(self, handle: JobHandle, kind: str) -> None:
        match kind:
            case "message":
                handle.send(f"also {self.rng.randrange(100)}")
            case "stop":
                handle.stop()
            case "cancel":
                handle.cancel()
            case "step":
                runner = handle._runner
                names = [] if runner.state.executor is None else list(runner.state.executor.results)
                if names:
                    handle.cancel_step(self.rng.choice(names))


async def recorded(seed: int) -> Recorded:
    """The job of a seed, run."""
    world = World(seed)
    hear: list[Callable[[Event], None]] = []
    tools = world.tools()
    work, mode = world.work()
    handle = start_job(
        work,
        world.models(),
        tools=tools,
        mode=mode,  # type: ignore[arg-type]
        budget=world.budget(),
        on_event=lambda event: hear[0](event) if hear else None,
        answer_mode=world.rng.choice(["synthesis", "synthesis", "direct"]),
        hooks=world.hooks(),
        options=world.options(),
        approve=world.approve,
    )
    hear.append(world.words(handle))
    try:
        job = await handle.result()
    except asyncio.CancelledError:
        raise AssertionError("nobody cancelled the test") from None
    return Recorded(seed, job, handle.log.events, tools, world.did)

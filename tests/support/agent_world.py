"""A world for one agent: its model, tools, hooks, human and log, and a crash after any event of that log."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agent import AgentResult, ContextGuard, InterruptQueue, PostToolUseHook, PreToolUseHook, ReActAgent
from agent.events import INTERNAL_CHANNELS
from agent.hooks import HookContext, HookResult, SessionStartHook
from agent.past import AgentPast
from agent.services import Services
from agent.waits import ApprovalRequest, Decision, PendingCall
from executor.ledger import Ledger
from executor.waits import JobWaits
from registry.context import caller, calling
from registry.errors import AuthError, BadRequestError, ContextLengthError
from registry.llm_types import ChatRequest
from registry.messages import Event, LLMResult, Message, ToolCall, Usage, canonical_json
from registry.redaction import redact_data
from registry.testing import FakeClock, ScriptedLLM
from registry.tokens import estimate_messages
from registry.tool_context import ToolContext
from registry.tools import Tool

MIDNIGHT = 86_400.0 * 20_000
QUERY = "What is to be found?"


TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


@dataclass(frozen=True)
class Turn:
    """One reply of the model: `kind` says what it is, `calls` which tools it calls."""

    kind: str
    calls: tuple[str, ...] = ()
    said: str = ""
    """A message that reaches the agent while the model writes this turn."""
    finish: bool = False
    """The agent is asked to come to its end while the model writes this turn."""


@dataclass(frozen=True)
class Setting:
    """What the agent works with."""

    turns: tuple[Turn, ...]
    native: bool = True
    direct: bool = False
    many_tools: bool = False
    refuses_tools: bool = False
    refuses_schemas: bool = False
    too_long: int = 1 << 30
    """Tokens of a conversation that the server refuses."""
    says_size: bool = True
    """The server says then how long one may be."""
    context: int = 100_000
    verify: str = "none"
    max_iterations: int = 9
    query: str = QUERY
    history: tuple[Message, ...] = ()
    deadline: float = 1_000.0


@dataclass
class World:
    """What one process does: its log (a beginning of it may be another process's), and what it touched."""

    setting: Setting
    log: list[Event] = field(default_factory=list)
    clock: FakeClock = field(default_factory=lambda: FakeClock(MIDNIGHT - 50.0))
    marker: str = "0a1b2c"
    ran: Counter[str] = field(default_factory=Counter)
    hooked: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    said: list[tuple[int | str, str]] = field(default_factory=list)
    """Messages, each with the turn in which it came, or the key of the call."""
    finished: int | None = None
    """The turn in which the agent was asked to come to its end."""
    uncertain: tuple[PendingCall, ...] = ()
    decide: Callable[[PendingCall], Decision] | None = None

    def __post_init__(self) -> None:
        self.begun = len(self.log)
        self.known = sum(1 for event in self.log if own_turn(event))
        self.inbox = InterruptQueue()
        self.agent: ReActAgent | None = None

    # The log

    def append(self, channel: str, payload: Mapping[str, Any], step_id: str | None = None) -> None:
        told = json.loads(json.dumps(redact_data(dict(payload))))
        self.log.append(Event("j", len(self.log) + 1, self.clock.time(), channel, step_id, told))

    @property
    def new(self) -> list[Event]:
        """What this process told."""
        return self.log[self.begun :]

    # The model

    def reply(self, request: ChatRequest) -> Any:
        self.requests += 1
        role = caller().role
        if role == "compaction":
            return f"summary of {estimate_messages(request.messages)} tokens"
        if role == "selection":
            names = {"tools": ["look", "post", "save", "fail", "ask"]}
            return [("select_tools", names)] if request.tools else json.dumps(names)
        if role == "tool":
            return "a model's word"
        if self.setting.refuses_tools and request.tools:
            raise BadRequestError("this model does not support tools")
        if self.setting.refuses_schemas and (request.response_format or {}).get("type") == "json_schema":
            raise BadRequestError("response_format json_schema is unknown")
        if estimate_messages(request.messages) > self.setting.too_long:
            size = self.setting.too_long + 1_000 if self.setting.says_size else None
            raise ContextLengthError("too long", context_size=size)
        number = self.known
        turn = self.setting.turns[number] if number < len(self.setting.turns) else Turn("final")
        if turn.said:
            self.said.append((number, turn.said))
            self.inbox.put(turn.said)
        if turn.finish and self.agent is not None:
            self.finished = number if self.finished is None else self.finished
            self.agent.finish()
        if turn.kind == "error":
            raise AuthError("the key was refused")
        self.known += 1
        return rendered(turn, number, native=bool(request.tools))

    # What its tools and hooks do

    def tools(self) -> list[Tool]:
        def note(name: str, text: str, context: ToolContext) -> str:
            self.ran[context.key] += 1
            if "tells" in text:
                self.said.append((context.key, f"told by {text}"))
                self.inbox.put(f"told by {text}")
            return f"{name} got {text}"

        async def look(text: str, context: ToolContext) -> str:
            await asyncio.sleep(0)  # threads would end in any order
            return note("look", text, context) + ("." * 6_000 if "long" in text else "")

        async def post(text: str, context: ToolContext) -> str:
            return note("post", text, context)

        async def save(text: str, context: ToolContext) -> str:
            await asyncio.sleep(0)
            return note("save", text, context)

        def fail(text: str, context: ToolContext) -> str:
            note("fail", text, context)
            raise ValueError(f"no {text}")

        def ask(text: str, context: ToolContext) -> str:
            return note("ask", text, context)

        more = [Tool(f"other{n}", f"Does thing {n}.", {"type": "object"}, lambda: "done") for n in range(10)]
        return [
            Tool("look", "Looks something up.", TEXT, look, read_only=True),
            Tool("post", "Posts a message.", TEXT, post, verify=self.verify()),
            Tool("save", "Saves a text.", TEXT, save, idempotent=True, network=True),
            Tool("fail", "Fails.", TEXT, fail, read_only=True),
            Tool("ask", "Asks first.", TEXT, ask, requires_approval=True),
            *(more if self.setting.many_tools else []),
        ]

    def verify(self) -> Any:
        def raises(key: str) -> bool:
            raise OSError("nobody answers")

        async def yes(key: str) -> bool:
            return True

        return {"none": None, "raises": raises, "yes": yes, "no": lambda key: False, "odd": lambda key: "maybe"}[
            self.setting.verify
        ]

    def hooks(self) -> list[Any]:
        world = self

        class Begins(SessionStartHook):
            async def execute(self, ctx: HookContext) -> HookResult:
                world.hooked["start"] += 1
                return HookResult(modified_result="context of a hook")

        class Guards(PreToolUseHook):
            async def execute(self, ctx: HookContext) -> HookResult:
                text = str(ctx.tool_args.get("text"))
                world.hooked[f"pre {text}"] += 1
                await asyncio.sleep(0)
                if "blocked" in text:
                    return HookResult(allow=False, error="not this one")
                approval = ApprovalRequest("a guard wants it", world.setting.deadline) if "guarded" in text else None
                return HookResult(modified_args={"text": f"{text} seen"}, approval=approval)

        class Watches(PostToolUseHook):
            sees_blocked = True

            async def execute(self, ctx: HookContext) -> HookResult:
                text = str(ctx.tool_args.get("text"))
                world.hooked[f"{'blocked' if ctx.blocked else 'post'} {text}"] += 1
                await asyncio.sleep(0)
                return HookResult(modified_result=f"{ctx.tool_result}!")

        return [Begins(), Guards(), Watches()]

    async def approve(self, call: PendingCall) -> Decision:
        self.asked[call.call_id] += 1
        await asyncio.sleep(0)
        if self.decide is not None:
            return self.decide(call)
        return Decision("no" not in str(call.tool_args["text"]).split(), "said so", "ada")

    @asynccontextmanager
    async def parked(self, step_id: str | None) -> AsyncIterator[None]:
        yield

    # The run

    async def run(self) -> AgentResult:
        """Runs the agent, from what the log holds, to its end."""
        setting, past = self.setting, list(self.log)
        ledger = Ledger(self.append)
        turns = [event for event in past if event.channel == "turn"]
        ledger.restore(turns, turns)
        waits = JobWaits(
            lambda payload, step_id: self.append("approval", payload, step_id),
            self.parked,
            approve=self.approve,
            clock=self.clock,
        )
        waits.restore(event for event in past if event.channel == "approval")
        llm = ScriptedLLM(
            self.reply,
            abilities={"tool_call": setting.native, "tool_choice": True, "json_mode": True, "streaming": True}
            | {"json_schema": setting.refuses_schemas},
            context_size=setting.context,
            max_output_tokens=1_000,
            clock=self.clock,
        ).scoped(ledger)
        step_id = None if setting.direct else "s"
        if setting.direct and past:
            said = [event.payload["status"] for event in past if event.channel == "answer"]
            if said and said[-1] not in ("done", "reset"):
                self.append("answer", {"status": "reset"})
        with calling(job_id="j", step_id=step_id, role="agent" if setting.direct else "step"):
            self.agent = ReActAgent(
                llm,
                self.tools(),
                hooks=self.hooks(),
                max_iterations=setting.max_iterations,
                completion_check_min_tools=2,
                self_reflection_interval=2,
                interrupts=self.inbox,
                context_guard=ContextGuard(),
                on_event=lambda event: self.append(event.channel, event.payload, event.step_id),
                answer_mode="direct" if setting.direct else "synthesis",
                max_query_chars=1_000,
                services=Services(waits=waits, marker=self.marker, past=AgentPast.read(past)),
                clock=self.clock,
            )
            if self.finished is not None:
                self.agent.finish()
            result = await self.agent.run(setting.query, history=setting.history)
        self.uncertain = result.uncertain
        return result


def crashed(world: World, place: int) -> World:
    """Another process, after the first one died when the log had `place` events."""
    log = world.log[:place]
    after = World(world.setting, log, decide=world.decide)
    if any(event.payload.get("kind") == "opening" for event in log):  # it is the next day, and another job's marker
        after.clock.now, after.marker = MIDNIGHT + 50.0, "ffffff"
    heard = sum(event.payload["content"].count("\n\n") + 1 for event in log if event.channel == "inject")
    ended = calls_by(log, "end")
    after.said = [(at, text) for at, text in world.said if at in ended or (isinstance(at, int) and at < after.known)]
    for _, text in after.said[heard:]:
        after.inbox.put(text)
    if world.finished is not None and world.finished < after.known:
        after.finished = world.finished
    return after


def own_turn(event: Event) -> bool:
    """Whether the event is a turn of the agent's own loop."""
    told = event.payload
    return event.channel == "turn" and told["role"] in ("step", "agent") and told["result"] is not None


def rendered(turn: Turn, number: int, *, native: bool) -> Any:
    """The model's reply in the words of the mode."""
    calls = [
        ToolCall(f"c{number}_{place}", name.partition(" ")[0], {"text": f"{name.partition(' ')[2]} {number}.{place}"})
        for place, name in enumerate(turn.calls)
    ]
    if turn.kind == "same":
        calls = [ToolCall(f"c{number}", "look", {"text": "again"})]
    elif turn.kind == "unknown":
        calls = [ToolCall(f"c{number}", "nothing", {"text": "x"})]
    elif turn.kind == "wrong":
        calls = [ToolCall(f"c{number}", "look", {"word": 1})]
    cut = turn.kind in ("cut", "cut calls")
    text = {"empty": "", "cut": "the first half ", "garbage": "no json at all"}.get(turn.kind, f"answer {number}")
    if native:
        message = Message.assistant("" if calls else text, calls)
    elif calls:
        action = {"type": "tool_call", "reasoning": "so", "tool_name": calls[0].name, "tool_args": calls[0].arguments}
        message = Message.assistant(json.dumps(action))
    else:
        action = {"type": "final_answer", "reasoning": "so", "answer": text}
        message = Message.assistant(text if turn.kind in ("garbage", "empty") else json.dumps(action))
    finish: Any = "length" if cut else "tool_calls" if native and calls else "stop"
    return LLMResult(message, Usage(100 + 10 * number, 5), finish, "scripted")


def ordered(events: Sequence[Event]) -> list[str]:
    """What the loop told, in order: all that is not about a single call, which may run beside another one."""
    return [canonical_json([event.channel, event.payload]) for event in events if not of_call(event)]


def of_calls(events: Sequence[Event]) -> list[str]:
    """What was told of calls, in an order of its own."""
    return sorted(canonical_json([event.channel, event.payload]) for event in events if of_call(event))


def of_call(event: Event) -> bool:
    """Whether the event is about one call of a tool."""
    return event.channel in ("call", "approval") or (
        event.channel == "step" and event.payload.get("type") == "iteration"
    )


def without(events: Sequence[Event], *channels: str) -> list[Event]:
    """The events of other channels."""
    return [event for event in events if event.channel not in channels]


def public(events: Sequence[Event]) -> list[Event]:
    """What readers get."""
    return [event for event in events if event.channel not in INTERNAL_CHANNELS]


def answer_of(events: Sequence[Event]) -> str:
    """The answer that a reader of the stream has in the end."""
    text = ""
    for event in events:
        if event.channel == "answer":
            told = event.payload
            text = "" if told["status"] == "reset" else text + told.get("content", "")
    return text


def calls_by(events: Sequence[Event], status: str) -> dict[str, Event]:
    """The `call` events of a status, by the call's key."""
    return {
        event.payload["key"]: event for event in events if event.channel == "call" and event.payload["status"] == status
    }

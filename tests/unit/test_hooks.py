"""The chain of hooks: its order, what one may change, and that nothing a hook does gets past it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import hooks as module
from agent.hooks import (
    Hook,
    HookContext,
    HookRegistry,
    HookResult,
    PostToolUseHook,
    PreToolUseHook,
    SessionStartHook,
)
from agent.waits import ApprovalRequest
from registry.errors import UsageError

CTX = HookContext("send", {"to": "a", "parts": ["x"]})
Work = Callable[[HookContext], Any]


class Pre(PreToolUseHook):
    def __init__(self, work: Work, name: str = "guard", priority: Any = 100) -> None:
        self.work, self.name, self.priority = work, name, priority

    async def execute(self, ctx: HookContext) -> Any:
        done = self.work(ctx)
        return await done if isinstance(done, Awaitable) else done


class Post(PostToolUseHook):
    def __init__(self, work: Work, name: str = "observer", priority: Any = 100) -> None:
        self.work, self.name, self.priority = work, name, priority

    async def execute(self, ctx: HookContext) -> Any:
        done = self.work(ctx)
        return await done if isinstance(done, Awaitable) else done


class Start(SessionStartHook):
    def __init__(self, work: Work) -> None:
        self.work = work

    async def execute(self, ctx: HookContext) -> Any:
        return self.work(ctx)


def raising(error: BaseException) -> Work:
    def work(ctx: HookContext) -> Any:
        raise error

    return work


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


# Order and rewriting


@given(st.lists(st.sampled_from([-1, 0, 0.5, 1, 100]), max_size=8))
@settings(deadline=None)
def test_lower_priorities_run_first_and_equal_ones_as_registered(priorities: list[float]) -> None:
    ran: list[int] = []
    registry = HookRegistry(Pre(lambda ctx, n=n: ran.append(n), str(n), p) for n, p in enumerate(priorities))
    asyncio.run(registry.before(CTX))
    assert ran == [n for n, _ in sorted(enumerate(priorities), key=lambda pair: pair[1])]
    assert [entry.name for entry in registry.entries("pre")] == [str(n) for n in ran]
    assert registry.entries("post") == ()


async def test_each_sees_what_the_earlier_ones_rewrote() -> None:
    seen: list[Mapping[str, Any]] = []

    def add(key: str) -> Work:
        def work(ctx: HookContext) -> HookResult:
            seen.append(ctx.tool_args)
            return HookResult(modified_args={**ctx.tool_args, key: 1}, side_effects=(f"added {key}",))

        return work

    verdict = await HookRegistry([Pre(add("c"), priority=3), Pre(add("b"), priority=2)]).before(CTX)
    assert seen == [CTX.tool_args, {**CTX.tool_args, "b": 1}]
    assert verdict.ctx.tool_args == {**CTX.tool_args, "b": 1, "c": 1}
    assert verdict.notes == verdict.ctx.notes == ("added b", "added c")

    after = HookRegistry([Post(lambda ctx: HookResult(modified_result=f"{ctx.tool_result}+"))] * 2)
    assert (await after.after(HookContext("send", tool_result="r"))).ctx.tool_result == "r++"


async def test_arguments_change_by_the_result_only() -> None:
    kept: dict[str, Any] = {}

    def spoil(ctx: HookContext) -> None:
        ctx.tool_args["to"] = "b"  # type: ignore[index]
        ctx.tool_args["parts"].append("y")

    def lend(ctx: HookContext) -> HookResult:
        kept.update(ctx.tool_args)
        return HookResult(modified_args=kept)

    verdict = await HookRegistry([Pre(spoil)]).before(CTX)
    assert verdict.ctx.tool_args is CTX.tool_args
    assert CTX.tool_args == {"to": "a", "parts": ["x"]}
    await HookRegistry([Post(spoil)]).after(CTX)
    assert CTX.tool_args == {"to": "a", "parts": ["x"]}
    verdict = await HookRegistry([Pre(lend)]).before(CTX)
    kept["to"] = "c"
    assert verdict.ctx.tool_args == {"to": "a", "parts": ["x"]}


async def test_a_block_ends_the_chain(logged: list[Any]) -> None:
    late: list[HookContext] = []
    no = Pre(lambda ctx: HookResult(False, "not today", side_effects=("looked",)), "no", 1)
    verdict = await HookRegistry([Pre(late.append, "late", 2), no]).before(CTX)
    assert (verdict.blocked, verdict.notes, late) == ("not today", ("looked",), [])
    assert [(entry["event"], entry["hook"]) for entry in logged] == [("hook_note", "no"), ("hook_blocked", "no")]
    silent = await HookRegistry([Pre(lambda ctx: HookResult(False), "no")]).before(CTX)
    assert silent.blocked == "the guard 'no' does not allow it"


async def test_observers_that_want_to_are_told_of_blocked_calls(logged: list[Any]) -> None:
    seen: list[HookContext] = []

    class Sees(Post):
        sees_blocked = True

    def told(ctx: HookContext) -> None:
        seen.append(ctx)
        raise ValueError("and may fail")

    deaf: list[HookContext] = []
    hooks = [Sees(told), Post(deaf.append), Pre(lambda ctx: HookResult(side_effects=("looked",)), priority=1)]
    for work, why in (
        (lambda ctx: HookResult(False, "no"), "no"),
        (raising(ValueError("x")), "the guard 'bad' failed: x"),
    ):
        verdict = await HookRegistry([*hooks, Pre(work, "bad")]).before(CTX)
        assert (verdict.blocked, seen[-1].blocked, seen[-1].notes) == (why, why, ("looked",))
    await HookRegistry(hooks).before(CTX)
    assert (len(seen), deaf) == (2, [])


async def test_those_that_are_not_concerned_do_not_run() -> None:
    class Elsewhere(PreToolUseHook):
        def should_trigger(self, ctx: HookContext) -> bool:
            return ctx.tool_name != "send"

        async def execute(self, ctx: HookContext) -> HookResult:
            return HookResult(False, "no")

    assert (await HookRegistry([Elsewhere()]).before(CTX)).blocked is None
    assert (await HookRegistry([Elsewhere()]).before(HookContext("other"))).blocked == "no"


async def test_session_start_adds_context() -> None:
    hooks = [Start(lambda ctx: HookResult(modified_result=f"about {ctx.metadata['query']}")), Start(lambda ctx: None)]
    assert await HookRegistry([*hooks, Start(raising(ValueError("x")))]).started(
        HookContext(metadata={"query": "q"}, tool_result="stale")
    ) == ("about q",)


# A human's decision


async def test_requests_for_approval_are_merged() -> None:
    def ask(reason: str, deadline: float) -> Hook:
        return Pre(lambda ctx: HookResult(approval=ApprovalRequest(reason, deadline)))

    hooks = [ask("it costs", 60.0), ask("it writes", 5.0), ask("it costs", 70.0), Pre(lambda ctx: None)]
    verdict = await HookRegistry(hooks).before(CTX)
    assert verdict.approval == ApprovalRequest("it costs; it writes", 5.0)
    blocked = await HookRegistry([*hooks, Pre(lambda ctx: HookResult(False, "no"))]).before(CTX)
    assert (blocked.blocked, blocked.approval) == ("no", None)
    assert (await HookRegistry([Pre(lambda ctx: HookResult())]).before(CTX)).approval is None


# Containment


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Strange(BaseException):
    pass


def told(**fields: Any) -> HookResult:
    return HookResult(**fields)


BAD: dict[str, tuple[Work, str]] = {
    "text": (lambda ctx: "allow", "it returned a str, not a HookResult"),
    "true": (lambda ctx: True, "it returned a bool, not a HookResult"),
    "allow": (lambda ctx: told(allow="false"), "allow must be true or false, not a str"),
    "allow none": (lambda ctx: told(allow=None), "allow must be true or false, not None"),
    "args": (lambda ctx: told(modified_args=[("to", "b")]), "modified_args must be a mapping of texts to values"),
    "keys": (lambda ctx: told(modified_args={1: 2}), "modified_args must be a mapping of texts to values"),
    "result": (lambda ctx: told(modified_result=b"x"), "modified_result must be a text, not a bytes"),
    "notes": (lambda ctx: told(side_effects=5), "side_effects must be texts, not a int"),
    "approval": (lambda ctx: told(approval=True), "approval must be an ApprovalRequest, not a bool"),
    "deadline": (lambda ctx: told(approval=ApprovalRequest("", float("nan"))), "deadline must be more than 0 seconds"),
    "no deadline": (lambda ctx: told(approval=ApprovalRequest("", None)), "deadline must be more than 0 seconds"),  # type: ignore[arg-type]
    "reason": (lambda ctx: told(approval=ApprovalRequest(None)), "reason must be a text"),  # type: ignore[arg-type]
    "raises": (raising(ValueError("broken")), "broken"),
    "silent": (raising(ValueError()), "ValueError"),
    "unspeakable": (raising(Unspeakable()), "Unspeakable"),
    "timeout of its own": (raising(TimeoutError()), "TimeoutError"),
    "cancels itself": (raising(asyncio.CancelledError()), "it was cancelled from within"),
    "strange": (raising(Strange("odd")), "odd"),
    "group": (raising(BaseExceptionGroup("many", [Strange()])), "many (1 sub-exception)"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_guard_that_fails_blocks_and_says_why(name: str, logged: list[Any]) -> None:
    work, why = BAD[name]
    later: list[HookContext] = []
    verdict = await HookRegistry([Pre(work, "bad", 1), Pre(later.append, "later", 2)]).before(CTX)
    assert verdict.blocked is not None
    assert verdict.blocked.startswith("the guard 'bad' failed: ")
    assert why in verdict.blocked
    assert later == []
    assert [(entry["event"], entry["hook"], entry["log_level"]) for entry in logged] == [
        ("hook_failed", "bad", "warning")
    ]
    assert why in logged[0]["error"]


@pytest.mark.parametrize("name", BAD)
async def test_an_observer_that_fails_is_passed_over(name: str, logged: list[Any]) -> None:
    work, why = BAD[name]
    registry = HookRegistry([Post(work, "bad", 1), Post(lambda ctx: HookResult(modified_result="seen"), priority=2)])
    registry.register(Start(work))
    registry.register(Start(lambda ctx: HookResult(modified_result="context")))
    verdict = await registry.after(HookContext("send", tool_result="r"))
    assert (verdict.ctx.tool_result, verdict.blocked, verdict.notes) == ("seen", None, ())
    assert await registry.started(HookContext()) == ("context",)
    assert [entry["on"] for entry in logged if why in entry["error"]] == ["post", "start"]


async def test_notes_come_as_texts(logged: list[Any]) -> None:
    for given_, notes in ((None, ()), ("one", ("one",)), ([1, "b\x00"], ("1", "b")), ("x" * 900, ("x" * 498 + " …",))):
        verdict = await HookRegistry([Pre(lambda ctx, given_=given_: told(side_effects=given_))]).before(CTX)
        assert (verdict.blocked, verdict.notes) == (None, notes)
    assert [entry["note"] for entry in logged if entry["event"] == "hook_note"][:3] == ["one", "1", "b"]


async def test_plain_functions_will_do() -> None:
    class Plain(PreToolUseHook):
        def execute(self, ctx: HookContext) -> Any:
            return HookResult(False, "plainly not")

    class AsyncTrigger(PreToolUseHook):
        async def should_trigger(self, ctx: HookContext) -> bool:  # type: ignore[override]
            return False

        async def execute(self, ctx: HookContext) -> HookResult:
            return HookResult(False, "triggered")

    assert (await HookRegistry([Plain()]).before(CTX)).blocked == "plainly not"
    assert (await HookRegistry([AsyncTrigger()]).before(CTX)).blocked is None


async def test_a_trigger_that_raises_is_a_failure() -> None:
    class Bad(PreToolUseHook):
        name = "bad"

        def should_trigger(self, ctx: HookContext) -> bool:
            raise KeyError("x")

        async def execute(self, ctx: HookContext) -> None:
            return None

    assert (await HookRegistry([Bad()]).before(CTX)).blocked == "the guard 'bad' failed: 'x'"


async def swallow() -> HookResult:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    return HookResult()


async def reword() -> HookResult:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        raise ValueError("cleanup failed") from None
    return HookResult()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOOK_TIMEOUT", 0.05)


def test_the_limit_is_ten_seconds() -> None:
    assert module.HOOK_TIMEOUT == 10.0


@pytest.mark.usefixtures("quick")
async def test_one_that_is_late_has_failed() -> None:
    for work in (lambda ctx: asyncio.sleep(60), lambda ctx: swallow()):
        verdict = await HookRegistry([Pre(work, "slow")]).before(CTX)
        assert verdict.blocked == "the guard 'slow' failed: it took longer than 0.05 s"
        assert (await HookRegistry([Post(work)]).after(CTX)).notes == ()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize("work", [lambda: asyncio.sleep(60), swallow, reword])
@pytest.mark.parametrize("kind", [Pre, Post])
async def test_a_real_cancellation_passes(work: Callable[[], Any], kind: Any) -> None:
    begun = asyncio.Event()

    def start(ctx: HookContext) -> Any:
        begun.set()
        return work()

    registry = HookRegistry([kind(start)])
    task = asyncio.create_task(registry.before(CTX) if kind is Pre else registry.after(CTX))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_the_end_of_the_process_passes(error: BaseException) -> None:
    with pytest.raises(type(error)):
        asyncio.run(HookRegistry([Pre(raising(error))]).before(CTX))
    with pytest.raises(type(error)):
        asyncio.run(HookRegistry([Post(raising(error))]).after(CTX))


# What can't be a hook


class Bare(Hook):
    async def execute(self, ctx: HookContext) -> None:
        return None


class Lookalike:
    name, priority, event = "l", 1, "pre"

    def should_trigger(self, ctx: HookContext) -> bool:
        return True

    async def execute(self, ctx: HookContext) -> HookResult:
        return HookResult()


class NoExecute(PreToolUseHook):
    pass


class Unreadable(Bare, PreToolUseHook):
    @property
    def priority(self) -> int:  # type: ignore[override]
        raise RuntimeError("not yet")


@pytest.mark.parametrize(
    ("hook", "why"),
    [
        (None, "a hook is a PreToolUseHook, PostToolUseHook or SessionStartHook, not None"),
        (Lookalike(), "a hook is a PreToolUseHook"),
        (Bare(), "a hook is a PreToolUseHook"),
        (NoExecute, r"give an object, NoExecute\(…\), not the class"),
        (Unreadable(), "the hook Unreadable can't be read: RuntimeError: not yet"),
        (NoExecute(), "NoExecute has no `async def execute"),
        (Pre(str, name=5), "its name must be a text, not 5"),  # type: ignore[arg-type]
        (Pre(str, priority="high"), "its priority must be a number, not 'high'"),
        (Pre(str, priority=None), "its priority must be a number"),
        (Pre(str, priority=float("nan")), "its priority must be a number"),
        (Pre(str, priority=True), "its priority must be a number"),
    ],
)
def test_what_cannot_be_a_hook_is_refused(hook: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        HookRegistry([hook])


def test_one_hook_is_no_list() -> None:
    with pytest.raises(UsageError, match="hooks must be a list"):
        HookRegistry(Pre(str))  # type: ignore[arg-type]


def test_what_was_registered_stands() -> None:
    registry = HookRegistry()
    hook = Pre(str, name=" ", priority=5)
    registry.register(hook, priority=-1.5, origin="here")
    hook.priority = 1_000
    (entry,) = registry.entries()
    assert (entry.name, entry.event, entry.priority, entry.origin) == ("Pre", "pre", -1.5, "here")
    assert (list(registry), len(registry)) == ([hook], 1)

"""The hooks that come with us, alone, around an agent's calls, and declared in a file."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.builtin_hooks import (
    LEAST_CHARS,
    ApprovalHook,
    AuditLogHook,
    RateLimitHook,
    ReadOnlyHook,
    TruncateHook,
)
from agent.hooks import Hook, HookContext, HookRegistry, PostToolUseHook
from agent.react import ReActAgent
from agent.waits import DEADLINE, ApprovalRequest
from executor.hooks_config import BUILT_IN, KEYS, HookEntry, build_hooks
from executor.job_options import JobOptions
from executor.settings import describe, load_settings
from registry.errors import ConfigError, UsageError
from registry.testing import FakeClock, ScriptedLLM
from registry.tools import Tool

LOOKS = Tool("look", "Looks.", {}, lambda: "seen", read_only=True)
SENDS = Tool("send", "Sends.", {}, lambda: "sent")


def asked(tool: Tool | str, **more: Any) -> HookContext:
    return HookContext(tool, **more) if isinstance(tool, str) else HookContext(tool.name, tool=tool, **more)


async def before(hook: Hook, ctx: HookContext) -> tuple[str | None, ApprovalRequest | None]:
    verdict = await HookRegistry([hook]).before(ctx)
    return verdict.blocked, verdict.approval


async def after(hook: Hook, **ctx: Any) -> Any:
    return await HookRegistry([hook]).after(HookContext(**ctx))


def test_the_order_is_as_documented() -> None:
    class Own(PostToolUseHook):
        async def execute(self, ctx: HookContext) -> None:
            return None

    hooks = [AuditLogHook(), TruncateHook(), Own(), ApprovalHook(), RateLimitHook(1, 1), ReadOnlyHook()]
    entries = HookRegistry(hooks).entries()
    assert [(entry.name, entry.priority) for entry in entries] == [
        ("read_only", 10), ("rate_limit", 20), ("approval", 30), ("Own", 100), ("truncate", 900), ("audit_log", 1000),
    ]  # fmt: skip


# read_only


async def test_only_what_is_declared_read_only_passes() -> None:
    assert await before(ReadOnlyHook(), asked(LOOKS)) == (None, None)
    why = "only tools that change nothing may be used here, and send may change things"
    assert await before(ReadOnlyHook(), asked(SENDS)) == (why, None)
    assert (await before(ReadOnlyHook(), asked("look")))[0] is not None  # nothing is known of it


# rate_limit


async def test_the_limit_holds_per_tool_and_tells_when_it_is_free_again() -> None:
    clock = FakeClock()
    hook = RateLimitHook(2, 60, clock=clock)
    assert await before(hook, asked("look")) == (None, None)
    clock.now += 20
    assert await before(hook, asked("look")) == (None, None)
    assert await before(hook, asked("send")) == (None, None)
    why = "look has reached its limit of 2 calls in 60 s; it is free again in 40 s. Do other work first."
    assert await before(hook, asked("look")) == (why, None)
    clock.now += 39.95
    assert "free again in 0.1 s" in str((await before(hook, asked("look")))[0])
    clock.now += 0.05
    assert await before(hook, asked("look")) == (None, None)
    assert "free again in 20 s" in str((await before(hook, asked("look")))[0])
    assert clock.sleeps == []


@given(st.integers(1, 4), st.integers(1, 10), st.lists(st.integers(0, 6), max_size=40))
@settings(deadline=None)
def test_no_window_holds_more_calls_than_allowed(calls: int, seconds: int, gaps: list[int]) -> None:
    clock = FakeClock(0.0)
    hook = RateLimitHook(calls, seconds, clock=clock)
    let: list[float] = []
    for gap in gaps:
        clock.now += gap
        coroutine = hook.execute(HookContext("look"))
        with pytest.raises(StopIteration) as ended:
            coroutine.send(None)
        free = sum(clock.now - seconds < at for at in let) < calls
        assert (ended.value.value is None) == free
        let += [clock.now] if free else []


async def test_the_limit_is_for_the_tools_it_names() -> None:
    hook = RateLimitHook(1, 60, ["web_*", "send"], clock=FakeClock())
    for tool, blocked in (("web_fetch", True), ("web_search", True), ("send", True), ("look", False)):
        assert (await before(hook, asked(tool)))[0] is None
        assert ((await before(hook, asked(tool)))[0] is not None) == blocked


# approval


async def test_a_human_is_asked_for_what_writes_or_for_what_is_named() -> None:
    assert await before(ApprovalHook(), asked(LOOKS)) == (None, None)
    assert await before(ApprovalHook(), asked(SENDS)) == (
        None,
        ApprovalRequest("this tool may change things", DEADLINE),
    )
    assert DEADLINE == 24 * 3600
    named = ApprovalHook(["l*k"], deadline=30, reason="it costs")
    assert await before(named, asked(LOOKS)) == (None, ApprovalRequest("it costs", 30))
    assert await before(named, asked(SENDS)) == (None, None)
    assert (await before(ApprovalHook(["send"]), asked("send")))[1] == ApprovalRequest(
        "calls of this tool need an approval", DEADLINE
    )


# truncate


@given(st.text(max_size=2_000), st.integers(LEAST_CHARS, 1_000))
@settings(deadline=None)
async def test_head_and_tail_stay(text: str, most: int) -> None:
    verdict = await after(TruncateHook(most), tool_name="look", tool_result=text)
    got = verdict.ctx.tool_result
    assert len(got) <= most
    if len(text) <= most:
        assert (got, verdict.notes) == (text, ())
        return
    head, tail = re.split(r"\n… \[\d+ characters cut\] …\n", got, maxsplit=1)
    if "characters cut" not in text:
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(head) + len(tail) > most - 50
    assert verdict.notes == (f"cut the observation from {len(text)} to {most} characters",)


async def test_tools_have_bounds_of_their_own() -> None:
    hook = TruncateHook(per_tool={"web_fetch": 300, "web_*": 400}, tools=["web_*", "look"])
    for tool, length in (("web_fetch", 300), ("web_search", 400), ("look", 8_000), ("send", 9_000)):
        verdict = await after(hook, tool_name=tool, tool_result="x" * 9_000)
        assert len(verdict.ctx.tool_result) == length
    assert (await after(hook, tool_name="look")).ctx.tool_result is None


# audit_log


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


async def test_a_line_for_each_call(tmp_path: Path, logged: list[Any]) -> None:
    file = tmp_path / "audit.jsonl"
    registry = HookRegistry([AuditLogHook(file, clock=FakeClock(0.25)), TruncateHook(200)])
    metadata = {"job_id": "job_1", "step_id": "s1"}
    args = {"q": "zwei\nzeilen ✓", "api_key": "hunter2hunter2"}
    ctx = HookContext("look", args, metadata=metadata, tool_result="r" * 300, notes=("earlier",), duration=1.23456)
    await registry.after(ctx)
    await registry.after(HookContext("send", tool_result="no", is_error=True))
    line = {
        "job_id": "job_1",
        "step_id": "s1",
        "tool": "look",
        "outcome": "ok",
        "duration": 1.235,
        "observation_chars": 200,
        "notes": ["earlier", "cut the observation from 300 to 200 characters"],
    }
    lines = [json.loads(text) for text in file.read_text("utf-8").splitlines()]
    arguments = json.loads(lines[0].pop("arguments"))
    assert arguments.pop("api_key") != "hunter2hunter2"
    assert arguments == {"q": "zwei\nzeilen ✓"}
    assert lines[0] == {"ts": "1970-01-01T00:00:00.250Z", "event": "tool_call", **line}
    assert (lines[1]["tool"], lines[1]["outcome"], lines[1]["duration"]) == ("send", "error", None)
    told = [entry for entry in logged if entry["event"] == "tool_call"]
    assert {**line, "event": "tool_call", "log_level": "info"}.items() <= told[0].items()
    assert "hunter2" not in json.dumps(logged) + file.read_text("utf-8")
    assert file.stat().st_mode & 0o777 == 0o600


async def test_blocked_calls_stand_in_it_too(tmp_path: Path, logged: list[Any]) -> None:
    file = tmp_path / "audit.jsonl"
    registry = HookRegistry([AuditLogHook(file), ReadOnlyHook()])
    assert (await registry.before(asked(SENDS, tool_args={"to": "Ada"}))).blocked is not None
    assert (await registry.before(asked(LOOKS))).blocked is None
    (line,) = [json.loads(text) for text in file.read_text("utf-8").splitlines()]
    assert (line["tool"], line["outcome"], line["arguments"]) == ("send", "blocked", '{"to": "Ada"}')
    assert line["reason"].startswith("only tools that change nothing")
    assert [entry["event"] for entry in logged] == ["hook_blocked", "tool_call"]


async def test_a_line_is_whole_whatever_stood_there(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_bytes(b'{"torn": ')
    hook = AuditLogHook(file)
    for text in ("x" * 100_000, "\ud800\x00"):
        await after(hook, tool_name="look", tool_args={"q": text}, tool_result="r")
    torn, *lines = file.read_text("utf-8").split("\n")
    assert (torn, lines.pop()) == ('{"torn": ', "")
    assert [json.loads(line)["tool"] for line in lines] == ["look", "look"]
    assert 1_900 < len(json.loads(lines[0])["arguments"]) <= 2_000


async def test_a_file_that_cannot_be_written_costs_no_result(tmp_path: Path, logged: list[Any]) -> None:
    verdict = await after(AuditLogHook(tmp_path / "no" / "audit.jsonl"), tool_name="look", tool_result="r")
    assert verdict.ctx.tool_result == "r"
    assert [entry["event"] for entry in logged] == ["tool_call", "hook_failed"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: RateLimitHook(0, 1),
        lambda: RateLimitHook(True, 1),
        lambda: RateLimitHook(1, float("inf")),
        lambda: RateLimitHook(1, 0),
        lambda: RateLimitHook(1, 1, "look"),
        lambda: ApprovalHook(["a", ""]),
        lambda: ApprovalHook(deadline=-1),
        lambda: TruncateHook(LEAST_CHARS - 1),
        lambda: TruncateHook(per_tool={"look": 5}),
    ],
)
def test_wrong_parameters_are_refused(make: Any) -> None:
    with pytest.raises(UsageError):
        make()


# Around an agent's calls


async def test_around_an_agent(tmp_path: Path) -> None:
    """Truncated, limited, and logged; the model is told what was done."""
    long = Tool("long", "Says much.", {}, lambda: "x" * 5_000, read_only=True)
    file = tmp_path / "audit.jsonl"
    llm = ScriptedLLM([[("long", {})], [("long", {"again": 1})], "done"])
    hooks = [AuditLogHook(file), TruncateHook(1_000), RateLimitHook(1, 3_600, clock=FakeClock())]
    result = await ReActAgent(llm, [long], hooks=hooks, completion_check=False).run("go")
    assert result.answer == "done"
    cut, limited = [record.observation for record in result.tool_calls]
    assert len(cut) == 1_000
    assert "long has reached its limit of 1 call in 3600 s" in limited
    lines = [json.loads(text) for text in file.read_text("utf-8").splitlines()]
    assert [(line["outcome"], line["observation_chars"]) for line in lines] == [("ok", 1_000), ("blocked", 0)]


# In dagwright.toml


def declared(folder: Path, text: str) -> tuple[HookEntry, ...]:
    (folder / "dagwright.toml").write_text(text, encoding="utf-8")
    loaded = load_settings({"HOME": "/h"}, cwd=folder)
    assert JobOptions.from_settings(loaded).hooks == loaded.hooks
    return loaded.hooks


FILE = """
max_steps = 3
[[hooks]]
use = "audit_log"
file = "audit.jsonl"
[[hooks]]
use = "truncate"
max_chars = 4_000
per_tool = { web_fetch = 20_000 }
[[hooks]]
use = "rate_limit"
tools = ["web_*"]
calls = 10
seconds = 1.5
[[hooks]]
use = "approval"
tools = ["send_*"]
deadline = 3_600
priority = 5
[[hooks]]
use = "read_only"
"""


def test_the_built_in_hooks_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    entries = declared(tmp_path, FILE)
    registry = build_hooks(entries)
    file = tmp_path / "dagwright.toml"
    assert [(entry.name, entry.priority, entry.origin) for entry in registry.entries()] == [
        ("approval", 5, f"{file}: [hooks, table 4]"),
        ("read_only", 10, f"{file}: [hooks, table 5]"),
        ("rate_limit", 20, f"{file}: [hooks, table 3]"),
        ("truncate", 900, f"{file}: [hooks, table 2]"),
        ("audit_log", 1000, f"{file}: [hooks, table 1]"),
    ]
    approval, _, limit, truncate, audit = registry
    assert isinstance(approval, ApprovalHook)
    assert isinstance(limit, RateLimitHook)
    assert isinstance(truncate, TruncateHook)
    assert isinstance(audit, AuditLogHook)
    assert (approval.tools, approval.deadline) == (("send_*",), 3600)
    assert (limit.tools, limit.calls, limit.seconds) == (("web_*",), 10, 1.5)
    assert (truncate.max_chars, truncate.per_tool) == (4000, {"web_fetch": 20000})
    assert audit.file == tmp_path / "audit.jsonl"
    assert not (tmp_path / "audit.jsonl").exists()
    again = list(build_hooks(entries))
    assert again[2] is not limit  # each job counts for itself


def test_all_of_them_can_be_declared(tmp_path: Path) -> None:
    assert set(BUILT_IN) == {entry.use for entry in declared(tmp_path, FILE)}
    assert declared(tmp_path, "") == ()


def test_settings_show_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = '[[hooks]]\nuse = "mine:Hook"\npassword = "hunter2hunter2"\nshare = 0.5\npriority = 1.5\n'
    (tmp_path / "dagwright.toml").write_text('[[hooks]]\nuse = "read_only"\n' + own, encoding="utf-8")
    loaded = load_settings({"HOME": "/h"}, cwd=tmp_path)
    row = next(row for row in describe(loaded) if row.name == "hooks")
    assert row.value.startswith("read_only, mine:Hook(password=")
    assert row.value.endswith("share=0.5, priority=1.5)")
    assert "hunter2" not in row.value
    assert row.origin == str(tmp_path / "dagwright.toml")


HOOK = '[[hooks]]\nuse = "{}"\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('hooks = "read_only"', ": hooks: must be tables, each begun with [[hooks]]"),
        ("hooks = [1]", ": hooks: must be tables"),
        ("[hooks]\nuse = 'read_only'", ": hooks: must be tables"),
        ("[[hooks]]\npriority = 1", ": [hooks, table 1] use is missing: one of read_only,"),
        (HOOK.format("readonly"), ": [hooks, table 1] use = 'readonly': no such hook: did you mean 'read_only'?"),
        (
            HOOK.format("a b:C"),
            "must be one of read_only, rate_limit, approval, truncate, audit_log, or package.module",
        ),
        (HOOK.format("mod:"), "must be one of"),
        (HOOK.format("read_only") * 2 + "tools = ['x']", ": [hooks, table 2] unknown key 'tools': there are use, prio"),
        (HOOK.format("read_only") + "priority = '1'", ": [hooks, table 1] priority = '1': must be a number"),
        (HOOK.format("read_only") + "priority = nan", "priority = NaN: must be a number"),
        (
            HOOK.format("truncate") + "max_chars = 10",
            "max_chars = 10: must be a whole number of characters, at least 200",
        ),
        (HOOK.format("truncate") + "max_char = 10", "unknown key 'max_char': did you mean 'max_chars'?"),
        (HOOK.format("truncate") + "per_tool = 5", "per_tool = 5: must be a table"),
        (HOOK.format("truncate") + "per_tool = {a = 5}", ": [hooks, table 1.per_tool] a = 5: must be a whole number"),
        (HOOK.format("rate_limit") + "seconds = 1", "calls is missing: rate_limit allows `calls` in `seconds`"),
        (HOOK.format("rate_limit") + "calls = 1", "seconds is missing"),
        (HOOK.format("rate_limit") + "calls = 1.5\nseconds = 1", "calls = 1.5: must be a whole number of calls"),
        (HOOK.format("rate_limit") + "calls = 1\nseconds = 0", "seconds = 0: must be a number of seconds, more than 0"),
        (HOOK.format("rate_limit") + "calls = 1\nseconds = true", "seconds = true: must be a number"),
        (HOOK.format("approval") + "tools = []", "tools = []: must name tools or patterns"),
        (HOOK.format("approval") + "tools = 'send'", "tools = 'send': must be a list of texts"),
        (HOOK.format("approval") + "deadline = inf", "deadline = Infinity: must be a number"),
        (HOOK.format("audit_log") + "file = 'nowhere/a.jsonl'", "must be a file in a folder that exists"),
        (HOOK.format("audit_log") + "file = '.'", "must be a file in a folder that exists"),
    ],
)
def test_mistakes_are_told_with_file_table_and_key(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        declared(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'dagwright.toml'}: ")
    assert told in str(caught.value)


def test_a_variable_cannot_declare_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"DAGWRIGHT_HOOKS = 'read_only': must be a list of \[\[hooks\]\] tables"):
        load_settings({"HOME": "/h", "DAGWRIGHT_HOOKS": "read_only"}, cwd=tmp_path)


def test_the_documentation_tells_what_there_is(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (\d+) \| (.*) \|$", text, re.MULTILINE)
    events = {"pre": "before", "post": "after"}
    assert [row[:3] for row in rows] == [
        (use, events[kind.event], str(kind.priority)) for use, kind in BUILT_IN.items()
    ]
    for use, _, _, told in rows:
        assert all(f"`{key}`" in told for key in KEYS[use])
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert [entry.use for entry in declared(tmp_path, example)] == [
        "approval",
        "truncate",
        "my_package.hooks:NoWeekend",
    ]


OWN = """
from agent import HookResult, PreToolUseHook, PostToolUseHook

class Shout(PostToolUseHook):
    priority = 42
    def __init__(self, mark="!", times=1, share=0.0):
        self.mark, self.times, self.share = mark, times, share
    async def execute(self, ctx):
        return HookResult(modified_result=ctx.tool_result + self.mark * self.times)

class Broken(PreToolUseHook):
    def __init__(self):
        raise RuntimeError("no luck")

class Nameless(PreToolUseHook):
    name = 5
    async def execute(self, ctx):
        return None

class Other:
    pass
"""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    """A folder with a module of the user's beside the file."""
    (tmp_path / "own_hooks.py").write_text(OWN, encoding="utf-8")
    (tmp_path / "own_broken.py").write_text("1 / 0", encoding="utf-8")
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("own_"):
            del sys.modules[name]


async def test_a_class_of_ones_own(own: Path) -> None:
    more = 'mark = "?"\ntimes = 2\nshare = 0.5\n'
    registry = build_hooks(declared(own, HOOK.format("own_hooks:Shout") + more + HOOK.format("own_hooks:Shout")))
    assert [entry.priority for entry in registry.entries("post")] == [42, 42]
    (first, _) = registry
    assert isinstance(first.share, float)  # type: ignore[attr-defined]
    assert (await registry.after(HookContext(tool_result="r"))).ctx.tool_result == "r??!"


@pytest.mark.parametrize(
    ("use", "more", "told"),
    [
        (
            "own_nowhere:Hook",
            "",
            "use = 'own_nowhere:Hook': own_nowhere can't be imported: No module named 'own_nowhere'",
        ),
        ("own_broken:Hook", "", "own_broken can't be imported: ZeroDivisionError: division by zero"),
        ("own_hooks:Shoud", "", "own_hooks has no Shoud: did you mean 'Shout'?"),
        ("own_hooks:Other", "", "must be a subclass of PreToolUseHook, PostToolUseHook or SessionStartHook"),
        ("own_hooks:Shout", "loud = true", "own_hooks:Shout can't be made: TypeError"),
        ("own_hooks:Broken", "", "own_hooks:Broken can't be made: RuntimeError: no luck"),
        ("own_hooks:Nameless", "", "the hook Nameless: its name must be a text, not 5"),
    ],
)
def test_mistakes_of_ones_own_classes(use: str, more: str, told: str, own: Path) -> None:
    entries = declared(own, HOOK.format(use) + more)
    with pytest.raises(ConfigError) as caught:
        build_hooks(entries)
    assert str(caught.value).startswith(f"{own / 'dagwright.toml'}: [hooks, table 1]")
    assert told in str(caught.value)

"""The command with declared hooks: it asks on a real (pseudo-)terminal, rejects without one, and lists them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import ProviderFake, View, brain
from tests.fakes.brain import SYNTHESIS
from tests.integration.test_command import Gate, works_on_a_step
from tests.support.command import command, on_terminal, openai

if sys.platform == "win32":
    pytest.skip("needs pseudo-terminals", allow_module_level=True)

from tests.integration.test_command_terminal import HOSTILE, harmless

GOAL = "Work out six times seven."
APPROVAL = '[[hooks]]\nuse = "approval"\ntools = ["calc*"]\nreason = "sums are dear"\n'
WANTS = r"step {} wants to call calculate \(sums are dear\); it waits 24 h at most"


def observations(fake: ProviderFake) -> list[str]:
    """What the steps were told of their calls."""
    return [text for view in fake.views if works_on_a_step(view) for _, text in view.results]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "dagwright.toml").write_text(APPROVAL, encoding="utf-8")
    return tmp_path


async def test_calls_are_asked_for_in_the_live_picture(home: Path) -> None:
    async with ProviderFake(brain) as fake, on_terminal("run", GOAL, home=home, env=openai(fake)) as term:
        await term.until(WANTS.format("s1"))
        await term.until(r'  expression: "6\*7"')
        await term.until("type y or n, and why if you like; Ctrl-C stops")
        await term.until(r"1 ─ \? s1 Work out the base figure")
        before = len(term.raw)
        await term.until(lambda text: len(term.raw) > before + 2_000)  # the picture is drawn again and again
        assert re.search(WANTS.format("s1"), term.text[-3_000:]), "the question was overwritten"
        term.type("what for?\r")
        await term.until("A call waits for your word")
        assert not observations(fake)
        term.type("y")
        await term.until("> y")
        term.type("\r")
        await term.until("s1: calculate approved by user")
        await term.until(WANTS.format("(s2|s3)"))
        first = "s2" if re.search(WANTS.format("s2"), term.text) else "s3"
        second = "s3" if first == "s2" else "s2"
        assert not re.search(WANTS.format(second), term.text), "one question at a time"
        term.type("n not this one\r")
        await term.until(f"{first}: calculate rejected by user - not this one")
        for step in (second, "s4"):
            await term.until(WANTS.format(step))
            term.type("yes\r")
        assert await term.end() == 0, term.text
    assert term.text.count(SYNTHESIS) == 1
    assert sum("not this one" in text for text in observations(fake)) == 1
    assert "heard:" not in term.text, "no answer was taken for a follow-up"
    last = term.text[term.text.rindex("4 of 4 steps") :]
    assert "wants to call" not in last


async def test_a_line_begun_before_the_question_stays_a_follow_up(home: Path) -> None:
    gate = Gate()
    async with ProviderFake(gate) as fake, on_terminal("run", GOAL, home=home, env=openai(fake)) as term:
        await term.until("▶ s1")
        term.type("yes, and in Fr")
        await term.until("> yes, and in Fr")
        gate.open.set()
        await term.until("The line you are typing is still a follow-up")
        term.type("ench\r")
        await term.until("heard: yes, and in French")
        assert not observations(fake), "it approved nothing"
        term.type("\x03\x03")
        assert await term.end() == 130


async def test_a_question_without_room_stands_above_the_picture_whole(home: Path) -> None:
    def script(view: View) -> Any:
        if works_on_a_step(view) and not view.results:
            return [("calculate", {"expression": "+".join(str(n) for n in range(150))})]
        return brain(view)

    async with (
        ProviderFake(script) as fake,
        on_terminal("run", GOAL, "--mode", "react", home=home, env=openai(fake), columns=60, rows=10) as term,
    ):
        await term.until(r"\(the whole question stands above\)")
        term.type("y\r")
        assert await term.end() == 0, term.text
    above = term.text.replace("\n", "")
    assert "+".join(str(n) for n in range(150)) in above


async def test_plain_lines_ask_too(home: Path) -> None:
    words = ("run", GOAL, "--plain", "--mode", "react")
    async with ProviderFake(brain) as fake, on_terminal(*words, home=home, env=openai(fake)) as term:
        await term.until("the agent wants to call calculate")
        await term.until("type y or n, and why if you like")
        assert "agent: calculate waits for approval - sums are dear {'expression': '6*7'}" in term.text
        term.type("y\n")
        assert await term.end() == 0
    assert "agent: calculate approved by user" in term.text
    assert b"\x1b" not in term.raw


@pytest.mark.parametrize(
    ("mode", "told"),
    [("dag", "s1: calculate cancelled"), ("react", "agent: calculate rejected - the job was stopped")],
)
async def test_a_stop_does_not_wait_for_an_answer(mode: str, told: str, home: Path) -> None:
    words = ("run", GOAL, "--mode", mode)
    async with ProviderFake(brain) as fake, on_terminal(*words, home=home, env=openai(fake)) as term:
        await term.until("wants to call calculate")
        term.type("\x03")
        assert await term.end() == 130, term.text
    assert told in term.text
    assert "Traceback" not in term.text


async def test_an_abort_takes_the_question_back(home: Path) -> None:
    async with ProviderFake(brain) as fake, on_terminal("run", GOAL, home=home, env=openai(fake)) as term:
        await term.until(WANTS.format("s1"))
        term.process.terminate()
        assert await term.end() == 130, term.text
    assert "Traceback" not in term.text


async def test_the_end_of_the_input_rejects(home: Path) -> None:
    words = ("run", GOAL, "--plain", "--mode", "react")
    async with ProviderFake(brain) as fake, on_terminal(*words, home=home, env=openai(fake)) as term:
        await term.until("the agent wants to call calculate")
        term.type("\x04")  # Ctrl-D
        assert await term.end() == 0
    assert "nobody can be asked: the terminal's input has ended" in term.text


async def test_hostile_arguments_are_shown_as_text(home: Path) -> None:
    def script(view: View) -> Any:
        if works_on_a_step(view) and not view.results:
            return [("calculate", {"expression": f"6*7 {HOSTILE}"})]
        return brain(view)

    async with ProviderFake(script) as fake, on_terminal("run", GOAL, home=home, env=openai(fake)) as term:
        left = {"s1", "s2", "s3", "s4"}
        while left:
            await term.until(WANTS.format(f"({'|'.join(left)})"))
            step = next(step for step in left if re.search(WANTS.format(step), term.text))
            left.remove(step)
            term.type("n\r")
            await term.until(f"{step}: calculate rejected by user")
        assert await term.end() == 0
    assert "expression:" in term.text
    assert "pink" in term.text
    harmless(term)


async def test_without_a_terminal_calls_are_rejected_at_once(home: Path, provider_fake: ProviderFake) -> None:
    result = await command("run", GOAL, "--mode", "react", home=home, env=openai(provider_fake))
    assert (result.code, result.out) == (0, f"{SYNTHESIS}\n"), result.err
    assert "agent: calculate rejected - it needs a human's approval, and nobody can be asked in this run" in result.err
    told = observations(provider_fake)
    assert told
    assert "nobody can be asked" in told[0]


async def test_the_events_tell_of_approvals(home: Path, provider_fake: ProviderFake) -> None:
    words = ("run", GOAL, "--mode", "react", "--events")
    result = await command(*words, home=home, env=openai(provider_fake))
    events = [line["payload"] for line in result.lines if line["channel"] == "approval"]
    assert [(event["tool_name"], event["status"]) for event in events] == [
        ("calculate", "waiting"), ("calculate", "rejected"),
    ]  # fmt: skip
    assert events[0]["call_id"] == events[1]["call_id"]
    assert events[1]["decided_by"] == "nobody"


# What was declared


async def test_declared_hooks_run_and_are_listed(tmp_path: Path, provider_fake: ProviderFake) -> None:
    file = tmp_path / "dagwright.toml"
    file.write_text(
        '[[hooks]]\nuse = "audit_log"\nfile = "audit.jsonl"\n[[hooks]]\nuse = "own:Ours"\nmark = "§"\n'
        '[[hooks]]\nuse = "rate_limit"\ncalls = 9\nseconds = 60\n',
        encoding="utf-8",
    )
    (tmp_path / "own.py").write_text(
        "from agent import HookResult, PostToolUseHook\n"
        "class Ours(PostToolUseHook):\n"
        "    def __init__(self, mark):\n"
        "        self.mark = mark\n"
        "    async def execute(self, ctx):\n"
        "        return HookResult(modified_result=self.mark + ctx.tool_result, side_effects=('marked',))\n",
        encoding="utf-8",
    )
    listed = await command("tools", "--hooks", home=tmp_path)
    assert [re.split(r"  +", line) for line in listed.out.splitlines()] == [
        ["PreToolUse", "20", "rate_limit", f"({file}: [hooks, table 3])"],
        ["PostToolUse", "100", "Ours", f"({file}: [hooks, table 2])"],
        ["PostToolUse", "1000", "audit_log", f"({file}: [hooks, table 1])"],
    ]
    rows = (await command("tools", "--hooks", "--json", home=tmp_path)).data["hooks"]
    assert [row["name"] for row in rows] == ["rate_limit", "Ours", "audit_log"]
    assert rows[0] == {
        "name": "rate_limit",
        "event": "PreToolUse",
        "priority": 20,
        "origin": f"{file}: [hooks, table 3]",
    }

    checked = await command("config", "check", home=tmp_path)
    assert re.search(rf"hooks +audit_log\(file='.*audit.jsonl'\), own:Ours\(mark='§'\), .*\({file}\)", checked.out)

    result = await command("run", GOAL, "--mode", "react", home=tmp_path, env=openai(provider_fake))
    assert result.code == 0, result.err
    assert any("§42" in text for text in observations(provider_fake))
    audit = (tmp_path / "audit.jsonl").read_text("utf-8")
    assert '"tool": "calculate"' in audit
    assert '"marked"' in audit


@pytest.mark.parametrize("words", [("run", GOAL), ("tools", "--hooks"), ("config", "check")])
async def test_a_hook_that_cannot_be_had_is_a_mistake_in_the_configuration(
    words: tuple[str, ...], tmp_path: Path, provider_fake: ProviderFake
) -> None:
    (tmp_path / "dagwright.toml").write_text('[[hooks]]\nuse = "nowhere:Hook"\n', encoding="utf-8")
    result = await command(*words, home=tmp_path, env=openai(provider_fake))
    assert result.code == 2
    assert "[hooks, table 1] use = 'nowhere:Hook': nowhere can't be imported" in result.err
    assert "Traceback" not in result.err


async def test_no_hooks_are_told_as_such(tmp_path: Path) -> None:
    assert (await command("tools", "--hooks", home=tmp_path)).out.startswith("no hooks: declare them")

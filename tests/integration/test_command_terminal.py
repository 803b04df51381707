"""The command on a real (pseudo-)terminal: the live picture, the streamed answer, typed lines, hostile text."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if sys.platform == "win32":
    pytest.skip("needs pseudo-terminals", allow_module_level=True)

import termios

from tests.fakes import ProviderFake, View, brain
from tests.fakes.brain import DIAMOND, SYNTHESIS
from tests.integration.test_command import Gate, works_on_a_step
from tests.support.command import PATIENCE, Terminal, on_terminal, openai

GOAL = "Work out six times seven."
HOSTILE = "\x1b]0;owned\x07\x1b[35;45mpink\x9b2J\rover\u202eback\u2066isolate\x08\x00end"
"""A title, colours, a C1 sequence, a carriage return, direction marks, a backspace."""


def priced(home: Path, fake: ProviderFake) -> dict[str, str]:
    (home / "models.toml").write_text(
        f'[models.small]\nprovider = "openai_chat"\nmodel = "fake-model"\nbase_url = "{fake.openai_url}"\n'
        'api_key_env = "KEY"\nroles = ["general"]\nprice = { input = 100.0, output = 100.0 }\n'
    )
    return {"KEY": "k"}


def harmless(terminal: Terminal) -> None:
    """Nothing of the hostile text reached the terminal but as visible text."""
    raw = terminal.raw.decode()
    for bad in ("\x1b]", "\x07", "\x1b[35;45m", "\x9b", "\u202e", "\u2066", "\x08", "\x00"):
        assert bad not in raw, repr(bad)
    assert not re.search(r"\r(?!\n|\x1b)", raw.replace("\r\r\n", "\r\n")), "a carriage return of the model's"


async def test_the_picture_shows_the_work_and_stays_above_the_answer(tmp_path: Path) -> None:
    gate = Gate()
    async with ProviderFake(gate) as fake, on_terminal("run", GOAL, home=tmp_path, env=priced(tmp_path, fake)) as term:
        await term.until(r"1 ─ ▶ s1 Work out the base figure with a tool\. +small +0\.\d s")
        await term.until(r"executing · 0 of 4 steps")
        await term.until(r"2 ┌ · s2 ")
        await term.until(r"  └ · s3 ")
        gate.open.set()
        assert await term.end() == 0
    last = term.text[term.text.rindex("4 of 4 steps") :]
    rows = [
        line for line in last.splitlines() if re.match(r"(\d |  )[─┌└] ✓ s\d .* small +\d+\.\d s +\$0\.\d{4}", line)
    ]
    assert len(rows) == 4, last
    assert last.index("s4 Put both halves together.") < last.index(SYNTHESIS) < last.index("completed in ")
    assert term.text.count(SYNTHESIS) == 1


async def test_a_running_tool_is_shown(tmp_path: Path) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await go_on.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\nconnection: close\r\n\r\n42")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(page, "127.0.0.1", 0)
    place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def script(view: View) -> Any:
        if works_on_a_step(view) and not view.results:
            return [("web_fetch", {"url": f"http://{place}/"})]
        return brain(view)

    async with (
        server,
        ProviderFake(script) as fake,
        on_terminal("run", GOAL, "--allow", place, home=tmp_path, env=openai(fake)) as term,
    ):
        await term.until("▶ s1 Work out the base figure with a tool. ← web_fetch")
        async with asyncio.timeout(PATIENCE):
            await asked.wait()  # it is shown before it has connected
        go_on.set()
        assert await term.end() == 0


async def test_a_typed_line_is_a_follow_up(tmp_path: Path) -> None:
    gate = Gate()
    async with ProviderFake(gate) as fake, on_terminal("run", GOAL, home=tmp_path, env=openai(fake)) as term:
        await term.until("▶ s1")
        term.type("also in Frenhc\x7f\x7fch")
        await term.until("> also in French")
        term.type("\r")
        await term.until("s4 Put both halves .*Skipped — user changed")
        gate.open.set()
        await term.until("round 2")
        assert await term.end() == 0
        assert "heard: also in French" in term.text
        assert term.text.count(SYNTHESIS) == 1
        revised = [view for view in fake.views if "[User follow-up]: also in French" in view.last_text]
        assert revised, "the planner was not told"


@pytest.mark.parametrize("mode", ["dag", "react"])
async def test_a_line_typed_while_the_answer_is_written_voids_it(mode: str, tmp_path: Path) -> None:
    term: Terminal
    written = 0

    async def script(view: View) -> Any:
        nonlocal written
        said = brain(view)
        if isinstance(said, list) and said[0][0] == "revise_plan":
            step = {**said[0][1]["steps"][0], "id": "d1", "task": "Double it.", "dependencies": ["s4"]}
            return [("revise_plan", {**said[0][1], "steps": [step]})]
        if said == SYNTHESIS and view.stream:
            written += 1
            if written == 1:
                term.type("wait, double it\r")
                await asyncio.sleep(0.5)
        return said

    words = ("run", GOAL, "--mode", mode)
    async with ProviderFake(script) as fake, on_terminal(*words, home=tmp_path, env=openai(fake)) as term:
        assert await term.end() == 0, term.text
    assert "heard: wait, double it" in term.text
    assert written == 2
    assert "Traceback" not in term.text
    assert term.text.rstrip().splitlines()[-1].startswith("completed in")


async def test_the_terminal_is_left_as_it_was(tmp_path: Path) -> None:
    gate = Gate()
    async with ProviderFake(gate) as fake, on_terminal("run", GOAL, home=tmp_path, env=openai(fake)) as term:
        await term.until("▶ s1")
        assert not termios.tcgetattr(term.fd)[3] & termios.ECHO
        term.type("\x03")  # Ctrl-C
        await term.until("Stopping: running steps finish")
        gate.open.set()
        code = await term.end()
    assert code == 130
    assert term.raw.rindex(b"\x1b[?25h") > term.raw.rindex(b"\x1b[?25l")  # the cursor is back
    assert "cancelled in" in term.text


async def test_modes_are_restored_after_an_abort(tmp_path: Path) -> None:
    gate = Gate()
    async with ProviderFake(gate) as fake, on_terminal("run", GOAL, home=tmp_path, env=openai(fake)) as term:
        keep = os.dup(term.fd)
        try:
            await term.until("▶ s1")
            term.type("\x03")
            await term.until("Stopping")
            term.type("\x03")
            assert await term.end() == 130
            modes = termios.tcgetattr(keep)[3]
        finally:
            os.close(keep)
            gate.open.set()
    assert modes & termios.ECHO
    assert modes & termios.ICANON


def everywhere(view: View) -> Any:
    """Hostile text in the plan, in a tool call, in a step's failure, in the verdict's place and in the answer."""
    if works_on_a_step(view):
        if "second half" in view.last_text and "Put both" not in view.last_text:
            return {"status": 400, "error": HOSTILE}
        if not view.results:
            return [("calculate", {"expression": f"6*7 {HOSTILE}"}), (HOSTILE.replace("\x00", ""), {})]
    said = brain(view)
    if isinstance(said, list) and said[0][0] == "make_plan":
        steps = [{**step, "task": f"{step['task']} {HOSTILE}"} for step in said[0][1]["steps"]]
        return [("make_plan", {**said[0][1], "steps": steps})]
    return f"{SYNTHESIS} {HOSTILE}" if said == SYNTHESIS else said


@pytest.mark.parametrize("words", [(), ("--plain",), ("--json",), ("--log-level", "debug")])
async def test_hostile_text_cannot_reach_the_terminal(words: tuple[str, ...], tmp_path: Path) -> None:
    async with ProviderFake(everywhere) as fake:
        arguments = ("run", GOAL, "--max-replan-rounds", "1", *words)
        async with on_terminal(*arguments, home=tmp_path, env=openai(fake), columns=200) as term:
            assert await term.end() == 3
    assert "pink" in term.text
    harmless(term)


async def test_hostile_text_in_a_plan_cannot_reach_the_terminal(tmp_path: Path) -> None:
    async with ProviderFake(everywhere) as fake, on_terminal("plan", GOAL, home=tmp_path, env=openai(fake)) as term:
        assert await term.end() == 0
    assert "\\x1b[35;45mpink" in term.text
    harmless(term)


def many(view: View) -> Any:
    """A plan that is taller than the terminal."""
    said = brain(view)
    if isinstance(said, list) and said[0][0] == "make_plan":
        steps = [{**DIAMOND[0], "id": f"s{n}", "task": f"Part {n} of a long piece of work " * 4} for n in range(1, 31)]
        return [("make_plan", {"steps": [{**said[0][1]["steps"][0], **step} for step in steps]})]
    return said


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (40, 12), (20, 6)])
async def test_a_plan_that_is_taller_than_the_terminal(columns: int, rows: int, tmp_path: Path) -> None:
    async with ProviderFake(many) as fake:
        size = {"columns": columns, "rows": rows}
        async with on_terminal("run", GOAL, home=tmp_path, env=openai(fake), **size) as term:
            assert await term.end() == 0
    hidden = re.search(r"… and \d+ (completed|pending)", term.text)
    assert hidden or columns == 20, "the picture while it runs is cut, and says so"
    last = term.text[term.text.rindex("30 of 30 steps") :]
    assert all(re.search(rf"✓ s{n}\b", last) for n in range(1, 31))
    assert max(len(line) for line in term.text.splitlines() if "Part" in line) < columns


async def test_dumb_terminals_and_plain_get_lines(tmp_path: Path, provider_fake: ProviderFake) -> None:
    checks: list[Callable[[str], bool]] = [lambda text: "s1 running on" in text, lambda text: "┌" not in text]
    async with on_terminal("run", GOAL, "--plain", home=tmp_path, env=openai(provider_fake)) as term:
        assert await term.end() == 0
    assert all(check(term.text) for check in checks)
    assert b"\x1b" not in term.raw

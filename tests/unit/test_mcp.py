"""MCP servers as a source of tools: real processes and real HTTP, and all the ways in which a server fails."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from registry import mcp as package
from registry.artifacts import plain_name
from registry.errors import ConfigError
from registry.mcp import McpServer, connection, mcp_tools, servers_from_toml
from registry.mcp.results import result_of
from registry.toml_file import read_toml
from registry.tool_run import run_tool

SUPPORT = Path(__file__).parents[1] / "support"
TOKEN = "tok-0123456789abcdef"


def plain(start: str = "normal", **more) -> McpServer:
    return McpServer("plain", sys.executable, (str(SUPPORT / "mcp_plain.py"), start), **{"timeout": 30.0, **more})


def children() -> set[str]:
    """The processes of this process."""
    found = set()
    for task in os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else ():
        try:
            found |= set(Path(f"/proc/self/task/{task}/children").read_text().split())
        except FileNotFoundError:  # the thread has ended meanwhile
            continue
    return found


@asynccontextmanager
async def used(*servers, **options):
    """A function that calls a tool by name, the tools, and the warnings; nothing may be left afterwards."""
    warnings: list[str] = []
    before = children(), asyncio.all_tasks()
    async with mcp_tools(servers, warn=warnings.append, **options) as found:
        tools = {tool.name: tool for tool in found.tools}

        async def call(name, **arguments):
            tool = tools[name]
            return await run_tool(tool, tool.check(arguments))

        yield call, found, warnings
    assert children() <= before[0]
    assert asyncio.all_tasks() <= before[1]


async def test_a_server_s_tools_are_tools():
    async with used(plain(), taken=["calculate"]) as (call, found, warnings):
        tools = {tool.name: tool for tool in found.tools}
        assert [*tools][:4] == ["echo", "die", "hang", "slow"]
        assert [*tools][-3:] == ["odd_name_x", "mute", "plain_calculate"]  # odd characters, and a name that is taken
        assert warnings == ["MCP server 'plain': there is a tool 'echo' already; 'echo' is left out"]
        echo = tools["echo"]
        assert echo.description == "What echo does.\nSecond line."
        assert dict(echo.parameters)["properties"] == {"text": {"type": "string"}}
        assert (echo.network, echo.trusted, echo.origin) == (True, False, "mcp:plain")
        assert (echo.read_only, echo.idempotent, echo.pure) == (False, False, False)
        assert tools["odd_name_x"].description == "An odd name"
        assert "The tool mute of the MCP server plain" in tools["mute"].description
        assert not tools["mute"].read_only  # the server says so, which is a stranger's word
        assert found.hints == {"mute": "read-only, idempotent"}
        assert (await call("echo", text="hi")).text == "hi"
        assert (await call("odd_name_x")).text == "empty"
        assert (await call("plain_calculate", text="1")).text == "1"
        with pytest.raises(ValueError, match="text"):
            echo.check({"text": [1]})
        many = await asyncio.gather(*(call("echo", text=str(number)) for number in range(30)))
        assert [got.text for got in many] == [str(number) for number in range(30)]


async def test_the_operator_s_word_counts():
    server = plain(tools=("echo", "mute", "ecko"), read_only=("mute",), idempotent=("*",))
    async with used(server) as (_, found, warnings):
        assert [(tool.name, tool.read_only, tool.idempotent) for tool in found.tools] == [
            ("echo", False, True),
            ("mute", True, True),
        ]
        assert "[mcp.plain] tools: the server has no tool 'ecko' (did you mean 'echo'?)" in warnings
    async with used(plain(tools=("mute",), read_only=("*",))) as (_, found, _):
        assert [tool.read_only for tool in found.tools] == [True]


async def test_two_servers_with_the_same_names():
    first, second = plain(tools=("fail",)), McpServer("other", sys.executable, (str(SUPPORT / "mcp_plain.py"),))
    async with used(first, second) as (call, found, _):
        names = [tool.name for tool in found.tools]
        assert {"plain_fail", "other_fail", "other_echo"} - set(names) == {"other_echo"}
        assert "echo" in names
        assert "other_fail" in names
        assert (await call("other_fail", text="x")).text == "McpError: it failed: x"


@pytest.mark.parametrize(
    ("name", "text", "is_error"),
    [
        ("fail", "McpError: it failed: hi", True),
        ("refuse", "McpError: MCP server 'plain': the call of refuse was refused: no refuse today", True),
        ("closed_code", "McpError: MCP server 'plain': the call of closed_code was refused: no closed_code", True),
        ("garbage", "after the noise", False),
        ("wrong_shape", "McpError: MCP server 'plain': the call of wrong_shape got an answer that is not valid", True),
    ],
)  # fmt: skip
async def test_odd_answers_are_told_and_the_server_is_kept(name, text, is_error, tmp_path):
    notes = tmp_path / "notes"
    async with used(plain(env={"MCP_NOTES": "NOTES"}), env={"NOTES": str(notes)}) as (call, _, _):
        got = await call(name, text="hi")
        assert got.text.startswith(text)
        assert got.is_error is is_error
        assert (await call("echo", text="on")).text == "on"
    assert notes.read_text().split("\n").count("start") == 1


async def test_a_server_that_dies_in_a_call_is_told_and_started_again(tmp_path):
    notes = tmp_path / "notes"
    async with used(plain(env={"MCP_NOTES": "NOTES"}), env={"NOTES": str(notes)}) as (call, _, _):
        got = await call("die")
        assert got.is_error
        assert "MCP server 'plain': it ended before it had answered the call of die" in got.text
        assert "Its last words: last words: out of memory. The next call tries to start it again" in got.text
        assert (await call("echo", text="back")).text == "back"
    assert notes.read_text().split() == ["start", "call", "die", "start", "call", "echo"]


async def test_starts_are_bounded(tmp_path):
    notes = tmp_path / "notes"
    async with used(plain(env={"MCP_NOTES": "NOTES"}), env={"NOTES": str(notes)}) as (call, _, _):
        texts = [(await call("die")).text for _ in range(5)]
        assert "tries to start it again" in texts[1]
        assert "tries to start it again" not in texts[2]
        assert texts[3] == texts[4] == "McpError: MCP server 'plain': it failed 3 times in a row: given up"
    assert notes.read_text().split("\n").count("start") == 3


async def test_a_server_that_was_killed_between_calls():
    before = children()
    async with used(plain()) as (call, _, _):
        (pid,) = children() - before
        os.kill(int(pid), 9)
        got = await call("echo", text="x")
        assert "The next call tries to start it again" in got.text
        both = await asyncio.gather(call("echo", text="1"), call("echo", text="2"))  # one start for both
        assert [result.text for result in both] == ["1", "2"]


async def test_a_hanging_call_ends_at_its_time_limit_and_a_hanging_server_is_started_again(tmp_path):
    notes = tmp_path / "notes"
    async with used(plain(timeout=1.0, env={"MCP_NOTES": "NOTES"}), env={"NOTES": str(notes)}) as (call, _, _):
        hang = asyncio.create_task(call("hang"))
        await asyncio.sleep(0.3)
        assert (await call("echo", text="x")).text == "x"
        assert "the call of hang took more than 1 s and was given up" in (await hang).text
        assert notes.read_text().split("\n").count("start") == 1  # it answered meanwhile: it is alive
        got = await call("hang")
        assert "took more than 1 s, and it answered nothing else meanwhile. The next call tries" in got.text
        assert (await call("echo", text="y")).text == "y"
    assert notes.read_text().split("\n").count("start") == 2


async def test_a_cancelled_call_leaves_the_server_as_it_was():
    async with used(plain()) as (call, _, _):
        task = asyncio.create_task(call("hang"))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await call("echo", text="x")).text == "x"


@pytest.mark.parametrize("when", ["starting", "idle", "calling"])
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_nothing_is_left_when_the_user_is_cancelled(when, times):
    before, ready = (children(), asyncio.all_tasks()), asyncio.Event()

    async def user():
        server = plain("silent" if when == "starting" else "normal")
        async with mcp_tools([server], warn=lambda _: None) as found:
            ready.set()
            tool = next(tool for tool in found.tools if tool.name == "hang")
            await (asyncio.sleep(60) if when == "idle" else run_tool(tool, {}))

    task = asyncio.create_task(user())
    if when == "starting":
        while children() <= before[0]:
            await asyncio.sleep(0.01)
    else:
        await ready.wait()
        await asyncio.sleep(0.1)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.02)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert children() <= before[0]
    assert asyncio.all_tasks() <= before[1]


async def test_a_server_that_ignores_its_end_is_killed(monkeypatch):
    for wait in ("PROCESS_TERMINATION_TIMEOUT", "FORCE_KILL_TIMEOUT"):
        monkeypatch.setattr(f"mcp.client.stdio.{wait}", 0.2)
    script = f"trap '' TERM; {sys.executable} {SUPPORT / 'mcp_plain.py'}; sleep 600"
    async with used(McpServer("stubborn", "/bin/sh", ("-c", script))) as (call, _, _):
        assert (await call("echo", text="x")).text == "x"


async def test_the_user_s_own_exception_comes_out_as_it_is():
    with pytest.raises(KeyError, match="mine"):
        async with used(plain()):
            raise KeyError("mine")


CANNOT = {
    "no such command": (McpServer("s", "/nowhere/server"), "it can't be started: FileNotFoundError"),
    "a folder": (McpServer("s", "/tmp"), "it can't be started: PermissionError"),
    "ends at once": (plain("exit"), "Connection closed. Its last words: no licence found"),
    "a variable that is not set": (McpServer("s", "/bin/true", env={"A": "NOT_SET"}), "needs the variable NOT_SET"),
    "nobody listens": (McpServer("s", url="http://127.0.0.1:9/mcp"), "it can't be started: ConnectError"),
    "speaks otherwise": (McpServer("s", "/bin/cat"), "it can't be started"),
    "no such folder": (McpServer("s", "/bin/cat", cwd=Path("/nowhere")), "it can't be started: FileNotFoundError"),
}


@pytest.mark.parametrize("case", CANNOT)
async def test_a_server_that_can_not_be_reached_is_a_warning_and_the_others_work(case):
    server, says = CANNOT[case]
    other = McpServer("other", sys.executable, (str(SUPPORT / "mcp_plain.py"),))
    async with used(server, other, env={}) as (call, found, warnings):
        assert says in warnings[0]
        assert warnings[0].endswith("Its tools are missing")
        assert {tool.origin for tool in found.tools} == {"mcp:other"}
        assert (await call("echo", text="x")).text == "x"


async def test_one_that_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(connection, "START_LIMIT", 1.0)
    async with used(plain("silent")) as (_, found, warnings):
        assert found.tools == ()
        assert "it gave no MCP answer within 1 s" in warnings[0]


async def test_noise_at_the_start_is_passed_over():
    async with used(plain("garbage")) as (call, _, _):
        assert (await call("echo", text="x")).text == "x"


async def test_a_required_server_that_is_missing_is_an_error():
    server = McpServer("s", "/nowhere/server", required=True)
    with pytest.raises(ConfigError, match=r"can't be started.*\(\[mcp.s\] is required\)"):
        async with used(server, plain()):
            pytest.fail("must not get here")


async def test_only_the_named_variables_are_passed(monkeypatch):
    monkeypatch.setenv("DAGWRIGHT_TEST_OTHER", "not for servers")
    env = {**os.environ, "MINE": "for the server", "OPENAI_API_KEY": "sk-not-for-servers"}
    async with used(plain(env={"GIVEN": "MINE"}), env=env) as (call, _, _):
        seen = json.loads((await call("environment")).text)
    assert seen["GIVEN"] == "for the server"
    allowed = {"GIVEN", "HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LC_CTYPE"}
    assert set(seen) <= allowed


async def test_a_value_that_a_server_is_given_is_masked_where_it_comes_back():
    async with used(plain(env={"SERVICE_TOKEN": "MINE"}), env={"MINE": TOKEN}) as (call, _, _):
        assert TOKEN not in (await call("environment")).text
        assert TOKEN not in (await call("fail", text=f"wrong token {TOKEN}")).text


# Over HTTP, with the SDK's own server


@asynccontextmanager
async def web_server(token: str = ""):
    """The SDK's server in a process; yields its address, and functions that end it and start it again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []

    async def start():
        command = [sys.executable, str(SUPPORT / "mcp_sdk.py"), str(port)]
        environment = {**os.environ, "MCP_TOKEN": token}
        processes.append(await asyncio.create_subprocess_exec(*command, env=environment, stderr=subprocess.DEVNULL))
        async with asyncio.timeout(60):
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    return
                except OSError:
                    await asyncio.sleep(0.05)

    async def stop():
        for process in processes:
            with suppress(ProcessLookupError):  # it has ended by itself
                process.kill()
            await process.wait()

    await start()
    try:
        yield f"http://127.0.0.1:{port}/mcp", start, stop
    finally:
        await stop()


async def test_over_http_with_a_token():
    async with web_server(TOKEN) as (url, start, stop):
        server = McpServer("web", url=url, headers={"Authorization": "Bearer MINE"}, timeout=30.0)
        async with used(server, env={"MINE": "wrong-0123456789"}) as (_, found, warnings):
            assert found.tools == ()
            assert "MCP server 'web': it can't be started" in warnings[0]
            assert "wrong-0123456789" not in warnings[0]
        async with used(server, env={"MINE": TOKEN}) as (call, found, warnings):
            assert warnings == []
            assert found.hints == {"add": "read-only, destructive"}
            assert (await call("add", a=1, b=2)).text == "3"
            assert (await call("names")).text == "a\nb"
            assert json.loads((await call("stations", line="U1")).text) == {"U1": ["A", "B"]}
            assert (await call("nothing")).text == "(no output)"
            await pictures_and_files(call)
            got = await call("stop")
            assert "it ended before it had answered the call of stop" in got.text
            assert "it can't be started: ConnectError" in (await call("add", a=1, b=2)).text
            await start()
            assert (await call("add", a=3, b=4)).text == "7"
            await stop()
            assert (await call("add", a=3, b=4)).is_error


async def pictures_and_files(call):
    got = await call("picture")
    assert got.text.startswith("A red pixel.\n[one more file, not kept: image.png (image/png, 10 bytes)]\n[Artifact")
    assert (got.artifact.name, got.artifact.mime, got.artifact.data) == ("image.png", "image/png", b"\x89PNG pixel")
    got = await call("files")
    assert "[a resource, not read: far at https://a.test/far]" in got.text
    assert "memo://note:\na note" in got.text
    assert "[image: a file that is no valid base64]" in got.text
    assert (got.artifact.name, got.artifact.mime) == ("report.pdf", "application/pdf")


def test_structured_content_is_not_told_twice():
    from mcp_types import CallToolResult, TextContent

    def shown(structured, *texts):
        parts = [TextContent(type="text", text=text) for text in texts]
        return result_of(CallToolResult(content=parts, structured_content=structured))

    assert shown({"a": 1}) == '{"a": 1}'
    assert shown({"a": 1}, '{\n "a": 1}') == '{\n "a": 1}'
    assert shown({"a": 1}, "one") == 'one\n{"a": 1}'
    assert shown({"result": "x"}, "x") == "x"
    assert shown({"result": ["x", "y"]}, "x", "y") == "x\ny"
    assert shown({"result": ["x", "z"]}, "x", "y") == 'x\ny\n{"result": ["x", "z"]}'


def test_a_file_s_name_is_no_way_out():
    from mcp_types import BlobResourceContents, CallToolResult, EmbeddedResource

    resource = BlobResourceContents(uri="file:///a/../../etc/passwd", blob="eA==")
    got = result_of(CallToolResult(content=[EmbeddedResource(type="resource", resource=resource)]))
    assert plain_name(got.name) == "passwd.bin"


# Configuration


def servers(tmp_path, text):
    path = tmp_path / "dagwright.toml"
    path.write_text(text, encoding="utf-8")
    return servers_from_toml(path, read_toml(path)["mcp"])


def test_servers_are_read_from_tables(tmp_path):
    first, second = servers(
        tmp_path,
        """
        [mcp.files]
        command = "server"
        args = ["--root", ".", "--root", ""]
        env = ["TOKEN"]
        cwd = "data"
        tools = ["read"]
        read_only = true
        timeout = 1.5
        [mcp.web]
        url = "https://a.test/mcp"
        headers = { Authorization = "Bearer TOKEN", X-Key = "KEY" }
        read_only = ["a"]
        idempotent = ["b"]
        required = true
        """,
    )
    assert first == McpServer(
        "files", "server", ("--root", ".", "--root", ""), {"TOKEN": "TOKEN"}, tmp_path / "data",
        tools=("read",), read_only=("*",), timeout=1.5,
    )  # fmt: skip
    assert second.header_values({"TOKEN": "t", "KEY": "k"}) == {"Authorization": "Bearer t", "X-Key": "k"}
    assert (second.read_only, second.idempotent, second.required, second.tools) == (("a",), ("b",), True, None)
    assert (str(first), str(second)) == ("files (server)", "web (at a.test)")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mcp = 3", "mcp must be tables"),
        ("[mcp]\ncommand = 'x'", "mcp must be tables"),
        ("[mcp.a]", "needs either command or url"),
        ("[mcp.a]\ncommand = 'x'\nurl = 'http://h/'", "needs either command or url"),
        ("[mcp.a]\ncommand = 3", "command = 3: must be a text"),
        ("[mcp.a]\nurl = 'ftp://h/'", "url must be an address with http"),
        ("[mcp.a]\nurl = 'http://[::1'", "url must be an address with http"),
        ("[mcp.a]\nurl = 'http://me:hunter2@h/'", "url holds a user or password: use headers"),
        ("[mcp.a]\nurl = 'http://h/'\nargs = []", "args is for servers with command"),
        ("[mcp.a]\ncommand = 'x'\nheaders = {}", "headers is for servers with url"),
        ("[mcp.a]\ncommand = 'x'\nargs = 'y'", "args = 'y': must be a list of texts"),
        ("[mcp.a]\ncommand = 'x'\nenv = ['hunter2 is my key']", "env holds names of environment variables"),
        ("[mcp.a]\ncommand = 'x'\nenv = { A = 'sk-hunter2' }", "env holds names of environment variables"),
        ("[mcp.a]\nurl = 'http://h/'\nheaders = { A = 'Bearer sk-hunter2' }", "headers holds names of environment"),
        ("[mcp.a]\ncommand = 'x'\ntimeout = 0", "timeout = 0: must be a number of seconds"),
        ("[mcp.a]\ncommand = 'x'\ntimeout = true", "timeout = true"),
        ("[mcp.a]\ncommand = 'x'\nrequired = 'yes'", "required = 'yes': must be true or false"),
        ("[mcp.a]\ncommand = 'x'\ntool = []", "unknown key 'tool': did you mean 'tools'"),
        ("[mcp.'a b']\ncommand = 'x'", "a server's name is 1 to 32 of"),
    ],
)
def test_wrong_tables_are_told(tmp_path, text, says):
    with pytest.raises(ConfigError) as caught:
        servers(tmp_path, text)
    assert says in str(caught.value)
    assert str(tmp_path / "dagwright.toml") in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_settings_hold_the_servers(tmp_path):
    from executor.settings import describe, load_settings

    (tmp_path / "dagwright.toml").write_text("search = 'duckduckgo'\n[mcp.a]\ncommand = '/bin/server'\n")
    settings = load_settings({"HOME": "/h"}, cwd=tmp_path)
    assert settings.mcp == (McpServer("a", "/bin/server"),)
    rows = {row.name: row.value for row in describe(settings)}
    assert (rows["mcp"], rows["search"]) == ("a (server)", "duckduckgo")
    with pytest.raises(ConfigError, match=r"DAGWRIGHT_MCP = 'x': must be a list of \[mcp.NAME\] tables"):
        load_settings({"HOME": "/h", "DAGWRIGHT_MCP": "x"}, cwd=tmp_path)
    with pytest.raises(ConfigError, match="DAGWRIGHT_SEARCH = 'bing': must be searxng:URL, tavily, duckduckgo or none"):
        load_settings({"HOME": "/h", "DAGWRIGHT_SEARCH": "bing"}, cwd=tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_settings({"HOME": "/h", "DAGWRIGHT_SEARCH": "searxng:http://me:hunter22@h/"}, cwd=tmp_path)
    assert "hunter22" not in str(caught.value)


def test_public_names():
    for name in package.__all__:
        assert getattr(package, name) is not None

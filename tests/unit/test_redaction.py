"""Where secrets might come through, and do not: errors, logs, events, prompts, observations, the command's output."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import structlog

from agent.react import ReActAgent
from executor.command import out
from executor.dag import DAGExecutor
from executor.job_handle import run_job
from executor.log.memory import MemoryLog
from executor.logging_setup import configure_logging
from executor.settings import load_settings
from planner.plan import Plan, PlanStep
from registry import redaction
from registry.context import calling
from registry.errors import ConfigError, LLMError
from registry.messages import Event, Message
from registry.redaction import (
    SHORTEST,
    know_environment,
    know_secret,
    know_url,
    redact,
    redact_data,
    redact_error,
    redact_fields,
)
from registry.retry import RetryPolicy
from registry.secret_shapes import masked_shapes
from registry.testing import ScriptedLLM
from registry.tool_run import Artifact, run_tool
from registry.tools import Tool, tool
from tests.support.adapters import models
from tests.support.http_script import Answer, HttpScript, chat_reply

KEY = "zq-Very/Secret+Key-1"
FORMS = (KEY, "zq-Very%2FSecret%2BKey-1", "zq-Very%2FSecret")
"""The key as it is, and as it stands in a URL."""


def leaks(*where: Any) -> list[str]:
    """The forms of the key that stand anywhere in these values."""
    text = "\n".join(value if isinstance(value, str) else repr(value) for value in where)
    return [form for form in FORMS if form in text]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("use sk-proj-a1b2c3d4e5f6g7h8i9j0k1 now", "use sk-*** now"),
        ("Authorization: Bearer abcdefghijk12345", "Authorization: Bearer ***"),
        ("id AKIAIOSFODNN7EXAMPLE.", "id AKIA***."),
        ("ghp_abcdefghij0123456789abcdefghij012345", "ghp_***"),
        ("(xoxb-123456789012-abcdef)", "(xoxb-***)"),
        ("postgresql://me:pa55@db:5432/x?y=1", "postgresql://***@db:5432/x?y=1"),
        ("https://ghp_abcdefghij0123456789abcdefghij:x@git.example/a", "https://***@git.example/a"),
        (
            "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQ\nabc=\n-----END PRIVATE KEY-----",
            "-----BEGIN PRIVATE KEY-----***-----END PRIVATE KEY-----",
        ),
    ],
)
def test_well_known_shapes(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "task-management-with-long-kebab-names-2024 and sk-learn",
        "a bearer of good news, Bearer authentication",
        "http://localhost:8080/a@b and mail me@example.com",
        '{"url":"http://x:80","mail":"a@b.c"}',
        "https://example.com:443/path?key=value",
        "-----BEGIN PRIVATE KEY----- is how it starts",
        "AKIA is a prefix; ghp_ too; xoxb- as well",
        "",
    ],
)
def test_innocent_texts_are_the_same_object(text: str) -> None:
    assert redact(text) is text


def test_the_shortest_text_with_something_to_mask() -> None:
    """Shorter ones are not looked at."""
    assert redact("://:x@") == "://***@"
    assert all(masked_shapes(text) is text for text in map("".join, product(":/@x-", repeat=SHORTEST - 1)))


def test_short_and_common_values_are_no_secrets() -> None:
    for value in ("", None, "short", "postgres", "Changeme", "not-needed"):
        know_secret(value)
    text = "short postgres Changeme not-needed"
    assert redact(text) is text


def test_a_secret_is_found_in_the_forms_it_takes() -> None:
    know_secret('a"b\\c/d e-9')
    know_secret("Bearer header-value-7")
    assert redact(json.dumps({"x": 'a"b\\c/d e-9'})) == '{"x": "***"}'
    assert redact("?q=a%22b%5Cc%2Fd%20e-9&r") == "?q=***&r"
    assert redact("x-key: header-value-7") == "x-key: ***"


def test_the_longest_of_overlapping_secrets_is_masked() -> None:
    know_secret("zq-secret")
    know_secret("zq-secret-and-more")
    assert redact("zq-secret-and-more, zq-secret") == "***, ***"


def test_the_environment_gives_values_of_telling_names(monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"MY_API_KEY": "value-one", "GITHUB_TOKEN": "value-two", "DB_PASSWORD": "value-three", "X_SECRET": "value-4!"}
    know_environment({**env, "MAX_TOKENS": "128000000", "TOKEN_FILE": "/run/token", "HOME": "/home/somebody"})
    assert redact(" ".join(env.values())) == "*** *** *** ***"
    assert redact("128000000 /run/token /home/somebody") == "128000000 /run/token /home/somebody"
    monkeypatch.setattr(redaction, "_known", redaction._Known())
    monkeypatch.setenv("SOME_API_KEY", "seen-when-first-needed")
    assert redact("seen-when-first-needed") == "***"


def test_a_password_in_a_url_is_known_as_it_is_meant() -> None:
    know_url("postgres://user:p%40ss-word@host/db")
    know_url("http://[broken")
    assert redact("p@ss-word p%40ss-word") == "*** ***"


def test_the_settings_make_the_database_password_known(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OTHER_API_KEY=from-dot-env\n")
    env = {"DAGWRIGHT_DATABASE_URL": "postgres://u:db-pass-word@h/d", "HOME": str(tmp_path)}
    settings = load_settings(env, cwd=tmp_path)
    assert settings.database_url is not None
    assert redact("db-pass-word from-dot-env") == "*** ***"


def test_data_and_fields() -> None:
    know_secret(KEY)
    data = {"a": [KEY, 1, None, {"b": f"x {KEY}"}], KEY: ("t", KEY), "n": 1.5}
    assert redact_data(data) == {"a": ["***", 1, None, {"b": "x ***"}], "***": ("t", "***"), "n": 1.5}
    clean = {"a": ["b", {"c": 1}]}
    assert redact_data(clean) is clean
    fields = {"password": "hunter2", "headers": {"X-Api-Key": "abc", "accept": "json"}, "tokens": 5, "event": "e"}
    shown = {"password": "***", "headers": {"X-Api-Key": "***", "accept": "json"}, "tokens": 5, "event": "e"}
    assert redact_fields(fields) == shown


def test_error_texts_lose_pieces_of_keys_too() -> None:
    assert redact_error("bad key sk-ab***cd; own", {"own", "none"}) == "bad key ***; own"
    assert (
        redact_error("key own1 refused, see http://h/?api_key=abc&x=1", {"own1"})
        == "key *** refused, see http://h/?***&x=1"
    )


ECHOES = [
    Answer({"error": {"message": f"Incorrect key {KEY}", "code": KEY, "type": KEY}}, status=401),
    Answer({"error": {"message": "no such field", "param": KEY}}, status=400),
    Answer(f"<html>{'x' * 190}{KEY}{'y' * 300}</html>", status=502),
    Answer(f"no JSON {'x' * 182}{KEY}", status=200),
    Answer({"error": {"message": "slow down"}}, status=429, headers={"x-echo": KEY, "retry-after": KEY}),
]


async def turn(llm: Any, stream: bool) -> None:
    if not stream:
        await llm.chat([Message.user("q")])
        return
    async for _ in llm.stream_chat([Message.user("q")]):
        pass


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("answer", ECHOES)
async def test_a_provider_that_echoes_the_key(answer: Answer, stream: bool) -> None:
    async with HttpScript([answer] * 3) as server:
        for llm in models(server.url, api_key=KEY, retry=RetryPolicy(tries=1)):
            with pytest.raises(LLMError) as caught:
                await turn(llm, stream)
            error: BaseException | None = caught.value
            while error is not None:
                assert leaks(str(error), repr(error), error.args) == []
                error = error.__cause__ or error.__context__


async def test_the_key_goes_out_in_the_header_and_nowhere_else() -> None:
    async with HttpScript([Answer(chat_reply("fine"))]) as server:
        llm = models(server.url, api_key=KEY)[0]
        await llm.chat([Message.system(f"rule {KEY}"), Message.user(f"use {KEY} and http://h/?k={FORMS[1]}")])
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert leaks(server.bodies[0]) == []


@tool
def fetch(url: str) -> str:
    """Fetches a page.

    Args:
        url: Its address.
    """
    if "fail" in url:
        raise RuntimeError(f"401 for {url} with {KEY}")
    return f"{'x' * 19_990}{KEY} page of {url}"


CALLS = [
    [("fetch", {"url": f"http://h/?k={FORMS[1]}"})],
    [("fetch", {"url": f"http://fail/{KEY}"})],
    [("fetch", {"adress": KEY})],
    [(f"fetch_{KEY}", {})],
    f"The answer is {KEY}.",
    f"All is done: {KEY}.",  # after the checklist
    f"The answer is {KEY}.",
]


async def test_a_whole_job_full_of_the_key() -> None:
    know_secret(KEY)
    seen: list[Event] = []
    llm = ScriptedLLM([*CALLS, f"Written up: {KEY}"])
    job = await run_job(f"Use {KEY}", llm, tools=[fetch], mode="react", on_event=seen.append)
    assert job.status == "completed"
    assert len(llm.requests) == 8
    assert leaks(*[event.payload for event in seen]) == []
    told = [message.content for request in llm.requests for message in request.messages if message.role != "assistant"]
    assert leaks(*told) == []
    assert sum("***" in text for text in told) > 4
    deltas = [e.payload["content"] for e in seen if e.channel == "answer" and e.payload["status"] == "delta"]
    assert "".join(deltas) == "Written up: ***"


async def test_a_step_that_breaks_with_the_key_in_its_error() -> None:
    know_secret(KEY)
    seen: list[Event] = []

    def broken(request: Any) -> Any:
        raise LLMError(f"provider said {KEY}")

    plan = Plan("g", (PlanStep("s1", "do it"),))
    job = await run_job(plan, ScriptedLLM(broken), on_event=seen.append)
    assert job.status == "failed"
    assert leaks(*[event.payload for event in seen]) == []
    assert any("provider said ***" in repr(event.payload) for event in seen)


async def test_an_agent_alone_shows_its_observers_no_key() -> None:
    know_secret(KEY)
    seen: list[Event] = []
    agent = ReActAgent(ScriptedLLM([CALLS[1], CALLS[3], "done"]), [fetch], on_event=seen.append)
    result = await agent.run("q")
    assert len(result.tool_calls) == 2
    assert leaks(*[call.observation for call in result.tool_calls]) == []
    assert leaks(*[event.payload.get("observation", "") for event in seen]) == []


def test_the_command_writes_no_key(capsys: pytest.CaptureFixture[str]) -> None:
    know_secret(KEY)
    out.say(f"answer {KEY}")
    out.show(f"answer {KEY}")
    out.note(f"error {KEY}")
    out.say_json({"goal": f"a {KEY}", "quoted": json.dumps({"k": KEY})})
    shown = capsys.readouterr()
    assert leaks(shown.out, shown.err) == []
    assert shown.out.count("***") == 4
    assert json.loads(shown.out.split("\n", 2)[2])["goal"] == "a ***"


def test_the_command_tells_an_error_without_the_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from executor import cli

    know_secret(KEY)

    def failing(words: list[str]) -> int:
        raise ConfigError(f"bad {KEY}")

    monkeypatch.setattr(cli, "_run", failing)
    assert cli.main(["run", "--json"]) == 2
    shown = capsys.readouterr()
    assert json.loads(shown.out)["error"]["message"] == "bad ***"
    assert shown.err == "dagwright: bad ***\n"


@pytest.fixture
def logged(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets logging up as the edge does and collects the lines; everything is as before afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    lines: list[str] = []

    def start(level: str = "info", *, terminal: bool = False) -> list[str]:
        configure_logging(level, write=lines.append, terminal=terminal)
        return lines

    yield start
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


class Holder:
    def __repr__(self) -> str:
        return f"Holder({KEY})"


@pytest.mark.parametrize("terminal", [False, True])
def test_log_lines_hold_no_key_wherever_it_stands(logged: Any, terminal: bool) -> None:
    know_secret(KEY)
    lines = logged(terminal=terminal)
    try:
        password = KEY
        raise ValueError(f"wrong {password}")
    except ValueError:
        structlog.get_logger("a").exception(f"event {KEY}", text=KEY, deep=[{KEY: Holder()}], api_key="unknown-value")
        logging.getLogger("some.library").exception("header %s", {"authorization": KEY})
    assert leaks(*lines) == []
    assert "unknown-value" not in lines[0]
    assert "ValueError: wrong ***" in lines[0]
    assert "ValueError: wrong ***" in lines[1]
    assert len(lines) == 2


def test_lines_are_json_and_say_whose_they_are(logged: Any) -> None:
    lines = logged()
    log = structlog.get_logger("a")
    log.info("outside")
    with calling(job_id="job_1"):
        log.info("inside", n=1)
        with calling(step_id="s1", attempt=2):
            log.warning("deep")
            logging.getLogger("library").error("theirs %d", 5)
    outside, inside, deep, theirs = map(json.loads, lines)
    assert "job_id" not in outside
    assert (inside["event"], inside["n"], inside["job_id"], inside["level"]) == ("inside", 1, "job_1", "info")
    assert "step_id" not in inside
    assert (deep["job_id"], deep["step_id"], deep["attempt"]) == ("job_1", "s1", 2)
    assert (theirs["event"], theirs["step_id"], theirs["level"], theirs["logger"]) == (
        "theirs 5",
        "s1",
        "error",
        "library",
    )
    assert all("timestamp" in line for line in (outside, inside, deep, theirs))


def test_a_terminal_gets_readable_lines(logged: Any) -> None:
    lines = logged(terminal=True)
    structlog.get_logger("a").info("hello", n=1)
    assert "hello" in lines[0]
    assert "n=1" in lines[0]
    assert not lines[0].startswith("{")


def test_the_level_holds_and_libraries_are_quieter(logged: Any) -> None:
    lines = logged("warning")
    logged("warning")  # once more: nothing is said twice
    structlog.get_logger("a").info("no")
    logging.getLogger("library").info("no")
    structlog.get_logger("a").warning("yes")
    logging.getLogger("library").warning("yes")
    assert [json.loads(line)["event"] for line in lines] == ["yes", "yes"]
    logged("debug")
    for name in ("openai", "httpx2", "mcp", "asyncio"):
        logging.getLogger(name).debug("a whole conversation")
        logging.getLogger(name).info("a request")
    structlog.get_logger("a").debug("ours")
    assert [json.loads(line)["event"] for line in lines[2:]] == ["a request"] * 4 + ["ours"]


def test_uncaught_exceptions_are_logged_without_the_key(logged: Any) -> None:
    know_secret(KEY)
    lines = logged()
    error = RuntimeError(f"out of {KEY}")
    sys.excepthook(RuntimeError, error, None)
    thread = threading.Thread(target=lambda: (_ for _ in ()).throw(error))
    thread.start()
    thread.join()
    assert [json.loads(line)["event"] for line in lines] == ["uncaught_exception"] * 2
    assert leaks(*lines) == []


async def test_an_exception_in_the_loop_is_logged_without_the_key(logged: Any) -> None:
    know_secret(KEY)
    lines = logged()

    def broken() -> None:
        raise RuntimeError(f"out of {KEY}")

    asyncio.get_running_loop().call_soon(broken)
    await asyncio.sleep(0)
    assert "RuntimeError: out of ***" in json.loads(lines[0])["exception"]
    assert leaks(*lines) == []


async def test_a_plan_run_alone_gives_no_key_away_when_a_tool_object_or_model_breaks() -> None:
    know_secret(KEY)

    def broken(request: Any) -> Any:
        raise RuntimeError(f"bug with {KEY}")

    result = await DAGExecutor(ScriptedLLM(broken)).execute(Plan("g", (PlanStep("s1", "do it"),)))
    assert result.steps["s1"].error == "error: bug with ***"


async def test_a_jobs_json_holds_no_key() -> None:
    know_secret(KEY)
    job = await run_job(f"Use {KEY}", ScriptedLLM([f"It is {KEY}", f"It is {KEY}"]), mode="react", metadata={"k": KEY})
    assert leaks(job.to_json()) == []
    assert job.to_json()["goal"] == "Use ***"


def test_an_unconfigured_logger_shows_no_values(capsys: pytest.CaptureFixture[str]) -> None:
    """The library's own lines, where the host application has set nothing up."""
    know_secret(KEY)
    structlog.reset_defaults()

    def observer(event: Event) -> None:
        local_value = "-".join(["value", "of", "a", "variable"])
        raise RuntimeError(f"observer with {KEY}, {len(local_value)}")

    log = MemoryLog("job", on_event=observer)
    log.append("phase", {"phase": "planning"})
    shown = capsys.readouterr()
    text = shown.out + shown.err
    assert "observer_failed" in text
    assert "observer with ***, 19" in text
    assert leaks(text) == []
    assert "value-of-a-variable" not in text


async def test_artifacts_hold_no_key() -> None:
    know_secret(KEY)
    image = b"\x89PNG\xff" + KEY.encode()[:4]

    async def run(artifact: Artifact) -> Artifact:
        made = Tool("make", "Makes it.", {"type": "object", "properties": {}}, lambda: artifact)
        outcome = await run_tool(made, {})
        assert outcome.artifact is not None
        assert leaks(outcome.text) == []
        return outcome.artifact

    page = await run(Artifact(f"page-{KEY}.html", "text/html", f"<p>{KEY}</p>"))
    assert (page.name, page.content) == ("page-***.html", "<p>***</p>")
    assert (await run(Artifact("a.json", "application/json", f'"{KEY}"'.encode()))).content == b'"***"'
    clean = Artifact("a.png", "image/png", image)
    assert await run(clean) is clean


@pytest.mark.parametrize("fails", [False, True])
async def test_a_key_at_the_cut_leaves_no_half(fails: bool) -> None:
    know_secret(KEY)

    def answer(before: int) -> str:
        text = "x" * before + KEY + "y" * 200
        if fails:
            raise RuntimeError(text)
        return text

    schema = {"type": "object", "properties": {"before": {"type": "integer"}}}
    made = Tool("answer", "Answers.", schema, answer, max_result_chars=200)
    for before in range(200):
        outcome = await run_tool(made, {"before": before})
        assert len(outcome.text) <= 200
        assert KEY[:5] not in outcome.text
        assert KEY[-5:] not in outcome.text

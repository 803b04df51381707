"""The command in a process of its own, against a provider on loopback: what it prints, where, and how it exits."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import BAD_KEY, ProviderFake, View, brain
from tests.fakes.brain import ANSWER, SYNTHESIS
from tests.support.command import (
    MODULE,
    NO_LOCAL_SERVERS,
    PATIENCE,
    Ended,
    command,
    ended,
    environment,
    openai,
    started,
)

GOAL = "Work out six times seven."
PLAN = {"steps": [{"id": "a", "task": "Work out the figure."}, {"id": "b", "task": "Say it.", "dependencies": ["a"]}]}
JOB_KEYS = {
    "id", "status", "goal", "mode", "created_at", "started_at", "ended_at", "plan", "steps", "answer", "error",
    "rounds", "parent", "metadata", "usage",
}  # fmt: skip


def works_on_a_step(view: View) -> bool:
    return bool(view.tools) and view.choice == "auto" and view.forced is None


class Gate:
    """A script in which the steps wait until they are let on; `waiting` is set when the first one does."""

    def __init__(self) -> None:
        self.open, self.waiting = asyncio.Event(), asyncio.Event()

    async def __call__(self, view: View) -> Any:
        if works_on_a_step(view):
            self.waiting.set()
            await self.open.wait()
        return brain(view)


def no_traceback(result: Ended) -> None:
    assert "Traceback" not in result.err, result.err
    assert "Exception ignored" not in result.err, result.err


# run


async def test_run_answers_on_stdout_and_tells_progress_on_stderr(tmp_path: Path, provider_fake: ProviderFake) -> None:
    result = await command("run", GOAL, home=tmp_path, env=openai(provider_fake))
    assert (result.code, result.out) == (0, f"{SYNTHESIS}\n"), result.err
    for told in ("planning", "generation 2", "s1 running on fake-model", "s4 completed", "completed in", "calculate"):
        assert told in result.err
    assert SYNTHESIS not in result.err
    assert list(provider_fake.refusals) == []


async def test_run_json_prints_the_job(tmp_path: Path, provider_fake: ProviderFake) -> None:
    env = {"ANTHROPIC_BASE_URL": provider_fake.anthropic_url, "ANTHROPIC_API_KEY": "k", "DAGWRIGHT_MODEL": "fake-model"}
    result = await command("run", GOAL, "--json", home=tmp_path, env=env)
    assert result.code == 0, result.err
    job = result.data
    assert set(job) >= JOB_KEYS
    assert (job["status"], job["answer"], job["goal"], job["mode"]) == ("completed", SYNTHESIS, GOAL, "dag")
    assert [step["status"] for step in job["steps"]] == ["completed"] * 4
    assert job["plan"]["generations"] == [["s1"], ["s2", "s3"], ["s4"]]
    assert job["usage"]["calls"] == provider_fake.billed.calls
    assert {view.dialect for view in provider_fake.views} == {"anthropic"}


async def test_events_are_json_lines_that_end_with_done(tmp_path: Path, provider_fake: ProviderFake) -> None:
    result = await command("run", GOAL, "--events", home=tmp_path, env=openai(provider_fake))
    assert result.code == 0, result.err
    events = result.lines
    assert [event["channel"] for event in events].count("done") == 1
    assert events[-1]["channel"] == "done"
    assert events[-1]["payload"]["answer"] == SYNTHESIS
    assert len({event["job_id"] for event in events}) == 1
    numbers = [event["seq"] for event in events]
    assert numbers == sorted(set(numbers))
    assert {event.get("step_id") for event in events if event["channel"] == "step_progress"} == {"s1", "s2", "s3", "s4"}
    text = "".join(
        event["payload"]["content"] for event in events if event["payload"].get("status") == "delta"
    )  # fmt: skip
    assert text == SYNTHESIS


async def test_events_with_json_end_with_the_job(tmp_path: Path, provider_fake: ProviderFake) -> None:
    result = await command("run", GOAL, "--events", "--json", home=tmp_path, env=openai(provider_fake))
    *events, job = result.lines
    assert events[-1]["channel"] == "done"
    assert job["id"] == events[-1]["job_id"]
    assert job["status"] == "completed"


async def test_models_toml_names_the_models(tmp_path: Path, provider_fake: ProviderFake) -> None:
    (tmp_path / "models.toml").write_text(
        f'[models.small]\nprovider = "openai_chat"\nmodel = "fake-model"\nbase_url = "{provider_fake.openai_url}"\n'
        'api_key_env = "SOME_KEY"\nroles = ["general"]\nprice = { input = 1.0, output = 2.0 }\n'
        f'[models.large]\nprovider = "openai"\nmodel = "fake-model"\nbase_url = "{provider_fake.openai_url}"\n'
        'api_key_env = "SOME_KEY"\nroles = ["smart"]\nprice = { input = 1.0, output = 2.0 }\n'
    )
    result = await command("run", GOAL, "--json", home=tmp_path, env={"SOME_KEY": "k"})
    assert result.code == 0, result.err
    job = result.data
    assert {step["model"] for step in job["steps"]} == {"small"}
    assert set(job["usage"]["by_model"]) == {"small", "large"}
    billed = provider_fake.billed
    assert float(job["usage"]["cost_usd"]) == pytest.approx((billed.input_tokens + 2 * billed.output_tokens) / 1e6)
    assert {view.dialect for view in provider_fake.views} == {"chat", "responses"}
    shown = await command("models", "--json", home=tmp_path, env={"SOME_KEY": "secret-key"})
    assert shown.data["default"] == "small"
    assert [row["name"] for row in shown.data["models"]] == ["small", "large"]
    assert "secret-key" not in shown.out + shown.err


async def test_mode_react_runs_one_agent(tmp_path: Path, provider_fake: ProviderFake) -> None:
    result = await command("run", GOAL, "--mode", "react", "--json", home=tmp_path, env=openai(provider_fake))
    assert result.code == 0, result.err
    assert (result.data["mode"], result.data["plan"]) == ("react", None)


@pytest.mark.parametrize("source", ["file", "stdin"])
async def test_a_given_plan_is_run_as_it_is(source: str, tmp_path: Path, provider_fake: ProviderFake) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    file, stdin = ("plan.json", None) if source == "file" else ("-", json.dumps(PLAN))
    result = await command("run", "--plan", file, "--json", home=tmp_path, env=openai(provider_fake), stdin=stdin)
    assert result.code == 0, result.err
    assert [step["id"] for step in result.data["steps"]] == ["a", "b"]


async def test_a_made_plan_can_be_given_back(tmp_path: Path, provider_fake: ProviderFake) -> None:
    made = await command("plan", GOAL, "--json", home=tmp_path, env=openai(provider_fake))
    run = await command("run", "--plan", "-", "--json", home=tmp_path, env=openai(provider_fake), stdin=made.out)
    assert run.code == 0, run.err
    assert run.data["goal"] == GOAL
    assert run.data["plan"]["edges"] == made.data["edges"]


async def test_a_wrong_plan_is_refused_with_all_that_is_wrong(tmp_path: Path, provider_fake: ProviderFake) -> None:
    steps = [
        {"id": "a", "task": "x", "dependencies": ["b"]},
        {"id": "b", "task": "y", "dependencies": ["a"]},
        {"id": "c", "task": " "},
        {"id": "d", "task": "z", "dependencies": ["nowhere"]},
    ]
    (tmp_path / "plan.json").write_text(json.dumps({"steps": steps}))
    result = await command("run", "--plan", "plan.json", "--json", home=tmp_path, env=openai(provider_fake))
    assert result.code == 2
    assert {code for code, _, _ in result.data["error"]["problems"]} == {"cycle", "empty_task", "unknown_dependency"}
    for _, _, message in result.data["error"]["problems"]:
        assert message in result.err
    assert provider_fake.requests == []


@pytest.mark.parametrize("content", ["{", "[1", None])
async def test_a_plan_that_cannot_be_read_is_a_usage_error(
    content: str | None, tmp_path: Path, provider_fake: ProviderFake
) -> None:
    if content is not None:
        (tmp_path / "plan.json").write_text(content)
    result = await command("run", "--plan", "plan.json", home=tmp_path, env=openai(provider_fake))
    assert result.code == 2
    assert "plan.json" in result.err
    no_traceback(result)


# plan


async def test_plan_prints_generations_and_runs_nothing(tmp_path: Path, provider_fake: ProviderFake) -> None:
    result = await command("plan", GOAL, home=tmp_path, env=openai(provider_fake))
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert [line for line in lines if line.startswith("generation")] == [f"generation {n}" for n in (1, 2, 3)]
    assert any("s4" in line and "after s2, s3" in line for line in lines)
    assert len(provider_fake.requests) == 1


@pytest.mark.parametrize(("form", "first"), [("mermaid", "flowchart TD"), ("dot", "digraph plan {")])
async def test_plan_draws(form: str, first: str, tmp_path: Path, provider_fake: ProviderFake) -> None:
    result = await command("plan", GOAL, "--format", form, home=tmp_path, env=openai(provider_fake))
    assert (result.code, result.out.splitlines()[0]) == (0, first)


# How it ends


async def test_a_wrong_key_fails_and_says_why(tmp_path: Path, provider_fake: ProviderFake) -> None:
    env = openai(provider_fake, BAD_KEY)
    result = await command("run", GOAL, "--json", home=tmp_path, env=env)
    assert result.code == 1
    assert result.data["status"] == "failed"
    assert result.data["error_code"] == "auth"
    assert "Incorrect API key" in result.data["error"]
    assert "cause: " in result.err
    no_traceback(result)
    planned = await command("plan", GOAL, "--json", home=tmp_path, env=env)
    assert planned.code == 1
    assert planned.data["error"]["code"] == "auth"
    assert "Incorrect API key" in planned.err


async def test_a_part_of_the_work_is_partial(tmp_path: Path) -> None:
    def script(view: View) -> Any:
        if works_on_a_step(view) and "second half" in view.last_text and "Put both" not in view.last_text:
            return {"status": 400, "error": "this request can't be served"}
        return brain(view)

    async with ProviderFake(script) as fake:
        result = await command("run", GOAL, "--max-replan-rounds", "1", "--json", home=tmp_path, env=openai(fake))
    assert result.code == 3, result.err
    assert result.data["status"] == "partial"
    states = {step["id"]: step["status"] for step in result.data["steps"]}
    assert states == {"s1": "completed", "s2": "completed", "s3": "failed", "s4": "skipped"}
    assert "this request can't be served" in result.data["error"]


# What is refused


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", GOAL, "--budget", "much"), "--budget much: must be an amount such as 0.50usd"),
        (("run", GOAL, "--budget", "1.00"), "the price of model"),
        (("run",), "give a goal"),
        (("run", "  "), "the goal is empty"),
        (("run", GOAL, "--plan", "p.json"), "not both"),
        (("plan",), "GOAL"),
        (("plan", ""), "the goal is empty"),
        (("run", GOAL, "--max-concurrency", "0"), "--max-concurrency 0: must be a whole number, at least 1"),
        (("run", GOAL, "--max-concurrency", "many"), "--max-concurrency many: must be a whole number"),
        (("run", GOAL, "--step-timeout", "-1"), "--step-timeout -1: must be a number, more than 0"),
        (("run", GOAL, "--answer-mode", "loud"), "--answer-mode loud: must be one of synthesis, direct"),
        (("run", GOAL, "--allow", "nohost"), "--allow nohost: must be a list of host:port"),
        (("run", GOAL, "--mode", "fast"), "invalid choice: 'fast'"),
        (("run", GOAL, "--models", "none.toml"), "none.toml: no such file"),
        (("run", GOAL, "--maximum"), "unrecognized arguments: --maximum"),
        (("frobnicate",), "frobnicate"),
        (("experiment",), "ACTION"),
        (("experiment", "run", "none.toml"), "none.toml"),
    ],
)
async def test_wrong_use_exits_2_and_says_what_is_right(
    words: tuple[str, ...], said: str, tmp_path: Path, provider_fake: ProviderFake
) -> None:
    result = await command(*words, "--json", home=tmp_path, env=openai(provider_fake))
    assert result.code == 2
    assert said in result.err
    assert said in result.data["error"]["message"]
    no_traceback(result)
    assert provider_fake.requests == []


async def test_nothing_configured_says_what_to_set_and_fetches_nothing(tmp_path: Path) -> None:
    for words in (("run", GOAL), ("plan", GOAL), ("models",)):
        result = await command(*words, "--json", home=tmp_path, start=NO_LOCAL_SERVERS)
        assert result.code == 2
        assert result.data["error"]["code"] == "no_model"
        for told in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "models.toml", "demo-model install"):
            assert told in result.err
        no_traceback(result)
    assert os.listdir(tmp_path) == []


async def test_a_server_that_is_down_is_not_replaced_by_a_download(tmp_path: Path) -> None:
    """`--quick-start` is for those who configured nothing."""
    env = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    result = await command("run", GOAL, "--quick-start", home=tmp_path, env=env, start=NO_LOCAL_SERVERS)
    assert result.code == 2
    assert "OPENAI_BASE_URL" in result.err
    assert "Quick start" not in result.err
    assert os.listdir(tmp_path) == []


# Settings


async def test_config_check_masks_secrets_and_names_origins(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("DAGWRIGHT_MAX_STEPS=30\n")
    (tmp_path / "dagwright.toml").write_text("step_retries = 2\n")
    (tmp_path / "models.toml").write_text(
        '[models.m]\nprovider = "openai_chat"\nmodel = "x"\nbase_url = "http://h/v1"\n'
    )
    env = {
        "OPENAI_API_KEY": "sk-hunter2",
        "DAGWRIGHT_DATABASE_URL": "postgresql://u:hunter2@h/d",
        "MAX_CONCURRENCY": "9",
        "DAGWRIGHT_MAX_CONCURENCY": "1",
    }
    result = await command("config", "check", "--json", home=tmp_path, env=env)
    assert result.code == 0, result.err
    settings = result.data["settings"]
    assert settings["max_concurrency"] == {"value": "9", "origin": "MAX_CONCURRENCY"}
    assert settings["max_steps"] == {"value": "30", "origin": "DAGWRIGHT_MAX_STEPS in .env"}
    assert settings["step_retries"]["origin"].endswith("dagwright.toml")
    assert settings["data_dir"] == {"value": str(tmp_path / "xdg_data_home" / "dagwright"), "origin": "default"}
    assert settings["OPENAI_API_KEY"]["value"] == settings["database_url"]["value"] == "********"
    assert result.data["models"] == ["m"]
    assert "DAGWRIGHT_MAX_CONCURENCY" in result.data["warnings"][0]
    text = await command("config", "check", home=tmp_path, env=env)
    assert text.code == 0
    assert "(MAX_CONCURRENCY)" in text.out
    assert "warning: DAGWRIGHT_MAX_CONCURENCY is set, but nothing reads it" in text.err
    for shown in (result, text):
        assert "hunter2" not in shown.out + shown.err


async def test_wrong_settings_are_all_named_with_value_and_what_is_right(tmp_path: Path) -> None:
    env = {"DAGWRIGHT_MAX_CONCURRENCY": "many", "DAG_REPLAN_STOP_CONFIDENCE": "7"}
    for words in (("config", "check"), ("run", GOAL), ("tools",)):
        result = await command(*words, "--json", home=tmp_path, env=env)
        assert result.code == 2
        assert "DAGWRIGHT_MAX_CONCURRENCY = 'many': must be a whole number, at least 1" in result.err
        assert "DAG_REPLAN_STOP_CONFIDENCE = '7': must be a number, at least 0 and at most 1" in result.err
        assert result.data["error"]["code"] == "configuration"
        no_traceback(result)


async def test_a_wrong_models_file_is_found_by_config_check(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text('[models.m]\nprovider = "openai_chatt"\nmodel = "x"\n')
    result = await command("config", "check", home=tmp_path)
    assert result.code == 2
    assert "openai_chatt" in result.err


async def test_tools_are_listed(tmp_path: Path) -> None:
    result = await command("tools", "--json", home=tmp_path)
    assert [tool["name"] for tool in result.data["tools"]] == ["calculate", "current_time", "run_python", "web_fetch"]
    with_files = await command("tools", "--workspace", str(tmp_path), home=tmp_path)
    assert "read_file (" in with_files.out
    assert "calculate (read_only, idempotent, pure" in with_files.out


async def test_models_tell_where_they_come_from(tmp_path: Path, provider_fake: ProviderFake) -> None:
    result = await command("models", home=tmp_path, env=openai(provider_fake))
    assert result.code == 0, result.err
    assert result.out.startswith("fake-model (default): fake-model\n")
    assert provider_fake.openai_url in result.out


async def test_demo_model_status_looks_where_the_settings_say(tmp_path: Path) -> None:
    result = await command("demo-model", "status", "--json", home=tmp_path, env={"DAGWRIGHT_DATA_DIR": "/srv/own"})
    assert result.code == 1
    assert result.data["installed"] is False
    assert result.data["path"].startswith("/srv/own/demo-model/")


async def test_help_and_no_command(tmp_path: Path) -> None:
    helped = await command("--help", home=tmp_path)
    assert helped.code == 0
    for name in ("run", "plan", "models", "tools", "config", "demo", "demo-model"):
        assert re.search(rf"^ +{name}(\s|$)", helped.out, re.MULTILINE), name
    bare = await command(home=tmp_path)
    assert (bare.code, bare.out) == (2, "")
    assert "COMMAND" in bare.err


@pytest.mark.parametrize("words", [["--help"], ["tools"], ["config", "check"]])
async def test_start_up_imports_no_sdk(words: list[str], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom executor.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "heavy = {'openai', 'anthropic', 'networkx', 'trafilatura', 'genai_prices', 'aiohttp', 'rich.live'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    result = await command(*words, home=tmp_path, start=("-c", code))
    assert result.err.splitlines()[-1] == "[]"


# Pipes and signals


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
@pytest.mark.parametrize(
    ("words", "reader"),
    [("run goal --events", "head -1"), ("run goal", "true"), ("tools --json", "true"), ("--help", "true")],
)
async def test_a_reader_that_goes_away_is_no_error(
    words: str, reader: str, tmp_path: Path, provider_fake: ProviderFake
) -> None:
    pipe = asyncio.subprocess.PIPE
    line = f"{sys.executable} {' '.join(MODULE)} {words} | {reader}"
    env = environment(tmp_path, **openai(provider_fake))
    process = await asyncio.create_subprocess_exec("sh", "-c", line, cwd=tmp_path, env=env, stdout=pipe, stderr=pipe)
    async with asyncio.timeout(PATIENCE):
        _, err = await process.communicate()
    for sign in ("Traceback", "Exception ignored", "BrokenPipe", "observer_failed"):
        assert sign not in err.decode()


async def a_step_runs(gate: Gate) -> None:
    async with asyncio.timeout(PATIENCE):
        await gate.waiting.wait()


async def test_ctrl_c_lets_running_steps_finish(tmp_path: Path) -> None:
    gate = Gate()
    async with ProviderFake(gate) as fake:
        process = await started("run", GOAL, "--events", home=tmp_path, env=openai(fake))
        try:
            await a_step_runs(gate)
            process.send_signal(signal.SIGINT)
            async with asyncio.timeout(PATIENCE):
                assert process.stderr is not None
                while b"Stopping" not in await process.stderr.readline():
                    assert process.returncode is None
                gate.open.set()
                out, err = await process.communicate()
        finally:
            await ended(process)
    events = [json.loads(line) for line in out.splitlines()]
    assert process.returncode == 130
    assert events[-1]["channel"] == "done"
    assert (events[-1]["payload"]["status"], events[-1]["payload"]["answer"]) == ("cancelled", ANSWER)
    last = {event["step_id"]: event["payload"]["status"] for event in events if event["channel"] == "step_progress"}
    assert last == {"s1": "completed", "s2": "skipped", "s3": "skipped", "s4": "skipped"}
    assert b"Traceback" not in err


@pytest.mark.parametrize("signals", [[signal.SIGINT, signal.SIGINT], [signal.SIGTERM]])
async def test_ctrl_c_twice_or_a_termination_aborts(signals: list[signal.Signals], tmp_path: Path) -> None:
    gate = Gate()
    async with ProviderFake(gate) as fake:
        process = await started("run", GOAL, "--json", home=tmp_path, env=openai(fake))
        try:
            await a_step_runs(gate)
            for one in signals:
                process.send_signal(one)
                await asyncio.sleep(0.3)  # two signals at once are one to the system
            async with asyncio.timeout(10):
                out, err = await process.communicate()
        finally:
            await ended(process)
            gate.open.set()
    job = json.loads(out)
    assert process.returncode == 130
    assert job["status"] == "cancelled"
    assert job["steps"] == [] or job["steps"][0]["status"] == "cancelled"
    assert job["answer"]
    assert b"Traceback" not in err


async def test_ctrl_c_while_planning_is_told_as_an_object(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def script(view: View) -> Any:
        asked.set()
        await asyncio.Event().wait()

    async with ProviderFake(script) as fake:
        process = await started("plan", GOAL, "--json", home=tmp_path, env=openai(fake))
        try:
            async with asyncio.timeout(PATIENCE):
                await asked.wait()
                process.send_signal(signal.SIGINT)
                out, err = await process.communicate()
        finally:
            await ended(process)
    assert process.returncode == 130
    assert json.loads(out)["error"]["code"] == "cancelled"
    assert b"Traceback" not in err


async def test_text_of_models_is_whole_in_files_and_escaped_in_json(tmp_path: Path) -> None:
    hostile = "red \x1b[31m and \u202eback\x9b2J"

    def script(view: View) -> Any:
        said = brain(view)
        return hostile if said == SYNTHESIS else said

    async with ProviderFake(script) as fake:
        plain = await command("run", GOAL, home=tmp_path, env=openai(fake))
        as_json = await command("run", GOAL, "--json", home=tmp_path, env=openai(fake))
    assert plain.out == f"{hostile}\n"
    assert as_json.data["answer"] == hostile
    for char in "\x1b\u202e\x9b":
        assert char not in as_json.out
        assert char not in plain.err

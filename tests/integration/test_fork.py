"""Forks: a step of an ended job runs again over HTTP or by the command, and only what depends on it beside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from executor.cli import main
from executor.log.stored import stored_events
from executor.replay.run import replay
from executor.store.database import Database, Row
from executor.store.jobs import NewJob
from executor.workers.local_job import kept_job
from registry.llm_types import ChatRequest
from registry.messages import ToolCall
from registry.result_text import Artifact
from registry.tools import tool
from tests.fakes import ProviderFake
from tests.fakes.brain import brain
from tests.support.command import Ended
from tests.support.service import Service, running
from tests.support.stored_jobs import DIAMOND, Brain, events_of, new_job, ran, row_of, told, workshop

PLAN = {"goal": "sum it up", "steps": DIAMOND}


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    async with running(database_url) as found:
        yield found


class Counting(Brain):
    """Knows which steps it was asked for; `word` stands in each of its results."""

    def __init__(self, word: str = "first", **answers: Any) -> None:
        super().__init__(self._step, **answers)
        self.word, self.asked = word, []  # type: ignore[var-annotated]

    def _step(self, request: ChatRequest) -> Any:
        text = request.messages[-1].content
        place = {text.find(step["task"]): step["id"] for step in DIAMOND if step["task"] in text}
        self.asked.append(place[min(place)])
        return f"{self.word} {self.asked[-1]}"


async def parent_of(database: Database, brain: Any = None, tools: Any = (), **more: Any) -> str:
    """An ended job with the diamond as its plan."""
    job = await new_job(database, plan=PLAN, **more)
    row = await ran(database, workshop(brain or Counting(), tools), job)
    assert row["ended_at"] is not None
    return job


async def forked(service: Service, job: str, **body: Any) -> dict[str, Any]:
    response = await service.http.post(f"/v1/jobs/{job}/fork", json=body)
    assert response.status_code == 202, response.text
    shown: dict[str, Any] = response.json()
    assert response.headers["location"] == f"/v1/jobs/{shown['id']}"
    return shown


def outputs(row: Row) -> dict[str, str]:
    return {step["id"]: step["output"] for step in row["summary"]["steps"]}


def refused(response: httpx2.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    return response.status_code, response.json()["code"]


# Over HTTP


async def test_a_fork_calls_the_model_only_for_the_step_and_what_depends_on_it(service: Service) -> None:
    job = await parent_of(service.database, metadata={"who": "me"})
    shown = await forked(service, job, step="b")
    assert (shown["parent"], shown["status"], shown["mode"], shown["metadata"]) == (job, "queued", "dag", {"who": "me"})
    assert shown["plan"]["kept"] == ["a", "c"]
    brain = Counting("second")
    row = await ran(service.database, workshop(brain), shown["id"])
    assert (row["status"], row["parent"]) == ("completed", job)
    assert (brain.asked, brain.kinds) == (["b", "d"], ["step", "step", "judge_result", "synthesis"])
    assert outputs(row) == {"a": "first a", "b": "second b", "c": "first c", "d": "second d"}
    assert row["summary"]["usage"]["calls"] == 4
    assert outputs(await row_of(service.database, job)) == {name: f"first {name}" for name in "abcd"}


async def test_the_forks_stream_shows_the_whole_plan_with_kept_steps(service: Service) -> None:
    job = await parent_of(service.database)
    shown = await forked(service, job, step="d")
    await ran(service.database, workshop(Counting("second")), shown["id"])
    events = await events_of(service.database, shown["id"])
    assert [step["id"] for step in told(events, "plan")[0]["steps"]] == ["a", "b", "c", "d"]
    progress = [(e["step_id"], e["payload"]["status"], e["payload"]["result"]) for e in events
                if e["channel"] == "step_progress"]  # fmt: skip
    assert progress == [
        ("a", "completed", "first a"), ("b", "completed", "first b"), ("c", "completed", "first c"),
        ("d", "running", None), ("d", "completed", "second d"),
    ]  # fmt: skip
    live = (await service.http.get(f"/v1/jobs/{shown['id']}")).json()
    assert [(step["id"], step["status"]) for step in live["steps"]] == [(name, "completed") for name in "abcd"]


async def test_before_it_runs_a_fork_shows_its_kept_steps(service: Service) -> None:
    shown = await forked(service, await parent_of(service.database), step="b", descendants=False)
    assert shown["plan"]["kept"] == ["a", "c", "d"]
    assert {step["id"]: (step["status"], step["output"]) for step in shown["steps"]} == {
        "a": ("completed", "first a"), "b": ("pending", ""),
        "c": ("completed", "first c"), "d": ("completed", "first d"),
    }  # fmt: skip
    brain = Counting("second")
    row = await ran(service.database, workshop(brain), shown["id"])
    assert brain.asked == ["b"]
    assert outputs(row)["d"] == "first d"


async def test_another_model_for_the_step_alone(service: Service) -> None:
    from registry import ModelRegistry
    from registry.testing import ScriptedLLM

    job = await parent_of(service.database)
    shown = await forked(service, job, step="b", model="large")
    small, large = Counting("small"), Counting("large")
    models = ModelRegistry()
    models.register("small", ScriptedLLM(small, model_id="small"), roles=["general"])
    models.register("large", ScriptedLLM(large, model_id="large"))
    row = await ran(service.database, workshop(models), shown["id"])
    assert (large.asked, small.asked) == (["b"], ["d"])
    assert {step["id"]: step["model"] for step in row["summary"]["steps"]}["b"] == "large"


async def test_what_failed_and_what_was_skipped_for_it_runs_again(service: Service) -> None:
    from registry.errors import ProviderError

    class Failing(Counting):
        def _step(self, request: ChatRequest) -> Any:
            result = super()._step(request)
            return ProviderError("down", retryable=False) if self.asked[-1] == "b" else result

    job = await parent_of(service.database, Failing())
    steps = {step["id"]: step["status"] for step in (await row_of(service.database, job))["summary"]["steps"]}
    assert steps == {"a": "completed", "b": "failed", "c": "completed", "d": "skipped"}
    assert refused(await service.http.post(f"/v1/jobs/{job}/fork", json={"step": "d"})) == (422, "kept_without_result")
    brain = Counting("second")
    row = await ran(service.database, workshop(brain), (await forked(service, job, step="b"))["id"])
    assert (row["status"], brain.asked) == ("completed", ["b", "d"])


async def test_a_failure_that_is_kept_ends_nothing(service: Service) -> None:
    from registry.errors import AuthError

    class Failing(Counting):
        def _step(self, request: ChatRequest) -> Any:
            result = super()._step(request)
            return AuthError("key") if self.asked[-1] == "c" else result

    job = await parent_of(service.database, Failing())
    brain = Counting("second")
    row = await ran(service.database, workshop(brain), (await forked(service, job, step="b"))["id"])
    steps = {step["id"]: step["status"] for step in row["summary"]["steps"]}
    assert steps == {"a": "completed", "b": "completed", "c": "failed", "d": "skipped"}
    assert (row["status"], brain.asked) == ("partial", ["b"])


async def test_the_plan_is_not_changed_whatever_the_analysis_says(service: Service) -> None:
    job = await parent_of(service.database)
    verdict = {"achieved": False, "confidence": 0.1, "reasoning": "not yet", "final_answer": ""}
    brain = Counting("second", judge_result=verdict)
    row = await ran(service.database, workshop(brain), (await forked(service, job, step="d"))["id"])
    assert (row["status"], brain.kinds) == ("partial", ["step", "judge_result", "synthesis"])


async def test_follow_ups_of_the_parent_stand_in_the_goal(service: Service) -> None:
    database = service.database
    said = asyncio.Event()

    class Slow(Counting):
        async def __call__(self, request: ChatRequest) -> Any:
            if len(self.kinds) == 1:
                said.set()
                for _ in range(200):
                    await asyncio.sleep(0.01)
                    if await database.row("command.job", job) and await taken():
                        break
            return await super().__call__(request)

    async def taken() -> bool:
        events = await events_of(database, job)
        return any(e["channel"] == "note" and e["payload"].get("kind") == "letter" for e in events)

    from executor.workers.inbox import Inbox

    brain = Slow(revise_plan={"keep": ["a"], "steps": [{"id": "e", "task": "in French", "dependencies": ["a"]}]})
    job = await new_job(database)
    async with Inbox.open(database) as inbox, asyncio.TaskGroup() as group:
        group.create_task(ran(database, workshop(brain, inbox=inbox), job))
        await said.wait()
        await service.http.post(f"/v1/jobs/{job}/messages", json={"text": "also in French"})
    shown = await forked(service, job, step=(await row_of(database, job))["summary"]["plan"]["steps"][-1]["id"])
    assert shown["goal"] == "sum it up\n\n[User follow-up]: also in French"


async def test_artifacts_of_kept_steps_are_the_forks_too(service: Service) -> None:
    made: list[int] = []

    @tool(read_only=True)
    async def draw() -> Artifact:
        """Draws a picture."""
        made.append(1)
        return Artifact("picture.txt", "text/plain", f"picture {len(made)}".encode())

    def drawing(request: ChatRequest) -> Any:
        done = any(message.role == "tool" for message in request.messages)
        return f"drawn {len(made)}" if done else [ToolCall("c", "draw", {})]

    database = service.database
    job = await parent_of(database, Brain(drawing), [draw])
    names = [one["name"] for one in (await service.http.get(f"/v1/jobs/{job}/artifacts")).json()["data"]]
    assert sorted(names) == ["picture-2.txt", "picture-3.txt", "picture-4.txt", "picture.txt"]
    steps = {e["payload"]["artifact"]["name"]: e["step_id"] for e in await events_of(database, job)
             if e["channel"] == "step" and "artifact" in e["payload"]}  # fmt: skip
    shown = await forked(service, job, step="d")
    kept = {name for name in names if steps[name] != "d"}
    path = f"/v1/jobs/{shown['id']}/artifacts"
    assert {one["name"] for one in (await service.http.get(path)).json()["data"]} == kept
    (new,) = {name for name in names if steps[name] == "d"}
    row = await ran(database, workshop(Brain(drawing), [draw]), shown["id"])
    assert row["status"] == "completed"
    for name in kept:
        theirs = await service.http.get(f"/v1/jobs/{job}/artifacts/{name}")
        assert (await service.http.get(f"{path}/{name}")).content == theirs.content
    assert (await service.http.get(f"{path}/{new}")).text == "picture 5"
    second = await forked(service, shown["id"], step="b")  # a fork of a fork knows them, too
    names = [one["name"] for one in (await service.http.get(f"/v1/jobs/{second['id']}/artifacts")).json()["data"]]
    assert set(names) == {name for name in kept if steps[name] in ("a", "c")}
    async with database.connection() as connection:
        await connection.execute("delete from dw_jobs where id = $1", job)
    assert len((await service.http.get(path)).json()["data"]) == 4


async def test_the_same_key_forks_once(service: Service) -> None:
    job = await parent_of(service.database)
    headers = {"Idempotency-Key": "once"}
    path = f"/v1/jobs/{job}/fork"
    first = await service.http.post(path, json={"step": "b"}, headers=headers)
    again = await service.http.post(path, json={"step": "b"}, headers=headers)
    other = await service.http.post(path, json={"step": "c"}, headers=headers)
    assert (first.json()["id"], again.status_code) == (again.json()["id"], 202)
    assert refused(other) == (422, "idempotency_mismatch")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "validation"),
        ({"step": "z"}, "unknown_step"),
        ({"step": "a", "model": "huge"}, "unknown_model"),
        ({"step": "a", "descendants": "no"}, "validation"),
        ({"step": "a", "budget": "1usd"}, "budget_unpriced"),
        ({"step": "a", "steps": []}, "validation"),
    ],
)
async def test_what_can_not_be_forked_is_told(service: Service, body: dict[str, Any], code: str) -> None:
    job = await parent_of(service.database)
    assert refused(await service.http.post(f"/v1/jobs/{job}/fork", json=body)) == (422, code)


async def test_jobs_that_can_not_be_forked(service: Service) -> None:
    database = service.database
    queued = await new_job(database, plan=PLAN)
    single = await new_job(database, mode="react")
    await ran(database, workshop(Brain(lambda request: "an answer")), single)
    planned = await new_job(database, kind="plan")
    await ran(database, workshop(Brain()), planned)
    for job, step, expected in (
        (queued, "a", (409, "job_running")), (single, "a", (422, "no_plan")), (planned, "a", (422, "nothing_run")),
        ("job_of_nobody", "a", (404, "not_found")),
    ):  # fmt: skip
        assert refused(await service.http.post(f"/v1/jobs/{job}/fork", json={"step": step})) == expected


async def test_a_key_forks_only_its_own_jobs(service: Service) -> None:
    from executor.store.keys import KeyStore, Limits

    job = await parent_of(service.database)
    _, secret = await KeyStore(service.database).create("other", Limits())
    async with service.client(secret) as client:
        assert refused(await client.post(f"/v1/jobs/{job}/fork", json={"step": "b"})) == (404, "not_found")


async def test_a_fork_replays_the_same(service: Service) -> None:
    job = await parent_of(service.database)
    shown = await forked(service, job, step="b")
    await ran(service.database, workshop(Counting("second")), shown["id"])
    for one in (job, shown["id"]):
        outcome = await replay([event async for event in stored_events(service.database, one)])
        assert [departure.to_json() for departure in outcome.departures] == []


# By the command


async def shell(capsys: pytest.CaptureFixture[str], *words: str) -> Ended:
    code = await asyncio.to_thread(main, words)
    captured = capsys.readouterr()
    return Ended(code, captured.out, captured.err)


@pytest.fixture
def here(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's environment: a database, and no model of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DAGWRIGHT_DATABASE_URL", database_url)


@pytest.mark.usefixtures("here")
async def test_the_command_queues_a_fork_of_the_services_jobs(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    job = await parent_of(database)
    plain = await shell(capsys, "fork", job, "--step", "b")
    assert plain.code == 0
    first = await row_of(database, plain.out.strip())
    assert (first["parent"], first["status"], len(first["request"]["kept"])) == (job, "queued", 2)
    only = await shell(capsys, "fork", job, "--step", "b", "--only", "--json")
    assert (only.code, only.data["parent"], only.data["plan"]["kept"]) == (0, job, ["a", "c", "d"])
    async with database.connection() as connection:
        assert await connection.fetchval("select count(*) from pgqueuer") == 3  # the parent's, and these
    for words, code in (
        (("fork", job, "--step", "z"), "unknown_step"),
        (("fork", "job_x", "--step", "a"), "no_such_job"),
    ):
        wrong = await shell(capsys, *words, "--json")
        assert (wrong.code, wrong.data["error"]["code"]) == (2, code)


@pytest.mark.usefixtures("here")
async def test_the_command_runs_a_fork_of_its_own_jobs(
    database: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kept_job(database, NewJob("sum it up", "dag", request={"plan": PLAN}), workshop(Counting())) as handle:
        job = await handle.result()
    async with ProviderFake(brain) as fake:
        monkeypatch.setenv("OPENAI_BASE_URL", fake.openai_url)
        ended = await shell(capsys, "fork", job.id, "--step", "d", "--json")
        assert ended.code == 0, ended.err
        assert (ended.data["parent"], ended.data["status"]) == (job.id, "completed")
        assert [step["output"] for step in ended.data["steps"]][:3] == ["first a", "first b", "first c"]
        unknown = await shell(capsys, "fork", job.id, "--step", "d", "--model", "huge", "--json")
        assert (unknown.code, unknown.data["error"]["code"]) == (2, "unknown_model")
    async with database.connection() as connection:
        assert await connection.fetchval("select count(*) from pgqueuer") == 0


@pytest.mark.usefixtures("here")
async def test_the_command_replays(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    job = await parent_of(database)
    same = await shell(capsys, "replay", job, "--json")
    assert (same.code, same.data) == (0, {"job": job, "same": True, "departures": []})
    plain = await shell(capsys, "replay", job)
    assert (plain.code, plain.out.startswith(f"{job}: the same")) == (0, True)
    async with database.connection() as connection:
        await connection.execute(
            "update dw_events set payload = jsonb_set(payload, '{result,message,content}', '\"another\"')"
            " where job = $1 and channel = 'turn' and step_id = 'c'",
            job,
        )
    departs = await shell(capsys, "replay", job, "--json")
    assert (departs.code, departs.data["same"], departs.data["departures"][0]["step_id"]) == (1, False, "c")
    plain = await shell(capsys, "replay", job)
    assert (plain.code, "departs at event" in plain.out) == (1, True)
    queued = await new_job(database)
    early = await shell(capsys, "replay", queued, "--json")
    assert (early.code, early.data["error"]["code"]) == (2, "not_replayable")
    missing = await shell(capsys, "replay", "job_x", "--json")
    assert (missing.code, missing.data["error"]["code"]) == (2, "no_such_job")

"""`dagwright batch`: a file to a running service and its results back."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from executor.store.keys import KeyStore
from tests.fakes import ProviderFake
from tests.support.command import command, started
from tests.support.service import Service, running
from tests.support.working import models_of, working

GOALS = [{"custom_id": f"c{number}", "goal": f"Goal number {number}."} for number in range(1, 4)]


def file_of(folder: Path, *lines: Any) -> str:
    path = folder / "goals.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def ask(service: Service, folder: Path, *words: str, key: str | None = None, stdin: str | None = None) -> Any:
    env = {} if key is None else {"DAGWRIGHT_API_KEY": key}
    return await command("batch", *words, "--url", service.url, home=folder, env=env, stdin=stdin)


async def test_plans_of_a_file(database_url: str, provider_fake: ProviderFake, tmp_path: Path) -> None:
    async with working(database_url, models_of(provider_fake)) as service:
        ended = await ask(service, tmp_path, file_of(tmp_path, *GOALS, "no json"), "--mode", "plan")
    assert ended.code == 3
    lines = {line["line"]: line for line in ended.lines}
    assert [lines[number]["status"] for number in (1, 2, 3, 4)] == ["succeeded"] * 3 + ["errored"]
    assert len(lines[1]["plan"]["steps"]) == 4
    assert lines[1]["usage"]["calls"] == 1
    assert "4 items" in ended.err
    assert "4 of 4: 3 succeeded, 1 errored" in ended.err


async def test_whole_jobs_into_a_file(database_url: str, provider_fake: ProviderFake, tmp_path: Path) -> None:
    async with working(database_url, models_of(provider_fake)) as service:
        words = ("-", "--output", str(tmp_path / "out.jsonl"), "--json")
        ended = await ask(service, tmp_path, *words, stdin=json.dumps(GOALS[0]))
    assert ended.code == 0, ended.err
    assert (ended.data["mode"], ended.data["counts"]["succeeded"]) == ("run", 1)
    (line,) = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert line["job"]["answer"]
    assert line["custom_id"] == "c1"
    assert names(tmp_path) == ["out.jsonl"]


async def test_a_batch_is_left_taken_up_and_cancelled(database_url: str, tmp_path: Path) -> None:
    async with running(database_url) as service:  # without a worker
        ended = await ask(service, tmp_path, file_of(tmp_path, *GOALS), "--detach", "--json")
        assert ended.code == 0
        assert ended.data["counts"]["processing"] == 3
        batch_id = ended.data["id"]
        process = await started("batch", "--id", batch_id, "--url", service.url, home=tmp_path)
        assert process.stderr is not None
        while b"0 of 3" not in await process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
        assert process.returncode == 130
        assert f"dagwright batch --id {batch_id}" in err.decode()
        assert (await service.http.get(f"/v1/batches/{batch_id}")).json()["status"] == "in_progress"
        ended = await ask(service, tmp_path, "--id", batch_id, "--cancel", "--json")
        assert ended.code == 130
        assert {line["status"] for line in ended.data["results"]} == {"canceled"}


async def test_the_key_comes_from_the_environment(database_url: str, tmp_path: Path) -> None:
    async with running(database_url) as service:
        key = (await KeyStore(service.database).create("me"))[1]
        file = file_of(tmp_path, *GOALS)
        refused = await ask(service, tmp_path, file, "--detach")
        assert refused.code == 1
        assert "DAGWRIGHT_API_KEY" in refused.err
        wrong = await ask(service, tmp_path, file, "--detach", "--json", key="dwk_wrong")
        assert wrong.data["error"]["code"] == "unauthorized"
        well = await ask(service, tmp_path, file, "--detach", key=key)
        assert (well.code, key in well.out + well.err) == (0, False)


async def test_a_file_without_a_good_line(database_url: str, tmp_path: Path) -> None:
    async with running(database_url) as service:
        ended = await ask(service, tmp_path, file_of(tmp_path, "x", {"custom_id": "a"}), "--json")
    assert ended.code == 1
    assert ended.data["error"]["code"] == "batch_empty"
    assert len(ended.data["error"]["problems"]) == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "FILE"),
        (("goals.jsonl", "--id", "batch_1"), "FILE"),
        (("missing.jsonl",), "missing.jsonl can't be read"),
        (("--id", "batch_1/../x"), "must be the id"),
        (("--id", "batch_1", "--url", "ftp://x"), "--url"),
        (("--id", "batch_1", "--url", "http://user:pw@x"), "--url"),
        (("goals.jsonl", "--cancel"), "--cancel"),
        (("--id", "batch_1", "--mode", "plan"), "--mode"),
    ],
)
async def test_wrong_words(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    ended = await command("batch", *words, home=tmp_path)
    assert ended.code == 2
    assert says in ended.err


async def test_a_service_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = ("-c", "import executor.command.remote as r; r.PATIENCE = 1.0\n"
             "from executor.cli import main; raise SystemExit(main())")  # fmt: skip
    ended = await command("batch", "--id", "batch_1", "--url", "http://127.0.0.1:1", home=tmp_path, start=start)
    assert ended.code == 1
    assert "is `dagwright serve` running?" in ended.err


async def test_a_service_that_comes_back(database_url: str, tmp_path: Path) -> None:
    async with running(database_url) as service:
        process = await started("batch", file_of(tmp_path, *GOALS), "--url", service.url, "--json", home=tmp_path)
        assert process.stderr is not None
        while b"0 of 3" not in await process.stderr.readline():
            pass
        port = service.url.rpartition(":")[2]
    await asyncio.sleep(1)
    async with running(database_url, port=int(port)) as again:
        (batch,) = (await again.http.get("/v1/batches")).json()["data"]
        await again.http.post(f"/v1/batches/{batch['id']}/cancel")
        out, _ = await process.communicate()
    assert process.returncode == 130
    assert json.loads(out)["counts"]["canceled"] == 3

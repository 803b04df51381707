"""`dagwright keys` and `dagwright jobs` on a real database."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from executor.cli import main
from executor.store.database import Database
from executor.store.jobs import JobStore, NewJob
from executor.store.keys import KeyStore
from tests.support.command import Ended, command
from tests.support.stored_jobs import Brain, events_of, new_job, ran, workshop


class Shell:
    """The command's main function on a thread of its own, in an environment that leads to a database."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    async def __call__(self, *words: str) -> Ended:
        code = await asyncio.to_thread(main, words)
        captured = self.capsys.readouterr()
        return Ended(code, captured.out, captured.err)


@pytest.fixture
def shell(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGWRIGHT_DATABASE_URL", database_url)
    return Shell(capsys)


async def test_keys_are_made_listed_and_revoked(shell: Shell, database: Database) -> None:
    made = await shell("keys", "create", "mine", "--requests-per-minute", "60", "--usd-per-day", "2.50")
    secret = made.out.strip()
    assert (made.code, secret.startswith("dwk_")) == (0, True)
    assert secret not in made.err
    key = (await KeyStore(database).asker(secret, None)).key
    assert key is not None
    assert key.limits.to_json() == {"requests_per_minute": 60, "usd_per_day": "2.5"}
    second = (await shell("keys", "create", "other", "--running-jobs", "3", "--json")).data
    assert (second["name"], second["limits"]) == ("other", {"running_jobs": 3})
    assert (await KeyStore(database).asker(second["key"], None)).key is not None
    listed = await shell("keys", "list", "--json")
    assert [row["name"] for row in listed.data["keys"]] == ["mine", "other"]
    assert not {secret, second["key"]} & set(listed.out.split('"'))
    revoked = await shell("keys", "revoke", key.id, "--json")
    assert (revoked.code, revoked.data["id"], revoked.data["revoked_at"] is not None) == (0, key.id, True)
    assert (await KeyStore(database).asker(secret, None)).key is None
    told = await shell("keys", "list")
    assert key.id in told.out
    assert "revoked" in told.out.splitlines()[0]
    missing = await shell("keys", "revoke", "key_of_nobody", "--json")
    assert (missing.code, missing.data["error"]["code"]) == (2, "no_such_key")


async def test_what_is_wrong_is_told_before_the_database_is_asked(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGWRIGHT_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    for words in (("keys", "create", "x", "--running-jobs", "0"), ("keys", "create", "x", "--usd-per-day", "nan"),
                  ("keys", "create", "x", "--requests-per-minute", "1.5"), ("jobs", "list", "--limit", "-1"),
                  ("jobs", "list", "--status", "lost")):  # fmt: skip
        ended = await shell(*words)
        assert (ended.code, words[-2] in ended.err) == (2, True), words
    ended = await shell("jobs", "list", "--json")
    assert (ended.code, ended.data["error"]["code"]) == (2, "database")


async def test_in_a_process_of_its_own(tmp_path: Path, database_url: str) -> None:
    made = await command("keys", "create", "mine", home=tmp_path, env={"DAGWRIGHT_DATABASE_URL": database_url})
    assert (made.code, made.out.startswith("dwk_")) == (0, True)


async def test_jobs_are_listed_shown_followed_and_ended(shell: Shell, database: Database) -> None:
    assert (await shell("jobs", "list")).out == "no jobs\n"
    done = await new_job(database, "sum it up")
    await ran(database, workshop(Brain()), done)
    row, _ = await JobStore(database).create("key_of_somebody", NewJob("another\n\x1b[31mgoal"))
    waiting = str(row["id"])
    listed = await shell("jobs", "list")
    assert [line.split()[:2] for line in listed.out.splitlines()] == [[waiting, "queued"], [done, "completed"]]
    assert "\x1b" not in listed.out
    assert [job["id"] for job in (await shell("jobs", "list", "--status", "completed", "--json")).data["jobs"]] == [
        done
    ]
    shown = await shell("jobs", "show", done)
    assert (shown.code, shown.out.strip()) == (0, "the written answer")
    assert f"{done}: completed (dag)" in shown.err
    assert (await shell("jobs", "show", done, "--json")).data["answer"] == "the written answer"
    public = [event["seq"] for event in (await shell("jobs", "events", done)).lines]
    assert public == sorted(public)
    told = (await shell("jobs", "events", done, "--json")).data["events"]
    assert [event["seq"] for event in told] == public
    assert told[-1]["channel"] == "done"
    assert len(public) < len(await events_of(database, done))  # internal ones are not told
    ended = await shell("jobs", "cancel", waiting, "--json")
    assert (ended.code, ended.data["status"]) == (0, "cancelled")
    assert (await shell("jobs", "show", waiting)).code == 130
    assert "has ended before" in (await shell("jobs", "cancel", done)).out
    missing = await shell("jobs", "show", "job_of_nobody", "--json")
    assert (missing.code, missing.data["error"]["code"]) == (2, "no_such_job")

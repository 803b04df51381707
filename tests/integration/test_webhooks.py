"""Webhooks: signed, at least once, eight tries over a day, nowhere but to public addresses."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web
from standardwebhooks import Webhook

from executor.log.stored import Ending, StoredLog
from executor.service import webhooks
from executor.service.webhooks import PAUSES, Secrets, WebhookSender, check_url
from executor.store.database import Database
from executor.store.jobs import JobStore, NewJob
from registry.errors import ConfigError, UsageError
from tests.fakes import ProviderFake
from tests.support.working import models_of, working

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


@dataclass
class Receiver:
    """A receiver on loopback: what came, and what it answers, the last one for good."""

    answers: list[Any] = field(default_factory=lambda: [200])
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.got.append((dict(request.headers), await request.read()))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            return await answer(request)  # type: ignore[no-any-return]
        return web.Response(status=answer, headers={"Location": "/elsewhere"} if answer in (301, 302) else {})


@asynccontextmanager
async def receiving(*answers: Any) -> AsyncIterator[Receiver]:
    receiver = Receiver(list(answers) or [200])
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", receiver.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    receiver.port = runner.addresses[0][1]
    try:
        yield receiver
    finally:
        await runner.cleanup()


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "IDLE", 0.02)


async def job_with(database: Database, url: str, tenant: str = "", *, ended: bool = True) -> str:
    row, _ = await JobStore(database).create(tenant, NewJob("goal ü", webhook=url))
    if ended:
        await end(database, row["id"])
    return str(row["id"])


async def end(database: Database, job_id: str) -> None:
    owner = uuid4()
    await database.row("log.claim", job_id, owner)
    log = StoredLog(job_id, database, owner)
    async with asyncio.TaskGroup() as group:
        group.create_task(log.serve())
        log.append("done", {"status": "completed"})
        await log.end(Ending("completed", {"id": job_id, "status": "completed", "goal": "goal ü"}))


@asynccontextmanager
async def delivering(sender: WebhookSender) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sender.run())
        try:
            yield
        finally:
            task.cancel()


def sender(database: Database, receiver: Receiver | None = None) -> WebhookSender:
    return WebhookSender(database, Secrets(SECRET), [] if receiver is None else [f"127.0.0.1:{receiver.port}"])


async def state(database: Database, job_id: str) -> Any:
    async with database.connection() as connection:
        return await connection.fetchrow(
            "select *, extract(epoch from next_at - now())::float8 as due_in from dw_webhooks where job = $1", job_id
        )


async def until(database: Database, job_id: str, **wanted: Any) -> Any:
    """The webhook's row once it has these values; names without a value: once they are set."""
    async with asyncio.timeout(20):
        while True:
            row = await state(database, job_id)
            if all(row[name] is not None if value is ... else row[name] == value for name, value in wanted.items()):
                return row
            await asyncio.sleep(0.02)


async def make_due(database: Database) -> None:
    async with database.connection() as connection:
        await connection.execute("update dw_webhooks set next_at = now()")


async def test_the_ended_job_is_posted_and_signed(database: Database) -> None:
    async with receiving() as receiver, delivering(sender(database, receiver)):
        job_id = await job_with(database, receiver.url, ended=False)
        await asyncio.sleep(0.1)
        assert receiver.got == []
        assert (await state(database, job_id))["next_at"] is None
        await end(database, job_id)
        await until(database, job_id, delivered_at=...)
    ((headers, body),) = receiver.got
    told = Webhook(SECRET).verify(body, {name.lower(): value for name, value in headers.items()})
    summary = {"id": job_id, "status": "completed", "goal": "goal ü"}
    assert told == {**summary, "kind": "run", "batch": None, "cancel_requested": False}
    assert headers["webhook-id"] == job_id
    assert headers["Content-Type"] == "application/json"


async def test_a_receiver_that_fails_is_tried_eight_times_over_a_day(database: Database) -> None:
    async with receiving(500) as receiver, delivering(sender(database, receiver)):
        job_id = await job_with(database, receiver.url)
        for tries, pause in enumerate(PAUSES, 1):
            row = await until(database, job_id, tries=tries, last_error="answered 500")
            assert pause - 20 < row["due_in"] <= pause
            assert row["given_up_at"] is None
            async with database.connection() as connection:
                await connection.execute("update dw_webhooks set last_error = null, next_at = now()")
        row = await until(database, job_id, tries=8, given_up_at=...)
        await make_due(database)
        await asyncio.sleep(0.2)
    assert len(receiver.got) == 8
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
    assert 22 * 3600 < sum(PAUSES) < 24 * 3600
    assert list(PAUSES) == sorted(PAUSES)


async def test_a_later_try_delivers(database: Database) -> None:
    async with receiving(503, 302, 204) as receiver, delivering(sender(database, receiver)):
        job_id = await job_with(database, receiver.url)
        for told in ("answered 503", "answered 302"):
            await until(database, job_id, last_error=told)
            await make_due(database)
        row = await until(database, job_id, delivered_at=...)
    assert row["tries"] == 3
    assert row["last_error"] is None


async def test_a_receiver_that_is_gone_is_not_tried_again(database: Database) -> None:
    async with receiving(410) as receiver, delivering(sender(database, receiver)):
        job_id = await job_with(database, receiver.url)
        assert (await until(database, job_id, given_up_at=...))["tries"] == 1


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://127.0.0.1:{port}/", "a loopback address"),
        ("http://[::1]:{port}/", "a loopback address"),
        ("http://169.254.169.254/latest", "a link-local address"),
        ("http://2130706433:{port}/", "not a canonical IPv4 address"),
        ("http://localhost:{port}/", "a loopback address"),
    ],
)
async def test_private_addresses_are_not_reached(database: Database, url: str, says: str) -> None:
    async with receiving() as receiver, delivering(sender(database)):
        job_id = await job_with(database, url.format(port=receiver.port))
        row = await until(database, job_id, last_error=...)
    assert says in row["last_error"]
    assert receiver.got == []


async def test_a_redirect_leads_nowhere(database: Database) -> None:
    async with receiving() as inner:

        async def moved(request: web.Request) -> web.Response:
            return web.Response(status=307, headers={"Location": inner.url})

        async with receiving(moved) as receiver, delivering(sender(database, receiver)):
            job_id = await job_with(database, receiver.url)
            await until(database, job_id, last_error="answered 307")
    assert inner.got == []


async def test_one_that_never_answers_keeps_no_other_waiting(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "TIME_LIMIT", 3.0)

    async def never(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async with receiving(never) as dead, receiving() as well:
        both = WebhookSender(database, Secrets(SECRET), [f"127.0.0.1:{one.port}" for one in (dead, well)])
        async with delivering(both):
            stuck = await job_with(database, dead.url)
            while not dead.got:
                await asyncio.sleep(0.01)
            job_id = await job_with(database, well.url)
            await until(database, job_id, delivered_at=...)
            assert (await state(database, stuck))["last_error"] is None
            await until(database, stuck, last_error="no answer within 3 s")


async def test_many_servers_deliver_each_once(database: Database, database_url: str) -> None:
    async with receiving() as receiver, Database.open(database_url) as other:
        jobs = [await job_with(database, receiver.url) for _ in range(30)]
        async with delivering(sender(database, receiver)), delivering(sender(other, receiver)):
            for job_id in jobs:
                await until(database, job_id, delivered_at=...)
    assert sorted(headers["webhook-id"] for headers, _ in receiver.got) == sorted(jobs)


async def test_a_server_that_dies_in_the_middle_loses_nothing(database: Database) -> None:
    async def slow(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async with receiving(slow, 200) as receiver:
        async with delivering(sender(database, receiver)):
            job_id = await job_with(database, receiver.url)
            while not receiver.got:
                await asyncio.sleep(0.01)
        row = await state(database, job_id)
        assert (row["tries"], row["delivered_at"]) == (1, None)
        assert row["due_in"] > 0  # meanwhile it is nobody else's
        await make_due(database)
        async with delivering(sender(database, receiver)):
            await until(database, job_id, delivered_at=..., tries=2)
    assert [headers["webhook-id"] for headers, _ in receiver.got] == [job_id] * 2


async def test_a_last_try_of_which_nothing_is_known_is_the_last(database: Database) -> None:
    async with receiving() as receiver:
        job_id = await job_with(database, receiver.url)
        async with database.connection() as connection:
            await connection.execute("update dw_webhooks set tries = 8")
        async with delivering(sender(database, receiver)):
            row = await until(database, job_id, given_up_at=...)
    assert "not known" in row["last_error"]
    assert receiver.got == []


async def test_a_tenant_has_a_secret_of_its_own(database: Database) -> None:
    secrets = Secrets(SECRET)
    assert secrets.of("") == SECRET
    assert len({secrets.of(tenant) for tenant in ("", "a", "b")}) == 3
    async with receiving() as receiver, delivering(sender(database, receiver)):
        job_id = await job_with(database, receiver.url, "a")
        await until(database, job_id, delivered_at=...)
    headers, body = receiver.got[0]
    signed = {name.lower(): value for name, value in headers.items()}
    assert json.loads(body) == Webhook(secrets.of("a")).verify(body, signed)
    with pytest.raises(Exception, match="No matching signature"):
        Webhook(secrets.of("b")).verify(body, signed)


def test_secrets_and_addresses_are_checked_beforehand() -> None:
    for wrong in ("", "whsec_", "whsec_" + "a" * 8, "no base64!" * 5, "whsec_" + base64.b64encode(bytes(65)).decode()):
        with pytest.raises(ConfigError, match="24 to 64 bytes"):
            Secrets(wrong)
    secrets = Secrets(SECRET)
    check_url("https://example.com/hook", secrets)
    for url in ("ftp://example.com", "https://user:pass@example.com/", "https://", "x" * 5_000):
        with pytest.raises(UsageError):
            check_url(url, secrets)
    with pytest.raises(UsageError, match="webhook_secret_env"):
        check_url("https://example.com/hook", None)


async def test_a_job_of_the_service_tells_its_end(
    database_url: str, provider_fake: ProviderFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKS", SECRET)
    async with receiving() as receiver:
        allow = (f"127.0.0.1:{receiver.port}",)
        models = models_of(provider_fake)
        async with working(database_url, models, webhook_secret_env="HOOKS", fetch_allow=allow) as service:
            body = {"goal": "Work it out.", "webhook": receiver.url}
            made = await service.http.post("/v1/jobs?wait=60", json=body)
            assert made.json()["status"] == "completed"
            await until(service.database, made.json()["id"], delivered_at=...)
            lines = [{"custom_id": "a", **body}, {"custom_id": "b", "goal": "no webhook"}]
            batch = (await service.http.post("/v1/batches", json={"mode": "run", "requests": lines})).json()
            async with asyncio.timeout(60):
                while len(receiver.got) < 2:
                    await asyncio.sleep(0.05)
            item = json.loads(receiver.got[1][1])
            for told in (json.loads(receiver.got[0][1]), item):  # the job as the API shows it
                assert (await service.http.get(f"/v1/jobs/{told['id']}")).json() == told
    assert (item["batch"], item["custom_id"]) == (batch["id"], "a")
    headers, sent = receiver.got[0]
    told = Webhook(SECRET).verify(sent, {name.lower(): value for name, value in headers.items()})
    assert (told["id"], told["status"], told["answer"]) == (made.json()["id"], "completed", made.json()["answer"])
    assert json.loads(receiver.got[1][1])["status"] == "completed"
    assert batch["counts"]["total"] == 2

"""Keys: each is a tenant that sees its own alone; without any the service answers this machine only."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from decimal import Decimal
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from executor.service.limits import Requests
from executor.service.problems import ProblemError
from executor.store.keys import Key, KeyStore, Limits, NoSuchKeyError, hash_of
from registry.errors import UsageError
from registry.testing import FakeClock
from tests.support.experiments import created, recorded
from tests.support.service import Service, running, written

OPEN = {
    "/healthz", "/readyz", "/docs", "/docs/docs.css", "/docs/docs.js", "/openapi.json", "/",
    "/page/{version}/{path:path}",
}  # fmt: skip
"""What needs no key: nothing of anybody's stands there."""


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    async with running(database_url) as found:
        yield found


async def key_of(service: Service, name: str, **limits: Any) -> str:
    """A new key, of whose being the service has heard."""
    _, secret = await KeyStore(service.database).create(name, Limits(**limits))
    while not (await service.app.state.keyring.asker(None)).configured:
        await asyncio.sleep(0.01)
    return secret


async def refused(client: httpx2.AsyncClient) -> httpx2.Response:
    """The first answer that is no success: it comes soon."""
    async with asyncio.timeout(10):
        while (response := await client.get("/v1/jobs")).is_success:
            await asyncio.sleep(0.01)
    return response


def routes(app: FastAPI) -> Iterable[tuple[str, str]]:
    """Every method and path of the application, those of included routers too."""
    for route in flat(app.routes):
        for method in sorted(getattr(route, "methods", None) or {"GET"}):
            if method != "HEAD":
                yield method, route.path


def flat(found: Iterable[Any]) -> Iterable[Any]:
    for route in found:
        router = getattr(route, "original_router", None)  # an included one: its routes have their whole paths
        yield from [route] if router is None else flat(router.routes)


def code(response: httpx2.Response) -> tuple[int, str]:
    body = response.json()
    return response.status_code, body["code"] if "code" in body else body["error"]["code"]


async def prepared(service: Service, client: httpx2.AsyncClient, tenant: str) -> dict[str, str]:
    """A job with a waiting call and an artifact, a batch, an experiment: one of everything that paths name."""
    job = (await client.post("/v1/jobs", json={"goal": "mine", "metadata": {"a": "b"}})).json()["id"]
    call = {"call_id": "c1", "tool_name": "mail", "tool_args": {}, "status": "waiting", "reason": "", "deadline": None}
    plan = {"goal": "mine", "steps": [{"id": "s1", "task": "x"}]}
    events = [
        {"channel": "plan", "step_id": None, "payload": plan},
        {"channel": "approval", "step_id": "s1", "payload": call},
    ]
    async for _ in written(service.database, job, events, at_once=True):
        pass
    async with service.database.connection() as connection:
        await connection.execute(
            "insert into dw_artifacts (job, name, mime, data) values ($1, 'a.html', 'text/html', 'mine')", job
        )
    batch = await client.post("/v1/batches", json={"mode": "plan", "requests": [{"custom_id": "1", "goal": "mine"}]})
    assert batch.status_code in (200, 201, 202), batch.text
    experiment = await created(client, recorded())
    return {
        "job_id": job, "call_id": "c1", "name": "a.html", "batch_id": batch.json()["id"],
        "experiment_id": experiment["id"],
    }  # fmt: skip


BODIES: dict[str, Any] = {
    "/v1/jobs/{job_id}/messages": {"text": "x"},
    "/v1/jobs/{job_id}/approvals/{call_id}": {"approve": True},
}
NAMES_OF_NOBODY = {"/v1/models/{name:path}", "/page/{version}/{path:path}"}
"""Paths with a name in them that is the same for all."""


async def test_whatever_names_another_tenant_s_object_is_not_found(service: Service) -> None:
    """Every route of the application that has a name in its path is asked; a new one is asked by itself."""
    mine, yours = await key_of(service, "mine"), await key_of(service, "yours")
    async with service.client(mine) as owner, service.client(yours) as other:
        names = await prepared(service, owner, mine)
        paths = [(method, path) for method, path in routes(service.app) if "{" in path and path not in NAMES_OF_NOBODY]
        assert len(paths) >= 12
        for method, path in paths:
            assert set(re.findall(r"{(\w+)", path)) <= set(names), f"{path} names something this test does not make"
            url = re.sub(r"{(\w+)(:\w+)?}", lambda found: names[found[1]], path)
            body = {"json": BODIES[path]} if path in BODIES else {}
            assert code(await other.request(method, url, **body)) == (404, "not_found"), (method, path)
            none = re.sub(r"{(\w+)(:\w+)?}", "nothing", path)
            assert code(await owner.request(method, none, **body)) == (404, "not_found"), (method, path)
        async with service.database.connection() as connection:
            assert await connection.fetchval("select count(*) from dw_inbox") == 0
            assert await connection.fetchval("select count(*) from dw_jobs where cancel") == 0
        for method, path in paths:  # the owner reaches each of them
            if method == "GET":
                url = re.sub(r"{(\w+)(:\w+)?}", lambda found: names[found[1]], path)
                async with owner.stream(method, url) as response:
                    assert response.status_code < 300, path


async def test_nothing_is_there_without_a_key(service: Service) -> None:
    await key_of(service, "mine")
    for method, path in routes(service.app):
        response = await service.http.request(method, re.sub(r"{\w+(:\w+)?}", "x", path))
        if path in OPEN:
            assert response.status_code != 401, path
        else:
            assert response.status_code == 401, (method, path, response.text)
            assert response.headers["www-authenticate"].startswith("Bearer")


async def test_lists_hold_one_s_own(service: Service) -> None:
    mine, yours = await key_of(service, "mine"), await key_of(service, "yours")
    async with service.client(mine) as owner, service.client(yours) as other:
        await prepared(service, owner, mine)
        for path in ("/v1/jobs", "/v1/batches", "/v1/experiments", "/v1/jobs?metadata.a=b"):
            assert len((await owner.get(path)).json()["data"]) == 1
            assert (await other.get(path)).json()["data"] == []
        job = (await owner.get("/v1/jobs")).json()["data"][0]["id"]
        assert (await other.get(f"/v1/jobs?after={job}")).json()["data"] == []
        ids = {
            (await client.post("/v1/jobs", json={"goal": "g"}, headers={"idempotency-key": "same"})).json()["id"]
            for client in (owner, other)
        }
        assert len(ids) == 2  # keys of idempotency are a tenant's own


async def test_both_headers_and_a_wrong_key(service: Service) -> None:
    secret = await key_of(service, "mine")
    for headers in (
        {"authorization": f"Bearer {secret}"},
        {"authorization": f"bearer {secret}"},
        {"x-api-key": secret},
    ):
        assert (await service.http.get("/v1/jobs", headers=headers)).status_code == 200
    for headers in ({"authorization": f"Basic {secret}"}, {"x-api-key": secret + "x"}, {"x-api-key": ""},
                    {"authorization": "Bearer"}, {"authorization": "Bearer \xff"}, {"x-api-key": "\xff"}):  # fmt: skip
        raw = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
        response = await service.http.get("/v1/jobs", headers=list(raw.items()))
        assert code(response) == (401, "unauthorized"), headers


async def test_a_key_is_stored_as_its_hash_and_can_be_revoked(service: Service) -> None:
    keys = KeyStore(service.database)
    key, secret = await keys.create("mine")
    async with service.database.connection() as connection:
        stored = await connection.fetchrow("select * from dw_keys")
    assert stored is not None
    assert stored["hash"] == hash_of(secret)
    assert secret not in str(dict(stored))
    assert [(one.id, one.name, one.revoked_at) for one in await keys.all()] == [(key.id, "mine", None)]
    async with service.client(secret) as client:
        assert (await client.get("/v1/jobs")).status_code == 200
        assert (await client.post("/v1/session")).status_code == 200
        assert (await keys.revoke(key.id)).revoked_at is not None
        assert code(await refused(client)) == (401, "unauthorized")
        session = client.cookies
    async with service.client() as client:
        client.cookies = session
        assert code(await client.get("/v1/jobs")) == (401, "unauthorized")
    assert code(await service.http.get("/v1/jobs")) == (401, "unauthorized")  # the last key's end opens nothing
    with pytest.raises(NoSuchKeyError):
        await keys.revoke("key_of_nobody")
    for name in ("", " ", "x" * 101):
        with pytest.raises(UsageError):
            await keys.create(name)


# Without keys


async def test_without_keys_only_this_machine_under_its_own_name(service: Service) -> None:
    port = service.url.rpartition(":")[2]
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", "127.0.0.1"):
        assert (await service.http.get("/v1/jobs", headers={"host": host})).status_code == 200, host
    for host in (f"attacker.example:{port}", "localhost.attacker.example", "", "[", "127.0.0.1.nip.io", "192.168.1.5"):
        response = await service.http.get("/v1/jobs", headers={"host": host})
        assert response.status_code in (400, 403), host
    for address in ("192.168.1.5", "2001:db8::1"):  # another machine asks, through uvicorn's own proxy headers
        response = await service.http.get("/v1/jobs", headers={"x-forwarded-for": address})
        assert code(response) == (403, "forbidden")
    await key_of(service, "mine")
    secret = await key_of(service, "other")
    response = await service.http.get("/v1/jobs", headers={"host": "service.example", "x-api-key": secret})
    assert response.status_code == 200


async def test_a_page_of_another_site_can_send_nothing(service: Service) -> None:
    for headers in ({"origin": "https://attacker.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"},
                    {"sec-fetch-site": "same-site"}):  # fmt: skip
        response = await service.http.post("/v1/jobs", json={"goal": "g"}, headers=headers)
        assert code(response) == (403, "forbidden"), headers
    own = {"origin": service.url, "sec-fetch-site": "same-origin"}
    assert (await service.http.post("/v1/jobs", json={"goal": "g"}, headers=own)).status_code == 202


# Sessions


async def test_a_key_is_exchanged_for_a_cookie(service: Service) -> None:
    secret = await key_of(service, "mine")
    response = await service.http.post("/v1/session", headers={"x-api-key": secret})
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert secret not in cookie
    assert "Secure" not in cookie
    assert response.json()["name"] == "mine"
    jobs = service.http  # which keeps the cookie
    assert (await jobs.get("/v1/session")).json()["name"] == "mine"
    assert (await jobs.post("/v1/jobs", json={"goal": "g"})).status_code == 202
    assert code(await jobs.post("/v1/jobs", json={"goal": "g"}, headers={"origin": "https://x.example"}))[0] == 403
    assert (await jobs.delete("/v1/session")).status_code == 204
    value = cookie.partition("=")[2].partition(";")[0]
    jobs.cookies.set("dagwright_session", value)
    assert code(await refused(jobs)) == (401, "unauthorized")


# Limits


async def test_requests_are_counted_by_a_bucket_that_refills() -> None:
    clock = FakeClock()
    requests = Requests(clock)
    one, other = (Key(name, name, Limits(requests_per_minute=3)) for name in ("a", "b"))
    for _ in range(3):
        requests.count(one)
    with pytest.raises(ProblemError) as refused:
        requests.count(one)
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (429, "20")
    requests.count(other)
    await clock.sleep(20)
    requests.count(one)
    with pytest.raises(ProblemError):
        requests.count(one)
    await clock.sleep(600)  # no more than a minute's are saved up
    for _ in range(3):
        requests.count(one)
    with pytest.raises(ProblemError):
        requests.count(one)


async def test_a_key_s_limits(service: Service) -> None:
    async with service.client(await key_of(service, "slow", requests_per_minute=2)) as client:
        assert [(await client.get("/v1/jobs")).status_code for _ in range(3)] == [200, 200, 429]
    async with service.client(await key_of(service, "few", running_jobs=2)) as client:
        made = await asyncio.gather(*(client.post("/v1/jobs", json={"goal": "g"}) for _ in range(6)))
        assert sorted(response.status_code for response in made) == [202, 202, 429, 429, 429, 429]
        refused = next(response for response in made if response.status_code == 429)
        assert (code(refused), "retry-after" in refused.headers) == ((429, "too_many_jobs"), True)
        job = next(response for response in made if response.status_code == 202).json()["id"]
        await client.post(f"/v1/jobs/{job}/cancel")
        assert (await client.post("/v1/plans?wait=0", json={"goal": "g"})).status_code == 202
    async with service.client(await key_of(service, "poor", usd_per_day=Decimal("0.5"))) as client:
        job = (await client.post("/v1/jobs", json={"goal": "g"})).json()["id"]
        async with service.database.connection() as connection:
            await connection.execute("update dw_jobs set cost_usd = 0.5, ended_at = now() where id = $1", job)
        assert code(await client.post("/v1/jobs", json={"goal": "g"})) == (429, "spend_limit")


def test_limits_are_above_zero() -> None:
    for wrong in ({"requests_per_minute": 0}, {"running_jobs": -1}, {"usd_per_day": Decimal("nan")}):
        with pytest.raises(UsageError):
            Limits(**wrong)
    limits = Limits(5, 2, Decimal("0.10"))
    assert Limits.from_json(limits.to_json()) == limits
    assert limits.to_json() == {"requests_per_minute": 5, "running_jobs": 2, "usd_per_day": "0.1"}

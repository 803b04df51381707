"""Experiments over HTTP, small ones."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2

TARGETS = {"t1": "4", "t2": "9", "t3": "16"}


def tasks(**targets: str) -> list[dict[str, Any]]:
    """Tasks with what is right."""
    return [{"id": name, "input": f"question {name}", "target": target} for name, target in targets.items()]


def live(*arms: str, count: int = 3, **more: Any) -> dict[str, Any]:
    """An experiment whose arms are jobs of a single agent, each on a model of its name."""
    names = [f"t{number}" for number in range(1, count + 1)]
    return {
        "experiment": {"name": "live", "tasks": tasks(**dict.fromkeys(names, "42")), **more},
        "grader": {"use": "contains"},
        "arms": {arm: {"mode": "react", "routing": f"fixed:{arm}"} for arm in arms},
    }


def rows(**answers: str) -> dict[str, Any]:
    """Recorded answers by task, with what they are worth."""
    given = [{"id": name, "answer": told, "right": TARGETS[name] == told} for name, told in answers.items()]
    return {"rows": given, "id": "id", "answer": "answer", "score": "right", "cost": 0.001}


def recorded(**more: Any) -> dict[str, Any]:
    """An experiment of recorded answers alone: nothing is run."""
    return {
        "experiment": {"name": "recorded", "tasks": tasks(**TARGETS), "reference": "strong", **more},
        "grader": {"use": "exact"},
        "recorded": {
            "weak": rows(t1="4", t2="8", t3="15"),
            "strong": {**rows(t1="4", t2="9", t3="15"), "cost": 0.01},
        },
        "arms": {
            "weak": {"among": ["weak"]},
            "strong": {"among": ["strong"]},
            "cascade": {"among": ["weak", "strong"], "routing": "cascade", "checker": 1.0},
        },
    }


async def created(client: httpx2.AsyncClient, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    reply = await client.post("/v1/experiments", json=body, headers=headers)
    assert reply.status_code == 202, reply.text
    made: dict[str, Any] = reply.json()
    assert reply.headers["location"] == f"/v1/experiments/{made['id']}"
    return made


async def got(client: httpx2.AsyncClient, experiment: dict[str, Any]) -> dict[str, Any]:
    reply = await client.get(f"/v1/experiments/{experiment['id']}")
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    counts = found["counts"]
    parts = ("processing", "succeeded", "errored", "canceled", "expired")
    assert counts["total"] == sum(counts[name] for name in parts)
    assert found["cells"] == counts["total"] + counts["recorded"]
    return found


async def cells_of(client: httpx2.AsyncClient, experiment: dict[str, Any], page: int = 1_000) -> list[dict[str, Any]]:
    """All its cells that are jobs, page by page."""
    found: list[dict[str, Any]] = []
    after = 0
    while True:
        reply = await client.get(f"/v1/experiments/{experiment['id']}/cells?limit={page}&after={after}")
        assert reply.status_code == 200, reply.text
        told = reply.json()
        found += told["data"]
        if not told["has_more"]:
            return found
        after = told["next"]


async def until(client: httpx2.AsyncClient, experiment: dict[str, Any], status: str = "ended") -> dict[str, Any]:
    async with asyncio.timeout(60):
        while (found := await got(client, experiment))["status"] != status:
            await asyncio.sleep(0.05)
    return found

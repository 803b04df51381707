"""An experiment whose cells run: a worker, models of stated quality behind real HTTP, and the report of it all."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from typing import Any

import pytest

from registry.models import ModelRegistry
from registry.prices import Price
from tests.fakes import ProviderFake
from tests.fakes.skilled import Skill, Skilled, is_right, value_of
from tests.support.experiments import cells_of, created, until
from tests.support.service import Service
from tests.support.working import models_of, working

SKILLS = {"fake-small": Skill(0.95, 0.8), "fake-large": Skill(1.0, 1.0)}
TASKS = 6


def items(number: int) -> tuple[str, str]:
    return f"part{number}-easy", f"part{number}-hard"


def task(number: int) -> dict[str, Any]:
    """Two values are found and added up."""
    first, second = items(number)
    total = f"all{number}-sum"
    steps = [
        {"id": "first", "task": f"Find the value of {first}.", "dependencies": []},
        {"id": "second", "task": f"Find the value of {second}.", "dependencies": []},
        {"id": "sum", "task": f"Add the values of {first}, {second} and call the sum {total}.",
         "dependencies": ["first", "second"]},
    ]  # fmt: skip
    return {
        "id": f"t{number}", "input": f"What is {total}?", "target": f"{total} = {value_of(first) + value_of(second)}",
        "metadata": {"kind": "sums"}, "plan": {"steps": steps},
    }  # fmt: skip


BODY: dict[str, Any] = {
    "experiment": {"name": "plans", "tasks": [task(number) for number in range(TASKS)], "reference": "large",
                   "concurrency": 4, "budget": "1usd", "seed": 3},
    "grader": {"use": "contains"},
    "arms": {
        "small": {"mode": "dag", "routing": "fixed:small"},
        "large": {"mode": "dag", "routing": "fixed:large"},
        "cascade": {"mode": "dag", "routing": {"use": "cascade", "models": ["small", "large"], "threshold": 0.5}},
    },
}  # fmt: skip


def priced(fake: ProviderFake) -> ModelRegistry:
    models = models_of(fake)
    for name, price in (("small", Price(1, 2)), ("large", Price(10, 20))):  # type: ignore[arg-type]
        models.get(name).price = price
    return models


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    async with (
        ProviderFake(Skilled(SKILLS), models=tuple(SKILLS)) as fake,
        working(database_url, priced(fake), slots=8) as started,
    ):
        yield started
        assert fake.refusals == []


async def test_cells_run_and_are_reported(service: Service) -> None:
    made = await created(service.http, BODY)
    found = await until(service.http, made)
    assert found["counts"]["succeeded"] == 3 * TASKS == found["cells"]
    assert (found["usage"]["partial"], found["budget_spent"]) == (False, False)
    cells = await cells_of(service.http, made)
    assert {cell["status"] for cell in cells} == {"completed"}
    spent = sum(float(cell["cost_usd"]) for cell in cells)
    assert spent == pytest.approx(float(found["usage"]["cost_usd"]))
    assert 0 < spent < 1
    report = (await service.http.get(f"/v1/experiments/{made['id']}/report", timeout=120)).json()
    arms = {arm["name"]: arm for arm in report["arms"]}
    assert list(arms) == ["small", "large", "cascade"]
    right = [
        all(is_right("fake-small", SKILLS["fake-small"], item) for item in items(number)) for number in range(TASKS)
    ]
    assert arms["small"]["quality"]["mean"] == pytest.approx(sum(right) / TASKS)
    assert 0 < sum(right) < TASKS
    assert arms["large"]["quality"]["mean"] == 1
    assert arms["small"]["cost"]["mean"] < arms["cascade"]["cost"]["mean"]
    assert arms["cascade"]["escalated"] > 0
    assert sum(arm["cost"]["total"] for arm in arms.values()) == pytest.approx(spent)
    lines = await service.http.get(f"/v1/experiments/{made['id']}/report?format=csv", timeout=120)
    rows = list(csv.DictReader(io.StringIO(lines.text)))
    assert len(rows) == 3 * TASKS
    jobs = {cell["job"] for cell in cells}
    assert len(jobs) == len(rows)
    job = (await service.http.get(f"/v1/jobs/{cells[0]['job']}")).json()
    assert job["metadata"]["kind"] == "sums"

"""Reports of experiments over HTTP: made apart from the server, the same however often they are asked for."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import time
import tomllib
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from executor.experiments.experiment_file import experiment_of
from executor.experiments.grading.graders import grade_all
from executor.experiments.recorded.arm import recorded_outcomes
from executor.experiments.report.build import report_of as report_of_cells
from executor.service import experiment_reports
from tests.support.experiments import TARGETS, created, got, live, recorded, until
from tests.support.service import Service, running
from tests.support.workers import sql


@pytest.fixture
async def service(database_url: str, tmp_path: Path) -> AsyncIterator[Service]:
    async with running(database_url, data_dir=tmp_path) as started:
        yield started


async def report_of(service: Service, experiment: dict[str, Any], form: str = "json", status: int = 200) -> Any:
    reply = await service.http.get(f"/v1/experiments/{experiment['id']}/report?format={form}", timeout=120)
    assert reply.status_code == status, reply.text
    return reply


async def test_recorded_answers_are_reported_without_a_job(service: Service) -> None:
    made = await created(service.http, recorded())
    assert (made["status"], made["cells"], made["counts"]["total"], made["counts"]["recorded"]) == ("ended", 9, 0, 9)
    report = (await report_of(service, made)).json()
    assert {arm["name"]: round(arm["quality"]["mean"], 3) for arm in report["arms"]} == {
        "weak": 0.333, "strong": 0.667, "cascade": 0.667,
    }  # fmt: skip
    assert report["experiment"]["started_at"] == pytest.approx(time.time(), abs=120)
    found = await got(service.http, made)
    assert found["conclusion"] == report["conclusion"]
    assert report["conclusion"]
    assert (await service.http.get("/v1/experiments")).json()["data"][0]["conclusion"] == report["conclusion"]
    assert (await report_of(service, made)).json() == report


async def test_every_form_holds_the_same(service: Service) -> None:
    made = await created(service.http, recorded(name="of-tests"))
    json_, csv_, html, markdown = [await report_of(service, made, form) for form in ("json", "csv", "html", "markdown")]
    lines = list(csv.DictReader(io.StringIO(csv_.text)))
    assert {(line["arm"], line["task"]) for line in lines} == {
        (arm, task) for arm in ("weak", "strong", "cascade") for task in TARGETS
    }
    for text in (html.text, markdown.text):
        assert json_.json()["conclusion"][:30] in unescape(text).replace("\u00a0", " ")
    for reply, kind, place in (
        (json_, "application/json", "inline"), (csv_, "text/csv; charset=utf-8", "attachment"),
        (html, "text/html; charset=utf-8", "inline"), (markdown, "text/markdown; charset=utf-8", "attachment"),
    ):  # fmt: skip
        assert reply.headers["content-type"] == kind
        assert reply.headers["content-disposition"].startswith(f'{place}; filename="of-tests.')
        assert reply.headers["content-security-policy"].startswith("sandbox; default-src 'none';")
        assert "allow-" not in reply.headers["content-security-policy"]
        assert reply.headers["cache-control"] == "private, no-store"
        assert reply.headers["x-content-type-options"] == "nosniff"
    assert (await report_of(service, made, "pdf", 422)).json()["code"] == "validation"


async def test_a_report_of_what_has_not_begun_to_end(service: Service) -> None:
    made = await created(service.http, live("small", count=1))
    assert (await report_of(service, made, status=409)).json()["code"] == "nothing_ended"
    assert (await got(service.http, made))["report_problem"] is None


async def test_recorded_arms_are_reported_while_others_run(service: Service) -> None:
    body = recorded()
    body["arms"]["small"] = {"mode": "react"}
    made = await created(service.http, body)
    report = (await report_of(service, made)).json()
    arms = {arm["name"]: arm for arm in report["arms"]}
    assert (arms["small"]["n_cells"], arms["small"]["missing"], arms["strong"]["n_cells"]) == (0, 3, 3)
    assert (await got(service.http, made))["conclusion"] is None


async def test_a_report_is_made_by_itself_once_all_has_ended(service: Service) -> None:
    made = await created(service.http, recorded())
    async with asyncio.timeout(60):
        while (found := await got(service.http, made))["conclusion"] is None:
            await asyncio.sleep(0.1)
    assert found["report_problem"] is None


async def test_a_report_that_takes_too_long_is_given_up(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment_reports, "PATIENCE", 0.01)
    made = await created(service.http, recorded())
    assert (await report_of(service, made, status=503)).json()["code"] == "report_took_too_long"
    monkeypatch.undo()
    found = await got(service.http, made)
    assert (found["report_problem"]["code"], found["conclusion"]) == ("report_took_too_long", None)
    assert (await report_of(service, made, status=503)).json()["code"] == "report_took_too_long"  # for good


async def test_whoever_asks_and_leaves_leaves_nothing_behind(service: Service) -> None:
    body = recorded(reference="weak")
    made = await created(service.http, {**body, "arms": {"weak": {"among": ["weak"]}, "live": {"mode": "react"}}})
    asked = asyncio.create_task(report_of(service, made))
    await asyncio.sleep(0.3)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert (await report_of(service, made)).json()["arms"][0]["n_cells"] == 3


async def test_where_a_library_is_missing_it_says_what_to_install(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("scipy", "numpy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise ModuleNotFoundError('none', name={name!r})")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = await created(service.http, recorded())
    problem = (await report_of(service, made, status=501)).json()
    assert problem["code"] == "not_installed"
    assert "dagwright[experiments]" in problem["detail"]
    assert (await got(service.http, made))["report_problem"] is None  # it may be installed yet
    monkeypatch.delenv("PYTHONPATH")
    assert (await report_of(service, made)).json()["conclusion"]


async def test_the_child_knows_no_secret(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hunter2")
    monkeypatch.setenv("DATABASE_URL", "postgresql://hunter2")
    assert "hunter2" not in str(service.app.state.reports._environment())


async def test_what_a_cell_left_that_nobody_can_read_is_a_failure(service: Service) -> None:
    made = await created(service.http, live("small", count=1))
    await sql(
        service.database,
        "update dw_jobs set status = 'completed', held = false, started_at = now(), ended_at = now(), "
        "summary = '{\"usage\": {\"cost_usd\": null, \"partial\": true}, \"of\": \"another version\"}'",
    )  # fmt: skip
    report = (await report_of(service, await until(service.http, made))).json()
    assert (report["arms"][0]["failures"], report["arms"][0]["quality"]["mean"]) == (1, 0.0)


async def test_a_file_and_a_request_come_to_the_same_report(service: Service) -> None:
    """The example with recorded answers, its rows in the request."""
    folder = Path(__file__).parents[2] / "examples" / "routing"
    body = tomllib.loads((folder / "gsm8k.toml").read_text())
    del body["arms"]["learned"]  # a file of the server's
    given = list(csv.DictReader(io.StringIO((folder / "gsm8k_excerpt.csv").read_text())))
    del body["experiment"]["data"]
    with_files = {**body, "experiment": {**body["experiment"], "data": str(folder / "gsm8k_excerpt.csv")}}
    experiment = experiment_of(with_files, base=folder)
    outcomes = [outcome for arm in experiment.arms for outcome in recorded_outcomes(experiment, arm)]
    expected = report_of_cells(experiment, outcomes, await grade_all(experiment, outcomes)).to_json()

    body["experiment"]["tasks"] = {"rows": [{"n": f"gsm8k_excerpt-{at}", "prompt": row["prompt"]} for at, row in
                                            enumerate(given, 1)], "input": "prompt", "id": "n"}  # fmt: skip
    for model in body["recorded"].values():
        del model["file"]
        model["rows"] = [{name: row[name] for name in ("prompt", model["answer"], model["score"])} for row in given]
    made = await created(service.http, body)
    assert made["counts"]["recorded"] == len(given) * len(experiment.arms) > 1_000
    report = (await report_of(service, made)).json()
    assert report | {"experiment": None} == json.loads(json.dumps(expected)) | {"experiment": None}
    assert [router["arm"] for router in report["routers"]] == ["longest"]

"""`dagwright experiment report` and `compare`, on real folders of runs."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path

import pytest

from executor.cli import main
from executor.experiments.folder import Folder

EXAMPLE = Path(__file__).parents[2] / "examples" / "routing" / "gsm8k.toml"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of the project's example; the second one with another threshold."""
    path = tmp_path_factory.mktemp("runs")
    other = path / "other.toml"
    text = EXAMPLE.read_text().replace('data = "', f'data = "{EXAMPLE.parent}/')
    text = text.replace('"gsm8k.policy.json"', f'"{EXAMPLE.parent}/gsm8k.policy.json"')
    other.write_text(text.replace("threshold = 240", "threshold = 60"))
    assert main(["experiment", "run", str(EXAMPLE), "--output", str(path / "one"), "--no-report"]) == 0
    assert main(["experiment", "run", str(other), "--output", str(path / "two")]) == 0
    assert main(["experiment", "grade", str(path / "one")]) == 0
    return path


def test_all_files_are_written_and_the_text_is_shown(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs / "one"
    assert main(["experiment", "report", str(folder)]) == 0
    shown = capsys.readouterr()
    data = json.loads((folder / "report.json").read_text())
    assert shown.out.startswith("gsm8k\n")
    assert " ".join(shown.out.split()).endswith(data["conclusion"])
    assert data["experiment"]["started_at"] == Folder.open(folder).started_at
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    markdown = (folder / "report.md").read_text()
    for name in ("plots/cost.svg", "plots/routers.svg"):
        assert name in markdown
        assert (folder / name).read_text().startswith("<svg")
    rows = list(csv.DictReader(StringIO((folder / "report.csv").read_text())))
    assert len(rows) == data["experiment"]["ended"]
    assert len(list(csv.DictReader(StringIO((folder / "report_arms.csv").read_text())))) == len(data["arms"])


def test_a_report_again_is_the_same(runs: Path) -> None:
    folder = runs / "two"
    names = ("report.json", "report.md", "report.html", "report.csv", "plots/cost.svg", "plots/routers.svg")
    before = {name: (folder / name).read_bytes() for name in names}
    assert main(["experiment", "report", str(folder)]) == 0
    assert {name: (folder / name).read_bytes() for name in names} == before


@pytest.mark.parametrize(
    ("form", "begins"),
    [("text", "gsm8k\n"), ("markdown", "# gsm8k"), ("html", "<!doctype"), ("csv", "arm,"), ("json", "{")],
)
def test_one_form_alone(form: str, begins: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "report", str(runs / "two"), "--format", form]) == 0
    out = capsys.readouterr().out
    assert out.startswith(begins)
    file = tmp_path / "report.out"
    assert main(["experiment", "report", str(runs / "two"), "--format", form, "--output", str(file)]) == 0
    assert file.read_text() == out
    assert capsys.readouterr().out == ""


def test_the_form_goes_by_the_files_name(runs: Path, tmp_path: Path) -> None:
    assert main(["experiment", "report", str(runs / "two"), "--output", str(tmp_path / "x.html")]) == 0
    assert (tmp_path / "x.html").read_text().startswith("<!doctype")
    assert main(["experiment", "report", str(runs / "two"), "--output", str(tmp_path / "x")]) == 2
    assert main(["experiment", "report", str(runs / "two"), "--output", str(tmp_path / "no" / "x.md")]) == 2


def test_json_on_stdout(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "report", str(runs / "two"), "--json"]) == 0
    assert "conclusion" in json.loads(capsys.readouterr().out)


def test_what_is_wrong_is_said(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "report", str(tmp_path)]) == 2
    assert "is no run's folder" in capsys.readouterr().err
    assert main(["experiment", "report", str(runs / "two"), "--margin", "none"]) == 2
    assert "--margin none: must be a number of points" in capsys.readouterr().err
    assert main(["experiment", "compare", str(runs / "two"), str(runs / "two")]) == 2
    assert "is both of them" in capsys.readouterr().err


def test_two_runs_are_compared(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = str(runs / "one"), str(runs / "two")
    assert main(["experiment", "compare", one, two]) == 0
    text = capsys.readouterr().out
    assert "longest is another arm now: its routing changed." in text
    assert "longest costs" in text.replace("\n", " ")
    assert main(["experiment", "compare", one, two, "--json"]) == 0
    arms = {arm["arm"]: arm for arm in json.loads(capsys.readouterr().out)["arms"]}
    assert arms["weak"]["quality"]["difference"] == 0
    assert arms["longest"]["cost"]["ratio"]["low"] > 1


def test_the_report_in_docs_is_made_by_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.routing_report import main as make

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "gsm8k_responses.csv").write_bytes((EXAMPLE.parent / "gsm8k_excerpt.csv").read_bytes())
    assert make(["--data", str(tmp_path / "data"), "--output", str(tmp_path)]) == 0
    text = (tmp_path / "routing-report.md").read_text()
    assert "70 tasks x 13 arms" in text
    assert "| learned |" in text
    for name in ("cost", "routers"):
        assert f"(images/routing/{name}.svg)" in text
        assert (tmp_path / "images" / "routing" / f"{name}.svg").read_text().startswith("<svg")
    told = capsys.readouterr().out.strip()
    assert told == text.strip().splitlines()[-1].replace("\\", "")
    assert make(["--data", str(tmp_path / "none")]) == 2

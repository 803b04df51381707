"""What a report holds: figures, baselines, what is missing; in every form the same."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from decimal import Decimal
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest

from executor.experiments import needs
from executor.experiments.report.build import report_of
from executor.experiments.report.files import FORMATS, render
from executor.experiments.report.plot_labels import Box, Label, covered, placed
from executor.experiments.report.plots import cost_plot, router_plot
from executor.experiments.report.render_csv import render_arms_csv, render_csv
from executor.experiments.report.render_html import render_html
from executor.experiments.report.render_markdown import render_markdown
from executor.experiments.report.render_text import render_text
from executor.experiments.report.types import Report
from executor.experiments.types import Arm, Cell, Experiment, Grade, GraderSpec, Outcome, Task
from registry.errors import ConfigError
from registry.messages import Usage
from tests.support.experiment_results import Made, Results, recorded, recorded_results, results

ARMS = {
    "small": Made(0.62, 0.0005, "fixed:small"),
    "large": Made(0.86, 0.01, "fixed:large"),
    "cascade": Made(0.84, 0.004, "cascade", escalates=0.4, fails=0.03),
}
HOSTILE = 'a|b <script>alert("x")</script> $1$ `c` [d](javascript:e) *f* \x1b[31m'


@pytest.fixture(scope="module")
def made() -> Results:
    return results(ARMS, tasks=120, repeats=2, kinds=("math", "law"))


@pytest.fixture(scope="module")
def jobs(made: Results) -> Report:
    return report_of(made.experiment, made.outcomes, made.grades)


@pytest.fixture(scope="module")
def on_file() -> Report:
    found = recorded_results(recorded())
    return report_of(found.experiment, found.outcomes, found.grades)


def test_each_arms_figures(made: Results, jobs: Report) -> None:
    for arm in jobs.arms:
        own = [outcome for outcome in made.outcomes if outcome.cell.arm == arm.name]
        scores = [grade.score for grade in made.grades if grade.cell.arm == arm.name]
        assert arm.quality is not None
        assert arm.quality.mean == pytest.approx(sum(map(float, filter(None, scores))) / 240)
        assert arm.quality.low < arm.quality.mean < arm.quality.high
        assert arm.cost is not None
        assert arm.cost.total == pytest.approx(float(sum(one.cost or 0 for one in own)))
        assert arm.cost.mean == pytest.approx(arm.cost.total / 240)
        assert (arm.n_tasks, arm.n_cells, arm.missing, arm.ungraded) == (120, 240, 0, 0)
        assert arm.failures == sum(one.status == "failed" for one in own) == arm.statuses.get("failed", 0)
        assert arm.escalated == sum(one.escalated for one in own)
        assert arm.replans == sum(one.rounds - 1 for one in own)
        assert arm.tokens["planner"] == {"input": 200 * 240, "output": 60 * 240}
        assert arm.latency is not None
        times = sorted(one.latency or 0 for one in own)
        assert times[118] <= arm.latency.p50 <= times[121]
        assert arm.latency.n == 240


def test_the_reference_is_the_best_single_model_unless_one_is_named(made: Results, jobs: Report) -> None:
    assert jobs.head.reference == "large"
    assert {one.arm for one in jobs.differences} == {"small", "cascade"}
    named = replace(made.experiment, reference="small")
    assert {one.other for one in report_of(named, made.outcomes, made.grades).differences} == {"small"}


def test_p_values_are_corrected_for_all_pairs(jobs: Report) -> None:
    assert jobs.head.pairs == 3
    assert all(one.p_corrected >= one.p for one in jobs.differences)


def test_baselines_stand_beside(on_file: Report) -> None:
    best, random, oracle = on_file.baselines
    weak, strong = on_file.arm("weak").quality, on_file.arm("strong").quality
    assert weak is not None
    assert strong is not None
    assert (best.name, best.of, best.quality.mean) == ("best single", ("strong",), strong.mean)
    assert random.quality.mean == pytest.approx((weak.mean + strong.mean) / 2)
    assert random.cost == pytest.approx((0.0004 + 0.01) / 2)
    assert oracle.quality.mean > strong.mean
    assert oracle.cost is not None
    assert oracle.cost < 0.01


def test_the_part_of_the_gap_that_is_recovered(on_file: Report) -> None:
    assert (on_file.arm("weak").pgr, on_file.arm("strong").pgr) == (0.0, 1.0)
    weak, strong, own = (on_file.arm(name).quality for name in ("weak", "strong", "longest[threshold=250]"))
    assert weak is not None
    assert strong is not None
    assert own is not None
    found = (own.mean - weak.mean) / (strong.mean - weak.mean)
    assert on_file.arm("longest[threshold=250]").pgr == pytest.approx(found)


def test_one_curve_for_all_thresholds(on_file: Report) -> None:
    (router,) = on_file.routers
    assert (router.arm, router.weak, router.strong) == ("longest", "weak", "strong")
    assert router.apgr is not None
    assert 0.5 < router.apgr.low < router.apgr.mean < router.apgr.high < 1
    assert list(router.cpt) == ["50", "80", "95"]
    assert router.oracle_apgr is not None
    assert router.oracle_apgr > router.apgr.high
    assert [point.share for point in router.curve] == [i / 100 for i in range(101)]
    assert all(point.low <= point.quality <= point.high for point in router.curve)


def test_the_front_has_what_nothing_beats(jobs: Report) -> None:
    points = {arm.name: (arm.cost.whole, arm.quality.mean) for arm in jobs.arms if arm.cost and arm.quality}
    for arm in jobs.arms:
        cost, quality = points[arm.name]
        assert cost is not None
        beaten = any(other[0] < cost and other[1] >= quality for name, other in points.items()
                     if name != arm.name and other[0] is not None)  # fmt: skip
        assert arm.pareto is not beaten


def test_parts_by_kind(made: Results, jobs: Report) -> None:
    assert list(jobs.kinds) == ["law", "math"]
    tasks = {task.id for task in made.experiment.tasks if task.kind == "law"}
    scores = [grade.score for grade in made.grades if grade.cell.arm == "large" and grade.cell.task in tasks]
    part = jobs.kinds["law"]["large"]
    assert part.quality is not None
    assert part.n == 60
    assert part.quality.mean == pytest.approx(sum(map(float, filter(None, scores))) / 120)


# What is missing


def test_cells_that_are_missing_or_not_graded_are_told(made: Results) -> None:
    grades = [replace(grade, score=None) if grade.cell == Cell("small", "t0003", 1) else grade for grade in made.grades]
    found = report_of(made.experiment, made.outcomes[:-7], grades)
    assert found.arm("cascade").missing == 7
    assert found.arm("small").ungraded == 1
    assert found.notes[0] == ("7 of 720 cells have not ended (cascade 7): the figures are of those that have.")
    assert "Cells that ended but have no score are left out of the quality: small 1 of 240." in found.notes


def test_an_unknown_cost_is_never_0(made: Results) -> None:
    outcomes = [
        replace(one, cost=None) if one.cell.arm == "large"
        else replace(one, usage=replace(one.usage or Usage.zero(), partial=True))
        if one.cell == Cell("small", "t0001", 1) else one
        for one in made.outcomes
    ]  # fmt: skip
    found = report_of(made.experiment, outcomes, made.grades)
    assert found.arm("large").cost is None
    small = found.arm("small").cost
    assert small is not None
    assert (small.unknown, small.partial, small.whole) == (1, True, None)
    assert all(one.ratio is None for one in found.differences)
    assert not found.arm("small").pareto
    assert "What it cost is not known: large." in found.notes
    assert any(note.startswith("A part of the cost is not known (small 1 of 240 cells)") for note in found.notes)
    text = render_text(found)
    assert "unknown" in text
    assert found.to_json()["arms"][1]["cost"] is None


def test_replies_from_the_cache_are_left_out_of_times(made: Results) -> None:
    outcomes = [replace(one, cached_calls=2, latency=0.001) if one.cell.repeat == 1 else one for one in made.outcomes]
    found = report_of(made.experiment, outcomes, made.grades)
    latency = found.arm("large").latency
    assert latency is not None
    assert latency.n == 120
    assert latency.p50 > 1
    assert any(
        note.startswith("Times are of cells without replies from the cache: small 120 of 240") for note in found.notes
    )


def test_tasks_of_one_arm_alone_are_paired_out(made: Results) -> None:
    grades = [grade for grade in made.grades if not (grade.cell.arm == "small" and grade.cell.task < "t0010")]
    found = report_of(made.experiment, made.outcomes, grades)
    (small,) = [one for one in found.differences if one.arm == "small"]
    assert small.n_tasks == 110
    assert any("are left out of its pairs: small 10 of 120" in note for note in found.notes)


def test_nothing_at_all() -> None:
    empty = Experiment("none", (), (Arm("a"), Arm("b")), GraderSpec("exact"))
    found = report_of(empty, (), ())
    for form in FORMATS:
        assert render(form, found, empty, (), ())
    task = Experiment("one", (Task("t", "x"),), (Arm("a"),), GraderSpec("exact"))
    cell = Cell("a", "t", 1)
    one = report_of(task, [Outcome(cell, "completed", cost=Decimal("0.1"))], [Grade(cell, 1.0)])
    for form in FORMATS:
        assert render(form, one, task, [Outcome(cell, "completed")], [Grade(cell, 1.0)])


def test_the_same_data_and_seed_give_the_same_report(made: Results, jobs: Report) -> None:
    backwards = report_of(made.experiment, made.outcomes[::-1], made.grades[::-1])
    assert backwards == jobs
    assert cost_plot(backwards) == cost_plot(jobs)
    assert render_html(backwards) == render_html(jobs)


# Forms


def test_json_holds_what_the_shape_says(on_file: Report) -> None:
    data = json.loads(json.dumps(on_file.to_json(), allow_nan=False))
    assert {"experiment", "arms", "baselines", "differences", "best", "routers", "kinds", "conclusion", "notes"} == set(
        data
    )
    assert {"mean", "low", "high", "total", "partial"} <= set(data["arms"][0]["cost"])
    assert {"difference", "low", "high", "p", "p_corrected"} <= set(data["differences"][0]["quality"])
    assert {"share", "quality", "cost"} <= set(data["routers"][0]["curve"][0])
    assert data["best"]["arm"] == on_file.best.arm  # type: ignore[union-attr]


def test_csv_has_a_line_per_cell_with_exact_costs(made: Results) -> None:
    rows = list(csv.DictReader(StringIO(render_csv(made.experiment, made.outcomes, made.grades))))
    assert len(rows) == len(made.outcomes)
    of = {(row["arm"], row["task"], int(row["repeat"])): row for row in rows}
    for outcome, grade in zip(made.outcomes, made.grades, strict=True):
        row = of[outcome.cell]
        assert Decimal(row["cost_usd"]) == outcome.cost
        assert float(row["score"]) == grade.score
        assert float(row["latency_s"]) == outcome.latency
        assert row["status"] == outcome.status
        assert int(row["tokens_step_in"]) == outcome.by_role["step"].input_tokens
    unknown = render_csv(made.experiment, [replace(made.outcomes[0], cost=None, latency=None)], ())
    (row,) = csv.DictReader(StringIO(unknown))
    assert (row["cost_usd"], row["latency_s"], row["score"]) == ("", "", "")


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@sum", "\t=1", "\n=1"])
def test_no_text_in_csv_is_a_formula(name: str, made: Results, jobs: Report) -> None:
    task = replace(made.experiment.tasks[0], id=name, metadata={"kind": name})
    cell = made.outcomes[0].cell._replace(task=name)
    outcome = replace(made.outcomes[0], cell=cell, models={name: 1}, error_code=name)
    experiment = replace(made.experiment, tasks=(task,))
    text = render_csv(experiment, [outcome], [Grade(cell, 1.0, name)])
    (row,) = csv.DictReader(StringIO(text, newline=""))
    assert (row["task"], row["kind"], row["error_code"]) == (f"'{name}",) * 3
    assert row["models"] == f"'{name}=1"
    assert row["grade_reason"] == f"'{name.strip()}"
    arms = replace(jobs, arms=(replace(jobs.arms[0], name=name),))
    (row,) = csv.DictReader(StringIO(render_arms_csv(arms), newline=""))
    assert row["arm"] == f"'{name}"


def test_a_cell_is_one_line_in_csv_whatever_its_names(made: Results) -> None:
    task = replace(made.experiment.tasks[0], id="a\r=1\x1b[2J\u202e\ud800")
    outcome = replace(made.outcomes[0], cell=made.outcomes[0].cell._replace(task=task.id))
    text = render_csv(replace(made.experiment, tasks=(task,)), [outcome], ())
    (row,) = csv.DictReader(StringIO(text, newline=""))
    assert row["task"] == r"a\u000d=1\u001b[2J\u202e\ud800"


def test_no_text_moves_the_terminal(jobs: Report) -> None:
    evil = "a\x1b[2J\u202eb"
    report = replace(jobs, arms=(replace(jobs.arms[0], name=evil),), notes=(evil,), conclusion=evil)
    text = render_text(report)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert text.count(r"\u001b[2J\u202eb") >= 2


def test_arms_as_csv(jobs: Report) -> None:
    rows = list(csv.DictReader(StringIO(render_arms_csv(jobs))))
    assert [row["arm"] for row in rows] == [arm.name for arm in jobs.arms]
    assert float(rows[0]["quality"]) == jobs.arms[0].quality.mean  # type: ignore[union-attr]


@pytest.mark.parametrize("width", [80, 120])
def test_text_keeps_to_its_width(width: int, jobs: Report, on_file: Report) -> None:
    for report in (jobs, on_file):
        text = render_text(report, width)
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text
        assert text.rstrip().endswith(report.conclusion[-10:])
        for arm in report.arms:
            assert arm.name in text
    assert "x 0.0" in render_text(jobs, width)


def hostile() -> tuple[Experiment, list[Outcome], list[Grade]]:
    tasks = tuple(Task(f"{HOSTILE}{i}", "x", metadata={"kind": HOSTILE}) for i in range(8))
    experiment = Experiment(HOSTILE, tasks, (Arm(HOSTILE), Arm("plain")), GraderSpec("exact"))
    cells = [Cell(arm.name, task.id, 1) for arm in experiment.arms for task in tasks]
    outcomes = [Outcome(cell, HOSTILE, cost=Decimal("0.1"), models={HOSTILE: 1}, latency=1.0) for cell in cells]
    return experiment, outcomes, [Grade(cell, float(i % 3 == 0), reason="=1+1") for i, cell in enumerate(cells)]


class _Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def test_html_is_whole_by_itself_and_escapes_everything(on_file: Report) -> None:
    experiment, outcomes, grades = hostile()
    for report in (on_file, report_of(experiment, outcomes, grades)):
        page = render_html(report)
        seen = _Seen()
        seen.feed(page)
        assert not {"script", "link", "img", "iframe", "object", "form", "base"} & set(seen.tags)
        assert all(address.startswith("#") for address in seen.addresses)
        assert not seen.handlers
        assert "@import" not in page
        assert 'url("http' not in page.replace("'", '"')
        assert "default-src 'none'" in page
        assert "prefers-color-scheme: dark" in page
    assert "&lt;script&gt;" in page


def test_ids_are_told_apart_between_pictures(on_file: Report) -> None:
    seen: list[str] = []

    class Ids(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            seen.extend(value or "" for name, value in attrs if name == "id")

    Ids().feed(render_html(on_file))
    assert len(seen) == len(set(seen))


def test_markdown_is_escaped() -> None:
    experiment, outcomes, grades = hostile()
    text = render_markdown(report_of(experiment, outcomes, grades))
    assert "<script>" not in text
    assert not re.search(r"(?<!\\)\]\(javascript", text)
    assert "\x1b" not in text
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("| ")]
    assert len(blocks) >= 3
    for rows in blocks:
        fields = [len(re.findall(r"(?<!\\)\|", row)) for row in rows]
        assert len(set(fields)) == 1, rows


def test_pictures_are_well_formed_and_show_their_intervals(jobs: Report, on_file: Report) -> None:
    experiment, outcomes, grades = hostile()
    for picture in (
        cost_plot(jobs),
        cost_plot(on_file),
        router_plot(on_file),
        cost_plot(report_of(experiment, outcomes, grades)),
    ):
        assert picture is not None
        root = ElementTree.fromstring(picture)
        assert root.tag.endswith("svg")
        assert "<script" not in picture
        assert "var(--ink" in picture
    text = "".join(ElementTree.fromstring(cost_plot(on_file) or "").itertext())
    assert "the axis begins at" in text
    assert "random mixture, expected" in text
    assert "oracle" in text
    assert router_plot(jobs) is None
    assert cost_plot(report_of(experiment, [], [])) is None


def test_the_quality_axis_begins_at_0_where_the_figures_fill_it() -> None:
    made = results({"a": Made(0.1, 0.001), "b": Made(0.5, 0.002)}, tasks=100)
    text = "".join(
        ElementTree.fromstring(cost_plot(report_of(made.experiment, made.outcomes, made.grades)) or "").itertext()
    )
    assert "the axis begins at" not in text


def test_labels_keep_apart() -> None:
    labels = [Label(f"label {i}", 200 + 6 * i, 150 + 3 * i) for i in range(6)]
    frame = Box(0, 0, 500, 300)
    line = list(covered([(0.0, 100.0), (500.0, 220.0)]))
    places = placed(labels, line, frame, 12)
    boxes = [Box(label.x + dx, label.y + dy, label.x + dx + 0.58 * 12 * len(label.text), label.y + dy + 15)
             for label, (dx, dy) in zip(labels, places, strict=True)]  # fmt: skip
    for i, one in enumerate(boxes):
        assert one.outside(frame) == 0
        assert all(one.overlap(two) == 0 for two in boxes[i + 1 :])


def test_a_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(needs, "import_module", missing)
    with pytest.raises(ConfigError, match=r'pip install "dagwright\[experiments\]"'):
        needs.needed("scipy.stats")


def test_the_example_from_its_file_to_its_report() -> None:
    """The project's own example, from its file to its report."""
    from executor.experiments.experiment_file import read_experiment

    example = Path(__file__).parents[2] / "examples" / "routing" / "gsm8k.toml"
    found = recorded_results(read_experiment(example))
    report = report_of(found.experiment, found.outcomes, found.grades)
    assert {arm.name for arm in report.arms} >= {"weak", "strong", "longest", "cascade[checker=0.9]"}
    assert report.routers
    assert all(arm.cost is not None and arm.quality is not None for arm in report.arms)
    assert report.conclusion.startswith(("Use ", "With "))

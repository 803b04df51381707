"""The examples of routing, by the real command, offline; and their answers judged again, by rules and by a model."""

from __future__ import annotations

import asyncio
import csv
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from executor.command.experiment_grade import grader_given
from executor.experiments.experiment_file import read_experiment
from executor.experiments.folder import Folder
from executor.experiments.run.experiment import run_experiment
from registry.errors import ConfigError, UsageError
from tests.fakes import ProviderFake
from tests.fakes.view import View
from tests.support.command import ROOT, Ended, command, environment, openai, started

EXAMPLES = ROOT / "examples" / "routing"
WEAK, STRONG = "mistralai/Mixtral-8x7B-Instruct-v0.1", "gpt-4-1106-preview"


def rows(*files: Path) -> list[dict[str, str]]:
    return [row for file in files for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines(keepends=True))]


def by_counting(scores: list[float], weak: list[int], strong: list[int]) -> float:
    """APGR by its definition: the mean gap recovered over 0 to n strong calls; ties share their gains evenly."""
    order = sorted(set(scores), reverse=True)
    quality, total = [float(sum(weak))], float(sum(weak))
    for score in order:
        gains = [b - a for one, a, b in zip(scores, weak, strong, strict=True) if one == score]
        for _ in gains:
            total += sum(gains) / len(gains)
            quality.append(total)
    gap = sum(strong) - sum(weak)
    return sum((value - sum(weak)) / gap for value in quality) / len(quality)


async def run(home: Path, *words: str) -> Ended:
    return await command("experiment", *words, home=home, env=environment(home))


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("gsm8k", [EXAMPLES / "gsm8k_excerpt.csv"]),
        ("mmlu", sorted((EXAMPLES / "mmlu_excerpt").glob("*.csv"))),
    ],
)
async def test_an_example_reports_what_its_answers_say(tmp_path: Path, name: str, files: list[Path]) -> None:
    ended = await run(tmp_path, "run", str(EXAMPLES / f"{name}.toml"), "--json")
    assert ended.code == 0, ended.err
    report = json.loads((tmp_path / "runs" / name / "report.json").read_text())
    found = rows(*files)
    weak, strong = ([int(row[model] == "True") for row in found] for model in (WEAK, STRONG))
    arms = {arm["name"]: arm for arm in report["arms"]}
    assert arms["weak"]["quality"]["mean"] == pytest.approx(sum(weak) / len(weak))
    assert arms["strong"]["quality"]["mean"] == pytest.approx(sum(strong) / len(strong))
    assert arms["cascade[checker=1.0]"]["quality"]["mean"] == pytest.approx(
        sum(a or b for a, b in zip(weak, strong, strict=True)) / len(weak)
    )
    routers = {router["arm"]: router["apgr"]["mean"] for router in report["routers"]}
    longest = by_counting([len(row["prompt"]) for row in found], weak, strong)
    assert routers["longest"] == pytest.approx(longest)
    if "oracle" in routers:
        gains = [float(b - a) for a, b in zip(weak, strong, strict=True)]
        assert routers["oracle"] == pytest.approx(by_counting(gains, weak, strong))
    baselines = {baseline["name"]: baseline["quality"]["mean"] for baseline in report["baselines"]}
    assert baselines["random"] == pytest.approx((sum(weak) + sum(strong)) / 2 / len(weak))


# Judged again

EXPERIMENT = """
[experiment]
name = "sums"
tasks = {file = "sums.jsonl", input = "question", id = "id", target = "answer"}
[grader]
use = "recorded"
[recorded.weak]
file = "sums.jsonl"
id = "id"
answer = "weak"
score = "right"
model = "vendor/weakling"
[arms.weak]
among = ["weak"]
"""
SUMS = [
    {"id": "one", "question": "What is 1 + 1?", "answer": 2, "weak": "It is 2.", "right": True},
    {"id": "two", "question": "What is 2 + 2?", "answer": 4, "weak": "2 + 2 = 5", "right": True},
    {"id": "three", "question": "What is 3 + 3?", "answer": 6, "weak": "Six.", "right": False},
]


def sums(home: Path) -> None:
    (home / "sums.toml").write_text(EXPERIMENT)
    (home / "sums.jsonl").write_text("".join(json.dumps(one) + "\n" for one in SUMS))


async def ran(home: Path) -> None:
    """The run that is judged, in this process: starting one takes longer than all of it."""
    end = await run_experiment(read_experiment(home / "sums.toml"), Folder(home / "runs" / "sums"), None)
    assert end.status == "done"


def scores(home: Path) -> dict[str, float | None]:
    lines = (home / "runs" / "sums" / "grades.jsonl").read_text().splitlines()
    return {grade["task"]: grade["score"] for grade in map(json.loads, lines)}


async def test_answers_are_judged_again_by_other_rules_and_the_files_may_have_moved(tmp_path: Path) -> None:
    sums(tmp_path)
    assert (await run(tmp_path, "run", "sums.toml")).code == 0
    assert scores(tmp_path) == {"one": 1, "two": 1, "three": 0}
    (tmp_path / "sums.jsonl").unlink()
    ended = await run(tmp_path, "grade", "runs/sums", "--grader", "numeric", "--json")
    assert ended.code == 0, ended.err
    assert (ended.data["grader"], ended.data["graded"], ended.data["ungraded"]) == ("numeric", 3, 0)
    assert scores(tmp_path) == {"one": 1, "two": 0, "three": 0}
    (tmp_path / "other.toml").write_text('[grader]\nuse = "contains"\nignore = []\n')
    assert (await run(tmp_path, "grade", "runs/sums", "--grader", "other.toml", "--no-report")).code == 0
    assert scores(tmp_path) == {"one": 1, "two": 0, "three": 0}
    own = '{use = "regex", pattern = "^(it|six)", ignore_case = true}'
    assert (await run(tmp_path, "grade", "runs/sums", "--grader", own, "--no-report")).code == 0
    assert scores(tmp_path) == {"one": 1, "two": 0, "three": 1}
    again = await run(tmp_path, "grade", "runs/sums", "--no-report")  # the run has this grader from then on
    assert again.code == 0
    assert scores(tmp_path) == {"one": 1, "two": 0, "three": 1}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{use", "neither TOML nor JSON"),
        ("{}", "`use` is missing"),
        ("none.toml", "cannot be read"),
        ("empty.toml", "there is no table"),
        ("broken.toml", "not TOML"),
    ],
)
def test_a_wrong_grader_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.toml").write_text("")
    (tmp_path / "broken.toml").write_text("[")
    with pytest.raises((UsageError, ConfigError), match=told):
        grader_given(text)


async def test_a_grader_that_there_is_not_leaves_everything_as_it_was(tmp_path: Path) -> None:
    sums(tmp_path)
    await ran(tmp_path)
    ended = await run(tmp_path, "grade", "runs/sums", "--grader", "exakt")
    assert (ended.code, "did you mean 'exact'" in ended.err) == (2, True)
    assert not (tmp_path / "runs" / "sums" / "grades.jsonl").exists()
    assert (
        json.loads((tmp_path / "runs" / "sums" / "experiment.json").read_text())["source"]["grader"]["use"]
        == "recorded"
    )


def verdict(view: View) -> Any:
    """A judge that knows a sum: 5 for an answer with the reference's number in it, else 1."""
    parts = dict(re.findall(r"^<<\w+>> the (\w+)\n(.*?)\n<<\w+>> end of", view.last_text, re.DOTALL | re.MULTILINE))
    right = parts["reference"] in parts["answer"] or "Six" in parts["answer"]
    return [(view.forced, {"reasoning": "By the sum.", "grade": 5 if right else 1})]


async def test_a_model_judges_over_http_and_is_not_asked_twice(tmp_path: Path) -> None:
    sums(tmp_path)
    await ran(tmp_path)
    judge = ("grade", "runs/sums", "--grader", '{use = "judge", model = "general"}')
    async with ProviderFake(verdict) as fake:
        env = environment(tmp_path, **openai(fake))
        ended = await command("experiment", *judge, home=tmp_path, env=env)
        assert ended.code == 0, ended.err
        assert fake.refusals == []
        assert scores(tmp_path) == {"one": 1, "two": 0, "three": 1}
        assert len(fake.views) == 6
        assert (await run(tmp_path, "grade", "runs/sums", "--grader", "exact", "--no-report")).code == 0
        assert scores(tmp_path) == {"one": 0, "two": 0, "three": 0}
        again = await command("experiment", *judge, home=tmp_path, env=env)
        assert again.code == 0, again.err
        assert scores(tmp_path) == {"one": 1, "two": 0, "three": 1}
        assert len(fake.views) == 6
    grades = [json.loads(line) for line in (tmp_path / "runs" / "sums" / "grades.jsonl").read_text().splitlines()]
    assert {grade["details"]["agreed"] for grade in grades} == {True}


async def test_a_judge_of_the_family_of_those_who_answered_is_refused(tmp_path: Path) -> None:
    sums(tmp_path)
    (tmp_path / "sums.toml").write_text(EXPERIMENT.replace("vendor/weakling", "fake-small"))
    await ran(tmp_path)
    async with ProviderFake(verdict) as fake:
        env = environment(tmp_path, **openai(fake))
        judge = '{use = "judge", model = "general"}'
        ended = await command("experiment", "grade", "runs/sums", "--grader", judge, home=tmp_path, env=env)
        assert ended.code == 2
        assert "same family as 'weak'" in ended.err
        assert fake.views == []
        allowed = '{use = "judge", model = "general", allow_same_family = true}'
        ended = await command("experiment", "grade", "runs/sums", "--grader", allowed, home=tmp_path, env=env)
        assert ended.code == 0, ended.err
        assert "judges favour their own kind" in ended.out


async def test_judging_that_is_interrupted_goes_on_and_asks_nothing_twice(tmp_path: Path) -> None:
    sums(tmp_path)
    await ran(tmp_path)
    judge = ("experiment", "grade", "runs/sums", "--grader", '{use = "judge", model = "general"}')
    stuck = asyncio.Event()

    async def slowly(view: View) -> Any:
        if view.number > 3 and not stuck.is_set():
            stuck.set()
            await asyncio.sleep(60)
        return verdict(view)

    async with ProviderFake(slowly) as fake:
        env = environment(tmp_path, **openai(fake))
        process = await started(*judge, home=tmp_path, env=env)
        async with asyncio.timeout(30):
            await stuck.wait()
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(30):
            await process.communicate()
        assert process.returncode == 130
        asked = len(fake.views)
        ended = await command(*judge, home=tmp_path, env=env)
        assert ended.code == 0, ended.err
        assert scores(tmp_path) == {"one": 1, "two": 0, "three": 1}
        bodies = [json.dumps(body, sort_keys=True) for body in fake.requests]
        answered = bodies[: asked - 1]
        assert len(set(answered)) == len(answered)
        again = [body for body in bodies[asked:] if bodies.count(body) > 1]
        assert len(again) <= 3  # those that had no reply yet when it was interrupted: three cells at once


def test_the_excerpts_are_small_and_have_a_source() -> None:
    size = sum(path.stat().st_size for path in EXAMPLES.rglob("*.csv"))
    assert size < 240_000
    assert "Apache License 2.0" in (EXAMPLES / "SOURCE.md").read_text()

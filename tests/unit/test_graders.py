"""Graders by rule: what counts as right, what was read, and what is told of wrong tables."""

import asyncio
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.experiments.grading.graders import check_grader, grade_all, grader_of
from executor.experiments.grading.numbers import final_number
from executor.experiments.types import (
    Arm,
    Cell,
    Experiment,
    Grade,
    GraderSpec,
    Outcome,
    RecordedAnswer,
    RecordedModel,
    Task,
)
from registry.errors import ConfigError


def outcome(answer="", status="completed", task="t", **fields):
    return Outcome(Cell("arm", task, 1), status, answer, **fields)


async def grade(use, target, answer, **options):
    grader = grader_of(GraderSpec(use, options))
    return await grader.grade(Task("t", "?", target), outcome(answer))


async def score(use, target, answer, **options):
    return (await grade(use, target, answer, **options)).score


@pytest.mark.parametrize(
    ("target", "answer", "options", "right"),
    [
        ("Paris", "  paris\n", {}, 1),
        ("New  York", "new york", {}, 1),
        ("Paris", "Paris!", {}, 0),
        ("Paris", "Paris!", {"ignore": ["case", "punctuation"]}, 1),
        ("The Hague", "hague", {"ignore": ["case", "articles"]}, 1),
        ("Paris", "paris", {"ignore": []}, 0),
        ("Caf\u00e9", "cafe\u0301", {}, 1),
        ("a b", "a\u200b b", {}, 1),
        (["yes", "yep"], "Yep", {}, 1),
        (5, "5", {}, 1),
        (True, "true", {}, 1),
        ("\ud800x", "\ud800X", {}, 1),
    ],
)
async def test_exact(target, answer, options, right):
    assert await score("exact", target, answer, **options) == right


@pytest.mark.parametrize(
    ("target", "answer", "options", "right"),
    [
        ("Paris", "It is PARIS.", {}, 1),
        ("5", "15 and 56", {}, 0),
        ("5", "15 and 56", {"words": False}, 1),
        ("5", "15, or 5?", {}, 1),
        (["a", "b"], "b c", {}, 0),
        (["a", "b"], "b c", {"need": "any"}, 1),
        (["a", "b", "c"], "b c", {"need": "share"}, pytest.approx(2 / 3)),
        ("$5", "costs$5.", {}, 1),
        ("", "x", {}, 0),
    ],
)
async def test_contains(target, answer, options, right):
    assert await score("contains", target, answer, **options) == right


@pytest.mark.parametrize(
    ("target", "answer", "options", "right"),
    [
        (r"\d{4}", "in 1999.", {}, 1),
        (r"\d{4}", "in 99.", {}, 0),
        (r"\d{4}", " 1999\n", {"whole": True}, 1),
        (r"\d{4}|x", "in 1999", {"whole": True}, 0),
        ("paris", "PARIS", {"ignore_case": True}, 1),
        ("^b$", "a\nb", {"multiline": True}, 1),
        ("a.b", "a\nb", {"dotall": True}, 1),
        ("a.b", "a\nb", {}, 0),
        (None, "42", {"pattern": "4."}, 1),
        (None, "42", {}, None),
        ("(", "42", {}, None),
    ],
)
async def test_regex(target, answer, options, right):
    assert await score("regex", target, answer, **options) == right


async def test_a_pattern_that_explodes_elsewhere_takes_its_time_in_proportion():
    begun = time.monotonic()
    for pattern in (r"^(a+)+$", r"^(a|aa)+$", r"(.*a){20}x", r"^(\w+\s?)*$"):
        assert await score("regex", pattern, "a" * 200_000 + "!") == 0
    assert time.monotonic() - begun < 60
    assert "look-around" in (await grade("regex", "(?=a)b", "ab")).reason
    assert "at most 10,000 characters" in (await grade("regex", "a" * 10_001, "a")).reason
    assert "size limit" in (await grade("regex", "a{1000}{1000}{1000}", "a")).reason


NUMBERS = [
    ("18", 18), ("#### 18", 18), ("... makes $1,234.50.", 1234.5), ("1 1/2 cups", 1.5), ("3/4", 0.75), ("2\u00bd", 2.5),
    (r"\boxed{\frac{3}{4}}", 0.75), (r"So \boxed{5} of 7", 5), ("-5", -5), ("x = \u22127", -7), ("10-5", 5),
    ("5-10", 10), ("1.5e3", 1500), ("1.5 \u00d7 10^3", 1500), (r"2 \times 10^{-2}", 0.02), ("$1.2 million", 1_200_000),
    ("The answer is **18** dollars, which is 3 more", 18), ("130,00", 130), ("1,5", 1.5), ("1, 5", 5), ("-$5", -5),
    ("$-5", -5), ("1{,}000", 1000), ("Answer: 5\n\nNot 7", 5), ("12,34,567", 1_234_567), ("1\u202f000\u202f000", 1e6),
    ("Total: $5\n#### 6 apples", 6), ("12*3=<<12*3=36>>36 ", 36), ("#### 5*3 = 15", 15), ("\u0663\u0664", 34),
    ("answer is 3 out of 10", 3), ("#### \n\nNothing", None), ("none", None), ("1/0", None), ("1e999", None),
    (".5", 0.5), (".8,16", 16), ("1.5,16", 16), ("1,234,56", 1234.56),
    ("the answer is one; 7", 7), ("25 %", 25), ("\u22121/2", -0.5), ("v1.2.3", 1.2), ("#### -3.", -3),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), NUMBERS)
def test_the_final_number_of_an_answer(text, value):
    read = final_number(text)
    assert (read and read.value) == (value if value is None else pytest.approx(value))


@given(st.floats(-1e9, 1e9).map(lambda value: round(value, 2)))
def test_a_number_is_read_as_it_was_written(value):
    for text in (f"So it is {value:,.2f}.", f"#### {value:.2f}", f"{value:.2f}", f"= {value!r} in all"):
        assert final_number(text).value == pytest.approx(value)


PIECES = [*"0123456789,.+-/%$ e#{}*^()=", "\u00d7", "\u00bd", "\u202f", "\ud800", r"\frac{", r"\boxed{",
          "answer is ", "#### ", "10^", " million", " percent", "000", "\n"]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_whatever_looks_like_a_number_is_read_or_not(text):
    read = final_number(text)
    assert read is None or math.isfinite(read.value)


@given(st.text(max_size=60))
def test_any_text_is_read_or_not(text):
    read = final_number(text)
    assert read is None or isinstance(read.value, float)


def test_long_answers_are_read_in_proportion_to_their_length():
    begun = time.monotonic()
    for part in ("1,", "11,", "111,", "answer is ", "9", "1 ", "####", "1/", "-", r"\frac{", "\u00bd", "$", "1e"):
        final_number(part * (200_000 // len(part)))
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    ("target", "answer", "options", "right"),
    [
        (18, "It is 18.0", {}, 1),
        ("18", "19", {}, 0),
        ("so\n#### 18", "18", {}, 1),
        (100, "101", {"tolerance": 1}, 1),
        (100, "102", {"tolerance": 1}, 0),
        (100, "101", {"relative": 0.01}, 1),
        (3.14159265, "3.141593", {}, 1),
        (3.14159265, "3.1416", {}, 0),
        (0.45, "45%", {}, 1),
        ("45 %", "0.45", {}, 1),
        (45, "45 percent", {}, 1),
        ("45%", "4500%", {}, 0),
        (18, "no idea", {}, 0),
        ([3, "5"], "5", {}, 1),
        ([3, "5"], "4", {}, 0),
        ([3, "none"], "3", {}, None),
        ([], "3", {}, None),
        ("none", "18", {}, None),
        (True, "1", {}, None),
        (float("nan"), "1", {}, None),
        (10**400, "1", {}, None),
    ],
)
async def test_numeric(target, answer, options, right):
    assert await score("numeric", target, answer, **options) == right


async def test_a_grade_says_which_number_was_read():
    got = await grade("numeric", 18, "First 20, then: 17.50 dollars")
    assert got.reason == "read '17.50' as 17.5, not 18"
    assert got.details == {"read": "17.50", "value": 17.5}


@pytest.mark.parametrize(
    ("target", "answer", "options", "right"),
    [
        ({"a": 1, "b": "X"}, '```json\n{"a": 1.0, "b": "x ", "c": 3}\n```', {}, 1),
        ({"a": 1, "b": "x"}, 'Here: {"a": 1, "b": "y"}', {}, 0.5),
        ({"a": 1, "b": "x"}, '{"a": 1, "b": "y"}', {"all": True}, 0),
        ({"a": 1, "b": "x"}, '{"a": 1}', {"fields": ["a"]}, 1),
        ({"a": {"b": [1, 2]}}, '{"a": {"b": [1, 2]}}', {"fields": ["a.b.1"]}, 1),
        ({"a": {"b": [1, 2]}}, '{"a": {"b": [1]}}', {"fields": ["a.b.1"]}, 0),
        ({"a": True}, '{"a": 1}', {}, 0),
        ({"a": None}, '{"a": null}', {}, 1),
        ({"a": None}, "{}", {}, 0),
        ({"a": 1.0}, '{"a": 1.05}', {"tolerance": 0.1}, 1),
        ({"a": {"b": 1}}, '{"a": {"b": 1, "c": 2}}', {}, 0),
        ('{"a": 1}', '{"a": 1}', {}, 1),
        ([1, 2], "[1, 2]", {}, 1),
        ([1, 2], "[2, 1]", {}, 0),
        ({"a": 1.5}, '{"a": 1' + "0" * 400 + "}", {}, 0),
        ({"a": 10**400}, '{"a": 1.5}', {}, 0),
        ({"a": 10**400}, '{"a": 1' + "0" * 400 + "}", {}, 1),
        ({"a": math.inf}, '{"a": 5}', {}, 0),
        ({"a": 5}, '{"a": 1e999}', {"tolerance": 1.0}, 0),
        ({"a": 9007199254740993}, '{"a": 9007199254740992}', {"relative": 0}, 0),
        ({"a": 1}, "none", {}, 0),
        ({"a": 1}, "{}", {"fields": ["b"]}, None),
        ({}, "{}", {}, None),
    ],
)
async def test_json_fields(target, answer, options, right):
    assert await score("json", target, answer, **options) == right


async def test_the_verdict_on_file():
    grader = grader_of(GraderSpec("recorded"))
    assert (await grader.grade(Task("t", "?"), outcome(recorded_score=0.5))).score == 0.5
    none = await grader.grade(Task("t", "?"), outcome())
    assert (none.score, none.reason) == (None, "there is no verdict on file for this answer")


async def test_what_has_no_answer_is_worth_nothing_and_what_has_no_target_is_not_judged():
    grader = grader_of(GraderSpec("exact"))
    failed = await grader.grade(Task("t", "?", "x"), outcome("x", status="failed", error="no model"))
    assert (failed.score, failed.reason) == (0.0, "no answer: the job ended as failed: no model")
    assert (await grader.grade(Task("t", "?", "x"), outcome("x", status="partial"))).score == 1
    assert (await grader.grade(Task("t", "?"), outcome("x"))).score is None


# Functions of one's own

OWN = """
import asyncio
from executor.experiments.types import Grade

class Scale:
    @staticmethod
    def halves(task, outcome, factor=1):
        return len(outcome.answer) / len(task.input) * factor

def right(task, outcome):
    return outcome.answer == task.target

async def slow(task, outcome):
    await asyncio.sleep(0)
    return Grade(None, 0.25, "a quarter", {"by": "me"})

def broken(task, outcome):
    raise LookupError("no such row")

def high(task, outcome):
    return 7

def word(task, outcome):
    return "good"

def unsure(task, outcome):
    return Grade(outcome.cell, None, "can't say")

VALUE = 3


def numbered(task, outcome):
    return Grade(outcome.cell, 0.5, 7)


class Nameless:
    def __repr__(self):
        raise OSError("no name")


def nameless(task, outcome):
    return Nameless()
"""


async def test_functions_of_ones_own(tmp_path):
    (tmp_path / "own_grading.py").write_text(OWN)
    task, answer = Task("t", "four", "x"), outcome("x")

    async def by(name, **options):
        return await grader_of(GraderSpec(f"own_grading:{name}", options), base=tmp_path).grade(task, answer)

    assert (await by("right")).score == 1.0
    assert (await by("Scale.halves", factor=2)).score == 0.5
    assert await by("slow") == Grade(answer.cell, 0.25, "a quarter", {"by": "me"})
    assert await by("unsure") == Grade(answer.cell, None, "can't say")
    assert await by("numbered") == Grade(answer.cell, 0.5, "7")
    for name, told in (("broken", "broken failed: LookupError: no such row"), ("high", "7"), ("word", "'good'"),
                       ("nameless", "nameless failed: OSError: no name")):  # fmt: skip
        grade = await by(name)
        assert grade.score is None
        assert told in grade.reason
    for name, told in (("gone", "has no gone"), ("VALUE", "is no function")):
        with pytest.raises(ConfigError, match=told):
            grader_of(GraderSpec(f"own_grading:{name}"), base=tmp_path)
    with pytest.raises(ConfigError, match="can't be imported"):
        grader_of(GraderSpec("no_such_module_at_all:f"), base=tmp_path)


# Wrong tables


@pytest.mark.parametrize(
    ("use", "options", "told"),
    [
        ("exakt", {}, "there is no such grader: did you mean 'exact'"),
        ("exact", {"ignor": ["case"]}, r"\[grader\] unknown key 'ignor'"),
        ("exact", {"ignore": ["colour"]}, "'colour' can't be ignored"),
        ("contains", {"need": "most"}, "must be one of all, any, share"),
        ("contains", {"words": "no"}, "must be true or false"),
        ("numeric", {"tolerance": -1}, "must be a number, not negative"),
        ("numeric", {"relative": True}, "must be a number"),
        ("regex", {"pattern": "("}, "error: unclosed group"),
        ("regex", {"pattern": "a)|(?:b", "whole": True}, "error: unopened group"),
        ("recorded", {"x": 1}, "unknown key 'x'"),
        ("judge", {"mode": "guess"}, "must be one of grade, pair"),
        ("judge", {"against": "target"}, 'is for mode = "pair"'),
    ],
)
def test_a_wrong_table_is_told(use, options, told):
    with pytest.raises(ConfigError, match=told):
        grader_of(GraderSpec(use, options))


ONE_TASK, ONE_ARM = (Task("t", "?"),), (Arm("arm"),)


def experiment(use, tasks=ONE_TASK, arms=ONE_ARM, scores=(None,), **options):
    answers = {task.id: RecordedAnswer("x", one) for task, one in zip(tasks, scores * len(tasks), strict=False)}
    recorded = {"weak": RecordedModel("weak", answers)}
    return Experiment("x", tuple(tasks), tuple(arms), GraderSpec(use, options), recorded=recorded)


def test_what_can_not_be_judged_is_told_before_anything_is_run():
    on_file = (Arm("arm", "recorded", among=("weak",)),)
    with pytest.raises(ConfigError, match="goes by the tasks' targets, and no task has one"):
        check_grader(experiment("exact"))
    with pytest.raises(ConfigError, match="no arm has recorded answers"):
        check_grader(experiment("recorded"))
    with pytest.raises(ConfigError, match=r"\[recorded.weak\] names no column with them"):
        check_grader(experiment("recorded", arms=on_file))
    check_grader(experiment("recorded", arms=on_file, scores=(1.0,)))
    check_grader(experiment("regex", pattern="x"))
    check_grader(experiment("exact", tasks=[Task("t", "?", 1), Task("u", "?")]))


# All cells


async def test_all_cells_are_graded_in_their_order():
    tasks = [Task(f"t{i}", "?", str(i)) for i in range(500)]
    outcomes = [outcome(str(i * (i % 2)), task=f"t{i}") for i in range(500)]
    told = []
    grades = await grade_all(experiment("exact", tasks), [*outcomes, outcome(task="gone")], on_grade=told.append)
    assert [grade.cell for grade in grades[:-1]] == [one.cell for one in outcomes]
    assert [grade.score for grade in grades[:4]] == [1, 1, 0, 1]
    assert grades[-1].score is None
    assert told == grades


async def test_another_grader_judges_the_same_answers():
    tasks = [Task("t", "?", "5")]
    assert [grade.score for grade in await grade_all(experiment("exact", tasks), [outcome("It is 5")])] == [0]
    other = GraderSpec("numeric")
    assert [grade.score for grade in await grade_all(experiment("exact", tasks), [outcome("It is 5")], spec=other)] == [
        1
    ]


async def test_so_many_functions_of_ones_own_at_once_as_the_experiment_allows(tmp_path):
    (tmp_path / "own_counting.py").write_text(
        "import asyncio\nnow = most = 0\nasync def f(task, outcome):\n    global now, most\n    now += 1\n"
        "    most = max(most, now)\n    await asyncio.sleep(0)\n    now -= 1\n    return 1\n"
    )
    tasks = [Task(f"t{i}", "?") for i in range(20)]
    mine = experiment("own_counting:f", tasks)
    mine = Experiment(mine.name, mine.tasks, mine.arms, mine.grader, concurrency=3, base=tmp_path)
    grades = await grade_all(mine, [outcome(task=task.id) for task in tasks])
    assert {grade.score for grade in grades} == {1.0}
    import own_counting  # found by the grader

    assert own_counting.most == 3


async def test_a_run_that_is_cancelled_while_it_grades_stops(tmp_path):
    (tmp_path / "own_waiting.py").write_text(
        "import asyncio\nasync def f(task, outcome):\n    await asyncio.Event().wait()\n"
    )
    mine = Experiment("x", (Task("t", "?"),), (Arm("arm"),), GraderSpec("own_waiting:f"), base=tmp_path)
    grading = asyncio.create_task(grade_all(mine, [outcome()]))
    await asyncio.sleep(0.01)
    grading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await grading

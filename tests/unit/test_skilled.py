"""The models of stated quality are as good as stated, and fail on the same items as often as stated."""

from __future__ import annotations

import pytest

from tests.fakes.skilled import Skill, found, is_right, plan_task, value_of

WEAK, STRONG = Skill(easy=0.9, hard=0.4), Skill(easy=0.98, hard=0.85)
ITEMS = [f"q{number}-0" for number in range(4_000)]


@pytest.mark.parametrize("ending", ["", "-hard"])
@pytest.mark.parametrize(("model", "skill"), [("weak", WEAK), ("strong", STRONG)])
def test_rates_are_as_stated(model: str, skill: Skill, ending: str) -> None:
    rate = sum(is_right(model, skill, item + ending) for item in ITEMS) / len(ITEMS)
    assert rate == pytest.approx(skill.hard if ending else skill.easy, abs=0.03)


def test_models_fail_on_the_same_items_more_often_than_by_chance() -> None:
    items = [f"{item}-hard" for item in ITEMS]
    both = sum(not is_right("weak", WEAK, item) and not is_right("strong", STRONG, item) for item in items) / len(items)
    assert both > 1.3 * (1 - WEAK.hard) * (1 - STRONG.hard)


def test_a_wrong_value_is_never_the_right_one() -> None:
    for item in ITEMS[:500]:
        assert (found("weak", WEAK, item) == value_of(item)) == is_right("weak", WEAK, item)


def test_a_task_adds_up() -> None:
    task = plan_task(7)
    assert task["target"] == sum(value_of(f"q7-{name}") for name in ("0", "1", "2", "0-hard", "1-hard"))
    assert [step["id"] for step in task["plan"]["steps"]] == ["s1", "s2", "s3", "s4", "s5", "sum"]

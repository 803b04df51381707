"""What a model says of its own work: which answers can be read."""

from __future__ import annotations

from typing import Any

import pytest

from executor.self_report import _from_text, read_report


@pytest.mark.parametrize(
    ("told", "confidence"),
    [(0.4, 0.4), (1, 1.0), ("0.25", 0.25), ("85%", 0.85), (85, 0.85), ("90 %", 0.9), (0, 0.0)],
)
def test_reports_that_can_be_read(told: Any, confidence: float) -> None:
    assert read_report({"confidence": told, "why": " a\nb "}) == (confidence, "a b")


@pytest.mark.parametrize("told", [None, True, "high", 5, -0.1, 101, float("nan"), [], "1.5"])
def test_reports_that_can_not(told: Any) -> None:
    with pytest.raises(ValueError, match="confidence"):
        read_report({"confidence": told, "why": ""})


@pytest.mark.parametrize(
    ("text", "confidence"),
    [
        ("Confidence: 85 %", 0.85),
        ("**Confidence**: 0.9.", 0.9),
        ("confidence - .5", 0.5),
        ("confidence: 1", 1.0),
        ("confidence: 1/10", None),
        ("confidence: 10 / 10", None),
        ("confidence: 1 out of 10", None),
        ("confidence: 1e-3", None),
        ('{"confidence": 1e999}', None),
        ("confidence: -0.9", None),
        ("confidence: 0,9", None),
        ("confidence 1" + " " * 1_000_000 + "/", 1.0),
    ],
)
def test_a_number_in_a_text_counts_only_by_itself(text: str, confidence: float | None) -> None:
    if confidence is None:
        with pytest.raises(ValueError, match="confidence"):
            _from_text(text)
    else:
        assert read_report(_from_text(text)) == (confidence, "")

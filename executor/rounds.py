"""What comes after a round of a plan: the rule, as a pure function."""

from __future__ import annotations

from typing import Literal

CHANGED = "Skipped — user changed requirements"
STOPPED = "Skipped — stopped by the user"

NextMove = Literal["replan_for_message", "synthesize", "out_of_rounds", "good_enough", "replan"]


def after_round(
    *,
    message_waits: bool,
    achieved: bool,
    confidence: float,
    used: int,
    rounds: int,
    enough: float,
    fixed: bool = False,
) -> NextMove:
    """The next move, in this order: an unheard message is planned for (and costs no round); an achieved goal is
    written up; used-up rounds, or a confidence of at least `enough` (0 to 1), stop; else the plan is changed.

    `used` counts executions so far, `rounds` is their limit. A `fixed` plan, given by the user, is never changed.
    """
    if message_waits:
        return "replan_for_message"
    if achieved:
        return "synthesize"
    if used >= rounds or fixed:
        return "out_of_rounds"
    if confidence >= enough:
        return "good_enough"
    return "replan"

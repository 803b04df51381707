"""The closing sentence of a report, from its figures alone: what to use, what it saves, how sure.

The rule. The *best* arm is the one of the highest quality. An arm *does as well* where its difference to the best is,
at the lower end of its interval, less than the margin below it; the intervals of all these comparisons hold jointly at
95 %. An arm is *cheaper* where the interval of its cost, in times the best's, lies below 1. Of the cheaper arms that do
as well the cheapest is to be used; where there is none, the best. An arm is *worse* where the interval excludes 0 and
the p-value, corrected for all pairs, is below 0.05. A cheaper arm that neither does as well nor is worse is told as
what it is: undecided, with how many tasks would decide it. That no difference is shown never counts as equality. Arms
with a simulated checker are no choice where there are others; what they would reach is told after it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from executor.experiments.stats import Estimate, tasks_needed

from .figures import compared, lower, p_text, percent, rounded_up, signed, span, usd, whole_percent
from .types import ArmReport, Best, Difference, Report


def conclusion(report: Report) -> str:
    """What to use, what it saves against what, how sure: one to four sentences."""
    judged = [arm for arm in report.arms if arm.quality is not None]
    if not judged or report.best is None:
        return "Nothing has a score yet: there is nothing to conclude."
    if len(judged) == 1:
        arm = judged[0]
        only = "There is one arm" if len(report.arms) == 1 else "Only one arm has scores"
        return f"{only}, {arm.name} ({_quality(arm)}): there is nothing to compare it with."
    if any(not difference.n_tasks for difference in (*report.best.differences, *report.best.supposed)):
        return "The arms have no tasks in common yet: there is nothing to compare."
    return " ".join([*_so_far(report), *_Choice(report, report.best).sentences()])


def _so_far(report: Report) -> list[str]:
    ended, cells = report.head.ended, report.head.cells
    return [f"So far, with {ended:,} of {cells:,} cells ended:"] if ended < cells else []


class _Choice:
    """The rule, applied to a report."""

    def __init__(self, report: Report, best: Best) -> None:
        self.report, self.margin, self.level = report, best.margin, best.level
        self.best = report.arm(best.arm)
        self.to_best: Mapping[str, Difference] = {difference.arm: difference for difference in best.differences}
        self.supposed = best.supposed
        self.costs = {
            arm.name: arm.cost.whole
            for arm in report.arms
            if arm.cost and arm.cost.whole is not None and (arm.name == best.arm or arm.name in self.to_best)
        }

    def sentences(self) -> list[str]:
        """All of them."""
        if not self.to_best:
            only = f"Of the arms without a simulated checker there is one, {self.best.name} ({_quality(self.best)})."
            return [only, *self._supposed()]
        return [*self._chosen(), *self._supposed()]

    def _chosen(self) -> list[str]:
        if self.best.name not in self.costs or len(self.costs) < 2:
            return self._of_quality()
        cheaper = [name for name in self.to_best if name in self.costs and self._cheaper_than_best(name)]
        as_well = [self.best.name, *filter(self._as_well, cheaper)]
        chosen = min(as_well, key=lambda name: (self.costs[name], -_mean(self.report.arm(name))))
        undecided = [
            name
            for name in cheaper
            if name not in as_well and self.costs[name] < self.costs[chosen] and not self._worse(name)
        ]
        if chosen != self.best.name:
            return [*self._use(chosen), *self._undecided(undecided, chosen), *self._supposes(chosen)]
        if undecided:
            return [*self._open(undecided), *self._supposes(self.best.name)]
        return [*self._the_best(), *self._supposes(self.best.name)]

    # What is shown

    def _cheaper_than_best(self, name: str) -> bool:
        return _is_cheaper(self.to_best[name])

    def _as_well(self, name: str) -> bool:
        return self.to_best[name].quality.low > -self.margin

    def _worse(self, name: str) -> bool:
        return self.to_best[name].shown

    # What is said

    def _of_quality(self) -> list[str]:
        why = (
            "No costs are known, so this is about quality alone."
            if not self.costs
            else "The costs are not wholly known, so this is about quality alone."
        )
        second = max(self.to_best, key=lambda name: _mean(self.report.arm(name)))
        found = self.to_best[second]
        if found.shown:
            return [
                why,
                f"Use {self.best.name}: {_quality(self.best)}; the next best, {second}, is "
                f"{lower(found.quality.mean)} ({self._told(found)}).",
            ]
        return [
            why,
            f"No difference in quality is shown between {self.best.name} ({_quality(self.best)}) and {second} "
            f"({_quality(self.report.arm(second))}): {signed(found.quality.mean)} points ({self._told(found)}). That "
            f"is not to say that there is none{self._would_decide(found)}.",
        ]

    def _use(self, chosen: str) -> list[str]:
        arm, found = self.report.arm(chosen), self.to_best[chosen]
        told = (
            f"which is {lower(found.quality.mean)}"
            if found.shown
            else f"no difference is shown: {signed(found.quality.mean)} points"
        )
        return [
            f"Use {chosen}: {_quality(arm)}, against {percent(_mean(self.best))} of {self.best.name}, the best; {told} "
            f"({self._told(found)}), so it is within the margin of {100 * self.margin:g} points.",
            self._saving(chosen),
        ]

    def _the_best(self) -> list[str]:
        name = self.best.name
        told = [f"Use {name}, the best: {_quality(self.best)}.", *self._against_reference()]
        cheaper = [other for other in self.to_best if other in self.costs and self._cheaper_than_best(other)]
        if cheaper:
            near = max(cheaper, key=lambda other: (_mean(self.report.arm(other)), -self.costs[other]))
            found = self.to_best[near]
            less = f" for {whole_percent(1 - found.ratio.mean)} less" if found.ratio is not None else ""
            told.append(
                f"No cheaper arm does as well: the nearest, {near}, is {lower(found.quality.mean)} "
                f"({self._told(found)}){less}."
            )
        else:
            second = max(self.to_best, key=lambda other: _mean(self.report.arm(other)))
            found = self.to_best[second]
            known = second == self.report.head.reference  # then it is told of that already
            less = f": {compared(_inverse(found.ratio), second)}" if found.ratio is not None and not known else ""
            least = self.costs[name] == min(self.costs.values())
            none = "no arm costs less" if least else "no arm is shown to cost less"
            told.append(f"It costs {usd(self.costs[name])} a task, and {none}{less}.")
            if known:
                return told
            if found.shown:
                told.append(f"The next best, {second}, is {lower(found.quality.mean)} ({self._told(found)}).")
            else:
                told.append(
                    f"That it is also better than the next best, {second}, is not shown: {second} has "
                    f"{signed(found.quality.mean)} points ({self._told(found)}), and may be "
                    f"{100 * max(found.quality.high, 0):.1f} points better."
                )
        return told

    def _against_reference(self) -> list[str]:
        """The best arm against the reference, where it is another one."""
        found = next((one for one in self.report.differences if one.arm == self.best.name and one.n_tasks), None)
        if found is None:
            return []
        sure = f"95 %: {signed(found.quality.low)} to {signed(found.quality.high)}, {self._p(found)}"
        if found.shown:
            told = f"{found.arm} is {abs(100 * found.quality.mean):.1f} points better than {found.other} ({sure})"
        else:
            better = f"That {found.arm} is better than {found.other}"
            told = (
                f"{better} is not shown: {signed(found.quality.mean)} points ({sure}), {found.other} may be "
                f"{100 * max(-found.quality.low, 0):.1f} points better"
            )
        return [f"{told}; it costs {compared(found.ratio, found.other)}." if found.ratio is not None else f"{told}."]

    def _open(self, undecided: Sequence[str]) -> list[str]:
        name = max(undecided, key=lambda other: (_mean(self.report.arm(other)), -self.costs[other]))
        found = self.to_best[name]
        ratio = f" {name} costs {compared(found.ratio, self.best.name)}." if found.ratio is not None else ""
        return [
            f"With {_tasks(found.n_tasks)} it can't be said whether a cheaper arm does as well as {self.best.name}, "
            f"the best ({_quality(self.best)}).",
            f"For {name} ({_quality(self.report.arm(name))}) no difference in quality is shown: "
            f"{signed(found.quality.mean)} points ({self._told(found)}). That is not to say that there is none: it may "
            f"be {abs(100 * found.quality.low):.1f} points lower{self._would_decide(found)}.{ratio}",
            *self._against_reference(),
            f"Until then: {self.best.name} where quality counts, {name} where cost does.",
        ]

    def _undecided(self, undecided: Sequence[str], chosen: str) -> list[str]:
        if not undecided:
            return []
        name = max(undecided, key=lambda other: (_mean(self.report.arm(other)), -self.costs[other]))
        found = self.to_best[name]
        less = 1 - self.costs[name] / self.costs[chosen]
        return [
            f"Whether {name}, which costs {whole_percent(less)} less still, does as well can't be said with "
            f"{_tasks(found.n_tasks)}: {signed(found.quality.mean)} points ({self._told(found)})"
            f"{self._would_decide(found)}."
        ]

    def _saving(self, chosen: str) -> str:
        """What the chosen arm saves against the reference, or the best where it is the reference itself."""
        to_reference = (one for one in self.report.differences if one.arm == chosen and one.ratio is not None)
        found = next(to_reference, self.to_best[chosen])
        cost = f"It costs {usd(self.costs[chosen])} a task"
        if found.ratio is None:
            return f"{cost}."
        return f"{cost}, {compared(found.ratio, found.other)}."

    def _supposed(self) -> list[str]:
        """What arms with a simulated checker would reach: the one that takes the least of a checker and yet does as
        well as the best, for less."""
        found = [one for one in self.supposed if one.quality.low > -self.margin and _is_cheaper(one)]
        accuracy = {one.arm: self.report.arm(one.arm).checker or 1.0 for one in self.supposed}
        if not found:
            if not self.supposed:
                return []
            return [f"Of the arms with a simulated checker none does as well as {self.best.name} for less."]
        one = min(found, key=lambda one: accuracy[one.arm])
        assert one.ratio is not None
        checker = f"If a checker were right {100 * accuracy[one.arm]:g} % of the time and cost nothing"
        reached = percent(_mean(self.report.arm(one.arm)))
        return [
            f"{checker}, {one.arm} would reach {reached}, {signed(one.quality.mean)} points "
            f"({self._told(one, len(self.supposed))}), for {compared(one.ratio, one.other)}."
        ]

    def _supposes(self, name: str) -> list[str]:
        """What must be there for an arm to be used, where all arms have simulated checkers."""
        checker = self.report.arm(name).checker
        if checker is None:
            return []
        told = f"{name} supposes a checker that is right {100 * checker:g} % of the time and free of cost"
        return [f"{told}: here it is simulated."]

    def _told(self, found: Difference, count: int | None = None) -> str:
        """Interval and p-value of a comparison with the best, one of `count`."""
        count = len(self.to_best) if count is None else count
        jointly = f"95 % jointly for {count} comparisons" if count > 1 else "95 %"
        return f"{jointly}: {signed(found.quality.low)} to {signed(found.quality.high)}, {self._p(found)}"

    def _p(self, found: Difference) -> str:
        return f"{'corrected ' if self.report.head.pairs > 1 else ''}{p_text(found.p_corrected)}"

    def _would_decide(self, found: Difference) -> str:
        """How many tasks would decide, if the difference is as it looks, with a power of 80 %."""
        lower = found.quality.mean
        gap = self.margin + lower if lower > -self.margin else -lower
        if found.deviation == 0:
            count: int | None = math.ceil(math.log((1 - self.level) / 2) / math.log1p(-self.margin))
        else:
            count = tasks_needed(found.deviation, gap, level=self.level)
        if count is None or count <= found.n_tasks:
            return "; more tasks would tell"
        return f"; about {rounded_up(count)} tasks would tell, if it is as it looks"


def _is_cheaper(found: Difference) -> bool:
    return found.ratio is not None and found.ratio.high < 1


def _mean(arm: ArmReport) -> float:
    assert arm.quality is not None
    return arm.quality.mean


def _quality(arm: ArmReport) -> str:
    assert arm.quality is not None
    return f"quality {percent(arm.quality.mean)} {span(arm.quality)}"


def _tasks(count: int) -> str:
    return f"{count:,} task{'' if count == 1 else 's'}"


def _inverse(ratio: Estimate) -> Estimate:
    """The other's cost as a ratio to the first's."""
    return Estimate(*(1 / value if value else math.inf for value in (ratio.mean, ratio.high, ratio.low)))

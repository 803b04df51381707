"""Which cells of experiments begin next: so many at once, within the budget that an experiment has as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, NamedTuple

from registry.budget import Budget

from .statements import statement

if TYPE_CHECKING:
    from .database import Connection, Row

SMALLEST_PART = Decimal("1e-9")
"""USD that parts of a budget are whole multiples of."""


class Amount(NamedTuple):
    """Money and tokens; None: of no account."""

    usd: Decimal | None = None
    tokens: Decimal | None = None

    def less(self, other: Amount) -> Amount:
        """What is left when this much of the other is taken."""
        return Amount(*(None if mine is None else mine - (taken or 0) for mine, taken in zip(self, other, strict=True)))

    def part(self, parts: int) -> Amount:
        """One of so many equal parts, in whole tokens and billionths of a dollar, rounded down."""
        usd = None if self.usd is None else (self.usd / parts).quantize(SMALLEST_PART, ROUND_FLOOR)
        return Amount(usd, None if self.tokens is None else self.tokens // parts)

    def at_least(self, other: Amount) -> Amount:
        """The larger of both, one by one."""
        return Amount(
            *(None if mine is None else max(mine, its or mine) for mine, its in zip(self, other, strict=True))
        )

    def holds(self, other: Amount) -> bool:
        """Whether as much as the other is in it."""
        return all(mine is None or its is None or mine >= its for mine, its in zip(self, other, strict=True))

    @property
    def empty(self) -> bool:
        """Whether nothing is left of one of them."""
        return any(one is not None and one <= 0 for one in self)


@dataclass(frozen=True, slots=True)
class Grant:
    """What a cell may cost. `share`: less than its arm allows, since the experiment's budget is shared."""

    budget: Budget
    kept: Amount
    share: bool


def grant(left: Amount, own: Budget | None, places: int, dearest: Amount) -> Grant | None:
    """What a cell may begin with, out of what is left; None: it must not begin now.

    What its arm allows has to be there as a whole, so that no arm is cut short. Where the arm sets no limit, it gets
    what is left divided by the places that are free, but no less than the dearest cell so far came to.
    """
    limit = Amount() if own is None else amount(own.usd, own.tokens)
    parts = left.part(places).at_least(dearest)
    kept = Amount(*(None if whole is None else part if mine is None else mine
                    for whole, part, mine in zip(left, parts, limit, strict=True)))  # fmt: skip
    shared = Amount(*(part if mine is None else None for part, mine in zip(kept, limit, strict=True)))
    if kept.empty or not left.holds(kept):
        return None
    usd = kept.usd if limit.usd is None else limit.usd
    tokens = kept.tokens if limit.tokens is None else limit.tokens
    budget = Budget(usd, None if tokens is None else int(tokens), None if own is None else own.seconds)
    return Grant(budget, kept, any(one is not None for one in shared))


def amount(usd: Decimal | None, tokens: int | None) -> Amount:
    """Both as they stand in a budget or a row."""
    return Amount(usd, None if tokens is None else Decimal(tokens))


async def feed(
    connection: Connection, of_jobs: Sequence[str] | None, tenants: Sequence[str] | None, at_once: int, day: float
) -> list[str]:
    """The cells that begin now, within the connection's transaction, which are to be queued: of the tenants of these
    jobs, of these tenants, or of all where neither is given. `at_once` and `day`: as in `batches.release`. An
    experiment that has nothing left for another cell is ended."""
    rows = await connection.fetch(statement("experiments.hungry"), of_jobs, tenants)
    return [job for row in rows for job in await _feed(connection, row["id"], at_once, day)]


async def _feed(connection: Connection, experiment: str, at_once: int, day: float) -> list[str]:
    row = await connection.fetchrow(statement("experiments.lock"), experiment)
    at_work = await connection.fetchrow(statement("experiments.at_work"), experiment, at_once, day)
    assert row is not None
    assert at_work is not None
    free = row["concurrency"] - at_work["working"]
    most = free if at_work["places"] is None else min(free, at_work["places"])
    if row["spent_at"] is not None or most <= 0:
        return []
    cells = await connection.fetch(statement("experiments.next"), experiment, most)
    begun = list(
        zip([cell["id"] for cell in cells], await _grants(connection, row, at_work, cells, free), strict=False)
    )
    if begun:
        await connection.execute(
            statement("experiments.begin"),
            [job for job, _ in begun],
            [None if one is None else str(one.budget) for _, one in begun],
            [None if one is None else one.kept.usd for _, one in begun],
            [None if one is None or one.kept.tokens is None else int(one.kept.tokens) for _, one in begun],
            [None if one is None else one.share for _, one in begun],
        )
    elif cells and not at_work["open"]:  # nobody at work can give anything back
        await connection.execute(statement("experiments.spent"), experiment)
    return [job for job, _ in begun]


async def _grants(
    connection: Connection, row: Row, at_work: Row, cells: Sequence[Row], free: int
) -> list[Grant | None]:
    """What these cells begin with, the first of them as far as there is enough; None where there is no budget."""
    limit = amount(row["budget_usd"], row["budget_tokens"])
    if limit == Amount():
        return [None] * len(cells)
    spent = await connection.fetchrow(statement("experiments.spent_so_far"), row["id"])
    assert spent is not None
    left = limit.less(amount(at_work["kept_usd"], at_work["kept_tokens"])).less(amount(spent["usd"], spent["tokens"]))
    own = [None if cell["budget"] is None else Budget.of(cell["budget"]) for cell in cells]
    return list(granted(left, own, free, amount(spent["dearest_usd"], spent["dearest_tokens"])))


def granted(left: Amount, own: Sequence[Budget | None], free: int, dearest: Amount) -> Iterator[Grant]:
    """What the next cells begin with, one by one, as long as there is enough: `own` are the limits of their arms,
    no more than the `free` places."""
    places = min(free, len(own))
    for at, limit in enumerate(own):
        found = grant(left, limit, places - at, dearest)
        if found is None:
            return
        left = left.less(found.kept)
        yield found

"""The tables of a report as text, cell by cell: what the terminal, Markdown and HTML show alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .figures import p_value, percent, points_span, seconds, signed, span, times, times_span, usd
from .types import ArmReport, Report

UNKNOWN = "unknown"
GAP = 2
"""Characters between two columns."""
NAME, LONG = 30, 24
"""Characters after which names are folded: of the rows, and of other columns."""
ROLES = 4
"""So many roles have a column of tokens each; of more each has a row."""
KIND_ARMS = 5
"""So many arms have a column in the table by kind; report.json has them all."""
KIND_ARMS_NARROW = 3


@dataclass(frozen=True, slots=True)
class Column:
    """`wide`: only where there is room. `page`: not on the terminal. `left`: a name rather than a figure."""

    name: str
    left: bool = False
    wide: bool = False
    page: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """`note` stands below it."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def within(self, room: int) -> Table:
        """Without as many of its wide columns, from the last on, as it takes to fit into so many characters."""
        kept = [place for place, column in enumerate(self.columns) if not column.page]
        wide = [place for place in kept if self.columns[place].wide]
        while wide and sum(self.width(place) + GAP for place in kept) - GAP > room:
            kept.remove(wide.pop())
        return self._of(kept)

    def filled(self) -> Table:
        """Without columns that have nothing in any row: times where no time is known, say."""
        kept = [place for place in range(len(self.columns)) if place == 0 or any(row[place] for row in self.rows)]
        return self._of(kept)

    def _of(self, kept: Sequence[int]) -> Table:
        rows = tuple(tuple(row[place] for place in kept) for row in self.rows)
        return Table(self.title, tuple(self.columns[place] for place in kept), rows, self.note)

    def width(self, place: int) -> int:
        """How many characters a column needs: names may be folded."""
        text = max(map(len, self.columns[place].name.split("\n")))
        text = max([text, *(len(row[place]) for row in self.rows)])
        return min(text, NAME if place == 0 else LONG) if self.columns[place].left else text


@dataclass(frozen=True, slots=True)
class Document:
    """What is shown of a report or a comparison, in any form: `line` below the title, then tables, notes, and the end.
    `pictures`: by the title of the table that one stands below, its file's name and what it shows."""

    title: str
    line: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    conclusion: str
    pictures: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def document_of(report: Report) -> Document:
    """A report as it is shown."""
    pictures = {}
    if any(arm.cost is not None and arm.cost.whole is not None and arm.quality is not None for arm in report.arms):
        pictures["Arms"] = ("cost.svg", "Quality over cost")
    if report.routers:
        pictures["Routers"] = ("routers.svg", "Quality over the share of strong calls")
    return Document(
        report.head.name, head_line(report), tuple(tables_of(report)), report.notes, report.conclusion, pictures
    )


def head_line(report: Report) -> str:
    """What was run, in a line."""
    head = report.head
    repeats = f" x {head.repeats} repeats" if head.repeats > 1 else ""
    tasks = f"{head.tasks:,} task{'' if head.tasks == 1 else 's'}"
    arms = f"{len(report.arms):,} arm{'' if len(report.arms) == 1 else 's'}"
    return f"{tasks} x {arms}{repeats}, graded by {head.grader}, seed {head.seed}"


def tables_of(report: Report) -> Iterator[Table]:
    """The tables that have something in them, in order."""
    for table in (
        arms_table(report),
        differences_table(report),
        baselines_table(report),
        routers_table(report),
        work_table(report),
        tokens_table(report),
        kinds_table(report),
    ):
        if table.rows:
            yield table.filled()


def arms_table(report: Report) -> Table:
    """Quality, cost and time of each arm."""
    columns = (
        Column("Arm", left=True), Column("Quality"), Column("95 %"), Column("Cost a task"),
        Column("95 % of it", wide=True), Column("p50"), Column("p95", wide=True), Column("Total", wide=True),
        Column("PGR"), Column("Front"), Column("Tasks", wide=True), Column("Routing", left=True, wide=True),
    )  # fmt: skip
    rows = tuple(
        (
            arm.name,
            percent(arm.quality.mean) if arm.quality else "",
            span(arm.quality) if arm.quality else "",
            _cost(arm),
            _cost_span(arm),
            seconds(arm.latency.p50) if arm.latency else "",
            seconds(arm.latency.p95) if arm.latency else "",
            (usd(arm.cost.total) + (" + ?" if arm.cost.partial else "")) if arm.cost else UNKNOWN,
            f"{arm.pgr:.2f}" if arm.pgr is not None else "",
            "yes" if arm.pareto else "",
            f"{arm.n_tasks:,}",
            arm.routing,
        )
        for arm in report.arms
    )
    notes = (
        (any(arm.latency for arm in report.arms), "p50, p95: half of the cells, and 95 % of them, took no longer."),
        (
            any(arm.pgr is not None for arm in report.arms),
            "PGR: the part of the gap between the weak and the strong model that is recovered.",
        ),
        (any(arm.pareto for arm in report.arms), "Front: no other arm is both as good and as cheap."),
    )
    return Table("Arms", columns, rows, " ".join(note for there, note in notes if there))


def _cost(arm: ArmReport) -> str:
    if arm.cost is None or arm.cost.mean is None:
        return UNKNOWN
    return usd(arm.cost.mean) + (f" ({arm.cost.unknown:,} unknown)" if arm.cost.partial else "")


def _cost_span(arm: ArmReport) -> str:
    cost = arm.cost
    return "" if cost is None or cost.low is None or cost.high is None else f"[{usd(cost.low)}, {usd(cost.high)}]"


def differences_table(report: Report) -> Table:
    """Each arm against the reference."""
    columns = (
        Column("Arm", left=True), Column("Points"), Column("95 %"), Column("p", wide=True), Column("Holm's p"),
        Column("Cost"), Column("95 % of it"), Column("Tasks", wide=True),
    )  # fmt: skip
    rows = []
    for found in report.differences:
        if not found.n_tasks:
            continue
        ratio = found.ratio
        rows.append(
            (
                found.arm,
                signed(found.quality.mean),
                points_span(found.quality),
                p_value(found.p),
                p_value(found.p_corrected),
                times(ratio) if ratio else UNKNOWN,
                times_span(ratio) if ratio else "",
                f"{found.n_tasks:,}",
            )
        )
    pairs = f" Holm's p is corrected for {report.head.pairs:,} pairs." if report.head.pairs > 1 else ""
    note = f"Quality in points (hundredths) above {report.head.reference}, and times its cost.{pairs}"
    return Table(f"Against {report.head.reference}", columns, tuple(rows), note)


def baselines_table(report: Report) -> Table:
    """Best single, random, oracle."""
    columns = (Column("Baseline", left=True), Column("Quality"), Column("95 %"), Column("Cost a task"),
               Column("Of", left=True, wide=True))  # fmt: skip
    rows = tuple(
        (
            f"{baseline.name} ({baseline.of[0]})" if len(baseline.of) == 1 else baseline.name,
            percent(baseline.quality.mean),
            span(baseline.quality),
            UNKNOWN if baseline.cost is None else usd(baseline.cost),
            ", ".join(baseline.of),
        )
        for baseline in report.baselines
    )
    return Table("Baselines", columns, rows)


def routers_table(report: Report) -> Table:
    """What orders of tasks are worth."""
    columns = (Column("Router", left=True), Column("APGR"), Column("95 %"), Column("CPT 50 %"), Column("CPT 80 %"),
               Column("CPT 95 %"), Column("Between", left=True, wide=True))  # fmt: skip
    rows = [
        (
            router.arm,
            f"{router.apgr.mean:.3f}" if router.apgr else "",
            f"[{router.apgr.low:.3f}, {router.apgr.high:.3f}]" if router.apgr else "",
            *("never" if share is None else percent(share, 0) for share in router.cpt.values()),
            f"{router.weak} and {router.strong}",
        )
        for router in report.routers
    ]
    if report.routers:
        first = report.routers[0]
        oracle = "" if first.oracle_apgr is None else f"{first.oracle_apgr:.3f}"
        between = f"{first.weak} and {first.strong}"
        rows += [("random (expected)", "0.500", "", "50 %", "80 %", "95 %", between)]
        rows += [("oracle", oracle, "", *_oracle_cpt(report), between)]
    return Table(
        "Routers",
        columns,
        tuple(rows),
        "APGR: the part of the gap recovered, on average over all shares of strong calls. CPT: the least share of "
        "strong calls that recovers this part.",
    )


def _oracle_cpt(report: Report) -> Iterator[str]:
    router = report.routers[0]
    weak, strong = router.oracle[0].quality, router.oracle[-1].quality
    for part in router.cpt:
        wanted = weak + float(part) / 100 * (strong - weak)
        share = next((point.share for point in router.oracle if point.quality >= wanted - 1e-12), None)
        yield "never" if share is None or strong <= weak else percent(share, 0)


def work_table(report: Report) -> Table:
    """Failures, replans, escalations."""
    columns = (
        Column("Arm", left=True), Column("Cells"), Column("Failed"), Column("Replans"), Column("Escalated"),
        Column("Cached calls", wide=True), Column("Models", left=True, wide=True, page=True),
    )  # fmt: skip
    models = sorted({model for arm in report.arms for model in arm.models})
    rows = tuple(
        (
            arm.name,
            f"{arm.n_cells:,}",
            f"{arm.failures:,}",
            f"{arm.replans:,}" if arm.kind == "job" else "",
            f"{arm.escalated:,}",
            f"{arm.cached_calls:,}",
            ", ".join(f"{model} {arm.models[model]:,}" for model in models if model in arm.models),
        )
        for arm in report.arms
        if arm.n_cells
    )
    return Table("Work", columns, rows)


def tokens_table(report: Report) -> Table:
    """Tokens by role, into the model and out of it."""
    roles = sorted({role for arm in report.arms for role in arm.tokens})
    if not roles:
        return Table("Tokens", (), ())
    if len(roles) > ROLES:
        return _tokens_in_rows(report)
    rows = tuple((arm.name, *(_tokens(arm, role) for role in roles)) for arm in report.arms if arm.tokens)
    columns = (Column("Arm", left=True), *(Column(role) for role in roles))
    return Table("Tokens by role", columns, rows, "Into the model / out of it.")


def _tokens_in_rows(report: Report) -> Table:
    rows = tuple(
        (arm.name, role, _short(counts["input"]), _short(counts["output"]))
        for arm in report.arms
        for role, counts in arm.tokens.items()
    )
    columns = (Column("Arm", left=True), Column("Role", left=True), Column("In"), Column("Out"))
    return Table("Tokens by role", columns, rows)


def _tokens(arm: ArmReport, role: str) -> str:
    counts = arm.tokens.get(role)
    return "" if counts is None else f"{_short(counts['input'])} / {_short(counts['output'])}"


def _short(count: int) -> str:
    """A count with three digits that count: 1,234; 12.3k; 4.56M."""
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if count >= size:
            value = count / (1_000 if unit == "k" else size)
            return f"{value:.2f}{unit}" if value < 10 else f"{value:.1f}{unit}" if value < 100 else f"{value:.0f}{unit}"
    return f"{count:,}"


def kinds_table(report: Report) -> Table:
    """Quality by kind of task."""
    arms = _told_by_kind(report)
    rows = []
    for kind, parts in report.kinds.items():
        counts = max((part.n for part in parts.values()), default=0)
        qualities = (parts[name].quality if name in parts else None for name in arms)
        rows.append((kind, f"{counts:,}", *("" if one is None else percent(one.mean) for one in qualities)))
    left_out = len(report.arms) - len(arms)
    note = f"report.json has the other {left_out:,}, too, and all intervals." if left_out else ""
    heads = [Column(name.replace("[", "\n["), wide=place >= KIND_ARMS_NARROW) for place, name in enumerate(arms)]
    return Table("Quality by kind", (Column("Kind", left=True), Column("Tasks"), *heads), tuple(rows), note)


def _told_by_kind(report: Report) -> Sequence[str]:
    """All arms, or those that matter most: the reference, the best, those of the front."""
    names = [arm.name for arm in report.arms]
    if len(names) <= KIND_ARMS:
        return names
    first = [report.head.reference, report.best.arm if report.best else None]
    front = [arm.name for arm in report.arms if arm.pareto]
    kept = [name for name in dict.fromkeys([*first, *front, *names]) if name is not None][:KIND_ARMS]
    return [name for name in names if name in kept]

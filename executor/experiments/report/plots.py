"""The pictures of a report as SVG: quality over cost, and quality over the share of strong calls.

The same report gives the same bytes. Colours are custom properties with the colours of the light theme to fall back on,
so that a page, or the picture by itself, shows them in light and dark. The palette follows that of Okabe & Ito (Color
Universal Design, 2008), which people tell apart however they see colours; markers differ, too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from executor.experiments.needs import needed

from .figures import percent, printable
from .plot_labels import Box, Label, covered, placed
from .types import ArmReport, CurvePoint, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, QUIET, PAPER = "#1c1d1f", "#5b5d61", "#fdfdfc"
HOLLOW = "#fdfdfe"
"""Stands for the ground, so that the lines behind a hollow mark don't show."""
COLORS = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#997700", "#3b7f9f")
DARK = ("#56b4e9", "#ff9a4d", "#4cc9a0", "#e29ad0", "#f0d04a", "#9fd4ee")
DARK_INK, DARK_QUIET, DARK_PAPER = "#e4e5e7", "#a2a5ab", "#131416"
MARKERS = ("o", "s", "^", "D", "v", "P")
SIZE = (7.2, 4.6)
"""Inches; at 72 points each."""
SCALE = 1.5
"""Pixels of a picture by itself for each of its points."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
SETTINGS = {
    "svg.hashsalt": "dagwright", "svg.fonttype": "none", "font.family": ["DejaVu Sans"], "font.size": 9.5,
    "axes.edgecolor": QUIET, "axes.labelcolor": INK, "xtick.color": QUIET, "ytick.color": QUIET,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "text.color": INK, "axes.spines.top": False,
    "axes.spines.right": False, "axes.linewidth": 0.8, "path.simplify": True,
}  # fmt: skip


def cost_plot(report: Report, *, standalone: bool = True) -> str | None:
    """Quality over the cost of a task, both with their intervals, the Pareto front, and the baselines. None where no
    arm has both. `standalone`: with its own colours and ground, rather than those of a page around it."""
    arms = [
        arm for arm in report.arms if arm.quality is not None and arm.cost is not None and arm.cost.whole is not None
    ]
    if not arms:
        return None
    with needed("matplotlib").rc_context(SETTINGS):
        figure, axes = _axes("Cost of a task in USD")
        groups = _groups(arms)
        oracle = next((one for one in report.baselines if one.name == "oracle" and one.cost is not None), None)
        ends = [arm.quality for arm in arms if arm.quality] + ([oracle.quality] if oracle else [])
        _quality_axis(axes, min(one.low for one in ends), max(one.high for one in ends))
        axes.set_xlim(
            0, 1.16 * max([*(_whole(arm) for arm in arms), *(_high(arm) for arm in arms)], default=1.0) or 1.0
        )
        _money_axis(axes)
        _front(axes, arms)
        _random_line(axes, report)
        labels = []
        places = _places(report)
        for name, members in groups.items():
            labels += _group(axes, members, places[name])
        if oracle is not None and oracle.cost is not None:
            point = (oracle.cost, oracle.quality.mean)
            axes.errorbar(*point, yerr=_ends(oracle.quality.mean, oracle.quality), fmt="*", color=QUIET, ms=10, lw=1)
            labels.append(("oracle", point, QUIET))
        _legend(axes, simulated=any(arm.checker is not None for arm in arms))
        _write_labels(figure, axes, labels, [*arms])
        return _svg(figure, "cost", f"{report.head.name}: quality over cost", standalone=standalone)


def router_plot(report: Report, *, standalone: bool = True) -> str | None:
    """Quality over the share of strong calls for each router, with the interval of the quality, beside chance and one
    who knows the answers. None where there is no router."""
    if not report.routers:
        return None
    with needed("matplotlib").rc_context(SETTINGS):
        figure, axes = _axes("Share of tasks that go to the strong model")
        first = report.routers[0]
        every = [point for router in report.routers for point in (*router.curve, *router.oracle)]
        _quality_axis(axes, min(point.low for point in every), max(point.high for point in every))
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(lambda share, _: percent(share, 0))
        told = "" if first.oracle_apgr is None else f" (APGR {first.oracle_apgr:.2f})"
        axes.plot(*_line(first.oracle), color=QUIET, lw=1.2, ls="--", label=f"oracle{told}")
        axes.plot([0, 1], [first.curve[0].quality, first.curve[-1].quality], color=QUIET, lw=1.2, ls=":",
                  label="random, expected (APGR 0.50)")  # fmt: skip
        places = _places(report)
        for router in report.routers:
            color = COLORS[places[router.arm] % len(COLORS)]
            apgr = router.apgr
            told = f" (APGR {apgr.mean:.2f} [{apgr.low:.2f}, {apgr.high:.2f}])" if apgr else ""
            axes.fill_between(*_band(router.curve), color=color, alpha=0.13, lw=0)
            axes.plot(*_line(router.curve), color=color, lw=1.8, label=f"{_plain(router.arm)}{told}")
        for share, name, side in ((0.0, first.weak, "left"), (1.0, first.strong, "right")):
            quality = first.curve[0 if share == 0 else -1].quality
            axes.plot([share], [quality], "o", color=INK, ms=5, clip_on=False, zorder=5)
            axes.annotate(_plain(name), (share, quality), (8 if side == "left" else -4, -22), ha=side,
                          textcoords="offset points", fontsize=9)  # fmt: skip
        axes.legend(loc="lower right", frameon=False, fontsize=9, bbox_to_anchor=(1, 0.04))
        return _svg(figure, "routers", f"{report.head.name}: quality over strong calls", standalone=standalone)


# Axes


def _axes(x_label: str) -> tuple[Figure, Axes]:
    figure: Figure = needed("matplotlib.figure").Figure(SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=True, color=QUIET, alpha=0.18, lw=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(x_label)
    return figure, axes


def _quality_axis(axes: Axes, low: float, high: float) -> None:
    """From 0 where the figures fill at least half of the axis then; otherwise from a whole tenth, which is said."""
    bottom = 0.0 if low < 0.5 * high else math.floor(10 * low - 0.25) / 10
    top = min(1.0, math.ceil(20 * high + 0.2) / 20)
    axes.set_ylim(bottom, max(top, bottom + 0.1))
    axes.yaxis.set_major_formatter(lambda share, _: percent(share, 0))
    axes.set_ylabel("Quality" if bottom == 0 else f"Quality (the axis begins at {percent(bottom, 0)})")


def _money_axis(axes: Axes) -> None:
    axes.xaxis.set_major_locator(needed("matplotlib.ticker").MaxNLocator(6))
    axes.xaxis.set_major_formatter(lambda cost, _: "0" if cost == 0 else f"{cost:.6f}".rstrip("0").rstrip("."))


# What is drawn


def _groups(arms: Sequence[ArmReport]) -> dict[str, list[ArmReport]]:
    """Arms of one sweep together, by their common name."""
    groups: dict[str, list[ArmReport]] = {}
    for arm in arms:
        groups.setdefault(arm.name.partition("[")[0], []).append(arm)
    return groups


def _places(report: Report) -> dict[str, int]:
    """Each group's place in the palette, the same in all pictures of a report."""
    return {name: place for place, name in enumerate(_groups(report.arms))}


def _group(axes: Axes, members: Sequence[ArmReport], place: int) -> list[tuple[str, tuple[float, float], str]]:
    """A group's points; its labels: the whole name at the first, what varies at the others."""
    color = COLORS[place % len(COLORS)]
    x = [_whole(arm) for arm in members]
    y = [arm.quality.mean for arm in members if arm.quality]
    x_ends = [[value - _low(arm) for value, arm in zip(x, members, strict=True)],
              [_high(arm) - value for value, arm in zip(x, members, strict=True)]]  # fmt: skip
    y_ends = [[arm.quality.mean - arm.quality.low for arm in members if arm.quality],
              [arm.quality.high - arm.quality.mean for arm in members if arm.quality]]  # fmt: skip
    if len(members) > 1:
        order = sorted(range(len(x)), key=lambda i: x[i])
        axes.plot([x[i] for i in order], [y[i] for i in order], color=color, lw=0.8, alpha=0.5)
    inside = color if members[0].checker is None else HOLLOW
    axes.errorbar(x, y, xerr=x_ends, yerr=y_ends, fmt=MARKERS[place % len(MARKERS)], color=color, ms=6, lw=1.1,
                  capsize=2, zorder=4, mfc=inside)  # fmt: skip
    return [(_label(arm.name, first=arm is members[0]), point, color)
            for arm, point in zip(members, zip(x, y, strict=True), strict=True)]  # fmt: skip


def _label(name: str, *, first: bool) -> str:
    base, bracket, rest = name.partition("[")
    if not bracket:
        return _plain(name)
    values = ", ".join(part.partition("=")[2] or part for part in rest.rstrip("]").split(","))
    return _plain(f"{base} {rest.rstrip(']')}" if first else values)


def _plain(name: str) -> str:
    """A name that does not crowd the picture; matplotlib takes dollar signs for formulas."""
    short = printable(" ".join(name.split()))
    return (short if len(short) <= 34 else f"{short[:33]}…").replace("$", r"\$")


def _front(axes: Axes, arms: Sequence[ArmReport]) -> None:
    """The Pareto front: what the money buys at best, as steps."""
    front = sorted((_whole(arm), arm.quality.mean) for arm in arms if arm.pareto and arm.quality)
    if len(front) > 1:
        axes.step(*zip(*front, strict=True), where="post", color=INK, lw=1.1, alpha=0.7, label="Pareto front")


def _random_line(axes: Axes, report: Report) -> None:
    """What a mixture of two single-model arms by chance comes to."""
    random = next((one for one in report.baselines if one.name == "random" and len(one.of) == 2), None)
    if random is None:
        return
    ends = sorted((_whole(arm), arm.quality.mean) for arm in map(report.arm, random.of)
                  if arm.quality and arm.cost and arm.cost.whole is not None)  # fmt: skip
    if len(ends) == 2:
        axes.plot(*zip(*ends, strict=True), color=QUIET, lw=1.2, ls=":", label="random mixture, expected")


def _legend(axes: Axes, *, simulated: bool) -> None:
    if simulated:
        axes.plot([], [], "o", color=QUIET, mfc="none", ms=6, label="hollow: its checker is simulated")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", frameon=False, fontsize=9)


def _write_labels(
    figure: Figure, axes: Axes, labels: Sequence[tuple[str, tuple[float, float], str]], arms: Sequence[ArmReport]
) -> None:
    """Each label beside its point, where it covers least."""
    figure.canvas.draw()  # lays out the axes, and so where the points come to be
    to_screen = axes.transData.transform
    taken = []
    for arm in arms:
        if arm.quality is not None:
            x, y = to_screen((_whole(arm), arm.quality.mean))
            taken.append(Box(x - 3, to_screen((0, arm.quality.low))[1], x + 3, to_screen((0, arm.quality.high))[1]))
            taken.append(Box(to_screen((_low(arm), 0))[0], y - 3, to_screen((_high(arm), 0))[0], y + 3))
    for line in axes.get_lines():
        if line.get_linestyle() != "None":
            steps = line.get_drawstyle().startswith("steps")
            taken += covered([tuple(map(float, point)) for point in to_screen(line.get_xydata())], steps=steps)
    frame = axes.get_window_extent()
    inside = Box(frame.x0, frame.y0, frame.x1, frame.y1)
    legend = axes.get_legend()
    if legend is not None:
        found = legend.get_window_extent()
        taken.append(Box(found.x0, found.y0, found.x1, found.y1))
    size = 9 * figure.dpi / 72
    wanted = [Label(text.replace("\\$", "$"), *map(float, to_screen(point))) for text, point, _ in labels]
    for (text, point, color), (dx, dy) in zip(labels, placed(wanted, taken, inside, size), strict=True):
        scale = 72 / figure.dpi
        axes.annotate(text, point, (dx * scale, dy * scale), textcoords="offset points", color=color, fontsize=9,
                      ha="left", va="bottom", zorder=6)  # fmt: skip


def _whole(arm: ArmReport) -> float:
    assert arm.cost is not None
    assert arm.cost.whole is not None
    return arm.cost.whole


def _low(arm: ArmReport) -> float:
    return _whole(arm) if arm.cost is None or arm.cost.low is None else arm.cost.low


def _high(arm: ArmReport) -> float:
    return _whole(arm) if arm.cost is None or arm.cost.high is None else arm.cost.high


def _ends(mean: float, estimate: Any) -> list[list[float]]:
    return [[mean - estimate.low], [estimate.high - mean]]


def _line(curve: Sequence[CurvePoint]) -> tuple[list[float], list[float]]:
    return [point.share for point in curve], [point.quality for point in curve]


def _band(curve: Sequence[CurvePoint]) -> tuple[list[float], list[float], list[float]]:
    return [point.share for point in curve], [point.low for point in curve], [point.high for point in curve]


# As SVG


def _svg(figure: Figure, name: str, title: str, *, standalone: bool) -> str:
    """The picture without what changes from run to run, its ids its own, its colours those of the page."""
    out = BytesIO()
    figure.savefig(
        out, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Title": printable(title)}
    )
    text = out.getvalue().decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r"'DejaVu Sans'(?:, [^;\"]*?)?(?=[;\"])", FONT.replace("'", "&#39;"), text)
    for variable, color, _ in _THEME:
        text = re.sub(color, f"var(--{variable}, {color})", text, flags=re.IGNORECASE)
    text = re.sub(r'(<svg [^>]*?)width="[^"]*pt" height="[^"]*pt" ', r'\1role="img" ', text, count=1)
    text = re.sub(r'(<svg [^>]*?)height="[^"]*pt"([^>]*?)width="[^"]*pt"', r'\1role="img"\2', text, count=1)
    if standalone:
        width, height = (round(SCALE * 72 * side) for side in SIZE)
        text = text.replace('role="img"', f'role="img" width="{width}" height="{height}"', 1)
        at = text.index(">", text.index("<svg")) + 1
        text = f"{text[:at]}<style>{_style()}</style>{text[at:]}"
    return text


_THEME = (
    ("ground", HOLLOW, DARK_PAPER),
    ("ink", INK, DARK_INK),
    ("quiet", QUIET, DARK_QUIET),
    *((f"c{place}", light, dark) for place, (light, dark) in enumerate(zip(COLORS, DARK, strict=True))),
)


def theme(dark: bool) -> str:
    """The custom properties of a theme, for a style sheet."""
    return "".join(f"--{name}:{night if dark else day};" for name, day, night in _THEME)


def _style() -> str:
    return (
        f"svg{{background:{PAPER};{theme(dark=False)}}}"
        f"@media (prefers-color-scheme:dark){{svg{{background:{DARK_PAPER};{theme(dark=True)}}}}}"
    )

"""What the engine costs beside the model, against the SDKs' own loops, on a scripted model on loopback.

    python -m benchmarks.overhead [--quick]

Every measurement runs in a fresh process; the contenders of one row alternate within each round, so that a busy machine
troubles all of them alike; figures are medians over the rounds. CPU times are those of the client's process. Ends with
status 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.fake_model import serving

ROUNDS, QUICK_ROUNDS = 5, 1
REFERENCE = """
import asyncio, structlog
from pydantic import BaseModel
class Record(BaseModel):
    name: str
    count: int = 0
"""
ROOMS = "import registry, agent, planner, executor"
PUBLIC = (
    f"{ROOMS}\nfor room in (registry, agent, planner, executor):\n    for name in room.__all__: getattr(room, name)"
)
SDKS = (
    "openai",
    "anthropic",
    "httpx2",
    "aiohttp",
    "networkx",
    "pydantic_settings",
    "genai_prices",
    "jsonschema",
    "rich",
)
TIMED = """
import sys, time
start = time.process_time()
exec(sys.argv[1])
used = time.process_time() - start
print(1000 * used, *[name for name in sys.argv[2].split() if name in sys.modules])
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a figure, its target (None: for information), and what it is made of."""

    name: str
    figure: float
    target: float | None = None
    detail: str = ""
    unit: str = ""

    @property
    def missed(self) -> bool:
        return self.target is not None and self.figure > self.target


def measured(url: str, measure: str, who: str) -> dict[str, float]:
    """One measurement in its own process."""
    command = [sys.executable, "-m", "benchmarks.measures", measure, who, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(f"{measure} {who} failed:\n{done.stderr[-2_000:]}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def alternating(url: str, measure: str, contenders: Sequence[str], rounds: int) -> dict[str, dict[str, float]]:
    """The medians of every figure of every contender."""
    seen: dict[str, list[dict[str, float]]] = {who: [] for who in contenders}
    for number in range(rounds):
        for who in contenders if number % 2 == 0 else reversed(contenders):
            seen[who].append(measured(url, measure, who))
    return {who: {key: statistics.median(one[key] for one in all_) for key in all_[0]} for who, all_ in seen.items()}


def cpu_rows(url: str, rounds: int) -> list[Row]:
    """CPU per model call over runs of ten tool turns, ours over the SDK's."""
    found = alternating(url, "cpu", ("ours", "openai", "ours-anthropic", "anthropic"), rounds)
    rows = []
    for name, mine, sdk, target in (
        ("CPU per call / openai SDK", "ours", "openai", 0.5),
        ("CPU per call / anthropic SDK", "ours-anthropic", "anthropic", None),
    ):
        a, b = found[mine]["cpu_ms"], found[sdk]["cpu_ms"]
        rows.append(Row(name, a / b, target, f"{a:.2f} ms against {b:.2f} ms"))
    return rows


def late_rows(url: str, rounds: int) -> list[Row]:
    """Whether a turn gets dearer as the conversation grows."""
    rows = []
    for who, target in (("ours", 1.5), ("openai", None)):
        one = alternating(url, "late", (who,), rounds)[who]
        detail = f"{one['early_ms']:.2f} ms early, {one['late_ms']:.2f} ms late"
        name = "late / early turn" if who == "ours" else f"late / early turn, {who} SDK"
        rows.append(Row(name, one["late_over_early"], target, detail))
    return rows


def import_rows(_url: str, rounds: int) -> list[Row]:
    """Import time in fresh processes, against what every such program imports anyway."""
    times: dict[str, list[float]] = {"reference": [], "rooms": [], "public": []}
    texts = {"reference": REFERENCE, "rooms": ROOMS, "public": PUBLIC}
    loaded: set[str] = set()
    usual: set[str] = set()  # structlog brings rich where it is installed
    for number in range(3 * rounds + 1):
        for name, text in texts.items():
            command = [sys.executable, "-c", TIMED, text, " ".join(SDKS)]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            if number:  # the first ones warm the file cache
                times[name].append(float(out[0]))
            (usual if name == "reference" else loaded).update(out[1:])
    loaded -= usual
    base, rooms, public = (statistics.median(times[name]) for name in ("reference", "rooms", "public"))
    return [
        Row("import of the rooms / reference", rooms / base, 1.3, f"{rooms:.0f} ms against {base:.0f} ms"),
        Row("import of all public names / reference", public / base, None, f"{public:.0f} ms"),
        Row("SDKs and the like imported with them", float(len(loaded)), 0, " ".join(sorted(loaded)) or "none"),
    ]


def makespan_rows(url: str, rounds: int) -> list[Row]:
    """Many agents, and a wide plan, against the time the model takes."""
    found = alternating(url, "agents", ("ours", "openai"), max(1, rounds // 2))
    plan = alternating(url, "plan", ("ours",), rounds)["ours"]
    sdk = f"openai SDK {found['openai']['over_ideal']:.2f}"
    return [
        Row("200 agents, 500 ms a call: time / ideal", found["ours"]["over_ideal"], None, sdk),
        Row("plan 1, 20, 1: time / critical path", plan["over_critical"], None, "steps of 3 calls of 200 ms"),
    ]


def first_text_rows(url: str, rounds: int) -> list[Row]:
    """How long the model's first token takes to the reader."""
    found = alternating(url, "first_text", ("ours", "openai"), rounds)
    detail = f"openai SDK {found['openai']['first_text_ms']:.2f} ms"
    return [Row("first token to first text", found["ours"]["first_text_ms"], None, detail, " ms")]


PARTS: dict[str, Callable[[str, int], list[Row]]] = {
    "cpu": cpu_rows,
    "late": late_rows,
    "imports": import_rows,
    "makespan": makespan_rows,
    "first_text": first_text_rows,
}


def main() -> int:
    """Runs the parts and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} round instead of {ROUNDS}")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}")
    rounds = QUICK_ROUNDS if asked.quick else ROUNDS
    missed = False
    print(f"{'':42}{'figure':>10}{'target':>10}  ")
    with serving() as url:
        for part in asked.parts or PARTS:
            for row in PARTS[part](url, rounds):
                target = "" if row.target is None else f"{row.target:g}"
                mark = "MISSED  " if row.missed else ""
                print(f"{row.name:42}{row.figure:>10.2f}{target:>10}  {mark}{row.detail}", flush=True)
                missed = missed or row.missed
    print("MISSED" if missed else "PASS")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

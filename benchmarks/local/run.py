"""Our planner and agent against a plain loop, on one small local model. See README.md.

python -m benchmarks.local.run all|bare|bare-one-line|bare-tolerant|ours [--fresh] [--kind plan|question] [--limit N]
python -m benchmarks.local.run score

Without --base-url the installed demonstration model is started. Kept replies are used again, unless --fresh.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]  # however it was started

from common import GOALS, QUESTIONS, Record, items, right  # noqa: E402 - after the path

ARMS = ("bare", "bare-one-line", "bare-tolerant", "ours")


def run_bare(options: argparse.Namespace) -> None:
    """The plain loop over the set."""
    import bare

    record = Record.load(options.what)
    model = bare.Model(options.base_url, record)
    kinds = options.kind if options.what == "bare" else "question"  # the wordings differ in the loop only
    for kind, row in items(kinds, options.limit):
        record.begin(row["id"])
        outcome = bare.plan(row, model) if kind == "plan" else bare.question(row, model)
        record.finish(type=kind, **outcome)
        shown = outcome["valid"] if kind == "plan" else right(outcome["answer"], row)
        print(row["id"], "ok" if shown else "--", outcome.get("answer") or outcome["error"] or "", flush=True)


def _unfenced(plan: dict[str, Any]) -> bool:
    return bool(plan.get("valid_unfenced")) and not plan["valid"]


def score(arm: str) -> None:
    """One line per arm, and what went wrong how often, from the kept outcomes."""
    outcomes = Record.load(arm).outcomes
    if not outcomes:
        return
    plans = [outcomes[row["id"]] for row in GOALS if row["id"] in outcomes]
    asked = [row for row in QUESTIONS if row["id"] in outcomes]
    answered = [row for row in asked if right(outcomes[row["id"]]["answer"], row)]
    several = [row for row in asked if row["calls"] > 1]
    print(
        f"{arm:15}valid plans {sum(plan['valid'] for plan in plans)}/{len(plans)}"
        f"   right answers {len(answered)}/{len(asked)}"
        f" (of those that need two calls or more {sum(row in answered for row in several)}/{len(several)})"
    )
    if any("valid_unfenced" in plan for plan in plans):
        print(f"      plans that one removed code fence would make valid: {sum(_unfenced(plan) for plan in plans)}")
    for name, rows in (("plans", plans), ("runs", [outcomes[row["id"]] for row in asked])):
        if faults := Counter(row["error"] for row in rows if row["error"]):
            print(f"      {name}: " + ", ".join(f"{count} {fault}" for fault, count in faults.most_common()))


@asynccontextmanager
async def served(base_url: str | None) -> AsyncIterator[str]:
    """The base URL that was given, or that of the demonstration model, started for as long as it is needed."""
    if base_url is not None:
        yield base_url
        return
    from executor.demo.install import DemoPaths, demo_installed
    from executor.demo.serve import model_server
    from executor.settings import load_settings

    folder = load_settings().data_dir
    if folder is None or not demo_installed(folder):
        sys.exit("the demonstration model isn't installed: `dagwright demo-model install`, or give --base-url")
    paths = DemoPaths.of(folder)
    async with model_server(paths.model, paths.runtime, log=paths.root / "server.log") as started:
        yield started


async def run(arms: tuple[str, ...], options: argparse.Namespace) -> None:
    """The arms, one after the other: the server answers one request at a time."""
    async with served(options.base_url) as options.base_url:
        for arm in arms:
            options.what = arm
            if options.fresh:
                Record(arm).path.unlink(missing_ok=True)
            if arm == "ours":
                import ours

                await ours.run(options)
            else:
                await asyncio.to_thread(run_bare, options)


def main() -> None:
    """Runs arms, and scores what is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*ARMS, "all", "score"])
    parser.add_argument("--base-url", help="an OpenAI-compatible server's")
    parser.add_argument("--fresh", action="store_true", help="forget the kept replies of these arms")
    parser.add_argument("--kind", choices=["plan", "question"])
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()
    arms = (options.what,) if options.what in ARMS else ARMS
    if options.what != "score":
        asyncio.run(run(arms, options))
    for arm in arms:
        score(arm)


if __name__ == "__main__":
    main()

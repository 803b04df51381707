"""Our planner and agent against a plain loop, on one small local model. See README.md.

python benchmarks/local/run.py bare|bare-one-line|bare-tolerant|ours [--base-url URL] [--kind plan|question] [--limit N]
python benchmarks/local/run.py score
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from common import GOALS, QUESTIONS, Record, items, right

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


def main() -> None:
    """Runs an arm or scores what is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*ARMS, "score"])
    parser.add_argument("--base-url", default="http://127.0.0.1:18091/v1")
    parser.add_argument("--kind", choices=["plan", "question"])
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()
    if options.what.startswith("bare"):
        run_bare(options)
    elif options.what == "ours":
        import ours

        asyncio.run(ours.run(options))
    for arm in ARMS if options.what == "score" else (options.what,):
        score(arm)


if __name__ == "__main__":
    main()

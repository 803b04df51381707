"""Routing step by step: the same plans by one strong model, by one weak one, by hints, by a cascade and by a budget.

    python -m benchmarks.routing_plans [--tasks 150] [--output FOLDER]

Models of stated quality (`tests.fakes.skilled`) answer behind the provider fake, over real HTTP, at stated prices;
the plans are given. Prints the experiment's report. Nothing of it depends on the machine but the times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

from tests.fakes.server import ProviderFake
from tests.fakes.skilled import Skill, Skilled, plan_task

SKILLS = {
    "weak": Skill(easy=0.95, hard=0.45, knows=0.9, delay=0.01),
    "strong": Skill(easy=0.99, hard=0.9, knows=0.95, delay=0.04),
    "checker": Skill(easy=0.9, hard=0.9, checks=0.95, delay=0.01),
}
MODELS = """\
[models.weak]
provider = "openai_chat"
model = "weak"
base_url = "{url}"
roles = ["general", "fast"]
price = {{ input = 0.2, output = 0.8 }}

[models.strong]
provider = "openai_chat"
model = "strong"
base_url = "{url}"
roles = ["reasoning", "smart"]
price = {{ input = 4.0, output = 16.0 }}

[models.checker]
provider = "openai_chat"
model = "checker"
base_url = "{url}"
roles = ["check"]
price = {{ input = 0.4, output = 1.6 }}
"""
EXPERIMENT = """\
[experiment]
name = "plans"
tasks = "tasks.jsonl"
concurrency = 8
seed = 7
reference = "strong"
cache = false

[grader]
use = "numeric"

[arms.strong]
mode = "dag"
routing = "fixed:strong"
roles = { smart = "weak" }

[arms.weak]
mode = "dag"
routing = "fixed:weak"
roles = { smart = "weak" }

[arms.hint]
mode = "dag"
routing = "hint"
roles = { smart = "weak" }

[arms.cascade]
mode = "dag"
routing = { use = "cascade", models = ["weak", "strong"], threshold = 0.7 }
roles = { smart = "weak" }

[arms.cascade-checked]
mode = "dag"
routing = { use = "cascade", models = ["weak", "strong"], threshold = 0, check = true }
roles = { smart = "weak" }

[arms.budget]
mode = "dag"
routing = { use = "budget", models = ["strong", "weak"] }
roles = { smart = "weak" }
budget = "0.045usd"
options = { max_concurrency = 1 }
"""
"""Answers are written up by the weak model in all arms: what differs is who does the steps. Under a budget they are
done one after the other, since what is left decides on the next. Without a cache every cell has its own time."""


def prepare(folder: Path, url: str, tasks: int) -> None:
    """Writes the experiment's files."""
    lines = [json.dumps(plan_task(number)) for number in range(tasks)]
    (folder / "tasks.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "models.toml").write_text(MODELS.format(url=url), encoding="utf-8")
    (folder / "plans.toml").write_text(EXPERIMENT, encoding="utf-8")


async def run(folder: Path, tasks: int) -> int:
    """Runs the experiment by the command; its exit code."""
    async with ProviderFake(Skilled(SKILLS), models=tuple(SKILLS)) as fake:
        prepare(folder, fake.openai_url, tasks)
        words = ["experiment", "run", "plans.toml", "--models", "models.toml", "--output", "run"]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OPENAI_API_KEY": "sk-fake"}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "executor.cli", *words, cwd=folder, env=environment
        )
        code = await process.wait()
        if fake.refusals:
            print(f"the provider refused {len(fake.refusals)} requests: {fake.refusals[0]}", file=sys.stderr)
            return 1
        return code


def main() -> int:
    """Runs it in a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=150, help="plans per arm")
    parser.add_argument("--output", type=Path, help="where the experiment's files stay (default: nowhere)")
    options = parser.parse_args()
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        return asyncio.run(run(options.output.resolve(), options.tasks))
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(Path(folder), options.tasks))


if __name__ == "__main__":
    sys.exit(main())

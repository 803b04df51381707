"""An experiment's files for the real command: three arms of jobs on two models of the provider fake."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.fakes import ProviderFake

MODELS = """
[models.small]
provider = "openai_chat"
model = "fake-model"
base_url = "{url}"
api_key_env = "OPENAI_API_KEY"
roles = ["fast", "general"]
max_output_tokens = 256
price = {{ input = 1.0, output = 2.0 }}
[models.large]
provider = "openai_chat"
model = "large-model"
base_url = "{url}"
api_key_env = "OPENAI_API_KEY"
roles = ["smart"]
max_output_tokens = 256
price = {{ input = 3.0, output = 6.0 }}
"""
EXPERIMENT = """
[experiment]
name = "sums"
tasks = "tasks.jsonl"
concurrency = {concurrency}
seed = 5
reference = "agent"
cache = {cache}
{head}
[grader]
use = "contains"
[arms.agent]
mode = "react"
[arms.plan]
mode = "dag"
[arms.strong]
mode = "dag"
routing = "fixed:large"
"""
NAMES = ("fake-model", "large-model")


def put(
    home: Path, fake: ProviderFake, *, tasks: int = 3, concurrency: int = 2, cache: bool = True, head: str = ""
) -> None:
    """Writes the files into the folder that the command runs in."""
    (home / "models.toml").write_text(MODELS.format(url=fake.openai_url), encoding="utf-8")
    text = EXPERIMENT.format(concurrency=concurrency, cache=str(cache).lower(), head=head)
    (home / "e.toml").write_text(text, encoding="utf-8")
    lines = (
        {"id": f"t{number}", "input": f"Work out six times seven for customer {number}.", "target": "42"}
        for number in range(tasks)
    )
    (home / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def turns(run: Path) -> list[dict[str, Any]]:
    """The calls of models that the logs of a run tell of; what is no whole line does not count."""
    found = []
    for log in sorted((run / "jobs").glob("*.jsonl")):
        for line in log.read_bytes().split(b"\n")[:-1]:
            if b'"channel":"turn"' in line:
                found.append(json.loads(line)["payload"])
    return found


def paid(told: Iterable[dict[str, Any]]) -> int:
    """Replies that came over the wire."""
    return sum(turn["result"] is not None and not turn.get("cached") for turn in told)


def report_of(run: Path) -> list[dict[str, str]]:
    """The report's lines, without what differs from run to run: times, who of those that ask alike was first, and
    tokens, since the fake numbers its tool calls."""
    with (run / "report.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    words = ("latency", "cached", "job", "spent", "tokens", "cost_usd")
    dropped = {name for name in rows[0] if any(word in name for word in words)}
    return sorted(({key: value for key, value in row.items() if key not in dropped} for row in rows), key=str)

"""Makes one report of an experiment, in a process of its own: `python -m executor.service.experiment_child`.

Thousands of cells take seconds of computing and much memory, for libraries that the server has no other use for:
neither is to befall it. The experiment and what came of its cells come in as JSON, the report goes out as bytes; exit
code 3: JSON that says why there is none.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from registry.errors import ConfigError, UsageError

from .experiment_asked import experiment_asked

NO_REPORT = 3
CPU_SECONDS = 120
MEMORY_BYTES = 4 << 30
"""Of addresses, most of which numpy never uses."""


def main() -> int:
    """Reads what is asked, writes the report."""
    _bounded()
    asked = json.load(sys.stdin.buffer)
    try:
        made = _made(asked)
    except (ConfigError, UsageError) as error:
        code = "not_installed" if "pip install" in str(error) else "report_failed"
        made = json.dumps({"code": code, "detail": str(error)}).encode()
        sys.stdout.buffer.write(made)
        return NO_REPORT
    sys.stdout.buffer.write(made)
    return 0


def _bounded() -> None:
    with suppress(ImportError, OSError, ValueError):  # not on every platform; the server's own patience bounds it, too
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def _made(asked: Mapping[str, Any]) -> bytes:
    from executor.experiments.codec import outcome_from_json
    from executor.experiments.grading.graders import grade_all
    from executor.experiments.recorded.arm import recorded_outcomes
    from executor.experiments.report.build import report_of
    from executor.experiments.report.files import render

    experiment = experiment_asked(asked["asked"])
    outcomes = [outcome_from_json(one) for one in asked["outcomes"]]
    for arm in experiment.arms:
        if arm.kind == "recorded":
            outcomes += recorded_outcomes(experiment, arm)
    grades = asyncio.run(grade_all(experiment, outcomes))
    report = report_of(experiment, outcomes, grades, started_at=asked["started_at"])
    return render(asked["format"], report, experiment, outcomes, grades).encode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main())

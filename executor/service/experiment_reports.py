"""Reports of experiments: made in a process of their own, one at a time, kept while nothing new has ended."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import structlog

from executor.store.database import Database, Row
from executor.store.experiments import ExperimentStore
from registry.messages import Event
from registry.redaction import error_fields

from .experiment_child import NO_REPORT
from .problems import ProblemError

if TYPE_CHECKING:
    from executor.settings_model import Settings

Format = Literal["json", "csv", "html", "markdown"]

PATIENCE = 180.0
"""Seconds that a report may take."""
KEPT_BYTES = 64 << 20
"""Bytes of reports that are kept in memory."""
TITLES = {
    "not_installed": "A library of the service is missing",
    "report_failed": "There is no report",
    "report_took_too_long": "The report took too long",
    "nothing_ended": "No cell has ended so far",
}
FOR_GOOD = ("report_failed", "report_took_too_long", "nothing_ended")
"""What does not change any more once all cells have ended."""

log = structlog.get_logger(__name__)


class Reports:
    """The reports of one server's experiments."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.store = ExperimentStore(database)
        self._folder = settings.data_dir
        self._kept: OrderedDict[tuple[str, int, Format], bytes] = OrderedDict()
        self._turn = asyncio.Lock()

    async def report(self, tenant: str, experiment: str, form: Format) -> bytes:
        """The report of what has ended so far. Raises ProblemError where there can be none."""
        found = await self.store.get(tenant, experiment)
        row = await self.store.row(tenant, experiment)
        if found is None or row is None:  # it was there a moment ago
            raise _problem("report_failed", "the experiment is gone")
        if row["report_problem"] is not None:
            raise _problem(row["report_problem"]["code"], row["report_problem"]["detail"])
        if form == "json" and row["reported"]:
            return await self.store.report(experiment) or b""
        key = (experiment, int(row["done"]), form)
        if key not in self._kept:
            async with self._turn:
                if key not in self._kept:  # nobody made it meanwhile
                    made = await self._made(row, found, form)
                    self._keep(key, made)
                    return made
        self._kept.move_to_end(key)
        return self._kept[key]

    async def report_ended(self) -> None:
        """Makes and keeps the reports of experiments that have ended."""
        after = ""
        while (row := await self.store.unreported(after)) is not None:
            after = row["id"]
            try:
                await self.report(row["tenant"], row["id"], "json")
            except ProblemError as problem:
                log.warning("experiment_without_report", experiment=row["id"], **error_fields(problem))

    async def _made(self, row: Row, found: Mapping[str, Any], form: Format) -> bytes:
        """Makes a report; that of an experiment that has ended is kept for good."""
        over = found["status"] == "ended"
        try:
            made = await self._make(row, found, form)
        except ProblemError as problem:
            if over and problem.body["code"] in FOR_GOOD:
                told = {"code": problem.body["code"], "detail": problem.body["detail"]}
                await self.store.keep_report(row["id"], None, told)
            raise
        if over and form == "json":
            await self.store.keep_report(row["id"], made, None)
        return made

    async def _make(self, row: Row, found: Mapping[str, Any], form: Format) -> bytes:
        await self._tell(row["id"])
        outcomes = [outcome async for outcome in self.store.outcomes(row["id"])]
        if not outcomes and not found["counts"]["recorded"]:
            raise _problem("nothing_ended", "no cell of the experiment has come to its end")
        asked = {
            "asked": await self.store.asked(row["id"]),
            "outcomes": outcomes,
            "format": form,
            "started_at": row["created_at"].timestamp(),
        }
        return await _in_a_child(json.dumps(asked).encode(), self._environment())

    async def _tell(self, experiment: str) -> None:
        """Writes down what came of the cells that have ended since."""
        while rows := await self.store.not_yet_told(experiment):
            await self.store.tell({row["id"]: await self._outcome(row) for row in rows})

    async def _outcome(self, row: Row) -> dict[str, Any]:
        """What came of a cell, made of its job's account and its log."""
        from executor.experiments.codec import outcome_to_json
        from executor.experiments.outcome_of import outcome_of
        from executor.experiments.types import Cell, Outcome

        cell, job = Cell(**row["cell"]), row["id"]
        events = [
            Event(job, one["seq"], one["ts"], one["channel"], one["step_id"], one["payload"])
            for one in await self.store.log_of(job)
        ]
        try:
            outcome = outcome_of(cell, row["summary"], events, job_id=job)
        except (LookupError, TypeError, ValueError, AttributeError) as error:  # another version wrote it
            log.error("cell_unreadable", job_id=job, **error_fields(error))
            told = "what the job wrote can't be read by this version"
            outcome = Outcome(cell, "failed", error=told, error_code="internal", cost=row["cost_usd"], job_id=job)
        return outcome_to_json(outcome)

    def _keep(self, key: tuple[str, int, Format], made: bytes) -> None:
        for other in [one for one in self._kept if one[0] == key[0] and one[1] != key[1]]:
            del self._kept[other]
        self._kept[key] = made
        while len(self._kept) > 1 and sum(map(len, self._kept.values())) > KEPT_BYTES:
            self._kept.popitem(last=False)

    def _environment(self) -> dict[str, str]:
        """What the child knows of ours: no key, no address of a database."""
        place = Path(tempfile.gettempdir()) if self._folder is None else self._folder
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "PYTHONPATH") if name in os.environ}
        return {**kept, "MPLCONFIGDIR": str(place / "matplotlib"), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


async def _in_a_child(asked: bytes, env: Mapping[str, str]) -> bytes:
    """What the child makes of it. Raises ProblemError. The child ends with whoever waits for it."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "executor.service.experiment_child", env=dict(env),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(PATIENCE):
            out, errors = await child.communicate(asked)
    except TimeoutError:
        raise _problem("report_took_too_long", f"it was not done after {PATIENCE:.0f} s") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode == 0:
        return out
    if child.returncode == NO_REPORT:
        told = json.loads(out)
        raise _problem(told["code"], told["detail"])
    if child.returncode is not None and child.returncode < 0:  # killed: by its own bounds, or for want of memory
        raise _problem("report_took_too_long", "it took more time or memory than a report may")
    log.error("report_failed", error=errors.decode(errors="replace")[-2_000:])
    raise _problem("report_failed", "the service's log says why")


def _problem(code: str, detail: str) -> ProblemError:
    status = {"not_installed": 501, "nothing_ended": 409}.get(code, 503 if code == "report_took_too_long" else 500)
    return ProblemError(status, code, TITLES[code], detail)

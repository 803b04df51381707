"""The items of a batch, read from its body one after the other; what is wrong with one stands in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Annotated, Any

from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError

from executor.store.batches import Fault, Item, Mode
from executor.store.database import cleaned
from executor.store.jobs import NewJob
from registry.errors import UsageError

from .orders import invalid, ordered
from .problems import ProblemError, problem_of
from .schemas import JobIn, PlanningIn
from .state import Offer
from .webhooks import Secrets, check_url

if TYPE_CHECKING:
    from executor.settings_model import Settings

ID_CHARS = 64
"""Characters of a custom_id at most."""
BOM = b"\xef\xbb\xbf"

CustomId = Annotated[str, Field(min_length=1, max_length=ID_CHARS, description="Yours; names the item in the results")]


class PlanLine(PlanningIn):
    """A goal of a batch that is only planned."""

    custom_id: CustomId


class RunLine(JobIn):
    """A job of a batch."""

    custom_id: CustomId


LINES: dict[Mode, type[PlanLine] | type[RunLine]] = {"plan": PlanLine, "run": RunLine}


class Items:
    """Makes items of a batch's lines, each of which has to be what a single job has to be, too."""

    def __init__(self, mode: Mode, offer: Offer, settings: Settings, secrets: Secrets | None) -> None:
        self._mode, self._offer, self._settings, self._secrets = mode, offer, settings, secrets
        self._seen: set[str] = set()
        self._count = 0

    def of_lines(self, body: IO[bytes]) -> Iterator[Item]:
        """The items of JSON lines; empty lines are passed over, but counted in the lines' numbers."""
        longest = self._settings.max_request_bytes
        for number, line in _lines(body, longest):
            if line is None:
                fault = Fault("line_too_long", f"the line has more than {longest:,} bytes (setting max_request_bytes)")
                yield self._counted(Item(number, None, "", fault=fault))
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield self._counted(
                    Item(number, None, "", fault=Fault("invalid_json", f"no valid JSON: {error}"[:500]))
                )
                continue
            yield self._item(number, value)

    def of_values(self, values: Iterable[Any]) -> Iterator[Item]:
        """The items of a list of requests, numbered from 1."""
        for number, value in enumerate(values, 1):
            yield self._item(number, value)

    def _item(self, number: int, value: Any) -> Item:
        custom_id, goal = _own(value)
        try:
            new = self._job(value)
            if custom_id in self._seen:
                raise ProblemError(422, "custom_id_doubled", "custom_id", "an earlier line has the same custom_id")
        except ProblemError as problem:
            if problem.status >= 500:  # no item's fault
                raise
            fault = Fault(problem.body["code"], problem.body["detail"])
            return self._counted(Item(number, custom_id, goal, fault=fault))
        assert custom_id is not None  # else it is not valid
        self._seen.add(custom_id)
        return self._counted(Item(number, custom_id, new.goal, new.mode, new.request, new.metadata, new.webhook))

    def _job(self, value: Any) -> NewJob:
        """The job of an item. Raises ProblemError."""
        try:
            line = LINES[self._mode].model_validate(value)
        except ValidationError as error:
            raise problem_of(RequestValidationError(error.errors(include_url=False))) from None
        job = ordered(line, self._offer, self._settings)
        if job.webhook is not None:
            try:
                check_url(job.webhook, self._secrets)
            except UsageError as error:
                raise invalid("webhook_invalid", "The webhook can't be called", str(error), "webhook") from None
        return job

    def _counted(self, item: Item) -> Item:
        self._count += 1
        if self._count > (most := self._settings.max_batch_items):
            told = f"a batch may have {most:,} items at most (setting max_batch_items)"
            raise ProblemError(422, "batch_too_large", "The batch has too many items", told)
        return item


def _own(value: Any) -> tuple[str | None, str]:
    """What an item says of itself, whatever else is wrong with it."""
    if not isinstance(value, dict):
        return None, ""
    custom_id, goal = value.get("custom_id"), value.get("goal")
    named = isinstance(custom_id, str) and 0 < len(custom_id) <= ID_CHARS
    return cleaned(custom_id) if named else None, goal if isinstance(goal, str) else ""


def _lines(body: IO[bytes], longest: int) -> Iterator[tuple[int, bytes | None]]:
    """The lines with their numbers; None for one that is too long, of which no more than that is held."""
    number = 0
    while piece := body.readline(longest + 1):
        number += 1
        if len(piece) > longest and not piece.endswith(b"\n"):
            while piece and not piece.endswith(b"\n"):
                piece = body.readline(longest)
            yield number, None
            continue
        line = (piece.removeprefix(BOM) if number == 1 else piece).strip()
        if line:
            yield number, line

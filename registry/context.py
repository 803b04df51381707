"""Who is calling: ids only, carried by context variables into records, logs and spans."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Caller:
    """The job, the step, the attempt and the role on whose behalf something is called.

    Roles in use: planner, analyzer, router, step, selection, compaction, synthesis, check, tool. `call_id` is the key
    of the tool call inside which something is called, None outside. `round` is the plan's: a step that a later round
    replaces keeps its id, and its attempts begin anew.
    """

    job_id: str = ""
    step_id: str | None = None
    attempt: int = 1
    role: str = "step"
    call_id: str | None = None
    round: int = 1


_caller: ContextVar[Caller] = ContextVar("dagwright_caller", default=Caller())  # noqa: B039 - frozen


def caller() -> Caller:
    """Who is calling here and now."""
    return _caller.get()


@contextmanager
def calling(**ids: object) -> Iterator[Caller]:
    """Within the block the named fields of `Caller` have these values."""
    bound = replace(_caller.get(), **ids)  # type: ignore[arg-type]
    token = _caller.set(bound)
    try:
        yield bound
    finally:
        _caller.reset(token)

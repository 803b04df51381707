"""A job's artifacts in the database, kept by the job's owner only."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from uuid import UUID

from executor.log.stored import OwnershipLostError
from registry.artifacts import free_name
from registry.messages import Event
from registry.result_text import Artifact

from .database import Database


def artifacts_in(events: Iterable[Event]) -> set[str]:
    """The names of the artifacts that a log tells of."""
    return {event.payload["artifact"]["name"] for event in events if event.payload.get("artifact")}


class DatabaseArtifacts:
    """Keeps the artifacts of one job as long as `owner` owns it. Made by `load`."""

    def __init__(self, database: Database, job_id: str, owner: UUID, names: tuple[str, ...]) -> None:
        self._database, self._job_id, self._owner = database, job_id, owner
        self._names = list(names)
        self._taken = set(names)

    @classmethod
    async def load(
        cls, database: Database, job_id: str, owner: UUID, known: Collection[str] | None = None
    ) -> DatabaseArtifacts:
        """The job's store, with what earlier owners kept in it. One whose name is not among the `known` ones was kept
        by a call that died before its end was told: where that call is made again, the name is its own."""
        rows = await database.patiently("log.artifact_names", job_id)
        store = cls(database, job_id, owner, tuple(row["name"] for row in rows))
        store._taken.intersection_update(store._taken if known is None else known)
        return store

    async def put(self, artifact: Artifact) -> Artifact:
        """Keeps it; tried until the database answers. Raises OwnershipLostError."""
        kept = replace(artifact, name=free_name(artifact.name, self._taken))
        self._taken.add(kept.name)  # for good: one whose putting was cancelled may be there
        values = (self._job_id, self._owner, kept.name, kept.mime, kept.data)
        if not await self._database.patiently("log.put_artifact", *values):
            raise OwnershipLostError(f"{self._job_id} belongs to another worker")
        if kept.name not in self._names:
            self._names.append(kept.name)
        return kept

    async def get(self, name: str) -> Artifact:
        """A kept artifact; raises KeyError."""
        rows = await self._database.patiently("log.artifact", self._job_id, name)
        if not rows:
            raise KeyError(name)
        return Artifact(name, rows[0]["mime"], rows[0]["data"])

    def names(self) -> tuple[str, ...]:
        """The names of all that is kept, in the order in which they came."""
        return tuple(self._names)

"""The service against its own description: whatever is sent, no answer is a fault of its own and each is described."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from executor.store.fold import end_cancelled
from executor.store.keys import KeyStore
from tests.support.service import Service, running

SEED = "20261130"
BLIND = ("positive_data_acceptance",)
"""What a schema can't say: that a goal must hold a word, that a plan must be one, that a model must exist."""


@asynccontextmanager
async def ending_all(service: Service) -> AsyncIterator[None]:
    """No worker runs here: every job ends soon after it was created, so that nothing waits for one."""

    async def end() -> None:
        while True:
            async with service.database.connection() as connection:
                rows = await connection.fetch("select id from dw_jobs where ended_at is null limit 100")
            for row in rows:
                await end_cancelled(service.database, row["id"])
            await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(end())
        try:
            yield
        finally:
            task.cancel()


async def examined(
    service: Service, folder: Path, phases: str, examples: int, *options: str, blind: tuple[str, ...] = BLIND
) -> tuple[int, str]:
    """Schemathesis' exit code and report."""
    command = [
        "-m", "schemathesis.cli", "run", f"{service.url}/openapi.json", "--checks", "all",
        "--exclude-checks", ",".join(blind), "--max-examples", str(examples), "--seed", SEED, "--no-color",
        "--phases", phases, "--request-timeout", "20", *options,
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


async def test_nothing_that_is_sent_breaks_it(database_url: str, tmp_path: Path) -> None:
    async with running(database_url, size=10) as service, ending_all(service):
        blind = (*BLIND, "ignored_auth")  # there is no key
        code, report = await examined(service, tmp_path, "fuzzing", 3, blind=blind)
    assert code == 0, report[-20_000:]
    assert "API Operations:" in report


@pytest.mark.heavy
@pytest.mark.timeout(420)
async def test_nothing_that_is_sent_with_a_key_breaks_it(database_url: str, tmp_path: Path) -> None:
    async with running(database_url, size=10) as service, ending_all(service):
        _, secret = await KeyStore(service.database).create("mine")
        key = ("--header", f"Authorization: Bearer {secret}")
        code, report = await examined(service, tmp_path, "examples,coverage,fuzzing", 10, *key)
    assert code == 0, report[-20_000:]
    assert "API Operations:" in report

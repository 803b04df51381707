"""Fixtures that many tests share."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Iterator

import pytest
import structlog

from executor.store.database import Database
from registry import gate, redaction
from tests.fakes import ProviderFake, brain
from tests.support import postgres


@pytest.fixture(scope="session", autouse=True)
def _processes_hear_ctrl_c() -> None:
    """A shell has its background jobs ignore SIGINT, and all that they start: the processes of tests must hear it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
async def provider_fake() -> AsyncIterator[ProviderFake]:
    """A provider on loopback that keeps the rules; it answers whole jobs unless the test gives it another script."""
    async with ProviderFake(brain) as fake:
        yield fake


@pytest.fixture(autouse=True)
def _secrets_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process never forgets a key it was given; the next test must not stumble over this one's."""
    monkeypatch.setattr(redaction, "_known", redaction._Known())


@pytest.fixture(autouse=True)
def _gates_of_this_test() -> None:
    """What a refusal taught about a server stays for the process; the next test's server may have the same port."""
    gate.forget_gates()


@pytest.fixture(autouse=True)
def _logs_of_this_test() -> None:
    """A command that ran in this process has set up its logs for good; each test begins with structlog's own."""
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[tuple[str, str]]:
    """A PostgreSQL server's DSN, and the name of the migrated database that tests copy."""
    with postgres.server() as dsn:
        yield dsn, asyncio.run(postgres.template(dsn))


@pytest.fixture
async def database_url(postgres_server: tuple[str, str]) -> AsyncIterator[str]:
    """A migrated database of the test's own."""
    dsn = await postgres.fresh(*postgres_server)
    yield dsn
    await postgres.dropped(postgres_server[0], dsn)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """That database, with a pool of five."""
    async with Database.open(database_url) as opened:
        yield opened


@pytest.fixture(scope="module", autouse=True)
def _what_is_loaded_is_no_garbage() -> None:
    """Imported packages and the tests themselves stay to the end: the collector need not look through them again and
    again. What the module before left behind is collected first."""
    gc.collect()
    gc.freeze()

"""Hosts of a network on this machine: a network namespace each where that is allowed, else a relay that can be held.

A host reaches the database and the provider through relays of ours; when it is cut off, what is sent arrives at nobody,
and no connection is closed: neither side hears anything.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count

from tests.fakes import ProviderFake
from tests.support.own_postgres import OwnPostgres

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
_numbers = count(os.getpid() % 60 * 4 + 1)


class Relay:
    """Hands bytes on, both ways; while `open` is not set it takes none and closes nothing."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self.open = asyncio.Event()
        self.open.set()
        self.port = 0

    @asynccontextmanager
    async def listening(self, address: str) -> AsyncIterator[Relay]:
        """Serves on a port of this address, within the block."""
        tasks: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                await self._serve(reader, writer)
            except asyncio.CancelledError:
                pass  # the end of the block; the server would log it
            finally:
                tasks.discard(task)

        server = await asyncio.start_server(serve, address, 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in tuple(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self.open.wait()
            there, back = await self._connect()
        except OSError:
            writer.close()
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._copy(reader, back))
            group.create_task(self._copy(there, writer))

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while data := await source.read(2**16):
                    await self.open.wait()
                    target.write(data)
                    await target.drain()
        finally:
            await self.open.wait()
            target.close()


class Host:
    """Where a worker runs that can be cut off. `before` goes before its command, `env` into its variables."""

    def __init__(self, namespace: str | None, address: str, database: Relay, provider: Relay) -> None:
        self.namespace, self._relays = namespace, (database, provider)
        self.before = [] if namespace is None else ["ip", "netns", "exec", namespace]
        self.env = {
            "DATABASE_URL": f"postgresql://tests@{address}:{database.port}/postgres",
            "OPENAI_BASE_URL": f"http://{address}:{provider.port}/v1",
        }

    def cut(self) -> None:
        """Nothing gets through any more, in either direction."""
        if self.namespace is not None:
            _ip("link", "set", _outer(self.namespace), "down")
        else:
            for relay in self._relays:
                relay.open.clear()

    def mend(self) -> None:
        """All gets through again."""
        if self.namespace is not None:
            _ip("link", "set", _outer(self.namespace), "up")
        else:
            for relay in self._relays:
                relay.open.set()


@asynccontextmanager
async def host(postgres: OwnPostgres, fake: ProviderFake, *, namespaces: bool) -> AsyncIterator[Host]:
    """A host, in a network namespace of its own where `namespaces`."""
    database = Relay(lambda: asyncio.open_unix_connection(postgres.socket))
    provider = Relay(lambda: asyncio.open_connection("127.0.0.1", fake.port))
    async with AsyncExitStack() as stack:
        name, address = None, "127.0.0.1"
        if namespaces:
            number = next(_numbers)
            name, address = f"dw{number}", f"10.213.{number % 250}.1"
            _without(name)  # of a run that was killed
            stack.callback(_without, name)
            _made(name, address)
        await stack.enter_async_context(database.listening(address))
        await stack.enter_async_context(provider.listening(address))
        yield Host(name, address, database, provider)


def namespaces_allowed() -> bool:
    """Whether this user may make network namespaces here."""
    try:
        _made("dwtry", "10.213.251.1")
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        _without("dwtry")
    return True


def _made(name: str, address: str) -> None:
    """A namespace, and a cable to it; our end has the address."""
    _ip("netns", "add", name)
    _ip("link", "add", _outer(name), "type", "veth", "peer", "name", "eth0", "netns", name)
    _ip("address", "add", f"{address}/30", "dev", _outer(name))
    _ip("link", "set", _outer(name), "up")
    within = ["-n", name]
    _ip(*within, "address", "add", f"{address.rpartition('.')[0]}.2/30", "dev", "eth0")
    _ip(*within, "link", "set", "eth0", "up")
    _ip(*within, "link", "set", "lo", "up")


def _without(name: str) -> None:
    """Takes a namespace away, with its cable."""
    for words in (("link", "delete", _outer(name)), ("netns", "delete", name)):
        with suppress(OSError, subprocess.CalledProcessError):
            _ip(*words)


def _outer(name: str) -> str:
    return f"{name}out"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)

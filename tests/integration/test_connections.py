"""Connections go round in the order in which they were asked for, and none is ever lost."""

from __future__ import annotations

import asyncio
import random

import asyncpg
import pytest

from executor.store.database import BusyError, Database


async def test_who_asks_first_is_served_first(database_url: str) -> None:
    served: list[int] = []

    async def user(database: Database, number: int) -> None:
        for _ in range(3):  # who has just been served does not overtake
            async with database.connection() as connection:
                served.append(number)
                await connection.execute("select 1")

    async with Database.open(database_url, size=1) as database, asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(user(database, number))
    assert served == list(range(20)) * 3


async def test_cancelled_users_lose_no_connection(database_url: str) -> None:
    chance = random.Random(7)

    async def user(database: Database) -> None:
        async with database.connection() as connection:
            await connection.execute("select pg_sleep(0.002)")
            await asyncio.sleep(0)

    async with Database.open(database_url, size=3) as database:
        for _ in range(15):
            tasks = [asyncio.create_task(user(database)) for _ in range(12)]
            for task in tasks:
                await asyncio.sleep(chance.choice((0, 0, 0.001)))
                if chance.random() < 0.5:
                    task.cancel()
            await asyncio.wait(tasks)
        async with asyncio.timeout(10):
            async with database.connection(), database.connection(), database.connection() as connection:
                assert await connection.fetchval("select 1") == 1


async def test_who_waits_too_long_hears_that_all_is_busy(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor.store.database.WAIT", 0.05)
    async with Database.open(database_url, size=1) as database:
        async with database.connection():
            with pytest.raises(BusyError):
                await database.row("log.where_it_stands", "x")
        assert await database.row("log.where_it_stands", "x") is None


async def test_closed_connections_are_replaced(database_url: str) -> None:
    async with Database.open(database_url, size=2) as database:
        for _ in range(3):
            async with database.connection() as one, database.connection() as other:
                mine = [await connection.fetchval("select pg_backend_pid()") for connection in (one, other)]
            killer = await asyncpg.connect(database_url)
            for pid in mine:
                await killer.execute("select pg_terminate_backend($1)", pid)
            await killer.close()
            assert await database.patiently("log.where_it_stands", "x") == []
            assert await database.patiently("log.where_it_stands", "x") == []

"""The pool's connections: what ends a statement does not spoil the next one."""

from __future__ import annotations

import asyncio

import pytest

from executor.store.database import Database


async def pid_of(database: Database) -> int:
    async with database.connection() as connection:
        found: int = await connection.fetchval("select pg_backend_pid()")
    return found


async def test_an_exception_inside_the_block_comes_out_as_it_is(database_url: str) -> None:
    async with Database.open(database_url, size=1) as database:
        with pytest.raises(KeyError):
            async with database.connection():
                raise KeyError("mine")
        assert await pid_of(database)


async def test_a_cancelled_statement_is_cancelled_and_its_connection_not_used_again(database_url: str) -> None:
    async with Database.open(database_url, size=1) as database:
        before = await pid_of(database)

        async def slow() -> None:
            async with database.connection() as connection:
                await connection.execute("select pg_sleep(30)")

        task = asyncio.create_task(slow())
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await pid_of(database) != before


async def test_a_connection_that_was_lost_while_idle_is_replaced(database_url: str) -> None:
    async with Database.open(database_url, size=1) as database, Database.open(database_url, size=1) as other:
        before = await pid_of(database)
        async with other.connection() as connection:
            await connection.execute("select pg_terminate_backend($1)", before)
        await asyncio.sleep(0.3)
        assert await pid_of(database) != before

"""A command that is cancelled ends, whatever a library does with its cancellation."""

from __future__ import annotations

import asyncio

import pytest

from executor import cli


async def deaf(times: int, heard: list[str]) -> int:
    """Loses the first cancellations."""
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            heard.append("cancel")
            if len(heard) > times:
                raise


@pytest.mark.parametrize("lost", [0, 2])
async def test_a_lost_cancellation_is_said_again(monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    monkeypatch.setattr(cli, "INSIST", 0.01)
    heard: list[str] = []
    command = asyncio.create_task(cli._insisting(deaf(lost, heard)))
    await asyncio.sleep(0.05)
    command.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(command, 30)
    assert len(heard) == lost + 1


async def test_a_command_that_ends_by_itself_has_its_code() -> None:
    async def graceful() -> int:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return 3
        return 0

    command = asyncio.create_task(cli._insisting(graceful()))
    await asyncio.sleep(0.05)
    command.cancel()
    assert await asyncio.wait_for(command, 30) == 3

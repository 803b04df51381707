"""current_time: ISO with an offset, and a helpful refusal of unknown zones."""

from datetime import datetime, timedelta

import pytest

from registry.testing import FakeClock
from registry.tool_run import run_tool
from registry.toolbox.current_time import current_time, current_time_tool


class Noon:
    """A clock that stands still: 2026-07-01 10:00:00.9 UTC."""

    def time(self) -> float:
        return 1_782_900_000.9

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None: ...


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        ("UTC", "2026-07-01T10:00:00+00:00"),
        ("", "2026-07-01T10:00:00+00:00"),
        ("Europe/Berlin", "2026-07-01T12:00:00+02:00"),
        ("europe/berlin", "2026-07-01T12:00:00+02:00"),
        ("America/New York", "2026-07-01T06:00:00-04:00"),
        ("Asia/Kolkata", "2026-07-01T15:30:00+05:30"),
    ],
)
def test_zones(zone, text):
    assert current_time(zone, clock=Noon()) == text


@pytest.mark.parametrize(
    "zone", ["Berlin", "Europe", "Europe/Berlim", "../../etc/passwd", "/etc/passwd", "a\x00b", "é" * 500]
)
def test_unknown_zones_are_refused(zone):
    with pytest.raises(ValueError, match="Area/City") as caught:
        current_time(zone)
    if "Berl" in zone:
        assert "Europe/Berlin" in str(caught.value)


async def test_the_tool_tells_the_real_time():
    tool = current_time_tool()
    text = (await run_tool(tool, tool.check({}))).text
    told = datetime.fromisoformat(text)
    assert told.utcoffset() == timedelta(0)
    assert abs((datetime.now(told.tzinfo) - told).total_seconds()) < 60


async def test_the_tool_takes_a_clock():
    clock = FakeClock()
    text = (await run_tool(current_time_tool(clock), {})).text
    assert datetime.fromisoformat(text).timestamp() == int(clock.time())

"""The time, for models."""

from __future__ import annotations

import difflib
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from registry.clock import SYSTEM_CLOCK, Clock
from registry.tools import Tool, tool


def current_time(timezone: str = "UTC", *, clock: Clock = SYSTEM_CLOCK) -> str:
    """The date and time in an IANA time zone as ISO 8601 with its offset, to the second. Raises ValueError."""
    return datetime.fromtimestamp(clock.time(), UTC).astimezone(_zone(timezone.strip())).isoformat(timespec="seconds")


def _zone(name: str) -> tzinfo:
    if name.upper() in ("", "UTC", "Z", "GMT"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        # OSError: a folder of the database, such as the area alone
        return ZoneInfo(_known(name))


def _known(name: str) -> str:
    """The zone that is meant, but for upper and lower case and blanks."""
    known = {zone.lower(): zone for zone in available_timezones()}
    wanted = name.lower().replace(" ", "_")
    if wanted in known:
        return known[wanted]
    close = difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
    close += [zone for zone in known if zone.endswith(f"/{wanted}") and zone not in close]
    hint = f" Near: {', '.join(known[zone] for zone in close)}." if close else ""
    raise ValueError(f"there is no time zone {name[:80]!r}: an IANA name has the form Area/City.{hint}")


def current_time_tool(clock: Clock = SYSTEM_CLOCK) -> Tool:
    """The tool `current_time`."""

    def run(timezone: str = "UTC") -> str:
        """Returns the current date and time in ISO 8601 format with the offset from UTC.

        Args:
            timezone: The IANA name of a time zone, in the form Area/City; UTC when left out.
        """
        return current_time(timezone, clock=clock)

    return tool(name="current_time", read_only=True, idempotent=True, timeout=10.0)(run)

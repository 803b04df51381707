"""What went wrong at the database, in words that say what to do and hold no password."""

from __future__ import annotations

from urllib.parse import urlsplit


def told(error: BaseException, dsn: str) -> str:
    """Why a database can't be used."""
    text = str(error) or type(error).__name__
    try:
        parts = urlsplit(dsn)
        password, place = parts.password, f"{parts.hostname or 'the local socket'}:{parts.port or 5432}{parts.path}"
    except ValueError:
        return "the database's address can't be read: it must be postgresql://USER:PASSWORD@HOST:PORT/NAME"
    if password:
        text = text.replace(password, "***")
    return f"the database at {place} can't be used: {text}"

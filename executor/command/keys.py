"""`dagwright keys create NAME | list | revoke ID`: the service's API keys."""

from __future__ import annotations

import argparse
import json
from typing import Any

from executor.results import rfc3339
from executor.store.database import Database
from executor.store.keys import Key, KeyStore, Limits

from .database import opened
from .out import note, safe, say, say_json, say_secret
from .values import count_of, usd_of


async def keys(options: argparse.Namespace) -> int:
    """Makes, lists or revokes keys."""
    if options.action == "create":  # what is wrong with it is told before the database is asked
        limits = Limits(
            count_of(options.requests_per_minute, "--requests-per-minute"),
            count_of(options.running_jobs, "--running-jobs"),
            usd_of(options.usd_per_day, "--usd-per-day"),
        )
        async with opened(options) as database:
            return await _create(database, options, limits)
    async with opened(options) as database:
        return await (_list(database, options) if options.action == "list" else _revoke(database, options))


async def _create(database: Database, options: argparse.Namespace, limits: Limits) -> int:
    key, secret = await KeyStore(database).create(options.name, limits)
    if options.json:
        say_secret(json.dumps({"key": secret, **_shown(key)}))
        return 0
    say_secret(secret)
    note(f"This is the key {key.name!r} ({key.id}). It is shown this once and can't be looked up again.")
    return 0


async def _list(database: Database, options: argparse.Namespace) -> int:
    found = await KeyStore(database).all()
    if options.json:
        say_json({"keys": [_shown(key) for key in found]})
        return 0
    for key in found:
        limits = ", ".join(f"{name} {value}" for name, value in key.limits.to_json().items()) or "no limits"
        state = f"; revoked {_shown(key)['revoked_at']}" if key.revoked_at else ""
        say(safe(f"{key.id}  {key.name}  ({limits}; made {_shown(key)['created_at']}{state})"))
    if not found:
        say("no keys: `dagwright keys create NAME` makes one")
    return 0


async def _revoke(database: Database, options: argparse.Namespace) -> int:
    key = await KeyStore(database).revoke(options.id)
    if options.json:
        say_json(_shown(key))
    else:
        say(safe(f"{key.id} ({key.name}) is revoked"))
    return 0


def _shown(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "limits": key.limits.to_json(),
        "created_at": None if key.created_at is None else rfc3339(key.created_at.timestamp()),
        "revoked_at": None if key.revoked_at is None else rfc3339(key.revoked_at.timestamp()),
    }

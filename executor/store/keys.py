"""API keys: made once, kept as SHA-256 only, revoked for good. Each key is a tenant."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar

from registry.errors import UsageError
from registry.messages import money
from registry.text import clean

from .database import Database, Row
from .jobs import new_id
from .statements import statement

CHANNEL = "dw_keys"
PREFIX = "dwk_"
"""What keys begin with, so that they are known for keys wherever they turn up."""
SESSION_SECONDS = 12 * 3600
"""How long a browser's session lasts."""
MAX_NAME_CHARS = 100


class NoSuchKeyError(UsageError):
    """There is no such key."""

    code: ClassVar[str] = "no_such_key"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a key may do; None: no limit.

    `running_jobs`: single jobs that have not ended; one more is refused. The items of batches are held back as long as
    so many jobs of both kinds are open. `usd_per_day` counts jobs that ended within the last 24 hours: what a running
    one comes to is known at its end only, which its own budget and `running_jobs` bound. Once it is spent, a new job is
    refused, and items of batches are held back.
    """

    requests_per_minute: int | None = None
    running_jobs: int | None = None
    usd_per_day: Decimal | None = None

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "running_jobs", "usd_per_day"):
            value = getattr(self, name)
            if value is not None and (not Decimal(value).is_finite() or value <= 0):
                raise UsageError(f"the limit {name} must be more than 0, not {value}")

    @property
    def bound_work(self) -> bool:
        """Whether there are limits to what may run, and not only to what may be asked."""
        return self.running_jobs is not None or self.usd_per_day is not None

    def to_json(self) -> dict[str, Any]:
        """The limits there are; money is a decimal string."""
        found = {"requests_per_minute": self.requests_per_minute, "running_jobs": self.running_jobs}
        found |= {"usd_per_day": money(self.usd_per_day)}  # type: ignore[dict-item]
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Limits:
        """Reads what `to_json` wrote."""
        usd = data.get("usd_per_day")
        return cls(data.get("requests_per_minute"), data.get("running_jobs"), None if usd is None else Decimal(usd))


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it is listed: everything but the key itself."""

    id: str
    name: str
    limits: Limits
    created_at: datetime | None = None
    revoked_at: datetime | None = None

    @classmethod
    def of(cls, row: Row) -> Key:
        """The key of a row."""
        return cls(row["id"], row["name"], Limits.from_json(row["limits"]), row["created_at"], row["revoked_at"])


@dataclass(frozen=True, slots=True)
class Asker:
    """Who sends a request: a key, or nobody where none was ever made (`configured` False)."""

    configured: bool
    key: Key | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """What a request is let in with: a key or a session, of which nothing but the hash is held."""

    hash: bytes
    session: bool = False


def proof_of(secret: str | None, session: str | None) -> Proof | None:
    """What a request shows: its key, else its session, else nothing."""
    if secret is not None:
        return Proof(hash_of(secret))
    return None if session is None else Proof(hash_of(session), session=True)


class KeyStore:
    """The keys of one database. Who listens on `CHANNEL` hears of every key and session that is made or ends."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def create(self, name: str, limits: Limits | None = None) -> tuple[Key, str]:
        """A new key, and the secret itself, which nobody can look up again."""
        name = clean(name).strip()
        if not name or len(name) > MAX_NAME_CHARS:
            raise UsageError(f"a key's name has 1 to {MAX_NAME_CHARS} characters")
        secret = PREFIX + secrets.token_urlsafe(32)
        shown = (limits or Limits()).to_json()
        row = await self.database.row("keys.create", new_id("key"), name, hash_of(secret), shown)
        assert row is not None
        return Key.of(row), secret

    async def all(self) -> list[Key]:
        """All keys, revoked ones too, oldest first."""
        return [Key.of(row) for row in await self.database.rows("keys.list")]

    async def revoke(self, key_id: str) -> Key:
        """Makes a key invalid at once, with its sessions. Raises NoSuchKeyError."""
        row = await self.database.row("keys.revoke", clean(key_id))
        if row is None:
            raise NoSuchKeyError(f"there is no key {key_id!r}: `dagwright keys list` shows them")
        return Key.of(row)

    async def configured(self) -> bool:
        """Whether there ever was a key: then every request needs one, and the service may listen anywhere."""
        row = await self.database.row("keys.any")
        return bool(row and row["configured"])

    async def valid(self, proofs: Iterable[Proof]) -> tuple[bool, dict[Proof, Key]]:
        """Whether there ever was a key, and the keys that these stand for: those that are valid now."""
        wanted = tuple(proofs)
        by_key, by_session = ([proof.hash for proof in wanted if proof.session is kind] for kind in (False, True))
        async with self.database.connection(first=True) as connection:  # whoever waits to be let in waits for all else
            rows = await connection.fetch(statement("keys.valid"), by_key, by_session)
        found = {
            Proof(row["hash"], row["session"]): Key(row["id"], row["name"], Limits.from_json(row["limits"]))
            for row in rows
            if row["id"] is not None
        }
        return bool(rows and rows[0]["configured"]), found

    async def asker(self, secret: str | None, session: str | None) -> Asker:
        """Who sends a request with this key, or with this session."""
        proof = proof_of(secret, session)
        configured, keys = await self.valid([] if proof is None else [proof])
        return Asker(configured, None if proof is None else keys.get(proof))

    async def open_session(self, key: Key) -> str:
        """A secret that stands for the key for `SESSION_SECONDS`."""
        session = secrets.token_urlsafe(32)
        await self.database.row("keys.open_session", hash_of(session), key.id, SESSION_SECONDS)
        return session

    async def close_session(self, session: str) -> None:
        """Ends a session, and forgets those that are over."""
        await self.database.row("keys.close_session", hash_of(session))


def hash_of(secret: str) -> bytes:
    """What is stored of a secret. It has 256 random bits, so that no slow hash is needed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()

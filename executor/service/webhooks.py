"""Webhooks: when a job has ended its JSON is posted to the address that came with it, signed (Standard Webhooks).

At least once: a receiver knows a repeated message by its `webhook-id`, which is the job's id. What is due stands in the
database, so that any number of servers share the work and none of it is lost with one of them.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog

from executor.store.database import Database, outages
from registry.errors import ConfigError, UsageError
from registry.redaction import know_secret, redact
from registry.text import clean
from registry.toolbox.outside import FetchError, Outside, reason

if TYPE_CHECKING:
    from aiohttp.abc import AbstractResolver
    from yarl import URL

PAUSES = (5.0, 300.0, 1_800.0, 7_200.0, 14_400.0, 25_200.0, 36_000.0)
"""Seconds after the first failed try, the second, and so on: eight tries within a day."""
TIME_LIMIT = 15.0
"""Seconds that a receiver has."""
LEASE = 60.0
"""Seconds after which a try of which nothing is known counts as lost."""
AT_ONCE = 20
"""Deliveries of this process under way at most."""
IDLE = 1.0
"""Seconds between two looks where nothing was due."""
GONE = 410
"""The receiver wants nothing more (Standard Webhooks): it is not tried again."""
PREFIX = "whsec_"
KEY_BYTES = (24, 64)
"""Bytes of a secret, at least and at most (Standard Webhooks)."""

log = structlog.get_logger(__name__)


class Secrets:
    """The secrets that messages are signed with, made from one: a tenant knows its own and no other's.

    `secret`: `whsec_` and 24 to 64 bytes in base64. Raises ConfigError.
    """

    def __init__(self, secret: str) -> None:
        try:
            self._key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
        except (binascii.Error, ValueError):
            self._key = b""
        if not KEY_BYTES[0] <= len(self._key) <= KEY_BYTES[1]:
            raise ConfigError("the webhook secret must be whsec_ and 24 to 64 bytes in base64")
        know_secret(secret)

    def of(self, tenant: str) -> str:
        """The secret of a tenant's messages; without keys, where there is one tenant (''), the given one itself."""
        key = self._key
        if tenant:
            key = hmac.digest(key, b"dagwright webhooks of " + tenant.encode(), hashlib.sha256)
        return PREFIX + base64.b64encode(key).decode()


class WebhookSender:
    """Delivers what is due, as long as `run` runs; tries that are under way at its end are made again, by another
    server or after the next start. `allow`: private addresses (host:port) that may be reached."""

    def __init__(
        self,
        database: Database,
        secrets: Secrets,
        allow: Iterable[str] = (),
        *,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._database, self._secrets = database, secrets
        self._outside = Outside(allow, resolver=resolver)
        self._going: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Delivers until it is cancelled. A receiver that is slow or dead keeps no other one waiting."""
        await self._outside.prepare()
        async with asyncio.TaskGroup() as group:
            while True:
                due = await self._due(AT_ONCE - len(self._going))
                for row in due:
                    task = group.create_task(self._deliver(row), name=f"webhook {row['job']}")
                    self._going.add(task)
                    task.add_done_callback(self._going.discard)
                if due:
                    await asyncio.wait(tuple(self._going), timeout=IDLE, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.sleep(IDLE)

    async def _due(self, most: int) -> list[Any]:
        if most <= 0:
            return []
        try:
            return await self._database.rows("webhooks.take", most, LEASE)
        except outages() as error:
            log.warning("webhooks_not_read", error=str(error) or type(error).__name__)
            return []

    async def _deliver(self, row: Any) -> None:
        """One try, and what became of it. A try after the last one is one whose process died: nothing is sent."""
        tries, job_id = row["tries"], row["job"]
        again = tries <= len(PAUSES)
        why: str | None = "it is not known what became of the last try"
        if tries <= len(PAUSES) + 1:
            why, gone = await self._tried(row)
            again = again and not gone
        if why is None:
            await self._database.patiently("webhooks.delivered", job_id)
            return
        log.warning("webhook_failed", job_id=job_id, tries=tries, error=why, again=again)
        pause = PAUSES[tries - 1] if again else None
        await self._database.patiently("webhooks.failed", job_id, tries, clean(why), pause)

    async def _tried(self, row: Any) -> tuple[str | None, bool]:
        """Why it was not delivered (None: it was), and whether there is no use in trying again."""
        try:
            target = self._outside.target(row["url"])
        except FetchError as error:
            return redact(str(error)), True
        try:
            status = await self._post(target, self._headers(row), row["body"].encode())
        except TimeoutError:
            return f"no answer within {TIME_LIMIT:g} s", False
        except FetchError as error:
            return redact(str(error)), False
        if 200 <= status < 300:
            return None, False
        return f"answered {status}", status == GONE

    async def _post(self, target: URL, headers: dict[str, str], body: bytes) -> int:
        """The answer's status. Redirects are not followed, and nothing of the answer is read."""
        import aiohttp

        refused: list[str] = []
        try:
            async with (
                asyncio.timeout(TIME_LIMIT),
                self._outside.session(target, refused, headers) as session,
                session.post(target, data=body, allow_redirects=False) as answer,
            ):
                return answer.status
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise FetchError(f"refused: {refused[0]}" if refused else reason(error)) from None

    def _headers(self, row: Any) -> dict[str, str]:
        from standardwebhooks import Webhook

        now = datetime.now(UTC)
        signature = Webhook(self._secrets.of(row["tenant"])).sign(row["job"], now, row["body"])
        return {
            "Content-Type": "application/json",
            "User-Agent": "dagwright-webhooks",
            "webhook-id": row["job"],
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": signature,
        }


def check_url(url: str, secrets: Secrets | None) -> None:
    """Raises UsageError where a job's webhook could never be delivered; where its name leads is seen when it is."""
    if secrets is None:
        raise UsageError("webhooks need a secret to be signed with: the setting webhook_secret_env names its variable")
    try:
        Outside.target(url)
    except FetchError as error:
        raise UsageError(str(error)) from None

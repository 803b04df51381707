"""Keeping secrets out of logs, events, prompts, errors and traces.

Two kinds are known: values (the keys that adapters and tools are given, passwords, variables with telling names), and
shapes (what keys of well-known services look like). A text without any passes through unchanged, and cheaply.
"""

from __future__ import annotations

import json
import os
import re
import threading
import traceback
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from .messages import Message
from .result_text import error_text
from .secret_shapes import MASK, MAYBE_KEY, SENSITIVE_NAME, ShapeScan, masked_shapes

__all__ = [
    "MASK",
    "MIN_SECRET",
    "StreamRedactor",
    "error_fields",
    "know_environment",
    "know_secret",
    "know_url",
    "outgoing",
    "redact",
    "redact_data",
    "redact_error",
    "redact_fields",
]

MIN_SECRET = 8
"""A shorter value is no secret by itself: it would be found in innocent texts."""
SHORTEST = min(MIN_SECRET, len("://:x@"))
"""No text that is shorter holds anything to be masked: a password in a URL is what needs the fewest characters."""
COMMON = frozenset(
    {
        "12345678", "anything", "changeme", "dagwright", "database", "disabled", "dummy-key", "fake-key", "lm-studio",
        "localhost", "no-key-needed", "not-needed", "not-required", "ollama-key", "password", "placeholder", "postgres",
        "postgresql", "test-key", "undefined", "username", "your-api-key", "your_api_key",
    }
)  # fmt: skip
"""Values that stand where a key should be and are none; masking them would garble texts."""
_SECRET_VARIABLE = re.compile(r"(?:^|_)(?:API_?KEY|ACCESS_KEY|PRIVATE_KEY|TOKEN|SECRET|PASSWORD|PASSWD)$", re.I)
REPEATED = 40
"""Texts up to this many characters come again and again, in every event: what becomes of them is remembered."""
MIN_OWN_KEY = 4
"""In an error's text an adapter's own key is masked even when it is this short: it was just sent there."""


class _Known:
    """The secrets of this process by value. They are only ever added; readers take the whole tuple at once."""

    def __init__(self) -> None:
        self.values: tuple[str, ...] = ()
        self.state = object()
        self.environment_read = False
        self._lock = threading.Lock()

    def add(self, forms: Iterable[str]) -> None:
        """Adds values; longer ones stand first, so that a part of one does not spoil the whole."""
        with self._lock:
            if new := set(forms) - set(self.values):
                self.values = tuple(sorted({*self.values, *new}, key=lambda value: (-len(value), value)))
                self.state = object()

    def all(self) -> tuple[str, ...]:
        """The values; the environment is looked at once, when they are first needed."""
        if not self.environment_read:
            self.environment_read = True
            know_environment(os.environ)
        return self.values


_known = _Known()


def know_secret(value: str | None) -> None:
    """From now on this value is masked wherever texts are redacted. Short and common values are not secrets."""
    value = (value or "").strip()
    scheme, blank, rest = value.partition(" ")
    if blank and scheme.lower() in ("bearer", "basic", "token", "key"):  # a header's value
        value = rest.strip()
    if len(value) >= MIN_SECRET and value.lower() not in COMMON:
        _known.add(_forms(value))


def know_environment(env: Mapping[str, str]) -> None:
    """Takes the values of variables named like secrets (…_API_KEY, …_TOKEN, …_SECRET, …_PASSWORD) as secrets."""
    for name, value in env.items():
        if _SECRET_VARIABLE.search(name):
            know_secret(value)


def know_url(url: str | None) -> None:
    """Takes the password in a URL as a secret, both as it stands there and decoded."""
    try:
        password = urlsplit(url or "").password
    except ValueError:
        return
    if password:
        know_secret(password)
        know_secret(unquote(password))


def _forms(value: str) -> set[str]:
    """A secret as it may turn up: as it is, inside JSON, in a URL, in a repr."""
    told = json.dumps(value, ensure_ascii=False)[1:-1]
    return {value, told, json.dumps(value)[1:-1], quote(value, safe=""), quote(value), repr(value)[1:-1]}


def redact(text: str) -> str:
    """The text with every secret masked; the same object where there is none."""
    if len(text) < SHORTEST:
        return text
    if len(text) > REPEATED:
        return _redacted(text, _known.all())
    if not _known.environment_read:
        _known.all()
    shown = _redacted_word(text, _known.state)
    return text if shown == text else shown


@lru_cache(maxsize=4096)
def _redacted_word(text: str, state: object) -> str:
    """`state` stands for the secrets known: with new ones all is looked at again."""
    return _redacted(text, _known.values)


def _redacted(text: str, secrets: tuple[str, ...]) -> str:
    for secret in secrets:
        if secret in text:
            text = _without_known(text, secrets)
            break
    return masked_shapes(text)


_PLAIN = (int, float, type(None))
_LISTS = (list, tuple)
_NESTED = (dict, list, tuple, Mapping)  # the plain ones first: to ask whether something is a mapping takes long
MAX_DEPTH = 200
"""Levels of nested data that are looked at; what lies deeper is left out, as it can't be known to hold no secret."""


def redact_data(value: Any, depth: int = 0) -> Any:
    """JSON data with every text in it redacted, keys too; the same object where nothing was masked."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, _PLAIN) or not isinstance(value, _NESTED):
        return value
    if depth > MAX_DEPTH:
        return "…"
    if isinstance(value, _LISTS):
        items = [redact_data(item, depth + 1) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return items if isinstance(value, list) else tuple(items)
    return _redacted_mapping(value, depth)


def _redacted_mapping(value: Mapping[Any, Any], depth: int) -> Mapping[Any, Any]:
    changed: dict[Any, Any] | None = None
    for key, item in value.items():
        new_key = redact(key) if isinstance(key, str) and len(key) >= MIN_SECRET else key
        new = item if isinstance(item, _PLAIN) else redact_data(item, depth + 1)
        if changed is None and (new is not item or new_key is not key):
            changed = {}
            for earlier, kept in value.items():
                if earlier is key:
                    break
                changed[earlier] = kept
        if changed is not None:
            changed[new_key] = new
    return value if changed is None else changed


def redact_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A log line's fields: redacted, and values under names such as `password` or `x-api-key` masked whole."""
    return {name: _field(name, value) for name, value in fields.items()}


def _field(name: Any, value: Any) -> Any:
    if isinstance(name, str) and SENSITIVE_NAME.search(name) and isinstance(value, str | bytes):
        return MASK
    if isinstance(value, Mapping):
        return {redact_data(inner): _field(inner, item) for inner, item in value.items()}
    return redact_data(value)


def redact_error(text: str, own: Collection[str] = ()) -> str:
    """An error's text from outside. Servers repeat keys, and pieces of keys: here whatever looks like one goes.
    `own`: the keys that were sent."""
    for secret in sorted(own, key=len, reverse=True):
        if len(secret) >= MIN_OWN_KEY:
            text = text.replace(secret, MASK)
    return MAYBE_KEY.sub(MASK, redact(text))


def error_fields(error: BaseException) -> dict[str, str]:
    """An exception as fields of a log line: its text, redacted, and where it happened. For the library's own lines: a
    logger that nobody set up would show a traceback with the values of all variables."""
    where = "".join(traceback.format_tb(error.__traceback__))
    return {"error": redact_error(error_text(error)), "where": where}


def outgoing(message: Message) -> Message:
    """The message as a model may see it; what was found clean is not looked at again. A turn that its provider signed
    stays as it is, and so do calls: they are checked against what was sent, and no model was ever told a secret."""
    if message.provider:
        return message
    _known.all()
    if message.wire.get("redacted") is _known.state:
        return message
    text = redact(message.content)
    if text is not message.content:
        return replace(message, content=text)
    message.wire["redacted"] = _known.state
    return message


class StreamRedactor:
    """Redacts a text that comes in pieces: the joined output is what `redact` makes of the whole text.

    What may be the beginning of a secret is held back until it is decided: at most the length of the longest known
    secret, and about 600 characters for shapes. `end` gives what is left.
    """

    def __init__(self) -> None:
        self._held = ""
        self._shapes = ShapeScan()

    def feed(self, piece: str) -> str:
        """What can be shown after this piece; often the piece itself, sometimes nothing."""
        secrets = _known.all()
        text = self._held + piece if self._held else piece
        done, self._held = _known_pass(text, secrets) if secrets else (text, "")
        return self._shapes.feed(done)

    def end(self) -> str:
        """What was held back. The redactor can be used for another text then."""
        rest, self._held = self._held, ""
        shown = self._shapes.feed(_without_known(rest, _known.values)) + self._shapes.end()
        self._shapes = ShapeScan()
        return shown


def _without_known(text: str, secrets: Collection[str]) -> str:
    out: list[str] = []
    place = 0
    while (found := _next(text, secrets, place)) is not None:
        out += [text[place : found[0]], MASK]
        place = found[1]
    return "".join([*out, text[place:]]) if out else text


def _known_pass(text: str, secrets: Collection[str]) -> tuple[str, str]:
    """What is decided of the text, masked; and its end, from where a secret may have begun."""
    out: list[str] = []
    place = 0
    while True:
        begun = _begun(text, secrets, place)
        found = _next(text, secrets, place)
        if found is None or found[0] >= begun:
            return ("".join([*out, text[place:begun]]) if out else text[place:begun]), text[begun:]
        out += [text[place : found[0]], MASK]
        place = found[1]


def _next(text: str, secrets: Collection[str], place: int) -> tuple[int, int] | None:
    """Where the next secret stands from `place` on: the first one, of those that begin there the longest."""
    best: tuple[int, int] | None = None
    for secret in secrets:  # longest first
        start = text.find(secret, place)
        if start >= 0 and (best is None or start < best[0]):
            best = start, start + len(secret)
    return best


def _begun(text: str, secrets: Collection[str], place: int) -> int:
    """The first position from `place` on at which the text's end is the beginning of a secret, not the whole of it."""
    first = len(text)
    for secret in secrets:
        start = text.find(secret[0], max(place, len(text) - len(secret) + 1), first)
        while start >= 0:
            if text.startswith(secret[: len(text) - start], start):
                first = start
                break
            start = text.find(secret[0], start + 1, first)
    return first

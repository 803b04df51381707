"""Prompts are text files beside the code that uses them; texts from models and tools are cleaned and cut here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files
from string import Template


@lru_cache(maxsize=256)
def load_prompt(package: str, name: str) -> Template:
    """The prompt `name`.md in the folder `prompts` of a package; `.substitute(key=value)` fills in its `${key}`s.

    What is filled in is data: a `$` or brace in it means nothing.
    """
    text = files(package).joinpath("prompts", f"{name}.md").read_text(encoding="utf-8")
    return Template(text.strip())


def cut_middle(text: str, limit: int, mark: str = "\n… [{cut} characters cut] …\n") -> str:
    """At most `limit` characters of a text: head and tail are kept, the mark says how much is gone."""
    if len(text) <= limit:
        return text
    note = mark.format(cut=len(text))  # the longest it can get: the length is then right
    room = limit - len(note)
    if room < 2:
        return text[:limit]
    head = room * 2 // 3
    return text[:head] + mark.format(cut=len(text) - room) + text[len(text) - (room - head) :]


def cut_end(text: str, limit: int, mark: str = " …") -> str:
    """At most `limit` characters of a text; the mark says that something is gone."""
    return text if len(text) <= limit else text[: max(0, limit - len(mark))] + mark


def unforgeable_marker(texts: Iterable[str]) -> str:
    """A word that occurs in none of the texts. Derived from all of them: the same input gives the same prompt."""
    known = list(texts)
    digest = hashlib.sha256("\0".join(known).encode("utf-8", "surrogatepass")).hexdigest()
    while any(digest[:12] in text for text in known):
        digest = hashlib.sha256(digest.encode()).hexdigest()
    return f"<<{digest[:12]}>>"


def marked(text: str, what: str, marker: str) -> str:
    """A text of a model or a tool between two lines that it can't forge; `what` says what it is."""
    return f"{marker} {what}\n{text}\n{marker} end of {what}"


def clean(text: str) -> str:
    """The text without what can't travel: half surrogates become the replacement character, NUL goes."""
    if not text.isascii() and _half_surrogate(text):  # by way of UTF-16, which joins halves that belong together
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text.replace("\x00", "") if "\x00" in text else text


def _half_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False

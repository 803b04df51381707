"""Whether the sources that a text cites bear out what it says: a model reads passage and excerpt side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agent.structured import structured_llm_call
from registry.clock import SYSTEM_CLOCK, Clock
from registry.context import calling
from registry.fallback import Told, with_fallback
from registry.llm import LLM
from registry.messages import Message
from registry.models import ModelRegistry
from registry.text import cut_end, cut_middle

from .citations import WORD, Citation, Seen
from .material import model_for, prompt, today
from .schemas import citations_schema
from .step_check import CHARS_PER_TOKEN, ROLE, SHARE, UNKNOWN_CONTEXT, Evidence, Finding

MAX_CLAIMS = 20
"""Citations that one call judges; those that come first in the text."""
PASSAGE_CHARS = 500
EXCERPT_CHARS = 1_800
REASON_CHARS = 400
MAX_PLACES = 2
"""Places in the text that a numbered source is cited at, as far as they are shown."""

SEARCHED_CHARS = 50_000
"""Characters of one text in which the part is looked for that has most of a passage's words."""

_ENTRY_START = re.compile(r"[ \t]{0,8}[-*]?[ \t]{0,4}(?:\[\^?(\d{1,3})\]|(\d{1,3})[.)])")


@dataclass(frozen=True, slots=True)
class Claim:
    """A citation, the passage that rests on it, and what was seen of the source."""

    citation: Citation
    passage: str
    excerpt: str


def claims_of(text: str, citations: Sequence[Citation], evidence: Sequence[Evidence]) -> tuple[Claim, ...]:
    """The claims to judge: of each source that was seen the first citation, at most MAX_CLAIMS."""
    sources = [(item, Seen([item.source, item.text])) for item in evidence]
    claims: dict[tuple[str, ...], Claim] = {}
    for citation in citations:
        if citation.keys in claims or not citation.keys:
            continue
        passage = _passage(text, citation)
        excerpt = _excerpt(citation, passage, sources)
        if excerpt:
            claims[citation.keys] = Claim(citation, passage, excerpt)
        if len(claims) == MAX_CLAIMS:
            break
    return tuple(claims.values())


async def check_claims(
    models: LLM | ModelRegistry,
    claims: Sequence[Claim],
    *,
    clock: Clock = SYSTEM_CLOCK,
    on_fallback: Told | None = None,
) -> Finding:
    """A model's opinion whether the sources support the claims, by one structured call in the role `check`.

    Raises LLMError and StructuredOutputError where no opinion was to be had.
    """
    if not claims:
        return Finding(True)
    with calling(role=ROLE):
        unsupported = await with_fallback(models, model_for(models, ROLE), partial(_ask, claims, clock), on_fallback)
    lines = [
        f"- {cut_end(claims[number - 1].citation.text, 200)}: {reason}"
        for number, reason in sorted(unsupported.items())
    ]
    if not lines:
        return Finding(True)
    head = "These citations do not support what is said with them, as far as the sources were seen:"
    return Finding(False, "\n".join([head, *lines]))


async def _ask(claims: Sequence[Claim], clock: Clock, llm: LLM) -> Mapping[int, str]:
    room = int((llm.context_size or UNKNOWN_CONTEXT) * SHARE * CHARS_PER_TOKEN)
    each = max(200, min(EXCERPT_CHARS, room // len(claims) - PASSAGE_CHARS))
    entries = [
        prompt(
            "citation_entry",
            number=str(number),
            cited=cut_end(claim.citation.text, 300),
            passage=claim.passage,
            excerpt=cut_middle(claim.excerpt, each),
        )
        for number, claim in enumerate(claims, 1)
    ]
    call = await structured_llm_call(
        llm,
        [
            Message.system(prompt("citation_check", date=today(clock))),
            Message.user(prompt("citation_check_input", entries="\n\n".join(entries))),
        ],
        citations_schema(len(claims)),
        "check_citations",
        parse_fn=lambda data: read_unsupported(data, len(claims)),
        validate=False,
    )
    found: Mapping[int, str] = call.value
    return found


def read_unsupported(data: Any, count: int) -> dict[int, str]:
    """The numbers of unsupported citations with the reasons. Raises ValueError for what is no such list, or names
    citations that were not asked about."""
    items = data.get("unsupported") if isinstance(data, Mapping) else None
    if not isinstance(items, list | tuple):
        raise ValueError("the answer is an object with the list unsupported")
    found: dict[int, str] = {}
    for item in items:
        number = str(item.get("number") if isinstance(item, Mapping) else item).strip()
        if not (number.isascii() and number.isdigit() and 0 < int(number) <= count):
            raise ValueError(f"each item has the number of an entry, 1 to {count}, not {cut_end(number, 50)!r}")
        reason = str(item.get("reason") or "").strip() if isinstance(item, Mapping) else ""
        found[int(number)] = cut_end(" ".join(reason.split()), REASON_CHARS) or "not supported by what was seen of it"
    return found


def _passage(text: str, citation: Citation) -> str:
    """The text around a citation; for an entry of a list of sources, around the places that name its number."""
    line_start = text.rfind("\n", 0, citation.start) + 1
    entry = _ENTRY_START.match(text, line_start)
    if entry is not None:
        number = entry[1] or entry[2]
        marks = [at for mark in (f"[{number}]", f"[^{number}]") for at in _places(text, mark) if at < line_start]
        if marks:
            return "\n…\n".join(_around(text, at, at, PASSAGE_CHARS // MAX_PLACES) for at in marks[:MAX_PLACES])
    return _around(text, citation.start, citation.end, PASSAGE_CHARS)


def _excerpt(citation: Citation, passage: str, sources: Sequence[tuple[Evidence, Seen]]) -> str:
    """What was seen of a source: the texts that name it, or that a call which names it gave, each by the parts that
    name it or have most of the passage's words."""
    words = frozenset(word.casefold() for word in WORD.findall(passage))
    parts: list[str] = []
    for item, seen in sources:
        if not seen.holds(citation):
            continue
        parts.append(f"[{cut_end(' '.join(item.source.split()), 200)}]\n{_best_part(item.text, citation, words)}")
        if len(parts) == MAX_PLACES:
            break
    return "\n\n".join(parts)


def _best_part(text: str, citation: Citation, words: frozenset[str]) -> str:
    room = EXCERPT_CHARS // MAX_PLACES
    if len(text) <= room:
        return text
    half = room // 2
    text = text[:SEARCHED_CHARS]
    at = text.casefold().find(citation.text.casefold())
    named = [_around(text, at, at + len(citation.text), half)] if at >= 0 else []
    starts = range(0, len(text), half // 2)
    best = max(starts, key=lambda start: sum(word in words for word in _words(text[start : start + half])))
    return "\n…\n".join([*named, text[best : best + half]])


def _words(text: str) -> frozenset[str]:
    return frozenset(word.casefold() for word in WORD.findall(text))


def _places(text: str, mark: str) -> list[int]:
    found: list[int] = []
    at = text.find(mark)
    while at >= 0 and len(found) <= MAX_PLACES:
        found.append(at)
        at = text.find(mark, at + 1)
    return found


def _around(text: str, start: int, end: int, room: int) -> str:
    before = max(0, room - (end - start)) * 2 // 3
    return text[max(0, start - before) : end + max(0, room - before)].strip()

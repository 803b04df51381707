"""Citations in a text: found by their form, and looked up in what its author has seen.

Everything here is linear in the length of the text: no pattern repeats without a bound inside a repetition, and what
stands around a citation is looked at within a window.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal
from urllib.parse import unquote

Kind = Literal["url", "doi", "pmid", "pmcid", "arxiv", "statute", "case", "reference"]

MAX_CHARS = 200_000
"""A longer text is looked through up to here."""
MAX_CITATIONS = 200
ENTRY_CHARS = 600
WINDOW = 120
"""Characters on each side of a "v." in which the parties' names are looked for."""

UNVERIFIED = "[unverified]"
"""What an author writes after a source that is only known from memory: a reader is then not deceived."""
_ADMITTED_WITHIN = 40
"""Characters after a citation in which the word must stand."""

_URL = re.compile(r"(?<!\w)https?://[^\s<>\"'`{}|\\^\[\]]{1,2000}", re.IGNORECASE)
_HOST = re.compile(r"(?:[\w-]{1,63}\.){1,8}[\w-]{2,63}(?::\d{1,5})?(?=[/?]|$)|localhost\b")
_DOI = re.compile(r"(?<![\w/])10\.\d{4,9}/[^\s<>\"'`{}|\\^\[\],;]{1,300}")
_PMID = re.compile(r"\bPMID(?::[ \t]{0,3}|[ \t]{1,3})(\d{1,9})\b(?!\.\d)", re.IGNORECASE)
_PMCID = re.compile(r"\bPMC\d{4,9}\b", re.IGNORECASE)
_ARXIV = re.compile(
    r"\barXiv:[ \t]{0,3}(\d{4}\.\d{4,5}|[a-z-]{2,12}(?:\.[A-Z]{2})?/\d{7})(?!\d)(?:v\d{1,2})?", re.IGNORECASE
)
_CODE = r"(?:U\.?[ ]?S\.?[ ]?C|C\.?[ ]?F\.?[ ]?R)\b\.?"
_NUMBERED_CODE = re.compile(
    rf"\b(?P<title>\d{{1,3}})[ ](?P<code>{_CODE})[ ]?(?:§{{1,2}}[ ]?)?(?P<section>\d{{1,6}}[a-z]?(?:[.-]\d{{1,6}})?)"
)
_PARAGRAPH = re.compile(
    r"§{1,2}[ \u00a0]?(?P<section>\d{1,6}[a-z]?(?:[.-]\d{1,6})?)"
    r"(?:[ \u00a0](?:Abs\.|Absatz|Satz|S\.|Nr\.|lit\.)[ \u00a0]?\w{1,4}){0,4}"
    r"(?:[ \u00a0](?P<code>[A-ZÄÖÜ][a-zäöüß]{0,8}[A-ZÄÖÜ]{1,6}\b))?"
)
_ARTICLE = re.compile(
    r"\bArt(?:\.|icle|ikel)[ \u00a0]?(?P<section>\d{1,4}[a-z]?)"
    r"(?:[ \u00a0]?(?:Abs\.|para\.)[ \u00a0]?\d{1,3}|\(\d{1,3}\)){0,3}"
    r"[ \u00a0](?:of[ ]the[ ])?(?P<code>[A-Z]{2,8}\b)"
)
_VERSUS = re.compile(r"(?<=[\w.,)])[ ]v\.?[ ](?=[A-Z])")
_PARTY_WORD = re.compile(r"[A-ZÀ-Þ][\w.&'\u2019-]{0,40}")
_JOINERS = frozenset({"of", "the", "and", "for", "in", "re", "&", "de", "del", "la", "van", "von", "ex", "rel."})

_HEADING = re.compile(
    r"^\W{0,8}(?:references|sources|bibliography|works cited|citations|quellen|literatur|literaturverzeichnis"
    r"|références|fuentes|referencias|fonti)\W{0,8}$",
    re.IGNORECASE | re.MULTILINE,
)
_ENTRY = re.compile(
    rf"^[ \t]{{0,8}}[-*]?[ \t]{{0,4}}\[\^?(\d{{1,3}})\]:?[ \t]{{0,8}}(\S.{{0,{ENTRY_CHARS}}})", re.MULTILINE
)
_NUMBERED = re.compile(rf"^[ \t]{{0,8}}(\d{{1,3}})[.)][ \t]{{1,8}}(\S.{{0,{ENTRY_CHARS}}})", re.MULTILINE)
_MARKER = re.compile(r"\[\^?(\d{1,3}(?:[ ]{0,2}[,;\u2013-][ ]{0,2}\d{1,3}){0,9})\](?![(:])")
_SECTION_SEEN = re.compile(
    r"(?:§{1,2}|\bsections?|\bsec\.|\bart(?:\.|icles?|ikel)?|\bparagraphs?|\bu\.?\s?s\.?\s?c\.?|\bc\.?\s?f\.?\s?r\.?)"
    r"\s{0,3}(?:§{1,2}\s{0,3})?(\d{1,6}[a-z]?(?:[.-]\d{1,6})?)",
    re.IGNORECASE,
)
_SENTENCE_END = ".,;:!?*_\u2026\u201d\u2019"
WORD = re.compile(r"[^\W\d_]{5,40}")


@dataclass(frozen=True, slots=True)
class Citation:
    """One citation: its kind, its words in the text, where they stand, and the `keys` that must all be seen."""

    kind: Kind
    text: str
    start: int
    end: int
    keys: tuple[str, ...] = ()


def find_citations(text: str) -> tuple[Citation, ...]:
    """The citations of a text in its order, none inside another, at most MAX_CITATIONS: URLs, DOIs, PMIDs, PMC and
    arXiv ids, statutes, case names, and numbered references where the text has a list of them."""
    text = text[:MAX_CHARS]
    found = [*_urls(text), *_identifiers(text), *_statutes(text), *_cases(text), *_references(text)]
    kept: list[Citation] = []
    for citation in sorted(found, key=lambda one: (one.start, -one.end)):
        if not kept or citation.start >= kept[-1].end:
            kept.append(citation)
            if len(kept) == MAX_CITATIONS:
                break
    return tuple(kept)


def admitted(text: str, citation: Citation) -> bool:
    """Whether the text itself says of a citation that it is unverified."""
    return UNVERIFIED in text[citation.start : citation.end + _ADMITTED_WITHIN].casefold()


class Seen:
    """All that a text's author has seen, prepared for looking things up in it."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.raw = "\n".join(texts)

    def holds(self, citation: Citation) -> bool:
        """Whether what is cited occurs here: the same identifier, parties, section and code, or the entry's words."""
        if citation.kind == "statute":
            section, *code = citation.keys
            if not code:
                return section in self._sections
            return occurs(section, self._decoded) and all(key in self._squeezed for key in code)
        if citation.kind == "case":
            return f" {citation.keys[0]} " in self._spaced
        if citation.kind in ("arxiv", "pmid", "pmcid"):
            return re.search(rf"(?<!\d){re.escape(citation.keys[0])}(?!\d)", self._decoded) is not None
        if citation.kind == "reference":
            known = sum(key in self._words for key in citation.keys)
            return bool(citation.keys) and known * 2 >= len(citation.keys)
        if not citation.keys:
            return False
        return occurs(citation.keys[0], self._decoded) or occurs(citation.text.casefold(), self._lower)

    @cached_property
    def _lower(self) -> str:
        return self.raw.casefold()

    @cached_property
    def _decoded(self) -> str:
        return _decoded(self.raw)

    @cached_property
    def _spaced(self) -> str:
        return f" {_spaced(self.raw)} "

    @cached_property
    def _squeezed(self) -> str:
        return _squeezed(self.raw)

    @cached_property
    def _sections(self) -> frozenset[str]:
        return frozenset(match[1].casefold() for match in _SECTION_SEEN.finditer(self.raw))

    @cached_property
    def _words(self) -> frozenset[str]:
        return frozenset(word.casefold() for word in WORD.findall(self.raw))


def unseen_citations(citations: Sequence[Citation], seen: Seen) -> tuple[Citation, ...]:
    """The citations of which nothing occurs in what was seen; each source once."""
    missing = {(one.kind, one.keys or one.text): one for one in reversed(citations) if not seen.holds(one)}
    return tuple(sorted(missing.values(), key=lambda one: one.start))


def occurs(key: str, text: str) -> bool:
    """Whether a key stands in a text as a whole: not as part of a longer path, number or name. A site without a path
    stands for all its pages."""
    start = text.find(key)
    while start >= 0:
        before, after = text[start - 1 : start] if start else "", text[start + len(key) : start + len(key) + 2]
        if not before.isalnum() and not _goes_on(after, site="/" not in key):
            return True
        start = text.find(key, start + 1)
    return False


def _goes_on(after: str, *, site: bool) -> bool:
    if after[:1].isalnum() or after[:1] in ("%", "_", "-"):
        return True
    return after[1:].isalnum() and (after[0] == "." or (after[0] == "/" and not site))


def _urls(text: str) -> Iterator[Citation]:
    for match in _URL.finditer(text):
        url = _trimmed(match[0])
        address = _decoded(url).partition("#")[0].partition("//")[2].removeprefix("www.").rstrip("/")
        if not _HOST.match(address):
            continue
        kind, key = _known_site(address)
        yield Citation(kind, url, match.start(), match.start() + len(url), (key,))


def _known_site(address: str) -> tuple[Kind, str]:
    """The identifier in the address of a site that is there for it."""
    site, _, path = address.partition("/")
    if site in ("doi.org", "dx.doi.org") and path.startswith("10."):
        return "doi", path
    if site == "pubmed.ncbi.nlm.nih.gov" and path.isdigit():
        return "pmid", path
    if site == "arxiv.org" and (found := re.search(r"(?:abs|pdf)/(\d{4}\.\d{4,5})(?!\d)", path)):
        return "arxiv", found[1]
    return "url", address


def _identifiers(text: str) -> Iterator[Citation]:
    for match in _DOI.finditer(text):
        doi = _trimmed(match[0])
        yield Citation("doi", doi, match.start(), match.start() + len(doi), (_decoded(doi),))
    for match in _PMID.finditer(text):
        yield Citation("pmid", match[0], match.start(), match.end(), (match[1],))
    for match in _PMCID.finditer(text):
        yield Citation("pmcid", match[0], match.start(), match.end(), (match[0].casefold(),))
    for match in _ARXIV.finditer(text):
        yield Citation("arxiv", match[0], match.start(), match.end(), (match[1].casefold(),))


def _statutes(text: str) -> Iterator[Citation]:
    for match in _NUMBERED_CODE.finditer(text):
        code = _squeezed(f"{match['title']}{match['code']}")
        yield Citation("statute", match[0], match.start(), match.end(), (match["section"].casefold(), code))
    for pattern in (_PARAGRAPH, _ARTICLE):
        for match in pattern.finditer(text):
            code = match["code"]
            keys = (match["section"].casefold(), *([_squeezed(code)] if code else []))
            yield Citation("statute", match[0].rstrip(), match.start(), match.start() + len(match[0].rstrip()), keys)


def _cases(text: str) -> Iterator[Citation]:
    for match in _VERSUS.finditer(text):
        left = text[max(0, match.start() - WINDOW) : match.start()].rpartition("\n")[2]
        right = text[match.end() : match.end() + WINDOW].partition("\n")[0]
        plaintiff, defendant = _party(left, backwards=True), _party(right, backwards=False)
        if not plaintiff or not defendant:
            continue
        words = " ".join(plaintiff), " ".join(defendant)
        start = match.start() - (len(left) - left.rfind(words[0].split()[0]))
        end = match.end() + len(words[1])
        key = f"{_spaced(plaintiff[-1])} v {_spaced(defendant[0])}"
        yield Citation("case", text[start:end], start, end, (key,))


def _party(text: str, *, backwards: bool) -> list[str]:
    """The capitalised words, and the small ones between them, that stand next to the "v."."""
    words = text.split(" ")
    if backwards:
        words.reverse()
    name: list[str] = []
    for word in words[:8]:
        if backwards and name and word.endswith((",", ";", ":", ")")):
            break
        bare = word.strip('*_"“”()[],;:')
        if _PARTY_WORD.fullmatch(bare) or (name and bare in _JOINERS):
            name.append(bare.rstrip("."))
        else:
            break
        ended = word.endswith((",", ";", ":", ")", "*", "_", '"', "”")) or (word.endswith(".") and len(bare) > 4)
        if not backwards and ended:
            break
        if backwards and word.startswith(("(", "*", "_", '"', "“")):
            break
    while name and name[-1] in _JOINERS:
        name.pop()
    return name[::-1] if backwards else name


def _references(text: str) -> Iterator[Citation]:
    """Numbered references: entries without an identifier of their own, and markers that no entry belongs to."""
    entries = {match[1]: match for match in _ENTRY.finditer(text)}
    heading = _HEADING.search(text)
    if not entries and heading is not None:
        entries = {match[1]: match for match in _NUMBERED.finditer(text, heading.end())}
    if not entries:
        return
    for match in entries.values():
        if not (
            _URL.search(match[2]) or any(_identifiers(match[2])) or any(_cases(match[2])) or any(_statutes(match[2]))
        ):
            words = tuple(dict.fromkeys(word.casefold() for word in WORD.findall(match[2])))
            if len(words) >= 3:
                yield Citation("reference", match[0].strip(), match.start(), match.end(), words)
    starts = {match.start(1) for match in entries.values()}
    for match in _MARKER.finditer(text):
        if match.start(1) in starts:
            continue
        unknown = [number for number in re.findall(r"\d+", match[1]) if number.lstrip("0") not in entries]
        if unknown:
            yield Citation("reference", match[0], match.start(), match.end())


def _trimmed(text: str) -> str:
    """Without the sentence's own punctuation at the end, and without brackets that were opened before it."""
    while text and (text[-1] in _SENTENCE_END or (text[-1] == ")" and text.count(")") > text.count("("))):
        text = text[:-1]
    return text


def _decoded(text: str) -> str:
    return unquote(text.replace("&amp;", "&")).casefold()


def _spaced(text: str) -> str:
    """Words alone, one blank between them, with every "versus" as v."""
    words = re.sub(r"(?:[^\w&'\u2019-]|_)+", " ", text.casefold()).split()
    return " ".join("v" if word in ("vs", "versus") else word for word in words)


def _squeezed(text: str) -> str:
    return re.sub(r"[^\w]+", "", text).casefold()

"""What keys of well-known services look like, and how to find them in a text that may come in pieces.

A shape has a head that is no secret ("sk-", "Bearer ") and a token behind it, which is masked. A marker, a literal
part of the head, says where to look: texts without any marker cost a search for a few literals and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

MASK = "***"
CONTEXT = 128
"""Characters of what was shown that are kept, so that a head that came in pieces is known: no head is longer."""
HELD = 256
"""Token characters after a head for which it is waited whether they become a key."""
LOOK = 200
"""Within so many characters a token that must have a digit has its first one: key material is not made of words."""


@dataclass(frozen=True, slots=True)
class Shape:
    """`full` matches a head (group 1) and a complete token (group 2); `begun` a head and whatever may become its token,
    up to the text's end. `more`: what lengthens a token that is one already; None: its end decides."""

    markers: tuple[str, ...]
    back: int
    full: re.Pattern[str]
    begun: re.Pattern[str]
    more: re.Pattern[str] | None


def _token(markers: str, chars: str, least: int, *, digit: bool = True, head: str = "", back: int = 0) -> Shape:
    """A shape whose token is at least `least` of `chars` long. Without `head` each marker is one."""
    names = tuple(markers.split())
    head = head or f"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, names))})"
    letters = chars.replace("0-9", "").replace(r"\w", "A-Za-z_")
    ahead = rf"(?=[{letters}]{{0,{LOOK}}}[0-9])" if digit else ""
    return Shape(
        names,
        back,
        re.compile(rf"({head}){ahead}([{chars}]{{{least},}})"),
        re.compile(rf"({head})[{chars}]{{0,{HELD}}}\Z"),
        re.compile(f"[{chars}]+"),
    )


_USER = r"""[^\s/"'<>?#@:\\]"""
_PASSWORD = r"""[^\s/"'<>?#\\]"""
_BASE64 = r"A-Za-z0-9+/="
_PEM = "-----BEGIN [A-Z0-9 ]{0,60}PRIVATE KEY-----"

SHAPES = (
    _token("sk- sk_ tvly- glpat- xai- dwk_", r"A-Za-z0-9_-", 20),
    _token("gsk_ hf_ github_pat_", r"A-Za-z0-9_", 20),
    _token("gh", r"A-Za-z0-9_", 20, head=r"(?<![A-Za-z0-9])gh[pousr]_"),
    _token("AKIA ASIA", r"A-Z0-9", 16, digit=False),
    _token("AIza", r"A-Za-z0-9_-", 30),
    _token("xox", r"A-Za-z0-9-", 10, head=r"(?<![A-Za-z0-9])xox[abeprs]-"),
    _token("earer", r"A-Za-z0-9._~+/=-", 12, head=r"(?<![A-Za-z0-9])[Bb]earer[ \t]{1,4}", back=1),
    Shape(
        ("-----BEGIN ",),
        0,
        re.compile(rf"({_PEM})((?:\s|\\[nr]){{0,8}}[{_BASE64}]{{16,}}[{_BASE64}\s\\]*)"),
        re.compile(rf"({_PEM})[{_BASE64}\s\\]{{0,{HELD}}}\Z"),
        re.compile(rf"[{_BASE64}\s\\]+"),
    ),
    Shape(
        ("://",),
        0,
        re.compile(rf"(://)({_USER}{{0,{HELD}}}:{_PASSWORD}{{1,{HELD}}})(?=@)"),
        re.compile(rf"(://){_PASSWORD}{{0,{2 * HELD + 2}}}\Z"),
        None,
    ),
)  # fmt: skip
"""Keys of model and search providers, code hosts, clouds and chats; bearer tokens; private keys; passwords in URLs."""
_GROUPS = tuple(
    (
        gate,
        tuple(
            (marker, shape)
            for shape in SHAPES
            for marker in shape.markers
            if gate == next((end for end in "-_" if marker.endswith(end)), "")
        ),
    )
    for gate in ("", "-", "_")
)
"""Markers by a character that all of a group have: most short texts lack it, and the group is passed over."""

MAYBE_KEY = re.compile(
    r"\b(?:sk|pk|key|xai|gsk|dwk)[-_][\w*.-]{6,}|\bBearer\s+[^\s\"',;]+"
    r"|(?<=[?&])(?:api[-_]?key|key|access[-_]?token|token|secret|password)=[^&\s\"'#]+",
    re.IGNORECASE,
)
"""For error texts, where a word masked too many costs nothing: also pieces of keys, and keys as query parameters."""
SENSITIVE_NAME = re.compile(
    r"^(?:proxy-)?authorization$|^(?:set-)?cookie$|api[-_]?key$|(?:^|[-_])(?:password|passwd|secret)$"
    r"|(?:access|auth|bearer|refresh|api)[-_]?token$|secret[-_]?(?:access[-_]?)?key$|private[-_]?key$",
    re.IGNORECASE,
)
"""Names of fields whose value is a secret whatever it looks like."""


def masked_shapes(text: str) -> str:
    """The text with the tokens of all shapes masked; the same object where there is none."""
    if not _candidates(text, 0):
        return text
    scan = ShapeScan()
    shown = scan.feed(text, final=True)
    return shown if scan.found else text


def _candidates(text: str, place: int) -> Sequence[tuple[int, Shape]]:
    """Where from `place` on a shape may begin, in order."""
    found = []
    for gate, group in _GROUPS:
        if gate not in text:
            continue
        for marker, shape in group:
            at = text.find(marker, place)
            while at >= 0:
                if at - shape.back >= place:
                    found.append((at - shape.back, shape))
                at = text.find(marker, at + 1)
    return sorted(found, key=lambda candidate: candidate[0]) if len(found) > 1 else found


class ShapeScan:
    """Masks the shapes in a text that comes in pieces, left to right, each once. `found`: whether there was any."""

    def __init__(self) -> None:
        self.found = False
        self._text = ""  # shown characters that may belong to a head, then what is held back
        self._shown = 0  # so many characters of it were shown
        self._place = 0  # from here on shapes are looked for
        self._more: re.Pattern[str] | None = None  # inside a token that is masked already

    def feed(self, piece: str, *, final: bool = False) -> str:
        """What can be shown after this piece."""
        text = self._text + piece if self._text else piece
        if self._more is not None:
            rest = self._more.match(text, self._shown)
            self._shown = self._place = rest.end() if rest is not None else self._shown
            if self._shown < len(text):
                self._more = None
        out: list[str] = []
        held = self._scan(text, out, final=final)
        out.append(text[self._shown : held])
        self._shown = max(self._shown, held)
        self._keep(text)
        return "".join(out) if len(out) > 1 else out[0]

    def end(self) -> str:
        """What was held back."""
        return self.feed("", final=True)

    def _scan(self, text: str, out: list[str], *, final: bool) -> int:
        """Masks what is decided; returns up to where the text can be shown."""
        for start, shape in _candidates(text, self._place):
            if start < self._place:
                continue
            full = shape.full.match(text, start)
            at_end = full is not None and shape.more is not None and full.end() == len(text)
            if not final and not at_end and (begun := shape.begun.match(text, start)) is not None:
                self._place = start
                return begun.end(1)
            if full is not None:
                out += [text[self._shown : full.end(1)], MASK]
                self.found = True
                self._shown = self._place = full.end()
                if at_end and not final:
                    self._more = shape.more
        return len(text)

    def _keep(self, text: str) -> None:
        """Forgets what no coming head or look behind can need."""
        if self._place == len(text):  # nothing but a look behind of one character
            start = len(text) - 1
        elif self._shown < len(text):  # held from `place` on
            start = self._place - 1
        else:
            start = self._place = max(self._place, len(text) - CONTEXT)
            start -= 1
        start = max(0, start)
        self._text = text[start:]
        self._shown -= start
        self._place -= start

"""A model's thinking, taken out of its text: whatever stands inside is neither an answer nor a call."""

from __future__ import annotations

import re

_NAMES = r"(?:think|thinking|thought|thoughts|reasoning|reflection|scratchpad|seed:think)"
_OPEN = re.compile(
    rf"<({_NAMES})>|(\[THINK\])|(◁think▷)|(<\|begin_of_thought\|>)|(<\|START_THINKING\|>)"
    r"|(<\|channel\|>analysis<\|message\|>)|(<\|channel>thought\b)"
    rf"|(</{_NAMES}>|\[/THINK\]|◁/think▷|<\|end_of_thought\|>|<\|END_THINKING\|>)",
    re.IGNORECASE,
)
_CLOSERS = {
    2: re.compile(r"\[/THINK\]"),
    3: re.compile("◁/think▷"),
    4: re.compile(r"<\|end_of_thought\|>"),
    5: re.compile(r"<\|END_THINKING\|>"),
    6: re.compile(r"<\|end\|>|<\|call\|>|<\|return\|>|(?=<\|start\|>)|(?=<\|channel\|>(?!analysis))"),
    7: re.compile(r"<channel\|>"),
}
_UNOPENED = 8


def strip_reasoning(text: str) -> tuple[str, str]:
    """The reasoning and the rest.

    A block that is never closed takes everything after it; a closing mark that was never opened (the opening one
    stands in the prompt's template) takes everything before it. A mark inside a quoted string on the same line is text.
    """
    if "<" not in text and "[" not in text and "◁" not in text:
        return "", text
    thoughts: list[str] = []
    kept: list[str] = []
    at = 0
    while match := _next(text, at):
        if match.group(_UNOPENED):
            thoughts.append("".join(kept) + text[at : match.start()])
            kept.clear()
            at = match.end()
            continue
        kept.append(text[at : match.start()])
        closer = _closer(match).search(text, match.end())
        thoughts.append(text[match.end() : closer.start() if closer else len(text)])
        at = closer.end() if closer else len(text)
    kept.append(text[at:])
    return "\n".join(part for part in map(str.strip, thoughts) if part), "".join(kept)


def _next(text: str, at: int) -> re.Match[str] | None:
    """The next mark outside quotes."""
    line = at
    quotes = 0
    for match in _OPEN.finditer(text, at):
        newline = text.rfind("\n", line, match.start())
        if newline >= 0:
            quotes, line = 0, newline
        quotes += text.count('"', line, match.start()) - text.count('\\"', line, match.start())
        line = match.start()
        if quotes % 2 == 0:
            return match
    return None


def _closer(match: re.Match[str]) -> re.Pattern[str]:
    if name := match.group(1):
        return re.compile(rf"</{re.escape(name)}>", re.IGNORECASE)
    return _CLOSERS[match.lastindex or 0]

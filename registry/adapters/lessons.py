"""What a model's server taught by refusing something: learned once, remembered for all users of the model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from registry.errors import BadRequestError, ContextLengthError, LLMError
from registry.llm_types import ChatRequest, Prepared

from .failures import REFUSED, RefusedRequestError

STRICT_ALTERNATION = "strict_alternation"
NEEDS_REASONING_ECHO = "needs_reasoning_echo"
NEEDS_TOOLS_DEFINED = "needs_tools_defined"
QUIRKS = (STRICT_ALTERNATION, NEEDS_REASONING_ECHO, NEEDS_TOOLS_DEFINED)
"""Known peculiarities of servers: one system message and strict turns; their reasoning text wanted back; tools
described wherever the history has calls, also when none may be called."""

MIN_OUTPUT = 256
"""An output allowance below this many tokens is not worth a try: the conversation is too long."""
SPARE_TOKENS = 32
"""Left free when the allowance is fitted to the context: counts in messages are not always exact."""
CAPS_KEPT = 64

_REFUSAL_CODES = ("unsupported_parameter", "unsupported_value", "unknown_parameter")
_ALTERNATE = re.compile(
    r"must alternate|alternate user|system (?:message|role).{0,40}(?:begin|first|start|not supported)"
    r"|unexpected role|after role",
    re.IGNORECASE,
)
_ECHO = re.compile(
    r"reasoning_content.{0,120}(?:must|missing|require|pass)|missing.{0,40}reasoning_content", re.I | re.S
)
_DEFINE = re.compile(
    r"must (?:define|specify|provide|include).{0,10}tools|tools.{0,40}(?:required|must be).{0,60}tool_use", re.I
)
_REASONING = re.compile(r"thinking|reasoning", re.IGNORECASE)
_AT_MOST = (
    re.compile(r"at most (\d+) (?:completion|output) tokens"),
    re.compile(r"\d+ > (\d+), which is the maximum"),
    re.compile(
        r"max(?:imum)?_?(?:completion_|output_)?tokens.{0,60}(?:less than or equal to|<=|range.{0,12}\[\d+,) ?(\d+)"
    ),
)
_SPLIT = (  # (pattern, how the groups are called)
    (
        re.compile(r"maximum context length is (\d+).*?\((\d+) in (?:the )?(?:messages|prompt)", re.S),
        ("size", "prompt"),
    ),
    (
        re.compile(r"maximum context length is (\d+).*?(?:prompt|request) (?:has|contains).*?(\d+)", re.S),
        ("size", "prompt"),
    ),
    (re.compile(r"passed (\d+) input tokens.*?context length is(?: only)? (\d+)", re.S), ("prompt", "size")),
    (re.compile(r"exceed context limit: (\d+) \+ \d+ > (\d+)"), ("prompt", "size")),
)


@dataclass(frozen=True, slots=True)
class Sent:
    """What a prepared call asks for, as far as a refusal may speak of it.

    `params`: what can be left out, each with the name under which a refusal speaks of it.
    """

    params: Mapping[str, str] = field(default_factory=dict)
    reasoning: bool = False
    forced: bool = False
    max_tokens: int | None = None


@dataclass(slots=True)
class Lessons:
    """Shared by a model and its scoped twins."""

    max_tokens_name: str
    dropped: dict[str, str] = field(default_factory=dict)
    quirks: set[str] = field(default_factory=set)
    max_output: int | None = None
    no_reasoning_when_forced: bool = False
    reasons: bool = False
    renamed: bool = False
    caps: dict[int, tuple[ChatRequest, int]] = field(default_factory=dict)

    def output_limit(self, request: ChatRequest, asked: int | None) -> int | None:
        """The output tokens to ask for: what was asked, within what the server is known to take."""
        limits = [limit for limit in (asked, self.max_output, self._cap(request)) if limit is not None]
        return min(limits) if limits else None

    def _cap(self, request: ChatRequest) -> int | None:
        entry = self.caps.get(id(request))
        return entry[1] if entry is not None and entry[0] is request else None

    def learn(self, error: LLMError, prepared: Prepared) -> bool:
        """Takes in what an error says; True when the same request is now worth another try."""
        if not isinstance(error, BadRequestError | ContextLengthError):
            return False
        sent = prepared.extra if isinstance(prepared.extra, Sent) else Sent()
        message = str(error)
        return (
            self._learn_limit(message, prepared.request, sent)
            or self._learn_name(error, message, sent)
            or self._learn_forced(message, sent)
            or self._learn_param(error, message, sent)
            or self._learn_quirk(message)
        )

    def _learn_limit(self, message: str, request: ChatRequest, sent: Sent) -> bool:
        if sent.max_tokens is None:
            return False
        plain = re.sub(r"(?<=\d),(?=\d{3})", "", message)
        for pattern in _AT_MOST:
            if match := pattern.search(plain):
                limit = int(match[1])
                if 0 < limit < (self.max_output or limit + 1):
                    self.max_output = limit
                    return True
                return limit == self.max_output and sent.max_tokens <= limit
        for pattern, names in _SPLIT:
            if match := pattern.search(plain):
                numbers = dict(zip(names, map(int, match.groups()), strict=True))
                room = numbers["size"] - numbers["prompt"] - SPARE_TOKENS
                if not min(MIN_OUTPUT, sent.max_tokens - 1) <= room < sent.max_tokens:
                    return False
                while len(self.caps) >= CAPS_KEPT:
                    del self.caps[next(iter(self.caps))]
                self.caps[id(request)] = (request, room)
                return True
        return False

    def _learn_name(self, error: LLMError, message: str, sent: Sent) -> bool:
        """`max_tokens` or `max_completion_tokens`: the server says which. Changed once, lest two servers behind one
        address send us back and forth."""
        named = error.param or ""
        other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
        if sent.max_tokens is None or self.max_tokens_name not in other:
            return False
        refused = _says_refused(error, message)
        if (named in other and refused) or (refused and "max_completion_tokens" in message and not named):
            if named == other[self.max_tokens_name] and self.renamed:
                return True  # someone else learned it while this call was under way
            if self.renamed:
                return False
            self.max_tokens_name, self.renamed = other[self.max_tokens_name], True
            return True
        return False

    def _learn_forced(self, message: str, sent: Sent) -> bool:
        """Forced tools beside reasoning are refused by some: reasoning is then switched off for such calls."""
        if not (sent.forced and sent.reasoning and _REASONING.search(message) and "tool" in message.lower()):
            return False
        if self.no_reasoning_when_forced:
            return False
        self.no_reasoning_when_forced = True
        return True

    def _learn_param(self, error: LLMError, message: str, sent: Sent) -> bool:
        if not _says_refused(error, message):
            return False
        given = (error.param or "").split(".")
        for name, said in (*sent.params.items(), *self.dropped.items()):
            if said in given or (_names(message, said) and error.param in (None, "", *_MISREAD)):
                self.dropped[name] = said  # one already dropped was sent before another call learned of it
                return True
        return False

    def _learn_quirk(self, message: str) -> bool:
        known = ((STRICT_ALTERNATION, _ALTERNATE), (NEEDS_REASONING_ECHO, _ECHO), (NEEDS_TOOLS_DEFINED, _DEFINE))
        for quirk, words in known:
            if words.search(message) and quirk not in self.quirks:
                self.quirks.add(quirk)
                return True
        return False


_MISREAD = ("tools", "tool_choice", "response_format")
"""Mechanisms that are only guessed from a text; a parameter that the text names in full goes first."""


def _names(message: str, name: str) -> bool:
    return re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", message) is not None


def _says_refused(error: LLMError, message: str) -> bool:
    code = error.provider_code if isinstance(error, RefusedRequestError) else ""
    return code in _REFUSAL_CODES or REFUSED.search(message) is not None

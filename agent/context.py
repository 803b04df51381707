"""The context guard: before every model call the conversation is made to fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from registry.context import calling
from registry.errors import LLMError
from registry.llm import LLM
from registry.messages import Message, Usage
from registry.text import cut_middle, load_prompt
from registry.tokens import estimate_messages

from .trust import balanced

UNKNOWN_CONTEXT, UNKNOWN_OUTPUT = 128_000, 64_000
"""Tokens assumed for a model that says nothing of itself."""
MIN_BUDGET = 4_000
"""The budget in tokens never falls under the smaller of this and half the context."""
MAX_MESSAGE_CHARS = 50_000
"""A single user or tool message longer than this is cut."""
KEEP_NEWEST = 4
"""Messages at the end that compaction leaves as they are."""
PINNED_SHARE = 0.5
"""Pinned messages beyond this share of the budget are unpinned, the oldest interrupts first."""
SUMMARY_TOKENS = 1_024
SUMMARY_WORDS = 400
FATAL = ("auth", "quota")
"""Provider errors after which nothing else can succeed: they fail a run or a job at once, whoever met them."""
ENDS_CHARS = 100
"""Characters that a cut text may get anew around its data."""
TRUNCATED = "\n[Truncated]\n"
SUMMARY = "[Conversation summary]"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A conversation that fits: its messages, whether older ones were summarised or dropped, and what that cost."""

    messages: tuple[Message, ...]
    compacted: bool = False
    usage: Usage = Usage.zero()  # noqa: RUF009 - frozen


@dataclass(frozen=True, slots=True)
class ContextGuard:
    """Keeps conversations within a model's context.

    `context_size` and `max_output_tokens` (tokens) override what the model says of itself; `compact_llm` summarises,
    else the bound model does.
    """

    context_size: int | None = None
    max_output_tokens: int | None = None
    compact_llm: LLM | None = None

    def budget(self, llm: LLM) -> int:
        """Input tokens that a conversation with this model may have."""
        context = self.context_size or llm.context_size or UNKNOWN_CONTEXT
        output = self.max_output_tokens or llm.max_output_tokens
        if output is None:
            output = min(UNKNOWN_OUTPUT, context // 2)
        return max(context - output, min(MIN_BUDGET, context // 2))

    async def fit(
        self,
        messages: Sequence[Message],
        llm: LLM,
        *,
        hint: str = "react_iteration",
        tokens: int | None = None,
        overhead: int = 0,
        share: float = 1.0,
        marker: str = "",
    ) -> Fitted:
        """The same conversation within `share` of the budget.

        `tokens` is the better count of the whole where the caller has one; `overhead` what comes on top of the
        messages (tool schemas). `hint` names the prompt: react_iteration, planner_input, step_dependency, general.
        `marker` is the code that delimits data: they stay delimited, however they are cut.
        """
        query = next((message for message in messages if message.pinned), None)
        window = tuple(message if message is query else _cut(message, marker) for message in messages)
        changed = any(new is not old for new, old in zip(window, messages, strict=True))
        budget = max(1, int(self.budget(llm) * share) - overhead)
        size = estimate_messages(window)
        if tokens is not None and not changed:
            size = max(size, tokens - overhead)
        if size <= budget:
            return Fitted(window if changed else tuple(messages))
        window = _unpin(window, int(budget * PINNED_SHARE))
        older, window = _split(window)
        usage = Usage.zero()
        if older:
            summary, usage = await self._summary(older, llm, hint, budget, marker)
            window = _with_summary(window, summary)
        return Fitted(_shrink(window, budget, marker), True, usage)

    async def summarise(self, text: str, llm: LLM, hint: str, *, tail: int) -> tuple[str, Usage]:
        """A text in few words by a model; its last `tail` characters where that fails."""
        summary, usage = await self._ask(text, llm, hint, self.budget(llm))
        return (summary or text[-tail:]), usage

    async def _summary(
        self, older: Sequence[Message], llm: LLM, hint: str, budget: int, marker: str
    ) -> tuple[str, Usage]:
        transcript = "\n\n".join(_line(message) for message in older)
        summary, usage = await self._ask(transcript, llm, hint, budget, marker)
        return balanced(summary or cut_middle(transcript, max(400, min(8_000, budget))), marker), usage

    async def _ask(self, text: str, llm: LLM, hint: str, budget: int, marker: str = "") -> tuple[str, Usage]:
        model = self.compact_llm or llm
        room = max(1_000, min(budget, self.budget(model)) * 2)  # characters: two a token is safe for most scripts
        prompt = load_prompt("agent", f"compact_{hint}").substitute(words=SUMMARY_WORDS)
        request = [Message.system(prompt), Message.user(balanced(cut_middle(text, room), marker))]
        try:
            with calling(role="compaction"):
                result = await model.chat(request, max_tokens=SUMMARY_TOKENS)
        except LLMError as error:
            if error.code in FATAL:  # the operator's business: cutting texts would only hide it
                raise
            log.warning("compaction_failed", error=str(error), code=error.code)
            return "", Usage.zero()
        return result.message.content.strip(), result.usage or Usage.unknown()


def _cut(message: Message, marker: str) -> Message:
    """User and tool texts over the limit are cut (the query is not: it has a bound of its own)."""
    if len(message.content) <= MAX_MESSAGE_CHARS or message.role not in ("user", "tool"):
        return message
    return replace(
        message, content=balanced(cut_middle(message.content, MAX_MESSAGE_CHARS - ENDS_CHARS, TRUNCATED), marker)
    )


def _unpin(messages: tuple[Message, ...], allowed: int) -> tuple[Message, ...]:
    """Unpins the oldest interrupts until the pinned ones fit; the first pinned message is the query and stays."""
    pinned = [place for place, message in enumerate(messages) if message.pinned]
    total = estimate_messages(messages[place] for place in pinned)
    out = list(messages)
    for place in pinned[1:]:
        if total <= allowed:
            break
        total -= estimate_messages([out[place]])
        out[place] = replace(out[place], pinned=False)
    return tuple(out)


def _split(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """What may be summarised, and what stays: system, pinned, and the newest ones.

    It goes by exchanges: an assistant message and the results of its calls stay or go together.
    """
    exchanges = _exchanges(messages)
    start, newest = len(exchanges), 0
    while start > 0 and newest < KEEP_NEWEST:
        start -= 1
        newest += len(exchanges[start])
    older: list[Message] = []
    kept: list[Message] = []
    for place, exchange in enumerate(exchanges):
        fixed = place >= start or any(message.pinned or message.role == "system" for message in exchange)
        (kept if fixed else older).extend(exchange)
    return tuple(older), tuple(kept)


def _exchanges(messages: Sequence[Message]) -> list[list[Message]]:
    """The conversation in parts that belong together. A result that comes late goes to its turn; one without a call, or
    a second one for the same call, belongs nowhere and is left out."""
    exchanges: list[list[Message]] = []
    turn: list[Message] = []
    waiting: set[str | None] = set()
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id in waiting:
                waiting.discard(message.tool_call_id)
                turn.append(message)
            continue
        exchanges.append([message])
        if message.role == "assistant":
            turn, waiting = exchanges[-1], {call.id for call in message.tool_calls}
    return exchanges


def _with_summary(kept: tuple[Message, ...], summary: str) -> tuple[Message, ...]:
    """The summary stands after the system messages and before all else, so that no assistant turn comes first."""
    heads = next((place for place, message in enumerate(kept) if message.role != "system"), len(kept))
    return (*kept[:heads], Message.user(f"{SUMMARY}\n{summary}"), *kept[heads:])


def _shrink(messages: tuple[Message, ...], budget: int, marker: str) -> tuple[Message, ...]:
    """Cuts the longest user and tool texts, unpinned ones first, until the whole fits; calls are never touched."""
    for pinned_too in (False, True):
        limit = max((len(message.content) for message in messages), default=0)
        while estimate_messages(messages) > budget and limit > 200:  # below that nothing is readable
            limit = max(200, limit // 2)
            messages = tuple(
                replace(message, content=balanced(cut_middle(message.content, limit, TRUNCATED), marker))
                if message.role in ("user", "tool")
                and len(message.content) > limit
                and (pinned_too or not message.pinned)
                else message
                for message in messages
            )
    return messages


def _line(message: Message) -> str:
    calls = "".join(f"\n  calls {call.name}({call.raw or dict(call.arguments)})" for call in message.tool_calls)
    return f"{message.role}: {message.content}{calls}"

"""How a call of a tool came out: as its tool ended, as it is recorded, or, where its process died meanwhile, as far as
that can be known."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from registry.messages import ToolCall, Usage
from registry.redaction import MASK
from registry.text import load_prompt
from registry.tool_run import run_tool
from registry.tools import NO_PARAMETERS, Tool, is_async

from .events import Emit
from .past import CallPast


@dataclass(frozen=True, slots=True)
class CallEnd:
    """What came of a call that was begun. `own`: the text is ours or the tool's own, not a stranger's; `known`: it was
    not run, since an identical one had answered; `usage`: what models cost inside it; `artifact`: what readers are told
    of one. `uncertain`: nobody knows whether it took effect."""

    text: str
    is_error: bool
    elapsed: float = 0.0
    own: bool = False
    known: bool = False
    usage: Usage | None = None
    artifact: Mapping[str, Any] | None = None
    uncertain: bool = False

    def to_json(self) -> dict[str, Any]:
        """What the `call` event says of it."""
        told: dict[str, Any] = {"observation": self.text}
        if self.uncertain:
            return told
        told |= {"is_error": self.is_error, "elapsed": self.elapsed}
        more = {
            "own": self.own or None,
            "known": self.known or None,
            "usage": None if self.usage is None else self.usage.to_json(),
            "artifact": self.artifact,
        }
        return told | {name: value for name, value in more.items() if value is not None}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> CallEnd:
        """Reads the payload of a `call` event."""
        if told["status"] == "uncertain":
            return cls(told["observation"], True, own=True, uncertain=True)
        usage = told.get("usage")
        return cls(
            told["observation"],
            told["is_error"],
            told.get("elapsed", 0.0),
            told.get("own", False),
            told.get("known", False),
            None if usage is None else Usage.from_json(usage),
            told.get("artifact"),
        )


async def recorded_end(tool: Tool, known: CallPast | None, tell: Emit) -> CallEnd | None:
    """What came of a call that was begun before, without running it; None: it is to be run.

    What is recorded stands. One that was under way when its process died is run again where that does no harm, or where
    the tool says that it had no effect; else it is not, and unless the tool says that it took effect nobody knows.
    """
    if known is None or known.begun is None:
        return None
    if known.over is not None:
        return CallEnd.from_json(known.over)
    took_effect = known.took_effect
    if took_effect is None and not (tool.read_only or tool.idempotent or tool.pure):
        took_effect = await verified(tool, known.key)
        if took_effect is None:
            return CallEnd(load_prompt("agent", "uncertain").substitute(tool=tool.name), True, own=True, uncertain=True)
    if took_effect:
        tell("call", status="settled", key=known.key, took_effect=True, by="verify")
        return CallEnd(load_prompt("agent", "took_effect").substitute(tool=tool.name), False, own=True)
    if masked(known.begun.get("tool_args")):
        return CallEnd(masked_text(tool.name), True, own=True)
    return None


async def verified(tool: Tool, key: str) -> bool | None:
    """Whether the effect of the call with this key happened, as the tool's own `verify` says, under the tool's time
    limit; None where it can't say: there is none, it raises, is late, or answers neither True nor False."""
    if (verify := tool.verify) is None:
        return None
    said: list[Any] = []

    async def ask() -> None:
        said.append(await verify(key))

    def ask_in_thread() -> Any:
        value = verify(key)
        return _said(value, said) if inspect.isawaitable(value) else said.append(value)

    asked = Tool(tool.name, "verify", NO_PARAMETERS, ask if is_async(verify) else ask_in_thread, timeout=tool.timeout)
    outcome = await run_tool(asked, {})
    return said[0] if not outcome.is_error and said and isinstance(said[0], bool) else None


async def _said(value: Any, said: list[Any]) -> None:
    said.append(await value)


def masked(value: Any) -> bool:
    """Whether a secret was masked in this JSON data when it was recorded. A text that looks so is taken for masked."""
    if isinstance(value, str):
        return MASK in value
    if isinstance(value, Mapping):
        return any(masked(key) or masked(item) for key, item in value.items())
    return isinstance(value, list | tuple) and any(masked(item) for item in value)


def masked_call(call: ToolCall) -> bool:
    """Whether the arguments that a model gave were masked when they were recorded."""
    return masked(call.arguments if call.decoded else call.raw)


def masked_text(name: str) -> str:
    """The observation of a call that is not run because its arguments are masked."""
    return load_prompt("agent", "masked").substitute(tool=name, mask=MASK)

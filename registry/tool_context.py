"""What a tool may know of the call it serves, and the models it may use on the job's account."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import UsageError

if TYPE_CHECKING:
    from .llm import LLM


def _no_model(role: str | None) -> LLM:
    raise UsageError("there is no model here: the tool was called outside an agent's run")


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Given to a tool that has a parameter of this type; the model never sees that parameter.

    `key` is the call's own, the same when an interrupted job goes on: a service that knows it can tell a repetition.
    `job_id` and `step_id` are empty and None outside a job and a plan.
    """

    tool_name: str = ""
    key: str = ""
    job_id: str = ""
    step_id: str | None = None
    _llm: Callable[[str | None], LLM] = field(default=_no_model, repr=False)

    def llm(self, role: str | None = None) -> LLM:
        """The model of a role or a name, by default the general one. Its calls pass the job's gate, budget and ledger,
        and count as this tool call's. Raises UsageError outside an agent's run."""
        return self._llm(role)


def context_parameter(function: Callable[..., Any]) -> str:
    """The name of the function's parameter that takes a ToolContext; "" where there is none."""
    target: Any = getattr(function, "func", function)
    if not inspect.isroutine(target):
        target = type(target).__call__
    hints = getattr(target, "__annotations__", {})
    for name, hint in hints.items():
        if name != "return" and _is_context(hint):
            return str(name)
    return ""


def _is_context(hint: Any) -> bool:
    if isinstance(hint, str):  # written under `from __future__ import annotations`
        return any(part.strip().rpartition(".")[2] == "ToolContext" for part in hint.split("|"))
    return hint is ToolContext or any(part is ToolContext for part in getattr(hint, "__args__", ()))

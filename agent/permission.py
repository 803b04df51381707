"""Whether a call may run: the guards say, and where one of them or the tool wants it, a human."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from registry.context import caller
from registry.tools import Tool

from .hook_run import copied
from .hooks import HookContext, HookRegistry
from .waits import ApprovalRequest, PendingCall, Waits, merged


class NotPermittedError(Exception):
    """The call must not run; the text says why, to the model."""


class Permission:
    """Asks the hooks, then whoever decides on calls that wait. `metadata` is what hooks are told of the run."""

    def __init__(self, hooks: HookRegistry, waits: Waits, metadata: Mapping[str, Any]) -> None:
        self._hooks, self._waits, self._metadata = hooks, waits, metadata

    async def of(
        self,
        tool: Tool,
        arguments: dict[str, Any],
        call_id: str,
        taint: tuple[str, ...],
        waited: PendingCall | None = None,
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The arguments to run with, validated again where a guard rewrote them, and the guards' notes. `taint`: what
        the agent has read that is not to be trusted. One that `waited` for a human in another process passed the
        guards then, and goes on waiting. Raises NotPermittedError."""
        if waited is not None:
            await self._approved(waited, tool, ())
            return dict(waited.tool_args), ()
        asked: list[ApprovalRequest | None] = []
        notes: tuple[str, ...] = ()
        if len(self._hooks):
            verdict = await self._hooks.before(self.context(tool, arguments))
            if verdict.blocked is not None:
                raise NotPermittedError(f"The call was blocked: {verdict.blocked}")
            arguments, notes = _rewritten(tool, arguments, verdict.ctx.tool_args), verdict.notes
            asked.append(verdict.approval)
        if tool.requires_approval:
            asked.append(ApprovalRequest("this tool is only called with a human's approval"))
        if tool.requires_trusted_input and taint:
            read = ", ".join(taint)
            asked.append(ApprovalRequest(f"this tool needs trusted input, and its step has read text from {read}"))
        if (request := merged(asked)) is not None:
            shown = copied(arguments)  # what others do to it changes nothing of the call
            await self._approved(PendingCall(call_id, tool.name, shown, request, caller().step_id), tool, notes)
        return arguments, notes

    async def _approved(self, call: PendingCall, tool: Tool, notes: tuple[str, ...]) -> None:
        decision = await self._waits.park(call)
        if decision.approve:
            return
        reason = f"not approved ({call.request.reason}): {decision.reason or 'rejected'}"
        if len(self._hooks):
            await self._hooks.blocked(self.context(tool, call.tool_args), reason, notes)
        raise NotPermittedError(f"The call was {reason}")

    def context(self, tool: Tool, arguments: Mapping[str, Any]) -> HookContext:
        """What hooks are told of a call."""
        who = caller()
        metadata = {**self._metadata, "job_id": who.job_id, "step_id": who.step_id}
        return HookContext(tool.name, arguments, metadata.get("agent_id"), metadata.get("user_id"), metadata, tool=tool)


def _rewritten(tool: Tool, arguments: dict[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
    if args is arguments:
        return arguments
    try:
        return tool.check(args)
    except ValueError as error:
        raise NotPermittedError(f"A hook rewrote the arguments, and they no longer fit: {error}") from None

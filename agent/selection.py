"""With many tools, a first light call picks the few that the task needs."""

from __future__ import annotations

from typing import Any

import structlog

from registry.context import calling
from registry.errors import DagwrightError
from registry.llm import LLM
from registry.messages import Message, Usage
from registry.text import cut_end, load_prompt
from registry.tools import ToolRegistry

from .structured import StructuredOutputError, structured_llm_call

TOOL_SELECTION_THRESHOLD = 12
"""With more tools than this, a selection comes first."""
_TOOL_SELECTION_MAX = 6
"""Tools a selection may pick, pinned ones not counted."""
LINE_CHARS = 80
"""Characters of a tool's description in the catalogue."""

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "tools": {"type": "array", "items": {"type": "string", "maxLength": 80}, "maxItems": _TOOL_SELECTION_MAX}
    },
    "required": ["tools"],
}

log = structlog.get_logger(__name__)


async def select_tools(llm: LLM, tools: ToolRegistry, query: str) -> tuple[ToolRegistry, Usage]:
    """The tools for a task, in their registered order, and what the choice cost.

    Never breaks a run: an unreadable choice, only unknown names or an error mean all tools.
    """
    catalogue = "\n".join(f"{tool.name}: {cut_end(_first_line(tool.description), LINE_CHARS)}" for tool in tools)
    prompt = load_prompt("agent", "selection").substitute(limit=_TOOL_SELECTION_MAX, catalogue=catalogue)
    try:
        with calling(role="selection"):
            call = await structured_llm_call(
                llm, [Message.system(prompt), Message.user(query)], _lenient(), "select_tools", default_value=None
            )
    except StructuredOutputError as error:
        return tools, error.usage
    except DagwrightError as error:
        log.warning("tool_selection_failed", error=str(error), code=error.code)
        return tools, Usage.zero()
    picked = call.value.get("tools", ()) if isinstance(call.value, dict) else ()
    known = [name for name in dict.fromkeys(picked) if name in tools][:_TOOL_SELECTION_MAX]
    if not known:
        return tools, call.usage
    wanted = {*known, *(tool.name for tool in tools if tool.pinned)}
    return tools.subset([name for name in tools.names() if name in wanted]), call.usage


def _lenient() -> dict[str, Any]:
    """The schema; a list that is too long is cut by us, so that a whole answer is not lost for it."""
    return {**SCHEMA, "properties": {"tools": {**SCHEMA["properties"]["tools"], "maxItems": 64}}}


def _first_line(text: str) -> str:
    return " ".join(text.strip().partition("\n")[0].split())

"""What a run that found no answer has to show: made of its records, without a model call."""

from __future__ import annotations

from collections.abc import Sequence

from registry.text import cut_middle

from .state import ToolCallRecord

RESULT_CHARS = 1_000
"""Characters of each result in the summary."""


def gathered(records: Sequence[ToolCallRecord]) -> str:
    """Which tools were called, what succeeded and what failed; empty when nothing was called."""
    if not records:
        return ""
    done = [record for record in records if not record.is_error]
    failed = [record for record in records if record.is_error]
    lines = [f"No answer was reached. {len(records)} tool calls: {len(done)} succeeded, {len(failed)} failed."]
    seen = set()
    for record in done:
        line = f"- {record.name} {dict(record.arguments)}: {cut_middle(record.observation, RESULT_CHARS)}"
        if line not in seen:
            seen.add(line)
            lines.append(line)
    lines += sorted({f"- {record.name} failed: {cut_middle(record.observation, 200)}" for record in failed})
    return "\n".join(lines)

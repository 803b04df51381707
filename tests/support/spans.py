"""Spans in memory, as a host application with OpenTelemetry would see them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans:
    """What was exported so far."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        """The ended spans, in the order of their ends."""
        return self.exporter.get_finished_spans()

    def of(self, operation: str) -> list[ReadableSpan]:
        """Those of one operation, in the order of their starts."""
        found = [span for span in self.all if attributes(span).get("gen_ai.operation.name") == operation]
        return sorted(found, key=lambda span: span.start_time or 0)

    def parent(self, span: ReadableSpan) -> ReadableSpan | None:
        """The span above one."""
        above = span.parent
        return None if above is None else next(other for other in self.all if other.context.span_id == above.span_id)

    def above(self, span: ReadableSpan) -> list[str]:
        """The names of the spans above one, the nearest first."""
        names = []
        parent = self.parent(span)
        while parent is not None:
            names.append(parent.name)
            parent = self.parent(parent)
        return names

    def everything(self) -> str:
        """All that an exporter would send."""
        return "\n".join(span.to_json() for span in self.all)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """A span's attributes."""
    return dict(span.attributes or {})


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """Within the block a real provider is set, which can be done only once by OpenTelemetry's own function."""
    spans = Spans()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", spans.provider)
    yield spans
    spans.provider.shutdown()

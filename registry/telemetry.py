"""Spans for OpenTelemetry, named by its semantic conventions for generative AI.

A job is an `invoke_workflow` span, below it `plan`, `invoke_agent`, `chat` (one per try of a call) and `execute_tool`.
Nothing is imported, and nothing but a look into `sys.modules` happens, unless the host application has imported
OpenTelemetry and set a tracer provider, or `executor.telemetry_setup` has. No content and no secret gets into a span:
errors appear by their code alone, and messages, arguments and results only after `capture_content(True)`, redacted.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .context import caller
from .errors import DagwrightError
from .redaction import redact, redact_data

if TYPE_CHECKING:
    from .llm import LLM
    from .llm_types import Prepared
    from .messages import LLMResult, Message, Usage
    from .tools import Tool

SCOPE = "dagwright"
"""The instrumentation scope's name, and the workflow's."""
PROVIDERS: Mapping[str, str] = {
    "api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral_ai",
    "api.perplexity.ai": "perplexity",
    "api.x.ai": "x_ai",
    "generativelanguage.googleapis.com": "gcp.gemini",
}
"""Well-known values of `gen_ai.provider.name` by host; elsewhere it says whose dialect is spoken."""
DIALECTS: Mapping[str, str] = {"openai_chat": "openai", "openai_responses": "openai"}
MAX_CONTENT_CHARS = 20_000
"""Captured contents are cut to so many characters each."""


class _Content:
    captured = False


class _Tracer:
    provider: Any = None
    tracer: Any = None


def capture_content(on: bool) -> None:
    """Whether spans carry messages, tool arguments and tool results from now on. Off by default."""
    _Content.captured = on


class Span:
    """One span. As a context manager it is the current one inside the block; `answered`, `failed` and `given_up` end
    one that never was current."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: Any) -> None:
        self._span = span
        self._token: Any = None

    def __enter__(self) -> Span:
        from opentelemetry import context, trace

        self._token = context.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from opentelemetry import context

        context.detach(self._token)
        if error is not None:
            self._fail(_error_type(error))
        self._span.end()

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Adds attributes; those that are None are left out, texts are redacted."""
        self._span.set_attributes(_attributes(attributes))

    def spent(self, usage: Usage | None) -> None:
        """Adds what it cost, as far as that is known."""
        if usage is not None:
            self.set(_usage(usage))

    def fail(self, error_type: str) -> None:
        """Says that it failed, by a stable code; the span goes on."""
        self._fail(error_type)

    def answered(self, result: LLMResult) -> None:
        """A model's call came to a result."""
        self.set({"gen_ai.response.model": result.model, "gen_ai.response.finish_reasons": (result.finish_reason,)})
        self.spent(result.usage)
        if _Content.captured:
            self.set({"gen_ai.output.messages": _messages([result.message], result.finish_reason)})
        self._span.end()

    def failed(self, error: BaseException) -> None:
        """A model's call came to an error."""
        self.spent(getattr(error, "usage", None))
        self._fail(_error_type(error))
        self._span.end()

    def given_up(self) -> None:
        """A model's call was cancelled on its way, or broke by the exception that is being handled."""
        self._fail(_error_type(sys.exception() or asyncio.CancelledError()))
        self._span.end()

    def _fail(self, error_type: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attribute("error.type", error_type)
        self._span.set_status(Status(StatusCode.ERROR, error_type))


class _NoSpan:
    """Stands for a span where nobody records any."""

    __slots__ = ()

    def __enter__(self) -> _NoSpan:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Nothing."""

    def spent(self, usage: Usage | None) -> None:
        """Nothing."""

    def fail(self, error_type: str) -> None:
        """Nothing."""

    def answered(self, result: LLMResult) -> None:
        """Nothing."""

    def failed(self, error: BaseException) -> None:
        """Nothing."""

    def given_up(self) -> None:
        """Nothing."""


AnySpan = Span | _NoSpan
NO_SPAN = _NoSpan()


def workflow(mode: str) -> AnySpan:
    """A job."""
    if (tracer := _tracer()) is None:
        return NO_SPAN
    own = {"gen_ai.workflow.name": SCOPE, "dagwright.job.mode": mode}
    return _start(tracer, "invoke_workflow", SCOPE, own)


def plan(round_number: int) -> AnySpan:
    """The making of a plan; `round_number` is 1 for a job's first."""
    if (tracer := _tracer()) is None:
        return NO_SPAN
    return _start(tracer, "plan", "", {"dagwright.plan.round": round_number})


def agent(llm: LLM, name: str | None) -> AnySpan:
    """One run of an agent; in a step it has the step's name."""
    if (tracer := _tracer()) is None:
        return NO_SPAN
    who = caller()
    name = who.step_id or name or "agent"
    own = {
        "gen_ai.agent.name": name,
        "gen_ai.agent.id": f"{who.job_id}/{who.step_id or ''}/{who.attempt}" if who.job_id else None,
        **_model(llm),
    }
    return _start(tracer, "invoke_agent", name, own)


def agent_ended(span: AnySpan, result: Any) -> None:
    """How an agent's run ended: anything but an answer counts as a failure of the span."""
    if span is NO_SPAN:
        return
    span.set({"dagwright.agent.stop_reason": result.stop_reason, "dagwright.agent.iterations": result.iterations})
    span.spent(result.usage)
    if result.stop_reason != "final_answer":
        span.fail(result.error or result.stop_reason)


def chat(llm: LLM, prepared: Prepared, attempt: int) -> AnySpan:
    """One try of a call of a model. It is never the current span: a stream's consumer works between its pieces."""
    if (tracer := _tracer()) is None:
        return NO_SPAN
    request = prepared.request
    own = {
        **_model(llm),
        "gen_ai.request.max_tokens": prepared.output_bound,
        "gen_ai.request.temperature": request.temperature,
        "gen_ai.request.stream": True if request.stream else None,
        "gen_ai.output.type": "json" if request.response_format else "text",
        "dagwright.model.name": llm.name,
        "dagwright.model.role": caller().role,
        "dagwright.model.try": attempt,
    }
    if _Content.captured:
        rules = [message for message in request.messages if message.role == "system"]
        rest = [message for message in request.messages if message.role != "system"]
        own["gen_ai.system_instructions"] = json.dumps([_text(rule.content) for rule in rules], ensure_ascii=False)
        own["gen_ai.input.messages"] = _messages(rest)
    return _start(tracer, "chat", llm.model_id, own, client=True)


def workflow_ended(span: AnySpan, job: Any) -> None:
    """How a job ended."""
    if span is NO_SPAN:
        return
    span.set({"dagwright.job.status": job.status, "dagwright.job.rounds": job.rounds, "dagwright.job.mode": job.mode})
    span.spent(job.usage)
    if job.status != "completed":
        span.fail(job.error_code or job.status)


def tool(used: Tool, call_id: str, arguments: Mapping[str, Any]) -> AnySpan:
    """One run of a tool."""
    if (tracer := _tracer()) is None:
        return NO_SPAN
    own = {"gen_ai.tool.name": used.name, "gen_ai.tool.call.id": call_id, "gen_ai.tool.type": "function"}
    if _Content.captured:
        own["gen_ai.tool.call.arguments"] = _json(arguments)
    return _start(tracer, "execute_tool", used.name, own)


def tool_ended(span: AnySpan, text: str, *, is_error: bool) -> None:
    """What a tool gave; an error is the model's to read, and still one."""
    if is_error:
        span.fail("tool_error")
    if _Content.captured and span is not NO_SPAN:
        span.set({"gen_ai.tool.call.result": text})


def in_use() -> bool:
    """Whether a real tracer provider is set in this process."""
    return _tracer() is not None


def _tracer() -> Any | None:
    """The tracer of a real provider; None where OpenTelemetry is not in use."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    if provider is not _Tracer.provider:
        _Tracer.provider, _Tracer.tracer = provider, provider.get_tracer(SCOPE)
    return _Tracer.tracer


def _start(tracer: Any, operation: str, target: str, own: Mapping[str, Any], *, client: bool = False) -> Span:
    """Starts a span below the current one."""
    from opentelemetry.trace import SpanKind

    who = caller()
    attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.conversation.id": who.job_id or None,
        "dagwright.step.id": who.step_id,
        "dagwright.step.attempt": who.attempt if who.step_id else None,
        **own,
    }
    name = redact(f"{operation} {target}" if target else operation)
    kind = SpanKind.CLIENT if client else SpanKind.INTERNAL
    return Span(tracer.start_span(name, kind=kind, attributes=_attributes(attributes)))


def _attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _cut(redact_data(value)) if isinstance(value, str | tuple) else value
        for name, value in attributes.items()
        if value is not None
    }


def _cut(value: Any) -> Any:
    return value[:MAX_CONTENT_CHARS] if isinstance(value, str) else value


def _model(llm: LLM) -> dict[str, Any]:
    host, port = _address(getattr(llm, "base_url", None))
    return {
        "gen_ai.provider.name": PROVIDERS.get(host or "") or DIALECTS.get(llm.dialect, llm.dialect),
        "gen_ai.request.model": llm.model_id,
        "server.address": host,
        "server.port": port,
    }


def _address(url: str | None) -> tuple[str | None, int | None]:
    try:
        address = urlsplit(url or "")
        return address.hostname, address.port
    except ValueError:
        return None, None


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens or None,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens or None,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens or None,
        "dagwright.cost": None if usage.cost is None else float(usage.cost),
        "dagwright.usage.partial": True if usage.partial else None,
    }


def _error_type(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "cancelled"
    return error.code if isinstance(error, DagwrightError) else type(error).__name__


def _messages(messages: Sequence[Message], finish_reason: str | None = None) -> str:
    """Messages in the form of the conventions: a role and parts."""
    return json.dumps([_message(message, finish_reason) for message in messages], ensure_ascii=False, default=str)


def _message(message: Message, finish_reason: str | None) -> dict[str, Any]:
    if message.role == "tool":
        answer = {"type": "tool_call_response", "id": message.tool_call_id, "response": redact(message.content)}
        return {"role": "tool", "parts": [answer]}
    parts: list[dict[str, Any]] = [_text(message.content)] if message.content else []
    parts += [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": redact_data(call.arguments)}
        for call in message.tool_calls
    ]
    end = {"finish_reason": finish_reason} if finish_reason is not None else {}
    return {"role": message.role, "parts": parts, **end}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": redact(text)}


def _json(value: Any) -> str:
    return json.dumps(redact_data(value), ensure_ascii=False, default=str)

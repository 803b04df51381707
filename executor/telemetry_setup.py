"""Sending spans by OTLP: set up by the command or the service, never by the library."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import structlog

from registry.errors import ConfigError
from registry.telemetry import capture_content, in_use

if TYPE_CHECKING:
    from .settings_model import Settings

log = structlog.get_logger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
INSTALL = "pip install 'dagwright[otel]'"
LAST_SECONDS = 5.0
"""How long the end waits for the last spans to be sent; a collector that does not answer costs no more."""


@contextmanager
def exporting(settings: Settings, env: Mapping[str, str] | None = None) -> Iterator[None]:
    """Within the block spans are sent where `OTEL_EXPORTER_OTLP_ENDPOINT` says (default: this machine, port 4318).

    It is done where the setting `telemetry` is true, or is not set and the environment names an endpoint. A provider
    that the host application has set stays as it is. Raises ConfigError where the setting asks for what can't be had.
    """
    env = os.environ if env is None else env
    named = any(env.get(name) for name in ENDPOINTS) and env.get("OTEL_SDK_DISABLED", "").lower() != "true"
    if not (named if settings.telemetry is None else settings.telemetry):
        yield
        return
    if in_use():  # the host application's own
        capture_content(settings.telemetry_content)
        yield
        return
    provider = _provider(env, asked=bool(settings.telemetry))
    if provider is None:
        yield
        return
    capture_content(settings.telemetry_content)
    try:
        yield
    finally:
        capture_content(False)
        _finish(provider)


def _provider(env: Mapping[str, str], *, asked: bool) -> Any:
    """A provider that sends spans, set as the process's own; None where the extra is missing and nobody insists."""
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        told = f"telemetry needs the OpenTelemetry SDK and its OTLP exporter ({error.name} is missing): {INSTALL}"
        if asked:
            raise ConfigError(told) from None
        log.warning("telemetry_unavailable", reason=told)
        return None
    protocol = next((env[name] for name in PROTOCOLS if env.get(name)), "http/protobuf")
    if protocol != "http/protobuf":
        raise ConfigError(f"telemetry is sent by OTLP over http/protobuf only, and the environment asks for {protocol}")
    named = "OTEL_SERVICE_NAME" in env or "service.name=" in env.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create() if named else Resource.create({"service.name": "dagwright"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider


def _finish(provider: Any) -> None:
    """Sends what is left, within the time there is."""
    last = threading.Thread(target=provider.shutdown, name="telemetry's end", daemon=True)
    last.start()
    last.join(LAST_SECONDS)
    if last.is_alive():
        log.warning("telemetry_incomplete", reason=f"the last spans could not be sent within {LAST_SECONDS:g} s")

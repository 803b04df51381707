"""The providers by name, and how a model of one is made. The SDKs are imported when a model is first called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from .errors import UsageError
from .llm import LLM
from .prices import Price, find_price

Demo = Callable[[], LLM | None]
"""Gives the demonstration model where it is installed, else None."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model to be registered. `origin` says in words where it comes from."""

    name: str
    llm: LLM
    roles: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Provider:
    """A way to call models: the adapter, the variable its own service's key is in, and that service's host."""

    name: str
    title: str
    module: str
    adapter: str
    key_variable: str
    host: str


PROVIDERS: Mapping[str, Provider] = {
    provider.name: provider
    for provider in (
        Provider(
            "openai", "OpenAI Responses", "openai_responses", "OpenAIResponsesLLM", "OPENAI_API_KEY", "api.openai.com"
        ),
        Provider("openai_chat", "chat completions", "openai_chat", "OpenAIChatLLM", "OPENAI_API_KEY", "api.openai.com"),
        Provider(
            "anthropic",
            "Anthropic Messages",
            "anthropic_messages",
            "AnthropicLLM",
            "ANTHROPIC_API_KEY",
            "api.anthropic.com",
        ),
    )
}


def needs_key(provider: str, base_url: str | None) -> bool:
    """Whether nobody is served there without a key: at the provider's own address. Other servers decide themselves."""
    return base_url is None or urlsplit(base_url).hostname == PROVIDERS[provider].host


def make_llm(provider: str, model: str, *, price: Price | None = None, **options: Any) -> LLM:
    """A model of a provider. `options` are the adapter's; those that are None are left to it. Without a `price` the
    list's counts, where the list has one."""
    if provider not in PROVIDERS:
        raise UsageError(f"unknown provider {provider!r}: there are {', '.join(PROVIDERS)}")
    known = PROVIDERS[provider]
    adapter = getattr(import_module(f"{__package__}.adapters.{known.module}"), known.adapter)
    given = {name: value for name, value in options.items() if value is not None}
    llm: LLM = adapter(model, price=price or find_price(provider, model, given.get("base_url")), **given)
    return llm

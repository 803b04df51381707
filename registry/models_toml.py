"""`models.toml`: models with their roles, prices and limits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from .errors import ConfigError, UsageError
from .gate_limits import NO_LIMITS, Limits
from .llm_types import ABILITIES
from .prices import PRICE_KEYS, Price
from .providers import PROVIDERS, ModelEntry, make_llm, needs_key
from .toml_file import Table, nearest, read_toml

MODEL_KEYS = (
    "provider",
    "model",
    "base_url",
    "api_key_env",
    "roles",
    "abilities",
    "context_size",
    "max_output_tokens",
    "price",
    "limits",
    "fallbacks",
)
LIMIT_KEYS = ("concurrency", "requests_per_minute", "tokens_per_minute")


def read_models(path: str | os.PathLike[str], *, env: Mapping[str, str]) -> tuple[ModelEntry, ...]:
    """The models of a file, in its order; see `ModelRegistry.from_toml`."""
    data = read_toml(path)
    for key in data:
        if key != "models":
            raise ConfigError(f"{path}: unknown key {key!r}: models stand in tables [models.NAME]")
    tables = data.get("models")
    if not isinstance(tables, dict) or not tables:
        raise ConfigError(f"{path}: has no model: write a table [models.NAME] with provider and model")
    entries = []
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: models.{name} = {table!r}: must be a table [models.{name}]")
        entries.append(_entry(name, Table(path, f"models.{name}", table), tables, env))
    return tuple(entries)


def _entry(name: str, table: Table, all_names: Iterable[str], env: Mapping[str, str]) -> ModelEntry:
    table.only(MODEL_KEYS)
    provider = table.text("provider", needed=f"one of {', '.join(PROVIDERS)}")
    if provider not in PROVIDERS:
        table.wrong("provider", f"unknown provider: {nearest(str(provider), PROVIDERS)}")
    model = table.text("model", needed="the model's name at the provider")
    assert provider is not None
    assert model is not None
    base_url = _address(table)
    fallbacks = table.texts("fallbacks")
    for other in fallbacks:
        if other == name:
            table.wrong("fallbacks", "a model cannot be its own fallback")
        if other not in all_names:
            table.wrong("fallbacks", f"no model {other!r}: {nearest(other, [n for n in all_names if n != name])}")
    llm = make_llm(
        provider,
        model,
        name=name,
        api_key=_key(table, provider, base_url, env),
        base_url=base_url,
        abilities=_abilities(table),
        context_size=table.count("context_size", "tokens"),
        max_output_tokens=table.count("max_output_tokens", "tokens"),
        price=_price(table),
        limits=_limits(table),
    )
    return ModelEntry(name, llm, table.texts("roles"), fallbacks, f"{table.path} [{table.name}]")


def _address(table: Table) -> str | None:
    url = table.text("base_url")
    if url is None:
        return None
    if not _is_address(url):
        table.wrong("base_url", "must be an address such as http://127.0.0.1:11434/v1")
    return url


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        return False


def _key(table: Table, provider: str, base_url: str | None, env: Mapping[str, str]) -> str | None:
    """The API key. A provider's own variable is read without being named only for that provider's own address, so
    that a key never goes to another server unasked."""
    demanded = needs_key(provider, base_url)
    variable = table.text("api_key_env")
    if variable is not None and not variable.replace("_", "").isalnum():
        raise ConfigError(
            f"{table.path}: [{table.name}] api_key_env: must be the name of a variable, such as "
            f"{PROVIDERS[provider].key_variable}; the key itself belongs into that variable"
        )
    if variable is None and demanded:
        variable = PROVIDERS[provider].key_variable
    key = env.get(variable, "").strip() if variable is not None else ""
    if demanded and not key:
        raise ConfigError(f"{table.path}: [{table.name}] needs an API key: the variable {variable} is not set")
    return key or None


def _abilities(table: Table) -> dict[str, bool] | None:
    inner = table.table("abilities", ABILITIES)
    if inner is None:
        return None
    for ability, value in inner.values.items():
        if not isinstance(value, bool):
            inner.wrong(ability, "must be true or false")
    return dict(inner.values)


def _price(table: Table) -> Price | None:
    inner = table.table("price", PRICE_KEYS)
    if inner is None:
        return None
    try:
        return Price.from_toml(inner.values)
    except UsageError as error:
        raise ConfigError(f"{table.path}: [{inner.name}] {error}") from error


def _limits(table: Table) -> Limits:
    inner = table.table("limits", LIMIT_KEYS)
    if inner is None:
        return NO_LIMITS
    units = ("calls", "requests", "tokens")
    return Limits(*(inner.count(key, unit) for key, unit in zip(LIMIT_KEYS, units, strict=True)))

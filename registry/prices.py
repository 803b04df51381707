"""What calls cost: prices of the configuration, and those that genai-prices knows (offline, from the package)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from .errors import UsageError
from .local import is_loopback
from .messages import Usage

MILLION = Decimal(1_000_000)
PRICE_KEYS = ("input", "cached_input", "cache_write", "output")


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens. A missing cached or cache-write price is the input price."""

    input: Decimal
    output: Decimal
    cached_input: Decimal | None = None
    cache_write: Decimal | None = None

    @classmethod
    def from_toml(cls, table: Mapping[str, Any]) -> Price:
        """A price from numbers under the keys input, cached_input, cache_write and output; raises UsageError, which
        names the key. Floats are read as they are written: 0.1 is a tenth."""
        if unknown := sorted(set(table) - set(PRICE_KEYS)):
            raise UsageError(f"{unknown[0]!r} is no price: there are {', '.join(PRICE_KEYS)}")
        for key in ("input", "output"):
            if key not in table:
                raise UsageError(f"{key!r} is missing: a price needs input and output, in USD per million tokens")
        rates = {key: _rate(key, value) for key, value in table.items()}
        return cls(**rates)

    def cost(self, usage: Usage) -> Decimal:
        """USD for this usage; never negative, even where the provider's numbers contradict each other."""
        cached, written = _parts(usage)
        plain = max(0, usage.input_tokens) - cached - written
        total = (
            plain * self.input
            + cached * (self.input if self.cached_input is None else self.cached_input)
            + written * (self.input if self.cache_write is None else self.cache_write)
            + max(0, usage.output_tokens) * self.output
        )
        return total / MILLION

    def bound(self, input_tokens: int, output_tokens: int) -> Decimal:
        """The most USD that so many tokens can cost, however they are cached: at the highest rates that may apply."""
        dearest = max(rate for rate in (self.input, self.cached_input, self.cache_write) if rate is not None)
        return (input_tokens * dearest + output_tokens * self.output) / MILLION


@dataclass(frozen=True, slots=True)
class ListPrice(Price):
    """A price of the genai-prices list. The rates are the highest that may apply (long prompts, peak hours, long
    cache times), for bounds; `cost` takes those that do apply."""

    model: Any = field(default=None, compare=False, repr=False)
    provider: Any = field(default=None, compare=False, repr=False)

    def cost(self, usage: Usage) -> Decimal:
        """USD for this usage at the list's rates for its size and the present time."""
        from genai_prices import Usage as Tokens

        cached, written = _parts(usage)
        tokens = Tokens(
            input_tokens=max(0, usage.input_tokens),
            cache_read_tokens=cached,
            cache_write_tokens=written,
            output_tokens=max(0, usage.output_tokens),
        )
        total: Decimal = self.model.calc_price(tokens, self.provider).total_price
        return total


def find_price(provider: str, model_id: str, base_url: str | None = None) -> ListPrice | None:
    """The list price of a model, None where there is none: unknown, which is not zero.

    `provider`: openai, openai_chat or anthropic. With a `base_url` the provider is the one that serves there; a local
    or unknown server has no price.
    """
    if base_url and is_loopback(base_url):
        return None
    from genai_prices.data_snapshot import get_snapshot

    listed = None if base_url else provider.removesuffix("_chat")
    try:
        found, model = get_snapshot().find_provider_model(model_id, None, listed, base_url)
    except LookupError:
        return None
    tables = [model.prices] if not isinstance(model.prices, list) else [entry.prices for entry in model.prices]
    inputs = [_highest(tables, key) for key in ("input_mtok", "cache_write_mtok", "cache_write_1h_mtok")]
    output = _highest(tables, "output_mtok")
    if inputs[0] is None or output is None:  # priced by the request, the image or the hour
        return None
    written = max((rate for rate in inputs[1:] if rate is not None), default=None)
    return ListPrice(inputs[0], output, _highest(tables, "cache_read_mtok"), written, model, found)


def _highest(tables: list[Any], key: str) -> Decimal | None:
    return max((rate for table in tables for rate in _rates(table.__dict__.get(key))), default=None)


def _rates(value: Any) -> Iterator[Decimal]:
    if value is None:
        return
    if isinstance(value, Decimal):
        yield value
    else:
        yield value.base
        yield from (tier.price for tier in value.tiers)


def _parts(usage: Usage) -> tuple[int, int]:
    """Cached and cache-write tokens, cut to what the input can hold."""
    whole = max(0, usage.input_tokens)
    cached = min(max(0, usage.cached_tokens), whole)
    return cached, min(max(0, usage.cache_write_tokens), whole - cached)


def _rate(key: str, value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise UsageError(f"{key} = {value!r}: must be a number, USD per million tokens")
    rate = Decimal(str(value))
    if not rate.is_finite() or rate < 0:
        raise UsageError(f"{key} = {value}: must be 0 or more, USD per million tokens")
    return rate

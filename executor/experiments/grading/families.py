"""Which family a model is of, by its name: a judge favours answers of its own kind.

Panickssery, Bowman and Feng, "LLM Evaluators Recognize and Favor Their Own Generations" (arXiv 2404.13076).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MAKERS: Mapping[str, tuple[str, ...]] = {
    "openai": ("gpt", "chatgpt", "o1", "o3", "o4", "codex"),
    "anthropic": ("claude",),
    "google": ("gemini", "gemma", "palm"),
    "meta": ("llama",),
    "mistral": ("mistralai", "mixtral", "ministral", "magistral", "codestral", "devstral"),
    "alibaba": ("qwen", "qwq"),
    "microsoft": ("phi",),
    "cohere": ("command",),
    "deepseek": (),
    "xai": ("grok",),
}
"""Makers whose models, or pages, have several names. A name that is not here is a family of its own."""
_MAKER = {name: maker for maker, names in MAKERS.items() for name in (maker, *names)}
_WORD = re.compile(r"[a-z]+\d*")


def families(model: str) -> frozenset[str]:
    """The families that a provider's name for a model tells of: "vendor/gpt-4", "gpt-4o" and "o3-mini" are of one. A
    distilled model that names two is of both. Where no maker is known, the leading name is the family."""
    words = _WORD.findall(model.lower().rpartition("/")[2]) or [model.lower()]
    owner = model.lower().rpartition("/")[0].rpartition("/")[2]
    owned = _maker(owner.split("-")[0])
    found = {maker for maker in (owned, *map(_maker, words)) if maker is not None}
    return frozenset(found or {owner, words[0]} - {""})


def _maker(word: str) -> str | None:
    return _MAKER.get(word) or _MAKER.get(word.rstrip("0123456789"))

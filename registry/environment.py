"""The models the environment offers, in a fixed order, where there is no `models.toml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .errors import ConfigError, NoModelError
from .local import (
    LLAMA_CPP,
    LOCAL_SERVERS,
    LOCAL_TIMEOUT,
    REMOTE_TIMEOUT,
    Server,
    context_size,
    find_local,
    is_loopback,
    list_models,
    only_model,
    without_password,
)
from .providers import Demo, ModelEntry, make_llm

MODEL = "DAGWRIGHT_MODEL"
ROLE_VARIABLES: Mapping[str, str] = {
    "general": MODEL,
    "smart": "DAGWRIGHT_SMART_MODEL",
    "fast": "DAGWRIGHT_FAST_MODEL",
    "reasoning": "DAGWRIGHT_REASONING_MODEL",
}
SIZE_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "context_size": ("DAGWRIGHT_LLM_CONTEXT_SIZE", "LLM_CONTEXT_SIZE"),
    "max_output_tokens": ("DAGWRIGHT_LLM_MAX_OUTPUT_TOKENS", "LLM_MAX_OUTPUT_TOKENS"),
}
"""Tokens, for all models the environment offers."""
VARIABLES = (
    *ROLE_VARIABLES.values(),
    *(name for names in SIZE_VARIABLES.values() for name in names),
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "OPENAI_MODEL",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_MODEL",
)
"""All variables that are read here."""
NO_MODEL = f"""There is no model to call. Any of these gives one:
  OPENAI_API_KEY or ANTHROPIC_API_KEY, with {MODEL}=NAME
  OPENAI_BASE_URL=http://HOST:PORT/v1, any compatible server ({MODEL}=NAME if it has several models), or a models.toml
  Ollama, llama.cpp or LM Studio running on this machine
  dagwright demo-model install (a demonstration of toy quality, 1.1 GB)"""


@dataclass(frozen=True, slots=True)
class Offer:
    """A provider that the environment gives access to. `variables` say by what; `named_by` may name its model."""

    provider: str
    title: str
    variables: str
    named_by: str = ""
    api_key: str | None = None
    base_url: str | None = None
    served: tuple[Server, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """A model to be registered, with the roles it has and the words that say where it comes from."""

    offer: Offer
    model: str
    said_by: str


def models_from_env(
    env: Mapping[str, str], *, demo: Demo | None = None, servers: Sequence[Server] = LOCAL_SERVERS
) -> tuple[ModelEntry, ...]:
    """See `ModelRegistry.from_env`. `servers`: where to look for local ones."""
    env = {name: value.strip() for name, value in env.items() if name in VARIABLES and value.strip()}
    sizes = {size: _tokens(env, names) for size, names in SIZE_VARIABLES.items()}
    offers = _offers(env)
    if not offers:
        offers = tuple(_local_offer(server) for server in find_local(servers, timeout=LOCAL_TIMEOUT))
    if not offers:
        return _demonstration(env, demo)
    choices = {role: choice for role in ROLE_VARIABLES if (choice := _chosen(env, role, offers)) is not None}
    if not choices:
        raise NoModelError(f"{offers[0].variables} is set, but no model is named: set {MODEL} to the model's name")
    return _entries(choices, sizes)


def _offers(env: Mapping[str, str]) -> tuple[Offer, ...]:
    """What the keys and addresses in the environment open, OpenAI's first."""
    offers = []
    key, url = env.get("OPENAI_API_KEY"), env.get("OPENAI_BASE_URL")
    if url:
        offers.append(
            Offer(
                "openai_chat",
                f"chat completions at {without_password(url)}",
                "OPENAI_BASE_URL",
                "OPENAI_MODEL",
                key,
                url,
            )
        )
    elif key:
        offers.append(Offer("openai", "Responses at OpenAI", "OPENAI_API_KEY", "OPENAI_MODEL", key))
    key, url = env.get("ANTHROPIC_API_KEY"), env.get("ANTHROPIC_BASE_URL")
    if key or url:
        title = f"Messages at {without_password(url)}" if url else "Messages at Anthropic"
        variables = "ANTHROPIC_BASE_URL" if url else "ANTHROPIC_API_KEY"
        offers.append(Offer("anthropic", title, variables, "ANTHROPIC_MODEL", key, url))
    return tuple(offers)


def _local_offer(server: Server) -> Offer:
    return Offer(
        "openai_chat", f"{server.title} at {server.base_url}", server.title, "", None, server.base_url, (server,)
    )


def _chosen(env: Mapping[str, str], role: str, offers: Sequence[Offer]) -> Choice | None:
    """The model the environment gives a role, None where it names none."""
    variable = ROLE_VARIABLES[role]
    if variable in env:
        return _named(variable, env[variable], offers)
    if role != "general":
        return None
    for offer in offers:
        if offer.named_by in env:
            return Choice(offer, env[offer.named_by], offer.named_by)
    if any(name in env for name in ROLE_VARIABLES.values()):
        return None  # a model with another role is the default then
    for offer in offers:
        if offer.base_url and (server := _asked(offer)) is not None:
            return Choice(replace(offer, served=(server,)), only_model(server, variable=MODEL).id, "its only model")
    return None


def _named(variable: str, value: str, offers: Sequence[Offer]) -> Choice:
    """The model that `NAME` or `provider:NAME` means; a bare name goes to the first provider."""
    prefix, colon, rest = value.partition(":")
    family = {"openai": "openai", "openai_chat": "openai", "anthropic": "anthropic"}.get(prefix) if colon else None
    if family is None:
        return Choice(_serving(variable, value, offers), value, variable)
    if not rest:
        raise ConfigError(f"{variable}={value!r} names no model: write {prefix}:NAME")
    for offer in offers:
        if offer.provider.startswith(family):
            if prefix == "openai_chat" and offer.provider == "openai":
                offer = replace(offer, provider="openai_chat", title="chat completions at OpenAI")  # noqa: PLW2901
            return Choice(offer, rest, variable)
    wanted = family.upper()
    raise ConfigError(f"{variable}={value!r} needs {wanted}_API_KEY or {wanted}_BASE_URL, and neither is set")


def _serving(variable: str, model: str, offers: Sequence[Offer]) -> Offer:
    """The first provider; among local servers the first that lists the model."""
    if not offers[0].served:
        return offers[0]
    for offer in offers:
        if any(served.id in (model, f"{model}:latest") for server in offer.served for served in server.models):
            return offer
    there = "; ".join(f"{offer.title} has {', '.join(m.id for m in offer.served[0].models)}" for offer in offers)
    raise NoModelError(f"{variable}={model!r}: no provider's key is set and no local server has that model ({there})")


def _asked(offer: Offer) -> Server | None:
    """A compatible server with its models; None where the address is the provider's own."""
    if offer.served:
        return offer.served[0]
    assert offer.base_url is not None
    models = list_models(_api_root(offer), headers=_headers(offer), timeout=REMOTE_TIMEOUT)
    if not models:
        raise NoModelError(
            f"{offer.variables}={without_password(offer.base_url)} lists no models. Is it up? "
            f"Or set {MODEL} to the name of one"
        )
    return Server(offer.variables, without_password(offer.base_url), models)


def _api_root(offer: Offer) -> str:
    """Where the list of models is: the Messages API has its version in the path, not in the base URL."""
    url = (offer.base_url or "").rstrip("/")
    return f"{url}/v1" if offer.provider == "anthropic" and not url.endswith("/v1") else url


def _headers(offer: Offer) -> dict[str, str]:
    if not offer.api_key:
        return {}
    if offer.provider == "anthropic":
        return {"x-api-key": offer.api_key, "anthropic-version": "2023-06-01"}
    return {"Authorization": f"Bearer {offer.api_key}"}


def _entries(choices: Mapping[str, Choice], sizes: Mapping[str, int | None]) -> tuple[ModelEntry, ...]:
    """One model per provider and name, with all the roles it was chosen for."""
    entries: dict[str, ModelEntry] = {}
    grouped: dict[tuple[str, str], list[str]] = {}
    for role, choice in choices.items():
        grouped.setdefault((choice.offer.provider, choice.model), []).append(role)
    for (provider, model), roles in grouped.items():
        choice = choices[roles[0]]
        name = _short(model)
        if name in entries:
            name = f"{provider}:{name}"
        said = ", ".join(dict.fromkeys(choices[role].said_by for role in roles))
        llm = make_llm(
            choice.offer.provider,
            model,
            name=name,
            api_key=choice.offer.api_key,
            base_url=choice.offer.base_url,
            **_known(choice, sizes),
        )
        entries[name] = ModelEntry(name, llm, tuple(roles), (), f"{choice.offer.title}, named by {said}")
    return tuple(entries.values())


def _known(choice: Choice, sizes: Mapping[str, int | None]) -> dict[str, Any]:
    """What the variables say of a model's sizes, or else its server; and what kind of server can do what."""
    known: dict[str, Any] = dict(sizes)
    served = [model for server in choice.offer.served for model in server.models if model.id == choice.model]
    if served and choice.offer.base_url:
        timeout = LOCAL_TIMEOUT if is_loopback(choice.offer.base_url) else REMOTE_TIMEOUT
        if known["context_size"] is None:
            headers = _headers(choice.offer)
            known["context_size"] = context_size(_api_root(choice.offer), served[0], headers=headers, timeout=timeout)
        if served[0].owner == LLAMA_CPP and choice.offer.provider == "openai_chat":
            known["abilities"] = {"json_mode": True, "json_schema": True}  # constrained by a grammar
    return known


def _demonstration(env: Mapping[str, str], demo: Demo | None) -> tuple[ModelEntry, ...]:
    for variable in ROLE_VARIABLES.values():
        if variable in env:
            raise NoModelError(f"{variable}={env[variable]!r} names a model, but nothing serves it.\n{NO_MODEL}")
    llm = demo() if demo is not None else None
    if llm is None:
        raise NoModelError(NO_MODEL)
    return (ModelEntry(llm.name, llm, ("general",), (), "the installed demonstration model"),)


def _short(model: str) -> str:
    """llama.cpp calls a model by its file's path; the file's name is enough."""
    if model.endswith(".gguf"):
        return model.replace("\\", "/").rpartition("/")[2].removesuffix(".gguf")
    return model


def _tokens(env: Mapping[str, str], names: Sequence[str]) -> int | None:
    for name in names:
        if name in env:
            text = env[name].replace("_", "")
            if not (text.isascii() and text.isdigit() and int(text) > 0):
                raise ConfigError(f"{name}={env[name]!r}: must be a whole number of tokens, at least 1")
            return int(text)
    return None

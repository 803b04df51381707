"""Asking model servers which models they have: a named one, or those that listen on this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from .errors import ConfigError

LOCAL_TIMEOUT = 0.3
"""Seconds all local servers together have to answer: a newcomer without one must not wait."""
REMOTE_TIMEOUT = 10.0
"""Seconds a server named by the user has to list its models."""
MAX_REPLY_BYTES = 4_000_000
SIZE_KEYS = ("context_length", "max_model_len", "context_size")
"""Where gateways and vLLM say a model's context size in their list of models."""

LLAMA_CPP = "llamacpp"
"""Whom a llama.cpp server names as the owner of its model."""
SHOWN = 12
"""Models named in a message, of those a server has."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as a server lists it; `context_size` in tokens, None where the server does not say."""

    id: str
    owner: str = ""
    context_size: int | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """A model server: what it is called, where its API is, what it serves."""

    title: str
    base_url: str
    models: tuple[ServedModel, ...] = ()


LOCAL_SERVERS = (
    Server("Ollama", "http://127.0.0.1:11434/v1"),
    Server("llama.cpp", "http://127.0.0.1:8080/v1"),
    Server("LM Studio", "http://127.0.0.1:1234/v1"),
)
"""Where local servers listen unless told otherwise, in the order in which they are asked (their documentation)."""


def find_local(servers: Sequence[Server] = LOCAL_SERVERS, *, timeout: float = LOCAL_TIMEOUT) -> tuple[Server, ...]:
    """Those of the servers that answer within `timeout` seconds and have a model, in the given order."""
    calls = [partial(list_models, server.base_url, timeout=timeout) for server in servers]
    lists = _at_once(calls, timeout)
    return tuple(
        Server(server.title, server.base_url, models) for server, models in zip(servers, lists, strict=True) if models
    )


def list_models(
    base_url: str, *, headers: Mapping[str, str] | None = None, timeout: float = REMOTE_TIMEOUT
) -> tuple[ServedModel, ...]:
    """The chat models a server lists at `{base_url}/models`, empty where it does not answer as a model server does."""
    listed = _get(f"{base_url.rstrip('/')}/models", headers or {}, timeout)
    entries = listed.get("data") if isinstance(listed, dict) else None
    return tuple(_served(entry) for entry in entries if _is_chat(entry)) if isinstance(entries, list) else ()


def context_size(
    base_url: str, model: ServedModel, *, headers: Mapping[str, str] | None = None, timeout: float = REMOTE_TIMEOUT
) -> int | None:
    """Tokens of context a model is served with, None where the server does not say. A llama.cpp server lists what the
    model was trained with, and says at `/props` what it was started with."""
    if model.owner != LLAMA_CPP:
        return model.context_size
    root = base_url.rstrip("/").removesuffix("/v1")
    props = _get(f"{root}/props", headers or {}, timeout)
    settings = props.get("default_generation_settings") if isinstance(props, dict) else None
    size = settings.get("n_ctx") if isinstance(settings, dict) else None
    return size if _is_size(size) else model.context_size


def is_loopback(base_url: str) -> bool:
    """Whether an address is on this machine."""
    host = urlsplit(base_url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def without_password(url: str) -> str:
    """An address as it may be shown: a user and password in it are left out."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _is_chat(entry: Any) -> bool:
    """Embedding models stand in the same list; LM Studio ships one. They cannot chat."""
    return isinstance(entry, dict) and isinstance(entry.get("id"), str) and "embed" not in entry["id"].lower()


def _served(entry: Mapping[str, Any]) -> ServedModel:
    meta = entry.get("meta")
    sizes = [entry.get(key) for key in SIZE_KEYS]
    sizes += [meta.get("n_ctx"), meta.get("n_ctx_train")] if isinstance(meta, dict) else []
    owner = entry.get("owned_by")
    return ServedModel(entry["id"], owner if isinstance(owner, str) else "", next(filter(_is_size, sizes), None))


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _get(url: str, headers: Mapping[str, str], timeout: float) -> Any:
    """The JSON at an address, None where there is none. Redirects are not followed, for they would take the key along;
    proxies of the environment are not used for this machine."""
    import json
    from http.client import HTTPException
    from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

    class Stay(HTTPRedirectHandler):
        def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
            return None

    handlers = [Stay(), ProxyHandler({})] if is_loopback(url) else [Stay()]
    try:
        request = Request(url, headers={"Accept": "application/json", **headers})
        with build_opener(*handlers).open(request, timeout=timeout) as reply:
            body = reply.read(MAX_REPLY_BYTES + 1)
        return json.loads(body) if len(body) <= MAX_REPLY_BYTES else None
    except (OSError, HTTPException, ValueError, RecursionError):  # not there, not HTTP, not JSON
        return None


def _at_once(calls: Sequence[Callable[[], T]], timeout: float) -> list[T | None]:
    """Runs the calls in threads; None for those that take longer than `timeout` seconds, which bounds the whole even
    where a server sends a byte now and then."""
    results: list[T | None] = [None] * len(calls)

    def run(index: int, call: Callable[[], T]) -> None:
        results[index] = call()

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return list(results)


def only_model(server: Server, *, variable: str) -> ServedModel:
    """The one model of a server. Raises ConfigError, which lists them, where there are several."""
    if len(server.models) == 1:
        return server.models[0]
    shown = ", ".join(model.id for model in server.models[:SHOWN]) + (", …" if len(server.models) > SHOWN else "")
    raise ConfigError(f"{server.title} at {server.base_url} has several models: set {variable} to one of {shown}")

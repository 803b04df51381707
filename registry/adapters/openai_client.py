"""The openai SDK's client, for both of its dialects."""

from __future__ import annotations

from .base import NO_KEY, SDKAdapter, no_client, transport_failures
from .clients import SDKClient


def open_openai(adapter: SDKAdapter) -> SDKClient:
    """A client on aiohttp, without retries of its own: tries live in one place. Imports the SDK."""
    import httpx2
    import openai

    http = adapter.http(openai.DefaultAioHttpClient, httpx2)
    try:
        sdk = openai.AsyncOpenAI(
            api_key=adapter.key or (NO_KEY if adapter.base_url else None),
            base_url=adapter.base_url,
            max_retries=0,
            timeout=http.timeout,
            http_client=http,
            default_headers=adapter.extra_headers or None,
        )
    except openai.OpenAIError as error:
        raise no_client(error) from None
    return SDKClient(sdk, httpx2.Response, (openai.OpenAIError, *transport_failures()), sdk.api_key)

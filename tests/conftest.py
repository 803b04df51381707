"""Fixtures that many tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fakes import ProviderFake, brain


@pytest.fixture
async def provider_fake() -> AsyncIterator[ProviderFake]:
    """A provider on loopback that keeps the rules; it answers whole jobs unless the test gives it another script."""
    async with ProviderFake(brain) as fake:
        yield fake

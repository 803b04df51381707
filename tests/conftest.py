"""Fixtures that many tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from registry import gate, redaction
from tests.fakes import ProviderFake, brain


@pytest.fixture
async def provider_fake() -> AsyncIterator[ProviderFake]:
    """A provider on loopback that keeps the rules; it answers whole jobs unless the test gives it another script."""
    async with ProviderFake(brain) as fake:
        yield fake


@pytest.fixture(autouse=True)
def _secrets_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process never forgets a key it was given; the next test must not stumble over this one's."""
    monkeypatch.setattr(redaction, "_known", redaction._Known())


@pytest.fixture(autouse=True)
def _gates_of_this_test() -> None:
    """What a refusal taught about a server stays for the process; the next test's server may have the same port."""
    gate.forget_gates()

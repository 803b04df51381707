"""The service as a model for a chat client in another language: Vercel's AI SDK, as `make test-heavy` installs it."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from registry.toolbox.calculate import calculate
from tests.fakes import ProviderFake
from tests.fakes.brain import SYNTHESIS
from tests.support.command import PATIENCE
from tests.support.working import models_of, working

CLIENT = Path(__file__).parents[1] / "chat_client"
NODE = shutil.which("node")


@pytest.mark.heavy
@pytest.mark.skipif(NODE is None, reason="this machine has no Node.js, which the client is written for")
async def test_a_client_in_another_language_reads_answer_progress_and_errors(
    database_url: str, provider_fake: ProviderFake
) -> None:
    if not (CLIENT / "node_modules" / "ai").is_dir():
        pytest.fail("tests/chat_client is not installed: run `make test-heavy`")
    assert NODE is not None
    async with working(database_url, models_of(provider_fake), [calculate]) as service:
        process = await asyncio.create_subprocess_exec(
            NODE, str(CLIENT / "chat.mjs"), f"{service.url}/v1",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(PATIENCE):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode == 0, err.decode()
    told = json.loads(out)
    plain, streamed = told["plain"], told["streamed"]
    for reply in (plain, streamed):
        assert (reply["text"], reply["finish"], reply["calls"]) == (SYNTHESIS, "stop", 0)
    assert streamed["kinds"][-1] == "finish"
    assert streamed["kinds"].index("reasoning-delta") < streamed["kinds"].index("text-delta")
    assert "plan, round 1: 4 steps" in streamed["reasoning"]
    assert "s4 completed on small" in streamed["reasoning"]
    used = [reply["usage"]["inputTokens"] + reply["usage"]["outputTokens"] for reply in (plain, streamed)]
    assert sum(used) == provider_fake.billed.input_tokens + provider_fake.billed.output_tokens
    assert (told["unknown"]["statusCode"], told["unknown"]["isRetryable"]) == (404, False)
    assert told["unknown"]["message"].startswith("there is no model 'gpt'")
    assert told["stop"]["statusCode"] == 400
    assert "stop is not supported" in told["stop"]["message"]
    planned = next(view for view in provider_fake.views if "Remember the number 1234." in view.last_text)
    assert "Speak like a sailor." in planned.last_text
    assert not provider_fake.refusals

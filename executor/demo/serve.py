"""The installed demonstration model as a server process that lives as long as it is used."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import IO, TYPE_CHECKING

from registry.prices import Price

from .install import DemoInstallError, DemoPaths, demo_installed

if TYPE_CHECKING:
    from registry.adapters.openai_chat import OpenAIChatLLM

HERE = Path(__file__).parent
HEADER = "Qwen2.5-Coder-1.5B on this CPU: demonstration quality, check the facts"
"""Stands above every answer of the demonstration model."""

MODEL_NAME = "qwen2.5-coder-1.5b-instruct-q4_k_m"
CONTEXT_SIZE = 8_192
MAX_OUTPUT_TOKENS = 512
START_TIMEOUT = 180.0
"""Seconds; a busy machine with a cold disk reads a gigabyte slowly."""
END_TIMEOUT = 5.0
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "SYSTEMROOT")


def model(base_url: str) -> OpenAIChatLLM:
    """The demonstration model behind its server. Its tokens cost nothing; it takes JSON Schemas, and no tools."""
    from registry.adapters.openai_chat import OpenAIChatLLM

    return OpenAIChatLLM(
        MODEL_NAME,
        api_key="none",
        base_url=base_url,
        abilities={"tool_call": False, "json_mode": True, "json_schema": True, "streaming": True},
        context_size=CONTEXT_SIZE,
        max_output_tokens=MAX_OUTPUT_TOKENS,
        price=Price(Decimal(0), Decimal(0)),
    )


@asynccontextmanager
async def demo_server(data_dir: Path) -> AsyncIterator[OpenAIChatLLM]:
    """Runs the installed demonstration model and hands out the model behind it; the process ends with the block.

    Raises DemoInstallError where it isn't installed or doesn't start.
    """
    if not demo_installed(data_dir):
        raise DemoInstallError("the demonstration model isn't installed: `demo-model install` fetches it (1.1 GB)")
    paths = DemoPaths.of(data_dir)
    async with model_server(paths.model, paths.runtime, log=paths.root / "server.log") as base_url:
        llm = model(base_url)
        try:
            yield llm
        finally:
            await llm.aclose()


@asynccontextmanager
async def model_server(
    gguf: Path,
    runtime: Path | None,
    *,
    log: Path,
    ready_within: float = START_TIMEOUT,
    script: Path = HERE / "server.py",
) -> AsyncIterator[str]:
    """Serves a GGUF file on the loopback and hands out the base URL once it is ready.

    `runtime`: the folder with the runtime's package; None: the interpreter's own. `ready_within`: seconds.
    The process ends with the block, and with this process however that one ends. Raises DemoInstallError.
    """
    with log.open("wb") as output:
        process = await _start(gguf, runtime, script, output)
    try:
        yield await _ready(process, ready_within, log) + "/v1"
    finally:
        await _end(process)


async def _start(gguf: Path, runtime: Path | None, script: Path, output: IO[bytes]) -> asyncio.subprocess.Process:
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}  # keys are none of its business
    environment["OMP_WAIT_POLICY"] = "PASSIVE"  # threads that spin while they wait starve a busy machine
    if runtime is not None:
        environment["PYTHONPATH"] = str(runtime)
    threads = max(1, min(8, os.cpu_count() or 1))
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-s",
        "-P",
        str(script),
        str(gguf),
        str(HERE / "chat_template.jinja"),
        f"--context={CONTEXT_SIZE}",
        f"--threads={threads}",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=output,
        env=environment,
    )


async def _ready(process: asyncio.subprocess.Process, ready_within: float, log: Path) -> str:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(ready_within):
            address = (await process.stdout.readline()).decode().strip()
    except TimeoutError:
        raise DemoInstallError(f"the demonstration model was not ready after {ready_within:.0f} s, see {log}") from None
    if not address:
        raise DemoInstallError(f"the demonstration model's server did not start, see {log}")
    return address


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the process by closing its input; by force where that doesn't help, and when we are cancelled."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(END_TIMEOUT):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

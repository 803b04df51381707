"""A scripted model on loopback, in a process of its own: chat completions and Anthropic's messages, whole or streamed.

The model's name is the script: `turns5-wait500` calls a tool in five turns and then answers, each reply after 500 ms.
Words: `turns` (tool turns), `wait` (ms before each reply), `words` and `gap` (a streamed answer's pieces and the ms
between them). The server keeps no state: the turn is the number of tool results in the request. A request without tools
is answered at once. A streamed answer begins with the server's monotonic time, so that a client knows how old it is.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

TOOL = "lookup"
WORD = re.compile(r"(turns|wait|words|gap)(\d+)")
MODEL = re.compile(rb'"model":\s*"([^"]+)"')
LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
STREAMED = re.compile(rb'"stream":\s*true')
USAGE = {"prompt_tokens": 40, "completion_tokens": 10, "total_tokens": 50}


@lru_cache
def script(model: bytes) -> dict[str, int]:
    """The model's name as numbers."""
    return {"turns": 0, "wait": 0, "words": 8, "gap": 0} | {
        word: int(number) for word, number in WORD.findall(model.decode())
    }


def whole(data: dict[str, Any]) -> bytes:
    """A reply that comes at once."""
    body = json.dumps(data, separators=(",", ":")).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def piece(data: bytes) -> bytes:
    """One chunk of a streamed body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


@lru_cache(maxsize=1_000)
def chat_reply(turn: int | None, words: int) -> bytes:
    """The tool call of a turn, or the answer (None), in OpenAI's words."""
    text = None if turn is not None else " ".join(["word"] * words)
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if turn is not None:
        function = {"name": TOOL, "arguments": json.dumps({"key": f"key {turn}"})}
        message["tool_calls"] = [{"id": f"call_{turn}", "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "finish_reason": "stop" if turn is None else "tool_calls"}
    head = {"id": "reply", "object": "chat.completion", "created": 1, "model": "fake"}
    return whole({**head, "choices": [choice], "usage": USAGE})


@lru_cache(maxsize=1_000)
def anthropic_reply(turn: int | None, words: int) -> bytes:
    """The same in Anthropic's words."""
    block: dict[str, Any] = {"type": "text", "text": " ".join(["word"] * words)}
    if turn is not None:
        block = {"type": "tool_use", "id": f"toolu_{turn}", "name": TOOL, "input": {"key": f"key {turn}"}}
    head = {"id": "reply", "type": "message", "role": "assistant", "model": "fake", "stop_sequence": None}
    usage = {"input_tokens": 40, "output_tokens": 10}
    stop = "end_turn" if turn is None else "tool_use"
    return whole({**head, "content": [block], "stop_reason": stop, "usage": usage})


def chat_chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    """One event of a streamed chat completion."""
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    head = {"id": "reply", "object": "chat.completion.chunk", "created": 1, "model": "fake"}
    return piece(b"data: " + json.dumps({**head, "choices": choices, **more}).encode() + b"\n\n")


class Connection(asyncio.Protocol):
    """One client's connection; requests come one after the other."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.needed = 0
        self.streams: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if len(self.buffer) < self.needed:
            return
        end = self.buffer.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        length = LENGTH.search(self.buffer, 0, end)
        self.needed = end + (int(length[1]) if length else 0)
        if len(self.buffer) >= self.needed:
            request, self.buffer, self.needed = bytes(self.buffer), bytearray(), 0
            self.answer(request)

    def answer(self, request: bytes) -> None:
        model = MODEL.search(request)
        told = script(model[1] if model else b"")
        results = request.count(b'"tool_call_id"') + request.count(b'"tool_use_id"')
        turn = results if results < told["turns"] and b'"tools"' in request else None
        if turn is None and STREAMED.search(request):
            task = asyncio.get_running_loop().create_task(self.stream(told))
            self.streams.add(task)
            task.add_done_callback(self.streams.discard)
            return
        reply = (anthropic_reply if b"/v1/messages" in request[:40] else chat_reply)(turn, told["words"])
        if told["wait"]:
            asyncio.get_running_loop().call_later(told["wait"] / 1_000, self.transport.write, reply)
        else:
            self.transport.write(reply)

    async def stream(self, told: dict[str, int]) -> None:
        await asyncio.sleep(told["wait"] / 1_000)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.transport.write(head + chat_chunk({"role": "assistant", "content": f"{time.monotonic():.6f} "}))
        for _ in range(told["words"] - 1):
            await asyncio.sleep(told["gap"] / 1_000)
            if self.transport.is_closing():
                return
            self.transport.write(chat_chunk({"content": "word "}))
        self.transport.write(chat_chunk({}, "stop", usage=USAGE) + piece(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def serve() -> None:
    """Serves on a free port, which is printed, until the process is ended."""
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=2_048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def serving() -> Iterator[str]:
    """Starts the server in its own process; gives its address."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.fake_model"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


if __name__ == "__main__":
    asyncio.run(serve())

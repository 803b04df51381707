"""JSON that is one line whatever ends a line for its reader."""

from __future__ import annotations

import json
import re
import sys
from itertools import chain

from executor.json_lines import one_line
from executor.service.chat.stream import sse
from executor.service.feed import event_bytes, piece_bytes

LETTERS = "".join(map(chr, chain(range(0xD800), range(0xE000, sys.maxunicode + 1))))
"""All there are."""


def test_every_character_comes_through_and_none_ends_the_line() -> None:
    data = one_line(json.dumps({"text": LETTERS}, ensure_ascii=False).encode())
    assert len(data.decode().splitlines()) == 1
    assert json.loads(data) == {"text": LETTERS}


def test_events_have_no_more_lines_than_the_format_has() -> None:
    payload = {"status": "delta", "content": LETTERS}
    for block in (event_bytes(1, 1.0, "answer", None, payload), piece_bytes(0, 0, LETTERS), sse(payload)):
        lines = block.decode().splitlines()
        assert all(re.match(r"(event|data|id): |$", line) for line in lines), [line[:80] for line in lines]
        (data,) = (line.removeprefix("data: ") for line in lines if line.startswith("data: "))
        assert json.loads(data)["content"] == LETTERS

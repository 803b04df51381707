"""Chance that depends on names alone: the same seed and names give the same number, in any order and process."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any


def uniform(*names: Any) -> float:
    """A number from 0 to below 1, evenly spread over the names (texts and whole numbers); 53 bits of a hash."""
    data = json.dumps(names, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    return (int.from_bytes(blake2b(data, digest_size=8).digest(), "big") >> 11) / (1 << 53)

"""JSON as a line of its own, for readers who end lines at more than a newline."""

from __future__ import annotations

ENDS = {b"\xc2\x85": rb"\u0085", b"\xe2\x80\xa8": rb"\u2028", b"\xe2\x80\xa9": rb"\u2029"}
"""What ends a line by Unicode's rules, as UTF-8, and how JSON writes it otherwise. All else that does so are control
characters, which JSON must escape."""


def one_line(data: bytes) -> bytes:
    """JSON in UTF-8 that is one line by every reader's rules: Python's `splitlines`, JavaScript's, Unicode's."""
    for end, escaped in ENDS.items():
        if end in data:
            data = data.replace(end, escaped)
    return data

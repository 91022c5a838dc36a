"""JSON with a checksum of its own, for files that are written once and read much later.

    {"format": 2, "checksum": "<SHA-256>", ...}

The sum is of every byte of the file but its own digits, so that no change of any byte goes unnoticed. What an
earlier weir wrote has no sum, and does not begin like this.
"""

from __future__ import annotations

import hashlib
import re

_BEGINS = re.compile(rb'\s*\{\s*"format"\s*:\s*(\d{1,9})\s*,\s*"checksum"\s*:\s*"([0-9a-f]{64})"')


def seal(data: bytes) -> bytes:
    """The same JSON object, with its sum; it must begin with `format` and an empty `checksum`."""
    head, empty, rest = data.partition(b'"checksum": ""')
    if not empty:
        head, empty, rest = data.partition(b'"checksum":""')
    assert empty, "it has a place for its checksum"
    before, after = head + empty[:-1], b'"' + rest
    return before + _sum(before, after).encode() + after


def check(data: bytes) -> bool:
    """Whether the sum of what was sealed is right; False for what has no sum."""
    found = _BEGINS.match(data)
    if found is None:
        return False
    return _sum(data[: found.start(2)], data[found.end(2) :]) == found[2].decode()


def format_of(data: bytes) -> int | None:
    """The format that sealed JSON begins with; None for what was not sealed."""
    found = _BEGINS.match(data)
    return int(found[1]) if found else None


def _sum(before: bytes, after: bytes) -> str:
    return hashlib.sha256(before + after).hexdigest()

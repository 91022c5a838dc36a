"""Checksums inside small JSON files, in two forms.

    {"crc32":"1c291ca3", ...}                        an entry of a ledger, a record, a value: `add`, `strip`
    {"format": 2, "checksum": "<SHA-256>", ...}      a manifest, read much later: `seal`, `check`

The CRC is over the bytes of the object without it, so it costs one pass over them and no second encoding.
The SHA-256 is over every byte of the file but its own digits, so that no change of any byte goes unnoticed.
A file that an earlier weir wrote has no sum, and is read as it is; an earlier weir ignores the extra field
of a CRC.
"""

from __future__ import annotations

import hashlib
import re
import zlib

_HEAD = re.compile(rb'\{"crc32":"([^"]*)"(,|(?=\}))')
_SEALED = re.compile(rb'\s*\{\s*"format"\s*:\s*(\d{1,9})\s*,\s*"checksum"\s*:\s*"([0-9a-f]{64})"')


class ChangedError(ValueError):
    """A file does not match its own checksum."""

    def __init__(self) -> None:
        super().__init__("does not match its own checksum")


def of(data: bytes) -> bytes:
    """The sum of a file as it is written, beside it or into it."""
    return b"%08x" % zlib.crc32(data)


def add(data: bytes) -> bytes:
    """The same JSON object with its sum, as the first field."""
    assert data.startswith(b"{"), "it is a JSON object"
    rest = data[1:].lstrip()
    return b'{"crc32":"' + of(b"{" + rest) + (b'"' if rest.startswith(b"}") else b'",') + rest


def strip(data: bytes) -> bytes:
    """The JSON without its sum; raises `ChangedError` when the sum is wrong.

    Without a sum, the same bytes.
    """
    head = _HEAD.match(data)
    if head is None:
        return data
    body = b"{" + data[head.end() :]
    if head[1] != of(body):
        raise ChangedError
    return body


def has(data: bytes) -> bool:
    """Whether it begins with a sum, right or wrong."""
    return _HEAD.match(data) is not None


def wrong(error: Exception) -> str:
    """The reason, in words, that a file could not be decoded."""
    return str(error) if isinstance(error, ChangedError) else "can't be read"


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
    head = _SEALED.match(data)
    if head is None:
        return False
    return _sum(data[: head.start(2)], data[head.end(2) :]) == head[2].decode()


def format_of(data: bytes) -> int | None:
    """The format that sealed JSON begins with; None for what was not sealed."""
    head = _SEALED.match(data)
    return int(head[1]) if head else None


def _sum(before: bytes, after: bytes) -> str:
    return hashlib.sha256(before + after).hexdigest()

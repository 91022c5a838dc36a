"""A checksum at the head of a small JSON file: of an entry of a ledger, a record, a value.

    {"crc32":"1c291ca3", ...}

The sum is over the bytes of the object without it, so it costs one pass over them and no second encoding. A
file that an earlier weir wrote has none, and is read as it is; an earlier weir passes over the extra field.
A manifest, which has a format number and may be large, is sealed instead: `sealed.py`.
"""

from __future__ import annotations

import re
import zlib

_HEAD = re.compile(rb'\{"crc32":"([^"]*)"(,|(?=\}))')


class ChangedError(ValueError):
    """A file is not what its own checksum says."""

    def __init__(self) -> None:
        super().__init__("is not what its own checksum says")


def of(data: bytes) -> bytes:
    """The sum of a file as it is written, beside it or into it."""
    return b"%08x" % zlib.crc32(data)


def add(data: bytes) -> bytes:
    """The same JSON object with its sum, as the first field."""
    assert data.startswith(b"{"), "it is a JSON object"
    rest = data[1:].lstrip()
    return b'{"crc32":"' + of(b"{" + rest) + (b'"' if rest.startswith(b"}") else b'",') + rest


def strip(data: bytes) -> bytes:
    """The JSON without its sum; raises `ChangedError` when that is another. What has no sum comes back."""
    head = _HEAD.match(data)
    if head is None:
        return data
    body = b"{" + data[head.end() :]
    if head[1] != of(body):
        raise ChangedError
    return body


def has(data: bytes) -> bool:
    """Whether there is a sum at its head, right or wrong."""
    return _HEAD.match(data) is not None


def wrong(error: Exception) -> str:
    """What to say of a file that could not be decoded."""
    return str(error) if isinstance(error, ChangedError) else "can't be read"

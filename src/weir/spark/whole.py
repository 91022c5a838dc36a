"""Is a file of Spark's whole? By the size that another file tells of it, or by reading all of it.

A snapshot of RocksDB (`<version>.zip`) tells the sizes of the files beside it, and in state format 2 a
`<name>.crc` that of a changelog or snapshot. Deltas and changelogs are blocks with checksums, and have
an end of their own.
"""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from weir.spark.zips import sizes

_READ = (".delta", ".snapshot", ".changelog")
_END = struct.Struct("8sB12s")
_CUT_OFF = "is cut off"


def misfits(root: Path, names: Sequence[str], codec: str) -> dict[str, str]:
    """Those that have another size than they should, or no end; what is wrong with each. All must be there.

    Of state only what tells sizes is read, and the last bytes of files whose size nothing tells.
    """
    found: dict[str, str] = {}
    for name in names:
        if codec == "lz4" and name.endswith(_READ) and not _has_end(root / name):
            found[name] = _CUT_OFF
            continue
        try:
            expected = dict(_expected(root, name))
        except ValueError:
            found[name] = _CUT_OFF
            continue
        for file, size in expected.items():
            there = (root / file).stat().st_size if (root / file).exists() else None
            if there is not None and there != size:
                found[file] = f"has {there} bytes, and should have {size}"
    return found


def _has_end(path: Path) -> bool:
    """Whether it ends with the empty block that LZ4 writes last."""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - _END.size))
        last = file.read()
    return len(last) == _END.size and _END.unpack(last)[::2] == (b"LZ4Block", bytes(12))


def _expected(root: Path, name: str) -> Iterator[tuple[str, int]]:
    """The sizes that a file tells of others."""
    if name.endswith(".zip"):
        folder = name.rpartition("/")[0]
        told = sizes(root / name).items()
        yield from ((f"{folder}/{file}", size) for file, size in told if size is not None)
    elif name.endswith(".crc"):
        size = json.loads((root / name).read_text()).get("mainFileSize")
        if size is not None:
            yield name.removesuffix(".crc"), int(size)


def problem(path: Path, codec: str) -> str | None:
    """What is wrong with a file of state, which is read to its end; None for one that is whole or unknown."""
    if path.name.endswith(".zip"):
        try:
            with zipfile.ZipFile(path) as snapshot:
                torn = snapshot.testzip()
        except (zipfile.BadZipFile, zlib.error) as error:
            return f"can't be read: {error}"
        return f"has changed in {torn}" if torn else None
    if not path.name.endswith(_READ):
        return None
    from weir.spark import hashmap  # noqa: PLC0415  loads pyarrow

    if codec not in hashmap.CODECS:
        return None
    try:
        hashmap.check(path, codec)
    except hashmap.TornFileError as error:
        return f"can't be read: {str(error).removeprefix(f'{path} ')}"
    return None

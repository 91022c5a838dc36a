"""Is a file of Spark's intact? By the size that another file has of it, or by reading all of it.

A snapshot of RocksDB (`<version>.zip`) has the sizes of the files beside it, and in state format 2 a
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

from weir.spark import lz4
from weir.spark.logs import FileEntry, OffsetEntry, has_version, without_middle
from weir.spark.reshape import HASHMAP_CODECS
from weir.spark.state_schema import read_schemas
from weir.spark.zips import sizes

_READ = (".delta", ".snapshot", ".changelog")
_CUT_OFF = "is cut off"
_SMALL = 1 << 18
"""Bytes of a description that a start reads; of a bigger one only its beginning and its end."""
_HADOOP = struct.Struct(">4si")


def misfits(root: Path, names: Sequence[str], codec: str) -> dict[str, str]:
    """Those that have another size than they should, or no end; what is wrong with each. All must be there.

    Of state only what has sizes is read, and the last bytes of files whose size is recorded nowhere.
    """
    problems: dict[str, str] = {}
    for name in names:
        if codec == "lz4" and name.endswith(_READ) and not _has_end(root / name):
            problems[name] = _CUT_OFF
            continue
        try:
            expected = dict(_expected(root, name))
        except ValueError:
            problems[name] = _CUT_OFF
            continue
        for file, size in expected.items():
            actual = (root / file).stat().st_size if (root / file).exists() else None
            if actual is not None and actual != size:
                problems[file] = f"has {actual} bytes, and should have {size}"
    return problems


def _has_end(path: Path) -> bool:
    with open(path, "rb") as file:
        return lz4.has_end(file)


def _expected(root: Path, name: str) -> Iterator[tuple[str, int]]:
    """The sizes that a file has of others."""
    if name.endswith(".zip"):
        folder = name.rpartition("/")[0]
        recorded = sizes(root / name).items()
        yield from ((f"{folder}/{file}", size) for file, size in recorded if size is not None)
    elif name.endswith(".crc"):
        try:
            size = json.loads((root / name).read_text())["mainFileSize"]
            yield name.removesuffix(".crc"), int(size)
        except KeyError:
            return  # it has no size
        except TypeError as error:
            raise ValueError from error


def checksum_problem(path: Path) -> str | None:
    """What is wrong with a file by Hadoop's checksum beside it, which Spark compares; None without one."""
    try:
        stored = path.with_name(f".{path.name}.crc").read_bytes()
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(stored) < _HADOOP.size or stored[:4] != b"crc\0":
        return None  # Hadoop takes no notice of such a one
    _, piece = _HADOOP.unpack_from(stored)
    sums = (zlib.crc32(data[at : at + piece]) for at in range(0, len(data), piece)) if piece > 0 else iter(())
    if stored[_HADOOP.size :] == b"".join(struct.pack(">I", one) for one in sums):
        return None
    return f"does not match its checksum, .{path.name}.crc"


def description_problem(path: Path, name: str, *, thorough: bool) -> str | None:
    """What is wrong with a file that describes a query or its state; `name` is its path in the query.

    None where nothing is, and for files of state. Not `thorough`, a big log is looked at on both ends only.
    Of files in `sources` ask only about those of a file source's log (see `Closure.foreign`).
    """
    first, _, rest = name.partition("/")
    try:
        if name == "metadata":
            known = json.loads(path.read_bytes())
            return None if isinstance(known, dict) and known.get("id") else "names no query"
        if first in ("offsets", "commits"):
            return log_problem(path)
        if first == "sources":
            return _source_problem(path, thorough)
        if "/_stateSchema/" in name or name.endswith("/_metadata/schema"):
            read_schemas(path.read_bytes())
        elif "/_metadata/" not in rest:
            return None
        return checksum_problem(path)
    except ValueError as error:
        return f"can't be read: {error}"
    except FileNotFoundError:
        return None  # which is reported already


def log_problem(path: Path) -> str | None:
    """What is wrong with an entry of offset or commit log: a version, JSON, and a line for each source."""
    try:
        problem = OffsetEntry.parse(path.read_bytes()).problem()
    except FileNotFoundError:
        return "is gone"
    except UnicodeDecodeError:
        return "can't be read"
    return checksum_problem(path) if problem is None else problem


def _source_problem(path: Path, thorough: bool) -> str | None:
    """The same of an entry of a file source's log: a version, and lines that are JSON."""
    size = path.stat().st_size
    if size > _SMALL and not thorough:
        with path.open("rb") as file:
            beginning = file.read(4096)
            file.seek(-_SMALL, 2)
            data = without_middle(beginning, file.read())
    else:
        data = path.read_bytes()
    if not has_version(FileEntry.parse(data)):
        return "can't be read"
    return checksum_problem(path) if size <= _SMALL or thorough else None


def problem(path: Path, codec: str) -> str | None:
    """What is wrong with a file of state, which is read to its end; None if it is intact or unknown."""
    if path.name.endswith(".zip"):
        try:
            with zipfile.ZipFile(path) as snapshot:
                damaged = snapshot.testzip()
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            return f"can't be read: {error}"
        return f"has changed in {damaged}" if damaged else None
    if not path.name.endswith(_READ):
        return None
    if codec not in HASHMAP_CODECS:
        return None
    from weir.spark import hashmap  # noqa: PLC0415  loads pyarrow

    try:
        hashmap.check(path, codec)
    except hashmap.DamagedFileError as error:
        return f"can't be read: {str(error).removeprefix(f'{path} ')}"
    return None

"""The log of Spark's file source, `sources/<n>`: which files count as read.

    <entry>, <entry>.compact     the files of one entry; of all entries up to it

A file that is in the log is never read again. Another log is made for a query that goes on elsewhere:
always as one first entry, because Spark looks files of a batch up by the entry that they came with.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.spark.logs import FileEntry, file_entries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def present(spark: SparkSession, relation: Any) -> bytes:
    """The log of a source that has read all files that are there now; b"" when there are none.

    Spark itself lists them, by the source's own options, and writes the log: into a temporary folder.
    No file is opened.
    """
    jvm: Any = spark.sparkContext._jvm
    everything = jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.allAvailable()
    with tempfile.TemporaryDirectory(prefix="weir-files-") as folder:
        source = relation.dataSource().createSource(f"file:{folder}/log")
        try:
            source.latestOffset(None, everything)
        finally:
            source.stop()
        entry = Path(folder) / "log" / "0"
        return entry.read_bytes() if entry.exists() else b""


def modified_before(log: bytes, time_ms: int) -> bytes:
    """Of a log only the files that were modified before a time."""
    return _log([one for one in _files(log) if one["timestamp"] < time_ms])


def up_to(folder: Path, entry: int) -> bytes:
    """One log of what a source has read up to an entry of its log in a folder."""
    found: dict[str, dict[str, Any]] = {}
    for name in file_entries(path.name for path in folder.iterdir()).values():
        there = _files((folder / name).read_bytes())
        found |= {one["path"]: one for one in there if one["batchId"] <= entry}
    return _log(list(found.values()))


def count(log: bytes) -> int:
    """How many files a log has."""
    return len(_files(log))


def _files(log: bytes) -> list[dict[str, Any]]:
    entry = FileEntry.parse(log) if log else FileEntry()
    if not entry.known:
        raise ValueError(f"a log of read files has version {entry.version!r}, and weir does not know it")
    return list(entry.files)


def _log(files: list[dict[str, Any]]) -> bytes:
    return FileEntry(tuple({**one, "batchId": 0} for one in files)).data if files else b""

"""The log of Spark's file source, `sources/<n>`: which files count as read.

    <entry>, <entry>.compact     the files of one entry; of all entries up to it

A file that is in the log is never read again. Another log is made for a query that goes on elsewhere:
always as one first entry, because Spark looks files of a batch up by the entry that they came with.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ENTRY = re.compile(r"(\d+)(\.compact)?")
_VERSION = "v1"


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
    for path in sorted(folder.iterdir()):
        if _ENTRY.fullmatch(path.name):
            found |= {one["path"]: one for one in _files(path.read_bytes()) if one["batchId"] <= entry}
    return _log(list(found.values()))


def count(log: bytes) -> int:
    """How many files a log has."""
    return len(_files(log))


def _files(log: bytes) -> list[dict[str, Any]]:
    version, *lines = log.decode().split("\n") if log else [_VERSION]
    if version != _VERSION:
        raise ValueError(f"a log of read files has version {version!r}, and weir knows {_VERSION!r}")
    return [json.loads(line) for line in lines if line]


def _log(files: list[dict[str, Any]]) -> bytes:
    if not files:
        return b""
    lines = (json.dumps({**one, "batchId": 0}, separators=(",", ":")) for one in files)
    return "\n".join([_VERSION, *lines]).encode()

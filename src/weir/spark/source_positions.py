"""The sources of a frame as a user can set them: what they are, how they are called, where they can resume.

Spark keeps positions by the place of a source in the plan. The name that an author gave a source is not
in the plan; it is found by the very object that was loaded, which a plan keeps however it is built on.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.protocol.offsets import (
    FIRST,
    Kind,
    OffsetChoice,
    QuerySource,
    SourcePosition,
    Word,
    fixed_position,
    log_entry,
)
from weir.spark import kafka_offsets
from weir.spark.fingerprints import is_stream, leaves, options_of, source
from weir.spark.kafka_client import kafka_stream
from weir.spark.logs import FileEntry, file_entries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# The log of Spark's file source, `sources/<n>`: which files count as read.
#
# <entry>, <entry>.compact     the files of one entry; of all entries up to it
#
# A file that is in the log is never read again. Another log is made for a query that resumes elsewhere:
# always as one first entry, because Spark looks files of a batch up by the entry that they came with.


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
    files: dict[str, dict[str, Any]] = {}
    for name in file_entries(path.name for path in folder.iterdir()).values():
        there = _files((folder / name).read_bytes())
        files |= {one["path"]: one for one in there if one["batchId"] <= entry}
    return _log(list(files.values()))


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


_OLDER = "StreamingRelation"
_FILES = "FileSource["
_COUNTED = frozenset({"RateStreamTable", "TextSocketTable"})
_OWN = ("channel ", "source ")
_NAMED = "named "


@dataclass(frozen=True)
class FrameSource:
    """A source in the plan of a frame."""

    about: QuerySource
    leaf: Any = field(repr=False, compare=False)


def streams(frame: DataFrame, named: Mapping[str, DataFrame]) -> list[FrameSource]:
    """The sources of a frame, in the order of Spark's offset log. Nothing is evaluated.

    `named` are the frames that the author gave names; one of several sources names none of them.
    """
    jvm: Any = frame.sparkSession._jvm
    names = jvm.java.util.IdentityHashMap()
    for name, loaded in named.items():
        sources = _sources(loaded)
        if len(sources) == 1:
            names.put(_loaded(sources[0]), name)
    return [
        FrameSource(QuerySource(source(leaf), _kind(leaf), names.get(_loaded(leaf)) or ""), leaf)
        for leaf in _sources(frame)
    ]


def position(frame: DataFrame, stream: FrameSource, choice: OffsetChoice) -> SourcePosition:
    """Where a source resumes for which the choice was checked; raises `BadOffsetsError`, `BrokerError`."""
    if choice.word is Word.INITIAL:
        note = "is read from its beginning, or where its options say, as you asked"
        return SourcePosition(note, log=b"", only_new=fixed_position(stream.about))
    kafka = kafka_stream(stream.leaf)
    if kafka is not None:
        return kafka_offsets.position(frame.sparkSession, kafka, choice)
    if stream.about.kind is Kind.FILES:
        return _of_files(frame, stream, choice)
    offset = json.dumps(choice.offset, separators=(",", ":"))
    return SourcePosition(f"resumes at {offset}", offset)


def _of_files(frame: DataFrame, stream: FrameSource, choice: OffsetChoice) -> SourcePosition:
    if choice.word is Word.EARLIEST:
        return SourcePosition("all files that are there are read again", log=b"")
    if choice.word is Word.GIVEN:
        entry = log_entry(choice)
        return SourcePosition(f"reads again what came after entry {entry} of its log", FIRST, until=entry)
    if options_of(stream.leaf).get("cleansource", "").lower() not in ("", "off"):
        raise choice.refused("its option cleanSource would remove files that were never read")
    log = present(frame.sparkSession, stream.leaf)
    note = "{} that are there count as read"
    if choice.word is Word.SINCE:
        assert choice.since is not None
        log = modified_before(log, choice.since_ms)
        note = f"{{}} that were modified before {choice.since.isoformat()} count as read, and no other"
    files = count(log)
    counted = note.format("one file" if files == 1 else f"{files} files")
    return SourcePosition(counted, FIRST, log=log) if log else SourcePosition(counted, log=b"")


def _sources(frame: DataFrame) -> list[Any]:
    return [leaf for leaf in leaves(frame) if is_stream(leaf)]


def _loaded(leaf: Any) -> Any:
    """What the reader made: the same object wherever the frame is used, and of no other frame."""
    return leaf.dataSource() if _is_older(leaf) else leaf.table()


def _is_older(leaf: Any) -> bool:
    return str(leaf.getClass().getSimpleName()) == _OLDER


def _kind(leaf: Any) -> Kind:
    name = source(leaf)
    if name.startswith(_NAMED):
        return Kind.NAMED
    if name.startswith(_OWN):
        return Kind.OWN
    if _is_older(leaf):
        return Kind.FILES if leaf.sourceName().startswith(_FILES) else Kind.OTHER
    if kafka_stream(leaf) is not None:
        return Kind.KAFKA
    table = str(leaf.table().getClass().getSimpleName())
    return Kind.COUNTED if table in _COUNTED else Kind.OTHER

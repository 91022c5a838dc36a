"""The log of Spark's own file sink, `<folder>/_spark_metadata`: does it fit the query that resumes with it?

    <n>, <n>.compact     the files of batch n; of all batches up to n. Each line names a file in full

Spark is silent where it does not fit. A folder that was moved reads as empty, because its files are looked
for in the old place. A query that was rewound, or that begins again over old output, has its batches
skipped as written already, with other rows in them. A query that resumes in a new folder leaves one that
nobody can read, and that Spark fails to compact: it wants every batch from 0. So a start looks first: names
that moved with the folder are written again, with a query that was rewound its log is rewound too, a new
folder begins with batches that name nothing, and what can't be fixed is refused. Only folders of a file
system are looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from weir.errors import SinkMismatchError
from weir.ids import NO_BATCH, BatchId
from weir.spark.frame_plan import format_of, option_of
from weir.spark.logs import FileEntry, file_entries, is_compaction
from weir.storage import files
from weir.storage.open import is_local, local_path

if TYPE_CHECKING:
    from pyspark.sql.streaming import DataStreamWriter

LOG = "_spark_metadata"
_COMPACT = ".compact"
_COMPACT_EVERY = 10
"""Spark's own default."""
_REWOUND = ".taken-back"
_IDENTITY = ("path", "topic", "dbtable", "table", "url")
_CREDENTIALS = re.compile(r"//[^/@\s]*@")
_INTERVAL = "spark.sql.streaming.fileSink.log.compactInterval"
_FORMATS = frozenset({"parquet", "json", "csv", "orc", "text", "avro"})


def log_of(writer: DataStreamWriter, query: str) -> FileSinkLog | None:
    """The log of the folder that an unstarted writer of Spark's writes to; None for any other sink."""
    place = option_of(writer, "path")
    if format_of(writer).lower() not in _FORMATS or not place or not is_local(place):
        return None
    interval = int(writer._spark.conf.get(_INTERVAL) or _COMPACT_EVERY)
    return FileSinkLog(Path(local_path(place)).absolute(), query, interval)


def described(writer: DataStreamWriter) -> str:
    """Where an unstarted writer of Spark's writes to, for people; without secrets."""
    places = [place for key in _IDENTITY if (place := option_of(writer, key))]
    where = " ".join([format_of(writer), *places[:1]]).strip()
    return f"{_CREDENTIALS.sub('//', where)}, by Spark's own sink"


class FileSinkLog:
    """The log in one folder, looked at while no query writes to it. Raises `SinkMismatchError`."""

    def __init__(self, folder: Path, query: str, interval: int = _COMPACT_EVERY) -> None:
        self.folder = folder
        self._query = query
        self._interval = interval
        self._log = folder / LOG

    def newest(self) -> BatchId:
        """The newest batch that it has; -1 when it has none."""
        return max(self._entries(), default=NO_BATCH)

    def fit(self, planned: BatchId, committed: BatchId) -> None:
        """Make it fit a query that has planned and committed batches up to these. Safe to repeat."""
        newest = self.newest()
        if newest > planned:
            reason = (
                f"its {LOG} has batches up to {newest}, and the live files know only those up to "
                f"{planned}: Spark would skip the batches in between, although their rows differ"
            )
            raise self._refused(reason, "restore the job's directory, or give this query a new folder")
        if newest < committed:
            raise self._short(committed)
        self._follow()

    def rewind(self, to: BatchId, check: Callable[[], None] = lambda: None) -> None:
        """Rewind it to a batch: what follows does not count any more. Safe to repeat.

        The files of the later batches stay in the folder; whoever reads it with Spark does not see them.
        A folder that is new to the query begins after the batch.

        Spark knows no fence here. So `check` is asked before each entry is moved away, and raises when
        another driver may have taken over; and an entry that is another than at the beginning is the
        successor's, and stays.
        """
        self.check_rewind(to, new=True)
        later = {batch: (path, _identity(path)) for batch, path in self._entries().items() if batch > to}
        check()
        if self._missing(to):
            self._begin(to)
        for _, (path, seen) in sorted(later.items(), reverse=True):  # the newest first: what is left is a log
            check()
            if _identity(path) == seen:
                _forget_sum(path)
                os.replace(path, path.with_name(path.name + _REWOUND))

    def check_rewind(self, to: BatchId, *, new: bool) -> None:
        """Raise when it can't be brought to end with a batch.

        So when entries up to it are only in a newer compaction, which does not tell them apart; when
        there are none, unless the folder is `new` to the query; and when they name files that are not here.
        """
        self._check_names(to)
        if not self._missing(to):
            return
        entries = self._entries()
        if self.newest() <= to:
            if any(map(_names_files, entries.values())) or not new:
                raise self._short(to)
            return
        later = [path for batch, path in sorted(entries.items()) if batch > to and is_compaction(path.name)]
        if not later or _names_files(later[0]):  # one that names nothing tells that nothing came before it
            reason = f"its {LOG} is compacted after batch {to}, and does not show which files came later"
            raise self._refused(reason, "restore a newer point, or give this query a new folder")

    def _missing(self, to: BatchId) -> list[int]:
        """The entries without which it does not end with a batch."""
        entries = {batch: path for batch, path in self._entries().items() if batch <= to}
        compacted = [batch for batch, path in entries.items() if is_compaction(path.name)]
        return [batch for batch in range(max(compacted, default=0), to + 1) if batch not in entries]

    def _begin(self, after: BatchId) -> None:
        """Let it begin after a batch, compacted where Spark would have done that. Safe to repeat."""
        last = (after + 1) // self._interval * self._interval - 1
        names = [f"{last}{_COMPACT}"] if last >= 0 else []
        self._log.mkdir(parents=True, exist_ok=True)
        for name in [*names, *map(str, range(last + 1, after + 1))]:
            if not (self._log / name).exists():
                files.write(self._log / name, FileEntry().data)

    def _short(self, batch: BatchId) -> SinkMismatchError:
        reason = (
            f"its {LOG} ends with batch {self.newest()}, and the query resumes after batch {batch}:"
            " Spark would read no batch after the gap"
        )
        todo = "restore its files, or resume from a checkpoint or savepoint with a new folder"
        return self._refused(reason, todo)

    def _check_names(self, upto: BatchId) -> Path | None:
        """Raise when entries up to a batch name files that are not here; their old folder, if they moved."""
        entries = [path for batch, path in self._entries().items() if batch <= upto]
        strange = [path for entry in entries for path in _paths(entry) if self._outside(path)]
        old = self._old_folder(strange) if strange else None
        if strange and old is None:
            reason = f"its {LOG} names files that are not in this folder, like {strange[0]}"
            raise self._refused(reason, "restore them, or give this query a new folder")
        return old

    def _follow(self) -> None:
        """Let names that were moved with the folder name the files that are here."""
        old = self._check_names(self.newest())
        if old is None:
            return
        for entry in self._entries().values():
            if any(self._outside(path) for path in _paths(entry)):
                content = FileEntry.parse(entry.read_bytes())
                moved = replace(content, files=tuple(self._renamed(file, old) for file in content.files))
                _forget_sum(entry)
                files.write(entry, moved.data)

    def _old_folder(self, strange: list[Path]) -> Path | None:
        """The folder that these files were in, when all of them are in this one now."""
        for old in strange[0].parents:
            below = [path.relative_to(old) for path in strange if path.is_relative_to(old)]
            if len(below) == len(strange) and all((self.folder / path).exists() for path in below):
                return old
        return None

    def _renamed(self, file: dict[str, Any], old: Path) -> dict[str, Any]:
        path = _path(file)
        if not self._outside(path):
            return file
        here = "file://" + quote(str(self.folder / path.relative_to(old)), safe="/=-_.~+,:@")
        return {**file, "path": here}

    def _outside(self, path: Path) -> bool:
        return not path.is_relative_to(self.folder)

    def _entries(self) -> dict[BatchId, Path]:
        """By batch; the compaction where there is one."""
        names = (path.name for path in self._log.iterdir()) if self._log.is_dir() else ()
        return {batch: self._log / name for batch, name in file_entries(names).items()}

    def _refused(self, reason: str, todo: str) -> SinkMismatchError:
        return SinkMismatchError(query=self._query, path=str(self.folder), reason=reason, todo=todo)


def _identity(entry: Path) -> tuple[int, int] | None:
    """Tells a file from another one of its name; None when it is gone."""
    try:
        status = entry.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _names_files(entry: Path) -> bool:
    return next(_paths(entry), None) is not None


def _paths(entry: Path) -> Iterator[Path]:
    return map(_path, FileEntry.parse(entry.read_bytes()).files)


def _path(entry: dict[str, Any]) -> Path:
    return Path(unquote(urlsplit(entry["path"]).path))


def _forget_sum(path: Path) -> None:
    """Hadoop keeps a checksum beside a file, which would be wrong from now on."""
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

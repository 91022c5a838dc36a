"""What a files sink does beside its batches: it keeps its ledger short, and merges small files.

    <path>/_merged/<attempt>-<run>-<number>-<session>/...   files that hold the rows of several batches

In a thread of its own, which runs only while there is something to do: no batch and no commit waits for it.
It may be killed at any step, be fenced, or fail: then files stay small and the ledger long, and whoever is
next takes it up. A merge counts by one entry in the ledger, with which all the old files stop counting; they
are deleted `GRACE` later, so that whoever has listed them can still read them.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from weir import faults
from weir.clock import Clock
from weir.errors import FencedError, InternalError
from weir.ids import NO_BATCH, Attempt, BatchId, Run, Token
from weir.protocol.contents import Contents, merged
from weir.sinks.files_ledger import FilesLedger
from weir.sinks.staging import remove_files, sync_files
from weir.spark.failure import cause_of
from weir.storage import Store
from weir.storage.open import spark_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# Which small files are to be merged next: facts in, decision out.
#
# Files of about the same size are merged when there are enough of them, as in a log-structured tree. So a
# row is written again only when what it lies in grows by a factor, a few times in all, and of each size
# there are never more than a few files. Only files of batches that no rewind separates, and of one
# partition folder, come together.


FAN = 16
"""How many files of about one size are worth a merge."""
MOST = 500
"""No merge has more files than this, however small they are."""
_SIZES = 3
"""Below target / FAN ** _SIZES all files are of one size: small."""


def partition_of(name: str) -> str:
    """The folder for the values of partition columns: `data/<staging>/<it>/part-*`; empty without any."""
    return "/".join(name.split("/")[2:-1])


def next_merge(sizes: Mapping[str, int], target: int) -> list[str]:
    """The files to merge next, out of those that may be, in the order in which they are given; or none.

    The smallest come first. What has half of the target is large enough, and stays as it is.
    """
    groups: dict[tuple[int, str], list[str]] = {}
    for name, size in sizes.items():
        if 2 * size < target:
            groups.setdefault((-_rank(size, target), partition_of(name)), []).append(name)
    for _, names in sorted(groups.items()):
        if len(names) >= FAN or (len(names) > 1 and sum(sizes[name] for name in names) >= target):
            return _up_to(names, sizes, target)
    return []


def _rank(size: int, target: int) -> int:
    """0 for files that a merge makes large enough, more for smaller ones."""
    rank = 0
    while rank < _SIZES and size * FAN < target:
        size, rank = size * FAN, rank + 1
    return rank


def _up_to(names: list[str], sizes: Mapping[str, int], target: int) -> list[str]:
    taken: list[str] = []
    total = 0
    for name in names[:MOST]:
        taken.append(name)
        total += sizes[name]
        if total >= target:
            break
    return taken


MERGED = "_merged"
_EARLIER = "merged"
"""Where an earlier weir has put them."""
GRACE = timedelta(hours=1)
"""How long a file that was merged into another stays."""
_MADE = re.compile(r"[^/]+/\d+-\d+-\d+(-\w*)?/", re.ASCII)
"""In a folder that a merge has made."""


class Merger(Protocol):
    """Who reads small files and writes large ones."""

    def sizes(self, names: Sequence[str]) -> dict[str, int]:
        """How many bytes each of these files has; of those that it can't merge yet, nothing."""

    def merge(self, names: Sequence[str], folder: str) -> None:
        """Write the rows of these files, each once, to new files in a new folder; raises when it can't."""


class Upkeep:
    """The upkeep of one run's sink. For any thread."""

    def __init__(
        self,
        ledger: FilesLedger,
        store: Store,
        merger: Merger,
        target: int | None,
        clock: Clock | None = None,
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._merger = merger
        self._target = target
        self._clock = clock or Clock()
        self._upto = NO_BATCH
        self._sizes: dict[str, int] = {}
        self._hopeless: set[str] = set()
        """Files that could not be merged; the next start tries again."""
        self._deleted: set[str] = set()
        self._number = 0
        self._lock = threading.Lock()
        self._asked = False
        self._thread: threading.Thread | None = None

    def forget(self, upto: BatchId) -> None:
        """No rewind goes below this batch; returns at once."""
        self._upto = upto
        if self._target is not None:
            self._ask()

    def committed(self) -> None:
        """A batch was entered in the ledger; returns at once."""
        if self._ledger.is_long:
            self._ask()

    def work(self) -> None:
        """Do all that is to be done now; raises `FencedError` when a higher token was announced."""
        while True:
            if self._ledger.is_long:  # also between merges, which may take long
                self._ledger.keep()
            now = self._ledger.contents()
            self._delete_replaced(now)
            names = self._next(now)
            if not names:
                return
            self._merge(names)

    def discard(self) -> None:
        """Delete what older runs have merged to no effect: none of them can enter it any more.

        Only of older ones, or a start that slept in here would take a newer run's files for such.
        """
        now = self._ledger.contents()
        kept = {_folder(name) for name in (*now.files, *now.replaced)}
        dead = [
            key
            for folder in (MERGED, _EARLIER)
            for key in self._store.list(folder)
            if _MADE.match(key) and _folder(key) not in kept and _token(key) < self._ledger.token
        ]
        remove_files(self._store, dead)

    def _ask(self) -> None:
        with self._lock:
            self._asked = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="weir-upkeep", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while self._wanted():
            try:
                self.work()
            except FencedError:
                continue  # the batches learn it too
            except Exception as error:  # no batch suffers from it
                self._say(f"cleaning up the folder {self._store.url} failed: {cause_of(error)}")

    def _wanted(self) -> bool:
        with self._lock:
            wanted, self._asked = self._asked, False
            self._thread = self._thread if wanted else None
            return wanted

    def _next(self, now: Contents) -> list[str]:
        if self._target is None:
            return []
        # A file is merged only when no rewind that a checkpoint asks for removes a part of its batches.
        may = [
            name
            for name in now.in_order()
            if now.files[name].last <= self._upto and name not in self._hopeless
        ]
        known = self._sizes | self._merger.sizes([name for name in may if name not in self._sizes])
        self._sizes = {name: known[name] for name in may if name in known}
        return next_merge(self._sizes, self._target)

    def _merge(self, names: Sequence[str]) -> None:
        self._number += 1
        token = self._ledger.token
        session = f"-{token.session}" if token.session else ""
        folder = f"{MERGED}/{token.attempt}-{token.run}-{self._number:06d}{session}"
        inside = f"{folder}/{partition_of(names[0])}".rstrip("/")
        try:
            self._merger.merge(names, inside)
            sync_files(self._store, folder)
        except Exception as error:  # by what Spark, or the storage, can't do
            self._hopeless.update(names)
            self._say(f"{len(names)} small files of {self._store.url} were not merged: {cause_of(error)}")
            remove_files(self._store, list(self._store.list(folder)))
            return
        faults.point("files.merged")
        written = [key for key in self._store.list(folder) if "/part-" in key]
        at = self._clock.now().timestamp()
        self._ledger.append(merged(token, written, names, at, self._deleted))
        faults.point("files.replaced")

    def _delete_replaced(self, now: Contents) -> None:
        """Delete files that were replaced long ago. Wall clocks differ; a reader's time to finish is all
        that hangs on it.
        """
        self._deleted &= now.replaced.keys()
        before = (self._clock.now() - GRACE).timestamp()
        due = [name for name, at in now.replaced.items() if at <= before and name not in self._deleted]
        used = {_folder(name) for name in (*now.files, *(now.replaced.keys() - set(due) - self._deleted))}
        empty = sorted({_folder(name) for name in due} - used)
        left = [key for folder in empty for key in self._store.list(folder)]
        remove_files(self._store, sorted({*due, *left}))
        self._deleted.update(due)

    def _say(self, text: str) -> None:
        print(f"weir: {text}", file=sys.stderr, flush=True)


class SparkMerger:
    """The driver's Spark merges, with the reader and the writer that made the files: the types stay its own.

    One task reads and writes, so that the batches keep the other cores.
    """

    def __init__(self, url: str, format: str, options: Mapping[str, str]) -> None:
        self._url = url
        self._format = format
        self._options = options
        self.spark: SparkSession | None = None
        """Known from the first batch on."""

    def sizes(self, names: Sequence[str]) -> dict[str, int]:
        if self.spark is None:
            return {}
        context = self.spark.sparkContext
        conf = context._jsc.hadoopConfiguration()
        lengths = {}
        for name in names:
            path = context._jvm.org.apache.hadoop.fs.Path(self._at(name))  # type: ignore[union-attr]
            lengths[name] = int(path.getFileSystem(conf).getFileStatus(path).getLen())
        return lengths

    def merge(self, names: Sequence[str], folder: str) -> None:
        assert self.spark is not None, "files have a size once there is a session"
        self.spark.sparkContext.setJobGroup("weir-merge", f"{len(names)} small files of {self._url}")
        before = self._rows(names).coalesce(1)
        rows = before.count()
        before.write.format(self._format).options(**self._options).mode("errorifexists").save(
            self._at(folder)
        )
        written = self._rows([folder]).count()
        if written != rows:
            raise InternalError(what=f"{rows} rows were to be merged and {written} were written")

    def _rows(self, names: Iterable[str]) -> DataFrame:
        assert self.spark is not None
        reader = self.spark.read.format(self._format).options(**self._options)
        for strict in ("ignoreCorruptFiles", "ignoreMissingFiles"):
            reader = reader.option(strict, "false")
        # Of files of different schemas none may lose a column; where they don't fit, it raises.
        return reader.option("mergeSchema", "true").load([self._at(name) for name in names])

    def _at(self, name: str) -> str:
        return spark_url(f"{self._url}/{name}")


def _folder(name: str) -> str:
    return "/".join(name.split("/")[:2])


def _token(key: str) -> Token:
    """Who has merged into this file."""
    attempt, run, _, *session = key.split("/")[1].split("-", 3)
    return Token(Attempt(int(attempt)), Run(int(run)), *session)

"""Take a savepoint: the kept files of a completed checkpoint, copied in full, with a manifest.

Runs beside the job and needs no Spark: the checkpoint must only be held until it is done. What is
read must be what was kept, by its CRC; a file that is damaged in the pins is taken from the copy-dir.
Nothing in a savepoint names the place that it was taken from.
"""

from __future__ import annotations

import re
import secrets
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from weir import faults
from weir.checkpoint.kept_files import KeptFiles
from weir.checkpoint.manifest import File, Manifest, QueryCut
from weir.clock import Clock
from weir.errors import SavepointPlaceError, StorageError
from weir.ids import Attempt, Generation, JobName, QueryName
from weir.protocol.operators import Operator
from weir.protocol.shape import Shape
from weir.savepoint.about import kept as kept_shape
from weir.savepoint.manifest import (
    SavedChannel,
    SavedFile,
    SavedQuery,
    SavedSink,
    SavedSource,
    Savepoint,
)
from weir.savepoint.object_store import TakingAttempt
from weir.savepoint.write import Writing, begin, relative
from weir.sources import journal
from weir.spark.logs import CommitEntry, OffsetEntry, parsed_offset
from weir.spark.state_schema import described
from weir.storage import Store, files, paths
from weir.storage.files import Sum
from weir.storage.manifest import FORMAT
from weir.storage.members import JOURNALS
from weir.storage.open import is_local, local_path

_ENTRY = re.compile(r"sources/([^/]+)/log/(\d+)\.json")

Item = TypeVar("Item")
Progress = Callable[[int, int], None]
"""Called, from several threads, with how many bytes are copied, and of how many."""
Rest = Callable[[float, float], None]
"""Called by each thread that copies, after each file: the seconds that it took, and those of a core."""


class HaltedError(Exception):
    """The copy was abandoned, because the job ends."""


@dataclass(frozen=True)
class QueryFacts:
    """What the files of a query do not say."""

    sink: SavedSink | None = None
    output_mode: str = ""
    sources: tuple[str, ...] = ()
    """What Spark says of each source, in its order."""
    rows: Mapping[int, int] = field(default_factory=dict)
    """Rows of state by operator, at exactly the batch of the cut."""


@dataclass(frozen=True)
class SavepointFacts:
    """Who takes a savepoint, why, and of what."""

    trigger: str
    by: str
    since: float
    """When it was asked for, on the monotonic clock."""
    job_file: str = ""
    job_version: str = ""
    queries: Mapping[str, QueryFacts] = field(default_factory=dict)


@dataclass(frozen=True)
class TakenSavepoint:
    """A savepoint, and where it is."""

    place: str
    savepoint: Savepoint


def check_target(target: str, store: Store, job: JobName) -> None:
    """Raise `SavepointPlaceError` for a place in the job's own directory, and try to write elsewhere."""
    if is_local(target) and is_local(store.url):
        folder = Path(local_path(target)).absolute().resolve()
        own = (files.folder_of(store) / paths.job(job)).resolve()
        if folder == own or own in folder.parents:
            reason = "it is in the job's own directory, and would be lost together with it"
            raise SavepointPlaceError(place=target, reason=reason, todo="name a folder outside of it")
    begin(target, f"probe-{secrets.token_hex(6)}", "").give_up()


def take(
    store: Store,
    manifest: Manifest,
    target: str,
    facts: SavepointFacts,
    clock: Clock,
    progress: Progress = lambda _done, _total: None,
    halted: Callable[[], bool] = lambda: False,
    rest: Rest = lambda _took, _used: None,
) -> TakenSavepoint:
    """Copy a completed checkpoint to a new savepoint below `target`, a folder or a URL.

    When it returns, the savepoint is complete and durable; when it raises, nothing of it is left. The
    checkpoint must not be dropped meanwhile. Raises `SavepointPlaceError`, `StorageError`,
    `DamagedCheckpointError`, and `HaltedError` when `halted` returns true.
    """
    check_target(target, store, JobName(manifest.job))
    holder = TakingAttempt(store, JobName(manifest.job), Attempt(manifest.attempt))
    writing = begin(target, f"{manifest.job}-{manifest.id}", manifest.lineage, holder)
    try:
        copied = _Copying(store, manifest, writing, clock, progress, halted, rest).run()
        savepoint = _savepoint(store, manifest, facts, copied, clock)
        return TakenSavepoint(writing.finish(savepoint), savepoint)
    finally:
        writing.give_up()


class _Copying:
    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        writing: Writing,
        clock: Clock,
        progress: Progress,
        halted: Callable[[], bool],
        rest: Rest,
    ) -> None:
        self._kept = KeptFiles(store, manifest)
        self._manifest = manifest
        self._store = store
        self._writing = writing
        self._progress = progress
        self._halted = halted
        self._clock = clock
        self._rest = rest
        self._lock = threading.Lock()
        self._done, self._full = 0, manifest.full_bytes

    def run(self) -> tuple[SavedFile, ...]:
        largest_first = sorted(self._manifest.files(), key=lambda file: -file.bytes)
        entries = unread_entries(self._store, self._manifest)
        copied = self._beside(self._copy, largest_first)
        unread = self._beside(self._copy_entry, entries)
        return tuple(sorted([*copied, *unread], key=lambda file: file.path))

    def _beside(self, copy: Callable[[Item], SavedFile], items: list[Item]) -> list[SavedFile]:
        """Copy them with what the job's own queries leave of the cores."""

        def copy_and_rest(item: Item) -> SavedFile:
            since, used = self._clock.monotonic(), self._clock.cpu()
            saved = copy(item)
            self._rest(self._clock.monotonic() - since, self._clock.cpu() - used)
            return saved

        return files.parallel(copy_and_rest, items, at_once=self._writing.at_once, give_way=True)

    def _copy_entry(self, path: str) -> SavedFile:
        """An entry of a source's journal: nothing in it changes, and the held checkpoint keeps it."""
        self._check()
        key = f"{paths.job(JobName(self._manifest.job))}/{path}"
        data = self._store.get(key)
        if data is None:
            raise StorageError(verb="read", path=key, reason="it is gone", root=self._store.url)
        return self._writing.add(path, [data])

    def _copy(self, file: File) -> SavedFile:
        faults.point("savepoint.copying")
        self._check()
        edit = relative(file.path)
        if edit is None and not file.within and (copied := self._from_pin(file)) is not None:
            return copied
        data = self._kept.content(file)
        saved = self._writing.add(file.path, [data if edit is None else edit(data)])
        self._count(file.bytes)
        return saved

    def _from_pin(self, file: File) -> SavedFile | None:
        """Copy the pin; None when it is not what was kept."""
        read = _Read(self._kept.pin(file))
        try:
            saved = self._writing.add(file.path, self._counted(read.pieces()))
        except _UnreadableError:
            saved = None
        if saved is not None and read.sum == Sum(file.bytes, file.crc):
            return saved
        self._count(-read.sum.bytes)
        return None

    def _counted(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._check()
            yield piece
            self._count(len(piece))

    def _count(self, more: int) -> None:
        with self._lock:
            self._done += more
            done = self._done
        self._progress(done, self._full)

    def _check(self) -> None:
        if self._halted():
            raise HaltedError


def unread_entries(store: Store, manifest: Manifest) -> list[str]:
    """What receiving sources have journaled and the queries of a checkpoint have not read yet.

    With the entry in front of it, which shows a reader whose entries count. Below the job's folder.
    """
    top = f"{paths.job(JobName(manifest.job))}/"
    cuts = manifest.queries.values()
    read = journal.positions(line for cut in cuts for line in cut.offsets)
    found = [_ENTRY.fullmatch(key.removeprefix(top)) for key in store.list(f"{top}{JOURNALS}")]
    began = all(cut.batch >= 0 for cut in cuts)  # else a query may want any source from its beginning
    wanted = [match for match in found if match and (match[1] in read or not began)]
    return [match[0] for match in wanted if int(match[2]) >= (read.get(match[1], 0) if began else 0) - 1]


class _UnreadableError(Exception):
    """A pin can't be read; its content may be elsewhere."""


class _Read:
    """A file that is summed up while it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.sum = Sum(0, 0)

    def pieces(self) -> Iterator[bytes]:
        pieces = files.pieces(self._path)
        while True:
            try:
                piece = next(pieces, None)
            except OSError as error:
                raise _UnreadableError from error
            if piece is None:
                return
            self.sum = Sum(self.sum.bytes + len(piece), zlib.crc32(piece, self.sum.crc))
            yield piece


def _savepoint(
    store: Store, manifest: Manifest, facts: SavepointFacts, copied: tuple[SavedFile, ...], clock: Clock
) -> Savepoint:
    return Savepoint(
        **manifest.common,
        format=FORMAT,
        id=manifest.id,
        taken_at=manifest.completed_at,
        seconds=round(clock.monotonic() - facts.since, 3),
        taken_by=facts.by,
        trigger=facts.trigger,
        job_file=facts.job_file,
        job_version=facts.job_version,
        alignment=manifest.alignment.value,
        queries=saved_queries(store, manifest, facts.queries),
        channels={
            name: SavedChannel(first=cut.first, behind=cut.behind, batch=cut.batch)
            for name, cut in manifest.channels.items()
        },
        files=copied,
    )


def saved_queries(store: Store, manifest: Manifest, facts: Mapping[str, QueryFacts]) -> dict[str, SavedQuery]:
    """The queries of a checkpoint, as a savepoint of it describes them."""
    kept = KeptFiles(store, manifest)
    place = (JobName(manifest.job), Generation(manifest.generation), Attempt(manifest.attempt))
    shapes = {name: kept_shape(store, *place, QueryName(name)) for name in manifest.queries}
    return {
        name: _query(name, cut, facts.get(name, QueryFacts()), shapes[name], kept)
        for name, cut in manifest.queries.items()
    }


def _query(name: str, cut: QueryCut, facts: QueryFacts, shape: Shape | None, kept: KeptFiles) -> SavedQuery:
    # the driver has waited for that (`savepoint/delivered.py`)
    sink = facts.sink.model_copy(update={"last_batch": cut.batch}) if facts.sink else None
    query = SavedQuery(
        batch=cut.batch,
        unaligned=cut.unaligned,
        positions=cut.positions,
        set_back=cut.set_back,
        watermark_ms=cut.watermark_ms,
        output_mode=facts.output_mode,
        sink=sink,
        shape=shape,
    )
    folder = f"queries/{name}/"
    own = {f.path.removeprefix(folder): f for f in cut.files if f.path.startswith(folder)}
    if not own:
        return query
    sizes = {path: file.bytes for path, file in own.items()}
    return with_files(query, sizes, lambda path: kept.content(own[path]), facts.sources, facts.rows)


def with_files(
    query: SavedQuery,
    sizes: Mapping[str, int],
    read: Callable[[str], bytes],
    sources: tuple[str, ...],
    rows: Mapping[int, int],
) -> SavedQuery:
    """A query with what its files at its batch say; `sources` and `rows` are as in `QueryFacts`."""
    offsets = OffsetEntry.parse(read(f"offsets/{query.batch}"))
    operators = described(sizes, read)
    state_format = CommitEntry.parse(read(f"commits/{query.batch}")).state_format
    return query.model_copy(
        update={
            "conf": offsets.metadata.get("conf", {}),
            "state_format": state_format if operators else None,
            "sources": _sources(offsets, sources),
            "operators": tuple(_counted(one, rows) for one in operators),
        }
    )


def _counted(operator: Operator, rows: Mapping[int, int]) -> Operator:
    return operator.model_copy(update={"rows": rows.get(operator.id)})


def _sources(offsets: OffsetEntry, descriptions: tuple[str, ...]) -> tuple[SavedSource, ...]:
    known = {} if offsets.named else {str(number): about for number, about in enumerate(descriptions)}
    return tuple(
        SavedSource(name=name, offset=end, channel=_channel(end), description=known.get(name, ""))
        for name, end in offsets.ends()
        if end
    )


def _channel(offset: str) -> str:
    found = parsed_offset(offset)
    ours = isinstance(found, dict) and found.keys() == {"entry", "barrier", "channel"}
    return str(found["channel"]) if ours else ""

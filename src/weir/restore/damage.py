"""Are the live files intact? Asked before a start, so that a damaged file does not end in Spark's own words.

Spark does not force its files to the disk: after a power loss the newest may be empty, cut off or
missing. A start looks at names, sizes, and the small files that it reads anyway, compared with Hadoop's
checksums beside them; nothing big is read. A `thorough` look, for `weir repair` and `weir verify`, reads all
state of the last batch, too, and compares with the sums that checkpoints have. The facts of each query are
collected first, and judged without I/O. Of channels only what a reader has still before it counts
(`channel/whole.py`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from weir.channel import whole
from weir.channel.log import SCHEMA, first_number
from weir.channel.position import positions_in
from weir.checkpoint import manifest as mf
from weir.checkpoint.manifest import Manifest
from weir.errors import DamagedOriginError, LostInputError
from weir.ids import NO_BATCH, BatchId, Generation, JobName, QueryName
from weir.savepoint import shapes
from weir.spark import whole as spark_files
from weir.spark.closure import GoneError, closure, missing_input
from weir.spark.cut import conf_of
from weir.spark.refusals import codec_of
from weir.storage import Store, files, open_store, paths
from weir.storage.files import Sum
from weir.storage.generations import delivered_elsewhere, known_origin, read_origin

_GONE = "is gone"
_EMPTY = "is empty"
_UNREADABLE = "can't be read"
_UNIQUE = re.compile(r"[-_][0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\.\w+$")
"""A name that Spark gives once; state of another name may be written again by a task that runs twice."""
_OTHER = "is not what a checkpoint has of it"


@dataclass(frozen=True)
class Damage:
    """One file that a query or a reader of its channel needs and that is not whole."""

    query: str
    file: str
    wrong: str
    kind: str = "query"
    """Whose file it is: that of the query, of the channel that it writes, or of the generation."""

    @property
    def text(self) -> str:
        return f"{self.file} of {self.kind} {self.query} {self.wrong}"


@dataclass(frozen=True)
class QueryFacts:
    """What the files of one query say."""

    planned: BatchId = NO_BATCH
    """The newest entry of the offset log."""
    committed: BatchId = NO_BATCH
    """The newest entry of the commit log."""
    wrong: Mapping[str, str] | None = None
    """Files that a start needs and that are gone, empty or can't be read: what is wrong with each."""


def look(store: Store, job: JobName, generation: Generation, *, thorough: bool = False) -> list[Damage]:
    """What is lost or torn in a generation; nothing when the job can go on with it."""
    root = files.folder_of(store) / paths.generation(job, generation)
    contents = Contents.known(store, job, generation) if thorough else None
    try:
        certain = expected(store, job, generation)
        running = _queries(store, job, generation) or certain.keys() | _folders(root / "queries")
        found = _lost_origin(store, job, generation, root)
        found += torn(root, {name: certain[name] for name in certain if name in running}, contents, running)
        return found or _torn_channels(store, job, generation, root, running, contents)
    except OSError as error:
        raise files.failed("read", root, error, store.url) from error


def _lost_origin(store: Store, job: JobName, generation: Generation, root: Path) -> list[Damage]:
    """Without its origin nobody knows whose output belongs to a generation that has worked."""
    try:
        there = read_origin(store, job, generation) is not None
        worked = any(newest(path / "offsets") != NO_BATCH for path in _children(root / "queries"))
        wrong = "" if there or not worked else _GONE
    except DamagedOriginError:
        wrong = _UNREADABLE
    return [Damage(str(generation), "origin.json", wrong, "generation")] if wrong else []


def expected(store: Store, job: JobName, generation: Generation) -> dict[str, BatchId]:
    """The batch that each query has certainly committed: the newest checkpoint of the generation says so.

    Without one, the checkpoint that the generation was opened from; any, when the generation is gone. Of
    that one only the queries count that were started since: the others were dropped, merged or renamed.
    """
    found = _newest_checkpoint(store, job, generation)
    if found is None:
        return {}
    _, started = shapes.last(store, job, generation)
    own = found.generation == generation or not started
    return {
        name: BatchId(cut.batch) for name, cut in found.queries.items() if own or QueryName(name) in started
    }


def _newest_checkpoint(store: Store, job: JobName, generation: Generation) -> Manifest | None:
    origin = known_origin(store, job, generation)
    opened_from = origin.checkpoint if origin else None
    for id in reversed(mf.completed(store, job)):
        try:
            manifest = mf.read(store, job, id)
        except ValueError:
            continue
        if manifest is None or (origin is not None and manifest.lineage != origin.lineage):
            continue  # of another life, which has had the same numbers
        if origin is None or manifest.generation == generation or id == opened_from:
            return manifest
    return None


class Contents:
    """What files hold, each looked at once."""

    def __init__(self, known: Mapping[str, Sum]) -> None:
        self._known = known
        self._seen: dict[Path, str | None] = {}

    @classmethod
    def known(cls, store: Store, job: JobName, generation: Generation) -> Contents:
        """With the sums that checkpoints of the generation have of files that are never written again."""
        found: dict[str, Sum] = {}
        for id in mf.completed(store, job):
            with suppress(ValueError):
                manifest = mf.read(store, job, id)
                if manifest is not None and manifest.generation == generation:
                    found |= {one.path: Sum(one.bytes, one.crc) for one in manifest.files()}
        return cls(
            {path: sum for path, sum in found.items() if "/state/" not in path or _UNIQUE.search(path)}
        )

    def changed(self, root: Path, below: str) -> Iterator[str]:
        """The files below a folder of the generation that are not what a checkpoint has of them."""
        for path, sum in self._known.items():
            if path.startswith(f"{below}/") and (root / path).exists() and files.checksum(root / path) != sum:
                yield path.removeprefix(f"{below}/")

    def problem(self, root: Path, name: str, codec: str) -> str | None:
        """What is wrong with a file of the query at `root`; None when nothing is."""
        path = root / name
        if path not in self._seen:
            self._seen[path] = self._look(path, f"queries/{root.name}/{name}", codec)
        return self._seen[path]

    def _look(self, path: Path, known_as: str, codec: str) -> str | None:
        kept = self._known.get(known_as)
        if kept is not None and files.checksum(path) != kept:
            return _OTHER
        return spark_files.problem(path, codec) or spark_files.checksum_problem(path)


def _queries(store: Store, job: JobName, generation: Generation) -> set[str]:
    """The queries whose files count: those of the last start, and those of the newest checkpoint.

    The folder of one that was taken out of the job stays, and its channels are trimmed without it. Nothing
    where no start has recorded its queries, as an earlier weir did not.
    """
    started = shapes.queries(store, job, generation)
    checkpoint = _newest_checkpoint(store, job, generation)
    of_generation = checkpoint is not None and checkpoint.generation == generation
    return {*started, *checkpoint.queries} if started and checkpoint and of_generation else {*started}


def torn(
    root: Path,
    expected: Mapping[str, BatchId],
    contents: Contents | None = None,
    queries: Collection[str] | None = None,
) -> list[Damage]:
    """The damage in the generation at `root`: of these queries, or all folders, and of those expected."""
    folder = root / "queries"
    own = _folders(folder) if queries is None else set(queries)
    found = {name: collect(folder / name, contents) for name in sorted(own | expected.keys())}
    return [
        damage for name, facts in found.items() for damage in judge(name, facts, expected.get(name, NO_BATCH))
    ]


def _torn_channels(
    store: Store,
    job: JobName,
    generation: Generation,
    root: Path,
    queries: Collection[str],
    contents: Contents | None,
) -> list[Damage]:
    """The same of the channels, when the queries are intact."""
    checkpoint = _newest_checkpoint(store, job, generation)
    names = _folders(root / "channels")
    if checkpoint is not None and checkpoint.generation == generation:
        names |= checkpoint.channels.keys()
    lows: dict[str, list[int | None]] = {}
    for query in sorted(queries):
        for channel, low in _needed(root / "queries" / query).items():
            lows.setdefault(channel, []).append(low)
    elsewhere = delivered_elsewhere(store, job, generation)
    found = []
    for name in sorted(names | lows.keys()):
        known = [low for low in lows.get(name, []) if low is not None]
        low = min(known) if known and len(known) == len(lows[name]) else None
        committed = newest(root / "queries" / name / "commits")
        before = elsewhere.get(QueryName(name), NO_BATCH)
        wrong = whole.problems(root / "channels" / name, low, committed, before)
        if checkpoint is not None and checkpoint.generation == generation:
            schema = f"channels/{name}/{SCHEMA}"
            kept = any(file.path == schema for file in checkpoint.files())
            wrong |= {SCHEMA: _GONE} if kept and not (root / schema).exists() else {}
        if contents is not None and not wrong:
            wrong = dict.fromkeys(contents.changed(root, f"channels/{name}"), _OTHER)
        found += [Damage(name, file, what, "channel") for file, what in wrong.items()]
    return found


def check_returned(
    store: Store, job: JobName, generation: Generation, queries: Collection[QueryName]
) -> None:
    """Raise `LostInputError` for a query that was out of the job, and whose channels were trimmed without it.

    Asked before a start records its `queries`: those of the last one were judged by `look`.
    """
    running = _queries(store, job, generation)
    root = files.folder_of(store) / paths.generation(job, generation)
    for query in (name for name in queries if running and name not in running):
        for channel, entry in _needed(root / "queries" / query).items():
            place = root / "channels" / channel
            # The entry before it tells the reader the fence.
            if entry and entry <= first_number(open_store(str(place))):
                raise LostInputError(query=query, source=channel, entry=entry, path=str(place))


def _needed(root: Path) -> dict[str, int | None]:
    """The channels that a query reads, and where it goes on; None where it has committed nothing yet."""
    committed = newest(root / "commits")
    planned = newest(root / "offsets")
    if committed == planned == NO_BATCH:
        return {}
    text = (root / "offsets" / str(committed if committed != NO_BATCH else planned)).read_text()
    return {
        name: None if committed == NO_BATCH else min(place.entry for place in places)
        for name, places in positions_in(text).items()
    }


def _folders(folder: Path) -> set[str]:
    return {path.name for path in _children(folder)}


def _children(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


def judge(query: str, facts: QueryFacts, expected: BatchId) -> list[Damage]:
    """Decide from the facts; a query that has never run is whole."""
    if facts.committed < expected:
        wrong = f"is lost: a checkpoint has batch {expected}, the newest is {facts.committed}"
        return [Damage(query, f"commits/{expected}", wrong)]
    found = [Damage(query, file, wrong) for file, wrong in (facts.wrong or {}).items()]
    if found:
        return found
    if facts.planned < facts.committed:
        return [Damage(query, f"offsets/{facts.committed}", _GONE)]
    if facts.planned > facts.committed + 1:
        return [Damage(query, f"commits/{facts.committed + 1}", _GONE)]
    return []


def collect(root: Path, contents: Contents | None = None) -> QueryFacts:
    """The facts of the query whose checkpointLocation is `root`."""
    planned, committed = newest(root / "offsets"), newest(root / "commits")
    wrong: dict[str, str] = {}
    problem = _empty(root / "metadata")
    if problem is None:
        problem = spark_files.description_problem(root / "metadata", "metadata", thorough=True)
    if problem is not None and (planned >= 0 or problem != _GONE):
        wrong["metadata"] = problem
    wrong |= _log_problems(root, planned, committed)
    if committed >= 0 and not wrong:
        wrong |= _closure_problems(root, committed, contents)
    if planned > committed and not wrong:
        wrong |= _input_problems(root, planned)
    return QueryFacts(planned, committed, wrong)


def _input_problems(root: Path, planned: BatchId) -> dict[str, str]:
    """What is wrong with what a batch reads that will run again."""
    try:
        lost = missing_input(root, planned)
        return {lost: _GONE} if lost else {}
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return {f"offsets/{planned}": f"can't be read: {error}"}


def last_whole(root: Path, newest: BatchId, contents: Contents) -> BatchId | None:
    """The last batch, up to the newest, with all its files; -1 when there never was one, None for none.

    Reads all state that it looks at.
    """
    if newest == NO_BATCH:
        return NO_BATCH
    folder = root / "commits"
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    for batch in sorted((BatchId(int(name)) for name in names if name.isdigit()), reverse=True):
        if batch > newest or _log_problems(root, batch, batch):
            continue
        if not _closure_problems(root, batch, contents):
            return batch
    return None


def _log_problems(root: Path, planned: BatchId, committed: BatchId) -> dict[str, str]:
    """What is wrong with the entries that a start reads."""
    needed = [f"offsets/{batch}" for batch in (planned, planned - 1) if batch >= 0]
    needed += [f"commits/{committed}"] if committed >= 0 else []
    found = {name: spark_files.log_problem(root / name) for name in needed}
    return {name: problem for name, problem in found.items() if problem is not None}


def _closure_problems(root: Path, batch: BatchId, contents: Contents | None) -> dict[str, str]:
    try:
        needed = closure(root, batch).files
        found = {name: _empty(root / name) for name in needed}
        for name, problem in found.items():
            if problem is None:
                thorough = contents is not None
                found[name] = spark_files.description_problem(root / name, name, thorough=thorough)
        wrong = {name: problem for name, problem in found.items() if problem is not None}
        codec = codec_of(conf_of(root, batch))
        wrong |= spark_files.misfits(root, [name for name in needed if name not in wrong], codec)
        if contents is not None and not wrong:
            looked_at = {name: contents.problem(root, name, codec) for name in needed}
            wrong = {name: problem for name, problem in looked_at.items() if problem is not None}
        return wrong
    except GoneError as error:
        return {str(error): _GONE}
    except ValueError as error:
        return {f"the state of batch {batch}": f"can't be read: {error}"}


def _empty(path: Path) -> str | None:
    try:
        return None if path.stat().st_size else _EMPTY
    except FileNotFoundError:
        return _GONE


def newest(folder: Path) -> BatchId:
    """The newest batch of a log, by the names of its entries; -1 when it has none."""
    names = (path.name for path in folder.iterdir()) if folder.is_dir() else iter(())
    return BatchId(max((int(name) for name in names if name.isdigit()), default=NO_BATCH))

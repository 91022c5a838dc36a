"""Are the live files intact? Asked before a start, so that Spark never opens a damaged file.

Spark does not force its files to the disk: after a power loss the newest may be empty, cut off or
missing. What Spark keeps of each query is judged in `query_damage.py`; a `thorough` look, for `weir repair`
and `weir verify`, reads all state of the last batch, too. Of channels only what a reader has still to read
counts (`channel/integrity.py`). What a job keeps beside its generations is looked at apart: no checkpoint has
it, so no restore brings it back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from weir.channel import integrity
from weir.channel.log import SCHEMA, first_number
from weir.channel.position import positions_in
from weir.checkpoint import manifest as mf
from weir.checkpoint.manifest import Manifest
from weir.errors import DamagedOriginError, LostInputError, LostLedgerError
from weir.ids import NO_BATCH, BatchId, Generation, JobName, QueryName
from weir.restore.query_damage import GONE, OTHER, Damage, FileContents, collect, judge, newest
from weir.savepoint import about
from weir.sinks.function import read_ledger, recorded_batches
from weir.sinks.user_state import Values
from weir.sources import journal
from weir.spark.cut import offsets_of
from weir.storage import Store, files, open_store, paths
from weir.storage.generation import delivered_elsewhere, known_origin, read_origin

_UNREADABLE = "can't be read"


def look(store: Store, job: JobName, generation: Generation, *, thorough: bool = False) -> list[Damage]:
    """What is lost or damaged in a generation; nothing when the job can resume from it."""
    root = files.folder_of(store) / paths.generation(job, generation)
    contents = FileContents.known(store, job, generation) if thorough else None
    try:
        certain = expected(store, job, generation)
        running = _queries(store, job, generation) or certain.keys() | _folders(root / "queries")
        found = _lost_origin(store, job, generation, root)
        found += damaged_queries(
            root, {name: certain[name] for name in certain if name in running}, contents, running
        )
        found += _damaged_values(root, running)
        return found or _damaged_channels(store, job, generation, root, running, contents)
    except OSError as error:
        raise files.failed("read", root, error, store.url) from error


def _lost_origin(store: Store, job: JobName, generation: Generation, root: Path) -> list[Damage]:
    """Without its origin nobody knows whose output belongs to a generation that has worked."""
    try:
        there = read_origin(store, job, generation) is not None
        worked = any(newest(path / "offsets") != NO_BATCH for path in _children(root / "queries"))
        found = {} if there or not worked else {"origin.json": GONE}
        delivered_elsewhere(store, job, generation)
    except DamagedOriginError as error:
        found = {error.fields["file"].rpartition("/")[2]: _UNREADABLE}
    return [Damage(str(generation), file, wrong, "generation") for file, wrong in found.items()]


def expected(store: Store, job: JobName, generation: Generation) -> dict[str, BatchId]:
    """The batch that each query has certainly committed: the newest checkpoint of the generation says so.

    Without one, the checkpoint that the generation was opened from; any, when the generation is gone. Of
    that one only the queries count that were started since: the others were dropped, merged or renamed.
    """
    found = _newest_checkpoint(store, job, generation)
    if found is None:
        return {}
    _, started = about.last(store, job, generation)
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


def _queries(store: Store, job: JobName, generation: Generation) -> set[str]:
    """The queries whose files count: those of the last start, and those of the newest checkpoint.

    The folder of one that was taken out of the job stays, and its channels are trimmed without it. Nothing
    where no start has recorded its queries, as an earlier weir did not.
    """
    started = about.queries(store, job, generation)
    checkpoint = _newest_checkpoint(store, job, generation)
    of_generation = checkpoint is not None and checkpoint.generation == generation
    return {*started, *checkpoint.queries} if started and checkpoint and of_generation else {*started}


def damaged_queries(
    root: Path,
    expected: Mapping[str, BatchId],
    contents: FileContents | None = None,
    queries: Collection[str] | None = None,
) -> list[Damage]:
    """The damage in the generation at `root`: of these queries, or all folders, and of those expected."""
    folder = root / "queries"
    own = _folders(folder) if queries is None else set(queries)
    found = {name: collect(folder / name, contents) for name in sorted(own | expected.keys())}
    return [
        damage for name, facts in found.items() for damage in judge(name, facts, expected.get(name, NO_BATCH))
    ]


def _damaged_values(root: Path, queries: Collection[str]) -> list[Damage]:
    """The same of user state: a start reads the values of the last batch."""
    found = []
    for name in sorted(_folders(root / "user-state") & set(queries)):
        wrong = Values(open_store(str(root)), QueryName(name)).problems(
            newest(root / "queries" / name / "commits")
        )
        found += [Damage(name, file, what) for file, what in wrong.items()]
    return found


def _damaged_channels(
    store: Store,
    job: JobName,
    generation: Generation,
    root: Path,
    queries: Collection[str],
    contents: FileContents | None,
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
        thorough = contents is not None
        wrong = integrity.problems(root / "channels" / name, low, committed, before, thorough=thorough)
        if checkpoint is not None and checkpoint.generation == generation:
            schema = f"channels/{name}/{SCHEMA}"
            kept = any(file.path == schema for file in checkpoint.files())
            wrong |= {SCHEMA: GONE} if kept and not (root / schema).exists() else {}
        if contents is not None and not wrong:
            wrong = dict.fromkeys(contents.changed(root, f"channels/{name}"), OTHER)
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
    """The channels that a query reads, and where it resumes; None where it has committed nothing yet."""
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


def look_beside(store: Store, job: JobName, generation: Generation) -> list[Damage]:
    """What is lost or damaged of the journals of sources and the ledgers of functions.

    A start finds the same when it opens its sinks and receivers, and stops there. Reads all that a query has
    not read yet.
    """
    root = files.folder_of(store) / paths.generation(job, generation)
    try:
        queries = [path.name for path in sorted(_children(root / "queries"))]
        positions = _journal_positions(root, queries)
        found = [
            Damage(source, file, wrong, "source")
            for source, position in sorted(positions.items())
            for file, wrong in _journal(store, f"{job}/sources/{source}", position).items()
        ]
        for query in queries:
            committed = newest(root / "queries" / query / "commits")
            for file, wrong in _ledger(store, job, generation, QueryName(query), committed).items():
                found.append(Damage(query, file, wrong, "the sink of query"))
        return found
    except OSError as error:
        raise files.failed("read", root, error, store.url) from error


def check_beside(store: Store, job: JobName, generation: Generation) -> None:
    """Raise `LostLedgerError` for the first damage."""
    for one in look_beside(store, job, generation):
        folder = f"{job}/sources" if one.kind == "source" else f"{job}/sinks"
        raise LostLedgerError(file=f"{store.url}/{folder}/{one.query}/{one.file}", wrong=one.wrong)


def _journal_positions(root: Path, queries: list[str]) -> dict[str, int]:
    """The sources that queries receive from, and the first entry of each that one of them still reads."""
    found: dict[str, int] = {}
    for query in queries:
        folder = root / "queries" / query
        committed = newest(folder / "commits")
        try:
            lines = offsets_of(folder, committed).lines
        except (FileNotFoundError, UnicodeDecodeError):  # which `look` reports
            continue
        for source, entry in journal.positions(lines).items():
            found[source] = min(entry, found.get(source, entry))
    return found


def _journal(store: Store, prefix: str, position: int) -> dict[str, str]:
    tail = journal.dense_tail(journal.numbers(store, prefix))
    if not journal.serves(tail, position):
        return {f"log/{position:09d}.json": GONE}
    found = {}
    # The entry before the position tells its reader the fence.
    for number in range(max(tail.start, position - 1), tail.stop):
        try:
            journal.read_entry(store, prefix, number)
        except LostLedgerError as error:
            found[f"log/{number:09d}.json"] = str(error.fields["wrong"])
    if position and tail.start == position:
        found[f"log/{position - 1:09d}.json"] = GONE
    return found


def _ledger(
    store: Store, job: JobName, generation: Generation, query: QueryName, committed: BatchId
) -> dict[str, str]:
    folder = f"{store.url}/{paths.sink(job, query)}"
    if not any(store.list(f"{paths.sink(job, query)}/log")):
        return {}
    own = open_store(folder)
    try:
        last = read_ledger(own).last
    except LostLedgerError as error:
        return {str(error.fields["file"]).removeprefix(f"{own.url}/"): str(error.fields["wrong"])}
    if last == NO_BATCH:
        try:
            last = delivered_elsewhere(store, job, generation).get(query, NO_BATCH)
        except DamagedOriginError:  # which `look` reports
            return {}
    there = recorded_batches(own)
    return {
        f"the entry of batch {batch}": GONE for batch in range(last + 1, committed + 1) if batch not in there
    }

"""Is all of a channel there that its readers and its writer still need? Asked before a start.

Names, sizes, the entries of the log, and the last bytes of the rows' files. A `thorough` look reads the rows'
files, too, and compares them with Hadoop's checksums beside them, which no reader of a channel does.
"""

from __future__ import annotations

import json
from pathlib import Path

from weir.channel.log import (
    SCHEMA,
    TORN,
    Entry,
    SegmentFile,
    Tail,
    apply,
    end_number,
    first_number,
    need_entry,
    segments,
    tail_behind,
)
from weir.errors import LostSegmentError
from weir.ids import NO_BATCH, BatchId
from weir.sinks.staging import read_record, records_in
from weir.spark.integrity import checksum_problem
from weir.storage import Store, open_store, sums

_GONE = "is gone"
_MAGIC = b"PAR1"


def problems(
    folder: Path, low: int | None, committed: BatchId, elsewhere: BatchId, *, thorough: bool = False
) -> dict[str, str]:
    """What is wrong with each file, by its name in the channel's folder; nothing when all is whole.

    `low` is the position of the slowest reader; None when it is not known: then all that is left is
    looked at. The writer has committed batches up to `committed`; those up to `elsewhere` are not
    expected in a channel that has no batch yet. Of the entries all that are left count, also those that
    every reader has passed: a start of the writer reads them.
    """
    store = open_store(str(folder))
    try:
        head = first_number(store)
    except LostSegmentError as error:
        return _said(store, error)
    if low is None:
        low = head + 1 if head else 0  # as a reader starts that has no position yet: `facts.Ahead`
    first, end = max(0, low - 1), max(low, end_number(store))
    entries: dict[int, Entry] = {}
    wrong: dict[str, str] = {}
    for number in range(min(head, first), end):
        try:
            entries[number] = need_entry(store, number)
        except LostSegmentError as error:
            wrong |= _said(store, error)
    wrong |= _lost_schema(store)
    if wrong:
        return wrong
    tail = tail_behind(entries[first]) if first else Tail()
    ahead = [entries[number] for number in range(first + 1 if first else 0, end)]
    for segment in segments(tail, ahead):
        wrong |= _lost_rows(folder, segment.folder, segment.files, thorough)
    for entry in ahead:
        tail = apply(tail, entry)
    last = tail.last if tail.last != NO_BATCH else elsewhere
    return wrong | _lost_stagings(store, folder, last, committed, thorough)


def _lost_schema(store: Store) -> dict[str, str]:
    """One that is gone is written again by the next start; one that is there is compared with."""
    data = store.get(SCHEMA)
    try:
        known = {"schema": {"type": "struct"}} if data is None else json.loads(sums.strip(data))
        return {} if known["schema"]["type"] == "struct" else {SCHEMA: TORN}
    except (ValueError, KeyError, TypeError) as error:
        return {SCHEMA: sums.wrong(error)}


def _said(store: Store, error: LostSegmentError) -> dict[str, str]:
    return {error.fields["file"].removeprefix(f"{store.url}/"): error.fields["wrong"]}


def _lost_rows(root: Path, folder: str, files: tuple[SegmentFile, ...], thorough: bool) -> dict[str, str]:
    found = {f"{folder}/{file.name}": _torn(root / folder / file.name, file.bytes) for file in files}
    for name in [name for name, wrong in found.items() if thorough and wrong is None]:
        found[name] = checksum_problem(root / name)
    return {name: wrong for name, wrong in found.items() if wrong is not None}


def _torn(path: Path, rows: int) -> str | None:
    """What is wrong with a Parquet file, as far as its size and its end tell."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(max(0, size - len(_MAGIC)))
            end = file.read()
    except FileNotFoundError:
        return _GONE
    if not size:
        return "is empty"
    return None if end == _MAGIC and size >= rows else "is cut off"


def _lost_stagings(
    store: Store, folder: Path, last: BatchId, committed: BatchId, thorough: bool
) -> dict[str, str]:
    """Batches that Spark has committed, and that are neither entered nor staged whole by any run."""
    staged: dict[int, list[dict[str, str]]] = {}
    wrong: dict[str, str] = {}
    for key in records_in(store, "staged") if committed > last else ():
        name = key.rsplit("/", 1)[1].removesuffix(".json")
        number = int(name.split("-")[0])
        record = read_record(store.get(key) or b"")
        if record is not None:
            files = tuple(SegmentFile(**one) for one in record.files)
            staged.setdefault(number, []).append(_lost_rows(folder, f"data/{name}", files, thorough))
        elif last < number <= committed:  # whether another run is as good, nobody can say without it
            staged.setdefault(number, []).append({key: TORN})
            wrong[key] = TORN
    for batch in range(last + 1, committed + 1):
        runs = staged.get(batch)
        if runs is None:
            wrong[f"the segment of batch {batch}"] = _GONE
        elif all(runs):
            wrong |= runs[-1]
    return wrong

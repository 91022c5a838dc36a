"""The journal of a receiving source, as a streaming data source of Spark.

Spark runs the planning part in one process for each reader and the reading part in its tasks;
neither shares memory with the driver, so all that a reader knows comes from its options and from
the journal. Offsets are `{"entry": n, "source": name}`: all entries in front of n are read. A batch
always ends directly behind lines that count, so that the entry in front of any offset tells the
fence that is in force there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from weir.ids import NOBODY
from weir.sources.journal import Header, dense_tail, header, numbers, read_entry
from weir.storage import Store, open_store

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "weir-journal"
SCHEMA = "value string"
SMALLEST_SHARE = 1 << 20
"""Bytes that are worth a task of their own."""


class JournalDataSource(DataSource):
    """The format `weir-journal`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        options = {name.lower(): value for name, value in self.options.items()}
        return f"{SCHEMA}, timestamp timestamp" if _timed(options) else SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return JournalReader(dict(self.options))


@dataclass
class Share(InputPartition):
    """The entries that one task reads."""

    entries: list[int]


class Numbered(NamedTuple):
    """An entry that counts and has lines."""

    number: int
    total: int
    """Bytes from the start of the walk up to it."""


class JournalReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The journal of one source as one query reads it, for one start of the query."""

    def __init__(self, options: dict[str, str]) -> None:
        # Spark pickles this object into its tasks: what the planning part needs is made when it asks.
        self._options = {name.lower(): value for name, value in options.items()}
        self._headers: dict[int, Header] = {}
        self._until: int | None = None

    def initialOffset(self) -> dict[str, Any]:
        return self._offset(self._tail().start)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(int(self._options["maxbytes"]))

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._tail().stop

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        first = end = self._entry(start)
        for old in [number for number in self._headers if number < first - 1]:
            del self._headers[old]
        for one in self._walk(first, self._until):
            if end > first and _beyond(limit, one, first):
                break
            end = one.number + 1
        return self._offset(end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, behind = self._entry(start), self._entry(end)
        used = list(self._walk(first, behind))
        if behind > first and (not used or used[-1].number != behind - 1):
            raise LookupError(f"entry {behind - 1} of the journal {self._options['location']} is gone")
        return [Share(entries) for entries in share_out(used, int(self._options["tasks"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415

        assert isinstance(partition, Share)
        for number in partition.entries:
            entry = read_entry(self._store, "", number)
            if entry is None:
                raise LookupError(f"entry {number} of the journal {self._options['location']} is gone")
            values = entry["text"].split("\n")
            columns = {"value": pa.array(values, pa.string())}
            if _timed(self._options):
                # An entry of an earlier weir has no time, and gets the epoch: null would pass no watermark.
                at = round(entry.get("at", 0.0) * 1_000_000)
                columns["timestamp"] = pa.array([at] * len(values), pa.timestamp("us", tz="UTC"))
            yield pa.RecordBatch.from_pydict(columns)

    @cached_property
    def _store(self) -> Store:
        return open_store(self._options["location"])

    def _tail(self) -> range:
        return dense_tail(numbers(self._store, ""))

    def _offset(self, entry: int) -> dict[str, Any]:
        return {"entry": entry, "source": self._options["source"]}

    def _entry(self, offset: dict[str, Any]) -> int:
        source = self._options["source"]
        if offset["source"] != source:
            raise LookupError(
                f"the query has read source {offset['source']!r}, whose offsets mean nothing in {source!r}"
            )
        return int(offset["entry"])

    def _walk(self, first: int, until: int | None) -> Iterator[Numbered]:
        """The entries with lines that count, from the first one on, as far as there are any."""
        front = self._in_front_of(first)
        fence, total, number = front.token, front.total, first
        while (until is None or number < until) and (found := self._header(number)) is not None:
            if found.counts(fence):
                fence = found.token
                if found.lines:
                    yield Numbered(number, found.total - total)
            number += 1

    def _in_front_of(self, number: int) -> Header:
        found = self._header(number - 1) if number else None
        if found is None and number and number != self._tail().start:
            raise LookupError(f"entry {number - 1} of the journal {self._options['location']} is gone")
        if found is None:  # the beginning of what is there, for a query that has read nothing yet
            after = self._header(number)
            found = Header(NOBODY, after.total if after else 0, lines=False)
        return found

    def _header(self, number: int) -> Header | None:
        if number not in self._headers:
            entry = read_entry(self._store, "", number)
            if entry is None:
                return None
            self._headers[number] = header(entry)
        return self._headers[number]

    def __getstate__(self) -> dict[str, Any]:
        """What goes to the tasks: they read by number, and open the store themselves."""
        return {"_options": self._options, "_headers": {}, "_until": None}


def _timed(options: dict[str, str]) -> bool:
    return options.get("includetimestamp", "").lower() == "true"


def _beyond(limit: ReadLimit, one: Numbered, first: int) -> bool:
    if isinstance(limit, ReadMaxBytes):
        return one.total > limit.max_bytes
    return isinstance(limit, ReadMaxFiles) and one.number - first >= limit.max_files


def share_out(used: Sequence[Numbered], tasks: int) -> list[list[int]]:
    """Neighbouring entries together, about equally many bytes to a task, and no task for a trifle."""
    if not used:
        return []
    start = used[0].total
    size = max(SMALLEST_SHARE, -(-(used[-1].total - start) // tasks))
    shares: dict[int, list[int]] = {}
    for one in used:
        shares.setdefault((one.total - start) // (size + 1), []).append(one.number)
    return list(shares.values())

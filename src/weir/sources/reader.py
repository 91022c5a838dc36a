"""The journal of a receiving source, as Spark reads it: which entries a batch takes.

Spark asks for each batch, through `spark/planned_source.py`, and reads the entries' files by itself. All
that a reader knows comes from its options and from the journal. Offsets are `{"entry": n, "source": name}`:
all entries before n are read. A batch always ends right after lines that count, so that the entry before any
offset has the fence that is in force there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from weir.errors import WeirError
from weir.ids import NOBODY
from weir.sources.journal import Header, dense_tail, header, key, numbers, read_entry
from weir.spark.planned_source import PlannedBatch, PlannedFile
from weir.storage import open_store
from weir.storage.log import lost
from weir.storage.open import spark_url

KIND = "journal"
FORMAT = "weir.Journals"
SCHEMA = "value string"
TIMED = f"{SCHEMA}, timestamp timestamp"


class Numbered(NamedTuple):
    """An entry that counts and has lines."""

    number: int
    total: int
    """Bytes from the start of the walk up to it."""


class JournalReader:
    """The journal of one source as one query reads it, for one start of the query.

    Keeps the contract of `PlannedReader`.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._source = options["source"]
        self._max_bytes = int(options["maxbytes"])
        self._location = options["location"]
        self._store = open_store(self._location)
        self._headers: dict[int, Header] = {}
        self._until: int | None = None

    def latest(self, start: str | None, everything: bool) -> str | None:
        first = end = self._entry(start)
        for old in [number for number in self._headers if number < first - 1]:
            del self._headers[old]
        for one in self._walk(first, self._until):
            if end > first and one.total > self._max_bytes and not everything:
                break
            end = one.number + 1
        return None if start and end == first else json.dumps({"entry": end, "source": self._source})

    def batch(self, start: str | None, end: str) -> PlannedBatch:
        first, behind = self._entry(start), self._entry(end)
        used = list(self._walk(first, behind))
        if behind > first and (not used or used[-1].number != behind - 1):
            raise LookupError(f"entry {behind - 1} of the journal {self._location} is gone")
        before = [0, *(one.total for one in used)]
        files = [
            PlannedFile(f"{self.root}/{key('', one.number)}", one.total - total)
            for one, total in zip(used, before, strict=False)
        ]
        return PlannedBatch(files, before[-1])

    def end_here(self) -> None:
        self._until = self._tail().stop

    @property
    def root(self) -> str:
        return spark_url(self._store.url)

    def unreadable(self, file: str, wrong: str) -> WeirError:
        return lost(self._store, file.removeprefix(f"{self.root}/"), wrong)

    def _tail(self) -> range:
        return dense_tail(numbers(self._store, ""))

    def _entry(self, offset: str | None) -> int:
        if offset is None:
            return self._tail().start
        found = json.loads(offset)
        if found["source"] != self._source:
            raise LookupError(
                f"the query has read source {found['source']!r}, "
                f"whose offsets mean nothing in {self._source!r}"
            )
        return int(found["entry"])

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
            raise LookupError(f"entry {number - 1} of the journal {self._location} is gone")
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

"""The journal of a receiving source: what came, in groups of lines, in one dense order.

    <place>/log/<number>.json

Entries are `lines` (a group: one write, one fsync) and `fence` (a driver begins to receive). An entry
after a fence that is higher than its token, or of another session, does not count: it is a zombie's.
Every entry carries its token, so the last entry that counts tells the fence in force, and the head of
the log may be deleted; and the bytes of all entries up to it, so that a distance in bytes needs two
entries and no listing. Before it on the path is the receiver (`socket.py`), after it the reader
(`reader.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from weir.errors import FencedError, LostInputError
from weir.ids import NOBODY, Token
from weir.protocol.ledger import by, token_of
from weir.sources.contract import Place, ReadingQuery
from weir.spark.planned_source import news
from weir.storage import DenseLog, Store, sums
from weir.storage.attempts import Lease
from weir.storage.log import lost, parse
from weir.storage.log import numbers as entry_numbers

LOG = "log"
KEPT = 100
"""So many entries stay behind the slowest reader. One is needed: it tells the reader the fence."""
SMALLEST = 4096
"""What an entry counts at least, in bytes: a file takes a block, and many small ones are slow."""


@dataclass(frozen=True)
class Header:
    """An entry without its lines."""

    token: Token
    total: int
    """Bytes of all entries up to this one."""
    lines: bool
    """Whether it has lines; otherwise it is a fence."""

    def counts(self, fence: Token) -> bool:
        return self.token.counts_after(fence)


def fence(token: Token, total: int) -> dict[str, Any]:
    return {"kind": "fence", **by(token), "total": total}


def lines(token: Token, group: int, total: int, text: str, at: float = 0.0) -> dict[str, Any]:
    """A group of lines, which came `at` that many seconds after the epoch; 0 when nobody knows.

    `group` makes it unlike any other, so that a repeated append finds its own.
    """
    return {
        "kind": "lines",
        **by(token),
        "group": group,
        "total": total,
        "at": at,
        "text": text,
    }


def header(entry: dict[str, Any]) -> Header:
    if entry["kind"] not in ("fence", "lines"):
        raise ValueError(
            f"a source's journal has no entries of kind {entry['kind']!r}; a newer weir wrote it"
        )
    return Header(token_of(entry), int(entry["total"]), entry["kind"] == "lines")


def dense_tail(numbers: Iterable[int]) -> range:
    """The newest unbroken stretch of entries; what is in front of a gap is nobody's.

    Entries are deleted from the front, so a gap is made only by a zombie that writes at a number
    which was used and deleted since.
    """
    there = set(numbers)
    end = first = max(there, default=-1) + 1
    while first - 1 in there:
        first -= 1
    return range(first, end)


def serves(tail: range, position: int) -> bool:
    """Whether a query that resumes there finds what follows; at 0 it takes whatever is there."""
    return not position or tail.start <= position <= tail.stop


def positions(offsets: Iterable[str]) -> dict[str, int]:
    """The entries that offsets of receiving sources name, as Spark wrote them; of a source the lowest."""
    found: dict[str, int] = {}
    for line in offsets:
        _, brace, rest = line.partition("{")
        try:
            offset = json.loads(brace + rest)
        except ValueError:
            continue
        if isinstance(offset, dict) and offset.keys() == {"entry", "source"}:
            source, entry = str(offset["source"]), int(offset["entry"])
            found[source] = min(entry, found.get(source, entry))
    return found


def key(prefix: str, number: int) -> str:
    return f"{prefix}/{LOG}/{number:09d}.json" if prefix else f"{LOG}/{number:09d}.json"


def numbers(store: Store, prefix: str) -> list[int]:
    """The numbers of all entries that are there. Lists the log: for a start, not for every batch."""
    return entry_numbers(store, f"{prefix}/{LOG}" if prefix else LOG)


def has_lines(store: Store, prefix: str, entries: range) -> bool:
    """Whether anything was received up to the last of these entries."""
    newest = read_entry(store, prefix, entries.stop - 1) if entries else None
    return newest is not None and header(newest).total > 0


def read_entry(store: Store, prefix: str, number: int) -> dict[str, Any] | None:
    """One entry, or None when it is not there; raises `LostLedgerError` when it is damaged."""
    data = store.get(at := key(prefix, number))
    if data is None:
        return None
    entry = parse(store, at, data)
    try:
        header(entry)
        if entry["kind"] == "lines" and not isinstance(entry["text"], str):
            raise TypeError
    except (KeyError, TypeError) as error:
        raise lost(store, at, "can't be read") from error
    except ValueError as error:
        if sums.has(data):  # of a kind that only a newer weir knows
            raise
        raise lost(store, at, "can't be read") from error
    return entry


class Journal:
    """The journal as its one receiver writes it. For one thread."""

    def __init__(self, place: Place, token: Token, lease: Lease) -> None:
        self._place = place
        self._token = token
        self._lease = lease
        self._log = DenseLog(place.store, f"{place.prefix}/{LOG}")
        self._first = 0
        self._newest = NOBODY
        self._group = 0
        self._total = 0
        self._totals: dict[int, int] = {}
        """Bytes up to an entry, by its number, where they are known; none in front of `_first`."""

    def check(self, readers: Iterable[ReadingQuery]) -> None:
        """Raise what `open` would and write nothing: `LostInputError`, `LostLedgerError` or `FencedError`."""
        store, prefix = self._place.store, self._place.prefix
        tail = dense_tail(numbers(store, prefix))
        self._check_readers(tail, readers)
        newest = read_entry(store, prefix, tail.stop - 1) if tail else None
        if newest is not None:
            self._newest = header(newest).token
        if not self._token.counts_after(self._newest):
            raise self._fenced()

    def open(self, readers: Iterable[ReadingQuery]) -> None:
        """Find the end and announce the token there; from then on no lower token can append."""
        store, prefix = self._place.store, self._place.prefix
        there = numbers(store, prefix)
        tail = dense_tail(there)
        self._check_readers(tail, readers)
        for number in sorted(set(there) - set(tail)):
            store.delete(key(prefix, number))
        self._first = tail.start
        if tail:
            read_entry(store, prefix, tail.stop - 1)  # raises when it is damaged
        self._log = DenseLog(store, f"{prefix}/{LOG}", first=max(tail.start, tail.stop - 1))
        for entry in self._log.read_new():
            self._seen(entry)
        if not self._token.counts_after(self._newest):
            raise self._fenced()
        self._append(fence(self._token, self._total), self._total)

    def append(self, text: str, size: int, at: float = 0.0) -> None:
        """Make a group of lines durable, with the time at which it came.

        After an error it may be repeated with the same arguments, and is there once.

        Raises `FencedError` when the lease is over or a higher token was announced.
        """
        total = self._total + max(size, SMALLEST)
        self._append(lines(self._token, self._group, total, text, at), total)
        self._group += 1

    def pending(self, position: int) -> int:
        """Bytes of the entries from this one on."""
        return self._total - self._behind(position)

    def forget(self, position: int) -> None:
        """Delete what is more than `KEPT` entries in front of this one, from the front.

        Safe to be killed in. A zombie may do it too: positions only grow.
        """
        while self._first < min(position, self._log.next_number) - KEPT:
            self._place.store.delete(key(self._place.prefix, self._first))
            self._totals.pop(self._first, None)
            self._first += 1

    def _append(self, entry: dict[str, Any], total: int) -> None:
        self._lease.check()
        if not self._log.append(entry, self._seen):
            raise self._fenced()
        self._total = self._totals[self._log.next_number - 1] = total
        news.ring()

    def _seen(self, entry: dict[str, Any]) -> bool:
        """Take an entry of another into account; False once it fences us."""
        other = header(entry)
        self._newest = other.token if other.counts(self._newest) else self._newest
        self._total = self._totals[self._log.next_number - 1] = other.total
        return self._token.counts_after(self._newest)

    def _behind(self, position: int) -> int:
        """Bytes up to the entry in front of the position; of what is deleted, as much as is known.

        The first entry of all is a fence, of no bytes.
        """
        number = max(position - 1, self._first)
        if number not in self._totals:
            entry = read_entry(self._place.store, self._place.prefix, number)
            if entry is None:
                return self._total
            self._totals[number] = header(entry).total
        return self._totals[number]

    def _check_readers(self, tail: range, readers: Iterable[ReadingQuery]) -> None:
        for reader in readers:
            position = reader.position(self._place.source)
            if not serves(tail, position):
                raise LostInputError(
                    query=reader.name, source=self._place.source, entry=position, path=self._place.url
                )

    def _fenced(self) -> FencedError:
        return FencedError(who=f"attempt {self._token}", by=f"attempt {self._newest}")

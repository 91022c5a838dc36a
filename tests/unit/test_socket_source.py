"""The socket source without Spark: a real server on loopback, a real journal, readers by hand."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import weir
from tests.line_server import LineServer, until
from weir.clock import Clock, Deadline
from weir.errors import FencedError, LostInputError
from weir.ids import Attempt, QueryName, Run, SourceName, Token
from weir.sources import Place, ReadingQuery
from weir.sources import journal as entries
from weir.sources.journal import KEPT, SMALLEST, Journal, dense_tail
from weir.sources.lines import LONGEST, Lines
from weir.sources.reader import JournalReader
from weir.sources.socket import GROUP_BYTES, MAX_BYTES, SocketReceiver, SocketSource
from weir.spark.checkpoint_files import QueryFiles
from weir.storage import Store
from weir.storage.attempts import Lease
from weir.storage.local import LocalStore
from weir.storage.unreliable import UnreliableStore

CHUNK = 1 << 18


def token(attempt: int) -> Token:
    return Token(Attempt(attempt), Run(1))


def lease(attempt: int = 1) -> Lease:
    return Lease(Attempt(attempt), 3600, Clock())


class Job:
    """The place of one source, and the live files of the queries that read it."""

    def __init__(self, folder: Path, *queries: str) -> None:
        self.folder = folder
        self.store: Store = LocalStore(folder)
        self.place = Place(SourceName("lines"), self.store, "sources/lines")
        self.retained: list[str] | None = []
        """The offsets of retained checkpoints."""
        self.readers = [
            ReadingQuery(QueryName(q), QueryFiles(self.store, f"queries/{q}"), lambda _: self.retained)
            for q in queries or ("counts",)
        ]

    def journal(self, attempt: int = 1) -> Journal:
        journal = Journal(self.place, token(attempt), lease(attempt))
        journal.open(self.readers)
        return journal

    def plan(self, batch: int, entry: int, query: str = "counts", source: str = "lines") -> None:
        """Spark writes `offsets/<n>`."""
        offset = json.dumps({"entry": entry, "source": source})
        file = self.folder / "queries" / query / "offsets" / str(batch)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'v1\n{{"conf":{{}}}}\n{{"other": 1}}\n-\n{offset}')

    def commit(self, batch: int, entry: int, query: str = "counts") -> None:
        """Spark has planned and committed a batch that ends at this entry."""
        self.plan(batch, entry, query)
        file = self.folder / "queries" / query / "commits" / str(batch)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("v1\n{}")

    @property
    def numbers(self) -> list[int]:
        return sorted(entries.numbers(self.store, self.place.prefix))

    def entry(self, number: int) -> dict[str, Any]:
        data = self.store.get(entries.key(self.place.prefix, number))
        assert data is not None
        found: dict[str, Any] = json.loads(data)
        return found

    @property
    def total(self) -> int:
        return int(self.entry(self.numbers[-1])["total"])

    @property
    def groups(self) -> list[list[str]]:
        """The lines that are journaled, group by group."""
        found = [self.entry(number) for number in self.numbers]
        return [entry["text"].split("\n") for entry in found if entry["kind"] == "lines"]

    @property
    def lines(self) -> list[str]:
        return [line for group in self.groups for line in group]

    def reader(self, max_bytes: int = MAX_BYTES) -> JournalReader:
        return JournalReader({"location": self.place.url, "source": "lines", "maxbytes": str(max_bytes)})


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@contextmanager
def receiving(
    job: Job, port: int, said: list[str] | None = None, attempt: int = 1, max_bytes: int = MAX_BYTES
) -> Iterator[SocketReceiver]:
    """A receiver that runs, and is ended."""
    journal = Journal(job.place, token(attempt), lease(attempt))
    said = [] if said is None else said
    receiver = SocketReceiver(
        "127.0.0.1", port, max_bytes, job.place.source, journal, job.readers, said.append
    )
    receiver.start()
    try:
        yield receiver
    finally:
        end(receiver)


def end(receiver: SocketReceiver) -> None:
    receiver.ask_to_end()
    assert receiver.end(Deadline(Clock(), Clock().monotonic() + 30))


# what a line is


def test_lines_end_at_newlines_and_lose_one_carriage_return() -> None:
    lines = Lines()
    lines.add(b"a\r\nb\r\r\n\nc\rd")
    assert lines.size == 8
    lines.add(b"e\n")
    assert lines.take().split("\n") == ["a", "b\r", "", "c\rde"]
    assert (lines.size, lines.unfinished) == (0, 0)


def test_bytes_that_are_not_utf8_are_replaced_and_characters_may_come_in_pieces() -> None:
    lines = Lines()
    for byte in "grün\n".encode() + b"\xff\xc3\nok\n":
        lines.add(bytes([byte]))
    assert lines.take().split("\n") == ["grün", "\N{REPLACEMENT CHARACTER}" * 2, "ok"]


def test_a_line_without_end_is_cut_before_it_fills_the_memory() -> None:
    lines = Lines()
    while not lines.size:
        lines.add(b"x" * CHUNK)
    assert LONGEST < lines.size <= LONGEST + CHUNK + 1
    assert lines.unfinished == 0


@pytest.mark.parametrize("arguments", [("h", 0), ("h", 65536), ("h", "9999"), ("h", 1, 5)])
def test_what_a_socket_can_not_be_is_refused(arguments: tuple[Any, ...]) -> None:
    host, port, *rest = arguments
    with pytest.raises(ValueError, match=r"must be|a port is"):
        weir.sources.socket(host, port, **({"max_bytes": rest[0]} if rest else {}))


# the receiver


def test_lines_that_come_together_are_one_entry_and_none_is_lost(job: Job) -> None:
    sent = [f"line {number}" for number in range(20_000)]
    with LineServer() as server, receiving(job, server.port):
        server.send("".join(f"{line}\n" for line in sent).encode())
        until(lambda: len(job.lines) == len(sent), "all lines")
    assert job.lines == sent
    assert len(job.groups) < 100
    assert job.entry(0)["kind"] == "fence"


def test_a_group_has_a_bound(job: Job) -> None:
    line = "x" * 1023
    with LineServer() as server, receiving(job, server.port):
        server.send(f"{line}\n".encode() * 5 * 1024)
        until(lambda: len(job.lines) == 5 * 1024, "all lines")
    assert max(len("\n".join(group)) for group in job.groups) <= GROUP_BYTES + CHUNK


def test_the_unfinished_line_of_a_peer_that_closed_is_a_line(job: Job) -> None:
    with LineServer() as server, receiving(job, server.port):
        server.send(b"whole\nnearly")
        server.hang_up()
        until(lambda: job.lines == ["whole", "nearly"], "both lines")
        server.send(b"next\n")
        until(lambda: job.lines == ["whole", "nearly", "next"], "the line of the next connection")


def test_the_unfinished_line_of_a_connection_that_broke_is_dropped(job: Job) -> None:
    said: list[str] = []
    with LineServer() as server, receiving(job, server.port, said):
        server.send(b"whole\nhalf")
        until(lambda: job.lines == ["whole"], "the whole line")
        server.break_off()
        server.send(b"next\n")
        until(lambda: job.lines == ["whole", "next"], "the line of the next connection")
    assert any("first 4 bytes of a line were discarded" in text for text in said)


def test_a_peer_that_is_not_there_is_told_of_once_and_waited_for(job: Job) -> None:
    said: list[str] = []
    with LineServer() as server:
        port = server.port
    with receiving(job, port, said):
        until(lambda: said, "a word about the outage")
        with LineServer(port) as server:
            server.send(b"a\n")
            until(lambda: job.lines == ["a"], "the line")
            for _ in range(3):  # a peer that only hangs up is still the same outage
                server.hang_up()
                server.wait_for_client()
            server.send(b"b\n")
            until(lambda: job.lines == ["a", "b"], "the second line")
            until(lambda: sum("receives lines again" in text for text in said) == 2, "a word about its end")
            outages = [text for text in said if "receives nothing" in text]
    assert len(outages) == 2 and "refused" in outages[0] and "closed" in outages[1]


def test_at_the_end_whole_lines_are_kept_and_half_ones_are_not(job: Job) -> None:
    said: list[str] = []
    with LineServer() as server, receiving(job, server.port, said) as receiver:
        server.send(b"kept\n")
        until(lambda: job.lines == ["kept"], "the line")
        server.send(b"not ended")
        until(lambda: receiver._lines.unfinished, "the rest")
        end(receiver)
        assert job.lines == ["kept"]
        assert any("9 bytes of a line were discarded" in text for text in said)
        with receiving(job, server.port, attempt=2):
            server.wait_for_client()
            server.send(b"more\n")
            until(lambda: job.lines == ["kept", "more"], "what the next start receives")


def test_a_zombie_receives_nothing_more(job: Job) -> None:
    said: list[str] = []
    with LineServer() as server, receiving(job, server.port, said) as zombie:
        server.send(b"before\n")
        until(lambda: job.lines == ["before"], "the line")
        successor = job.journal(attempt=2)
        server.send(b"too late\n")
        until(lambda: not zombie._thread.is_alive(), "the end of the zombie")
        successor.append("after", 5)
    assert job.lines == ["before", "after"]
    assert "receives nothing more" in said[-1]


def test_a_receiver_without_a_lease_receives_nothing_more(job: Job) -> None:
    over = Lease(Attempt(1), 0.0, Clock())
    with pytest.raises(FencedError):
        Journal(job.place, token(1), over).open([])
    assert job.numbers == []


def test_the_peer_is_held_back_while_too_much_waits_for_spark(job: Job) -> None:
    limit, line, count = 2 * GROUP_BYTES, "y" * 1023, 40 * 1024
    with LineServer() as server, receiving(job, server.port, max_bytes=limit):
        sender = threading.Thread(target=server.send, args=(f"{line}\n".encode() * count,), daemon=True)
        sender.start()
        most, position, batch, seen = limit + GROUP_BYTES + CHUNK, 0, 0, 0
        while seen < count:
            before = job.entry(position - 1)["total"] if position else 0
            full = min(limit, (count - seen) * 1024)
            until(lambda b=before, f=full: job.total - b >= f, "a full journal")  # type: ignore[misc]
            assert job.total - before <= most
            if batch == 0:
                assert sender.is_alive(), "40 MiB don't fit into the buffers between the two"
            end = job.numbers[-1] + 1
            for number in range(position, end):
                seen += len(job.entry(number).get("text", "").split("\n")) if number else 0
            position = end
            job.commit(batch, position)
            batch += 1
        sender.join(30)
        assert not sender.is_alive()
    assert seen == count


@pytest.mark.parametrize("seed", range(3))
def test_a_store_that_fails_costs_no_line_and_doubles_none(tmp_path: Path, seed: int) -> None:
    job = Job(tmp_path)
    failing = UnreliableStore(job.store, seed, failing=0.0)
    shaky = Place(job.place.source, failing, job.place.prefix)
    journal = Journal(shaky, token(1), lease())
    with LineServer() as server:
        receiver = SocketReceiver(
            "127.0.0.1", server.port, MAX_BYTES, SourceName("lines"), journal, [], lambda _: None
        )
        receiver.start()
        failing.failing = 0.5
        for number in range(10):
            server.send(f"{number}\n".encode())
            until(lambda n=number: len(job.lines) > n, f"line {number}")  # type: ignore[misc]
        failing.failing = 0.0
        end(receiver)
    assert job.lines == [str(number) for number in range(10)], f"seed {seed}"


# the journal


def test_only_what_the_slowest_query_has_committed_is_deleted(tmp_path: Path) -> None:
    job = Job(tmp_path, "fast", "slow")
    journal = job.journal()
    for number in range(3 * KEPT):
        journal.append(f"line {number}", 9)
    slowest = [reader.position(SourceName("lines")) for reader in job.readers]
    journal.forget(min(slowest))
    assert slowest == [0, 0] and job.numbers[0] == 0
    job.commit(0, 2 * KEPT, "slow")
    job.plan(1, 3 * KEPT, "slow")  # planned and not committed: it begins where batch 0 ended
    job.commit(0, 3 * KEPT, "fast")
    assert [reader.position(SourceName("lines")) for reader in job.readers] == [3 * KEPT, 2 * KEPT]
    journal.forget(2 * KEPT)
    assert job.numbers == list(range(KEPT, 3 * KEPT + 1))
    journal.append("more", 4)
    assert journal.pending(2 * KEPT) == (KEPT + 2) * SMALLEST


def test_a_receiver_keeps_the_journal_small(job: Job) -> None:
    journal = job.journal()
    for number in range(3 * KEPT):
        journal.append(f"line {number}", 9)
    job.commit(0, 3 * KEPT)
    with LineServer() as server, receiving(job, server.port, attempt=2):
        server.send(b"more\n")
        until(lambda: job.numbers[0] == 2 * KEPT, "the deletion")
    assert job.lines[-1] == "more"


def test_what_a_retained_checkpoint_goes_on_with_stays_in_the_journal(job: Job) -> None:
    journal = job.journal()
    for number in range(3 * KEPT):
        journal.append(f"line {number}", 9)
    job.commit(0, 3 * KEPT)
    reader = job.readers[0]
    assert reader.needed(SourceName("lines")) == 3 * KEPT
    job.retained = ["-", '{"entry":120,"source":"lines"}', '{"entry":7,"source":"other"}', "12"]
    assert reader.needed(SourceName("lines")) == 120
    job.retained = None
    assert reader.needed(SourceName("lines")) == 0


def test_a_journal_without_its_head_goes_on_where_it_was(job: Job) -> None:
    first = job.journal()
    for number in range(2 * KEPT):
        first.append(f"line {number}", SMALLEST)
    job.commit(0, 2 * KEPT)
    first.forget(2 * KEPT)
    second = job.journal(attempt=2)
    assert second.pending(2 * KEPT) == SMALLEST
    second.append("next", 4)
    assert job.numbers == list(range(KEPT, 2 * KEPT + 3))
    assert job.lines[-1] == "next"


def test_what_a_zombie_writes_into_the_deleted_head_is_nobodys(job: Job) -> None:
    zombie = job.journal()
    successor = job.journal(attempt=2)
    for number in range(3 * KEPT):
        successor.append(f"line {number}", 9)
    job.commit(0, 3 * KEPT)
    successor.forget(3 * KEPT)
    zombie.append("lost", 4)  # at number 1, which was a fence and is deleted
    assert job.numbers[0] == 1
    assert dense_tail(job.numbers).start == 2 * KEPT
    job.journal(attempt=3).append("next", 4)
    assert job.numbers == list(range(2 * KEPT, 3 * KEPT + 4))
    assert "lost" not in job.lines


def test_a_higher_fence_is_final(job: Job) -> None:
    old, new = job.journal(), job.journal(attempt=2)
    with pytest.raises(FencedError):
        old.append("late", 4)
    with pytest.raises(FencedError):
        job.journal(attempt=1)
    new.append("mine", 4)
    assert job.lines == ["mine"]


@pytest.mark.parametrize("kept", [0, 5])
def test_a_journal_that_lacks_what_a_query_goes_on_with_is_refused(job: Job, kept: int) -> None:
    journal = job.journal()
    for number in range(2 * KEPT):
        journal.append(f"line {number}", 9)
    job.commit(0, KEPT)
    for number in job.numbers[: 2 * KEPT - kept]:
        job.store.delete(entries.key(job.place.prefix, number))
    there = job.numbers
    with pytest.raises(LostInputError, match="counts"):
        Journal(job.place, token(2), lease(2)).check(job.readers)
    assert job.numbers == there
    with pytest.raises(LostInputError, match="counts"):
        job.journal(attempt=2)


def test_a_journal_is_checked_without_being_fenced(job: Job) -> None:
    journal = job.journal(attempt=2)
    journal.append("line", 4)
    Journal(job.place, token(3), lease(3)).check(job.readers)
    journal.append("line", 4)
    with pytest.raises(FencedError):
        Journal(job.place, token(1), lease(1)).check(job.readers)


# the reader


def read(reader: JournalReader, start: str | None, end: str) -> list[str]:
    """The lines of the files that a batch has; Spark reads them in `integration/test_sources.py`."""
    texts = [json.loads(Path(file.path).read_text())["text"] for file in reader.batch(start, end).files]
    return [line for text in texts for line in text.split("\n")]


def at(entry: int, source: str = "lines") -> str:
    return json.dumps({"entry": entry, "source": source})


def test_a_reader_reads_what_counts_and_ends_behind_lines(job: Job) -> None:
    journal, reader = job.journal(), job.reader()
    assert reader.latest(None, False) == at(0)
    assert read(reader, None, at(0)) == []
    assert reader.latest(at(0), False) is None, "a fence is no data"
    journal.append("a\nb", 3)
    job.journal(attempt=2).append("c", 1)
    for number in (5, 6):  # a zombie's, behind the fence
        stale = entries.lines(token(1), number, 0, "stale")
        job.store.create(entries.key(job.place.prefix, number - 1), json.dumps(stale).encode())
    assert reader.latest(at(0), False) == at(4)
    assert read(reader, at(0), at(4)) == ["a", "b", "c"]
    assert reader.latest(at(4), False) is None
    assert job.reader().latest(at(4), False) is None, "one that starts here knows it too"
    assert read(job.reader(), at(0), at(4)) == ["a", "b", "c"], "a planned batch is read again"


def test_a_batch_has_a_bound(job: Job) -> None:
    journal, reader = job.journal(), job.reader(max_bytes=3 * SMALLEST)
    for number in range(10):
        journal.append(str(number), 1)
    assert reader.latest(at(0), False) == at(4)
    assert reader.latest(at(4), False) == at(7)
    assert job.reader(max_bytes=1).latest(at(4), False) == at(5), "one entry always fits"
    assert reader.latest(at(4), True) == at(11)
    assert reader.batch(at(4), at(7)).bytes == 3 * SMALLEST


def test_available_now_ends_where_the_journal_ended_at_the_start(job: Job) -> None:
    journal, reader = job.journal(), job.reader()
    journal.append("a", 1)
    reader.end_here()
    journal.append("b", 1)
    assert reader.latest(at(0), False) == at(2)
    assert reader.latest(at(2), False) is None


def test_a_query_that_comes_later_starts_with_what_is_there(job: Job) -> None:
    journal = job.journal()
    for number in range(2 * KEPT):
        journal.append(str(number), SMALLEST)
    journal.forget(2 * KEPT)
    reader = job.reader()
    end = reader.latest(None, False)
    assert end is not None
    assert read(reader, None, end) == [str(number) for number in range(KEPT - 1, 2 * KEPT)]


@pytest.mark.parametrize("start", [at(10), at(1, "other")])
def test_a_reader_leaves_no_hole(job: Job, start: str) -> None:
    journal = job.journal()
    for number in range(2 * KEPT):
        journal.append(str(number), 1)
    journal.forget(2 * KEPT)
    with pytest.raises(LookupError, match=r"gone|mean nothing"):
        job.reader().latest(start, False)


def test_an_entry_that_spark_can_not_read_is_named(job: Job) -> None:
    job.journal().append("a", 1)
    reader = job.reader()
    (file,) = reader.batch(at(0), at(2)).files
    error = reader.unreadable(file.path, "is gone")
    assert error.what == f"{job.place.url}/log/000000001.json is gone"


def test_a_source_gives_a_receiver_for_its_place(job: Job) -> None:
    with LineServer() as server:
        source = SocketSource("127.0.0.1", server.port, MAX_BYTES)
        receiver = source.receiver(job.place, token(1), lease(), job.readers)
        receiver.start()
        server.send(b"a\n")
        until(lambda: job.lines == ["a"], "the line")
        end(receiver)

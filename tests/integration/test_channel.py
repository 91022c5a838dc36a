"""Plain streaming queries joined by channels by hand: what a reader reads, and where it stops."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from weir.channel.log import Segment, entry_key, read_entry, trim
from weir.channel.position import Mode, Position, positions_in
from weir.channel.schema import settle
from weir.channel.stream import open_stream
from weir.channel.writer import ChannelWriter
from weir.errors import ChannelSchemaError, Domain
from weir.ids import Attempt, BatchId, CheckpointId, Run, Token
from weir.protocol.ledger import Staged
from weir.spark.failure import from_exception
from weir.storage.local import LocalStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

TOKEN = Token(Attempt(1), Run(1))


@dataclass
class Channel:
    """A channel whose segments the test writes itself."""

    spark: SparkSession
    folder: Path
    ddl: str = "value int"
    batches: int = 0

    def __post_init__(self) -> None:
        self.writer = ChannelWriter(self.folder.name, str(self.folder), f"{self.folder}-query")
        self.writer.open("job/query", "lineage", TOKEN)

    def add(self, *values: int) -> None:
        """One segment with two files."""
        frame = self.spark.createDataFrame([(value,) for value in values], self.ddl).repartition(2)
        staged = Staged(BatchId(self.batches), TOKEN)
        self.writer.stage(frame, staged.batch, TOKEN)
        self.writer.record(staged)
        self.writer.commit(staged)
        self.batches += 1

    def barrier(self, checkpoint: int) -> None:
        self.writer.append_barrier(CheckpointId(checkpoint))


@dataclass
class Reading:
    """A query on channels; it keeps the rows of each batch that ran to its end."""

    spark: SparkSession
    folder: Path
    checkpoints: Path
    channels: list[Channel]
    mode: Mode = Mode.ALIGNED
    max_segments: int | None = None
    before: Callable[[int], None] = lambda _: None
    rows: dict[int, list[int]] = field(default_factory=dict)
    query: StreamingQuery | None = None

    def start(self, **trigger: Any) -> Reading:
        frames = [
            open_stream(
                self.spark,
                self.spark.createDataFrame([], channel.ddl).schema,
                str(channel.folder),
                str(self.folder),
                str(self.checkpoints),
                self.mode,
                self.max_segments,
            )
            for channel in self.channels
        ]
        frame = frames[0]
        for other in frames[1:]:
            frame = frame.union(other)
        writer = frame.writeStream.foreachBatch(self._batch).option("checkpointLocation", str(self.folder))
        self.query = (writer.trigger(**trigger) if trigger else writer).start()
        return self

    def drain(self) -> dict[int, list[int]]:
        """Let it read all that it may."""
        assert self.query is not None
        self.query.processAllAvailable()
        return self.rows

    def stop(self) -> None:
        assert self.query is not None
        self.query.stop()

    def ends(self) -> list[list[dict[str, Any]]]:
        """The end offsets of every batch."""
        numbers = sorted(int(one.name) for one in (self.folder / "offsets").iterdir() if one.name.isdigit())
        lines = [(self.folder / "offsets" / str(number)).read_text().split("\n")[2:] for number in numbers]
        return [[json.loads(line) for line in batch] for batch in lines]

    def _batch(self, frame: DataFrame, number: int) -> None:
        self.before(number)
        self.rows[number] = sorted(row.value for row in frame.collect())


@dataclass
class Bench:
    """What a test needs to set up channels and queries."""

    spark: SparkSession
    root: Path
    readings: list[Reading] = field(default_factory=list)

    def channel(self, name: str = "channel", ddl: str = "value int") -> Channel:
        return Channel(self.spark, self.root / name, ddl)

    def reading(self, *channels: Channel, **options: Any) -> Reading:
        made = Reading(self.spark, self.root / "reader", self.root / "checkpoints", list(channels), **options)
        self.readings.append(made)
        return made

    def begun(self, *numbers: int) -> None:
        for number in numbers:
            self.checkpoint("begun", number)

    def checkpoint(self, state: str, number: int) -> None:
        LocalStore(self.root / "checkpoints").create(f"{state}-{number}.json", b"{}")


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(spark, tmp_path)
    yield made
    for one in made.readings:
        one.stop()


def end(entry: int, barrier: int, channel: str = "channel") -> dict[str, int | str]:
    return {"entry": entry, "barrier": barrier, "channel": channel}


@pytest.mark.long
def test_batches_end_exactly_at_barriers(bench: Bench) -> None:
    channel = bench.channel()
    bench.begun(1, 2, 3, 4)
    channel.add(1, 2)
    channel.add(3)
    channel.barrier(1)
    channel.add(4, 5)
    channel.barrier(2)
    channel.barrier(3)
    channel.add(6)
    reading = bench.reading(channel).start()
    assert reading.drain() == {0: [1, 2, 3], 1: [4, 5], 2: [], 3: [6]}
    assert reading.ends() == [[end(4, 1)], [end(6, 2)], [end(7, 3)], [end(8, 3)]]
    channel.barrier(4)
    assert reading.drain()[4] == []
    assert reading.ends()[-1] == [end(9, 4)]


@pytest.mark.long
def test_a_bound_divides_what_waits_into_batches(bench: Bench) -> None:
    channel = bench.channel()
    for value in range(5):
        channel.add(value)
    reading = bench.reading(channel, max_segments=2).start()
    assert reading.drain() == {0: [0, 1], 1: [2, 3], 2: [4]}


def test_unaligned_reads_across_barriers(bench: Bench) -> None:
    channel = bench.channel()
    channel.add(1)
    channel.barrier(1)
    channel.add(2)
    reading = bench.reading(channel, mode=Mode.UNALIGNED).start()
    assert reading.drain() == {0: [1, 2]}
    assert reading.ends() == [[end(4, 1)]]


def test_at_least_once_ends_at_barriers_and_waits_for_nobody(bench: Bench) -> None:
    left, right = bench.channel("left"), bench.channel("right")
    bench.checkpoint("begun", 1)
    left.add(1)
    left.barrier(1)
    left.add(2)
    reading = bench.reading(left, right, mode=Mode.AT_LEAST_ONCE).start()
    assert reading.drain() == {0: [1], 1: [2]}
    assert [one[0] for one in reading.ends()] == [end(3, 1, "left"), end(4, 1, "left")]


@pytest.mark.long
def test_a_query_that_reads_a_channel_twice_has_two_positions_in_it(bench: Bench) -> None:
    channel = bench.channel()
    bench.begun(1)
    channel.add(1)
    channel.barrier(1)
    channel.add(2)
    reading = bench.reading(channel, channel).start()
    assert reading.drain() == {0: [1, 1], 1: [2, 2]}
    log = (reading.folder / "offsets/0").read_text()
    assert positions_in(log) == {"channel": [Position(3, CheckpointId(1))] * 2}


@pytest.mark.long
def test_a_reader_goes_on_and_a_new_one_starts_where_the_head_was_deleted(bench: Bench) -> None:
    channel = bench.channel()
    for value in range(4):
        channel.add(value)
    reading = bench.reading(channel).start()
    reading.drain()
    reading.stop()
    for value in range(4, 6):
        channel.add(value)
    (position,) = reading.ends()[-1]
    trim(LocalStore(channel.folder), position["entry"])
    assert len(list((channel.folder / "log").iterdir())) == 3
    assert len(list((channel.folder / "data").iterdir())) == 3
    assert bench.reading(channel).start().drain() == {1: [4, 5]}
    new = Reading(bench.spark, bench.root / "new", bench.root / "checkpoints", [channel])
    bench.readings.append(new)
    assert new.start().drain() == {0: [4, 5]}


@pytest.mark.parametrize("lost", ["a file of a segment", "an entry"])
def test_what_was_deleted_by_hand_ends_the_query_with_words(bench: Bench, lost: str) -> None:
    channel = bench.channel()
    channel.add(1)
    channel.add(2)
    entry = read_entry(LocalStore(channel.folder), 1)
    assert isinstance(entry, Segment)
    rows = f"{entry.folder}/{entry.files[0].name}"
    gone = channel.folder / (entry_key(1) if lost == "an entry" else rows)
    gone.unlink()
    reading = bench.reading(channel)
    with pytest.raises(Exception, match="gone") as raised:
        reading.start().drain()
    failure = from_exception(raised.value, "job")
    assert (failure.domain, failure.error) == (Domain.INTERNAL, "LostSegmentError")
    assert failure.what == f"the channel file {gone} is gone"
    assert failure.why.startswith("somebody changed or deleted it")
    assert failure.hint.startswith("the next driver resumes from the newest intact checkpoint")
    assert failure.retry and failure.redeploy


@pytest.mark.parametrize("cut", [0, 0.5])
def test_a_damaged_file_ends_the_query_with_words(bench: Bench, cut: float) -> None:
    channel = bench.channel()
    channel.add(1)
    entry = read_entry(LocalStore(channel.folder), 1)
    assert isinstance(entry, Segment)
    torn = channel.folder / entry.folder / entry.files[0].name
    torn.write_bytes(torn.read_bytes()[: int(cut * torn.stat().st_size)])
    with pytest.raises(Exception, match=r"\w") as raised:
        bench.reading(channel).start().drain()
    failure = from_exception(raised.value, "job")
    assert (failure.domain, failure.error) == (Domain.INTERNAL, "LostSegmentError")
    assert failure.what.startswith(f"the channel file {torn} can't be read: ")
    assert failure.retry and failure.redeploy


@pytest.mark.long
def test_files_are_not_skipped_whatever_spark_was_asked_to_skip(bench: Bench) -> None:
    bench.spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    bench.spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        test_a_damaged_file_ends_the_query_with_words(bench, 0.5)
    finally:
        bench.spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
        bench.spark.conf.unset("spark.sql.files.ignoreMissingFiles")


@pytest.mark.long
def test_two_channels_wait_for_each_other_at_a_pending_barrier(bench: Bench) -> None:
    left, right = bench.channel("left"), bench.channel("right")
    bench.checkpoint("begun", 1)
    left.add(1)
    left.barrier(1)
    left.add(2)
    reading = bench.reading(left, right).start()
    assert reading.drain() == {0: [1]}
    right.add(10)
    assert reading.drain() == {0: [1], 1: [10]}, "the left one is held back, the right one is not"
    right.add(11)
    right.barrier(1)
    right.add(12)
    reading.drain()
    cut = reading.ends().index([end(3, 1, "left"), end(4, 1, "right")])
    before = [value for number, rows in reading.rows.items() for value in rows if number <= cut]
    after = [value for number, rows in reading.rows.items() for value in rows if number > cut]
    assert (before, sorted(after)) == ([1, 10, 11], [2, 12])


@pytest.mark.long
def test_an_abort_releases_who_was_held_back(bench: Bench) -> None:
    left, right = bench.channel("left"), bench.channel("right")
    bench.checkpoint("begun", 1)
    left.add(1)
    left.barrier(1)
    left.add(2)
    right.add(10)
    reading = bench.reading(left, right).start()
    assert reading.drain() == {0: [1, 10]}
    bench.checkpoint("aborted", 1)
    assert reading.drain() == {0: [1, 10], 1: [2]}
    right.barrier(1)
    right.add(11)
    assert reading.drain()[2] == [11]
    assert reading.ends()[2] == [end(4, 1, "left"), end(4, 0, "right")], "an aborted barrier is not reached"


@pytest.mark.long
def test_a_planned_batch_reads_the_same_rows_after_a_crash(bench: Bench) -> None:
    def fail(number: int) -> None:
        if number == 1:
            raise InterruptedError("crash")

    channel = bench.channel()
    channel.add(1)
    first = bench.reading(channel, before=fail).start()
    first.drain()
    channel.add(2)
    channel.add(3)
    with pytest.raises(Exception, match="crash"):
        first.drain()
    channel.add(4)
    channel.barrier(1)
    second = bench.reading(channel).start()
    assert second.drain() == {1: second.rows[1], 2: second.rows[2]}
    planned = second.ends()[1][0]["entry"] - 2
    assert second.rows[1] == [2, 3][:planned]
    assert second.rows[1] + second.rows[2] == [2, 3, 4]


@pytest.mark.long
def test_available_now_ends_with_what_was_there_at_its_start(bench: Bench) -> None:
    channel = bench.channel()
    bench.begun(1)
    channel.add(1)
    channel.barrier(1)
    channel.add(2)
    reading = bench.reading(channel, before=lambda number: channel.add(100 + number)).start(availableNow=True)
    assert reading.query is not None
    assert reading.query.awaitTermination(60)
    assert reading.rows == {0: [1], 1: [2]}
    again = bench.reading(channel).start(availableNow=True)
    assert again.query is not None
    assert again.query.awaitTermination(60)
    assert again.rows == {2: [100, 101]}


def test_the_schema_of_a_channel_stays(bench: Bench) -> None:
    store = LocalStore(bench.root / "channel")
    schema = bench.spark.createDataFrame([], "a int not null, b string").schema
    settle(store, "orders", schema)
    settle(store, "orders", bench.spark.createDataFrame([], "a int, b string").schema)
    with pytest.raises(ChannelSchemaError, match="give the stream a new name"):
        settle(store, "orders", bench.spark.createDataFrame([], "a long, b string").schema)
    with pytest.raises(ChannelSchemaError, match="two columns"):
        settle(store, "other", bench.spark.createDataFrame([], "a int, A string").schema)


def test_every_type_comes_through_as_it_was(bench: Bench) -> None:
    ddl = (
        "id int, b boolean, t tinyint, s smallint, l bigint, f float, d double, n decimal(20,3), x string,"
        " y binary, day date, ts timestamp, ntz timestamp_ntz, span interval day to second,"
        " a array<timestamp>, m map<string,int>, st struct<start: timestamp, inner: struct<v: array<int>>>"
    )
    at = datetime(2024, 2, 29, 12, 30, 1, 123456)
    full: tuple[Any, ...] = (1, True, -1, -300, 2**40, 0.5, 0.1, Decimal("12345.678"), "é", b"\x00\xff")
    full += (date(1969, 7, 20), at, at, timedelta(days=1, microseconds=5), [at, None], {"k": 1, "z": None})
    full += ((at, ([1, None],)),)
    frame = bench.spark.createDataFrame([full, (2,) + (None,) * 16], ddl).repartition(1)
    channel = bench.channel(ddl=ddl)
    staged = Staged(BatchId(0), TOKEN)
    channel.writer.stage(frame, staged.batch, TOKEN)
    channel.writer.record(staged)
    channel.writer.commit(staged)
    stream = open_stream(bench.spark, frame.schema, str(channel.folder), str(bench.root / "reader"), "")
    found: list[Any] = []
    query = (
        stream.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
        .option("checkpointLocation", str(bench.root / "reader"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert sorted(found) == sorted(frame.collect())


# Event time: the same logic in one query, and cut in two by a channel, step by step.

INPUT = "ts timestamp, kind string"
DAY = "2024-05-01 12:"


@dataclass
class Cut:
    """A frame computed by a query of its own, written to a channel as weir's engine would."""

    frame: DataFrame
    root: Path
    staged: list[Staged] = field(default_factory=list)

    def start(self) -> StreamingQuery:
        self.writer = ChannelWriter("cut", str(self.root / "cut"), str(self.root / "upstream"))
        self.writer.open("job/upstream", "lineage", TOKEN)
        writer = self.frame.writeStream.foreachBatch(self._stage)
        return writer.option("checkpointLocation", str(self.root / "upstream")).start()

    def commit(self, then: Callable[[], None]) -> None:
        """Enter the segments one by one, as they come when the reader is quick."""
        while self.staged:
            self.writer.commit(self.staged.pop(0))
            then()

    def stream(self, spark: SparkSession) -> DataFrame:
        return open_stream(
            spark, self.frame.schema, str(self.root / "cut"), str(self.root / "downstream"), ""
        )

    def _stage(self, frame: DataFrame, number: int) -> None:
        staged = Staged(BatchId(number), TOKEN)
        self.writer.stage(frame, staged.batch, TOKEN)
        self.writer.record(staged)
        self.staged.append(staged)


@dataclass
class Output:
    """The rows that a query has emitted since the last look."""

    rows: list[str] = field(default_factory=list)

    def start(self, frame: DataFrame, folder: Path) -> StreamingQuery:
        writer = frame.writeStream.outputMode("append").foreachBatch(self._batch)
        return writer.option("checkpointLocation", str(folder)).start()

    def take(self) -> list[str]:
        rows, self.rows = sorted(self.rows), []
        return rows

    def _batch(self, frame: DataFrame, _: int) -> None:
        self.rows += ["|".join(map(str, row)) for row in frame.collect()]


def kept(frame: DataFrame) -> DataFrame:
    """A filter that Catalyst leaves above the watermark, since it looks at the event time."""
    return frame.withWatermark("ts", "10 seconds").where("kind = 'keep' or ts < '1970-01-01'")


def windows(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return frame.groupBy(F.window("ts", "10 seconds")).count()


def closed(frame: DataFrame) -> DataFrame:
    return windows(kept(frame))


def again(frame: DataFrame) -> DataFrame:
    """Over windows of the same length: late as soon as the first one may close."""
    from pyspark.sql import functions as F

    return frame.where("`count` > 0").groupBy(F.window("window", "10 seconds")).agg(F.sum("count"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "second"),
    [pytest.param(kept, windows, marks=pytest.mark.long), (closed, again)],  # kept: test_diamond.py has it
)
def test_windows_behind_a_channel_close_when_they_do_in_one_query(
    spark: SparkSession,
    tmp_path: Path,
    first: Callable[[DataFrame], DataFrame],
    second: Callable[[DataFrame], DataFrame],
) -> None:
    def source() -> DataFrame:
        return spark.readStream.schema(INPUT).json(str(tmp_path / "in"))

    (tmp_path / "in").mkdir()
    cut = Cut(first(source()), tmp_path)
    one, two = Output(), Output()
    whole = one.start(second(first(source())), tmp_path / "one")
    upstream = cut.start()
    downstream = two.start(second(cut.stream(spark)), tmp_path / "downstream")
    emitted = []
    steps = [("keep", "00:01"), ("drop", "00:21"), ("keep", "00:22"), ("drop", "02:00"), ("keep", "01:55")]
    try:
        for number, (kind, minute) in enumerate([*steps, ("drop", "04:30")]):
            line = json.dumps({"ts": DAY + minute, "kind": kind})
            LocalStore(tmp_path / "in").put(f"{number}.json", line.encode())
            whole.processAllAvailable()
            upstream.processAllAvailable()
            cut.commit(downstream.processAllAvailable)
            emitted.append((one.take(), two.take()))
    finally:
        for query in (whole, upstream, downstream):
            query.stop()
    assert [cut_in_two for _, cut_in_two in emitted] == [in_one for in_one, _ in emitted]
    assert sum(bool(in_one) for in_one, _ in emitted) >= 2, emitted

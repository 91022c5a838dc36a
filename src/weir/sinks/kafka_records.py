"""From the columns of a frame to records of Kafka: chosen by Spark in the batch, read back at the commit.

A staged file has the columns `key` and `value` (binary) and, where there are any, `headers` (an array of
name and value). Who the author's columns are is checked against the frame before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any

from weir.errors import BrokerError
from weir.sinks.kafka_broker import PRODUCER, KafkaRecord, Sending

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame


FORMAT = "parquet"
_ROWS = 10_000
"""How many rows are in memory at a time."""
_BYTES = ("string", "binary")
_SPARKS_HEADERS = "array<struct<key:string,value:binary>>"


class NotBytesError(Exception):
    """A column that is not there, or of a type that has no bytes of its own."""


@dataclass(frozen=True)
class KafkaColumns:
    """What of a row becomes what of a record: each a column's name, or an expression of Spark's."""

    key: str | Column | None
    value: str | Column
    headers: Mapping[str, str | Column] | str | Column | None

    def choose(self, frame: DataFrame) -> DataFrame:
        """The frame as it is staged. Nothing is evaluated."""
        from pyspark.sql import functions as F  # noqa: PLC0415

        chosen = [F.lit(None).alias("key") if self.key is None else _column(self.key).alias("key")]
        chosen.append(_column(self.value).alias("value"))
        if isinstance(self.headers, Mapping):
            pairs = [
                F.struct(F.lit(name).alias("key"), _column(column).cast("binary").alias("value"))
                for name, column in self.headers.items()
            ]
            chosen.append(F.array(*pairs).alias("headers"))
        elif self.headers is not None:
            chosen.append(_column(self.headers).alias("headers"))
        rows = frame.select(*chosen)
        return rows.withColumns({name: F.col(name).cast("binary") for name in ("key", "value")})

    def check(self, frame: DataFrame) -> None:
        """Raise `NotBytesError` when records can't be made of the frame."""
        from pyspark.errors import AnalysisException  # noqa: PLC0415

        wanted: list[tuple[str, Any]] = [("value", self.value)]
        wanted += [("key", self.key)] if self.key is not None else []
        if isinstance(self.headers, Mapping):
            wanted += [(f"header {name!r}", column) for name, column in self.headers.items()]
        try:
            for what, column in wanted:
                kind = frame.select(_column(column)).schema[0].dataType.simpleString()
                if kind not in _BYTES:
                    raise NotBytesError(f"its {what} is of type {kind}, and Kafka takes bytes")
            if self.headers is not None and not isinstance(self.headers, Mapping):
                kind = frame.select(_column(self.headers)).schema[0].dataType.simpleString()
                if kind != _SPARKS_HEADERS:
                    raise NotBytesError(f"its headers are of type {kind}, not {_SPARKS_HEADERS}")
        except AnalysisException as error:
            raise NotBytesError(str(error).strip().partition("\n")[0]) from error


def records(urls: Iterable[str]) -> Iterator[KafkaRecord]:
    """The records of staged files, in the order of the files and their rows."""
    from weir.spark.parquet import open_file  # noqa: PLC0415  loads pyarrow

    for url in urls:
        with open_file(url) as file:
            for batch in file.iter_batches(batch_size=_ROWS, use_threads=False):
                yield from of_batch(batch)


def of_batch(batch: pa.RecordBatch) -> Iterator[KafkaRecord]:
    """The records of chosen rows."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    keys, values = columns["key"].to_pylist(), columns["value"].to_pylist()
    if "headers" not in columns:
        return map(KafkaRecord, keys, values, repeat(None))
    rows = columns["headers"].to_pylist()
    headers = ([(pair["key"], pair["value"]) for pair in row] if row else None for row in rows)
    return map(KafkaRecord, keys, values, headers)


def count(urls: Iterable[str]) -> int:
    """The number of records in staged files; raise `FileNotFoundError` when one is gone."""
    from weir.spark.parquet import open_file  # noqa: PLC0415  loads pyarrow

    rows = 0
    for url in urls:
        with open_file(url) as file:
            rows += file.metadata.num_rows
    return rows


def _column(chosen: str | Column) -> Column:
    from pyspark.sql import functions as F  # noqa: PLC0415

    return F.col(chosen) if isinstance(chosen, str) else chosen


# Records that executors send inside a batch, each for itself: at least once, and nothing is staged.


_SENT = "sent bigint"
_PATIENCE = 30.0


@dataclass(frozen=True)
class Direct:
    """A topic as executors send to it; it travels to them."""

    bootstrap: str
    topic: str
    config: Mapping[str, Any] = field(repr=False)

    def send(self, rows: DataFrame) -> int:
        """Send the rows, in the tasks that compute them; how many there were.

        A task that fails and is run again sends again.
        """
        from pyspark.sql import functions as F  # noqa: PLC0415

        sent = rows.mapInArrow(self._send_partition, _SENT).agg(F.sum("sent")).collect()[0][0]
        return int(sent or 0)

    def _send_partition(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415
        from confluent_kafka import Producer  # noqa: PLC0415

        sent, failed = 0, list[str]()
        own = {"bootstrap.servers": self.bootstrap, "enable.idempotence": True}
        report = {"on_delivery": lambda error, _: failed.append(error.str()) if error else None}
        producer = Producer({**PRODUCER, "log_level": 0, **self.config, **own, **report})
        sending = Sending(producer, _PATIENCE, lambda: self._failed("no answer"))
        for batch in batches:
            sent += batch.num_rows
            sending.put(self.topic, of_batch(batch))
        sending.flush()
        if failed:
            raise self._failed(failed[0])
        yield pa.RecordBatch.from_pydict({"sent": [sent]})

    def _failed(self, reason: str) -> BrokerError:
        return BrokerError(bootstrap=self.bootstrap, verb="take records", reason=reason)

"""How fast the Kafka sink is: records per second, over a plain producer's of the same records.

    plain   one producer of confluent-kafka, idempotent, with the sink's settings, from a list in memory
    commit  batches that are staged as Parquet, sent by the sink: a transaction each, with the ledger's entry
    job     the same records from Parquet through Spark and weir to the topic, once the session is up

The three take turns on one broker of one node, started here; each value is the median of the rounds.
Reported, without a target.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

import weir
from tests.kafka_server import KafkaServer
from weir.ids import Attempt, BatchId, Run, Token
from weir.protocol.ledger import Staged
from weir.sinks.kafka import KafkaSink
from weir.sinks.kafka_broker import PRODUCER, KafkaBroker
from weir.sinks.kafka_records import KafkaColumns
from weir.sinks.staging import folder_of
from weir.storage.local import LocalStore

RESULT = Path(__file__).parent / "results" / "kafka.json"
TOKEN = Token(Attempt(1), Run(1))
_names = itertools.count()


class Bench:
    """One broker and one set of records."""

    def __init__(self, server: KafkaServer, folder: Path, records: int, batch: int) -> None:
        self.server, self.folder, self.batch = server, folder, batch
        self.keys = [f"key-{number % 100_003}".encode() for number in range(records)]
        self.values = [f"{number:012d}".encode() + os.urandom(44).hex().encode() for number in range(records)]

    def topic(self) -> str:
        return self.server.topic(f"bench-{next(_names)}", partitions=2)

    def plain(self) -> float:
        from confluent_kafka import Producer

        own = {"bootstrap.servers": self.server.bootstrap, "enable.idempotence": True}
        producer = Producer({**PRODUCER, **own})
        topic = self.topic()
        producer.list_topics(topic, timeout=10)
        since = time.monotonic()
        for key, value in zip(self.keys, self.values, strict=True):
            while True:
                try:
                    producer.produce(topic, value, key)
                    break
                except BufferError:
                    producer.poll(0.05)
        assert producer.flush(120) == 0
        return time.monotonic() - since

    def commit(self) -> float:
        topic = self.topic()
        folder = self.folder / topic
        broker = KafkaBroker(self.server.bootstrap, topic, f"{topic}.ledger", {})
        sink = KafkaSink(topic, KafkaColumns("key", "value", None), broker, LocalStore(folder))
        sink.open("bench/commit", "lineage", TOKEN)
        stagings = [self._stage(sink, folder, number) for number in range(0, len(self.keys), self.batch)]
        since = time.monotonic()
        for staged in stagings:
            sink.commit(staged)
        return time.monotonic() - since

    def job(self) -> float:
        from pyspark.sql import SparkSession

        spark = SparkSession.getActiveSession()
        assert spark is not None
        topic = self.topic()
        source, data = self.folder / "in", pa.table({"key": self.keys, "value": self.values})
        if not source.exists():
            source.mkdir()
            for number, first in enumerate(range(0, len(self.keys), self.batch)):
                pq.write_table(data.slice(first, self.batch), source / f"{number:04d}.parquet")
        job = weir.Job("bench", execution_checkpointing_dir=str(self.folder / f"weir-{topic}"))

        @job.pipeline
        def through(env: weir.Env) -> None:
            rows = env.source(
                "rows", weir.sources.files(str(source), "parquet", "key binary, value binary", max_files=1)
            )
            env.sink("rows", rows, weir.sinks.kafka(self.server.bootstrap, topic, key="key"))

        since = time.monotonic()
        with job.start(spark) as run:
            run.process_all(600)
            return time.monotonic() - since

    def _stage(self, sink: KafkaSink, folder: Path, first: int) -> Staged:
        staged = Staged(BatchId(first // self.batch), TOKEN)
        place = folder / folder_of(staged.batch, staged.token)
        place.mkdir(parents=True)
        last, half = min(first + self.batch, len(self.keys)), self.batch // 2
        for part in (0, 1):
            rows = slice(first + part * half, min(first + half, last) if part == 0 else last)
            table = pa.table({"key": self.keys[rows], "value": self.values[rows]})
            pq.write_table(table, place / f"part-{part}.parquet")
        sink.record(staged)
        return staged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--batch", type=int, default=50_000, help="records of a batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without-spark", action="store_true", help="leave out the whole job")
    parser.add_argument("--quick", action="store_true", help="few records, one round; writes no file")
    options = parser.parse_args()
    records, rounds = (100_000, 1) if options.quick else (options.records, options.rounds)
    with tempfile.TemporaryDirectory() as folder, KafkaServer(Path(folder)) as server:
        bench = Bench(server, Path(folder), records, options.batch)
        sides: dict[str, Callable[[], float]] = {"plain": bench.plain, "commit": bench.commit}
        if not options.without_spark:
            start_spark()
            sides["job"] = bench.job
        for side in sides.values():
            side()  # the first time of each is warming up
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, side in sides.items():
                seconds[name].append(side())
    rate = {name: round(records / statistics.median(times)) for name, times in seconds.items()}
    result = {
        "records": records,
        "batch": options.batch,
        "bytes_of_a_record": 100,
        "records_per_second": rate,
        "over_plain": {name: round(value / rate["plain"], 3) for name, value in rate.items()},
        "seconds": {name: [round(one, 3) for one in times] for name, times in seconds.items()},
    }
    text = json.dumps(result, indent=2)
    print(text)
    if not options.quick:
        RESULT.write_text(text + "\n")


def start_spark() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.ui.showConsoleProgress", "false")
    builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()


if __name__ == "__main__":
    main()

"""Real frames of Spark's into a real PostgreSQL."""

from __future__ import annotations

import threading
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from pyspark.sql import functions as F

import weir
from weir import sinks
from weir.errors import NotRewindableError
from weir.ids import Attempt, BatchId, Run, Token
from weir.protocol.ledger import Staged
from weir.sinks import Outcome
from weir.testing import ScriptedSource
from weir.testing.script import Rows, write_script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TOKEN = Token(Attempt(1), Run(1))


def query(url: str, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        done = connection.execute(text.encode())
        return done.fetchall() if done.description else []


def test_every_type_of_spark_arrives(spark: SparkSession, database: str) -> None:
    frame = spark.sql("""
        SELECT id, CAST(id AS TINYINT) AS tiny, CAST(1.25 AS DECIMAL(20, 4)) AS amount, NULL AS nothing,
          IF(id = 1, NULL, struct(id AS a, CAST(NULL AS INT) AS b, 'x"y' AS `c d`)) AS record,
          map('k', array(1.5D, NULL)) AS pairs, array(struct(id AS n)) AS records,
          array(array(1), array()) AS nested,
          array('a', NULL, 'b,"c') AS texts, parse_json('{"v": [1, null]}') AS anything,
          TIMESTAMP '2024-03-31 01:30:00.000001+00:00' AS moment,
          TIMESTAMP_NTZ '2024-03-31 02:30:00' AS clock,
          DATE '2024-02-29' AS day, X'00FF' AS bytes, id > 0 AS flag, CAST(0.1 AS FLOAT) AS f, 1e300D AS d
        FROM range(4)
    """).repartition(3)
    sink = sinks.postgres(database, "every", create=True)
    sink.expect(frame.schema)
    sink.open("job/query", "lineage", TOKEN)
    one = Staged(BatchId(0), TOKEN)
    sink.stage(frame, one.batch, one.token)
    sink.record(one)
    assert sink.commit(one) is Outcome.DONE_NOW
    columns = "id, tiny, amount, nothing, record, pairs, records, nested, texts, anything"
    found = query(database, f"SELECT {columns} FROM every ORDER BY id")
    record = {"a": 0, "b": None, "c d": 'x"y'}
    for id, row in enumerate(found):
        assert row == (
            *(id, id, Decimal("1.2500"), None, None if id == 1 else {**record, "a": id}),
            *({"k": [1.5, None]}, [{"n": id}], [[1], []], ["a", None, 'b,"c'], {"v": [1, None]}),
        )
    assert len(found) == 4
    rest = "moment = '2024-03-31 01:30:00.000001Z', clock = '2024-03-31 02:30', day = '2024-02-29', "
    rest += "bytes = '\\x00ff', flag = (id > 0), f = 0.1::real, d = 1e300"
    assert query(database, f"SELECT DISTINCT {rest} FROM every") == [(True,) * 7]


def two_tables(folder: Path, url: str, name: str) -> weir.Job:
    """All rows appended to one table; sums by key, and a mark of the last run, merged into another."""
    options = {"execution.checkpointing.interval": "off", "execution.checkpointing.num-retained": 1}
    settings = {"execution.checkpointing.dir": str(folder / "weir"), "parallelism.default": 2, **options}
    job = weir.Job(name, **settings)

    def pipeline(env: weir.Env) -> None:
        rows = env.source("rows", ScriptedSource(folder / "in.jsonl", "k string, v long"))
        sums = rows.groupBy("k").agg(F.sum("v").alias("sum"))
        env.sink("all", rows, sinks.postgres(url, f"{name}_all", create=True))
        table = sinks.postgres(url, f"{name}_sums", "k", create=True)
        env.sink("sums", sums, table, output_mode="update")

    job.pipeline(pipeline)
    return job


def tables(url: str, name: str) -> list[Any]:
    return [
        sorted(query(url, f"SELECT k, v FROM {name}_all")),
        sorted(query(url, f"SELECT k, sum FROM {name}_sums")),
    ]


@pytest.mark.long
def test_tables_go_back_with_the_job_and_come_to_what_a_quiet_run_gives(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    def add(*rows: tuple[str, int]) -> None:
        write_script(tmp_path / "in.jsonl", Rows(list(rows)))

    job = two_tables(tmp_path, database, "faulted")
    with job.start(spark) as run:
        add(("a", 1), ("b", 2))
        run.process_all()
        old = run.savepoint(str(tmp_path / "saved"))
        run.checkpoint()
        at_the_cut = tables(database, "faulted")
        add(("a", 10), ("c", 3))
        run.process_all()
        add(("a", 100), ("b", 4))
        run.process_all()
        assert len(query(database, "SELECT * FROM faulted_all")) == 6
    with job.start(spark, "latest") as run:
        assert run.restored is not None
        run.process_all()
        after = tables(database, "faulted")
        run.checkpoint()
        add(("b", 5))
        run.process_all()
    assert at_the_cut == [[("a", 1), ("b", 2)], [("a", 1), ("b", 2)]]
    assert after == [
        [("a", 1), ("a", 10), ("a", 100), ("b", 2), ("b", 4), ("c", 3)],
        [("a", 111), ("b", 6), ("c", 3)],
    ]
    with two_tables(tmp_path, database, "quiet").start(spark) as run:
        run.process_all()
    assert tables(database, "faulted") == tables(database, "quiet")
    # One checkpoint is retained, and the batch behind it is delivered: older images are gone.
    images = query(database, "SELECT to_regclass('weir.before_2')::text")[0][0]
    assert images and len(query(database, f"SELECT * FROM {images}")) == 1
    floor, last = query(database, "SELECT floor, last FROM weir.ledger WHERE target LIKE '%faulted_sums%'")[0]
    assert last == floor + 1
    assert query(database, "SELECT relname FROM pg_class WHERE relname ~ '^s[0-9]+_[0-9]'") == []
    # A savepoint that is older than the images is refused before any table is touched.
    before = tables(database, "faulted")
    with pytest.raises(NotRewindableError):
        job.start(spark, old)
    assert tables(database, "faulted") == before


@pytest.mark.long
def test_two_tables_are_seen_together_when_a_checkpoint_completes(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    settings = {"execution.checkpointing.dir": str(tmp_path / "weir"), "parallelism.default": 2}
    settings |= {"execution.checkpointing.interval": "300 ms", "sink.commit": "checkpoint"}
    job = weir.Job("together", **settings)

    @job.pipeline
    def pipeline(env: weir.Env) -> None:
        rows = env.stream(
            "rows", env.source("script", ScriptedSource(tmp_path / "in.jsonl", "k string, v long"))
        )
        env.sink("copy", rows, sinks.postgres(database, "copy", create=True))
        sums = rows.groupBy("k").agg(F.sum("v").alias("sum"), F.count("*").alias("n"))
        env.sink("sums", sums, sinks.postgres(database, "sums", "k", create=True), output_mode="update")

    views: list[tuple[Any, ...]] = []
    stop = threading.Event()

    def read() -> None:
        text = "SELECT (SELECT count(*) FROM copy), (SELECT coalesce(sum(n), 0) FROM sums)"
        with psycopg.connect(database) as connection:
            while not stop.is_set():
                views.append(connection.execute(text).fetchone() or ())
                connection.rollback()

    with job.start(spark) as run:
        reader = threading.Thread(target=read)
        reader.start()
        for number in range(12):
            rows = [(f"k{i % 3}", i) for i in range(number * 5, number * 5 + 5)]
            write_script(tmp_path / "in.jsonl", Rows(rows))
            run.process_all()
        assert run.checkpoints
    stop.set()
    reader.join()
    assert all(copied == summed for copied, summed in views), set(views)
    assert len(set(views)) > 2, "there was something to see in between"
    assert query(database, "SELECT count(*) FROM copy") == [(60,)], "the end of a job shows the rest"
    assert query(database, "SELECT sum(n), sum(sum) FROM sums") == [(60, sum(range(60)))]
    assert len(query(database, "SELECT DISTINCT checkpoint FROM weir.ledger")) == 1

"""Sources of a job on a real Spark: who receives, who reads, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import weir
from tests.line_server import LineServer, until
from weir.clock import Clock
from weir.errors import PipelineError
from weir.ids import Attempt, Run, SourceName, Token
from weir.sources import Place
from weir.sources.journal import Journal
from weir.storage.attempts import Lease
from weir.storage.local import LocalStore
from weir.testing import committed_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def options(folder: Path) -> dict[str, Any]:
    return {"execution.checkpointing.dir": str(folder / "weir"), "parallelism.default": 2}


def journal(folder: Path, job: str, source: str) -> list[dict[str, Any]]:
    log = folder / "weir" / job / "sources" / source / "log"
    return [json.loads(file.read_text()) for file in sorted(log.glob("*.json"))]


@pytest.mark.long
def test_two_queries_read_one_journal_and_a_start_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = weir.Job("two-readers", **options(tmp_path))
    server = LineServer()

    @job.pipeline
    def pipeline(env: weir.Env) -> None:
        lines = env.source("lines", weir.sources.socket("127.0.0.1", server.port))
        env.source("unread", weir.sources.socket("127.0.0.1", server.port))
        env.sink("all", lines, weir.sinks.files(str(tmp_path / "all")))
        env.sink("seen", lines.writeStream.format("noop"))

    def journaled() -> list[str]:
        return [line for e in journal(tmp_path, job.name, "lines") for line in e.get("text", "").split("\n")]

    def delivered() -> list[str]:
        return sorted(row["value"] for row in committed_rows(str(tmp_path / "all")))

    with server:
        with job.start(spark) as run:
            server.send(b"a\nb\n")
            until(lambda: "b" in journaled(), "the lines in the journal")
            run.process_all()
            assert delivered() == ["a", "b"]
            offsets = (tmp_path / "weir/two-readers/generations/0001/queries/seen/offsets/0").read_text()
            assert json.loads(offsets.split("\n")[2])["source"] == "lines"
        with job.start(spark) as run:
            server.wait_for_client()
            server.send(b"c\n")
            until(lambda: "c" in journaled(), "the line in the journal")
            run.process_all()
            assert delivered() == ["a", "b", "c"]
    kinds = [entry["kind"] for entry in journal(tmp_path, job.name, "lines")]
    assert kinds.count("fence") == 2, "one receiver a start, though two queries read"
    assert journal(tmp_path, job.name, "unread") == [], "nobody reads it, so nobody receives it"


@pytest.mark.parametrize("timed", [True, False])
def test_the_time_at_which_a_line_came_is_read_again_as_it_was(
    spark: SparkSession, tmp_path: Path, timed: bool
) -> None:
    place = Place(SourceName("lines"), LocalStore(tmp_path), "sources/lines")
    token = Token(Attempt(1), Run(1))
    journal = Journal(place, token, Lease(Attempt(1), 3600, Clock()))
    journal.open([])
    journal.append("a\n\nß\u2028", 3, 1_700_000_000.25)
    journal.append("c", 1)
    source = weir.sources.socket("127.0.0.1", 1, include_timestamp=timed)
    frame = source.load(spark, place)
    assert frame.columns == ["value", "timestamp"][: 1 + timed]
    for run in ("first", "again"):
        found: list[Any] = []

        def take(batch: DataFrame, _: int, found: list[Any] = found) -> None:
            found.extend(map(tuple, batch.collect()))

        query = (
            (frame.selectExpr("value", "cast(timestamp as double) at") if timed else frame)
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / run))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        assert sum(one.numInputRows for one in query.recentProgress) == 4, "Spark counts lines"
        came = [("", 1_700_000_000.25), ("a", 1_700_000_000.25), ("c", 0.0), ("ß\u2028", 1_700_000_000.25)]
        assert sorted(found) == [row[: 1 + timed] for row in came]


@pytest.mark.parametrize(
    "provider", ["socket", "org.apache.spark.sql.execution.streaming.sources.TextSocketSourceProvider"]
)
def test_sparks_own_socket_is_refused_where_it_would_lose_lines(
    spark: SparkSession, tmp_path: Path, provider: str
) -> None:
    kept = weir.Job(f"kept-{len(provider)}", **options(tmp_path))
    shown = weir.Job(f"shown-{len(provider)}", **options(tmp_path))
    server = LineServer()

    def load(env: weir.Env) -> Any:
        stream = env.spark.readStream.format(provider).option("host", "127.0.0.1")
        return env.source("lines", stream.option("port", server.port).load())

    @kept.pipeline
    def to_files(env: weir.Env) -> None:
        env.sink("lines", load(env), weir.sinks.files(str(tmp_path / "out")))

    @shown.pipeline
    def to_memory(env: weir.Env) -> None:
        env.sink("lines", load(env), weir.sinks.memory())

    with server:
        with pytest.raises(PipelineError, match="can't be replayed") as caught:
            kept.start(spark)
        assert "weir.sources.socket(host, port)" in caught.value.hint
        assert not (tmp_path / "out").exists()
        with shown.start(spark) as run:
            assert any("lines are lost at each restart" in note for note in run.notes)
            assert run.active

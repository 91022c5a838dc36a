"""Spark's own file sink in a job: its folder moves, its query goes back, and no row is lost or doubled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import weir
from tests.diamond import KEY
from weir.clock import Clock
from weir.errors import SinkMismatchError
from weir.ids import QueryName
from weir.restore.intent import intend
from weir.restore.request import RestoreRequest
from weir.spark.file_sink import LOG
from weir.storage import generation as generations
from weir.storage import open_store
from weir.storage.paths import Live
from weir.testing import ScriptedSource, write_script
from weir.testing.script import Rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def archive(folder: Path, out: str, dir: str = "weir") -> weir.Job:
    job = weir.Job("archive", **{f"{KEY}.dir": str(folder / dir), f"{KEY}.interval": "off"})

    @job.pipeline
    def pipeline(env: weir.Env) -> None:
        env.spark.conf.set("spark.sql.streaming.fileSink.log.compactInterval", 3)
        rows = env.source("rows", ScriptedSource(folder / "in.jsonl"))
        env.sink("files", rows.writeStream.format("parquet").option("path", str(folder / out)))

    return job


@pytest.mark.long
def test_spark_s_own_files_move_and_go_back_with_the_job(spark: SparkSession, tmp_path: Path) -> None:
    given: list[str] = []

    def run(out: str, *words: str) -> int:
        given.extend(words)
        write_script(tmp_path / "in.jsonl", Rows(list(words)))
        with archive(tmp_path, out).start(spark) as live:
            live.process_all()
            return live.checkpoint()

    def found(out: str) -> list[str]:
        rows = spark.read.schema("value string").parquet(str(tmp_path / out)).collect()
        return sorted(row["value"] for row in rows)

    first = run("out", "a", "b")
    assert found("out") == sorted(given)
    (tmp_path / "out").rename(tmp_path / "moved")
    assert found("moved") == []  # this is what Spark makes of it
    run("moved", "c")
    assert found("moved") == sorted(given)

    store = open_store(str(tmp_path / "weir"))
    name = archive(tmp_path, "moved").name

    def spark_id() -> str:
        live = Live(store, name, generations.live(store, name))
        return str(json.loads((Path(live.query(QueryName("files"))) / "metadata").read_text())["id"])

    before = spark_id()
    intend(store, name, RestoreRequest(f"chk-{first}"), clock=Clock(), why="")
    run("moved", "d")
    assert found("moved") == sorted(given), "nothing twice, though it went back behind what it had written"
    assert spark_id() != before  # what remembers (id, batch) takes the batches that come again for new ones

    log = tmp_path / "moved" / LOG
    entries = sorted((path for path in log.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    compacted = [line for path in entries for line in path.read_text().split("\n")[1:]]
    for path in entries:
        path.unlink()
    (log / f"{entries[-1].name}.compact").write_text("\n".join(["v1", *compacted]))
    live = generations.live(store, name)
    with pytest.raises(SinkMismatchError, match="compacted after batch"):
        archive(tmp_path, "moved").start(spark, f"chk-{first}")
    assert generations.live(store, name) == live
    run("moved", "e")
    assert found("moved") == sorted(given), "the job went on where it was"

    with pytest.raises(SinkMismatchError, match="the live files know only up to -1"):
        archive(tmp_path, "moved", dir="other").start(spark)
    assert found("moved") == sorted(given)


def test_a_query_goes_on_in_a_new_folder_that_spark_reads_and_compacts(
    spark: SparkSession, tmp_path: Path
) -> None:
    def words(out: str) -> list[str]:
        rows = spark.read.schema("value string").parquet(str(tmp_path / out)).collect()
        return sorted(row["value"] for row in rows)

    write_script(tmp_path / "in.jsonl", *(Rows([word]) for word in "abcde"))
    with archive(tmp_path, "out").start(spark) as live:
        live.process_all()
        place = live.stop_with_savepoint(str(tmp_path / "saved"))
    write_script(tmp_path / "in.jsonl", *(Rows([word]) for word in "fghij"))
    with pytest.raises(SinkMismatchError, match="ends with batch -1"):
        archive(tmp_path, "new").start(spark)
    with archive(tmp_path, "new").start(spark, place) as live:
        live.process_all()
        assert len([batch for batch in live.batches if batch.query == "files"]) > 3
    assert (words("out"), words("new")) == (list("abcde"), list("fghij"))
    assert list((tmp_path / "new" / LOG).glob("8.compact"))

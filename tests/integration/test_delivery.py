"""The delivery modes told apart: a query dies when its batch is written and Spark has not committed it."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

import weir
from tests.kafka_server import KafkaServer
from weir import faults
from weir.errors import PipelineError, RunFailedError
from weir.faults import Fault

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_names = itertools.count()


class Interrupted:
    """A job of two batches whose second one fails after it was written and before it is decided."""

    def __init__(self, server: KafkaServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.topic = server.topic(f"delivery-{os.getpid()}-{next(_names)}")
        (folder / "in").mkdir()

    def add(self, *values: str) -> None:
        number = len(list((self.folder / "in").iterdir()))
        hidden = self.folder / f"{number}.json"
        hidden.write_text("".join(json.dumps({"value": value}) + "\n" for value in values))
        hidden.rename(self.folder / "in" / hidden.name)

    def job(self, delivery: Literal["exactly_once", "at_least_once"], **given: Any) -> weir.Job:
        job = weir.Job("delivery", execution_checkpointing_dir=str(self.folder / "weir"))

        @job.pipeline
        def through(env: weir.Env) -> None:
            rows = env.source("rows", weir.sources.files(str(self.folder / "in"), "json", "value string"))
            sink = weir.sinks.kafka(self.server.bootstrap, self.topic, delivery=delivery)
            env.sink("rows", rows, sink, **given)

        return job

    def seen(self) -> list[str]:
        return sorted(value.decode() for value in self.server.values(self.topic))


@pytest.mark.parametrize(
    ("delivery", "given", "expected"),
    [
        ("exactly_once", {}, ["a", "b", "c", "d"]),
        ("at_least_once", {}, ["a", "b", "b", "c", "c", "d"]),
        ("exactly_once", {"at_most_once": True}, ["a", "d"]),
    ],
    ids=["exactly once", "at least once", "at most once"],
)
def test_what_becomes_of_a_batch_that_was_not_committed(
    kafka: KafkaServer,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    delivery: Literal["exactly_once", "at_least_once"],
    given: dict[str, Any],
    expected: list[str],
) -> None:
    jobs = Interrupted(kafka, tmp_path)
    jobs.add("a")
    with jobs.job(delivery, **given).start(spark) as run:
        run.process_all()
        monkeypatch.setattr(faults, "_armed", [Fault("batch.staged", 1, "raise")])
        monkeypatch.setattr(faults, "_counts", type(faults._counts)())
        jobs.add("b", "c")
        with pytest.raises(RunFailedError):
            run.wait(60)
    monkeypatch.undo()
    jobs.add("d")
    with jobs.job(delivery, **given).start(spark) as run:
        run.process_all()
    assert jobs.seen() == expected
    assert bool([note for note in run.notes if "skipped" in note]) == bool(given)


def test_a_query_with_state_can_not_be_at_most_once(spark: SparkSession, tmp_path: Path) -> None:
    job = weir.Job("stateful", execution_checkpointing_dir=str(tmp_path))

    @job.pipeline
    def counts(env: weir.Env) -> None:
        rows = env.source("rows", weir.sources.rate())
        sink = weir.sinks.files(str(tmp_path / "out"))
        env.sink("counts", rows.groupBy("value").count(), sink, output_mode="update", at_most_once=True)

    with pytest.raises(PipelineError, match="at most once and has state"):
        job.start(spark)


def test_sparks_own_socket_may_be_read_at_most_once(spark: SparkSession, tmp_path: Path) -> None:
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]

        def pipeline(at_most_once: bool) -> weir.Job:
            job = weir.Job("socket", execution_checkpointing_dir=str(tmp_path / "weir"))

            @job.pipeline
            def lines(env: weir.Env) -> None:
                reader = (
                    env.spark.readStream.format("socket").option("host", "127.0.0.1").option("port", port)
                )
                sink = weir.sinks.files(str(tmp_path / "out"))
                env.sink("lines", env.source("lines", reader.load()), sink, at_most_once=at_most_once)

            return job

        with pytest.raises(PipelineError, match="can't be replayed"):
            pipeline(False).start(spark)
        with pipeline(True).start(spark) as run:
            peer, _ = server.accept()
            with peer:
                peer.sendall(b"one\ntwo\n")
                run.wait_for_batch("lines", 0)
            run.process_all()
    assert sorted(weir.read_files(str(tmp_path / "out")).pandas()["value"]) == ["one", "two"]

"""What Spark will run for a streaming frame that has not started: asked of Spark's own planner.

The plan is made as `MicroBatchExecution` makes it for the first batch of a query, over sources that
are never opened. While it plans, Spark itself writes the metadata and the schemas of its stateful
operators into the place that is given as the checkpointLocation: a folder that nobody else uses.
No batch is run, no row is read. The classes are private to Spark; `tests/integration/test_planned.py`
compares the answer with what a query writes that really runs, per version of Spark.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.ids import NO_BATCH, BatchId
from weir.protocol.shape import PlannedSource
from weir.spark import cut, fingerprints
from weir.spark.closure import closure
from weir.spark.fingerprints import Fingerprint, Texts, sequence
from weir.spark.logs import PARTITIONS, OperatorEntry
from weir.storage import files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RUNTIME = "org.apache.spark.sql.execution.streaming.runtime"
_WRITER = "org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter"
_STATE_PARTITIONS = "spark.sql.streaming.internal.stateStore.partitions"
_AS_A_STREAM = {
    "spark.sql.cbo.enabled": "false",
    "spark.sql.requireAllClusterKeysForDistribution": "false",
    "spark.sql.debug.maxToStringFields": "10000",
}
"""The first two as Spark sets them for every streaming query; the last one so that texts are complete."""


@dataclass(frozen=True)
class PlannerAnswer:
    """What the planner says of a frame; the descriptions of its operators are in the folder."""

    operators: Mapping[int, Fingerprint]
    """By operator id, in order."""
    sources: tuple[PlannedSource, ...]
    """In the order of Spark's offset log."""
    older: Mapping[str, str]
    """See `Shape.older`."""


def ask(
    frame: DataFrame, output_mode: str, folder: Path, pinned: Mapping[str, str] | None = None
) -> PlannerAnswer:
    """Plan the first batch of a streaming frame; the folder must be empty, and gets Spark's files.

    `pinned` are the settings that the offset log of the query fixes, where it has one; without them
    those of the session count, as for a new query.
    """
    with _planning(frame, output_mode, folder, NO_BATCH, pinned) as execution:
        operators = _stateful(execution.executedPlan(), execution)
        texts = Texts(execution.optimizedPlan(), _jvm(frame))
        prints = {id: texts.fingerprint(operators[id]) for id in sorted(operators)}
        streams = fingerprints.sources(frame._jdf.queryExecution().analyzed())
        used = list(texts.used(execution.optimizedPlan()))
    if len(used) != len(streams):  # Spark left one out that can't give a row
        used = [()] * len(streams)
    sources = (
        PlannedSource(name=name, used=lines, folder=folder)
        for (name, folder), lines in zip(streams, used, strict=True)
    )
    return PlannerAnswer(prints, tuple(sources), texts.older)


def refusal(frame: DataFrame, output_mode: str, root: Path, batch: BatchId) -> str:
    """Why Spark would not resume with this frame after a committed batch of `root`; "" when it would.

    Spark itself compares operators and schemas, on copies of their descriptions in a temporary folder:
    a start that it refuses would have left a planned batch.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415  only with a JVM

    with tempfile.TemporaryDirectory(prefix="weir-plan-") as name:
        folder = Path(name)
        for path in closure(root, batch).files:
            if path.startswith("state/") and not cut.is_state(path):
                data = (root / path).read_bytes()
                described = OperatorEntry.parse(data).moved(folder).data if cut.is_operator(path) else data
                files.put(folder / path, described)
        try:
            with _planning(frame, output_mode, folder, batch, cut.conf_of(root, batch)) as execution:
                execution.executedPlan()
        except PySparkException as error:
            return str(error).partition("\n")[0]
    return ""


def settings_of_a_new_query(spark: SparkSession) -> dict[str, Any]:
    """What Spark writes in front of the first offsets of a query that is new in this session."""
    session = _session(spark._jsparkSession)
    log: Any = spark._jvm.org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata  # type: ignore[union-attr]
    settings: dict[str, Any] = json.loads(log.apply(0, 0, session.conf()).json())
    settings["conf"] = {key: value for key, value in settings["conf"].items() if value is not None}
    return settings


@contextmanager
def _planning(
    frame: DataFrame, output_mode: str, folder: Path, last: BatchId, pinned: Mapping[str, str] | None
) -> Iterator[Any]:
    """A plan of the batch after `last`, in a session of its own; it is made when it is asked for."""
    jvm = _jvm(frame)
    session = _session(frame._jdf.sparkSession())
    log = jvm.org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata
    if pinned is not None:
        stored = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": dict(pinned)}
        log.setSessionConf(log.apply(json.dumps(stored)), session.sessionState().conf())
    # Spark looks here for the batches whose operators it reads and describes.
    (folder / "offsets").mkdir(parents=True, exist_ok=True)
    (folder / f"offsets/{last + 1}").touch()
    arguments = [
        session,
        frame._jdf.queryExecution().analyzed(),
        getattr(jvm.org.apache.spark.sql.streaming.OutputMode, output_mode.capitalize())(),
        f"file:{folder.absolute()}/state",
        jvm.java.util.UUID.randomUUID(),
        jvm.java.util.UUID.randomUUID(),
        last + 1,
        jvm.scala.Option.empty(),
        log.apply(0, 0, session.conf()),
        getattr(jvm, _RUNTIME).WatermarkPropagator.noop(),
        True,  # the first batch of a start: operators are described and checked
        jvm.scala.collection.mutable.HashMap(),
        jvm.scala.collection.mutable.HashMap(),
        jvm.org.apache.spark.sql.execution.CommandExecutionMode.SKIP(),
        False,  # no trigger that ends
        False,  # no real-time mode, which Spark 4.2 does not have here
    ]
    kind = jvm.java.lang.Class.forName(f"{_RUNTIME}.IncrementalExecution")
    takes = len(kind.getConstructors()[0].getParameterTypes())
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(session)
    try:
        yield getattr(jvm, _RUNTIME).IncrementalExecution(*arguments[:takes])
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _session(of: Any) -> Any:
    """A session like this one, with the settings that Spark makes for every streaming query."""
    session = of.cloneSession()
    for key, value in _AS_A_STREAM.items():
        session.conf().set(key, value)
    session.conf().set(_STATE_PARTITIONS, session.conf().get(PARTITIONS))
    return session


def _stateful(plan: Any, execution: Any) -> dict[int, Any]:
    """The operators of a physical plan that write state, by their ids."""
    loader = execution.getClass().getClassLoader()
    writer = loader.loadClass(_WRITER)
    operators: dict[int, Any] = {}
    todo = [plan]
    while todo:
        node = todo.pop()
        if writer.isInstance(node):
            operators[int(node.getStateInfo().operatorId())] = node
        todo += sequence(node.children())
    return operators


def _jvm(frame: DataFrame) -> Any:
    return frame.sparkSession._jvm

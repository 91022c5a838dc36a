"""What weir reads of a frame's plan and of an unstarted writer, and what Spark will run. No row is read."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.protocol.operators import Operator
from weir.protocol.shape import PlannedOperator, Shape
from weir.spark import planner as operators
from weir.spark.fingerprints import Fingerprint, leaves, options_of
from weir.spark.logs import OperatorEntry
from weir.spark.state_schema import described

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter


_RELATION = "StreamingRelationV2"
_OLDER_RELATION = "StreamingRelation"
_SPARKS_SOCKET = "org.apache.spark.sql.execution.streaming.sources.TextSocketTable"
OWN = "weir."
"""How the classes of weir's own sources begin."""
_REPLAYABLE = (
    OWN,
    "org.apache.spark.sql.execution.streaming.sources.Rate",
    "org.apache.spark.sql.kafka010.",
    # files, whose log Spark keeps; and Python data sources, in its v2: to replay is their contract
    "org.apache.spark.sql.execution.datasources.",
    "org.apache.spark.sql.avro.",
    "org.apache.spark.sql.hive.orc.",
    "org.apache.spark.sql.delta.",
    "org.apache.iceberg.",
)
"""How the classes of tables and sources begin whose streams read the same again from the same offsets."""
_FILES = (
    "org.apache.spark.sql.execution.datasources.",
    "org.apache.spark.sql.avro.",
    "org.apache.spark.sql.hive.orc.",
)
_PYTHON = "org.apache.spark.sql.execution.datasources.v2.python."


class Replayable(Enum):
    """Whether what a batch has read can be read again after a crash, as exactly-once needs it."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    """A source of somebody else's: weir takes it as it is, and reports that."""


@dataclass(frozen=True)
class FrameStream:
    """One stream that a frame reads."""

    table: str
    """The class of its table; of its source, when that is of Spark's older kind."""
    location: str
    """The option of this name, by which weir's own sources are distinguished; or ""."""
    cleans: str = ""
    """What Spark is asked to do with files that it has read: archive or delete; "" for nothing."""

    @property
    def replay(self) -> Replayable:
        """By the class, whatever name the source was asked for by."""
        if self.table == _SPARKS_SOCKET:
            return Replayable.NO
        return Replayable.YES if self.table.startswith(_REPLAYABLE) else Replayable.UNKNOWN

    @property
    def is_files(self) -> bool:
        """Whether it reads the files of a folder: all of them, whenever it begins."""
        return self.table.startswith(_FILES) and not self.table.startswith(_PYTHON)


def streams(frame: DataFrame) -> list[FrameStream]:
    """The streams at the leaves of the analyzed plan."""
    read = []
    for leaf in leaves(frame):
        kind = leaf.getClass().getSimpleName()
        if kind == _RELATION:
            location = leaf.extraOptions().get("location") or ""
            read.append(FrameStream(leaf.table().getClass().getName(), location))
        elif kind == _OLDER_RELATION:
            source, options = leaf.dataSource().providingClass().getName(), options_of(leaf)
            cleans = options.get("cleansource", "").lower()
            location = options.get("location", "")
            read.append(FrameStream(source, location, "" if cleans == "off" else cleans))
    return read


# What weir reads of an unstarted writer of Spark's, and a guard against writers that are started past
# weir.
#
# What is read are fields of the Java object that the writer wraps.


ASYNC_PROGRESS = "asyncProgressTrackingEnabled"
CHECKPOINT_LOCATION = "checkpointLocation"
_BOUNDED = {"AvailableNowTrigger$", "OneTimeTrigger$"}
_TRIGGERS = {"ContinuousTrigger": "continuous", "RealTimeTrigger": "realTime"}


def format_of(writer: DataStreamWriter) -> str:
    """The name of the sink's format; "" when none was given."""
    return str(_field(writer, "source") or "")


def option_of(writer: DataStreamWriter, name: str) -> str:
    """One option of the sink, or ""."""
    option = _field(writer, "extraOptions").get(name)
    return str(option.get()) if option.isDefined() else ""


def output_mode_of(writer: DataStreamWriter) -> str:
    """The output mode that it was given."""
    return str(_field(writer, "outputMode").toString()).lower()


@contextmanager
def none_started(refusal: Callable[[str], Exception]) -> Iterator[None]:
    """Inside, a writer that this thread starts raises what `refusal` makes of the method's name.

    Nothing has been started then. Other threads, in which weir starts its queries, are not affected.
    """
    from pyspark.sql.streaming import DataStreamWriter  # noqa: PLC0415

    thread = threading.get_ident()
    methods = {name: getattr(DataStreamWriter, name) for name in ("start", "toTable")}

    def guarded(name: str, method: Any) -> Any:
        def call(writer: Any, *args: Any, **options: Any) -> Any:
            if threading.get_ident() == thread:
                raise refusal(name)
            return method(writer, *args, **options)

        return call

    for name, method in methods.items():
        setattr(DataStreamWriter, name, guarded(name, method))
    try:
        yield
    finally:
        for name, method in methods.items():
            setattr(DataStreamWriter, name, method)


def trigger_without_batches(writer: DataStreamWriter) -> str:
    """`continuous` or `realTime`, when the writer has such a trigger; else ""."""
    return _TRIGGERS.get(_trigger(writer), "")


def is_bounded(writer: DataStreamWriter) -> bool:
    """Whether its query ends by itself, with what is there when it starts."""
    return _trigger(writer) in _BOUNDED


def _trigger(writer: DataStreamWriter) -> str:
    return str(_field(writer, "trigger").getClass().getSimpleName())


def _field(writer: DataStreamWriter, name: str) -> Any:
    java: Any = writer._jwrite
    field = java.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(java)


# The shape of a query that has not started, as Spark plans it.
#
# Nothing of the user's data is read, and nothing is written but into a temporary folder, which is gone
# afterwards. What Spark wrote there is what a new operator needs to be described with.


_LIMIT = "globalLimit"


@dataclass(frozen=True)
class PlannedQuery:
    """A query as Spark will run it."""

    shape: Shape
    files: Mapping[str, bytes]
    """What Spark would write to describe its operators, by the path in the checkpointLocation."""


def planned(
    frame: DataFrame, output_mode: str, pinned: Mapping[str, str] | None = None, sink: str = ""
) -> PlannedQuery:
    """What Spark will run for a streaming frame.

    `pinned` are the settings of the query's offset log, when it resumes from one.
    """
    with tempfile.TemporaryDirectory(prefix="weir-plan-") as name:
        folder = Path(name)
        answer = operators.ask(frame, output_mode, folder, pinned)
        # without Hadoop's checksums, which are not needed and would name another place
        written = [path for path in (folder / "state").rglob("*") if path.is_file() and path.suffix != ".crc"]
        files = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(written)}
    facts = {one.id: one for one in described(dict.fromkeys(files, 0), files.__getitem__)}
    shape = Shape(
        operators=tuple(_operator(facts[id], found, files) for id, found in answer.operators.items()),
        sources=answer.sources,
        sink=sink,
        spark=frame.sparkSession.version,
        older=dict(answer.older),
    )
    return PlannedQuery(shape, files)


def _operator(facts: Operator, found: Fingerprint, files: Mapping[str, bytes]) -> PlannedOperator:
    description = next(path for path in files if path.startswith(f"state/{facts.id}/_metadata/"))
    stores = OperatorEntry.parse(files[description]).stores
    return PlannedOperator(
        **facts.model_dump(exclude={"partitions", "bytes"}),
        partitions=1 if _in_one_partition(facts) else int(stores[0]["numPartitions"]),
        keys=found.keys,
        computes=found.computes,
        reads=found.reads,
        sources=found.sources,
    )


def _in_one_partition(operator: Operator) -> bool:
    """A limit and an aggregate without keys are never shuffled, whatever the parallelism."""
    keys = [store.key_schema["fields"] for store in operator.stores if store.key_schema is not None]
    return operator.kind == _LIMIT or (bool(keys) and not any(keys))

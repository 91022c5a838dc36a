"""What weir reads of a frame's plan: which streams it reads. Nothing is evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RELATION = "StreamingRelationV2"
_OLDER_RELATION = "StreamingRelation"
_SPARKS_SOCKET = "org.apache.spark.sql.execution.streaming.sources.TextSocketTable"
_REPLAYABLE = (
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


class Replay(Enum):
    """Whether what a batch has read can be read again after a crash, as exactly-once needs it."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    """A source of somebody else's: weir takes it as it is, and says so."""


@dataclass(frozen=True)
class Stream:
    """One stream that a frame reads."""

    table: str
    """The class of its table; of its source, when that is of Spark's older kind."""
    location: str
    """The option of this name, by which weir's own sources are told apart; or ""."""
    cleans: str = ""
    """What Spark is told to do with files that it has read: archive or delete; "" for nothing."""

    @property
    def replay(self) -> Replay:
        """Told by the class, by whatever name the source was asked for."""
        if self.table == _SPARKS_SOCKET:
            return Replay.NO
        return Replay.YES if self.table.startswith(_REPLAYABLE) else Replay.UNKNOWN

    @property
    def is_files(self) -> bool:
        """Whether it reads the files of a folder: all of them, whenever it begins."""
        return self.table.startswith(_FILES) and not self.table.startswith(_PYTHON)


def streams(frame: DataFrame) -> list[Stream]:
    """The streams at the leaves of the analyzed plan."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    found = []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        kind = leaf.getClass().getSimpleName()
        if kind == _RELATION:
            location = leaf.extraOptions().get("location") or ""
            found.append(Stream(leaf.table().getClass().getName(), location))
        elif kind == _OLDER_RELATION:
            source = leaf.dataSource()
            found.append(Stream(source.providingClass().getName(), "", _cleans(source.options())))
    return found


def _cleans(options: Any) -> str:
    """The option cleanSource, whatever its case, as Spark looks for it."""
    keys = options.keys().toSeq()
    for number in range(keys.size()):
        key = keys.apply(number)
        if key.lower() == "cleansource":
            value = str(options.apply(key)).lower()
            return "" if value == "off" else value
    return ""

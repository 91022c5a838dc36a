"""What weir reads of a frame's plan: which streams it reads. Nothing is evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RELATION = "org.apache.spark.sql.catalyst.streaming.StreamingRelationV2"
_SPARKS_SOCKET = "org.apache.spark.sql.execution.streaming.sources.TextSocketTable"
_REPLAYABLE = (
    "org.apache.spark.sql.execution.streaming.sources.Rate",
    "org.apache.spark.sql.execution.datasources.v2.",  # Python data sources: to replay is their contract
    "org.apache.spark.sql.kafka010.",
)
"""How the classes of tables begin whose streams read the same again from the same offsets."""


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
    """The class of its table."""
    location: str
    """The option of this name, by which weir's own sources are told apart; or ""."""

    @property
    def replay(self) -> Replay:
        """Told by the class, by whatever name the source was asked for."""
        if self.table == _SPARKS_SOCKET:
            return Replay.NO
        return Replay.YES if self.table.startswith(_REPLAYABLE) else Replay.UNKNOWN


def streams(frame: DataFrame) -> list[Stream]:
    """The streams at the leaves of the analyzed plan, without files and others of Spark's older kind.

    Those can be replayed: Spark keeps a log of what they have read.
    """
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    found = (leaves.apply(number) for number in range(leaves.size()))
    return [
        Stream(leaf.table().getClass().getName(), leaf.extraOptions().get("location") or "")
        for leaf in found
        if leaf.getClass().getName() == _RELATION
    ]

"""What weir reads of a frame's plan: which streams it reads. Nothing is evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RELATION = "org.apache.spark.sql.catalyst.streaming.StreamingRelationV2"
_SPARKS_SOCKET = "org.apache.spark.sql.execution.streaming.sources.TextSocketTable"


@dataclass(frozen=True)
class Stream:
    """One stream that a frame reads."""

    table: str
    """The class of its table."""
    location: str
    """The option of this name, by which weir's own sources are told apart; or ""."""

    @property
    def sparks_socket(self) -> bool:
        """Whether it is Spark's own socket source, by whatever name it was asked for."""
        return self.table == _SPARKS_SOCKET


def streams(frame: DataFrame) -> list[Stream]:
    """The streams at the leaves of the analyzed plan, without files and others of Spark's older kind."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    found = (leaves.apply(number) for number in range(leaves.size()))
    return [
        Stream(leaf.table().getClass().getName(), leaf.extraOptions().get("location") or "")
        for leaf in found
        if leaf.getClass().getName() == _RELATION
    ]

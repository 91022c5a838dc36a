"""Sinks for looking: the console and a table in memory. At least once, nothing is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming import DataStreamWriter


@dataclass(frozen=True)
class ConsoleSink:
    """Prints each batch on the driver's standard output, which `weir run` shows."""

    rows: int
    truncate: bool

    def describe(self) -> str:
        return "console"

    def attach(self, writer: DataStreamWriter) -> DataStreamWriter:
        return writer.format("console").option("numRows", self.rows).option("truncate", self.truncate)


@dataclass(frozen=True)
class MemorySink:
    """Keeps all rows in a temporary table of the driver's session, named after the query."""

    def describe(self) -> str:
        return "memory"

    def attach(self, writer: DataStreamWriter) -> DataStreamWriter:
        return writer.format("memory")


def console(rows: int = 20, *, truncate: bool = True) -> ConsoleSink:
    """Show the rows of each batch; a batch that is run again is shown again."""
    return ConsoleSink(rows, truncate)


def memory() -> MemorySink:
    """Keep the rows in memory, to be read with `spark.table(<query>)`; gone with the driver.

    Spark can't restart such a query from its checkpoint in every output mode; it is for looking.
    """
    return MemorySink()

"""Can the state at a place be loaded? Spark loads every store of every query, and reads every row.

Files that are as they were written may still be of no use: damaged before they were kept, or by a fault of
Spark's own. What can't be loaded is reported store by store. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from zipfile import BadZipFile

from pyspark.sql import SparkSession

from weir.protocol.operators import Operator, StateStore
from weir.spark import content, cut
from weir.spark.closure import GoneError
from weir.spark.reshape import LIMIT, backend_of
from weir.spark.state_schema import operators
from weir.state.point import Scratch, StatePoint, queries
from weir.state.read import session_for


@dataclass(frozen=True)
class Loaded:
    """What became of it."""

    rows: int
    damage: tuple[str, ...]
    """What could not be loaded, and what is not as it was counted when it was kept."""
    left_out: tuple[str, ...]
    """What Spark's reader can't look into."""


def load(
    spark: SparkSession, path: str, scratch: Scratch, known: Mapping[str, Mapping[int, int]] | None = None
) -> Loaded:
    """Load all state at a place: a savepoint, a checkpoint, or the live files of a job.

    `known` are the rows that each operator of each query had, where somebody counted them. Raises
    `StateNotReadableError` when there is no such place.
    """
    rows, damage, left_out = 0, [], []
    for query, files in queries(path).items():
        root, batch = files(scratch)
        if batch < 0:
            continue
        try:
            point = StatePoint(path, query, root, batch, operators(root, batch))
        except (GoneError, ValueError, KeyError, IndexError, BadZipFile) as error:
            damage.append(f"query {query} can't be read: {_first_line(error)}")
            continue
        for operator in point.operators:
            name = f"query {query}, operator {operator.id} ({operator.kind})"
            if operator.kind == LIMIT:
                left_out.append(name)
                continue
            try:
                counted = [_rows(spark, point, operator, store, scratch) for store in operator.stores]
            except Exception as error:  # whatever Spark says: it can't be loaded
                damage.append(f"{name} can't be loaded: {_first_line(error)}")
                continue
            rows += sum(counted)
            expected = (known or {}).get(query, {}).get(operator.id)
            if expected is not None and _plain(operator) and sum(counted) != expected:
                damage.append(f"{name} has {sum(counted)} rows instead of {expected}")
    return Loaded(rows, tuple(damage), tuple(left_out))


def _rows(
    spark: SparkSession, point: StatePoint, operator: Operator, store: StateStore, scratch: Scratch
) -> int:
    view = cut.lay_out(point.root, point.batch, scratch() / "view")
    session = session_for(spark, view, point.batch)
    rocksdb = backend_of(cut.conf_of(view, point.batch)) == "rocksdb"
    frame = (content.bytes_of if rocksdb else content.typed)(
        session, view, point.batch, operator.id, store.name
    )
    measures = content.measures_of_bytes() if rocksdb else content.measures_of_typed(frame)
    return content.measured(frame, measures).rows


def _plain(operator: Operator) -> bool:
    """Whether Spark counts its rows as they are stored; of several stores or families it counts some."""
    return len(operator.stores) == 1 and len(operator.stores[0].families) <= 1


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__

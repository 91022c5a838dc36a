"""State with other rows: a new savepoint of an old one, in which keys are deleted, replaced or seeded.

The edited operator is rewritten as `spark/rewrite.py` writes state: read back and compared. All else
is copied. The old savepoint stays as it is. What a kind of operator does not allow is refused by name,
before anything is written. An operator that the savepoint has not, and a changed job file has, comes by
`weir savepoint convert`.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession

from weir.errors import StateNotRewritableError
from weir.ids import BatchId
from weir.protocol.operators import Operator
from weir.savepoint.manifest import Savepoint
from weir.savepoint.place import SavepointPlace
from weir.savepoint.write import check_target, remake
from weir.spark import cut
from weir.spark.logs import PARTITIONS
from weir.spark.reshape import backend_of
from weir.spark.rewrite import Rewritten, rewrite
from weir.spark.state_schema import operators
from weir.state.changes import Changes
from weir.state.point import StatePoint, locate
from weir.state.read import scratch


@dataclass(frozen=True)
class Edited:
    """A new savepoint, and what has become of the operator in it."""

    place: str
    before: int
    """How many rows its stores had."""
    after: int
    """How many they have now."""


def edit(
    spark: SparkSession,
    path: str | Path,
    target: str | Path,
    query: str | None = None,
    operator: int = 0,
    *,
    delete: str | Column | None = None,
    replace: DataFrame | None = None,
    seed: DataFrame | None = None,
) -> Edited:
    """Make a new savepoint in the folder `target`, in which the state of one operator is edited.

    One of: `delete` is a condition over the columns `key` and `value` that `weir.state.read` gives; of a
    join and of transformWithState a key is deleted with all its rows, so it may only name `key`. `replace`
    has new values for keys that are there, `seed` all rows of an operator that has none; both are frames with
    `key` and `value` as `read` gives them, or with the columns of both by their names.

    Raises `StateNotRewritableError` for what can't be done, before anything is written; then, and when
    it fails, nothing is left in `target`.
    """
    place = SavepointPlace(str(path))
    savepoint = place.read()
    begun = time.monotonic()
    name = f"{savepoint.name}-edited"
    check_target(savepoint, str(target), name)
    point = locate(str(path), query, lambda: scratch(spark, Path(str(target))))
    folder = scratch(spark, Path(str(target)))
    try:
        changes = Changes(spark, point, point.operator(operator), folder / "rows")
        if delete is not None and replace is None and seed is None:
            wanted = changes.without(delete)
        elif replace is not None and delete is None and seed is None:
            wanted = changes.replaced(replace)
        elif seed is not None and delete is None and replace is None:
            wanted = changes.seeded(seed)
        else:
            reason = "give exactly one of delete, replace and seed"
            raise StateNotRewritableError(
                query=point.query, reason=reason, todo="to do two of them, edit twice"
            )
        conf = cut.conf_of(point.root, point.batch)
        made = rewrite(
            spark,
            point.root,
            folder / point.query,
            point.batch,
            point.operators,
            partitions=int(conf[PARTITIONS]),
            backend="rocksdb" if backend_of(conf) == "rocksdb" else "hashmap",
            changes=wanted,
        )
        new = _with(savepoint, point, operator, made, folder / point.query)
        rewritten = {point.query: folder / point.query}
        done = remake(place, new, str(target), name, rewritten, begun)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Edited(done, changes.before, made.rows)


def _with(savepoint: Savepoint, point: StatePoint, edited: int, made: Rewritten, root: Path) -> Savepoint:
    """What the new savepoint says of itself."""
    query = savepoint.queries[point.query]
    rows = {one.id: one.rows for one in query.operators}
    described = operators(root, BatchId(query.batch))
    now = tuple(one.model_copy(update={"rows": _rows(one, edited, made, rows)}) for one in described)
    queries = {**savepoint.queries, point.query: query.model_copy(update={"operators": now})}
    return savepoint.model_copy(update={"queries": queries, "trigger": "edit"})


def _rows(operator: Operator, edited: int, made: Rewritten, before: dict[int, int | None]) -> int | None:
    """Rows as Spark counts them; of several stores or column families it counts only some."""
    plain = len(operator.stores) == 1 and len(operator.stores[0].families) == 1
    if operator.id == edited:
        return made.rows if plain else None
    return before.get(operator.id)

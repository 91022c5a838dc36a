"""Make what Spark will find in the new generation of the files of a query that changes.

The files of the point were brought aside; what Spark will find is made of them (`spark/relocate.py`,
`spark/rewrite.py`), and appears complete. Which queries change, and how, the plan says (`plan.py`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from weir.errors import SurgeryError
from weir.ids import BatchId
from weir.job.env import QuerySpec
from weir.protocol.offsets import SourcePosition
from weir.protocol.restore_plan import PlanPart, QueryPlan, RestorePlan
from weir.protocol.shape import Shape
from weir.savepoint.query_change import Before
from weir.spark.frame_plan import PlannedQuery, output_mode_of
from weir.spark.logs import PARTITIONS
from weir.spark.planner import refusal
from weir.spark.relocate import Other, begin, operate
from weir.spark.reshape import backend_of
from weir.spark.source_positions import up_to
from weir.spark.state_schema import operators
from weir.storage import files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weir.spark.session import Backend


@dataclass(frozen=True)
class Conversion:
    """The change of one query's files."""

    plan: RestorePlan
    query: QueryPlan
    queries: Mapping[str, Before]
    """Of the point."""
    batch: BatchId
    batches: Mapping[str, BatchId]
    """Of the queries of the point that it takes anything from."""
    spec: QuerySpec
    planned: PlannedQuery
    positions: Mapping[int, SourcePosition]

    @property
    def before(self) -> Before:
        """What it was, or what it begins with."""
        return self.queries.get(self.query.base, Before(Shape()))

    @property
    def reads(self) -> frozenset[str]:
        """The queries of the point whose files it is made of."""
        return frozenset(filter(None, (self.query.base, *self.batches)))

    @property
    def facts(self) -> tuple[object, ...]:
        """All that the files depend on that are made."""
        positions, state = sorted(self.positions.items()), (self._partitions, self._backend)
        return (self.query.model_dump_json(), self.planned.shape.model_dump_json(), positions, state)

    @property
    def operates(self) -> bool:
        moved = self.query.operators_change or self.query.sources_change
        return moved or self.query.base not in ("", self.query.name) or self.query.begins_set

    @property
    def rewrites(self) -> bool:
        if not self.before.conf:
            return False
        stays = self._partitions == int(self.before.conf[PARTITIONS]) and self._backend == backend_of(
            self.before.conf
        )
        return bool(self.planned.shape.operators) and (not stays or bool(self._converted))

    def do(self, spark: SparkSession, aside: Path, queries: Path, check: Callable[[], None]) -> None:
        """From the files that were brought aside to the query's own folder, which appears complete."""
        name = self.query.name
        brought, half, done = (
            aside / (self.query.base or f"{name}.begun"),
            aside / f"{name}.operated",
            queries / name,
        )
        renumbered = aside / f"{name}.others"
        left_over = [half, renumbered, done] + ([] if self.query.base else [brought])
        for left in left_over:  # of a try that was killed, perhaps with another code
            _remove(left, aside, check)
        queries.mkdir(parents=True, exist_ok=True)
        if not self.query.base:
            begin(spark, brought, len(self.query.sources))
        here = brought
        if self.operates or not self.rewrites:
            here = half if self.rewrites else done
            self._operate(spark, brought, here, self._others(spark, aside, renumbered))
        if self.rewrites:
            self._rewrite(spark, here, done)
        refused = refusal(self.spec.plan, output_mode(self.spec), done, self.batch)
        if refused:
            raise SurgeryError(query=name, batch=int(self.batch), reason=f"Spark would refuse it: {refused}")

    def _others(self, spark: SparkSession, aside: Path, folder: Path) -> list[Other]:
        """What comes of other queries, their state at the batch of this one."""
        from weir.spark.rewrite import rewrite  # noqa: PLC0415  loads pyarrow

        found = []
        for name in sorted(self.batches.keys() - {self.query.base}):
            read, batch, moves = aside / name, self.batches[name], self.query.taken.get(name, {})
            state = read
            if moves and batch != self.batch:
                alone, state = folder / f"{name}.alone", folder / name
                folder.mkdir(parents=True, exist_ok=True)
                operate(spark, read, alone, batch, moves={at: at for at in moves})
                conf = self.queries[name].conf
                partitions, backend = int(conf[PARTITIONS]), cast("Backend", backend_of(conf))
                there = operators(alone, batch)
                rewrite(
                    spark, alone, state, batch, there, partitions=partitions, backend=backend, to=self.batch
                )
            sources = {
                number: at
                for number, at in enumerate(self.query.sources)
                if at is not None and self.query.origins.get(number) == name
            }
            folders = {number: self.query.folders[number] for number in sources}
            found.append(Other(state, moves, read, batch, sources, folders))
        return found

    def _operate(self, spark: SparkSession, read: Path, write: Path, others: Sequence[Other]) -> None:
        elsewhere = {number for number, of in self.query.origins.items() if of != self.query.base}
        order = [None if number in elsewhere else at for number, at in enumerate(self.query.sources)]
        by_place = (self.query.sources_change or not self.query.base) and not self.query.all_named
        operate(
            spark,
            read,
            write,
            self.batch,
            moves=self.query.moves,
            added=[one for one in self.planned.shape.operators if one.id in self.query.added],
            descriptions=self.planned.files,
            sources=order if by_place else None,
            names=self.query.names,
            ends=self.query.ends,
            logs=self._logs(read),
            folders={number: one for number, one in self.query.folders.items() if number not in elsewhere},
            others=others,
        )

    def _logs(self, read: Path) -> dict[int, bytes]:
        """What the sources that the user sets count as read, by folder, where they had read other things."""
        folders = {
            part.new: part.new if part.folder is None else part.folder
            for part in self.query.of("source")
            if part.new is not None
        }
        found = {folders[number]: one.log for number, one in self.positions.items() if one.log is not None}
        for number, one in self.positions.items():
            if one.until is not None:
                was, now = self.query.folders[number]
                found[now] = up_to(read / f"sources/{was}", one.until)
        return found

    def _rewrite(self, spark: SparkSession, read: Path, write: Path) -> None:
        from weir.spark.convert import convert_state  # noqa: PLC0415  loads pyarrow and pandas
        from weir.spark.rewrite import rewrite  # noqa: PLC0415  loads pyarrow

        there = operators(read, self.batch)
        new = {one.id: one for one in self.planned.shape.operators}
        changes = {}
        for part in self._converted:
            assert part.old is not None and part.new is not None, "only state that is kept is converted"
            shape = self.queries[part.of or self.query.base].shape
            (old,) = (operator for operator in shape.operators if operator.id == part.old)
            changes[part.new, "default"] = convert_state(
                old, new[part.new], self._partitions, reshape=part.reshape, rekey=part.rekey
            )
        rewrite(
            spark,
            read,
            write,
            self.batch,
            there,
            partitions=self._partitions,
            backend=self._backend,
            changes=changes,
        )

    @property
    def _converted(self) -> list[PlanPart]:
        return [part for part in self.query.of("operator") if part.reshape or part.rekey]

    @property
    def _partitions(self) -> int:
        return self.plan.parallelism or int(self.before.conf.get(PARTITIONS, 0))

    @property
    def _backend(self) -> Backend:
        there = backend_of(self.before.conf) if self.before.conf else ""
        return "hashmap" if (self.plan.backend or there) == "hashmap" else "rocksdb"


def _remove(left: Path, aside: Path, check: Callable[[], None]) -> None:
    """Remove what a killed try left: it goes aside in one step, right after the check."""
    check()
    if left.exists():
        gone = files.beside(aside / left.name)
        os.rename(left, gone)
        shutil.rmtree(gone, ignore_errors=True)


def output_mode(spec: QuerySpec) -> str:
    """The output mode of a query, whoever has set it."""
    return spec.output_mode if spec.writer is None else output_mode_of(spec.writer)

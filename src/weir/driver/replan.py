"""Going on from a point with a job that may have changed: the restore plan, and carrying it out.

The plan is made before anything is written: it asks Spark's planner what each query is now, and
compares that with what the point has. Then the files of a query that must change are brought aside,
and what Spark will find in the new generation is made of them (`spark/surgery.py`, `spark/rewrite.py`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from weir import faults
from weir.channel.position import Mode
from weir.checkpoint.restore import Changes
from weir.driver.about import delivers, saved_sink
from weir.errors import ChangedQueryError, RestorePlanError, SurgeryError
from weir.ids import NO_BATCH, Attempt, BatchId, QueryName
from weir.job import graph
from weir.job.live import Live
from weir.job.shape import Planned, planned
from weir.protocol import offsets
from weir.protocol.offsets import Position
from weir.protocol.shapes import Shape
from weir.savepoint import plan_text, shapes
from weir.savepoint.operators import operators
from weir.savepoint.plan import Overall, Part, QueryPlan, Refused, RestorePlan, Verdict
from weir.savepoint.planning import Before, Options, plan
from weir.savepoint.points import Point, of_live_files
from weir.spark.operators import output_mode_of, refusal
from weir.spark.positions import position, streams
from weir.spark.refusals import PARTITIONS, backend_of
from weir.storage import files
from weir.storage.open import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weir.job.job import Job
    from weir.spark.defaults import Backend

Positions = Mapping[str, Mapping[int, Position]]
_ASIDE = "aside"
"""Below the generation: the files of a point that must be made anew, until that is done."""


@dataclass(frozen=True)
class Replan:
    """A plan, and all that it takes to carry it out."""

    point: Point
    plan: RestorePlan
    specs: Mapping[QueryName, graph.QuerySpec]
    planned: Mapping[QueryName, Planned]
    positions: Positions = field(default_factory=dict)
    """Sources that go on where the user says, by query and number."""
    as_it_is: bool = False
    """The files go on as they are, whatever the plan says: the code is the one that they were made by."""

    def is_plain(self, version: str, changes: Changes) -> bool:
        """Whether the point was taken of the very same job file, and nothing is to be another."""
        made_by = {before.shape.job for before in self.point.queries.values()}
        same = Changes(parallelism=self.point.manifest.parallelism, backend=self.point.manifest.backend)
        return bool(version) and made_by == {version} and replace(changes, claim=False) == same

    def check(self, job: str) -> None:
        """Raise `RestorePlanError` when it does not fit; nothing was written so far."""
        if self.plan.overall is not Overall.FITS:
            refused = (part.why for part in self.plan.parts if part.what == "sink" and part.why)
            reason = "; ".join([plan_text.summary(self.plan), *dict.fromkeys(refused)])
            raise RestorePlanError(job=job, point=self.point.name, reason=reason)

    @property
    def changes_nothing(self) -> bool:
        """Whether every query goes on as it is."""
        kept = {(Verdict.KEPT,)}
        return all(query.there and query.wanted for query in self.plan.queries) and all(
            part.verdicts in kept for part in self.plan.parts
        )

    def has_new_sink(self, query: QueryName) -> bool:
        """Whether what it delivers goes to another place than before."""
        return any(Verdict.NEW in part.verdicts for part in self.plan.query(query).of("sink"))

    @property
    def changed(self) -> frozenset[QueryName]:
        """The queries whose files must be made anew."""
        return frozenset(name for name in self.planned if self._work(name) is not None)

    def target(self, generation: Path) -> Callable[[str], Path | None]:
        """Where each file of the point goes."""
        wanted = {query.name for query in self.plan.queries if query.wanted}
        aside = self.changed

        def to(path: str) -> Path | None:
            kind, name, *_ = path.split("/")
            if name not in wanted:
                return None
            return generation / _ASIDE / path if kind == "queries" and name in aside else generation / path

        return to

    @property
    def layout(self) -> str:
        """The same for plans that make the same files of the point, and another for any other."""
        wanted = sorted(query.name for query in self.plan.queries if query.wanted)
        works = {name: work.facts for name in wanted if (work := self._work(QueryName(name))) is not None}
        return hashlib.sha256(repr((wanted, works)).encode()).hexdigest()

    def carry_out(
        self, spark: SparkSession, generation: Path, check: Callable[[], None] = lambda: None
    ) -> None:
        """Make the files of every query that changes; safe to repeat, and to be killed in.

        `check` is asked before anything is removed, and raises when the generation is another's by now.
        """
        for name in self.planned:
            work = self._work(name)
            if work is not None:
                faults.point("restore.changing")
                work.do(spark, generation / _ASIDE / "queries", generation / "queries", check)
        faults.point("restore.changed")
        check()
        shutil.rmtree(generation / _ASIDE, ignore_errors=True)

    def _work(self, name: QueryName) -> _Work | None:
        """What must be done to the files of a query; None when they stay as they are."""
        query, before = self.plan.query(name), self.point.queries.get(name)
        if self.as_it_is or before is None or not before.conf:
            return None
        batch = BatchId(self.point.manifest.queries[name].batch)
        positions = self.positions.get(name, {})
        work = _Work(self.plan, query, before, batch, self.specs[name], self.planned[name], positions)
        return work if batch != NO_BATCH and (work.operates or work.rewrites) else None


@dataclass(frozen=True)
class _Work:
    """The change of one query's files."""

    plan: RestorePlan
    query: QueryPlan
    before: Before
    batch: BatchId
    spec: graph.QuerySpec
    planned: Planned
    positions: Mapping[int, Position]

    @property
    def facts(self) -> tuple[object, ...]:
        """All that the files depend on that are made."""
        positions, state = sorted(self.positions.items()), (self._partitions, self._backend)
        return (self.query.model_dump_json(), self.planned.shape.model_dump_json(), positions, state)

    @property
    def operates(self) -> bool:
        return self.query.operators_change or self.query.sources_change

    @property
    def rewrites(self) -> bool:
        stays = self._partitions == int(self.before.conf[PARTITIONS]) and self._backend == backend_of(
            self.before.conf
        )
        return bool(self.planned.shape.operators) and (not stays or bool(self._reshaped))

    def do(self, spark: SparkSession, aside: Path, queries: Path, check: Callable[[], None]) -> None:
        """From the files that were brought aside to the query's own folder, which appears whole."""
        name = self.query.name
        brought, half, done = aside / name, aside / f"{name}.operated", queries / name
        for left in (half, done):  # of a try that was killed, perhaps with another code
            _remove(left, aside, check)
        queries.mkdir(parents=True, exist_ok=True)
        here = brought
        if self.operates:
            here = half if self.rewrites else done
            self._operate(spark, brought, here)
        if self.rewrites:
            self._rewrite(spark, here, done)
        said = refusal(self.spec.plan, _output_mode(self.spec), done, self.batch)
        if said:
            raise SurgeryError(query=name, batch=int(self.batch), reason=f"Spark would refuse it: {said}")

    def _operate(self, spark: SparkSession, read: Path, write: Path) -> None:
        from weir.spark.surgery import operate  # noqa: PLC0415  only where something changes

        operate(
            spark,
            read,
            write,
            self.batch,
            moves=self.query.moves,
            added=[one for one in self.planned.shape.operators if one.id in self.query.added],
            descriptions=self.planned.files,
            sources=self.query.sources if self.query.sources_change and not self.query.all_named else None,
            names=self.query.names,
            ends=self.query.ends,
            logs=self._logs(read),
        )

    def _logs(self, read: Path) -> dict[int, bytes]:
        """What the sources that the user sets count as read, where that is not what they had read."""
        from weir.spark.file_source import up_to  # noqa: PLC0415  only where something changes

        found = {number: one.log for number, one in self.positions.items() if one.log is not None}
        for number, one in self.positions.items():
            if one.until is not None:
                found[number] = up_to(read / f"sources/{self.query.sources[number]}", one.until)
        return found

    def _rewrite(self, spark: SparkSession, read: Path, write: Path) -> None:
        from weir.spark.convert import convert_aggregate  # noqa: PLC0415  only where something changes
        from weir.spark.rewrite import rewrite  # noqa: PLC0415

        there = operators(read, self.batch)
        old = {one.id: one for one in self.before.shape.operators}
        new = {one.id: one for one in self.planned.shape.operators}
        changes = {
            (part.new, "default"): convert_aggregate(old[part.old], new[part.new], part.reshape)
            for part in self._reshaped
            if part.old is not None and part.new is not None and part.reshape is not None
        }
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
    def _reshaped(self) -> list[Part]:
        return [part for part in self.query.of("operator") if part.reshape is not None]

    @property
    def _partitions(self) -> int:
        return self.plan.parallelism or int(self.before.conf[PARTITIONS])

    @property
    def _backend(self) -> Backend:
        return "hashmap" if (self.plan.backend or backend_of(self.before.conf)) == "hashmap" else "rocksdb"


def _remove(left: Path, aside: Path, check: Callable[[], None]) -> None:
    """Remove what a killed try left: it goes aside in one step, right behind the check."""
    check()
    if left.exists():
        gone = files.beside(aside / left.name)
        os.rename(left, gone)
        shutil.rmtree(gone, ignore_errors=True)


def make(job: Job, spark: SparkSession, live: Live, point: Point, changes: Changes, mode: Mode) -> Replan:
    """What becomes of everything that the point has; `live` is the generation that is to be.

    Evaluates the pipeline and plans each query; nothing is written, no row is read. The session must
    have the settings of state that new queries get. Raises `BadMapError` and `BadOffsetsError`.
    """
    learnt = graph.learn(job.name, job.function, spark, live)
    specs = {
        name: graph.build(job.name, job.function, spark, live, name, learnt.inputs[name], mode)
        for name in learnt.queries
    }
    found = {name: plan_query(spec, point.queries.get(name)) for name, spec in specs.items()}
    positions = _positions(changes.offsets, point, specs)
    options = Options(changes.maps, changes.allow_dropped, changes.parallelism, changes.backend, positions)
    made = plan(point.queries, {name: one.shape for name, one in found.items()}, options)
    if changes.forked_from and point.manifest.job != job.name:
        made = made.refusing(_shared(made, specs))
    return Replan(point, made, specs, found, positions)


def _shared(made: RestorePlan, specs: Mapping[QueryName, graph.QuerySpec]) -> dict[str, Refused]:
    """The queries of a fork that would deliver where the original does."""
    sinks = ((query.name, part) for query in made.queries for part in query.of("sink"))
    return {
        name: Refused(
            "a fork must not write where the original does", "give it another place in the job file"
        )
        for name, part in sinks
        if Verdict.KEPT in part.verdicts and delivers(specs[QueryName(name)])
    }


def _positions(
    given: Mapping[str, str], point: Point, specs: Mapping[QueryName, graph.QuerySpec]
) -> Positions:
    """Where the sources go on that the user sets; asks Kafka and lists files. Raises `BadOffsetsError`."""
    asked = {name: specs[QueryName(name)] for name in offsets.queries(given) if name in specs}
    there = {name: streams(spec.plan, spec.sources) for name, spec in asked.items()}
    begun = [name for name, before in point.queries.items() if before.conf]
    sources = {name: [one.about for one in found] for name, found in there.items()}
    choices = offsets.choices(given, begun, sources)
    return {
        query: {
            number: position(asked[query].plan, there[query][number], one) for number, one in said.items()
        }
        for query, said in choices.items()
    }


def plan_query(spec: graph.QuerySpec, before: Before | None) -> Planned:
    """What Spark's planner says of a query, behind what it was."""
    pinned = before.conf if before is not None and before.conf else None
    return planned(spec.plan, _output_mode(spec), pinned, sink=saved_sink(spec).description)


class Shapes:
    """What the queries of a start are, written down beside their live files."""

    def __init__(self, live: Live, attempt: Attempt, version: str) -> None:
        self._live, self._attempt, self._version = live, attempt, version

    def settle(self, specs: Iterable[graph.QuerySpec], made: Replan | None) -> None:
        """Write the shapes of all queries down, when none is refused.

        Raises `ChangedQueryError` when the live files of one are another's. As long as the job file is
        the same, a query that seems to be another goes on all the same: then its texts may differ from
        start to start, and Spark itself has the last word.
        """
        found = {
            spec.name: made.planned[spec.name].shape if made is not None else self._checked(spec)
            for spec in specs
        }
        live = self._live
        for name, shape in found.items():
            told = shape.model_copy(update={"job": self._version})
            shapes.keep(live.store, live.job, live.generation, self._attempt, name, told)

    def _checked(self, spec: graph.QuerySpec) -> Shape:
        files = self._live.files(spec.name)
        last = files.last_committed()
        kept = shapes.newest(self._live.store, self._live.job, self._live.generation, spec.name)
        if last == NO_BATCH or kept is None:
            return plan_query(spec, None).shape
        before = of_live_files(Path(local_path(self._live.query(spec.name))), last, kept)
        shape = plan_query(spec, before).shape
        made = plan({spec.name: before}, {spec.name: shape}, Options())
        changed = [part for part in made.parts if part.what != "sink" and part.verdicts != (Verdict.KEPT,)]
        if changed and kept.job != self._version:
            first = changed[0]
            what = first.why or first.verdicts[0].value
            reason = f"{first.what} {first.name}: {what}"
            raise ChangedQueryError(query=spec.name, reason=reason)
        return shape


def _output_mode(spec: graph.QuerySpec) -> str:
    return spec.output_mode if spec.writer is None else output_mode_of(spec.writer)

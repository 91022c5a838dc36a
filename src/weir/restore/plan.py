"""Going on from a point with a job that may have changed: the restore plan, and carrying it out.

The plan is made before anything is written: it asks Spark's planner what each query is now, and
compares that with what the point has. Then the files of a query that must change are brought aside,
and what Spark will find in the new generation is made of them (`spark/surgery.py`, `spark/rewrite.py`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from weir import faults
from weir.channel.position import Mode
from weir.checkpoint.restore import Changes
from weir.driver.about import JobSource, delivers, saved_sink
from weir.errors import ChangedQueryError, RestorePlanError, SurgeryError
from weir.ids import NO_BATCH, Attempt, BatchId, QueryName
from weir.job import graph
from weir.job.live import Live
from weir.job.shape import Planned, planned
from weir.job.sinks.function import FunctionSink
from weir.job.sinks.kafka import KafkaSink
from weir.protocol import offsets
from weir.protocol.offsets import Position
from weir.protocol.shapes import Shape
from weir.savepoint import maps, plan_text, shapes
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
    from weir.spark.surgery import Other

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

    def is_plain(self, source: JobSource, changes: Changes) -> bool:
        """Whether the point was taken of the very same code, and nothing is to be another, or surely is."""
        shapes = [before.shape for before in self.point.queries.values()]
        same = Changes(parallelism=self.point.manifest.parallelism, backend=self.point.manifest.backend)
        return (
            bool(source.version)
            and bool(shapes)
            and all(shape.made_by(source.version, source.code) for shape in shapes)
            and replace(changes, claim=False) == same
            and not any(part.surely_changed for part in self.plan.parts)
        )

    def check(self, job: str) -> None:
        """Raise `RestorePlanError` when it does not fit; nothing was written so far."""
        if self.plan.overall is not Overall.FITS:
            refused = (part.why for part in self.plan.parts if part.what == "sink" and part.why)
            reason = "; ".join([plan_text.summary(self.plan), *dict.fromkeys(refused)])
            raise RestorePlanError(job=job, point=self.point.name, reason=reason)

    @property
    def changes_nothing(self) -> bool:
        """Whether every query resumes as it is, and there is nothing to say about it."""
        kept = {(Verdict.KEPT,)}
        return all(query.there and query.wanted and not query.was for query in self.plan.queries) and all(
            part.verdicts in kept and not part.notes and not part.lost for part in self.plan.parts
        )

    def has_new_sink(self, query: QueryName) -> bool:
        """Whether what it delivers goes to another place than before."""
        return any(Verdict.NEW in part.verdicts for part in self.plan.query(query).of("sink"))

    def was(self, query: QueryName) -> QueryName:
        """What a query was called at the point."""
        return QueryName(self.plan.query(query).was or query)

    def cut(self, query: QueryName) -> BatchId:
        """The batch after which a query resumes; -1 for one that begins."""
        plan = self.plan.query(query)
        if plan.base:
            return BatchId(self.point.manifest.queries[plan.base].batch)
        return BatchId(0) if plan.begins_set and not self.as_it_is else NO_BATCH

    @property
    def changed(self) -> frozenset[QueryName]:
        """The queries whose files must be made again."""
        return frozenset(name for name in self.planned if self._work(name) is not None)

    @property
    def _aside(self) -> frozenset[str]:
        """The queries of the point whose files something is made of."""
        works = filter(None, map(self._work, self.planned))
        return frozenset(name for work in works for name in work.reads)

    def target(self, generation: Path) -> Callable[[str], Path | None]:
        """Where each file of the point goes."""
        now = {query.was or query.name: query.name for query in self.plan.queries if query.wanted}
        aside = self._aside

        def to(path: str) -> Path | None:
            kind, name, *rest = path.split("/")
            if kind == "queries" and name in aside:
                return generation / _ASIDE / path
            return generation.joinpath(kind, now[name], *rest) if name in now else None

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
        query = self.plan.query(name)
        before = self.point.queries.get(query.base, Before(Shape()))
        if self.as_it_is or not (before.conf or query.begins_set) or self.cut(name) == NO_BATCH:
            return None
        batches = {
            other: BatchId(self.point.manifest.queries[other].batch)
            for other in (*query.taken, *query.origins.values())
        }
        work = _Work(
            self.plan,
            query,
            self.point.queries,
            self.cut(name),
            batches,
            self.specs[name],
            self.planned[name],
            self.positions.get(name, {}),
        )
        shared = any(
            query.base in (*one.taken, *one.origins.values(), one.base) for one in self._others(name)
        )
        return work if work.operates or work.rewrites or shared else None

    def _others(self, name: QueryName) -> list[QueryPlan]:
        return [one for one in self.plan.queries if one.wanted and one.name != name]


@dataclass(frozen=True)
class _Work:
    """The change of one query's files."""

    plan: RestorePlan
    query: QueryPlan
    queries: Mapping[str, Before]
    """Of the point."""
    batch: BatchId
    batches: Mapping[str, BatchId]
    """Of the queries of the point that it gets anything of."""
    spec: graph.QuerySpec
    planned: Planned
    positions: Mapping[int, Position]

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
            self._begin(spark, brought)
        here = brought
        if self.operates or not self.rewrites:
            here = half if self.rewrites else done
            self._operate(spark, brought, here, self._others(spark, aside, renumbered))
        if self.rewrites:
            self._rewrite(spark, here, done)
        said = refusal(self.spec.plan, _output_mode(self.spec), done, self.batch)
        if said:
            raise SurgeryError(query=name, batch=int(self.batch), reason=f"Spark would refuse it: {said}")

    def _begin(self, spark: SparkSession, folder: Path) -> None:
        from weir.spark.surgery import begin  # noqa: PLC0415  only where something changes

        begin(spark, folder, len(self.query.sources))

    def _others(self, spark: SparkSession, aside: Path, folder: Path) -> list[Other]:
        """What comes of other queries, their state at the batch of this one."""
        from weir.spark.rewrite import rewrite  # noqa: PLC0415  only where something changes
        from weir.spark.surgery import Other, operate  # noqa: PLC0415

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
        from weir.spark.surgery import operate  # noqa: PLC0415  only where something changes

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
        from weir.spark.file_source import up_to  # noqa: PLC0415  only where something changes

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
        from weir.spark.convert import convert_state  # noqa: PLC0415  only where something changes
        from weir.spark.rewrite import rewrite  # noqa: PLC0415

        there = operators(read, self.batch)
        new = {one.id: one for one in self.planned.shape.operators}
        changes = {}
        for part in self._converted:
            assert part.old is not None and part.new is not None, "only state that is kept is converted"
            (old,) = (o for o in self._shape(part).operators if o.id == part.old)
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

    def _shape(self, part: Part) -> Shape:
        return self.queries[part.of or self.query.base].shape

    @property
    def _converted(self) -> list[Part]:
        return [part for part in self.query.of("operator") if part.reshape or part.rekey]

    @property
    def _partitions(self) -> int:
        return self.plan.parallelism or int(self.before.conf.get(PARTITIONS, 0))

    @property
    def _backend(self) -> Backend:
        there = backend_of(self.before.conf) if self.before.conf else ""
        return "hashmap" if (self.plan.backend or there) == "hashmap" else "rocksdb"


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
    begun = [name for name, before in point.queries.items() if before.conf]
    bases = maps.bases(changes.maps, specs, begun)
    found = {name: plan_query(spec, point.queries.get(bases.get(name, ""))) for name, spec in specs.items()}
    positions = _positions(changes.offsets, specs)
    options = Options(changes.maps, changes.allow_dropped, changes.parallelism, changes.backend, positions)
    made = plan(point.queries, {name: one.shape for name, one in found.items()}, options)
    if changes.forked_from and point.manifest.job != job.name:
        made = made.refusing(_shared(made, specs))
    made = made.refusing(_can_not_rename(made, specs))
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


def _can_not_rename(made: RestorePlan, specs: Mapping[QueryName, graph.QuerySpec]) -> dict[str, Refused]:
    """The queries whose new name their sink can't follow."""
    found = {}
    for query in (one for one in made.queries if one.was and one.wanted):
        spec = specs[QueryName(query.name)]
        if spec.channel is not None:
            why = "a stream can't be renamed: the positions of its readers name it"
            found[query.name] = Refused(why, f"leave its name: {query.was}")
        elif isinstance(spec.sink, FunctionSink | KafkaSink):
            why = "its sink keeps what it has delivered in the job's directory, by the name of the query"
            found[query.name] = Refused(why, f"leave its name: {query.was}")
    return found


def _positions(given: Mapping[str, str], specs: Mapping[QueryName, graph.QuerySpec]) -> Positions:
    """Where the sources resume that the user sets; asks Kafka and lists files. Raises `BadOffsetsError`."""
    asked = {name: specs[QueryName(name)] for name in offsets.queries(given) if name in specs}
    there = {name: streams(spec.plan, spec.sources) for name, spec in asked.items()}
    sources = {name: [one.about for one in found] for name, found in there.items()}
    choices = offsets.choices(given, sources)
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

    def __init__(self, live: Live, attempt: Attempt, source: JobSource) -> None:
        self._live, self._attempt, self._source = live, attempt, source

    def settle(self, specs: Iterable[graph.QuerySpec], made: Replan | None) -> None:
        """Write the shapes of all queries down, when none is refused.

        Raises `ChangedQueryError` when the live files of one are another's. As long as all the code is
        the same, a query that may be another resumes all the same: then its texts may differ from start to
        start, and Spark itself has the last word. What is sure is refused even so.
        """
        found = {
            spec.name: made.planned[spec.name].shape if made is not None else self._checked(spec)
            for spec in specs
        }
        live = self._live
        for name, shape in found.items():
            told = shape.model_copy(update={"job": self._source.version, "code": self._source.code})
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
        if changed and kept.made_by(self._source.version, self._source.code):
            changed = [part for part in changed if part.surely_changed]
        if changed:
            first = changed[0]
            number = f"{first.old} > {first.new}" if first.old != first.new else str(first.new)
            what = first.why or f"{first.verdicts[0].value} ({number})"
            reason = f"{first.what} {first.name}: {what}"
            raise ChangedQueryError(query=spec.name, reason=reason)
        return shape


def _output_mode(spec: graph.QuerySpec) -> str:
    return spec.output_mode if spec.writer is None else output_mode_of(spec.writer)

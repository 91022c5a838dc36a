"""The restore plan: what becomes of each source, operator and sink of a point in a job that may have changed.

It is made before anything is written: Spark's planner is asked what each query is now, and that is compared
with what the point has. `Shapes` does the same at a start without a restore, with the live files.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from weir import faults
from weir.channel.position import Mode
from weir.errors import ChangedQueryError, RestorePlanError
from weir.ids import NO_BATCH, Attempt, BatchId, QueryName
from weir.job import graph
from weir.job.env import QuerySpec
from weir.protocol import maps, offsets, restore_plan
from weir.protocol.offsets import SourcePosition
from weir.protocol.restore_plan import Overall, PartVerdict, RefusedSink, RestorePlan
from weir.protocol.shape import Shape
from weir.restore.convert import Conversion, output_mode
from weir.restore.point import Point
from weir.restore.request import RestoreRequest
from weir.savepoint import about
from weir.savepoint.about import JobSource, delivers, saved_sink
from weir.savepoint.query_change import Before, Options
from weir.savepoint.verdicts import plan
from weir.sinks.function import FunctionSink
from weir.sinks.kafka import KafkaSink
from weir.spark import cut
from weir.spark.checkpoint_files import QueryFiles
from weir.spark.frame_plan import PlannedQuery, planned
from weir.spark.source_positions import position, streams
from weir.spark.state_schema import operators
from weir.storage.open import local_path
from weir.storage.paths import Live

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weir.job.job import Job

Positions = Mapping[str, Mapping[int, SourcePosition]]
_ASIDE = "aside"
"""Below the generation: the files of a point that others are made of, until that is done."""


@dataclass(frozen=True)
class Replan:
    """A plan, and all that it takes to carry it out."""

    point: Point
    plan: RestorePlan
    specs: Mapping[QueryName, QuerySpec]
    planned: Mapping[QueryName, PlannedQuery]
    positions: Positions = field(default_factory=dict)
    """Sources that resume where the user says, by query and number."""
    live: Live | None = None
    """The generation that the pipeline was evaluated for."""
    learnt: graph.Graph | None = None
    """The graph of the job, as that evaluation has it; the specs are of it."""
    as_it_is: bool = False
    """The files stay as they are, whatever the plan says: the code is the one that they were made by."""

    def is_plain(self, source: JobSource, request: RestoreRequest) -> bool:
        """Whether the point was taken of the very same code, and nothing is to be another, or surely is."""
        shapes = [before.shape for before in self.point.queries.values()]
        manifest = self.point.manifest
        same = RestoreRequest(
            request.point,
            request.accept_duplicates,
            parallelism=manifest.parallelism,
            backend=manifest.backend,
        )
        return (
            bool(source.version)
            and bool(shapes)
            and all(shape.made_by(source.version, source.code) for shape in shapes)
            and replace(request, claim=False) == same
            and not any(part.surely_changed for part in self.plan.parts)
        )

    def check(self, job: str) -> None:
        """Raise `RestorePlanError` when it does not fit; nothing was written so far."""
        if self.plan.overall is not Overall.FITS:
            refused = (part.why for part in self.plan.parts if part.what == "sink" and part.why)
            reason = "; ".join([restore_plan.summary(self.plan), *dict.fromkeys(refused)])
            raise RestorePlanError(job=job, point=self.point.name, reason=reason)

    @property
    def changes_nothing(self) -> bool:
        """Whether every query resumes as it is, and there is nothing to say about it."""
        kept = {(PartVerdict.KEPT,)}
        return all(query.there and query.wanted and not query.was for query in self.plan.queries) and all(
            part.verdicts in kept and not part.notes and not part.lost for part in self.plan.parts
        )

    def has_new_sink(self, query: QueryName) -> bool:
        """Whether what it delivers goes to another place than before."""
        return any(PartVerdict.NEW in part.verdicts for part in self.plan.query(query).of("sink"))

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
        return frozenset(name for name in self.planned if self._conversion(name) is not None)

    @property
    def _aside(self) -> frozenset[str]:
        """The queries of the point whose files something is made of."""
        conversions = filter(None, map(self._conversion, self.planned))
        return frozenset(name for one in conversions for name in one.reads)

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
        found = {name: one.facts for name in wanted if (one := self._conversion(QueryName(name))) is not None}
        return hashlib.sha256(repr((wanted, found)).encode()).hexdigest()

    def carry_out(
        self, spark: SparkSession, generation: Path, check: Callable[[], None] = lambda: None
    ) -> None:
        """Make the files of every query that changes; safe to repeat, and to be killed in.

        `check` is called before anything is removed, and raises when the generation is another's by now.
        """
        for name in self.planned:
            conversion = self._conversion(name)
            if conversion is not None:
                faults.point("restore.changing")
                conversion.do(spark, generation / _ASIDE / "queries", generation / "queries", check)
        faults.point("restore.changed")
        check()
        shutil.rmtree(generation / _ASIDE, ignore_errors=True)

    def _conversion(self, name: QueryName) -> Conversion | None:
        """What must be done to the files of a query; None when they stay as they are."""
        query = self.plan.query(name)
        before = self.point.queries.get(query.base, Before(Shape()))
        if self.as_it_is or not (before.conf or query.begins_set) or self.cut(name) == NO_BATCH:
            return None
        batches = {
            other: BatchId(self.point.manifest.queries[other].batch)
            for other in (*query.taken, *query.origins.values())
        }
        conversion = Conversion(
            self.plan,
            query,
            self.point.queries,
            self.cut(name),
            batches,
            self.specs[name],
            self.planned[name],
            self.positions.get(name, {}),
        )
        others = [one for one in self.plan.queries if one.wanted and one.name != name]
        shared = any(query.base in (*one.taken, *one.origins.values(), one.base) for one in others)
        return conversion if conversion.operates or conversion.rewrites or shared else None


def make(
    job: Job, spark: SparkSession, live: Live, point: Point, request: RestoreRequest, mode: Mode
) -> Replan:
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
    bases = maps.bases(request.maps, specs, begun)
    found = {name: plan_query(spec, point.queries.get(bases.get(name, ""))) for name, spec in specs.items()}
    positions = _positions(request.offsets, specs)
    options = Options(request.maps, request.allow_dropped, request.parallelism, request.backend, positions)
    made = plan(point.queries, {name: one.shape for name, one in found.items()}, options)
    if request.forked_from and point.manifest.job != job.name:
        made = made.refusing(_shared(made, specs))
    made = made.refusing(_can_not_rename(made, specs))
    return Replan(point, made, specs, found, positions, live, learnt)


def _shared(made: RestorePlan, specs: Mapping[QueryName, QuerySpec]) -> dict[str, RefusedSink]:
    """The queries of a fork that would deliver where the original does."""
    sinks = ((query.name, part) for query in made.queries for part in query.of("sink"))
    return {
        name: RefusedSink(
            "a fork must not write where the original does", "give it another place in the job file"
        )
        for name, part in sinks
        if PartVerdict.KEPT in part.verdicts and delivers(specs[QueryName(name)])
    }


def _can_not_rename(made: RestorePlan, specs: Mapping[QueryName, QuerySpec]) -> dict[str, RefusedSink]:
    """The queries whose new name their sink can't follow."""
    found = {}
    for query in (one for one in made.queries if one.was and one.wanted):
        spec = specs[QueryName(query.name)]
        if spec.channel is not None:
            why = "a stream can't be renamed: the positions of its readers name it"
            found[query.name] = RefusedSink(why, f"keep its name: {query.was}")
        elif isinstance(spec.sink, FunctionSink | KafkaSink):
            why = "its sink keeps what it has delivered in the job's directory, by the name of the query"
            found[query.name] = RefusedSink(why, f"keep its name: {query.was}")
    return found


def _positions(given: Mapping[str, str], specs: Mapping[QueryName, QuerySpec]) -> Positions:
    """Where the sources resume that the user sets; asks Kafka and lists files. Raises `BadOffsetsError`."""
    asked = {name: specs[QueryName(name)] for name in offsets.queries(given) if name in specs}
    there = {name: streams(spec.plan, spec.sources) for name, spec in asked.items()}
    sources = {name: [one.about for one in found] for name, found in there.items()}
    choices = offsets.choices(given, sources)
    return {
        query: {
            number: position(asked[query].plan, there[query][number], one) for number, one in chosen.items()
        }
        for query, chosen in choices.items()
    }


def plan_query(spec: QuerySpec, before: Before | None) -> PlannedQuery:
    """What Spark's planner says of a query, after what it was."""
    pinned = before.conf if before is not None and before.conf else None
    return planned(spec.plan, output_mode(spec), pinned, sink=saved_sink(spec).description)


class Shapes:
    """What the queries of a start are, written down beside their live files."""

    def __init__(self, live: Live, attempt: Attempt, source: JobSource) -> None:
        self._live, self._attempt, self._source = live, attempt, source

    def settle(self, specs: Iterable[QuerySpec], made: Replan | None) -> None:
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
            recorded = shape.model_copy(update={"job": self._source.version, "code": self._source.code})
            about.keep(live.store, live.job, live.generation, self._attempt, name, recorded)

    def _checked(self, spec: QuerySpec) -> Shape:
        files = QueryFiles.of(self._live, spec.name)
        last = files.last_committed()
        kept = about.newest(self._live.store, self._live.job, self._live.generation, spec.name)
        if last == NO_BATCH or kept is None:
            return plan_query(spec, None).shape
        before = of_live_files(Path(local_path(self._live.query(spec.name))), last, kept)
        shape = plan_query(spec, before).shape
        made = plan({spec.name: before}, {spec.name: shape}, Options())
        changed = [
            part for part in made.parts if part.what != "sink" and part.verdicts != (PartVerdict.KEPT,)
        ]
        if changed and kept.made_by(self._source.version, self._source.code):
            changed = [part for part in changed if part.surely_changed]
        if changed:
            first = changed[0]
            number = f"{first.old} > {first.new}" if first.old != first.new else str(first.new)
            what = first.why or f"{first.verdicts[0].value} ({number})"
            reason = f"{first.what} {first.name}: {what}"
            raise ChangedQueryError(query=spec.name, reason=reason)
        return shape


def of_live_files(root: Path, batch: BatchId, shape: Shape) -> Before:
    """A query as its live files have it after a committed batch."""
    ends = cut.offsets_of(root, batch).lines
    return Before(shape.with_files(operators(root, batch)), cut.conf_of(root, batch), ends)

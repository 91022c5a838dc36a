"""A savepoint as a changed job needs it, made without starting the job.

What a restore would do to the files of the queries is done beforehand, into a new savepoint: operators
are where the job file has them, new ones are there without rows, state has the parallelism and backend
that are asked for. From there its state can be edited (`weir state edit --seed`), and a restore only
copies.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from weir.checkpoint.kept_files import bring_all
from weir.errors import RestorePlanError
from weir.ids import BatchId, QueryName
from weir.protocol.restore_plan import QueryPlan
from weir.protocol.shape import Shape
from weir.restore.plan import Replan
from weir.savepoint.about import JobSource, before
from weir.savepoint.manifest import SavedQuery, Savepoint, facts
from weir.savepoint.place import SavepointPlace
from weir.savepoint.take import with_files
from weir.savepoint.write import check_target, remake
from weir.spark.closure import closure
from weir.state.read import scratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def convert(spark: SparkSession, made: Replan, target: str, source: JobSource, since: float) -> str:
    """Carry a plan that fits out on the files of its savepoint, into a new one below `target`; its place.

    The old savepoint stays as it is; when it raises, nothing is left in `target`. "" when every query goes
    on as it is, and there is nothing to make.
    """
    _check(made)
    changed = made.changed
    if not changed and all(query.wanted for query in made.plan.queries if query.there):
        return ""
    place = SavepointPlace(made.point.name)
    old = place.read()
    name = f"{old.name}-converted"
    check_target(old, target, name)
    folder = scratch(spark, Path(target))
    try:
        generation = folder / "generation"
        _bring(place, old, made, generation, changed)
        made.carry_out(spark, generation)
        roots = {str(name): generation / "queries" / name for name in changed}
        return remake(place, _description(old, made, roots, source), target, name, roots, since)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check(made: Replan) -> None:
    """Refuse what a restore alone can do: there is no query in the savepoint to make it of."""
    for query in made.plan.queries:
        if query.wanted and (query.begins_set or query.base not in ("", query.name) or query.origins):
            reason = f"query {query.name} takes its files from elsewhere, which only a restore can do"
            raise RestorePlanError(job=made.point.manifest.job, point=made.point.name, reason=reason)


def _bring(
    place: SavepointPlace, old: Savepoint, made: Replan, generation: Path, changed: frozenset[QueryName]
) -> None:
    """The files of the queries that change, aside; positions stay, for the restore sets readers back."""
    manifest, to = facts(old), made.target(generation)
    cuts = {name: cut.model_copy(update={"set_back": {}}) for name, cut in manifest.queries.items()}
    manifest = manifest.model_copy(update={"queries": cuts})
    own = [file for name in changed for file in old.files_of(name).values()]
    targets = [(file, target) for file in own if (target := to(file.path)) is not None]
    bring_all(place, targets, manifest, generation)


def _description(old: Savepoint, made: Replan, roots: dict[str, Path], source: JobSource) -> Savepoint:
    """What the new savepoint says of itself."""
    wanted = {query.name for query in made.plan.queries if query.wanted}
    channels = {name: channel for name, channel in old.channels.items() if name in wanted}
    queries = {name: query for name, query in old.queries.items() if name in wanted}
    for name, root in roots.items():
        shape = made.planned[QueryName(name)].shape.model_copy(update={"job": source.version})
        queries[name] = _described(queries[name], made.plan.query(name), shape, root)
    return old.model_copy(
        update={
            "queries": queries,
            "channels": channels,
            "trigger": "convert",
            "job_file": source.name,
            "job_version": source.version,
            "backend": made.plan.backend or old.backend,
            "parallelism": made.plan.parallelism or old.parallelism,
        }
    )


def _described(old: SavedQuery, plan: QueryPlan, shape: Shape, root: Path) -> SavedQuery:
    """A query as its new files have it; it still delivers where it did, until a restore says otherwise."""
    sizes = {name: (root / name).stat().st_size for name in closure(root, BatchId(old.batch)).files}
    counted = {one.id: one.rows for one in old.operators if one.rows is not None}
    kept = {new: counted[at] for at, new in plan.moves.items() if at in counted}
    descriptions = {at: source.description for at, source in enumerate(old.sources)}
    sources = tuple("" if at is None else descriptions.get(at, "") for at in plan.sources)
    described = old.model_copy(update={"shape": shape.model_copy(update={"sink": before(old).shape.sink})})
    rows = kept | dict.fromkeys(plan.added, 0)
    return with_files(described, sizes, lambda name: (root / name).read_bytes(), sources, rows)

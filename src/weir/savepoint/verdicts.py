"""From the shapes of a job before and after a change to the restore plan. Pure.

The old queries come from a savepoint, the new ones from Spark's planner (`query_change.py`). Each gets the
verdicts on its sources (`source_verdicts.py`), operators (`operator_verdicts.py`) and sinks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weir.protocol import maps as mapped
from weir.protocol import offsets as beginnings
from weir.protocol.maps import Maps
from weir.protocol.restore_plan import PartVerdict, PlanPart, QueryPlan, RestorePlan
from weir.protocol.shape import Shape
from weir.savepoint.operator_verdicts import OperatorVerdicts
from weir.savepoint.query_change import Before, Options, QueryChange
from weir.savepoint.source_verdicts import SourceVerdicts


def plan(old: Mapping[str, Before], new: Mapping[str, Shape], options: Options) -> RestorePlan:
    """What becomes of the state of the old queries in the new ones; raises `BadMapError`, `BadOffsetsError`.

    `new` is planned with the settings of `Before.conf`, so that Spark describes its operators as it
    would describe them after the savepoint; parallelism and backend come from `options`.
    """
    given = mapped.read(options.maps, {name: one.shape for name, one in old.items()}, new)
    names = [*new, *(name for name in old if name not in new and given.name_of(name) == name)]
    begun = [name for name, one in old.items() if one.conf]
    bases = mapped.bases(options.maps, names, begun)
    queries = [_query(name, bases.get(name, ""), old, new.get(name), options, given) for name in names]
    return RestorePlan(
        queries=tuple(beginnings.judge(queries, old.keys(), new)),
        parallelism=options.parallelism,
        backend=options.backend,
        allow_dropped=options.allow_dropped,
    )


def _query(
    name: str,
    base: str,
    old: Mapping[str, Before],
    shape: Shape | None,
    options: Options,
    given: Maps,
) -> QueryPlan:
    own = given.renamed.get(name, name)
    change = QueryChange(name, own, base, old, shape or Shape(), options, given)
    parts = (*SourceVerdicts(change).parts(), *OperatorVerdicts(change).parts(), *_sinks(change))
    was = own if own != name else ""
    return QueryPlan(name=name, there=own in old, wanted=shape is not None, parts=parts, base=base, was=was)


def _sinks(change: QueryChange) -> Iterator[PlanPart]:
    was, now = change.old.sink, change.new.sink
    if was and was == now:
        yield PlanPart(what="sink", old=0, new=0, name=now, verdicts=(PartVerdict.KEPT,))
        return
    if now:
        notes = ("gets what comes after the savepoint",) if was else ()
        yield PlanPart(what="sink", new=0, name=now, verdicts=(PartVerdict.NEW,), notes=notes)
    if was:
        notes = ("keeps what it has",)
        yield PlanPart(what="sink", old=0, name=was, verdicts=(PartVerdict.DROPPED,), notes=notes)

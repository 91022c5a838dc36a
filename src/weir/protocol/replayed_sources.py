"""Sources that a restore would read from their beginning, and what that would count twice. Pure.

Where the rows of such a source reach state that was kept, in its query or through channels in another,
the state may hold them already. That gives a wrong result without any error, so it must be said in words
that name the source (`--set-offsets`); `-n`, which allows any loss, is not enough.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from weir.protocol.restore_plan import Part, QueryPlan, Verdict
from weir.protocol.shape import Shape

CHANNEL = "channel "
_CARRIED = (Verdict.KEPT, Verdict.MOVED, Verdict.RESCALED, Verdict.CONVERTED)
READ = "is read from its beginning, or where its options say"


def judge(
    queries: Sequence[QueryPlan], old: Collection[str], new: Mapping[str, Shape]
) -> Iterator[QueryPlan]:
    """The same plans, in which every source that begins says so, and none counts anything twice unasked."""
    state = _State({query.name: query for query in queries}, new)
    for query in queries:
        parts = tuple(_judged(query, part, state, queries, old) for part in query.parts)
        yield query.model_copy(update={"parts": parts, "notes": tuple(_renamed(query, queries))})


def _judged(
    query: QueryPlan, part: Part, state: _State, queries: Sequence[QueryPlan], old: Collection[str]
) -> Part:
    if part.what != "source" or part.verdicts != (Verdict.NEW,):
        return part
    writer = part.name.removeprefix(CHANNEL) if part.name.startswith(CHANNEL) else ""
    if writer and writer not in old:
        return part.model_copy(update={"notes": ("begins with what its query writes from now on",)})
    reads = "begins with what the channel holds at the cut" if writer else READ
    offered = "" if writer else _offered(query, part, queries)
    counted = state.below(query.name, part.name)
    if not counted:
        notes = (reads, offered) if offered else (reads,)
        return part.model_copy(update={"notes": notes})
    place = f"{query.name}/@{part.new}"
    anew = f"if it was never read before, and all of it is to count: --set-offsets {place}=initial"
    elsewhere = "" if writer else f"; to begin elsewhere: --set-offsets {place}=latest, for one"
    return part.model_copy(
        update={
            "verdicts": (Verdict.AMBIGUOUS,),
            "why": f"it {reads}, and what {counted} has counted of it already would count twice",
            "todo": f"{offered}; {anew}{elsewhere}" if offered else f"{anew}{elsewhere}",
        }
    )


class _State:
    """Which state was carried over, and what reaches it."""

    def __init__(self, queries: Mapping[str, QueryPlan], new: Mapping[str, Shape]) -> None:
        self._queries, self._new = queries, new

    def below(self, query: str, source: str) -> str:
        """An operator with state from the point that the rows of a source reach, in words; "" for none."""
        plan, shape = self._queries[query], self._new.get(query, Shape())
        reads = {one.id: one.sources for one in shape.operators}
        for part in plan.of("operator"):
            known = reads.get(part.new, ()) if part.new is not None else ()
            if _is_carried(part) and (not known or source in known):
                return f"operator {part.new} of {query} ({part.name})"
        channel = f"{CHANNEL}{query}"
        readers = (name for name, one in self._new.items() if channel in [s.name for s in one.sources])
        return next(filter(None, (self.below(name, channel) for name in readers)), "")


def _is_carried(part: Part) -> bool:
    """Also where that is in doubt: then it may be."""
    doubtful = Verdict.AMBIGUOUS in part.verdicts
    return part.old is not None and part.new is not None and (doubtful or part.verdicts[0] in _CARRIED)


def _offered(query: QueryPlan, part: Part, queries: Sequence[QueryPlan]) -> str:
    """The map that brings a source of this name its position from another query that lost it."""
    for other in queries:
        for left in other.of("source"):
            if other.name != query.name and left.verdicts == (Verdict.DROPPED,) and left.name == part.name:
                old = f"{other.was or other.name}/@{left.old}"
                return f"to resume where {other.name} stood: --map {old}={query.name}/@{part.new}"
    return ""


def _renamed(query: QueryPlan, queries: Sequence[QueryPlan]) -> Iterator[str]:
    """What to say where a query that is gone and one that is new look the same."""
    if query.there or not query.wanted:
        return
    for other in queries:
        if other.there and not other.wanted and _looks_like(query, other):
            given = f"--map {other.name}={query.name}"
            yield f"looks like {other.name}; if it is, under another name: {given}"


def _looks_like(new: QueryPlan, old: QueryPlan) -> bool:
    def facts(query: QueryPlan, what: str) -> list[str]:
        return sorted(part.name for part in query.of(what))

    return all(facts(new, what) == facts(old, what) for what in ("source", "operator"))

"""The restore plan: what will become of every piece of state when it is restored into a changed job.

Each source, operator and sink of both sides gets its verdict before anything is touched
(`savepoint/verdicts.py`). A plan says what must be done, too; `spark/relocate.py` and `spark/rewrite.py`
do it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from pydantic import computed_field

from weir.protocol.compatibility import Rekey, Reshape
from weir.protocol.operators import Frozen


class PartVerdict(str, Enum):
    """What becomes of a source, an operator or a sink."""

    KEPT = "kept"
    SET = "set"
    """A source that resumes where the user says."""
    MOVED = "moved"
    RESCALED = "rescaled"
    CONVERTED = "converted"
    DROPPED = "dropped"
    NEW = "new"
    INCOMPATIBLE = "incompatible"
    AMBIGUOUS = "ambiguous"


class Overall(str, Enum):
    """Whether a restore can be done as planned."""

    FITS = "fits"
    LOSES = "fits with loss"
    """Something is given up; that must be allowed (`-n`)."""
    NEEDS_MAP = "needs --map"
    """The user must say what becomes of what, or that a source is read from its beginning."""
    MISFITS = "does not fit"


NAMED = "named "
"""So begins what a source is called that its author gave a name with `readStream.name`."""

EXIT_CODES = {Overall.FITS: 0, Overall.LOSES: 10, Overall.NEEDS_MAP: 11, Overall.MISFITS: 12}


class StatePiece(Frozen):
    """One piece of state, or a place for one, and where it is on both sides."""

    what: Literal["source", "operator", "sink"]
    old: int | None = None
    """Its number in the savepoint; None where it is new."""
    new: int | None = None
    """Its number in the changed query; None where it is not there."""
    name: str = ""
    """For people."""
    was: str = ""
    """What a source was called, where it has another name now."""
    of: str = ""
    """The query of the savepoint that it comes from, where that is another one; `old` is its number there."""
    folder: int | None = None
    """The number of a source's folder `sources/N` in the changed query; None when not known."""
    was_folder: int | None = None
    """The same in the savepoint."""


class PlanPart(StatePiece):
    """A piece of state, and what becomes of it."""

    verdicts: tuple[PartVerdict, ...]
    why: str = ""
    todo: str = ""
    """What would make it fit."""
    notes: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    """What of the state is given up."""
    end: str = ""
    """Where a source resumes instead of its old position, as Spark writes it."""
    reshape: Reshape | None = None
    """What becomes of its values, where an aggregation keeps other columns."""
    rekey: Rekey | None = None
    """What becomes of its keys, where they have another order or other types."""
    certain: bool = False
    """Whether this is so whatever the texts say: Spark would take one thing for another, or refuse it."""

    def refused(self, why: str, todo: str) -> PlanPart:
        """The same part, which does not fit."""
        return self.model_copy(update={"verdicts": (PartVerdict.INCOMPATIBLE,), "why": why, "todo": todo})

    @property
    def surely_changed(self) -> bool:
        """Whether the same code can't have made this: only its texts may differ from start to start."""
        return self.what != "sink" and (self.certain or self.old is None or self.new is None)


class QueryPlan(Frozen):
    """What becomes of one query."""

    name: str
    there: bool
    """Whether the savepoint has it."""
    wanted: bool
    """Whether the job still has it."""
    parts: tuple[PlanPart, ...]
    base: str = ""
    """The query of the savepoint whose files it begins with; "" for one that begins with nothing."""
    was: str = ""
    """What it was called in the savepoint, where it has another name now."""
    notes: tuple[str, ...] = ()

    def of(self, what: str) -> Iterator[PlanPart]:
        return (part for part in self.parts if part.what == what)

    @property
    def moves(self) -> dict[int, int]:
        """For each operator that keeps its state: its old id, and its new one."""
        return self.taken.get(self.base, {})

    @property
    def taken(self) -> dict[str, dict[int, int]]:
        """The same for each query of the savepoint that gives it any state."""
        found: dict[str, dict[int, int]] = {}
        for part in self.of("operator"):
            if part.old is not None and part.new is not None:
                found.setdefault(part.of or self.base, {})[part.old] = part.new
        return found

    @property
    def dropped(self) -> tuple[int, ...]:
        """The old ids of operators whose state is given up."""
        return tuple(p.old for p in self.of("operator") if p.old is not None and p.new is None)

    @property
    def added(self) -> tuple[int, ...]:
        """The new ids of operators that begin without state."""
        return tuple(p.new for p in self.of("operator") if p.new is not None and p.old is None)

    @property
    def sources(self) -> tuple[int | None, ...]:
        """For each source of the new query, in Spark's order, the old one; None for one that is new."""
        found = {part.new: part.old for part in self.of("source") if part.new is not None}
        return tuple(found[number] for number in sorted(found))

    @property
    def origins(self) -> dict[int, str]:
        """The sources of the new query that begin where one of another query stands: that query."""
        return {part.new: part.of for part in self.of("source") if part.new is not None and part.of}

    @property
    def folders(self) -> dict[int, tuple[int, int]]:
        """For each source with a position: its old folder and its new one; by places where nobody knows."""
        return {
            part.new: (
                part.old if part.was_folder is None else part.was_folder,
                part.new if part.folder is None or part.was_folder is None else part.folder,
            )
            for part in self.of("source")
            if part.new is not None and part.old is not None
        }

    @property
    def ends(self) -> dict[int, str]:
        """The sources of the new query that get a position of the user's."""
        return {part.new: part.end for part in self.of("source") if part.new is not None and part.end}

    @property
    def names(self) -> dict[str, str | None]:
        """The sources that Spark would look for by another name than they have in the savepoint.

        None for one whose position is given up, though another source takes its name.
        """
        taken = {part.name for part in self.of("source") if part.new is not None}
        found: dict[str, str | None] = {}
        for part in self.of("source"):
            if part.was.startswith(NAMED):
                found[part.was.removeprefix(NAMED)] = part.name.removeprefix(NAMED)
            elif part.new is None and part.name.startswith(NAMED) and part.name in taken:
                found[part.name.removeprefix(NAMED)] = None
        return found

    @property
    def operators_change(self) -> bool:
        """Whether Spark would look for state where it is not."""
        moved = any(old != new for old, new in self.moves.items())
        return bool(moved or self.dropped or self.added or self.taken.keys() - {self.base})

    @property
    def all_named(self) -> bool:
        """Whether Spark finds the sources by names of their own."""
        return all(part.name.startswith(NAMED) for part in self.of("source"))

    @property
    def sources_change(self) -> bool:
        """Whether Spark would take the position of one source for that of another.

        Sources with names of their own are found by those, wherever they are.
        """
        if self.all_named:
            return bool(self.ends or self.names)
        old = [part.old for part in self.of("source") if part.old is not None and not part.of]
        elsewhere = any(was != now for was, now in self.folders.values())
        return self.sources != tuple(range(len(old))) or bool(self.ends or self.origins or elsewhere)

    @property
    def begins_set(self) -> bool:
        """Whether it is new, and some of its sources begin where the user says."""
        return not self.base and bool(self.ends)


@dataclass(frozen=True)
class RefusedSink:
    """Why a sink can't continue, and what would help."""

    why: str
    todo: str


class RestorePlan(Frozen):
    """What becomes of everything."""

    queries: tuple[QueryPlan, ...]
    parallelism: int | None = None
    backend: str | None = None
    allow_dropped: bool = False

    @property
    def parts(self) -> Iterator[PlanPart]:
        return (part for query in self.queries for part in query.parts)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def overall(self) -> Overall:
        verdicts = {verdict for part in self.parts for verdict in part.verdicts}
        if PartVerdict.INCOMPATIBLE in verdicts:
            return Overall.MISFITS
        if PartVerdict.AMBIGUOUS in verdicts:
            return Overall.NEEDS_MAP
        loses = any(part.lost for part in self.parts)
        return Overall.LOSES if loses and not self.allow_dropped else Overall.FITS

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.overall]

    def refusing(self, sinks: Mapping[str, RefusedSink]) -> RestorePlan:
        """The same, where the sinks of these queries can't continue."""

        def judged(name: str, part: PlanPart) -> PlanPart:
            if part.what != "sink" or part.new is None or name not in sinks:
                return part
            return part.refused(sinks[name].why, sinks[name].todo)

        return self.model_copy(
            update={
                "queries": tuple(
                    one.model_copy(update={"parts": tuple(judged(one.name, part) for part in one.parts)})
                    for one in self.queries
                )
            }
        )

    def query(self, name: str) -> QueryPlan:
        return next(query for query in self.queries if query.name == name)


# A restore plan for people: a table that fits a narrow terminal, and what to do about it.


WIDTH = 80
_INDENT = "      "
_MEANS = {Overall.NEEDS_MAP: "map it, or say where it resumes", Overall.MISFITS: "nothing was changed"}


def text(plan: RestorePlan, width: int = WIDTH) -> str:
    """The plan, no line longer than `width`."""
    lines = [line for query in plan.queries for line in _query(query, width)]
    return "\n".join([*lines, "", *_wrapped(summary(plan), "", width)])


def summary(plan: RestorePlan) -> str:
    """The last line: whether it fits, and what that takes."""
    if plan.overall is Overall.FITS:
        lost = "; ".join(_lost(plan))
        return "fits" + (f"; lost: {lost}" if lost else "")
    if plan.overall is Overall.LOSES:
        return f"fits with loss: {'; '.join(_lost(plan))}; to allow all of that: -n"
    wrong = PartVerdict.AMBIGUOUS if plan.overall is Overall.NEEDS_MAP else PartVerdict.INCOMPATIBLE
    parts = ", ".join(
        _named(query, part) for query in plan.queries for part in query.parts if wrong in part.verdicts
    )
    return f"{plan.overall.value}: {parts} {wrong.value}; {_MEANS[plan.overall]}"


def _lost(plan: RestorePlan) -> Iterator[str]:
    for query in plan.queries:
        for part in query.parts:
            if part.lost:
                yield f"{_named(query, part)} ({', '.join(part.lost)})"


def _named(query: QueryPlan, part: PlanPart) -> str:
    number = "" if part.what == "sink" else f" {part.new if part.old is None else part.old}"
    return f"{query.name} {part.what}{number}"


def _query(query: QueryPlan, width: int) -> Iterator[str]:
    state = "" if query.there and query.wanted else "  new" if query.wanted else "  dropped"
    yield query.name + (f"  was {query.was}" if query.was else state)
    for note in query.notes:
        yield from _wrapped(note, "  ", width)
    broad = max((len(_verdicts(part)) for part in query.parts), default=0)
    for part in query.parts:
        room = width - broad - len(f"  {part.what:<8} 00 > 00  ") - 2
        name = part.name if len(part.name) <= room else f"{part.name[: room - 3]}..."
        yield f"  {part.what:<8} {_number(part):<7}  {name:<{room}}  {_verdicts(part)}".rstrip()
        for line in (*part.notes, *(f"lost: {one}" for one in part.lost)):
            yield from _wrapped(line, _INDENT, width)
        if part.why:
            yield from _wrapped(f"why: {part.why}", _INDENT, width)
        if part.todo:
            yield from _wrapped(f"what to do: {part.todo}", _INDENT, width)


def _number(part: PlanPart) -> str:
    if part.what == "sink":
        return ""
    both = part.old is not None and part.new is not None and part.old != part.new
    return f"{part.old} > {part.new}" if both else str(part.new if part.old is None else part.old)


def _verdicts(part: PlanPart) -> str:
    return ", ".join(verdict.value for verdict in part.verdicts)


def _wrapped(line: str, indent: str, width: int) -> list[str]:
    further = indent + "  "
    return textwrap.wrap(
        line, width, initial_indent=indent, subsequent_indent=further, break_on_hyphens=False
    )

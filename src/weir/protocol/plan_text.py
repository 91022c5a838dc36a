"""A restore plan for people: a table that fits a narrow terminal, and what to do about it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from weir.protocol.restore_plan import Overall, Part, QueryPlan, RestorePlan, Verdict

WIDTH = 80
_INDENT = "      "
_MEANS = {Overall.NEEDS_MAP: "say what becomes of it", Overall.MISFITS: "nothing was touched"}


def text(plan: RestorePlan, width: int = WIDTH) -> str:
    """The whole plan, no line longer than `width`."""
    lines = [line for query in plan.queries for line in _query(query, width)]
    return "\n".join([*lines, "", *_wrapped(summary(plan), "", width)])


def summary(plan: RestorePlan) -> str:
    """The last line: whether it fits, and what that takes."""
    if plan.overall is Overall.FITS:
        lost = "; ".join(_lost(plan))
        return "fits" + (f"; given up: {lost}" if lost else "")
    if plan.overall is Overall.LOSES:
        return f"fits with loss: {'; '.join(_lost(plan))}; to allow all of that: -n"
    wrong = Verdict.AMBIGUOUS if plan.overall is Overall.NEEDS_MAP else Verdict.INCOMPATIBLE
    parts = ", ".join(
        _named(query, part) for query in plan.queries for part in query.parts if wrong in part.verdicts
    )
    return f"{plan.overall.value}: {parts} {wrong.value}; {_MEANS[plan.overall]}"


def _lost(plan: RestorePlan) -> Iterator[str]:
    for query in plan.queries:
        for part in query.parts:
            if part.lost:
                yield f"{_named(query, part)} ({', '.join(part.lost)})"


def _named(query: QueryPlan, part: Part) -> str:
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
        for line in (*part.notes, *(f"given up: {one}" for one in part.lost)):
            yield from _wrapped(line, _INDENT, width)
        if part.why:
            yield from _wrapped(f"why: {part.why}", _INDENT, width)
        if part.todo:
            yield from _wrapped(f"what to do: {part.todo}", _INDENT, width)


def _number(part: Part) -> str:
    if part.what == "sink":
        return ""
    both = part.old is not None and part.new is not None and part.old != part.new
    return f"{part.old} > {part.new}" if both else str(part.new if part.old is None else part.old)


def _verdicts(part: Part) -> str:
    return ", ".join(verdict.value for verdict in part.verdicts)


def _wrapped(line: str, indent: str, width: int) -> list[str]:
    further = indent + "  "
    return textwrap.wrap(
        line, width, initial_indent=indent, subsequent_indent=further, break_on_hyphens=False
    )

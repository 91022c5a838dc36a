"""The shape of a query: what Spark's planner says of it before it runs.

A shape is learnt at every start and kept with the live files, so that a savepoint records what its
state belongs to. Spark itself finds state by an operator's number and the types of its columns; what
an operator groups by, computes and reads is nowhere in its files, and two operators that changed
places look alike there. All of it is text without Spark's ids, the same at every start of one code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from weir.protocol.operators import Frozen, Operator

_MINOR = re.compile(r"\d+\.\d+")


class Computed(Frozen):
    """One function of an aggregation, with the columns of the value that it keeps."""

    text: str
    """`sum(v)`, with the names of the sources' columns."""
    columns: int
    """How many columns of the value are its own, in order."""
    start: tuple[int | float | bool | str | None, ...] | None = None
    """What these columns begin with; None when Spark does not say it in advance."""


class PlannedOperator(Operator):
    """An operator, and what distinguishes it from another one of its kind and schema."""

    keys: tuple[str, ...] = ()
    """What it groups, joins or finds duplicates by."""
    computes: tuple[Computed, ...] = ()
    """What it keeps for each key, of an aggregation; else nothing."""
    reads: tuple[str, ...] = ()
    """What is below it: sources, conditions, joins, other operators."""
    sources: tuple[str, ...] = ()
    """The names of the sources among that."""

    @property
    def known(self) -> bool:
        """Whether anything but its files is known of it."""
        return bool(self.reads)

    @property
    def evidence(self) -> tuple[str, ...]:
        """All that distinguishes it from its twins."""
        return (*self.keys, *(one.text for one in self.computes), *self.reads)


class PlannedSource(Frozen):
    """A source, in the place that Spark gives it in the query."""

    name: str
    """The same at every start: `channel clean`, `json /data/in`; "" for one that nobody described."""
    used: tuple[str, ...] = ()
    """What is done with it until it meets another source: distinguishes it from one of the same name."""
    folder: int | None = None
    """The number of its folder `sources/N`, which all uses of one relation share; None when not known."""

    def is_used_like(self, other: PlannedSource) -> bool:
        """Whether both have the same name, and the same is done with them."""
        return bool(self.name) and (self.name, self.used) == (other.name, other.used)


class Shape(Frozen):
    """What a query consists of."""

    operators: tuple[PlannedOperator, ...] = ()
    """In the order of their ids."""
    sources: tuple[PlannedSource, ...] = ()
    """In the order of Spark's offset log."""
    sink: str = ""
    """Where it delivers to, for people; "" when not known."""
    spark: str = ""
    """The version of Spark that described all this; "" when the files alone were read."""
    job: str = ""
    """The beginning of the SHA-256 of the job file that the query was made by; "" when there is none."""
    code: str = ""
    """The same of all modules of the job, and of its arguments; "" when nobody recorded it."""
    older: dict[str, str] = {}
    """Texts of this shape as older versions of weir wrote them, each with what it is written like now."""

    def made_by(self, job: str, code: str) -> bool:
        """Whether this code made the query: all of its modules, or the job file where only that is known."""
        return self.code == code if self.code and code else self.job == job

    def in_terms_of(self, newer: Shape) -> Shape:
        """The same, with the texts that the newer shape writes otherwise written like there."""
        if not newer.older or self.older:
            return self

        def text(line: str) -> str:
            head, space, rest = line.partition(" ")
            if line in newer.older:
                return newer.older[line]
            return head + space + newer.older[rest] if rest in newer.older else line

        def texts(lines: Sequence[str]) -> tuple[str, ...]:
            return tuple(map(text, lines))

        operators = tuple(
            one.model_copy(
                update={
                    "keys": texts(one.keys),
                    "computes": tuple(c.model_copy(update={"text": text(c.text)}) for c in one.computes),
                    "reads": texts([line for line in one.reads if not _is_expanded(line, newer)]),
                }
            )
            for one in self.operators
        )
        sources = tuple(one.model_copy(update={"used": texts(one.used)}) for one in self.sources)
        return self.model_copy(update={"operators": operators, "sources": sources})

    def speaks_like(self, other: Shape) -> bool:
        """Whether the texts of both may be compared: the same Spark wrote them."""
        mine, its = _MINOR.match(self.spark), _MINOR.match(other.spark)
        return mine is not None and its is not None and mine[0] == its[0]

    def with_files(self, operators: Sequence[Operator]) -> Shape:
        """The shape of a query whose state is really there: the operators that its files have.

        What the shape knows of an operator is kept where the files have one of its kind in its place.
        """
        mine = {one.id: one for one in self.operators}
        return self.model_copy(update={"operators": tuple(_merged(mine.get(o.id), o) for o in operators)})


def _is_expanded(line: str, newer: Shape) -> bool:
    """Whether it is the expansion of a sliding window, which the key alone shows now."""
    return line.startswith("Expand ") and any(text.startswith("window(") for text in newer.older.values())


def _merged(planned: PlannedOperator | None, stored: Operator) -> PlannedOperator:
    facts = stored.model_dump()
    if planned is not None and planned.kind == stored.kind:
        facts |= planned.model_dump(include={"keys", "computes", "reads", "sources"})
    return PlannedOperator.model_validate(facts)

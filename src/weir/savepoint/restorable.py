"""Whether the present code can resume from a savepoint: as far as that is known without Spark. Pure.

What the queries of a job are was written down at its last start (`about.py`). As long as its job file
is the same, the restore plan can be made from that, by the same rules. What is not known for sure is
reported as unknown: `weir plan` asks Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from weir.errors import WeirError
from weir.protocol import restore_plan
from weir.protocol.restore_plan import Overall, PartVerdict
from weir.protocol.shape import Shape
from weir.savepoint.about import before
from weir.savepoint.manifest import Savepoint
from weir.savepoint.query_change import Options
from weir.savepoint.verdicts import plan
from weir.spark.logs import PARTITIONS, PROVIDER


class Restorability(str, Enum):
    """Whether it can be restored by the present code."""

    YES = "yes"
    LOSES = "with loss"
    NEEDS_MAP = "needs --map"
    NO = "no"
    UNKNOWN = "unknown"


_ANSWERS = {
    Overall.FITS: Restorability.YES,
    Overall.LOSES: Restorability.LOSES,
    Overall.NEEDS_MAP: Restorability.NEEDS_MAP,
    Overall.MISFITS: Restorability.NO,
}


@dataclass(frozen=True)
class Restorable:
    """An answer, and what it rests on."""

    answer: Restorability
    why: str


@dataclass(frozen=True)
class Present:
    """The code of a job, as its last start recorded it."""

    attempt: int
    shapes: Mapping[str, Shape]
    conf: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """For each query with a batch: what its offset log fixes."""
    parallelism: int | None = None
    backend: str | None = None
    doubt: str = ""
    """Why this may not be the present code."""


def judge(saved: Savepoint, present: Present) -> Restorable:
    """Whether the present code can resume from an intact savepoint."""
    doubt = present.doubt or _doubt(saved, present)
    if doubt:
        return Restorable(Restorability.UNKNOWN, doubt)
    old = {name: before(query) for name, query in saved.queries.items()}
    options = Options(parallelism=present.parallelism, backend=present.backend)
    try:
        made = plan(old, present.shapes, options)
    except WeirError as error:
        return Restorable(Restorability.UNKNOWN, error.text)
    by = f"by the code of attempt {present.attempt}"
    if made.overall is Overall.FITS:
        return Restorable(Restorability.YES, by)
    wrong = {Overall.MISFITS: PartVerdict.INCOMPATIBLE, Overall.NEEDS_MAP: PartVerdict.AMBIGUOUS}.get(
        made.overall
    )
    parts = (part for part in made.parts if part.verdicts[0] is wrong)
    first = next((f": {part.what} {part.name}: {part.why}" for part in parts), "")
    return Restorable(_ANSWERS[made.overall], f"{by}, {restore_plan.summary(made)}{first}")


def _doubt(saved: Savepoint, present: Present) -> str:
    """Why a plan that is made without Spark might not be that of Spark."""
    for name, query in saved.queries.items():
        now = present.shapes.get(name)
        if now is None or not query.conf:
            continue  # it is dropped, or begins without state
        if query.shape is None or not query.shape.speaks_like(now):
            return f"another version of Spark described query {name!r} when it was taken"
        if name not in present.conf:
            return f"query {name!r} has no batch yet since it last started from the beginning"
        if _format(query.conf) != _format(present.conf[name]):
            return f"Spark's settings of the state of query {name!r} were others when it was taken"
    return ""


def _format(conf: Mapping[str, str]) -> dict[str, str]:
    """What decides how Spark describes state; parallelism and backend are the plan's to compare."""
    return {key: value for key, value in conf.items() if key not in (PARTITIONS, PROVIDER)}

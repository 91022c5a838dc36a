"""A query of a point, and the query of the changed job that gets its state: what verdicts are about. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from weir.protocol.maps import Maps
from weir.protocol.offsets import SourcePosition
from weir.protocol.shape import Shape
from weir.spark.logs import PARTITIONS
from weir.spark.reshape import backend_of


@dataclass(frozen=True)
class Before:
    """A query as the savepoint has it."""

    shape: Shape
    """With the operators that its files tell of (`Shape.with_files`)."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """What its offset log fixes; nothing for a query without a batch."""
    offsets: tuple[str, ...] = ()
    """Where its sources stand, as Spark wrote it; may be left out."""
    unread: Callable[[str], int] = field(default=lambda _channel: 0, compare=False)
    """How many batches of rows in a channel of the point it has not read; asked where it stops reading it."""


@dataclass(frozen=True)
class Options:
    """What the user says about the restore."""

    maps: tuple[str, ...] = ()
    """See `maps.py`."""
    allow_dropped: bool = False
    parallelism: int | None = None
    """None: as it was."""
    backend: str | None = None
    positions: Mapping[str, Mapping[int, SourcePosition]] = field(default_factory=dict)
    """By query and number: sources of the job that do not resume where they stood."""


@dataclass(frozen=True)
class QueryChange:
    """One query before and after."""

    name: str
    was: str
    """What it was called at the point."""
    base: str
    """The query of the point whose files it begins with; "" for one that begins with nothing."""
    queries: Mapping[str, Before]
    """All of the point."""
    new: Shape
    options: Options
    maps: Maps

    @cached_property
    def before(self) -> Before:
        return self.queries.get(self.was, Before(Shape()))

    @cached_property
    def old(self) -> Shape:
        """What it was, in the texts of what it is."""
        return self.before.shape.in_terms_of(self.new)

    @cached_property
    def conf(self) -> Mapping[str, str]:
        return self.queries[self.base].conf if self.base else {}

    @cached_property
    def comparable(self) -> bool:
        """Whether the texts of both sides may be compared."""
        return self.before.shape.speaks_like(self.new)

    @cached_property
    def partitions(self) -> int:
        """How many its state will have; 0 where nothing says it."""
        return self.options.parallelism or int(self.conf.get(PARTITIONS, 0))

    @cached_property
    def backend(self) -> str:
        return self.options.backend or (backend_of(self.conf) if self.conf else "")

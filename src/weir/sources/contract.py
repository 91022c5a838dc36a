"""The contract between a job and a source that receives (docs/design.md, section 9).

Some peers can't be asked again: what they have sent they have sent. A source of such a peer has a
receiver in the driver, which journals what comes before Spark sees it; Spark then reads the journal,
which can be replayed. The journal lies in the live files of the job, at the source's place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from weir.clock import Deadline
from weir.ids import QueryName, SourceName, Token
from weir.spark.checkpoint_files import QueryFiles
from weir.storage import Store, paths
from weir.storage.attempts import Lease
from weir.storage.paths import Live

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@runtime_checkable
class Source(Protocol):
    """Anything that can be loaded as a streaming frame."""

    def load(self, spark: SparkSession) -> DataFrame:
        """A streaming frame of this source, new at each call."""


@dataclass(frozen=True)
class Place:
    """Where one source keeps its journal: below `prefix` in the store."""

    source: SourceName
    store: Store
    prefix: str

    @classmethod
    def of(cls, live: Live, name: SourceName) -> Place:
        """The place of a receiving source; it outlives every generation."""
        return cls(name, live.store, paths.source(live.job, live.generation, name))

    @property
    def url(self) -> str:
        """The place as another process opens it."""
        return f"{self.store.url}/{self.prefix}"


def _not_known(_query: QueryName) -> None:
    return None


@dataclass(frozen=True)
class ReadingQuery:
    """A query that reads a source, and its live files."""

    name: QueryName
    files: QueryFiles
    retained: Callable[[QueryName], Sequence[str] | None] = _not_known
    """The offsets from which retained checkpoints would go on, as Spark wrote them; None: not known."""

    def position(self, source: SourceName) -> int:
        """The journal entry behind the last one that a committed batch has read; 0 before there is one.

        What a planned and uncommitted batch needs is never in front of it.
        """
        offsets = self.files.committed_offsets()
        return min((o["entry"] for o in offsets if o.get("source") == source), default=0)

    def needed(self, source: SourceName) -> int:
        """The journal entry behind the last one that neither the query nor a checkpoint reads again."""
        retained = self.retained(self.name)
        if retained is None:
            return 0
        offsets = [json.loads(line) for line in retained if line.startswith("{")]
        kept = [int(o["entry"]) for o in offsets if o.get("source") == source]
        return min([self.position(source), *kept])


class Receiver(Protocol):
    """What receives for one source; one per source and driver, however many queries read it."""

    def check(self) -> None:
        """Raise what `start` would raise, and write nothing: asked before a restore rewinds any sink."""

    def start(self) -> None:
        """Announce the token in the journal, then receive in a thread of its own.

        Raises `FencedError` when a higher token is there, and `LostInputError` when the journal
        does not hold what a query goes on with. A peer that is not there is no error.
        """

    def ask_to_end(self) -> None:
        """Take nothing more; what is received is still journaled. Safe to repeat, from any thread."""

    def end(self, deadline: Deadline) -> bool:
        """Wait for the end that was asked for; False when the deadline passed before."""


@runtime_checkable
class ReceivingSource(Protocol):
    """A source with a receiver. Its offsets are `{"entry": n, "source": name}`."""

    def load(self, spark: SparkSession, place: Place) -> DataFrame:
        """A streaming frame of the journal at this place, new at each call."""

    def receiver(self, place: Place, token: Token, lease: Lease, readers: Sequence[ReadingQuery]) -> Receiver:
        """The receiver, not started; what all readers have behind them it may delete."""

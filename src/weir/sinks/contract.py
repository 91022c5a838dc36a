"""The contract that each exactly-once sink keeps (docs/design.md, section 9).

Inside a batch a sink only stages, under its token and the batch. When Spark's `commits/<n>` exists, and
never before, the staging of the run that wrote it is committed, in batch order, with a ledger entry
in the same step. Every verb is safe to repeat. The one contract suite for all sinks is
`tests/contract/test_sink.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from weir.clock import doubling, retry
from weir.errors import ExternalError
from weir.ids import BatchId, CheckpointId, QueryName, Token
from weir.protocol.ledger import Ledger, Staged
from weir.sinks.fence import Knows, anyone
from weir.spark.checkpoint_files import QueryFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter
    from pyspark.sql.types import StructType

PAUSES = doubling(0.1, 8)
"""Seconds before each further try of a step whose outcome is not known: about 13 in all."""


class Outcome(str, Enum):
    """What became of a step that may have been taken before."""

    DONE_NOW = "done now"
    ALREADY_DONE = "already done"
    UNKNOWN = "unknown"
    """No answer came; the step may be repeated."""


def until_known(
    step: Callable[[], Outcome],
    unknown: str,
    wait: Callable[[float], object],
    pauses: Sequence[float] = PAUSES,
    on: type[ExternalError] | tuple[()] = ExternalError,
) -> None:
    """Repeat a step until it is known what became of it.

    Raises `ExternalError` with the text `unknown` when the last try leaves it open, too.
    """
    outcome = retry(step, pauses, wait, on=on, until=lambda answer: answer is not Outcome.UNKNOWN)
    if outcome is Outcome.UNKNOWN:
        raise ExternalError(what=f"{unknown} in {len(pauses) + 1} tries")


@runtime_checkable
class StagingSink(Protocol):
    """A sink that delivers each batch exactly once."""

    def describe(self) -> str:
        """Where it writes, for people; without secrets."""

    def look(self, owner: str, lineage: str, token: Token, knows: Knows = anyone) -> Ledger:
        """The ledger as `open` would find it; raises as `open` does. Announces nothing, disturbs nobody.

        A start looks at all its sinks before it opens the first: one that is refused has fenced nobody.
        While somebody writes, the newest batches may be missing. `staged` may be asked after it.
        """

    def open(self, owner: str, lineage: str, token: Token, knows: Knows = anyone) -> Ledger:
        """Announce the token in the ledger; from then on no lower token can commit.

        Returns the ledger as it stands after the announcement. Raises `SinkMismatchError` when
        the output belongs to another owner or to live files of another lineage, `FencedError`
        when a higher token is there, and `SinkTakenError` when the fence that is there is of an attempt
        that this job's directory does not know (`knows`), or of an equal token of another session. Then
        nothing was announced.
        """

    def stage(self, frame: DataFrame, batch: BatchId, token: Token) -> None:
        """Evaluate the batch once and write its output where no reader sees it."""

    def record(self, staged: Staged) -> None:
        """Make the complete staging durable; only what is recorded can ever be committed.

        Raises `FencedError` when the newest fence is not the opener's own, and `LedgerWentBackError` when
        the ledger is older than what the opener has seen of it. So does `commit`.
        """

    def staged(self) -> Sequence[Staged]:
        """Everything that is recorded and was not discarded, by any run, delivered or not."""

    def commit(self, staged: Staged) -> Outcome:
        """Make the batch visible, and enter it in the ledger, in one step."""

    def discard(self, upto: BatchId, keep: Sequence[Staged]) -> None:
        """Delete every staging, recorded or not, up to this batch, neither delivered nor to be kept.

        Called at a start, after `open`, with the last batch that Spark has committed. Stagings of
        later batches stay: a zombie may still decide for one of them, and then it is the true one.
        So do those of newer runs: this one may be a zombie itself by now.
        """

    def rewind(self, to: BatchId) -> Outcome:
        """Rewind the output to this batch: no later one counts."""


@runtime_checkable
class NativeSink(Protocol):
    """A sink of Spark's own, which weir only starts and watches: at least once."""

    def describe(self) -> str:
        """Where it writes, for people."""

    def attach(self, writer: DataStreamWriter) -> DataStreamWriter:
        """Set the format and options on the writer of a query."""


@runtime_checkable
class CheckedSink(Protocol):
    """A sink with the method `check`. Only job files ask for this class, as a base."""

    def check(self, query: QueryName, frame: DataFrame, output_mode: str) -> None:
        """See `Capabilities.check`."""


@runtime_checkable
class CountingSink(Protocol):
    """A sink with the method `records_above`. Only job files ask for this class, as a base."""

    def records_above(self, batch: BatchId) -> int | None:
        """See `Capabilities.records_above`."""


@runtime_checkable
class PlacedSink(Protocol):
    """A sink as the author gives it, which keeps something in the job's directory."""

    def at(self, location: str, files: QueryFiles) -> StagingSink:
        """The sink with this folder, which outlives every generation, of the query with these files.

        Connects to nothing: a pipeline is evaluated often.
        """


@dataclass(frozen=True)
class SinkPart:
    """What one sink has to commit together with others."""

    sink: StagingSink
    staged: tuple[Staged, ...]
    """In batch order."""


@dataclass(frozen=True)
class Capabilities:
    """What a sink can do beside its contract; a sink that can do it has an attribute or method of that name.

    None, or the default, where it can't.
    """

    rewindable: bool = True
    """Whether what was delivered can be rewound."""
    at_once: bool = False
    """Whether others see what a batch writes before Spark has decided for it: at least once."""
    ledger_in_job: bool = False
    """Whether its ledger is lost with the job's directory, and what was delivered is not."""
    check: Callable[[QueryName, DataFrame, str], None] | None = None
    """Look at the frame's columns and at Spark's output mode, when the pipeline is evaluated.

    Raises `SinkMismatchError` when they can't be delivered.
    """
    expect: Callable[[StructType], None] | None = None
    """Called before `open`, which then raises `SinkMismatchError` for a target that does not fit."""
    skip: Callable[[BatchId], None] | None = None
    """Called before this batch is staged: it is not to be delivered, and nothing is to be done for it.

    For a sink that does something even with a batch without rows.
    """
    forget: Callable[[BatchId], None] | None = None
    """Called now and then, beside `commit`: no checkpoint leads back to a batch below this one.

    For a sink that keeps something for the sake of a rewind.
    """
    records_above: Callable[[BatchId], int | None] | None = None
    """How many records of later batches were delivered; None when that is not known any more.

    For a sink that can't rewind what it has delivered.
    """
    commit_at: Callable[[Staged, CheckpointId], Outcome] | None = None
    """`commit`, of the last batch that belongs to this checkpoint; its ledger entry says so."""
    group: Hashable = None
    """Sinks with equal groups commit together, where they can."""
    commit_together: Callable[[Sequence[SinkPart], CheckpointId], Outcome] | None = None
    """Make all of it visible, and enter it in every ledger, in one step; each sink is of this group.

    Raises `FencedError` when a higher token than one of the openers' was announced: then none is.
    """


class SinkAround:
    """Marks a sink of weir's own that is around the author's, its `inner`."""


def capabilities(sink: object) -> Capabilities:
    """What a sink can do, or the author's object that it is made of.

    A sink with user state around it can do what that sink can, but for `commit_at` and `commit_together`:
    they would pass by the values, which are delivered with each batch. A sink of the author's that keeps
    something called `inner` answers for itself.
    """
    inner = getattr(sink, "inner", sink)
    own = inner if isinstance(sink, SinkAround) else sink
    return Capabilities(
        rewindable=bool(getattr(own, "rewindable", True)),
        at_once=bool(getattr(own, "at_once", False)),
        ledger_in_job=bool(getattr(own, "ledger_in_job", False)),
        check=getattr(own, "check", None),
        expect=getattr(own, "expect", None),
        # these two an author's sink need not pass on to the one that it is around
        skip=getattr(inner, "skip", None),
        forget=getattr(inner, "forget", None),
        records_above=getattr(own, "records_above", None),
        commit_at=getattr(sink, "commit_at", None),
        group=getattr(sink, "group", None),
        commit_together=getattr(sink, "commit_together", None) if hasattr(sink, "group") else None,
    )


def shows_at_once(sink: object) -> bool:
    """Whether others see what a batch writes before Spark has decided for it."""
    return not isinstance(sink, StagingSink) or capabilities(sink).at_once

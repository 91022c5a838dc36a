"""The threads that take snapshots and delete files next to the coordinator, and what they have in hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from weir.checkpoint.manifest import ChannelCut, Manifest, QueryCut
from weir.checkpoint.vertex import words_of
from weir.ids import BatchId, CheckpointId, QueryName
from weir.protocol import checkpoint_facts as f
from weir.protocol.checkpoint import Found
from weir.protocol.checkpoint_facts import Fact

T = TypeVar("T")


@dataclass
class Work:
    """What is being kept, and was kept, for one checkpoint."""

    queries: dict[QueryName, Future[QueryCut]] = field(default_factory=dict)
    pinned: set[QueryName] = field(default_factory=set)
    """Queries whose files are safe from Spark, though they may still be copied."""
    channels: dict[QueryName, Future[ChannelCut]] = field(default_factory=dict)
    exported: Future[None] | None = None
    """The manifest is being written next to the copies, if there are any."""
    manifest: Manifest | None = None
    """Assembled when everything is kept."""
    uncollected: list[tuple[Future[Any], Callable[[], Fact], QueryName | None, str]] = field(
        default_factory=list
    )
    """What was not reported yet: the fact when it is done, and whose and what it is when it fails."""

    def await_query(self, id: CheckpointId, name: QueryName, future: Future[QueryCut]) -> None:
        self.queries[name] = future

        def taken() -> Fact:
            cut = future.result()
            return f.SnapshotTaken(id, name, Found(BatchId(cut.batch), cut.unaligned))

        self.uncollected.append((future, taken, name, f"query {name}: "))

    def await_channel(self, id: CheckpointId, name: QueryName, future: Future[ChannelCut]) -> None:
        self.channels[name] = future
        kept = f.ChannelKept(id, name)
        self.uncollected.append((future, lambda: kept, None, f"channel {name}: "))

    def await_export(self, id: CheckpointId, future: Future[None]) -> None:
        self.exported = future
        self.uncollected.append((future, lambda: f.Exported(id), None, ""))

    def collect(self, id: CheckpointId) -> Iterator[Fact]:
        """What was done since the last call."""
        for one in list(self.uncollected):
            future, fact, query, what = one
            if future.done():
                self.uncollected.remove(one)
                error = future.exception()
                yield fact() if error is None else f.KeepFailed(id, f"{what}{words_of(error)}", query)


class Workers:
    """A small pool; `wake` is called whenever something that was submitted is done."""

    def __init__(self, queries: int, wake: Callable[[], None]) -> None:
        # No query's snapshot waits until the files of another are copied to a place that is slow.
        self._pool = ThreadPoolExecutor(max(4, 2 * queries), thread_name_prefix="weir-snapshot")
        self._wake = wake

    def submit(self, work: Callable[..., T], *args: object) -> Future[T]:
        """Begin something whose end is waited for."""
        future = self._pool.submit(work, *args)
        future.add_done_callback(lambda _: self._wake())
        return future

    def aside(self, work: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        """Begin something that nobody waits for."""

        def done(future: Future[None]) -> None:
            if not future.cancelled() and (error := future.exception()) is not None:
                failed(error)

        self._pool.submit(work).add_done_callback(done)

    def end(self, *, wait: bool) -> None:
        """Take nothing more; what is under way is waited for only if asked."""
        self._pool.shutdown(wait=wait, cancel_futures=True)

"""The threads that take snapshots and let go of files beside the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


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

"""The driver's right to write, and its end when that right is lost.

A lease runs from the moment at which its renewal was asked for, not from the answer: so it is over
here before any taker may have waited long enough. `check` is asked before every step that others
can see; after SIGSTOP and SIGCONT it refuses at once, because the monotonic clock went on.
"""

from __future__ import annotations

import math

from weir.clock import Clock
from weir.errors import FencedError
from weir.ids import Attempt


class Lease:
    """One attempt's lease. Any thread may call `check`; one thread renews."""

    def __init__(self, attempt: Attempt, timeout: float, clock: Clock, session: str = "") -> None:
        self.attempt = attempt
        self.session = session
        """The attempt's, as its record has it; "" where it is not known."""
        self._timeout = timeout
        self._clock = clock
        self._asked_at = clock.monotonic()

    @property
    def left(self) -> float:
        """Seconds left, below zero once it is over."""
        return self._asked_at + self._timeout - self._clock.monotonic()

    def renewed(self, asked_at: float) -> None:
        """The renewal that was asked for at this moment has been confirmed.

        A confirmation that comes after the lease was over does not bring it back.
        """
        if self.left > 0:
            self._asked_at = max(self._asked_at, asked_at)

    def end(self) -> None:
        """A newer attempt is known to exist: the lease is over, for good."""
        self._asked_at = -math.inf

    def check(self) -> None:
        """Raise `FencedError` when the lease is over."""
        if self.left <= 0:
            raise FencedError(
                who=f"attempt {self.attempt}",
                by=f"its lease of {self._timeout:g} s was not renewed, a newer attempt",
            )

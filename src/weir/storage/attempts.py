"""One driver at a time: the attempts of a job, their beats, and the lease of a driver.

Creating `attempts/<N+1>.json` if absent is the lock, where N is the newest. A job whose attempts must be
higher than that, because it has run in another directory, is locked the same way: its owner then steps up
itself. So the attempt after one's own exists for every owner that was replaced, until retention deletes
both records, its own first: an owner without a record was replaced too. Only its owner writes
`attempts/<N>.beat`, a counter; a taker must see it unchanged for the timeout (its own or the owner's,
whichever is longer) on its own monotonic clock. Wall clocks are shown, never compared. On the owner's own
machine a taker need not wait when every process of the owner is known to be gone.

A `Lease` is the driver's right to write. It runs from the moment at which its renewal was asked for, not from
the answer: so it is over here before any taker may have waited long enough. `check` is called before every
step that others can see; after SIGSTOP and SIGCONT it refuses at once, because the monotonic clock kept
running. `KnownAttempts` says whose fences are in a sink.
"""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace

from weir.clock import Clock
from weir.errors import FencedError, JobRunningError, OutcomeUnknownError
from weir.ids import Attempt, JobName, Token
from weir.protocol.decide import AttemptHolder, Take, may_take
from weir.protocol.ledger import is_known
from weir.storage import paths
from weir.storage.log import numbers
from weir.storage.process import boot, group_lives, lives, started, user
from weir.storage.store import Created, Store

_UNKNOWN_SINCE = "1970-01-01T00:00:00+00:00"


@dataclass(frozen=True)
class AttemptRecord:
    """Who opened an attempt, and since when; for people, and for `gone`."""

    attempt: Attempt
    pid: int
    started: str
    """When the process started, as its machine counts; a process with its number may be another."""
    host: str
    boot: str
    user: str
    since: str
    session: str
    """Names the supervisor over its attempts; requests are addressed to it."""
    timeout: float = 0.0
    """How long, in seconds, the lease of its driver lasts without a beat; 0 from an earlier weir."""
    above: int = 0
    """Attempts of other directories up to this one are over: a savepoint or the user says so."""


_FIELDS = frozenset(field.name for field in fields(AttemptRecord))


@dataclass(frozen=True)
class Beat:
    """The owner's counter, and what it has started."""

    count: int = 0
    released: bool = False
    group: int = 0
    """The process group of the driver, or 0."""
    failed: bool = False
    """Released because the job failed; of a job without a supervisor, which has no journal."""


class AttemptLock:
    """The attempts of one job, as an owner or a taker sees them."""

    def __init__(self, store: Store, job: JobName, clock: Clock) -> None:
        self._store = store
        self._job = job
        self._clock = clock
        self._held: AttemptRecord | None = None
        self._beat = Beat()

    @property
    def held(self) -> Attempt:
        """The attempt that this object holds."""
        assert self._held is not None, "no attempt is held"
        return self._held.attempt

    def acquire(
        self,
        session: str,
        timeout: float,
        waiting: Callable[[AttemptRecord, float], None],
        above: int = 0,
    ) -> Attempt:
        """Open the next attempt; raises `JobRunningError` as soon as its holder is seen alive.

        `waiting` is called with the holder whose silence is waited out, and for how long at most. The attempt
        is higher than `above`, which the job may have had in another directory.
        """
        while True:
            newest = self.newest()
            if newest is not None:
                self._wait_out(newest, timeout, waiting)
                if self.newest() != newest:  # somebody was quicker: wait for that one next
                    continue
            if self._take(newest, session, timeout, above):
                return self.held

    def advance(self, session: str, timeout: float, above: int = 0) -> Attempt:
        """Open the attempt after the one that this object holds; the owner restarts its driver.

        The attempt is higher than `above`. Raises `FencedError` when somebody else has taken the job.
        """
        if not self._take(self._held, session, timeout, above):
            raise FencedError(who=f"attempt {self.held}", by=f"attempt {self.held + 1}")
        return self.held

    def beat(self, group: int = 0) -> None:
        """Show that the owner lives; raises `FencedError` when a newer attempt exists.

        Also when its own record is gone. That is checked last: records are deleted in their order, so where
        the next one is deleted already, so is this one.
        """
        if self._store.exists(paths.attempt(self._job, Attempt(self.held + 1))):
            raise FencedError(who=f"attempt {self.held}", by=f"attempt {self.held + 1}")
        if not self._store.exists(paths.attempt(self._job, self.held)):
            raise FencedError(who=f"attempt {self.held}, whose record was deleted,", by="a newer attempt")
        self._write(replace(self._beat, count=self._beat.count + 1, group=group or self._beat.group))

    def release(self, *, failed: bool = False) -> None:
        """Record that the owner and its driver have ended; the next taker need not wait."""
        self._write(replace(self._beat, count=self._beat.count + 1, released=True, failed=failed))

    def newest(self) -> AttemptRecord | None:
        """The newest attempt of the job, or None.

        One whose record is damaged has a holder, nobody knows who.
        """
        number = max(_numbers(self._store, self._job), default=None)
        if number is None:
            return None
        key = paths.attempt(self._job, number)
        record = _decoded(self._store.get(key))
        if record is None:  # of no known machine, so only its beat shows whether it lives
            host = f"an unknown machine ({key} can't be read)"
            record = AttemptRecord(number, 0, "", host, "", "", _UNKNOWN_SINCE, "")
        return record

    def last_beat(self, attempt: Attempt) -> Beat:
        """What the owner wrote last; a damaged beat counts as none, and a living owner writes the next."""
        try:
            return Beat(**json.loads(self._store.get(paths.beat(self._job, attempt)) or b"{}"))
        except (ValueError, TypeError, RecursionError):
            return Beat()

    def _wait_out(
        self, newest: AttemptRecord, timeout: float, waiting: Callable[[AttemptRecord, float], None]
    ) -> None:
        first = self.last_beat(newest.attempt)
        since = self._clock.monotonic()
        while True:
            beat = self.last_beat(newest.attempt)
            if beat.count != first.count and not beat.released:
                raise JobRunningError(job=self._job, **asdict(newest))
            silent = self._clock.monotonic() - since
            holder = AttemptHolder(beat.count, silent, beat.released or gone(newest, beat))
            decision = may_take(holder, max(timeout, newest.timeout))
            if isinstance(decision, Take):
                return
            waiting(newest, decision.seconds)

    def _take(self, newest: AttemptRecord | None, session: str, timeout: float, above: int) -> bool:
        """Lock the job with the attempt after the newest, then step up; False when somebody else has it."""
        above = max(above, newest.above if newest else 0)
        first = Attempt(newest.attempt + 1 if newest else 1)
        if not self._create(first, session, timeout, above):
            return False
        if first <= above and not self._create(Attempt(above + 1), session, timeout, above):
            raise FencedError(who=f"attempt {first}", by=f"attempt {above + 1}")
        return True

    def _create(self, number: Attempt, session: str, timeout: float, above: int) -> bool:
        record = AttemptRecord(
            number,
            os.getpid(),
            started(os.getpid()),
            socket.gethostname(),
            boot(),
            user(),
            self._clock.now().isoformat(),
            session,
            timeout,
            above,
        )
        key = paths.attempt(self._job, number)
        if not self._is_created(key, record):
            return False
        if max(_numbers(self._store, self._job), default=number) > number:
            # We slept since the newest was looked up: this number was taken, and its record deleted. Where
            # the record before it is left, its owner learns from this one that it was taken over: it stays.
            if not self._store.exists(paths.attempt(self._job, Attempt(number - 1))):
                self._store.delete(key)
            return False
        self._held, self._beat = record, Beat()
        return True

    def _is_created(self, key: str, record: AttemptRecord) -> bool:
        """Create the record. One of our own session is ours: the answer to its creation was lost."""
        try:
            if self._store.create(key, json.dumps(asdict(record)).encode()) is Created.NOW:
                return True
        except OutcomeUnknownError:
            if self._store.get(key) is None:
                raise
        winner = _decoded(self._store.get(key))
        return winner is not None and winner.session == record.session

    def _write(self, beat: Beat) -> None:
        self._beat = beat
        form = asdict(beat)
        if not beat.failed:  # an earlier weir does not know the field
            del form["failed"]
        self._store.put(paths.beat(self._job, self.held), json.dumps(form).encode())


class KnownAttempts:
    """What a job's directory knows of the attempts whose fences are found in sinks."""

    def __init__(self, store: Store, job: JobName) -> None:
        self._store = store
        self._job = job

    def __call__(self, fence: Token) -> bool:
        """Whether a fence is of an attempt of this directory, or of one that is over elsewhere."""
        numbers = _numbers(self._store, self._job)
        newest = self._record(max(numbers)) if numbers else None
        above = newest.above if newest is not None else 0
        session = None
        if fence.attempt in numbers:
            record = self._record(fence.attempt)
            session = record.session if record is not None else ""
        return is_known(fence, session, min(numbers, default=0), above)

    def _record(self, number: Attempt) -> AttemptRecord | None:
        return _decoded(self._store.get(paths.attempt(self._job, number)))


def _numbers(store: Store, job: JobName) -> list[Attempt]:
    """The attempts that have a record. As numbers: their names are not in order beyond six digits."""
    return [Attempt(number) for number in numbers(store, paths.attempts(job))]


def _decoded(data: bytes | None) -> AttemptRecord | None:
    """The record; None when it is damaged. Fields that a newer weir adds are ignored."""
    try:
        content = json.loads(data or b"")
        return AttemptRecord(**{name: content[name] for name in content if name in _FIELDS})
    except (ValueError, TypeError, RecursionError):
        return None


def gone(record: AttemptRecord, beat: Beat) -> bool:
    """Whether owner and driver are known to be dead: only the owner's own machine can tell."""
    if not visible(record) or (beat.group and group_lives(beat.group)):
        return False
    return started(record.pid) != record.started or not lives(record.pid)


def visible(record: AttemptRecord) -> bool:
    """Whether the owner's processes can be seen from here: its machine, boot and process namespace."""
    own = boot()  # without one, two machines of one name would be the same
    return bool(own) and record.host == socket.gethostname() and record.boot == own


class Lease:
    """One attempt's lease. Any thread may call `check`; one thread renews."""

    def __init__(self, attempt: Attempt, timeout: float, clock: Clock, session: str = "") -> None:
        self.attempt = attempt
        self.session = session
        """The attempt's, as its record has it; "" where it is not known."""
        self._timeout = timeout
        self._clock = clock
        self._asked_at = clock.monotonic()
        self._fenced: FencedError | None = None

    @property
    def left(self) -> float:
        """Seconds left, below zero once it is over."""
        return self._asked_at + self._timeout - self._clock.monotonic()

    def renewed(self, asked_at: float) -> None:
        """The renewal that was asked for at this moment has been confirmed.

        A confirmation that comes after the lease was over does not restore it.
        """
        if self.left > 0:
            self._asked_at = max(self._asked_at, asked_at)

    def end(self, fenced: FencedError | None = None) -> None:
        """A newer attempt is known to exist: the lease is over, for good. `fenced` names that attempt."""
        self._fenced = fenced  # first: whoever sees that the lease is over can say who has taken over
        self._asked_at = -math.inf

    def check(self) -> None:
        """Raise `FencedError` when the lease is over."""
        if self.left <= 0:
            if self._fenced is not None:
                raise FencedError(**self._fenced.fields)
            raise FencedError(
                who=f"attempt {self.attempt}",
                by=f"a newer attempt (its own lease of {self._timeout:g} s was not renewed)",
            )

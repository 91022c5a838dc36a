"""One driver at a time: attempts and their beats.

Creating `attempts/<N+1>.json` if absent is the lock. Only its owner writes `attempts/<N>.beat`, a
counter; a taker must see it unchanged for the timeout (its own or the owner's, whichever is longer) on
its own monotonic clock. Wall clocks are shown, never compared. On the owner's own machine a taker need
not wait when every process of the owner is known to be gone.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from weir.clock import Clock
from weir.errors import FencedError, JobRunningError
from weir.ids import Attempt, JobName
from weir.protocol.decide import Holder, Take, may_take
from weir.storage import paths
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
    """So long, in seconds, the lease of its driver may last without a beat; 0 from an earlier weir."""


@dataclass(frozen=True)
class Beat:
    """The owner's counter, and what it has started."""

    count: int = 0
    released: bool = False
    group: int = 0
    """The process group of the driver, or 0."""


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

        `waiting` is told whose silence is being waited out, and for how long at most. The attempt is
        higher than `above`, which the job may have had in another directory.
        """
        while True:
            newest = self.newest()
            if newest is not None:
                self._wait_out(newest, timeout, waiting)
            number = Attempt(max(newest.attempt if newest else 0, above) + 1)
            if self._create(number, session, timeout):
                return number

    def advance(self, session: str, timeout: float) -> Attempt:
        """Open the attempt after the one that this object holds; the owner restarts its driver."""
        number = Attempt(self.held + 1)
        if not self._create(number, session, timeout):
            raise FencedError(who=f"attempt {self.held}", by=f"attempt {number}")
        return number

    def beat(self, group: int = 0) -> None:
        """Show that the owner lives; raises `FencedError` when a newer attempt exists."""
        if self._store.exists(paths.attempt(self._job, Attempt(self.held + 1))):
            raise FencedError(who=f"attempt {self.held}", by=f"attempt {self.held + 1}")
        self._write(replace(self._beat, count=self._beat.count + 1, group=group or self._beat.group))

    def release(self) -> None:
        """Say that the owner and its driver have ended; the next taker need not wait."""
        self._write(replace(self._beat, count=self._beat.count + 1, released=True))

    def newest(self) -> AttemptRecord | None:
        """The newest attempt of the job, or None. One whose record is torn has a holder, nobody knows who."""
        keys = [k for k in self._store.list(paths.attempts(self._job)) if k.endswith(".json")]
        if not keys:
            return None
        try:
            return AttemptRecord(**json.loads(self._store.get(keys[-1]) or b""))
        except (ValueError, TypeError):
            return _unknown(keys[-1])

    def last_beat(self, attempt: Attempt) -> Beat:
        """What the owner has shown last; a torn beat is none, and a living owner writes the next."""
        try:
            return Beat(**json.loads(self._store.get(paths.beat(self._job, attempt)) or b"{}"))
        except (ValueError, TypeError):
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
            holder = Holder(beat.count, silent, beat.released or gone(newest, beat))
            decision = may_take(holder, max(timeout, newest.timeout))
            if isinstance(decision, Take):
                return
            waiting(newest, decision.seconds)

    def _create(self, number: Attempt, session: str, timeout: float) -> bool:
        record = AttemptRecord(
            number,
            os.getpid(),
            _started(os.getpid()),
            socket.gethostname(),
            boot(),
            _user(),
            self._clock.now().isoformat(),
            session,
            timeout,
        )
        key = paths.attempt(self._job, number)
        if self._store.create(key, json.dumps(asdict(record)).encode()) is not Created.NOW:
            return False
        self._held, self._beat = record, Beat()
        return True

    def _write(self, beat: Beat) -> None:
        self._beat = beat
        self._store.put(paths.beat(self._job, self.held), json.dumps(asdict(beat)).encode())


def _unknown(key: str) -> AttemptRecord:
    """The attempt at this key, whose record is torn: of no known machine, so only its beat can tell."""
    number = Attempt(int(key.rsplit("/", 1)[1].removesuffix(".json")))
    host = f"an unknown machine ({key} can't be read)"
    return AttemptRecord(number, 0, "", host, "", "", _UNKNOWN_SINCE, "")


def gone(record: AttemptRecord, beat: Beat) -> bool:
    """Whether owner and driver are known to be dead: only the owner's own machine can tell."""
    if not visible(record) or (beat.group and group_lives(beat.group)):
        return False
    return _started(record.pid) != record.started or not _answers(lambda: os.kill(record.pid, 0))


def visible(record: AttemptRecord) -> bool:
    """Whether the owner's processes can be seen from here: its machine, boot and process namespace."""
    return record.host == socket.gethostname() and record.boot == boot()


def group_lives(group: int) -> bool:
    """Whether any process of the group is there, as far as this process namespace shows."""
    return _answers(lambda: os.killpg(group, 0))


def _answers(signal_nothing: Callable[[], None]) -> bool:
    try:
        signal_nothing()
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def boot() -> str:
    """Names this machine since its last start, and the process namespace; "" where that is unknown."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    return ""


def _started(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def whoami() -> str:
    """Who works here, for people: user@host."""
    return f"{_user()}@{socket.gethostname()}"


def _user() -> str:
    with suppress(OSError, KeyError):
        return getpass.getuser()
    return ""

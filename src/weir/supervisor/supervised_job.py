"""The job that a supervisor runs: its state, its driver, and what is to be started when.

What happens to it is handled by subject: a driver's message in `driver_messages.py`, a failure in
`failures.py`, a request in `requests.py`, `stop.py` and `restore.py`. All of them work on this one object, in
one thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weir.clock import Clock
from weir.config import Config, Settings
from weir.errors import DriverDiedError, ExternalError
from weir.protocol import messages as m
from weir.protocol.machine import Turns
from weir.protocol.states import JOB, JobEvent, JobState, move
from weir.restore.request import RestoreRequest
from weir.supervisor.home import Home
from weir.supervisor.inbox import Request
from weir.supervisor.query_standings import QueryStandings
from weir.supervisor.recovery import Recoveries
from weir.supervisor.reports import Reports, Watcher
from weir.supervisor.running_driver import RunningDriver, failure_of

GRACE = 10.0
"""How long a driver may take to exit after its queries have ended."""
_WARM_UP = 15.0
"""A driver is started this many seconds before a wait is over, and held: so a short wait costs nothing."""
_BEFORE_THE_END = ("drain",)
"""The phases of a stop in which a query that fails is started again."""


@dataclass(frozen=True)
class Inputs:
    """What the command line gives: the file, its arguments, and the layers of settings."""

    file: Path
    arguments: list[str]
    settings_file: Path | None
    environ: Mapping[str, str]
    overrides: Mapping[str, str]
    wanted: RestoreRequest | None = None
    """The checkpoint or savepoint to resume from, at the first start; None: from the live files."""
    name: str = ""
    """The job's name, instead of the one in its file; "": that one."""
    above: int = 0
    """Attempts begin above this one, which the job has had elsewhere."""
    take_over: int | None = None
    """The attempt that the user named to take over from, out of which `above` was made; None: none."""


@dataclass
class Stopping:
    """A stop that has no answer yet; its steps are in `stop.py`."""

    request: Request
    ending: bool = False
    """Step 2 has begun."""
    saved: dict[str, Any] | None = None
    """What the driver answered; it is about to end."""

    def hear(self, progress: m.SavepointProgress) -> None:
        if progress.request == self.request.id and progress.phase not in _BEFORE_THE_END:
            self.ending = True


class Schedule:
    """What is to be started, and when; on the monotonic clock."""

    def __init__(self, now: float) -> None:
        self.grant_at = 0.0
        """A driver that is ready gets its attempt then, and not before."""
        self.restarts = Turns()
        """The queries that are to start again in the driver that runs."""
        self._deploy_at: float | None = now
        """A driver process is started then; None: there is one, or none is wanted."""
        self._when_able = False
        """And not before the machine can start a process in time."""

    def deploy(self, now: float, delay: float = 0.0, *, when_able: bool = False) -> None:
        """Another driver takes over after a delay; it is made ready before that is over.

        Not one that waits for the machine: it begins when the machine is able to.
        """
        self.grant_at = now + delay
        self._deploy_at = now + (delay if when_able else max(0.0, delay - _WARM_UP))
        self._when_able = when_able

    def cancel(self) -> None:
        """Nothing is started any more."""
        self._deploy_at = None
        self.restarts.clear()

    def waited(self, now: float) -> float | None:
        """For how long something that is due has waited for the machine; None when nothing does."""
        waits = [*self.restarts.waiting(now).values()]
        if self._deploy_at is not None and self._when_able and now >= self._deploy_at:
            waits.append(now - self._deploy_at)
        return max(waits, default=None)

    def take_deploy(self, now: float, *, able: bool) -> float | None:
        """For how many seconds the driver process that starts now has waited; it is due once, then None."""
        at = self._deploy_at
        if at is None or now < at or (self._when_able and not able):
            return None
        self._deploy_at = None
        return now - at if self._when_able else 0.0


class SupervisedJob:
    """Called from one thread."""

    def __init__(self, inputs: Inputs, watcher: Watcher, clock: Clock) -> None:
        self.inputs = inputs
        self.clock = clock
        self.reports = Reports(watcher)
        self.state = JobState.CREATED
        self.final: m.Failure | None = None
        """The failure that ended it, if there is one."""
        self.config: Config | None = None
        """As the newest driver described the job; None until the first one has."""
        self.changes: dict[str, str] = {}
        """Settings that were changed on the running job; the next driver gets them too."""
        self.driver: RunningDriver | None = None
        """None while there is none."""
        self.schedule = Schedule(clock.monotonic())
        self.queries = QueryStandings(clock, lambda body: self.reports.progress("queries", body))
        self.recoveries = Recoveries()
        self.ran = False
        """All queries ran at once under this supervisor."""
        self.progressed = False
        """The job has committed a batch, now or ever."""
        self.stopping: Stopping | None = None
        """A stop that has no answer yet."""

    @property
    def home(self) -> Home | None:
        """What is held of the job; None until its first attempt is granted."""
        return self.reports.home

    @property
    def held(self) -> Home:
        """The same, where it must be held by now."""
        assert self.home is not None, "it is held since the first attempt was granted"
        return self.home

    @property
    def settings(self) -> Settings:
        assert self.config is not None, "a driver has described the job"
        return self.config.settings

    @property
    def ending(self) -> bool:
        """No query is started any more."""
        return (self.stopping is not None and self.stopping.ending) or self.state.ending

    # what is kept and shown

    def move(self, event: JobEvent) -> None:
        home = self.held
        self.state = move(f"job {home.job}", JOB, self.state, event)
        self.ran = self.ran or self.state in (JobState.RUNNING, JobState.DEGRADED)
        self.event("state", {"state": self.state.value})
        self.reports.watcher.state(home.job, self.state, home.attempt)

    def event(self, kind: str, body: Mapping[str, object], query: str = "") -> None:
        self.reports.event(kind, body, query)

    def note(self, text: str) -> None:
        self.reports.note(text)

    def died(self, how: str) -> m.Failure:
        """The failure of a driver that ended, or had to be ended."""
        home = self.home
        attempt, job = (home.attempt, home.job) if home is not None else (0, "?")
        return failure_of(DriverDiedError(attempt=attempt, job=job, how=how))

    # what follows from its queries and its driver

    def fail_early(self, failure: m.Failure) -> None:
        """The job fails before anything of it was held: no state of it is kept anywhere."""
        self.final, self.state = failure, JobState.FAILED

    def settle(self, driver: RunningDriver) -> None:
        """Let the state of the job follow from those of its queries."""
        event = self.queries.event()
        if driver.leaving or self.ending or event is None or event not in JOB[self.state]:
            return
        if JOB[self.state][event] is not self.state:
            self.move(event)

    def ended(self) -> None:
        """All queries have ended. With one that has failed for good the job has not come to a good end."""
        failed = self.queries.given_up()
        if failed is not None and not self.state.ending:
            self.final = failed
            self.move(JobEvent.GIVE_UP)
        self.move(JobEvent.ENDED)

    def end_driver(self, *, cancelled: bool) -> None:
        """Ask the driver for a clean end, with a limit; one that does not run yet is just ended.

        Only a job that was cancelled may delete its checkpoints: one that failed resumes from them.
        """
        self.schedule.cancel()
        if self.driver is not None and self.driver.granted:
            self.stop_driver(self.driver, cancelled=cancelled)
            return
        self.kill_driver()
        self.move(JobEvent.ENDED)

    def stop_driver(self, driver: RunningDriver, *, cancelled: bool) -> None:
        seconds = self.settings.task_cancellation_timeout.total_seconds()
        driver.process.send(m.StopQueries(seconds, cancelled=cancelled))
        driver.kill_at = self.clock.monotonic() + seconds + GRACE

    def kill_driver(self) -> None:
        """End the driver's process, if there is one."""
        if self.driver is not None:
            self.driver.process.end()
            self.driver = None


class Pulse:
    """The beat that shows others that this supervisor lives, and where its driver's processes are."""

    def __init__(self, job: SupervisedJob) -> None:
        self._job = job
        self._due_at = 0.0
        self._failed = False

    def beat_if_due(self, now: float) -> None:
        if now >= self._due_at:
            self.beat()

    def beat(self) -> bool:
        """Beat now. A store that fails is no reason to end: without beats the lease runs out."""
        job = self._job
        try:
            job.held.lock.beat(job.driver.process.group if job.driver else 0)
        except ExternalError as error:
            if not self._failed:  # once for an outage, not at every beat of it
                job.note(f"the beat could not be written: {error.text}")
            self._failed = True
            return False
        finally:
            self._due_at = job.clock.monotonic() + job.settings.heartbeat_interval.total_seconds()
        if self._failed:
            self._failed = False
            job.note("the beat can be written again")
        return True

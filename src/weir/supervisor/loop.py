"""The supervisor: opens attempts, runs one driver at a time, and starts it again when it dies.

Everything that happens comes through one queue and is handled in one thread, in order: messages of
the driver (`driver_messages.py`), its end and failures (`failures.py`), signals and requests
(`requests.py`, `stop.py`, `restore.py`), and the passing of time. Decisions are made in `protocol/`;
here they are carried out and written to the journal.
"""

from __future__ import annotations

import queue
import signal
import threading
import uuid
from dataclasses import dataclass

from weir.clock import Clock
from weir.errors import ExternalError, FencedError, JobFileError, NoProcessError, WeirError
from weir.ids import job_name
from weir.protocol import messages as m
from weir.protocol.decide import OF_THE_DRIVER, OF_THE_SUPERVISOR, FailedAt
from weir.protocol.machine import NONE_LEFT
from weir.protocol.restart import Restarts
from weir.protocol.states import JobEvent, JobState
from weir.storage.attempts import AttemptRecord
from weir.supervisor.driver_messages import DriverMessages
from weir.supervisor.failures import FailureHandler, strategy
from weir.supervisor.home import Home
from weir.supervisor.machine import MachineWait
from weir.supervisor.process import DriverProcess
from weir.supervisor.reports import Watcher
from weir.supervisor.requests import PlanAnswer, RequestHandler
from weir.supervisor.restore import Intended, RestoreHandler
from weir.supervisor.running_driver import Heard, RunningDriver, failure_of
from weir.supervisor.stop import CancelledEarlyError, answer_stopped, cancel
from weir.supervisor.supervised_job import Inputs, Pulse, SupervisedJob

_SIGNALS = {number.name: number for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
_TICK = 0.1


@dataclass(frozen=True)
class _Cancel:
    by: str


class Supervisor:
    """Runs one job until it is over. `run` is called once, from the main thread."""

    def __init__(self, inputs: Inputs, watcher: Watcher, clock: Clock) -> None:
        job = self._job = SupervisedJob(inputs, watcher, clock)
        self._events: queue.Queue[Heard | _Cancel | Intended | PlanAnswer] = queue.Queue()
        self._signalled = threading.Event()
        self._serial = 0
        """Of the driver that was started last."""
        self._waited_for: AttemptRecord | None = None
        """The holder of the attempt that was noted last."""
        self._pulse = Pulse(job)
        self._machine = MachineWait(job)
        restarts = Restarts(lambda: strategy(job.settings))
        self._restores = RestoreHandler(job, restarts, self._events.put)
        self._requests = RequestHandler(job, self._restores, self._events.put)
        self._failures = FailureHandler(job, restarts, self._restores)
        self._messages = DriverMessages(
            job, self._pulse, restarts, self._restores, self._requests, self._failures
        )

    def run(self) -> tuple[JobState, m.Failure | None]:
        """Run the job to its end; the final state, and the failure that ended it if there is one."""
        job = self._job
        for number in _SIGNALS.values():
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup: a logout does not end the job
                signal.signal(number, self._on_signal)
        try:
            while not job.state.final:
                self._step()
        except CancelledEarlyError:
            job.state = JobState.CANCELED
        except WeirError as error:
            job.final = failure_of(error)
            held = job.home is not None and not isinstance(error, FencedError)
            if held and not job.state.final:
                job.move(JobEvent.GIVE_UP)
            job.state = JobState.FAILED
        finally:
            self._close()
        return job.state, job.final

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signalled.set()
        self._events.put(_Cancel(signal.Signals(number).name))

    # the loop

    def _step(self) -> None:
        try:
            event = self._events.get(timeout=_TICK)
        except queue.Empty:
            pass
        else:
            self._handle(event)
        if not self._job.state.final:
            self._pass_time(self._job.clock.monotonic())

    def _handle(self, event: Heard | _Cancel | Intended | PlanAnswer) -> None:
        driver = self._job.driver
        if isinstance(event, _Cancel):
            cancel(self._job, event.by, at_once=True)
        elif isinstance(event, Intended):
            self._restores.resume(event)
        elif isinstance(event, PlanAnswer):
            self._job.held.desk.answer(event.request, event.done, **event.body)
        elif driver is not None and event.serial == driver.serial:
            if event.message is not None:
                driver.heard_at = self._job.clock.monotonic()
            self._messages.hear(driver, event.message)

    def _pass_time(self, now: float) -> None:
        job = self._job
        able = self._machine.is_able(now)
        waited = job.schedule.take_deploy(now, able=able)
        if waited is not None:
            job.recoveries.add("wait", waited)
            self._deploy(now)
        driver = job.driver
        ready = driver is not None and not driver.granted and now >= job.schedule.grant_at
        if ready and driver is not None and driver.described is not None:
            self._try_to_grant(driver, driver.described)
        turn = job.schedule.restarts.take(now, able=able)
        if turn is not None and driver is not None:
            job.recoveries.add("wait", turn.waited, turn.query)
            driver.process.send(m.RestartQuery(turn.query))
        if job.home is not None:
            self._pulse.beat_if_due(now)
            self._requests.take()
            job.home.journal.flush()
        if driver is not None:
            self._check_driver(driver, now)

    def _check_driver(self, driver: RunningDriver, now: float) -> None:
        job = self._job
        silent = now - driver.heard_at
        timeout = job.settings.heartbeat_timeout.total_seconds() if job.config else 0.0
        if driver.kill_at is not None and now >= driver.kill_at:
            job.note("the driver did not end in time and is killed")
            self._failures.driver_over(driver)
        elif silent > driver.patience(timeout):
            driver.failure, driver.hung = job.died(f"has not answered for {silent:.0f} s"), True
            self._failures.driver_over(driver)

    # the start of a driver

    def _deploy(self, now: float) -> None:
        job = self._job
        self._serial += 1
        serial = self._serial
        try:
            process = DriverProcess(
                job.inputs.file,
                job.inputs.arguments,
                job.inputs.name,
                lambda message: self._events.put(Heard(serial, message)),
                job.reports.watcher.output,
            )
        except OSError as error:
            reason = f"could not be started: {error.strerror or error}"
            if error.errno in NONE_LEFT:
                failure = failure_of(NoProcessError(reason=f"the driver {reason}"))
            else:
                failure = job.died(reason)
            if job.home is None:
                job.fail_early(failure)
            else:
                self._failures.failed(FailedAt(None, None, failure, started=False), now)
            return
        job.driver = RunningDriver(serial, process, now, now)

    def _try_to_grant(self, driver: RunningDriver, described: m.JobDescribed) -> None:
        try:
            self._grant(driver, described)
        except ExternalError as error:
            if self._job.home is None or not error.retry:
                raise
            driver.failure = failure_of(error)
            self._failures.driver_over(driver)

    def _grant(self, driver: RunningDriver, described: m.JobDescribed) -> None:
        """The driver is ready and its time has come: give it an attempt."""
        job = self._job
        home = self._hold(described)
        driver.process.keep_output(home.output())
        driver.granted = True
        self._pulse.beat()
        driver.heard_at = job.clock.monotonic()
        body = {"session": home.session, "file": str(job.inputs.file), "driver": driver.process.group}
        job.event("attempt", body)
        job.reports.settings(job.config)
        wanted = job.inputs.wanted if not self._restores.restored_once else None
        wire = wanted.to_wire() if wanted else {}
        driver.process.send(m.StartAttempt(home.attempt, wire, job.ran, home.session))
        job.move(JobEvent.DEPLOY)

    def _hold(self, described: m.JobDescribed) -> Home:
        """Open the next attempt of the job; with the first one, the job is held."""
        job, name = self._job, job_name(described.job)
        if job.home is None:
            assert job.config is not None, "a described driver has settings"
            given = job.inputs
            point = given.wanted.point if given.wanted else ""
            session = uuid.uuid4().hex
            home = Home(name, job.config, session, job.clock, self._waiting, given.above, point)
            job.reports.home = home
            for text in home.notes:
                job.note(text)
            job.progressed = home.journal.has_batches()
            job.reports.watcher.opened(name, job.config)
        elif name == job.home.job:
            job.home.advance(job.settings.heartbeat_timeout.total_seconds())
        else:
            reason = f"it made job {job.home.job!r} before and makes {name!r} now"
            raise JobFileError(file=job.inputs.file, reason=reason, todo="keep one name in one file")
        return job.held

    def _waiting(self, holder: AttemptRecord, seconds: float) -> None:
        if self._signalled.is_set():
            raise CancelledEarlyError
        if holder != self._waited_for:
            self._waited_for = holder
            self._job.reports.watcher.note(
                f"attempt {holder.attempt} is held by process {holder.pid} on {holder.host}: "
                f"waiting up to {seconds:.0f} s for a sign of life"
            )
        self._job.clock.wait(self._signalled, min(seconds, 0.5))

    # the end

    def _close(self) -> None:
        job = self._job
        self._machine.end()
        if job.driver is not None:
            job.driver.process.end()
        if job.home is not None:
            answer_stopped(job)
            self._restores.job_ended()
            job.home.desk.refuse(*OF_THE_DRIVER, "stop", *OF_THE_SUPERVISOR, reason="the job ended")
            job.home.close()

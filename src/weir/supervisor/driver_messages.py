"""What a message of the driver does. Failures and answers are handed on; the rest is done here."""

from __future__ import annotations

from dataclasses import asdict

from weir.config import resolve
from weir.ids import NO_BATCH
from weir.protocol import messages as m
from weir.protocol.restart import Restarts
from weir.protocol.states import QueryEvent
from weir.supervisor.failures import FailureHandler
from weir.supervisor.requests import RequestHandler
from weir.supervisor.restore import RestoreHandler
from weir.supervisor.running_driver import RunningDriver
from weir.supervisor.supervised_job import GRACE, Pulse, SupervisedJob


class DriverMessages:
    """Of the driver that runs now; whatever an earlier one still sends does not come here."""

    def __init__(
        self,
        job: SupervisedJob,
        pulse: Pulse,
        restarts: Restarts,
        restores: RestoreHandler,
        requests: RequestHandler,
        failures: FailureHandler,
    ) -> None:
        self._job = job
        self._pulse = pulse
        self._restarts = restarts
        self._restores = restores
        self._requests = requests
        self._failures = failures

    def hear(self, driver: RunningDriver, message: m.Message | None) -> None:
        """One message, or None when the driver's end of the link is closed."""
        job = self._job
        if message is None:
            self._failures.driver_over(driver)
        elif isinstance(message, m.JobDescribed):
            self._described(driver, message)
        elif isinstance(message, m.Ping):
            if job.home is not None and driver.granted and self._pulse.beat():
                driver.process.send(m.Pong(message.number))
        elif isinstance(message, m.StepDone):
            job.recoveries.add(message.step, message.seconds, message.query)
        elif isinstance(message, m.BatchCommitted):
            self._batch(message)
        elif isinstance(message, m.QueryIdle):
            self._idle(message)
        elif isinstance(message, m.QueryFailed):
            self._failures.query_failed(driver, message)
        elif isinstance(message, m.Ended):
            driver.ended = message
            driver.kill_at = job.clock.monotonic() + GRACE
        elif isinstance(message, m.DriverFailed):
            driver.failure = message.failure
        elif isinstance(message, m.QueryMoved):
            job.queries.moved(message.query, message.state, message.run)
        elif isinstance(message, m.QueryStarted):
            self._query_started(driver, message)
        elif isinstance(message, m.Answered):
            self._requests.answered(message)
        else:
            self._report(driver, message)

    def _described(self, driver: RunningDriver, message: m.JobDescribed) -> None:
        """The job file is loaded: the driver gets the settings, and makes its session."""
        job, given = self._job, self._job.inputs
        driver.described = message
        job.recoveries.add("process", job.clock.monotonic() - driver.spawned_at)
        config = resolve(
            file=given.settings_file,
            job_options=message.options,
            environ=given.environ,
            overrides=given.overrides,
        )
        job.config = config.changed(job.changes)
        driver.process.send(m.Prepare(job.config.to_wire()))

    def _batch(self, batch: m.BatchCommitted) -> None:
        job, home = self._job, self._job.held
        job.progressed = True
        self._restarts.committed(batch.query)
        home.journal.batch(home.attempt, batch)
        job.reports.watcher.batch(batch)
        for body in job.recoveries.committed(batch, job.clock.monotonic()):
            self._recovered(body, f"batch {batch.batch} of {batch.query} is committed")

    def _idle(self, message: m.QueryIdle) -> None:
        job = self._job
        self._restarts.idle(message.query, job.clock.monotonic())
        for body in job.recoveries.idle(message.query):
            self._recovered(body, f"{message.query} runs and has nothing to read")

    def _recovered(self, body: dict[str, object], how: str) -> None:
        self._job.event("recovery", body, str(body["query"]))
        self._job.note(f"recovered in {body['seconds']} s: {how}")

    def _query_started(self, driver: RunningDriver, message: m.QueryStarted) -> None:
        job = self._job
        driver.started = True
        job.schedule.restarts.over(message.query)
        job.progressed = job.progressed or message.last_committed > NO_BATCH
        job.event("query started", asdict(message), message.query)
        job.recoveries.started(message, job.clock.monotonic())
        job.queries.started(message.query, message.run)
        if not driver.leaving:
            self._restores.runs()
        job.settle(driver)

    def _report(self, driver: RunningDriver, message: m.Message) -> None:
        """What is kept and shown, and what little follows from it."""
        job = self._job
        if isinstance(message, m.SavepointProgress) and job.stopping is not None:
            job.stopping.hear(message)
        job.reports.report(message)
        if isinstance(message, m.GraphLearnt):
            job.queries.learn([str(one["name"]) for one in message.queries])
        elif isinstance(message, m.QueryEnded):
            job.schedule.restarts.over(message.query)
            job.queries.apply(message.query, QueryEvent.END)
            job.settle(driver)
        elif isinstance(message, m.Restored):
            self._restores.restored(message, leaving=driver.leaving)

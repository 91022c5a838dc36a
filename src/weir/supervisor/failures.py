"""What a failure leads to, of one query or of the whole driver: another start after a wait, or an end."""

from __future__ import annotations

import random
from dataclasses import replace

from weir.config import RestartStrategyType, Settings, SinkCommit
from weir.errors import FencedError
from weir.ids import BatchId, QueryName
from weir.protocol import messages as m
from weir.protocol.decide import (
    OF_THE_DRIVER,
    AfterDriver,
    DriverEnd,
    FailedAt,
    GiveUp,
    Limits,
    after_driver,
    ends_the_job,
)
from weir.protocol.restart import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    Restarts,
    RestartStrategy,
)
from weir.protocol.states import JobEvent, QueryEvent
from weir.supervisor.restore import RestoreHandler
from weir.supervisor.running_driver import RunningDriver, exit_words, failure_body
from weir.supervisor.stop import fail_stop
from weir.supervisor.supervised_job import GRACE, SupervisedJob


class FailureHandler:
    """Carries out what `protocol/` decides, for one job."""

    def __init__(self, job: SupervisedJob, restarts: Restarts, restores: RestoreHandler) -> None:
        self._job = job
        self._restarts = restarts
        self._restores = restores
        self._chance = random.Random()

    def driver_over(self, driver: RunningDriver) -> None:
        """The driver is gone, or must be: make sure of it, then decide what follows."""
        job = self._job
        noticed_at = job.clock.monotonic()
        if driver.ended is not None:
            driver.process.wait(GRACE)
        code = driver.process.end()
        job.driver = None
        self._refuse_what_is_open()
        if driver.ended is None or driver.leaving:
            job.queries.reset()
        end = DriverEnd(
            state=job.state,
            ended=driver.ended is not None,
            leaving=driver.leaving,
            held=job.home is not None,
            stopping=job.stopping is not None,
        )
        after = after_driver(end)
        if after is AfterDriver.REDEPLOY:
            if driver.failure is not None:
                job.event("failure", failure_body(FailedAt(None, None, driver.failure)))
            job.schedule.deploy(noticed_at)
        elif after is AfterDriver.END:
            job.ended()
        else:
            hung = driver.hung or code == FencedError.exit_code
            failure = driver.failure or job.died(exit_words(code))
            self._driver_failed(driver.where(failure), after, driver.heard_at if hung else noticed_at)

    def _refuse_what_is_open(self) -> None:
        """Nobody answers any more what the driver was asked."""
        job, reason = self._job, "its driver ended before it could answer"
        if job.home is not None:
            job.home.desk.refuse(*OF_THE_DRIVER, reason=reason)
        if job.stopping is not None and job.stopping.saved is None:
            fail_stop(job, job.stopping, {"reason": reason})

    def _driver_failed(self, where: FailedAt, after: AfterDriver, heard_at: float) -> None:
        job = self._job
        self._restores.fail(where.failure)
        if after is AfterDriver.NEVER_STARTED:
            job.fail_early(where.failure)
        elif after is AfterDriver.END_AFTER_FAILURE:
            if job.stopping is not None:
                job.note(f"{where.failure.what}; the job was stopped before that, and ends")
            job.event("failure", failure_body(where))
            job.ended()
        elif not self._restores.stays(where):
            self.failed(where, heard_at, whole=True)

    def query_failed(self, driver: RunningDriver, message: m.QueryFailed) -> None:
        """A query of the running driver has failed."""
        job = self._job
        job.schedule.restarts.over(message.query)
        where = FailedAt(QueryName(message.query), BatchId(message.batch), message.failure, message.started)
        if message.failure.redeploy:
            driver.failure, driver.failed_at = message.failure, where
            self.driver_over(driver)
            return
        job.queries.apply(message.query, QueryEvent.FAIL, failure=message.failure)
        if driver.leaving or job.ending:
            job.event("failure", failure_body(where), message.query)
        else:
            self.failed(where, job.clock.monotonic())

    def failed(self, where: FailedAt, heard_at: float, *, whole: bool = False) -> None:
        """One failure, of a query or of the whole driver: start again after a wait, or give up."""
        job, failure = self._job, where.failure
        now = job.clock.monotonic()
        whole = whole or where.query is None
        name = "" if whole else str(where.query)
        job.event("failure", failure_body(where), where.query or "")
        decision = self._restarts.after(
            where,
            name,
            limits_of(job.settings),
            quiet_time=job.settings.restart_strategy_exponential_delay_reset_backoff_threshold.total_seconds(),
            first=not job.ran and not job.progressed,
            now=now,
            chance=self._chance.uniform(-1, 1),
        )
        if isinstance(decision, GiveUp):
            self._give_up_on(where, decision, whole)
            return
        delay, when_able = decision.delay, decision.when_able
        which = "the job" if whole else f"query {where.query}"
        then = " at the soonest, when the machine can start a process in time" if when_able else ""
        job.note(f"{failure.what}{_because(failure)}; {which} starts again in {delay:.1f} s{then}")
        same = not whole and job.queries.same_cause(name, failure)
        body = {"delay": delay, "query": name, "same_cause": same, "machine": when_able}
        job.event("restart", body, name)
        job.recoveries.begin(name, failure.what, heard_at)
        job.recoveries.add("detect", now - heard_at, name)
        job.move(JobEvent.RESTART)
        if whole:
            job.schedule.restarts.clear()  # all queries start again, none by itself
            job.schedule.deploy(now, delay, when_able=when_able)
        else:
            job.schedule.restarts.add(name, now + delay, when_able=when_able)
            job.queries.restarts(name, delay)
            job.recoveries.add("wait", delay, name)

    def _give_up_on(self, where: FailedAt, decision: GiveUp, whole: bool) -> None:
        """End a query as FAILED while the others run; or the job, where nothing would be left of it."""
        job, name, reason = self._job, str(where.query), decision.reason
        if where.query is not None:
            job.queries.apply(name, QueryEvent.GIVE_UP, reason=reason)
        if ends_the_job(
            decision,
            whole=whole,
            ran=job.ran,
            together=job.settings.sink_commit is SinkCommit.CHECKPOINT,
            others_over=job.queries.others_over(name),
        ):
            self._give_up(self._with_way_out(where.failure, decision), reason)
            return
        job.note(f"{where.failure.what}; query {name} is FAILED: {reason}; the other queries continue")
        where = replace(where, failure=self._with_way_out(where.failure, decision))
        job.event("query failed", {**failure_body(where), "reason": reason}, name)
        job.recoveries.drop(name)
        if job.driver is not None:
            job.driver.process.send(m.GiveUpQuery(name, where.failure.what))
            job.settle(job.driver)

    def _with_way_out(self, failure: m.Failure, decision: GiveUp) -> m.Failure:
        home = self._job.home
        if not decision.todo or home is None:
            return failure
        return replace(failure, hint=decision.todo.replace("JOB", home.job))

    def _give_up(self, failure: m.Failure, reason: str) -> None:
        """End the job as FAILED; its other queries may finish their batches first."""
        job = self._job
        job.note(f"{failure.what}{_because(failure)}; no restart: {reason}")
        job.event("gave up", {"reason": reason})
        job.final = failure
        job.move(JobEvent.GIVE_UP)
        job.end_driver(cancelled=False)


def _because(failure: m.Failure) -> str:
    return f", because {failure.why}" if failure.why else ""


def limits_of(settings: Settings) -> Limits:
    """How often a failure may come back."""
    machine = settings.restart_strategy_machine_failures_timeout
    return Limits(
        settings.restart_strategy_poison_batch_attempts,
        settings.restart_strategy_crash_loop_attempts,
        machine.total_seconds() if machine is not None else None,
    )


def strategy(settings: Settings) -> RestartStrategy:
    """A fresh strategy with no failures yet."""
    kind = settings.restart_strategy_type
    if kind is RestartStrategyType.FIXED_DELAY:
        return FixedDelay(
            settings.restart_strategy_fixed_delay_attempts,
            settings.restart_strategy_fixed_delay_delay.total_seconds(),
        )
    if kind is RestartStrategyType.FAILURE_RATE:
        return FailureRate(
            settings.restart_strategy_failure_rate_max_failures_per_interval,
            settings.restart_strategy_failure_rate_failure_rate_interval.total_seconds(),
            settings.restart_strategy_failure_rate_delay.total_seconds(),
        )
    if kind is RestartStrategyType.EXPONENTIAL_DELAY:
        return ExponentialDelay(
            settings.restart_strategy_exponential_delay_initial_backoff.total_seconds(),
            settings.restart_strategy_exponential_delay_max_backoff.total_seconds(),
            settings.restart_strategy_exponential_delay_backoff_multiplier,
            settings.restart_strategy_exponential_delay_jitter_factor,
            settings.restart_strategy_exponential_delay_reset_backoff_threshold.total_seconds(),
            settings.restart_strategy_exponential_delay_attempts_before_reset_backoff,
        )
    return NoRestart()

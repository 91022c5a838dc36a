"""The supervisor: opens attempts, runs one driver at a time, and starts it again when it dies.

Everything that happens comes through one queue and is handled in one thread, in order: messages of
the driver, its end, signals, requests, and the passing of time. Decisions are made in `protocol/`;
here they are carried out and written to the journal.
"""

from __future__ import annotations

import queue
import random
import signal
import threading
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from weir.clock import Clock
from weir.config import Config, Settings, SinkCommit, changed, resolve
from weir.errors import DriverDiedError, ExternalError, FencedError, JobFileError, WeirError
from weir.ids import NO_BATCH, BatchId, QueryName, job_name
from weir.protocol import messages as m
from weir.protocol.decide import FailedAt, GiveUp, Limits, Retry, after_failure
from weir.protocol.restart import NoRestart, RestartStrategy
from weir.protocol.states import JOB, JobEvent, JobState, move
from weir.storage.attempts import AttemptRecord
from weir.supervisor.backoff import strategy
from weir.supervisor.driven import Driven, Heard, exit_words, failure_body, failure_of
from weir.supervisor.home import Home
from weir.supervisor.inputs import Inputs
from weir.supervisor.planning import Made, make_plan
from weir.supervisor.process import DriverProcess
from weir.supervisor.queries import QueryStandings
from weir.supervisor.recovery import Recoveries
from weir.supervisor.requests import Request
from weir.supervisor.restoring import Intended, Restore, Underway, words, write_intention
from weir.supervisor.stopping import Stopping
from weir.supervisor.telling import Telling, Watcher

_SIGNALS = {number.name: number for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
OF_THE_DRIVER = ("checkpoint", "configure", "savepoint")
"""What a driver does while the job goes on."""
OF_THE_SUPERVISOR = ("restore", "plan")
"""What needs no driver."""
_TICK = 0.1
_WARM_UP = 15.0
"""A driver is started this long before a wait is over, and held: so a short wait costs nothing."""
_GRACE = 10.0
"""How long a driver may take to exit after its queries have ended."""


@dataclass(frozen=True)
class _Cancel:
    by: str


class _CancelledEarlyError(Exception):
    """Cancelled while waiting for another supervisor's silence."""


class Supervisor:
    """Runs one job until it is over. `run` is called once, from the main thread."""

    def __init__(self, inputs: Inputs, watcher: Watcher, clock: Clock) -> None:
        self._inputs = inputs
        self._watcher = watcher
        self._told = Telling(watcher)
        self._clock = clock
        self._events: queue.Queue[Heard | _Cancel | Intended | Made] = queue.Queue()
        self._signalled = threading.Event()
        self._state = JobState.CREATED
        self._home: Home | None = None
        self._config: Config | None = None
        self._live: Driven | None = None
        self._serial = 0
        self._strategies: dict[str, RestartStrategy] = {}
        """Of each query its own, and "" for the whole driver: an outage of one delays no other."""
        self._failures: list[FailedAt] = []
        self._in_a_row: dict[tuple[str, tuple[str, str]], int] = {}
        """How often a failure came back since the last committed batch, by query ("" for all) and cause."""
        self._queries = QueryStandings(clock, lambda body: self._told.progress("queries", body))
        self._ran = False
        """All queries ran at once under this supervisor."""
        self._progressed = False
        """The job has committed a batch, now or ever."""
        self._recoveries = Recoveries()
        self._deploy_at: float | None = clock.monotonic()
        self._start_at = 0.0
        self._restarts: dict[str, float] = {}
        self._beat_at = 0.0
        self._beat_failed = False
        self._changes: dict[str, str] = {}
        """Settings that were changed on the running job; the next driver gets them too."""
        self._restoring: Restore | None = None
        self._underway: Underway | None = None
        self._went_back = False
        self._stopping: Stopping | None = None
        self._final: m.Failure | None = None
        self._waited_for: AttemptRecord | None = None

    def run(self) -> tuple[JobState, m.Failure | None]:
        """Run the job to its end; the final state, and the failure behind it if there is one."""
        for number in _SIGNALS.values():
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup: a logout does not end the job
                signal.signal(number, self._on_signal)
        try:
            while not self._state.final:
                self._step()
        except _CancelledEarlyError:
            self._state = JobState.CANCELED
        except WeirError as error:
            self._final = failure_of(error)
            held = self._home is not None and not isinstance(error, FencedError)
            if held and not self._state.final:
                self._move(JobEvent.GIVE_UP)
            self._state = JobState.FAILED
        finally:
            self._close()
        return self._state, self._final

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
            if isinstance(event, _Cancel):
                self._cancel(event.by)
            elif isinstance(event, Intended):
                self._go_back(event)
            elif isinstance(event, Made):
                assert self._home is not None, "a plan was asked for at its desk"
                self._home.desk.answer(event.request, event.done, **event.body)
            elif self._live is not None and event.serial == self._live.serial:
                if event.message is not None:
                    self._live.heard_at = self._clock.monotonic()
                self._hear(self._live, event.message)
        if not self._state.final:
            self._pass_time(self._clock.monotonic())

    def _pass_time(self, now: float) -> None:
        if self._deploy_at is not None and now >= self._deploy_at:
            self._deploy_at = None
            self._deploy(now)
        live = self._live
        if live is not None and live.described is not None and not live.granted and now >= self._start_at:
            self._try_to_grant(live, live.described)
        for query in [q for q, at in self._restarts.items() if now >= at]:
            del self._restarts[query]
            if live is not None:
                live.process.send(m.RestartQuery(query))
        if self._home is not None:
            if now >= self._beat_at:
                self._beat(self._home)
            self._take_requests(self._home)
            self._home.journal.flush()
        if live is not None:
            self._look_after(live, now)

    def _look_after(self, live: Driven, now: float) -> None:
        silent = now - live.heard_at
        timeout = self._settings().heartbeat_timeout.total_seconds() if self._config else 0.0
        if live.kill_at is not None and now >= live.kill_at:
            self._note("the driver did not end in time and is killed")
            self._over(live)
        elif silent > live.patience(timeout):
            live.failure, live.hung = self._died(f"has not answered for {silent:.0f} s"), True
            self._over(live)

    def _beat(self, home: Home) -> bool:
        """Show that we live. A store that fails is no reason to end: without beats the lease runs out."""
        try:
            home.lock.beat(self._live.process.group if self._live else 0)
        except ExternalError as error:
            if not self._beat_failed:  # once for an outage, not at every beat of it
                self._note(f"the beat could not be written: {error.text}")
            self._beat_failed = True
            return False
        finally:
            self._beat_at = self._clock.monotonic() + self._settings().heartbeat_interval.total_seconds()
        if self._beat_failed:
            self._beat_failed = False
            self._note("the beat can be written again")
        return True

    # the driver's life

    def _deploy(self, now: float) -> None:
        self._serial += 1
        serial = self._serial
        try:
            process = DriverProcess(
                self._inputs.file,
                self._inputs.arguments,
                self._inputs.name,
                lambda message: self._events.put(Heard(serial, message)),
                self._watcher.output,
            )
        except OSError as error:  # no memory, no process, no file handle left
            failure = self._died(f"could not be started: {error.strerror or error}")
            if self._home is None:
                self._final, self._state = failure, JobState.FAILED
            else:
                self._failed(FailedAt(None, None, failure, started=False), now)
            return
        self._live = Driven(serial, process, now, now)

    def _try_to_grant(self, live: Driven, described: m.Described) -> None:
        try:
            self._grant(live, described)
        except ExternalError as error:
            if self._home is None or not error.retry:
                raise
            live.failure = failure_of(error)
            self._over(live)

    def _grant(self, live: Driven, described: m.Described) -> None:
        """The driver is ready and its time has come: give it an attempt."""
        name = job_name(described.job)
        if self._home is None:
            assert self._config is not None, "a described driver has settings"
            session = uuid.uuid4().hex
            given = self._inputs
            point = given.wanted.point if given.wanted else ""
            self._home = Home(name, self._config, session, self._clock, self._waiting, given.above, point)
            self._told.home = self._home
            for text in self._home.notes:
                self._note(text)
            self._progressed = self._home.journal.has_batches()
            self._watcher.opened(name, self._config)
        elif name == self._home.job:
            timeout = self._settings().heartbeat_timeout.total_seconds()
            self._home.advance(timeout)
        else:
            reason = f"it made job {self._home.job!r} before and makes {name!r} now"
            raise JobFileError(file=self._inputs.file, reason=reason, todo="keep one name in one file")
        live.process.keep_output(self._home.output())
        live.granted = True
        self._beat(self._home)
        live.heard_at = self._clock.monotonic()
        body = {"session": self._home.session, "file": str(self._inputs.file), "driver": live.process.group}
        self._home.event("attempt", body)
        self._told.settings(self._config)
        wanted = self._inputs.wanted if not self._went_back else None
        wire = wanted.to_wire() if wanted else {}
        live.process.send(m.Start(self._home.attempt, wire, self._ran, self._home.session))
        self._move(JobEvent.DEPLOY)

    def _waiting(self, holder: AttemptRecord, seconds: float) -> None:
        if self._signalled.is_set():
            raise _CancelledEarlyError
        if holder != self._waited_for:
            self._waited_for = holder
            self._watcher.note(
                f"attempt {holder.attempt} is held by process {holder.pid} on {holder.host}: "
                f"waiting up to {seconds:.0f} s for a sign of life"
            )
        self._clock.wait(self._signalled, min(seconds, 0.5))

    def _hear(self, live: Driven, message: m.Message | None) -> None:
        if message is None:
            self._over(live)
        elif isinstance(message, m.Described):
            live.described = message
            self._recoveries.add("process", self._clock.monotonic() - live.spawned_at)
            i = self._inputs
            config = resolve(
                file=i.settings_file, job_options=message.options, environ=i.environ, overrides=i.overrides
            )
            self._config = config.changed(self._changes)
            live.process.send(m.Prepare(self._config.to_wire()))
        elif isinstance(message, m.Ping):
            if self._home is not None and live.granted and self._beat(self._home):
                live.process.send(m.Pong(message.number))
        elif isinstance(message, m.StepDone):
            self._recoveries.add(message.step, message.seconds, message.query)
        elif isinstance(message, m.BatchCommitted):
            self._batch(message)
        elif isinstance(message, m.QueryIdle):
            for body in self._recoveries.idle(message.query):
                self._recovered(body, f"{message.query} runs and has nothing to read")
        elif isinstance(message, m.QueryFailed):
            self._query_failed(live, message)
        elif isinstance(message, m.Ended):
            live.ended = message
            live.kill_at = self._clock.monotonic() + _GRACE
        elif isinstance(message, m.Failed):
            live.failure = message.failure
        elif isinstance(message, m.QueryMoved):
            self._queries.moved(message.query, message.state, message.run)
        elif isinstance(message, m.QueryStarted):
            live.started = True
            self._progressed = self._progressed or message.last_committed > NO_BATCH
            self._event("query started", asdict(message), message.query)
            self._recoveries.started(message, self._clock.monotonic())
            self._queries.started(message.query, message.run)
            if not live.leaving:
                self._underway = None  # it is live, whether that was heard or not
            self._settle(live)
        elif isinstance(message, m.Answered):
            self._answered(message)
        else:
            if isinstance(message, m.SavepointProgress) and self._stopping is not None:
                self._stopping.hear(message)
            self._told.tell(message)
            if isinstance(message, m.GraphLearnt):
                self._queries.learn([str(one["name"]) for one in message.queries])
            elif isinstance(message, m.QueryEnded):
                self._queries.ended(message.query)
                self._settle(live)
            self._went_back = self._went_back or isinstance(message, m.Restored)
            if isinstance(message, m.Restored) and not live.leaving:
                self._underway = None
                self._answer_restore(True, **asdict(message))

    def _batch(self, batch: m.BatchCommitted) -> None:
        assert self._home is not None
        self._progressed = True
        self._in_a_row = {at: n for at, n in self._in_a_row.items() if at[0] not in ("", batch.query)}
        self._home.journal.batch(self._home.attempt, batch)
        self._watcher.batch(batch)
        for body in self._recoveries.committed(batch, self._clock.monotonic()):
            self._recovered(body, f"batch {batch.batch} of {batch.query} is committed")

    def _recovered(self, body: dict[str, object], how: str) -> None:
        self._event("recovery", body, str(body["query"]))
        self._note(f"recovered in {body['seconds']} s: {how}")

    def _over(self, live: Driven) -> None:
        """The driver is gone, or must be: make sure of it, then decide what follows."""
        noticed_at = self._clock.monotonic()
        if live.ended is not None:
            live.process.wait(_GRACE)
        code = live.process.end()
        hung = code == FencedError.exit_code or live.hung
        self._live = None
        reason = "its driver ended before it could answer"
        if self._home is not None:
            self._home.desk.refuse(*OF_THE_DRIVER, reason=reason)
        if self._stopping is not None and self._stopping.saved is None:
            self._not_stopped(self._stopping, {"reason": reason})
        if live.ended is None or live.leaving:
            self._queries.reset()
        if live.leaving and self._state is JobState.RESTARTING:
            if live.failure is not None:
                self._event("failure", failure_body(FailedAt(None, None, live.failure)))
            self._start_at = self._deploy_at = noticed_at
            return
        if live.ended is not None:
            self._ended()
            return
        failure = live.failure or self._died(exit_words(code))
        if self._restoring is not None and self._restoring.intended:
            self._answer_restore(False, what=failure.what, why=failure.why, hint=failure.hint)
        if not live.granted and self._home is None:
            self._final, self._state = failure, JobState.FAILED
            return
        where = live.where(failure)
        if self._stopping is not None:  # behind its savepoint nothing may run any more, or it is not exact
            self._note(f"{failure.what}; the job was stopped before that, and ends")
        if self._stopping is not None or self._state in (JobState.CANCELLING, JobState.FAILING):
            self._event("failure", failure_body(where))
            self._ended()
            return
        underway, home = self._underway, self._home
        if underway is not None and home is not None and underway.given_up(home, failure):
            self._stay(underway, where)
        else:
            self._failed(where, live.heard_at if hung else noticed_at, whole=True)

    def _ended(self) -> None:
        """All queries have ended. With one that has failed for good the job has not come to a good end."""
        failed = self._queries.given_up()
        if failed is not None and self._state not in (JobState.CANCELLING, JobState.FAILING):
            self._final = failed
            self._move(JobEvent.GIVE_UP)
        self._move(JobEvent.ENDED)

    # failures and restarts

    def _query_failed(self, live: Driven, message: m.QueryFailed) -> None:
        query, batch = QueryName(message.query), BatchId(message.batch)
        where = FailedAt(query, batch, message.failure, message.started)
        if message.failure.redeploy:
            live.failure, live.failed_at = message.failure, where
            self._over(live)
            return
        self._queries.failed(message.query, message.failure)
        if live.leaving or self._ending:
            self._event("failure", failure_body(where), message.query)
        else:
            self._failed(where, self._clock.monotonic())

    def _failed(self, where: FailedAt, heard_at: float, *, whole: bool = False) -> None:
        """One failure, of a query or of the whole driver: start again after a wait, or give up."""
        now = self._clock.monotonic()
        failure, whole = where.failure, whole or where.query is None
        name = "" if whole else str(where.query)
        self._event("failure", failure_body(where), where.query or "")
        decision = self._decide(where, name)
        if isinstance(decision, GiveUp):
            self._give_up_on(where, decision, whole)
            return
        strategy = self._strategy_of(name)
        delay = strategy.delay(now, random.uniform(-1, 1))
        if delay is None:
            never = isinstance(strategy, NoRestart)  # who wants no restart wants to hear of the failure
            self._give_up_on(where, GiveUp(strategy.describe(), repeated=True), whole or never)
            return
        because = f", because {failure.why}" if failure.why else ""
        which = "the job" if whole else f"query {where.query}"
        self._note(f"{failure.what}{because}; {which} starts again in {delay:.1f} s")
        same = not whole and self._queries.same_cause(name, failure)
        self._event("restart", {"delay": delay, "query": name, "same_cause": same}, name)
        self._recoveries.begin(name, failure.what, heard_at)
        self._recoveries.add("detect", now - heard_at, name)
        self._move(JobEvent.RESTART)
        if whole:
            self._restarts.clear()
            self._start_at = now + delay
            self._deploy_at = now + max(0.0, delay - _WARM_UP)
        else:
            self._restarts[name] = now + delay
            self._queries.restarts(name, delay)
            self._recoveries.add("wait", delay, name)

    def _decide(self, where: FailedAt, name: str) -> GiveUp | Retry:
        """Whether it is worth another try; the failure, of the query `name` or of all (""), is remembered."""
        settings = self._settings()
        cause = (name, where.failure.key)
        self._in_a_row[cause] = in_a_row = self._in_a_row.get(cause, 0) + 1
        limits = Limits(
            settings.restart_strategy_poison_batch_attempts, settings.restart_strategy_crash_loop_attempts
        )
        first = not self._ran and not self._progressed
        decision = after_failure(where, self._failures, limits, in_a_row=in_a_row, first=first)
        self._failures = [*self._failures[-99:], where]
        return decision

    def _strategy_of(self, name: str) -> RestartStrategy:
        if name not in self._strategies:
            self._strategies[name] = strategy(self._settings())
        return self._strategies[name]

    def _give_up_on(self, where: FailedAt, decision: GiveUp, whole: bool) -> None:
        """End a query as FAILED while the others run; or the job, where nothing would be left of it.

        Nor is a query given up alone before all of them ran once: who has just started the job is there to
        fix it. With `sink.commit: checkpoint` all output is shown together or not at all.
        """
        name, reason = str(where.query), decision.reason
        early = not self._ran and not decision.repeated
        together = self._settings().sink_commit is SinkCommit.CHECKPOINT
        if where.query is not None:
            self._queries.give_up(name, reason)
        if whole or early or together or self._queries.others_over(name):
            self._give_up(self._with_way_out(where.failure, decision), reason)
            return
        assert self._home is not None
        self._note(f"{where.failure.what}; query {name} is FAILED: {reason}; the other queries continue")
        self._event("query failed", {**failure_body(where), "reason": reason}, name)
        self._recoveries.drop(name)
        if self._live is not None:
            self._live.process.send(m.GiveUpQuery(name, where.failure.what))
            self._settle(self._live)

    def _with_way_out(self, failure: m.Failure, decision: GiveUp) -> m.Failure:
        if not decision.todo or self._home is None:
            return failure
        return replace(failure, hint=decision.todo.replace("JOB", self._home.job))

    def _give_up(self, failure: m.Failure, reason: str) -> None:
        """End the job as FAILED; its other queries may finish their batches first."""
        because = f", because {failure.why}" if failure.why else ""
        self._note(f"{failure.what}{because}; no restart: {reason}")
        self._event("gave up", {"reason": reason})
        self._final = failure
        self._move(JobEvent.GIVE_UP)
        self._end_driver(cancelled=False)

    def _settle(self, live: Driven) -> None:
        """Let the state of the job follow from those of its queries."""
        event = self._queries.event()
        if live.leaving or self._ending or event is None or event not in JOB[self._state]:
            return
        if JOB[self._state][event] is not self._state:
            self._move(event)

    # the end

    def _cancel(self, by: str) -> None:
        if self._home is None:
            raise _CancelledEarlyError
        if self._state in (JobState.CANCELLING, JobState.FAILING):
            if self._live is not None and by in _SIGNALS:
                self._note(f"{by} again: the running batches are cut off")
                self._live.kill_at = self._clock.monotonic()
            return
        self._note(f"{by}: the running batches finish and commit, then the job ends")
        self._event("cancel", {"by": by})
        self._move(JobEvent.CANCEL)
        self._end_driver(cancelled=True)

    def _end_driver(self, *, cancelled: bool) -> None:
        """Ask the driver for a clean end, with a limit; one that does not run yet is just ended.

        Only a job that was cancelled may delete its checkpoints: one that failed goes on from them.
        """
        self._deploy_at = None
        self._restarts.clear()
        live = self._live
        if live is not None and live.granted:
            self._stop(live, cancelled=cancelled)
            return
        if live is not None:
            live.process.end()
            self._live = None
        self._move(JobEvent.ENDED)

    def _stop(self, live: Driven, *, cancelled: bool) -> None:
        seconds = self._settings().task_cancellation_timeout.total_seconds()
        live.process.send(m.Stop(seconds, cancelled=cancelled))
        live.kill_at = self._clock.monotonic() + seconds + _GRACE

    def _close(self) -> None:
        if self._live is not None:
            self._live.process.end()
        home = self._home
        if home is not None:
            for request in home.desk.open("cancel"):
                home.desk.answer(request.id, True, state=self._state.value)
            if self._stopping is not None and self._stopping.saved is not None:
                body = {**self._stopping.saved, "state": self._state.value}
                home.desk.answer(self._stopping.request.id, True, **body)
            if self._restoring is not None and self._restoring.intended:
                self._answer_restore(False, reason="the job ended; the next 'weir run' goes on from there")
            home.desk.refuse(*OF_THE_DRIVER, "stop", *OF_THE_SUPERVISOR, reason="the job ended")
            home.close()

    # requests

    def _take_requests(self, home: Home) -> None:
        for request in home.desk.arrived():
            if request.verb == "cancel":
                self._cancel("cancel request")
            elif refusal := self._refusal(request):
                home.desk.answer(request.id, False, **refusal)
            elif request.verb == "restore":
                self._restoring = Restore(request)
                write_intention(home, self._restoring, self._settings(), self._clock, self._events.put)
            elif request.verb == "plan":
                make_plan(request, self._inputs, self._events.put)
            elif self._live is not None:
                self._ask(home, self._live, request)

    def _ask(self, home: Home, live: Driven, request: Request) -> None:
        """Hand a request over to the driver; one that nobody waits for has its answer now."""
        arguments = dict(request.arguments)
        if request.verb == "stop":
            self._stopping = Stopping(request)
            arguments["seconds"] = self._settings().task_cancellation_timeout.total_seconds()
            self._event("stop", request.arguments)
            self._note("stop: the running batches finish and commit, then the job ends")
        if arguments.get("detached"):
            home.desk.answer(request.id, True, detached=True)
        live.process.send(m.Ask(request.id, request.verb, arguments))

    def _refusal(self, request: Request) -> dict[str, str]:
        """Why it can't be done, or not now; empty when it can."""
        if request.verb not in (*OF_THE_DRIVER, *OF_THE_SUPERVISOR, "stop"):
            return {"reason": f"it does not know how to {request.verb}"}
        if self._ending or self._stopping is not None or self._state.final:
            return {"reason": "it is ending"}
        if self._restoring is not None:
            return {"reason": "it is being restored"}
        if request.verb not in OF_THE_SUPERVISOR and (self._live is None or not self._live.granted):
            return {"reason": "no driver of it runs now: one is started in a moment"}
        if request.verb == "configure":
            try:
                changed(self._settings(), request.arguments["settings"])
            except WeirError as error:
                return words(error)
        return {}

    def _answered(self, message: m.Answered) -> None:
        assert self._home is not None and self._config is not None
        if self._stopping is not None and message.request == self._stopping.request.id:
            self._stopped(self._stopping, message)
            return
        request = self._home.desk.answer(message.request, message.done, **message.body)
        if request is not None and request.verb == "configure" and message.done:
            fresh = request.arguments["settings"]
            self._changes |= fresh
            self._config = self._config.changed(self._changes)
            self._event("configured", fresh)
            self._told.settings(self._config)
            self._note(", ".join(f"{key} = {self._config.text(key)}" for key in fresh))

    def _stopped(self, stopping: Stopping, message: m.Answered) -> None:
        """The driver has ended its queries as it was asked to, or could not; it ends by itself now."""
        if message.done:
            stopping.saved = message.body
            return
        self._not_stopped(stopping, message.body)
        if message.body.get("ended") and self._live is not None and not self._ending:
            self._note("the job was not stopped: another driver goes on with it")
            self._live.leaving = True
            self._move(JobEvent.RESTART)

    def _not_stopped(self, stopping: Stopping, body: Mapping[str, object]) -> None:
        """The stop has failed: who asked is told, and the job takes requests again."""
        assert self._home is not None
        self._stopping = None
        if self._home.desk.answer(stopping.request.id, False, **body) is None:  # nobody waits for it
            self._note(f"the job was not stopped: {body.get('what') or body.get('reason')}")

    @property
    def _ending(self) -> bool:
        """No query is started any more."""
        stopping = self._stopping is not None and self._stopping.ending
        return stopping or self._state in (JobState.CANCELLING, JobState.FAILING)

    # restore

    def _go_back(self, intended: Intended) -> None:
        """Where to go on is written down, or refused: let the driver end, and start another one at once."""
        if isinstance(intended.outcome, BaseException):
            self._answer_restore(False, **words(intended.outcome))
            return
        intended.restore.intended = True
        if self._state in (JobState.CANCELLING, JobState.FAILING):
            return
        point, settings = intended.restore.wanted.point, intended.restore.settings
        before = self._underway.before if self._underway else self._inputs
        self._underway = Underway(intended.outcome, before)
        self._inputs = replace(self._inputs, overrides={**self._inputs.overrides, **settings}, wanted=None)
        self._event("restore", {"point": point})
        self._note(f"restore: the running batches finish and commit, then the job goes on from {point}")
        self._failures, self._in_a_row = [], {}
        self._recoveries.clear()
        self._restarts.clear()
        self._move(JobEvent.RESTORE)
        self._start_at = now = self._clock.monotonic()
        if self._live is not None and not self._live.granted and settings:  # it was made ready without them
            self._live.process.end()
            self._live = None
        if self._live is None:
            self._deploy_at = now
        elif self._live.granted:
            self._live.leaving = True
            self._stop(self._live, cancelled=False)

    def _stay(self, underway: Underway, where: FailedAt) -> None:
        """The restore can't be done: start another driver at once, which goes on where the job was."""
        self._event("failure", failure_body(where))
        self._note(f"{where.failure.what}; the job goes on where it was")
        self._inputs, self._underway = underway.before, None
        self._move(JobEvent.RESTART)
        self._start_at = self._deploy_at = self._clock.monotonic()

    def _answer_restore(self, done: bool, **body: object) -> None:
        restore, self._restoring = self._restoring, None
        if restore is not None and self._home is not None:
            self._home.desk.answer(restore.request.id, done, **body)

    # small things

    def _move(self, event: JobEvent) -> None:
        home = self._home
        assert home is not None
        self._state = move(f"job {home.job}", JOB, self._state, event)
        self._ran = self._ran or self._state in (JobState.RUNNING, JobState.DEGRADED)
        self._event("state", {"state": self._state.value})
        self._watcher.state(home.job, self._state, home.attempt)

    def _event(self, kind: str, body: Mapping[str, object], query: str = "") -> None:
        self._told.event(kind, body, query)

    def _note(self, text: str) -> None:
        self._told.note(text)

    def _settings(self) -> Settings:
        assert self._config is not None
        return self._config.settings

    def _died(self, how: str) -> m.Failure:
        home = self._home
        return failure_of(
            DriverDiedError(attempt=home.attempt if home else 0, job=home.job if home else "?", how=how)
        )

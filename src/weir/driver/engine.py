"""All queries of a job in one session: started, watched, restarted one by one, ended together.

The same engine serves the supervised driver and a notebook; what differs is who holds the lease
and who is told. Steps of a start, each timed and reported: graph -> reset sinks -> reset sources ->
start queries.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from weir import faults
from weir.clock import Clock, Deadline
from weir.config import Config
from weir.driver.progress import ProgressReports
from weir.errors import PinnedStateError
from weir.ids import NO_BATCH, JobName, QueryName, Run, SourceName, Token
from weir.job import graph
from weir.job.query import QueryRun
from weir.job.sources import Place, ReadingQuery, Receiver
from weir.lease import Lease
from weir.protocol import messages as m
from weir.protocol.states import QUERY, QueryEvent, QueryState, move
from weir.spark import session
from weir.spark.failure import from_exception
from weir.spark.layout import QueryFiles
from weir.storage import Store, paths
from weir.storage.generations import FIRST, Origin, open_origin, read_origin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weir.job.job import Job

Report = Callable[[m.Message], None]


class Engine:
    """The queries of one attempt. Its methods are called from one thread; queries end in others."""

    def __init__(
        self,
        job: Job,
        spark: SparkSession,
        config: Config,
        store: Store,
        lease: Lease,
        report: Report,
        clock: Clock,
    ) -> None:
        self._job = job
        self._name: JobName = job.name
        self._spark = spark
        self._config = config
        self._store = store
        self._lease = lease
        self._report = report
        self._clock = clock
        self._lock = threading.Lock()
        self._states: dict[QueryName, QueryState] = {}
        self._runs: dict[QueryName, QueryRun] = {}
        self._receivers: list[Receiver] = []
        self.over = threading.Event()
        """Set when every query has ended."""

    def start(self) -> None:
        """Learn the graph, reset the sinks, start the receivers, start every query."""
        with self._timed("graph"):
            learnt = graph.learn(self._name, self._job.function, self._spark, self._place)
            names = learnt.queries
            origin = self._open_origin(names)
            runs = [self._build(name, Run(1)) for name in names]
        faults.point("start.graph")
        for run in runs:
            with self._timed("reset sinks", run.name):
                run.recover(f"{self._name}/{run.name}", origin.lineage)
        if learnt.receiving:
            with self._timed("reset sources"):
                self._start_receivers(learnt)
        self._progress = ProgressReports(self._spark, self._report)
        self._states = dict.fromkeys(names, QueryState.CREATED)
        for run in runs:
            self._start(run)

    def restart(self, name: QueryName) -> None:
        """Start one failed query again, in the live session, as a new run; the others go on."""
        origin = read_origin(self._store, self._name, FIRST)
        assert origin is not None, "the job has been started"
        old = self._runs[name]
        old.close()
        run = self._build(name, Run(old.token.run + 1))
        with self._timed("reset sinks", name):
            run.recover(f"{self._name}/{name}", origin.lineage)
        self._start(run)

    def stop(self, seconds: float) -> None:
        """Let every running batch finish and commit, start no other; cut off what takes longer.

        Receivers end first: what they have received is in the journal, for the next start.
        """
        self._ask_receivers_to_end()
        deadline = Deadline(self._clock, self._clock.monotonic() + seconds)
        with self._lock:
            for name, state in self._states.items():
                if QueryEvent.STOP in QUERY[state]:
                    self._states[name] = move(f"query {name}", QUERY, state, QueryEvent.STOP)
        for run in self._runs.values():
            run.ask_to_end()
        for run in self._runs.values():
            if not run.end(deadline):
                self._report(m.CutOff(run.name, seconds))
        for receiver in self._receivers:
            receiver.end(deadline)
        self._check_over()

    def work_off(self, deadline: Deadline) -> bool:
        """Wait until all that the sources hold now is committed everywhere; False when it took too long."""
        return all(run.work_off(deadline) for run in list(self._runs.values()))

    def settle(self) -> None:
        """After the end: wait a moment for the progress of the last batches, which comes later."""
        for run in self._runs.values():
            self._progress.wait_for(run.name, run.files.last_committed(), seconds=2.0)
        for receiver in self._receivers:
            receiver.end(Deadline(self._clock, self._clock.monotonic() + 2.0))

    def _start_receivers(self, learnt: graph.Graph) -> None:
        """One receiver per source, however many queries read it; before any of them runs."""
        token = Token(self._lease.attempt, Run(1))
        for one in learnt.receiving:
            readers = [ReadingQuery(name, self._files(name)) for name in one.readers]
            receiver = one.source.receiver(self._place(one.name), token, self._lease, readers)
            receiver.start()
            self._receivers.append(receiver)

    def _ask_receivers_to_end(self) -> None:
        for receiver in self._receivers:
            receiver.ask_to_end()

    def _start(self, run: QueryRun) -> None:
        with self._lock:
            state = self._states[run.name]
            if state is QueryState.ENDED:
                return
            self._states[run.name] = move(f"query {run.name}", QUERY, state, QueryEvent.START)
            self._runs[run.name] = run
        last = run.files.last_committed()
        self._progress.watch(run.name, run.token.run)
        self._progress.started(run.name, run.start(self._ended))
        self._report(m.QueryStarted(run.name, run.token.run, last))

    def _ended(self, run: QueryRun, error: Exception | None) -> None:
        """Called from the query's own thread, once."""
        with self._lock:
            state = self._states[run.name]
            event = QueryEvent.END if error is None else QueryEvent.FAIL
            self._states[run.name] = after = move(f"query {run.name}", QUERY, state, event)
        batch = run.batch if run.batch is not None else NO_BATCH
        if error is not None:
            self._report(m.QueryFailed(run.name, run.token.run, batch, from_exception(error, self._name)))
        if after is QueryState.ENDED:
            self._report(m.QueryEnded(run.name, run.token.run, run.files.last_committed()))
        self._check_over()

    def _check_over(self) -> None:
        with self._lock:
            if all(state is QueryState.ENDED for state in self._states.values()):
                self.over.set()
        if self.over.is_set():
            self._ask_receivers_to_end()

    def _build(self, name: QueryName, number: Run) -> QueryRun:
        spec = graph.build(self._name, self._job.function, self._spark, self._place, name)
        return QueryRun(
            spec,
            self._files(name),
            Token(self._lease.attempt, number),
            self._lease,
            self._config.settings.sink_max_pending_batches,
        )

    def _files(self, name: QueryName) -> QueryFiles:
        return QueryFiles(self._store, paths.query(self._name, FIRST, name))

    def _place(self, name: SourceName) -> Place:
        return Place(name, self._store, paths.source(self._name, FIRST, name))

    def _open_origin(self, names: list[QueryName]) -> Origin:
        settings = self._config.settings
        asked = session.asked_parallelism(self._config)
        origin = open_origin(
            self._store,
            self._name,
            FIRST,
            backend=settings.state_backend_type.value,
            parallelism=asked or session.default_parallelism(self._spark, self._config),
            spark=self._spark.version,
            clock=self._clock,
        )
        parallelism = asked or origin.parallelism
        for name in names:
            self._refuse_what_spark_ignores(name, settings.state_backend_type.value, parallelism)
        for key, value in session.state_settings(self._config, parallelism).items():
            self._spark.conf.set(key, value)
        return origin

    def _refuse_what_spark_ignores(self, name: QueryName, backend: str, parallelism: int) -> None:
        files = self._files(name)
        pinned = files.pinned()
        if pinned is None or not files.stateful():
            return
        for setting, live, asked in (
            ("state.backend.type", pinned.backend, backend),
            ("parallelism.default", pinned.partitions, parallelism),
        ):
            if live != asked:
                raise PinnedStateError(query=name, setting=setting, live=live, asked=asked)

    def _timed(self, step: str, query: str = "") -> _Timed:
        return _Timed(self._report, self._clock, step, query)


class _Timed:
    """Report how long a step took, when it went well."""

    def __init__(self, report: Report, clock: Clock, step: str, query: str) -> None:
        self._report, self._clock, self._step, self._query = report, clock, step, query

    def __enter__(self) -> None:
        self._since = self._clock.monotonic()

    def __exit__(self, kind: type[BaseException] | None, error: object, stack: object) -> None:
        if kind is None:
            self._report(m.StepDone(self._step, self._clock.monotonic() - self._since, self._query))

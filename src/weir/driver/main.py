"""The supervised driver: `python -m weir.driver <job file>`.

Steps: run the job file -> describe it -> session -> wait for the attempt -> engine -> serve until
the end. It writes nothing before it holds an attempt. It ends itself, JVM first, when the
supervisor is gone or the lease is over: no orphan ever writes.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import psutil

from weir import faults
from weir.clock import Clock
from weir.config import Config
from weir.driver import jobfile
from weir.driver.context import JobContext, JobEnd
from weir.driver.engine import Engine
from weir.driver.queries import Queries
from weir.driver.start import start
from weir.errors import FencedError
from weir.ids import Attempt, QueryName, job_name
from weir.link import Link
from weir.protocol import messages as m
from weir.restore.request import RestoreRequest
from weir.spark import session
from weir.spark.failure import from_exception
from weir.storage import open_store
from weir.storage.attempts import Lease


def main() -> NoReturn:
    """Run the job file named on the command line; never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the supervisor's to handle
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    link = Link.inherited(int(os.environ.pop("WEIR_LINK_FD")))
    file = Path(sys.argv[1])
    sys.argv = sys.argv[1:]
    try:
        _Driver(link, file).run()
    except BaseException as error:
        failure = from_exception(error, file.stem)
        link.send(m.DriverFailed(failure))
        _end(failure.exit_code, failure.stack)
    _end(0)


@dataclass(frozen=True)
class _Grant:
    """The attempt that this driver was given, and how to start."""

    lease: Lease
    wanted: RestoreRequest | None
    """What the job resumes from; None: its live files."""
    again: bool
    """The job has run before, under this supervisor."""


class _Driver:
    def __init__(self, link: Link, file: Path) -> None:
        self._link = link
        self._file = file
        self._clock = Clock()
        self._inbox: queue.Queue[m.Message] = queue.Queue()
        self._asked_at: dict[int, float] = {}
        self._prepared: queue.Queue[Config] = queue.Queue()
        self._granted: queue.Queue[_Grant] = queue.Queue()
        self._beats = threading.Event()
        """Set when there is a lease, and a heart that asks for it."""
        threading.Thread(target=self._listen, name="weir-link", daemon=True).start()

    def run(self) -> None:
        threading.Thread(target=self._show_life, name="weir-life", daemon=True).start()
        job = jobfile.load(self._file)
        called = job.name
        job.name = job_name(os.environ.pop("WEIR_JOB_NAME", job.name))
        job.function  # noqa: B018  a job without a pipeline is refused before anything is held
        self._link.send(m.JobDescribed(job.name, dict(job.options)))
        faults.point("start.described")
        config = self._prepared.get()
        since = self._clock.monotonic()
        spark = session.build(config, job.name, f"'weir logs {job.name}' shows its output")
        ready_at = self._clock.monotonic()
        self._link.send(m.StepDone("session", ready_at - since))
        faults.point("start.session")
        grant = self._granted.get()
        self._link.send(m.StepDone("wait", self._clock.monotonic() - ready_at))
        faults.point("start.granted")
        if spark.sparkContext.uiWebUrl:
            self._link.send(m.SparkUi(spark.sparkContext.uiWebUrl))
        store = open_store(config.settings.execution_checkpointing_dir)
        report, clock = self._link.send, self._clock
        context = JobContext(
            job, spark, config, store, grant.lease, clock, report, Queries(), JobEnd(), supervised=True
        )
        wanted = grant.wanted
        if wanted is not None and job.name != called:  # it is a fork of the job that has its file's name
            wanted = replace(wanted, forked_from=called)
        self._serve(start(context, wanted, again=grant.again))

    def _serve(self, engine: Engine) -> None:
        cancelled = False
        while not engine.over.is_set():
            with suppress(queue.Empty):
                message = self._inbox.get(timeout=0.05)
                if isinstance(message, m.StopQueries):
                    cancelled = True
                    engine.stop(message.seconds, cancelled=message.cancelled)
                elif isinstance(message, m.RestartQuery):
                    engine.restart(QueryName(message.query))
                elif isinstance(message, m.GiveUpQuery):
                    engine.give_up(QueryName(message.query), message.reason)
                elif isinstance(message, m.Ask):
                    engine.ask(message)
            if engine.failed is not None:
                raise engine.failed
        engine.settle()
        self._link.send(m.Ended(cancelled))

    def _listen(self) -> None:
        config: Config | None = None
        lease: Lease | None = None
        for message in self._link.receive():
            if isinstance(message, m.Pong):
                asked_at = self._asked_at.pop(message.number, None)
                if lease is not None and asked_at is not None:
                    lease.renewed(asked_at)
            elif isinstance(message, m.Prepare):
                config = Config.from_wire(message.config)
                self._prepared.put(config)
            elif isinstance(message, m.StartAttempt):
                assert config is not None, "Prepare comes before Start"
                lease = self._hold(Attempt(message.attempt), message.session, config)
                wanted = RestoreRequest.from_wire(message.wanted) if message.wanted else None
                self._granted.put(_Grant(lease, wanted, message.again))
            else:
                self._inbox.put(message)
        _end(1, "the supervisor is gone, so this driver ends")

    def _hold(self, attempt: Attempt, session: str, config: Config) -> Lease:
        """The attempt is ours from now on, whether the session is up or not: keep its lease."""
        settings = config.settings
        timeout = settings.heartbeat_timeout.total_seconds()
        lease = Lease(attempt, timeout, self._clock, session)
        self._beats.set()
        interval = settings.heartbeat_interval.total_seconds()
        threading.Thread(target=self._heart, args=(interval,), name="weir-heart", daemon=True).start()
        threading.Thread(target=self._watch, args=(lease,), name="weir-lease", daemon=True).start()
        return lease

    def _show_life(self) -> None:
        """Until there is a lease to renew: a job file that loads slowly is not one that hangs."""
        while not self._beats.is_set():
            self._link.send(m.Ping(0))
            self._beats.wait(5)

    def _heart(self, interval: float) -> None:
        """Ask for the lease again and again; a JVM that hangs holds the ping back."""
        rest = threading.Event()
        number = 0
        while True:
            asked_at = self._clock.monotonic()
            try:
                _probe_jvm()
            except Exception as error:  # a dead JVM, before any query may have noticed
                failure = from_exception(error, self._file.stem)
                self._link.send(m.DriverFailed(failure))
                _end(failure.exit_code, failure.stack)
            number += 1
            self._asked_at[number] = asked_at
            self._link.send(m.Ping(number))
            rest.wait(interval)

    def _watch(self, lease: Lease) -> None:
        rest = threading.Event()
        while (left := lease.left) > 0:
            rest.wait(min(left, 1.0))  # a wait does not count the time for which the machine was suspended
        _end(FencedError.exit_code, "the lease has expired, so this driver ends")


def _probe_jvm() -> None:
    """Return when the JVM answers, or at once when there is none yet."""
    context = sys.modules.get("pyspark.core.context")
    gateway = context.SparkContext._gateway if context is not None else None
    if gateway is not None:
        gateway.jvm.System.nanoTime()


def _end(code: int, why: str = "") -> NoReturn:
    """End this process and its whole group now. SIGKILL: nothing of it may write any more."""
    with suppress(Exception):
        from pyspark import SparkContext  # noqa: PLC0415

        gateway = SparkContext._gateway
        if gateway is not None and gateway.proc is not None:
            os.kill(gateway.proc.pid, signal.SIGKILL)
    with suppress(Exception):  # readers of Python data sources don't notice that their JVM is gone
        _kill_rest_of_group()
    with suppress(OSError):  # the reader of our output may be gone
        if why:
            print(f"weir: {why}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _kill_rest_of_group() -> None:
    own = os.getpid()
    if os.getpgrp() != own:  # not started by a supervisor: the group is somebody else's
        return
    for pid in psutil.pids():
        with suppress(OSError):
            if pid != own and os.getpgid(pid) == own:
                os.kill(pid, signal.SIGKILL)

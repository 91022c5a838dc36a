"""What a restart waits for after a failure of the machine: that a Python process comes up in time.

Measured by starting one, never two at once. It does what a Python process of Spark's does before it answers:
it starts the same Python and loads pyspark. What follows from the measurement is decided in
`protocol/machine.py`. Only the machine of the driver is looked at; executors may be on others.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

from weir.protocol.machine import IN_TIME, SPARKS_LIMIT, Gate, Probe, gate
from weir.supervisor.supervised_job import SupervisedJob
from weir.text import lasting

_LIKE_A_WORKER = "import pyspark.sql.streaming.python_streaming_source_runner"
"""What Spark starts for a Python data source loads this module before it connects."""


class MachineProbe:
    """Called from one thread, again and again; nothing here waits."""

    def __init__(self) -> None:
        self.newest: Probe | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._began_at = 0.0

    def gate(self, waited: float | None, now: float, longest: float) -> Gate:
        """Whether what has `waited` for the machine may start; None: nothing waits for it."""
        if waited is None:
            self.end()
            return Gate.OPEN
        self._look(now)
        found = gate(waited, self.newest, probing=self._process is not None, now=now, longest=longest)
        if found is Gate.PROBE:
            self._begin(now)
        return found

    def end(self) -> None:
        """End the process that is under way, if there is one. Safe to repeat."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _begin(self, now: float) -> None:
        python = os.environ.get("PYSPARK_PYTHON", sys.executable)
        try:
            self._process = subprocess.Popen(
                [python, "-c", _LIKE_A_WORKER],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:  # no process, no memory, no file handle left
            self.newest = Probe(0.0, now, came_up=False)
        self._began_at = now

    def _look(self, now: float) -> None:
        """See what became of the process that is under way. One that fails by itself has come up."""
        process = self._process
        if process is None:
            return
        code, seconds = process.poll(), now - self._began_at
        if code is None and seconds <= SPARKS_LIMIT:
            return
        self.end()
        self.newest = Probe(seconds, now, came_up=code is not None and code >= 0)


class MachineWait:
    """The wait of one job. Called from one thread."""

    def __init__(self, job: SupervisedJob) -> None:
        self._job = job
        self._probe = MachineProbe()
        self._noted = Gate.OPEN
        """What was noted last of the wait that is under way."""

    def is_able(self, now: float) -> bool:
        """Whether what is due and waits for the machine may start. That it waits is noted and shown."""
        job = self._job
        waited = job.schedule.waited(now)
        if waited is None:
            self._noted = Gate.OPEN
            self._probe.end()
            return True
        longest = job.settings.restart_strategy_machine_failures_max_wait.total_seconds()
        gate = self._probe.gate(waited, now, longest)
        if gate in (Gate.OPEN, Gate.FORCED):
            self._note(gate, longest)
            return True
        newest = self._probe.newest
        if newest is not None and not newest.in_time:
            self._note(Gate.SHUT, longest)
            for query in job.schedule.restarts.waiting(now):
                job.queries.waits_for_machine(query)
        return False

    def end(self) -> None:
        """The job is over."""
        self._probe.end()

    def _note(self, gate: Gate, longest: float) -> None:
        """Once for each wait, and once more when it ends without an able machine."""
        if gate is self._noted:
            return
        self._noted = gate
        if gate is Gate.SHUT:
            self._job.note(
                f"the machine can't start a Python process within {IN_TIME:g} s: the restart waits until it "
                f"can, for {lasting(longest)} at most (restart-strategy.machine-failures.max-wait)"
            )
        elif gate is Gate.FORCED:
            self._job.note(
                f"the machine could not start a Python process within {IN_TIME:g} s for {lasting(longest)}: "
                "the restart is tried all the same"
            )

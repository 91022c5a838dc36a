"""Named fault points: a fault is an ordinary input.

`point(name)` stands between any two steps that matter. It does nothing, at the cost of one check of
a module variable, unless `WEIR_FAULTS` arms it: `name#occurrence:action`, several separated by
commas, with the actions kill (SIGKILL of this process), raise, hang, stop (SIGSTOP) and
delay=SECONDS. `(name, occurrence)` makes a failure repeatable; with `WEIR_FAULTS_DIR` each armed
fault fires once over all attempts, so that the next attempt gets past it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

POINTS = {
    "start.described": "the job file was run, nothing is held yet",
    "start.session": "the Spark session is up, nothing is held yet",
    "start.granted": "the attempt is held, nothing is written yet",
    "start.graph": "the graph of queries is known",
    "start.fenced": "a sink's ledger has the new token",
    "start.recovered": "staging of committed batches is committed, the rest discarded",
    "start.query": "a query was started",
    "batch.planned": "Spark wrote offsets/<n>; the batch has not begun",
    "batch.writing": "Spark is writing the staged files",
    "batch.state": "Spark is uploading the state of the batch",
    "batch.written": "the staged files are there, the staging is not recorded",
    "batch.staged": "the staging is recorded; Spark has not committed",
    "batch.committed": "commits/<n> is there; the sink has not committed",
    "sink.committing": "the sink is about to commit",
    "sink.committed": "the sink's commit took effect; it is not reported yet",
    "ledger.snapshot": "a files sink's ledger has a snapshot; the entries that it stands for are still there",
    "files.merged": "small files are merged into one; the ledger does not name it yet",
    "files.replaced": "the ledger names the merged file; those that it replaces are still there",
    "kafka.fenced": "the Kafka sink is the only writer of its ledger and has not read it",
    "kafka.sent": "a batch and its ledger entry are in an open transaction of Kafka's",
    "checkpoint.begun": "a checkpoint is recorded as begun; no barrier is there",
    "barrier.appending": "a barrier is about to be appended to a channel",
    "barrier.appended": "a barrier is in a channel; it is not reported yet",
    "checkpoint.snapshot": "the files of a query's cut are about to be kept",
    "checkpoint.acked": "a query has acked",
    "checkpoint.completing": "all queries have acked; the manifest is not written",
    "checkpoint.completed": "the manifest is written; no listener was notified",
    "checkpoint.subsumed": "an older checkpoint was deleted; its files were not",
    "savepoint.begun": "the folder of a savepoint is made, out of sight; nothing is copied",
    "savepoint.copying": "a file of a savepoint is about to be copied",
    "savepoint.written": "all files and the manifest of a savepoint are there, out of sight",
    "savepoint.taken": "the savepoint has its name; it is not reported yet",
    "restore.intended": "a new generation records what it is restored from; nothing is copied",
    "restore.changing": "the files of a changed query were brought aside; its own are not made",
    "restore.changed": "the files of every changed query are made; this is not recorded yet",
    "restore.copied": "the files of the checkpoint are in the new generation",
    "restore.rewound": "the sinks are rewound to the checkpoint",
    "restore.live": "the new generation is live; no query was started",
}
"""Every point, in the order in which a job meets them."""


class InjectedError(Exception):
    """Raised by a fault point that was armed with `raise`."""


@dataclass(frozen=True)
class Fault:
    """One armed fault."""

    point: str
    occurrence: int
    action: str

    @classmethod
    def parse(cls, text: str) -> Fault:
        where, _, action = text.strip().partition(":")
        point, _, occurrence = where.partition("#")
        if point not in POINTS:
            raise ValueError(f"there is no fault point {point!r}; there are {', '.join(POINTS)}")
        return cls(point, int(occurrence or 1), action or "kill")


_lock = threading.Lock()
_counts: Counter[str] = Counter()
_armed = [Fault.parse(text) for text in os.environ.get("WEIR_FAULTS", "").split(",") if text.strip()]


def armed(name: str) -> bool:
    """Whether any fault waits at this point; for points that must be watched for."""
    return any(fault.point == name for fault in _armed)


def point(name: str) -> None:
    """Pass a fault point."""
    if not _armed:
        return
    with _lock:
        _counts[name] += 1
        count = _counts[name]
    for fault in _armed:
        if fault.point == name and fault.occurrence == count and _first_time(fault):
            _act(fault)


def watch(name: str, happening: Callable[[], bool], over: threading.Event) -> None:
    """Pass the point when `happening` becomes true before `over` is set; only when armed."""
    if not armed(name):
        return

    def look() -> None:
        while not over.is_set():
            if happening():
                point(name)
                return
            time.sleep(0.0005)

    threading.Thread(target=look, name=f"weir-fault-{name}", daemon=True).start()


def _first_time(fault: Fault) -> bool:
    folder = os.environ.get("WEIR_FAULTS_DIR")
    if not folder:
        return True
    try:
        with open(Path(folder) / f"{fault.point}#{fault.occurrence}", "x"):
            return True
    except FileExistsError:
        return False


def _act(fault: Fault) -> None:
    kind, _, value = fault.action.partition("=")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "raise":
        raise InjectedError(f"armed at {fault.point}, occurrence {fault.occurrence}")
    elif kind == "hang":
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
    elif kind == "delay":
        time.sleep(float(value))
    else:
        raise ValueError(f"a fault point can't {fault.action!r}; kill, raise, hang, stop, delay=SECONDS")

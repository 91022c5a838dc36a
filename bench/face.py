"""What REST and pages cost, with a history of 10,000 checkpoints, in a process that has all of `weir run`.

    seconds     until a page of checkpoints is there: median and worst of the calls    wanted < 0.3
    memory      of that process: without pages, serving and idle                       wanted < 80 MB
                and when every page was fetched many times                             wanted < 120 MB

Nothing here starts Spark; the journal is written as a supervisor writes it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict
from pathlib import Path

import psutil

from weir.clock import Clock
from weir.ids import job_name
from weir.protocol.messages import BatchCommitted, CheckpointBegun, CheckpointCompleted
from weir.storage import paths
from weir.storage.attempts import AttemptLock
from weir.storage.local import LocalStore
from weir.supervisor.journal import JobJournal

RESULT = Path(__file__).parent / "results" / "face.json"
JOB = job_name("history")
QUERIES = ("bronze", "silver", "gold", "archive")
PAGES = ("/", "/jobs/history", "/jobs/history/checkpoints", "/jobs/history/checkpoints?before=5000")
API = "/api/v1/jobs/history"
CALLS = (
    f"{API}/checkpoints?limit=50",
    f"{API}/checkpoints?limit=1000",
    f"{API}/checkpoints/summary",
    "/metrics",
)
SERVER = """
import sys
import weir.cli.run
from weir.config import resolve
print("loaded", flush=True)
sys.stdin.readline()
from weir.web.server import serve_beside
given = {"execution.checkpointing.dir": sys.argv[1], "rest.port": "0", "rest.token-file": "off"}
settings = resolve(file=None, overrides=given).settings
serve_beside("history", settings, print, lambda url, _link: print(url, flush=True))
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--checkpoints", type=int, default=10_000)
    arguments.add_argument("--rounds", type=int, default=20)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), options.checkpoints)
        result = {"checkpoints": options.checkpoints, **measure(folder, options.rounds)}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def write(dir: Path, checkpoints: int) -> None:
    """A job of four queries that has taken so many checkpoints, with a batch of each query between two."""
    lock = AttemptLock(LocalStore(dir), JOB, Clock())
    lock.acquire("bench", 0.0, lambda *_: None)
    lock.beat()
    journal = JobJournal(dir / paths.journal(JOB), Clock())
    journal.event(1, "attempt", {"session": "bench", "file": "job.py", "driver": 0})
    journal.event(1, "state", {"state": "RUNNING"})
    journal.flush = lambda: None  # type: ignore[method-assign]
    phases = {"barrier": 0.01, "alignment": 0.2, "commit": 0.1, "listing": 0.01, "pinning": 0.02}
    one = {"batch": 1, "unaligned": False, "new_bytes": 10_000, "full_bytes": 900_000, "phases": phases}
    whole = {"trigger": 0.01, "barrier": 0.02, "ack": 0.3, "complete": 0.01, "notify": 0.01}
    for id in range(1, checkpoints + 1):
        for query in QUERIES:
            journal.batch(1, batch(query, id))
        journal.event(1, "checkpoint begun", asdict(CheckpointBegun(id, "aligned", "interval")))
        done = CheckpointCompleted(id, "aligned", "interval", False, 0.35, 40_000, 3_600_000, whole)
        journal.event(1, "checkpoint completed", {**asdict(done), "queries": dict.fromkeys(QUERIES, one)})
    del journal.flush
    journal.close()


def batch(query: str, number: int) -> BatchCommitted:
    return BatchCommitted(
        query,
        run=1,
        batch=number,
        rows=1000,
        seconds=0.5,
        durations={"addBatch": 400},
        state_rows=1000,
        state_bytes=10_000,
        at=Clock().now().isoformat(),
        sources=[{"name": "KafkaV2[Subscribe[orders]]", "rows": 1000, "behind": 10, "unit": "records"}],
        operators=[{"name": "stateStoreSave", "rows": 1000, "bytes": 10_000}],
    )


def measure(dir: str, rounds: int) -> dict[str, object]:
    command = [sys.executable, "-c", SERVER, dir]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdout.readline()
            without = rss_mb(process.pid)
            process.stdin.write("go\n")
            process.stdin.flush()
            url = process.stdout.readline().split("/jobs/")[0]
            time.sleep(1)
            idle = rss_mb(process.pid)
            seconds = {path: timed(url + path, rounds) for path in (*PAGES, *CALLS)}
            memory = {"without_pages": without, "idle": idle, "with_history": rss_mb(process.pid)}
        finally:
            process.kill()
    return {"memory_mb": memory, "seconds": seconds}


def timed(url: str, rounds: int) -> dict[str, float]:
    taken = []
    for _ in range(rounds):
        since = time.perf_counter()
        with urllib.request.urlopen(url) as answer:
            answer.read()
        taken.append(time.perf_counter() - since)
    return {"median": round(statistics.median(taken), 4), "worst": round(max(taken), 4)}


def rss_mb(pid: int) -> float:
    return round(float(psutil.Process(pid).memory_info().rss) / 1e6, 1)


if __name__ == "__main__":
    main()

"""Five queries of one job beside other work of the machine: do they start, commit and complete checkpoints?

    restarts      of the job's queries and of its driver, all of them of weir's own making   wanted: 0
    checkpoints   completed and aborted
    commits       of each query, and the seconds until its first one
    failures      by the type of the error

The job is `examples/medallion.py`; the other work are busy loops, as many as `--load` says, which run from
before the start of the job to its end. Nothing is compared within one run: give the folder of another tree
(`git worktree add ../before COMMIT`) to run the job with the weir of that one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from sides.processes import end_on_sigterm
from weir.testing import JobProcess

OWN = Path(__file__).parent.parent
RESULT = OWN / "bench" / "results" / "under_load.json"
SETTINGS = {"rest.port": "off"}
_LOOK = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path, default=[OWN], help="whose weir; this one by default")
    parser.add_argument("--load", type=int, default=20, help="busy loops beside the job")
    parser.add_argument("--minutes", type=float, default=10.0, help="of each tree")
    parser.add_argument("--quick", action="store_true", help="2 minutes; writes no file")
    options = parser.parse_args()
    end_on_sigterm()
    minutes = 2.0 if options.quick else options.minutes
    report = []
    for tree in options.trees:
        report.append({"tree": commit_of(tree), **measure(tree, options.load, 60 * minutes)})
        print(json.dumps(report[-1], indent=1), flush=True)
    if not options.quick:
        RESULT.write_text(json.dumps(report, indent=1) + "\n")


def measure(tree: Path, load: int, seconds: float) -> dict[str, Any]:
    """Run the job of a tree for so long beside the load."""
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name, busy(load):
        folder = Path(name)
        environ = {"PYTHONPATH": str(tree.absolute() / "src")}
        began = time.time()
        with JobProcess(
            tree / "examples" / "medallion.py",
            folder / "store",
            args=[folder / "out"],
            settings=SETTINGS,
            environ=environ,
        ) as job:
            while time.time() < began + seconds and job.alive:
                time.sleep(_LOOK)
            found = seen(job, began)
            if not job.alive:
                print(job.stderr[-4000:], file=sys.stderr)
    return {"load": load, "load_before": round(before, 2), "seconds": seconds, **found}


def seen(job: JobProcess, began: float) -> dict[str, Any]:
    """What the journal of the job says."""
    events, batches = job.events(), job.batches()
    kinds = Counter(event.kind for event in events)
    restarts = Counter(str(e.body["query"]) or "the driver" for e in events if e.kind == "restart")
    states = [(str(event.body["state"]), event.at) for event in events if event.kind == "state"]
    running = [after(at, began) for state, at in states if state == "RUNNING"]
    graph = [event.body["queries"] for event in events if event.kind == "graph"]
    names = [str(one["name"]) for one in graph[-1]] if graph else []
    return {
        "ended": not job.alive,
        "state": states[-1][0] if states else "",
        "attempts": kinds["attempt"],
        "restarts": dict(sorted(restarts.items())),
        "restarts_in_all": sum(restarts.values()),
        "failures": dict(Counter(str(e.body["error"]) for e in events if e.kind == "failure")),
        "failures_of_the_machine": sum(e.body["domain"] == "machine" for e in events if e.kind == "failure"),
        "checkpoints_completed": kinds["checkpoint completed"],
        "checkpoints_aborted": kinds["checkpoint aborted"],
        "running_after": running[0] if running else None,
        "commits": {name: sum(b["query"] == name for b in batches) for name in names},
        "first_commit_after": {
            name: min((after(b["at"], began) for b in batches if b["query"] == name), default=None)
            for name in names
        },
        "notes": [str(e.body["text"]) for e in events if e.kind == "note"][-10:],
    }


def after(at: str, began: float) -> float:
    """Seconds from the start of the job to a moment of its journal."""
    return round(datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp() - began, 1)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep that many processes busy, which want all of a core each."""
    loops = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in loops:
            one.kill()
        for one in loops:
            one.wait()


def commit_of(tree: Path) -> str:
    """The commit of a tree, as git names it; with "-dirty" where something was changed since."""
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()

"""What savepoints cost: how long one takes, what the job does meanwhile, and how soon one is restored.

    copy        a savepoint of --keys keys of a job that has nothing else to do, over a plain recursive
                copy of the same files (`cp -r`), taken in turns                        wanted <= 1.5
    beside      records/s while savepoints are taken, one after the other without a rest, over the same
                without, in portions that one and the same driver works off in turns    wanted >= 0.9
                and what one of them costs: how many seconds later the job is done
    restore     from the start of the process to the first commit: `weir run` that restores the savepoint,
                over plain PySpark that restarts on a copy of the same state            wanted <= 1.5

weir's copy is forced to the disk, file by file, and each file is summed up; `cp` leaves both out. So `copy`
also says how long `cp` and a `sync` of its files take. Seconds of a savepoint are its own: from the request
to the last byte, the checkpoint that it waits for included. Nothing is deleted while the clock runs: ext4
looks for a new inode one by one among those that were deleted in the last seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sides.feed import Feed, keyed
from sides.processes import Plain, Side, Weir, cpu_seconds, end_on_sigterm, worked_off
from weir.client import running_job
from weir.client.ask import Caller

RESULT = Path(__file__).parent / "results" / "savepoints.json"
QUERY = "sums"
SETTINGS = {"execution.checkpointing.interval": "off"}
PATIENCE = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--portion", type=int, default=800_000, help="records of a portion of 'beside'")
    parser.add_argument("--file", type=int, default=20_000, help="records of a batch of the source")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=PARTS, action="append", help="the rest of the result file stays")
    parser.add_argument("--quick", action="store_true", help="few records, one round; writes no file")
    options = parser.parse_args()
    end_on_sigterm()
    if options.quick:
        options.keys, options.portion, options.rounds = 50_000, 60_000, 1
    report = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for part in options.only or PARTS:
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as folder:
            found = PARTS[part](Path(folder), options)
        report[part] = {"load_before": round(load, 2), "keys": options.keys, **found}
        print(part, json.dumps(report[part], indent=1), flush=True)
        if not options.quick:
            RESULT.parent.mkdir(exist_ok=True)
            RESULT.write_text(json.dumps(report, indent=1) + "\n")


class Filled:
    """A running job with all keys in its state."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder = folder
        self.feed = Feed(folder, keyed(options.keys))
        self.rows = 0
        self.side = self.start()
        fill = self.feed.prepare(options.keys, 4)
        self.feed.hand_over(fill)
        self.work_off(fill.records)

    def __enter__(self) -> Filled:
        return self

    def __exit__(self, *error: Any) -> None:
        self.side.__exit__(*error)

    def start(self, *options: str | Path) -> Weir:
        return Weir("sums", self.folder, [self.feed.folder, self.folder / "out"], SETTINGS, options)

    def work_off(self, records: int, since: float | None = None) -> float:
        self.rows += records
        return worked_off(self.side, {QUERY: self.rows}, since)

    def savepoint(self) -> dict[str, Any]:
        """Take one; what the job says of it. Asked from here: a command would take its share of the cores."""
        caller = Caller(str(self.side.dir), self.side.job, PATIENCE)
        saved = running_job.savepoint(caller, path=str(self.folder / "saved")).form()
        return {**saved, "path": Path(saved["path"])}

    def stop(self) -> Path:
        """End the job with a savepoint; its place."""
        where = ("--savepoint-path", self.folder / "saved", "--dir", self.side.dir)
        return Path(weir("stop", self.side.job, *where)["path"])


def copy(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """A savepoint and a plain copy of it, in turns."""
    rounds = []
    with Filled(folder, options) as job:
        for number in range(options.rounds + 1):
            taken = job.savepoint()
            began = time.monotonic()
            target = folder / f"copied-{number}"
            subprocess.run(["cp", "-r", taken["path"], target], check=True)
            copied = time.monotonic() - began
            names = [one for one in target.rglob("*") if one.is_file()]
            subprocess.run(["sync", *names], check=True)
            synced = time.monotonic() - began
            if number:  # the first one is to warm up
                rounds.append({"weir": taken["seconds"], "cp": round(copied, 4), "cp_sync": round(synced, 4)})
    return {
        "bytes": taken["bytes"],
        "files": len(names),
        **ratios([one["weir"] / one["cp"] for one in rounds]),
        "synced": ratios([one["weir"] / one["cp_sync"] for one in rounds]),
        "rounds": rounds,
    }


def beside(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Portions worked off in turns, while savepoints are taken and while none is."""
    rounds: list[dict[str, Any]] = []
    with Filled(folder, options) as job:
        files = options.portion // options.file
        for number in range(options.rounds + 1):
            found: dict[str, Any] = {}
            for kind in ("without", "while") if number % 2 == 0 else ("while", "without"):
                portion = job.feed.prepare(options.portion, files)
                used = cpu_seconds(job.side)
                with Taking(job) if kind == "while" else Nothing() as taking:
                    began = job.feed.hand_over(portion)
                    ended = job.work_off(portion.records, began)
                found[kind] = {
                    "seconds": round(ended - began, 2),
                    "records_per_second": round(portion.records / (ended - began)),
                    "cpu_seconds": round(cpu_seconds(job.side) - used, 2),
                    "savepoints": len(taking.taken),
                }
                for one in taking.taken:
                    shutil.rmtree(one)
                os.sync()  # what is deleted is the disk's work, and no window's
            rounds.append(found)
    del rounds[0]  # warming up
    return {
        "records": options.portion,
        **ratios([r["while"]["records_per_second"] / r["without"]["records_per_second"] for r in rounds]),
        "lost_seconds_a_savepoint": round(statistics.median(map(lost, rounds)), 3),
        "rounds": rounds,
    }


def lost(round: dict[str, Any]) -> float:
    """How much later the job was done for each savepoint."""
    later = round["while"]["seconds"] - round["without"]["seconds"]
    return float(later / round["while"]["savepoints"])


class Nothing:
    """No savepoint is taken."""

    def __init__(self) -> None:
        self.taken: list[Path] = []

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *error: object) -> None: ...


class Taking(Nothing):
    """Savepoints are taken, one after the other, as long as the block lasts."""

    def __init__(self, job: Filled) -> None:
        super().__init__()
        self._job = job
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._take)

    def __enter__(self) -> Taking:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _take(self) -> None:
        while not self._over.is_set():
            self.taken.append(self._job.savepoint()["path"])


def restore(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The same savepoint restored, and its state restarted without weir, in turns."""
    rounds = []
    with Filled(folder, options) as job:
        saved = job.stop()
    portion = job.feed.prepare(options.file, 1)
    job.feed.hand_over(portion)
    for number in range(options.rounds + 1):
        found: dict[str, float] = {}
        for kind in ("weir", "plain") if number % 2 == 0 else ("plain", "weir"):
            place = folder / f"plain-{number}"
            start: Callable[[], Weir | Plain] = partial(job.start, "-s", saved)
            if kind == "plain":
                shutil.copytree(saved / "queries", place / "checkpoints")

                def start(place: Path = place) -> Plain:
                    return Plain("sums", place, [job.feed.folder, place / "out"])

            began = time.time()
            with start() as side:
                found[kind] = round(first_commit(side, began) - began, 2)
            shutil.rmtree(place, ignore_errors=True)
        if number:  # the first one is to warm up
            rounds.append(found)
    return {**ratios([one["weir"] / one["plain"] for one in rounds]), "rounds": rounds}


def first_commit(side: Side, since: float) -> float:
    """When the first batch behind a start ended."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if not side.alive():
            raise SystemExit("bench: it failed before its first commit")
        ends = [one.ended_at for one in side.batches() if one.ended_at > since]
        if ends:
            return min(ends)
        time.sleep(0.05)
    raise SystemExit(f"bench: no commit within {PATIENCE:g} s")


PARTS: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
    "copy": copy,
    "beside": beside,
    "restore": restore,
}


def weir(*words: object) -> dict[str, Any]:
    """A command, and its answer."""
    command = [sys.executable, "-m", "weir", *map(str, words), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    answer: dict[str, Any] = json.loads(done.stdout)
    if done.returncode:
        raise SystemExit(f"bench: {answer}")
    return answer


def ratios(found: list[float]) -> dict[str, Any]:
    return {"ratio": round(statistics.median(found), 3), "ratios": [round(one, 3) for one in found]}


if __name__ == "__main__":
    main()

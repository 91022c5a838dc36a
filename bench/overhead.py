"""What weir costs: throughput and recovery against plain PySpark, and the supervisor's memory.

    throughput  records/s of a keyed count under weir over the same in plain PySpark   wanted >= 0.97
    recovery    SIGKILL of the driver to the next commit, over a plain process from its
                start to its first commit on the same checkpoint                       wanted <= 1.3
    memory      the supervisor's resident memory while the job runs                    wanted < 80 MB

Both sides of each ratio are measured in turn in one run, with the same Spark settings; medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from sides.processes import end, end_on_sigterm, plain_environment
from weir.config import resolve
from weir.spark import session
from weir.supervisor.history import History

HERE = Path(__file__).parent
JOB = HERE / "jobs" / "keyed_count.py"
RESULT = HERE / "results" / "overhead.json"
MASTER = "local[2]"
PARTITIONS = 2
PARTS = ("throughput", "recovery")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--records", type=int, default=5_000_000)
    arguments.add_argument("--files", type=int, default=20)
    arguments.add_argument("--keys", type=int, default=100_000)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--only", choices=PARTS, help="the rest of the result file stays")
    options = arguments.parse_args()
    end_on_sigterm()
    result = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    sizes = {"records": options.records, "keys": options.keys}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options.records, options.files, options.keys)
        if options.only in (None, "throughput"):
            pairs = [(bench.weir_throughput(), bench.plain_throughput()) for _ in range(options.rounds)]
            result["throughput"] = sizes | summary([(w.rate, p) for w, p in pairs])
            result["supervisor_mb"] = round(max(w.supervisor_mb for w, _ in pairs), 1)
        if options.only in (None, "recovery"):
            result["recovery"] = sizes | summary([bench.recovery() for _ in range(options.rounds)])
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def summary(pairs: list[tuple[float, float]]) -> dict[str, object]:
    """The medians of both sides, their ratio, and the ratio of each round."""
    weir, plain = (statistics.median(side) for side in zip(*pairs, strict=True))
    return {
        "weir": round(weir, 2),
        "plain": round(plain, 2),
        "ratio": round(weir / plain, 3),
        "rounds": [round(w / p, 3) for w, p in pairs],
    }


class Measured:
    """One run under weir."""

    def __init__(self, rate: float, supervisor_mb: float) -> None:
        self.rate = rate
        self.supervisor_mb = supervisor_mb


class Bench:
    """The input, and the two ways to run over it."""

    def __init__(self, folder: Path, records: int, files: int, keys: int) -> None:
        self._folder = folder
        self._per_file = records // files
        self._files = files
        self._input = folder / "in"
        self._serial = 0
        generate(self._input, self._per_file, files, keys)

    def weir_throughput(self) -> Measured:
        place, peak = self._place(), 0.0
        with self._weir(place) as process:
            while process.poll() is None:
                peak = max(peak, rss_mb(process.pid))
                time.sleep(0.2)
            require(process.returncode == 0, "the run under weir failed")
        return Measured(self._rate(place / "store/keyed-count/generations/0001/queries/counts"), peak)

    def plain_throughput(self) -> float:
        place = self._place()
        with self._plain(place / "out", place / "checkpoint") as process:
            require(process.wait() == 0, "the plain run failed")
        return self._rate(place / "checkpoint")

    def recovery(self) -> tuple[float, float]:
        """Seconds to the next commit after a kill under weir, and of a plain start in its place."""
        place = self._place()
        checkpoint = place / "store/keyed-count/generations/0001/queries/counts"
        copy = place / "copy"
        with self._weir(place) as process:
            wait_for(lambda: last_commit(checkpoint) >= self._files // 3, process)
            driver = driver_group(place)
            os.kill(driver, signal.SIGKILL)
            killed_at = time.time()
            wait_for(lambda: not psutil.pid_exists(driver) or not group_alive(driver), process)
            before = last_commit(checkpoint)
            shutil.copytree(checkpoint, copy)
            wait_for(lambda: last_commit(checkpoint) > before, process)
            under_weir = commit_time(checkpoint, before + 1) - killed_at
            require(process.wait() == 0, "the run under weir failed after the kill")
        started_at = time.time()
        with self._plain(place / "out-plain", copy) as plain:
            wait_for(lambda: last_commit(copy) > before, plain)
            in_plain = commit_time(copy, before + 1) - started_at
        return under_weir, in_plain

    def _place(self) -> Path:
        self._serial += 1
        place = self._folder / str(self._serial)
        place.mkdir()
        return place

    def _weir(self, place: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
        settings = [f"execution.checkpointing.dir={place / 'store'}", f"parallelism.default={PARTITIONS}"]
        command = [sys.executable, "-m", "weir", "run", str(JOB), "--master", MASTER]
        command += [part for setting in settings for part in ("-D", setting)]
        return running([*command, str(self._input), str(place / "out")], os.environ, place)

    def _plain(self, output: Path, checkpoint: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
        config = resolve(file=None, overrides={"spark.master": MASTER})
        spark = session.builder_settings(config) | session.state_settings(config, PARTITIONS)
        command = [sys.executable, str(JOB), str(self._input), str(output), str(checkpoint)]
        return running(command, plain_environment(spark), output.parent)

    def _rate(self, checkpoint: Path) -> float:
        """Records per second between the first and the last commit."""
        last = last_commit(checkpoint)
        require(last == self._files - 1, f"{last + 1} batches instead of {self._files}")
        return self._per_file * last / (commit_time(checkpoint, last) - commit_time(checkpoint, 0))


@contextmanager
def running(
    command: Sequence[str], environ: Mapping[str, str], folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended, with all that it started, whatever happens."""
    process = subprocess.Popen(
        command, env=environ, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        end(process)


def generate(folder: Path, per_file: int, files: int, keys: int) -> None:
    """Deterministic records, a file for each batch, in the order of their times."""
    folder.mkdir()
    for number in range(files):
        ids = range(number * per_file, (number + 1) * per_file)
        table = pa.table({"key": [i * 2654435761 % keys for i in ids], "value": list(ids)})
        path = folder / f"{number:04d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def last_commit(checkpoint: Path) -> int:
    commits = checkpoint / "commits"
    names = os.listdir(commits) if commits.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def commit_time(checkpoint: Path, batch: int) -> float:
    return (checkpoint / "commits" / str(batch)).stat().st_mtime


def driver_group(place: Path) -> int:
    history = History(place / "store/keyed-count/journal/journal.sqlite")
    try:
        attempt = history.last("attempt")
    finally:
        history.close()
    require(attempt is not None, "no attempt in the journal")
    assert attempt is not None
    return int(attempt.body["driver"])


def group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def rss_mb(pid: int) -> float:
    try:
        return float(psutil.Process(pid).memory_info().rss) / 2**20
    except psutil.NoSuchProcess:
        return 0.0


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        require(process.poll() is None, "the process ended too early")
        require(time.monotonic() < end, f"it took longer than {seconds} s")
        time.sleep(0.005)


def require(fact: bool, otherwise: str) -> None:
    if not fact:
        raise SystemExit(f"bench: {otherwise}")


if __name__ == "__main__":
    main()

"""`make demo`: a word count is killed twice with SIGKILL and loses nothing.

Steps: write text files -> run `wordcount_files.py` with `weir run` -> kill its driver twice, at
random moments of its work -> wait until the input is used up -> compare the result with a count that
plain Python made -> print how each recovery went, and the verdict.

The demo knows the driver only through the job's journal, as any tool would.
"""

import argparse
import math
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
from rich.console import Console

import weir
from weir.ids import JobName, QueryName
from weir.spark.checkpoint_files import QueryFiles
from weir.storage import open_store, paths
from weir.storage.generation import FIRST
from weir.storage.open import beside
from weir.supervisor.history import Event, History
from weir.supervisor.recovery import timeline

JOB, QUERY = JobName("wordcount-files"), QueryName("counts")
FILES = 12
"""One file a batch."""
WORDS = 60_000
"""In each file."""
VOCABULARY = 300_000
QUICK_JVM = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Three drivers that live for seconds: the time goes into starting them, not into peak speed."""
KILL_BEHIND = ((2, 4), (6, 9))
"""Each kill waits for a batch between these two, then for a moment more."""
LIMIT = 600.0
"""Seconds until the demo fails; a quiet machine needs about 60."""

say = Console(highlight=False, soft_wrap=True)
began_at = time.monotonic()


def main() -> int:
    """Run the demo; 0 when nothing was lost or doubled in spite of two kills."""
    parser = argparse.ArgumentParser(description="a word count that is killed twice and loses nothing")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--keep", action="store_true", help="leave the files there to look at")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="weir-demo-"))
    good = False
    try:
        good = demo(folder, random.Random(asked.seed), asked.seed)
    finally:
        if good and not asked.keep:
            shutil.rmtree(folder)
        else:
            say.print(f"the files are in {folder}")
    return 0 if good else 1


def demo(folder: Path, chance: random.Random, seed: int) -> bool:
    """All the steps, in a folder of their own."""
    expected = write_text(folder / "text", chance)
    tell(f"{expected.total():,} words in {FILES} files, {len(expected):,} of them different (seed {seed})")
    with Running(folder) as running:
        work_and_kill(running, chance)
        code = running.supervisor.poll()
    if code != 0:
        say.print((folder / "weir.log").read_text(errors="replace")[-4000:], markup=False)
        ended = f"did not end in {LIMIT:.0f} s" if code is None else f"ended with exit code {code}"
        tell(f"[bold red]weir run {ended}[/]")
        return False
    tell("the input is used up")
    for event in running.history().events("recovery"):
        show(event)
    verdict = compare(expected, folder / "counts")
    kills = running.kills
    good = verdict == Verdict(0, 0) and kills == len(KILL_BEHIND)
    say.print(f"\n{len(expected):,} words compared with a count in plain Python, after {kills} kills:")
    say.print(f"[bold {'green' if good else 'red'}]lost {verdict.lost}, doubled {verdict.doubled}[/]")
    say.print(f"[dim]{time.monotonic() - began_at:.0f} s in all[/]")
    return good


def write_text(folder: Path, chance: random.Random) -> Counter[str]:
    """Write the files; the count of every word, by plain Python."""
    folder.mkdir()
    syllables = [consonant + vowel for consonant in "bcdfghjklmnprstvwxyz" for vowel in "aeiou"]
    vocabulary = [
        syllables[n // 10_000] + syllables[n // 100 % 100] + syllables[n % 100]
        for n in chance.sample(range(10**6), VOCABULARY)
    ]
    total: Counter[str] = Counter()
    for number in range(FILES):
        # Some words are frequent and most are rare, as in any text.
        words = [vocabulary[int(VOCABULARY * chance.random() ** 2)] for _ in range(WORDS)]
        lines = (" ".join(words[i : i + 10]) for i in range(0, WORDS, 10))
        (folder / f"{number:03d}.txt").write_text("\n".join(lines))
        total.update(words)
    return total


class Running:
    """`weir run` as a process of its own, and what its journal records."""

    def __init__(self, folder: Path) -> None:
        storage = folder / "weir-data"
        self.folder = folder
        self.kills = 0
        self.files = QueryFiles(open_store(str(storage)), paths.query(JOB, FIRST, QUERY))
        self._journal = beside(str(storage), paths.journal(JOB))
        run = [sys.executable, "-m", "weir", "run", str(Path(__file__).with_name("wordcount_files.py"))]
        settings = ["-D", f"execution.checkpointing.dir={storage}", "-D", QUICK_JVM, "--master", "local[2]"]
        with open(folder / "weir.log", "wb") as log:
            self.supervisor = subprocess.Popen(
                [*run, "text", "counts", *settings],
                cwd=folder,
                env={key: value for key, value in os.environ.items() if not key.startswith("WEIR_")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        if self.supervisor.poll() is None:
            self.supervisor.terminate()
            try:
                self.supervisor.wait(60)
            except subprocess.TimeoutExpired:
                self.supervisor.kill()
                self.supervisor.wait()

    def history(self) -> History:
        return History(self._journal)

    def news(self) -> Iterator["Event | dict[str, Any] | None"]:
        """Events and committed batches as they come, None between them, until the supervisor ended."""
        last_event = last_batch = 0
        give_up_at = time.monotonic() + LIMIT
        ended = False
        while not ended and time.monotonic() < give_up_at:
            ended = self.supervisor.poll() is not None  # read once more after its end
            events, batches = self._read()
            news = [e for e in events if e.id > last_event], [b for b in batches if b["id"] > last_batch]
            last_event = max([last_event, *(e.id for e in news[0])])
            last_batch = max([last_batch, *(b["id"] for b in news[1])])
            yield from news[1]
            yield from news[0]
            yield None
            time.sleep(0.02)

    def _read(self) -> tuple[list[Event], list[dict[str, Any]]]:
        try:
            with closing(self.history()) as history:
                return history.events(), history.batches()
        except sqlite3.OperationalError:  # the journal is not there yet
            return [], []

    def kill(self, driver: int) -> None:
        """SIGKILL for the driver, after a look that it is the one that our supervisor started."""
        if psutil.Process(driver).ppid() != self.supervisor.pid:
            raise RuntimeError(f"process {driver} is not the driver of this demo")
        planned, committed = self.files.last_planned(), self.files.last_committed()
        os.kill(driver, signal.SIGKILL)
        self.kills += 1
        half = f"batch {planned} was half done" if planned > committed else f"after batch {committed}"
        tell(f"[bold red]kill -9[/] of the driver, process {driver}: {half}")


def work_and_kill(running: Running, chance: random.Random) -> None:
    """Follow the job to its end, and kill its driver at the chosen moments on the way."""
    plan = [chance.randint(*between) for between in KILL_BEHIND]
    driver, kill_at = 0, math.inf
    warm = 0
    for news in running.news():
        if isinstance(news, dict):
            tell(
                f"batch {news['batch']:2}: {news['rows']:,} lines, {news['state_rows']:,} words in the state"
            )
            warm += 1  # the first batch of an attempt is slow, and does not show how long the next takes
            if plan and news["batch"] >= plan[0] and warm > 1:
                del plan[0]
                kill_at = time.monotonic() + chance.uniform(0, 1.2 * news["seconds"])
        elif news is not None and news.kind == "attempt":
            driver, warm = news.body["driver"], 0
        elif news is not None and news.kind in ("state", "note"):
            body = news.body
            tell(f"attempt {news.attempt} is {body['state']}" if "state" in body else f"weir: {body['text']}")
        if time.monotonic() >= kill_at:
            kill_at = math.inf
            running.kill(driver)


@dataclass(frozen=True)
class Verdict:
    """How far the result is from the truth."""

    lost: int
    doubled: int


def compare(expected: Counter[str], counts: Path) -> Verdict:
    """Fold the delivered rows, oldest first, and compare every word with its true count.

    Counts only grow; a row that does not raise its word's count was delivered twice, and is counted
    as doubled even though the fold would hide it.
    """
    found: dict[str, int] = {}
    again = 0
    for file in weir.committed_files(str(counts)):
        table = pq.read_table(file)
        for word, count in zip(table["word"].to_pylist(), table["count"].to_pylist(), strict=True):
            again += count <= found.get(word, 0)
            found[word] = count
    every = expected.keys() | found.keys()
    differences = [found.get(word, 0) - expected[word] for word in every]
    return Verdict(
        lost=-sum(d for d in differences if d < 0), doubled=again + sum(d for d in differences if d > 0)
    )


def show(event: Event) -> None:
    """One recovery as bars."""
    body = event.body
    say.print(f"\n[bold]recovery into attempt {event.attempt}[/]: {body['seconds']:.1f} s, {body['cause']}")
    for part, seconds, bar in timeline(body["parts"]):
        say.print(f"  {part:<14}{seconds:6.2f} s  [cyan]{bar}[/]")


def tell(text: str) -> None:
    """One line with the time since the start."""
    say.print(f"[dim]{time.monotonic() - began_at:5.1f} s[/]  {text}")


if __name__ == "__main__":
    sys.exit(main())

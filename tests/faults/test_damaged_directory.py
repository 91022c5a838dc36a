"""A job's directory has lost something while nobody ran it: the next start is right, or refuses in words.

A real job with a stream, state and a source of files has made checkpoints and was killed, with rows in the
stream. One file is damaged in one way, more input comes, and `weir run` starts it again: either it delivers
what a start of the undamaged directory delivers, or it ends with what happened and what to do. Never a
traceback, never other rows.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster import Gate
from tests.faults.inputs import Feed
from weir.testing import JobProcess, committed_rows, folded

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(1800)]

JOB = Path(__file__).parent / "jobs" / "streamed.py"
SEED = 20261118
LIMIT = 240.0
KINDS = {
    "manifest": "checkpoints/chk-*.json",
    "offsets": "generations/*/queries/*/offsets/[0-9]*",
    "commits": "generations/*/queries/*/commits/[0-9]*",
    "state": "generations/*/queries/*/state/*/*/[0-9]*",
    "metadata": "generations/*/queries/*/metadata",
    "operator": "generations/*/queries/*/state/*/_metadata/**/[0-9m]*",
    "source log": "generations/*/queries/*/sources/0/[0-9]*",
    "channel entry": "generations/*/channels/*/log/*.json",
    "segment": "generations/*/channels/*/data/*/part-*",
    "origin": "generations/*/origin.json",
    "attempt": "attempts/*.json",
    "journal": "journal/journal.sqlite",
}
NEWEST = 3
"""One of so many of the newest files of a kind is damaged: older ones are mostly not needed."""


def flip(path: Path, chance: random.Random) -> None:
    """In place, as a disk does it: a file that a checkpoint shares is changed there too."""
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(bytes(data))


def half(path: Path, _chance: random.Random) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path, _chance: random.Random) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.touch()
    beside.rename(path)


def gone(path: Path, _chance: random.Random) -> None:
    path.unlink()


DAMAGES: list[Callable[[Path, random.Random], None]] = [flip, half, empty, gone]


@dataclass
class Ended:
    """A job that is over, and can be put back to that: Spark has written the paths of its files down."""

    root: Path
    kept: Path
    settings: Mapping[str, str]
    quiet: object = None
    """What a start of the undamaged directory makes of the input that comes then."""

    @property
    def job(self) -> Path:
        return self.root / "weir" / "streamed"

    def put_back(self) -> Feed:
        """As it was left, with more input; the feed that knows all of it."""
        shutil.rmtree(self.root, ignore_errors=True)
        subprocess.run(["cp", "-a", str(self.kept), str(self.root)], check=True)  # with its hard links
        feed = Feed(self.root / "in")
        feed.add(5)  # the files that are there, as they are, and the new ones
        return feed

    def process(self) -> JobProcess:
        args = (self.root / "in", self.root / "out", self.root / "gate")
        return JobProcess(JOB, self.root / "weir", args=args, settings=self.settings)

    def output(self) -> object:
        """The newest row of each key; every row that was delivered is another one."""
        rows = committed_rows(str(self.root / "out"))
        again = [key for key, count in Counter((row["k"], row["n"]) for row in rows).items() if count > 1]
        assert not again, f"delivered twice: {again}"
        return folded(rows, ["k"])


def damaged(job: Path, kind: str, chance: random.Random) -> str:
    """Damage one file of a kind; what was done."""
    there = [path for path in job.glob(KINDS[kind]) if path.is_file()]
    path = chance.choice(sorted(there, key=lambda one: (one.stat().st_mtime_ns, str(one)))[-NEWEST:])
    damage = chance.choice(DAMAGES)
    damage(path, chance)
    return f"{path.relative_to(job)}, {damage.__name__}"


@pytest.fixture(scope="module")
def ended(quick: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    folder = tmp_path_factory.mktemp("damaged")
    key = "execution.checkpointing"
    settings = {**quick, f"{key}.interval": "1 s", f"{key}.num-retained": "3"}
    made = Ended(folder / "job", folder / "kept", settings)
    made.root.mkdir()
    feed = Feed(made.root / "in")
    gate = Gate(made.root / "gate")
    with made.process() as process:
        for number in range(1, 3):
            feed.add(1)
            process.wait_for("delivery", lambda: feed.delivered(made.root / "out"), LIMIT)
            there = len(process.events("checkpoint completed"))
            wanted = max(number, there + 1)
            process.wait_for(
                "a checkpoint",
                lambda wanted=wanted: len(process.events("checkpoint completed")) >= wanted,  # type: ignore[misc]
                LIMIT,
            )
        # The reader stands still in a batch with segments before it, and everything is killed.
        gate.close()
        last = max(batch["batch"] for batch in process.batches("clean"))
        feed.add(2)
        process.wait_for("a batch that is held", gate.tasks, LIMIT)
        process.wait_for_batch("clean", last + 2, LIMIT)
    gate.open()
    made.root.rename(made.kept)
    feed = made.put_back()
    with made.process() as process:
        process.wait_for("delivery of the rest", lambda: feed.delivered(made.root / "out"), LIMIT)
        process.terminate()
        assert process.wait(LIMIT).exit_code == 0
    made.quiet = made.output()
    yield made


@pytest.mark.parametrize("kind", KINDS)
def test_a_start_over_damage_is_right_or_refuses_in_words(ended: Ended, kind: str) -> None:
    feed = ended.put_back()
    what = f"{kind}: {damaged(ended.job, kind, random.Random(f'{SEED} {kind}'))}, seed {SEED}"
    print(what)
    with ended.process() as process:
        until = time.monotonic() + LIMIT
        while process.alive and not feed.delivered(ended.root / "out"):
            assert time.monotonic() < until, f"{what}: neither right nor refused; it said:\n{process.stderr}"
            time.sleep(0.2)
        if delivered := process.alive:
            process.terminate()
        run = process.wait(LIMIT)
    print(run.stderr)
    assert "Traceback" not in run.stdout + run.stderr, f"{what}\n{run.stderr}"
    if delivered:
        assert run.exit_code == 0, f"{what}\n{run.stderr}"
        assert ended.output() == ended.quiet, what
    else:
        assert run.exit_code != 0, what
        assert "what to do:" in run.stderr, f"{what}\n{run.stderr}"

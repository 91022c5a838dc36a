"""The diamond under `weir run`, with checkpoints and rollbacks, killed at every point that it meets.

Whatever is killed, every id comes out once, and nothing stalls: in the end new rows come through and a
new checkpoint completes. A dozen points are killed in one run; in the long suite each point by itself, at
its first occurrence and at a later one, then some by chance.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.diamond import JOB, KEY, Diamond
from weir.clock import Clock
from weir.faults import POINTS
from weir.monitor.job import look
from weir.restore.point import candidates
from weir.storage import generation as generations
from weir.supervisor.inbox import Requests
from weir.testing import JobProcess, fired

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(600)]

FILE = Path(__file__).parent / "jobs" / "diamond.py"
LIMIT = 240.0
"""Seconds in which one life of a driver must bring what is waited for; a machine that is busy needs some."""

LATER = {
    "start.fenced": 3,
    "start.recovered": 2,
    "start.query": 3,
    "checkpoint.begun": 3,
    "checkpoint.snapshot": 7,
    "checkpoint.acked": 6,
    "checkpoint.completing": 2,
    "checkpoint.completed": 3,
    "checkpoint.subsumed": 2,
    "barrier.appending": 5,
    "barrier.appended": 6,
    "batch.planned": 9,
    "batch.writing": 9,
    "batch.state": 2,
    "batch.written": 8,
    "batch.staged": 9,
    "batch.committed": 7,
    "sink.committing": 6,
    "sink.committed": 8,
}
"""A later occurrence in one life of a driver, where a point has more than one."""
ELSEWHERE = ("savepoint.", "restore.chang", "ledger.", "files.", "kafka.")
"""Points of savepoints, of changed jobs, of other sinks, and of a files sink with very many batches."""
MET = [point for point in POINTS if not point.startswith(ELSEWHERE)]


@pytest.fixture
def settings(quick: Mapping[str, str]) -> dict[str, str]:
    return {
        **quick,
        f"{KEY}.interval": "1 s",
        f"{KEY}.num-retained": "3",
        f"{KEY}.max-concurrent-checkpoints": "2",
    }


class Life:
    """One `weir run` of the diamond: it is fed, taken back, and must end well."""

    def __init__(self, diamond: Diamond, process: JobProcess) -> None:
        self.diamond = diamond
        self.process = process

    def feed(self) -> None:
        """Let rows come through of which the slow side has had none while a checkpoint was under way."""
        diamond = self.diamond
        diamond.hold(diamond.ids)
        diamond.add(1)
        self.wait("a checkpoint under way", diamond.pending)
        diamond.release()
        self.wait("all rows", diamond.complete)

    def feed_until_fired(self, faults: set[str]) -> None:
        for _ in range(100):
            if fired(self.process.marks) >= faults:
                return
            self.feed()
        raise AssertionError(f"never reached: {faults - fired(self.process.marks)}")

    def go_back(self) -> None:
        """Ask for a rollback to the oldest checkpoint that is there, and wait until it is live."""
        diamond = self.diamond
        self.wait("a checkpoint", lambda: candidates(diamond.store, JOB))
        before = diamond.live.generation
        asked: list[str] = []

        def live() -> bool:
            if diamond.live.generation > before:
                return True
            requests = Requests(diamond.store, JOB)
            refused = asked and requests.answer_to(asked[-1])
            if not asked or (refused and generations.opening(diamond.store, JOB) is None):
                standing, oldest = look(str(diamond.dir), JOB, Clock()), candidates(diamond.store, JOB)[-1]
                asked.append(requests.ask("restore", standing.owner.session, {"point": f"chk-{oldest}"}))
            return False

        self.wait("a rollback", live)

    def _lives(self) -> int:
        return max((event.attempt for event in self.process.events()), default=0)

    def wait(self, what: str, there: Any) -> None:
        """Wait for something; a run that stalls says what it did last."""
        lives = self._lives()
        try:
            self.process.wait_for(what, there, LIMIT)
        except (AssertionError, TimeoutError) as error:
            if isinstance(error, TimeoutError) and self._lives() > lives:
                return self.wait(what, there)  # a kill came between: the next life has its own time
            told = "\n".join(
                f"{e.at} {e.attempt} {e.kind} {e.query} {e.body}"[:300] for e in self.process.events()[-40:]
            )
            raise AssertionError(f"{error}\nits journal ends with\n{told}") from error

    def end(self) -> None:
        """New rows come through, a new checkpoint completes, and the job ends."""
        diamond = self.diamond
        newest = max((one.id for one in diamond.manifests()), default=0)
        self.feed()
        self.wait("a new checkpoint", lambda: any(one.id > newest for one in diamond.manifests()))
        self.process.terminate()
        run = self.process.wait(LIMIT)
        assert run.exit_code == 0, run.stderr
        diamond.check()


def lives(
    diamond: Diamond,
    faults: Sequence[str],
    settings: Mapping[str, str],
    *,
    rollbacks: int = 0,
    again: bool = False,
    seed: object = None,
) -> None:
    """Run the diamond until every fault has fired; `rollbacks` times it is taken back on the way.

    Faults of a restore fire in each of them. `again`: then all of them fire once more, in the driver
    that comes after one that was killed from outside.
    """
    print(f"faults {','.join(faults)}, {rollbacks} rollbacks, seed {seed}")
    wanted = {fault.partition(":")[0] for fault in faults}
    diamond.add(2)
    args = {"faults": faults, "args": (diamond.folder,), "settings": settings}
    with JobProcess(FILE, diamond.dir, **args) as process:  # type: ignore[arg-type]
        life = Life(diamond, process)
        life.wait("the first rows", diamond.complete)
        for _ in range(rollbacks):
            life.feed()
            for mark in process.marks.glob("restore.*"):
                mark.unlink()
            life.go_back()
        life.feed_until_fired(wanted)
        if again:
            for mark in process.marks.iterdir():
                mark.unlink()
            process.kill_driver()
            life.feed_until_fired(wanted)
        life.end()


DOZEN = [
    "checkpoint.begun#1",
    "barrier.appending#2",
    "barrier.appended#3",
    "checkpoint.snapshot#3",
    "checkpoint.completing#1",
    "checkpoint.completed#1",
    "batch.committed#3",
    "sink.committed#2",
    "restore.intended#1",
    "restore.copied#1",
    "restore.rewound#1",
    "restore.live#1",
]


@pytest.mark.minutes
@pytest.mark.timeout(1200)
def test_a_dozen_kills_change_nothing(settings: Mapping[str, str], tmp_path: Path) -> None:
    lives(Diamond(tmp_path), [f"{fault}:kill" for fault in DOZEN], settings, rollbacks=1)


@pytest.mark.long
@pytest.mark.parametrize("point", MET)
def test_a_kill_at_any_point_changes_nothing(point: str, settings: Mapping[str, str], tmp_path: Path) -> None:
    faults = [f"{point}#{number}:kill" for number in sorted({1, LATER.get(point, 1)})]
    restores = point.startswith("restore.")
    again = point not in LATER and not restores
    lives(Diamond(tmp_path), faults, settings, rollbacks=2 if restores else 0, again=again)


@pytest.mark.long
@pytest.mark.parametrize("number", range(1, 10))
@pytest.mark.parametrize("point", ["barrier.appending", "barrier.appended"])
def test_a_kill_at_each_single_barrier_entry_changes_nothing(
    point: str, number: int, settings: Mapping[str, str], tmp_path: Path
) -> None:
    lives(Diamond(tmp_path), [f"{point}#{number}:kill"], settings)


@pytest.mark.long
@pytest.mark.parametrize("alignment", ["aligned", "unaligned", "turning", "purging"])
def test_kills_and_rollbacks_by_chance_change_nothing(
    alignment: str, settings: Mapping[str, str], tmp_path: Path
) -> None:
    seed = int(os.environ.get("WEIR_SEED", random.randrange(10**6)))
    chance = random.Random(f"{seed} {alignment}")
    points = [point for point in MET if alignment == "aligned" or not point.startswith("barrier.")]
    faults = [f"{point}#{chance.randint(1, LATER.get(point, 1))}:kill" for point in chance.sample(points, 8)]
    more = {
        "aligned": {},
        "unaligned": {f"{KEY}.unaligned.enabled": "true"},
        "turning": {f"{KEY}.unaligned.enabled": "true", f"{KEY}.aligned-checkpoint-timeout": "300 ms"},
        "purging": {
            "spark.sql.streaming.minBatchesToRetain": "2",
            "spark.sql.streaming.stateStore.maintenanceInterval": "500ms",
        },
    }[alignment]
    lives(Diamond(tmp_path), faults, {**settings, **more}, rollbacks=2, seed=seed)

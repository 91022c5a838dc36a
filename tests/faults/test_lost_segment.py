"""A running diamond loses a file of a channel that a reader has still before it, and mends itself.

The right side is held while the others go on, so that segments pile up in front of it; then a file of the
middle one is deleted by hand. Nobody starts anything but the supervisor: its next driver takes the whole
job back to the newest checkpoint, and the output is that of a quiet run. So it is when the newest entry is
deleted, which only the writer can miss: its number must not be given out again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.conftest import Once
from tests.diamond import JOB, KEY, Diamond
from weir.client import running_job
from weir.client.ask import Caller
from weir.ids import QueryName
from weir.protocol.states import JobState
from weir.spark.checkpoint_files import QueryFiles
from weir.testing import JobProcess, assert_same_result, committed_rows

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(900)]

FILE = Path(__file__).parent / "jobs" / "diamond.py"
LIMIT = 240.0
"""Seconds in which one life of a driver must bring what is waited for; a machine that is busy needs some."""
BATCHES = 8
"""Of the input, in all."""


@pytest.fixture(scope="module")
def settings(quick: Mapping[str, str]) -> dict[str, str]:
    return {**quick, f"{KEY}.interval": "1 s"}


@pytest.fixture(scope="module")
def quiet(once: Once, settings: Mapping[str, str]) -> Path:
    """The diamond with all of the input, to which nothing happened."""

    def make(folder: Path) -> None:
        diamond = Diamond(folder)
        diamond.add(BATCHES)
        with JobProcess(FILE, diamond.dir, args=(folder,), settings=settings) as process:
            process.wait_for("all rows", diamond.complete, LIMIT)
            process.terminate()
            run = process.wait(LIMIT)
        assert (run.exit_code, run.attempts, run.failures) == (0, [1], []), run.stderr
        diamond.check()

    return once("quiet diamond", make)


def rows(channel: Path, segment: int) -> str:
    """A file with rows of the segment."""
    entry = json.loads((channel / log_entry(channel, segment)).read_text())
    return f"{entry['folder']}/{entry['files'][0]['name']}"


def log_entry(_channel: Path, segment: int) -> str:
    return f"log/{segment:09d}.json"


def set_interval(diamond: Diamond, interval: str) -> None:
    """What 'weir configure' does."""
    dir, change = str(diamond.dir), {f"{KEY}.interval": interval}
    done = running_job.configure(Caller(dir, JOB, LIMIT), change)
    assert done.settings.keys() == change.keys()


def wait_for_checkpoints(process: JobProcess, more: int) -> None:
    """Wait until so many more have completed."""
    wanted = len(process.events("checkpoint completed")) + more
    process.wait_for("checkpoints", lambda: len(process.events("checkpoint completed")) >= wanted, LIMIT)


def pile_up(diamond: Diamond, process: JobProcess) -> list[int]:
    """Hold the right side in a batch; the entries of three segments behind it that the left has read."""
    right = QueryFiles.of(diamond.live, QueryName("right"))

    def add() -> int:
        there = diamond.entries("all", "segment")[-1]
        diamond.add(1)
        process.wait_for("one more segment", lambda: diamond.entries("all", "segment")[-1] > there, LIMIT)
        return diamond.entries("all", "segment")[-1]

    diamond.hold(diamond.ids)
    held = add()
    process.wait_for("a batch that is held", lambda: right.last_planned() > right.last_committed(), LIMIT)
    unread = [add() for _ in range(3)]
    process.wait_for("the left side", lambda: diamond.position("left", "all") > unread[-1], LIMIT)
    assert diamond.position("right", "all") <= held, "it has committed nothing of this"
    return unread


@pytest.mark.long
@pytest.mark.parametrize(("lose", "which"), [(rows, 1), (log_entry, 1), (log_entry, 2)])
def test_a_channel_that_loses_a_file_takes_the_job_back_by_itself_and_nothing_is_lost_or_doubled(
    lose: Callable[[Path, int], str], which: int, quiet: Path, settings: Mapping[str, str], tmp_path: Path
) -> None:
    diamond = Diamond(tmp_path)
    diamond.add(2)
    with JobProcess(FILE, diamond.dir, args=(tmp_path,), settings=settings) as process:
        process.wait_for("the first rows", diamond.complete, LIMIT)
        wait_for_checkpoints(process, 2)  # the second has begun behind the rows
        set_interval(diamond, "off")
        process.wait_for("the last checkpoint", lambda: not diamond.pending(), LIMIT)
        kept = diamond.manifests()[-1]
        diamond.add(1)
        process.wait_for("rows behind the checkpoint", diamond.complete, LIMIT)
        joined = QueryFiles.of(diamond.live, QueryName("joined"))
        assert joined.last_committed() > kept.queries["joined"].batch, "there is something to take back"

        unread = pile_up(diamond, process)
        channel, before = diamond.folder_of("channels/all"), diamond.live.generation
        lost = lose(channel, unread[which])
        batch = json.loads((channel / log_entry(channel, unread[which])).read_text())["batch"]
        (channel / lost).unlink()
        diamond.release()
        diamond.add(1)
        process.wait_for("a new generation", lambda: diamond.live.generation > before, LIMIT)
        process.wait_for_state(JobState.RUNNING, LIMIT)

        set_interval(diamond, "1 s")
        process.wait_for("all rows", diamond.complete, LIMIT)
        wait_for_checkpoints(process, 1)
        process.terminate()
        run = process.wait(LIMIT)
    assert run.exit_code == 0, run.stderr

    (failure,) = run.of("failure")
    assert (failure.attempt, failure.body["error"]) == (1, "LostSegmentError")
    assert failure.body["what"] == f"the channel file {channel / lost} is gone"
    assert failure.body["retry"] and failure.body["redeploy"]

    assert run.attempts == [1, 2]
    drivers = [event.body for event in run.of("attempt")]
    assert len({one["session"] for one in drivers}) == 1, "one supervisor has started both"
    assert len({one["driver"] for one in drivers}) == 2

    (restored,) = run.of("restored")
    assert (restored.attempt, restored.body["checkpoint"]) == (2, kept.id)
    assert restored.body["generation"] == diamond.live.generation == before + 1
    damage = f"{lost} of channel all is gone"
    if which == 2:  # nothing is left that says how it was called
        damage = f"the segment of batch {batch} of channel all is gone"
    assert damage in restored.body["why"]
    told = f"live files are damaged ({damage}): the job resumes from checkpoint {kept.id}"
    assert told in [event.body["text"] for event in run.of("note")]
    again = {
        query: min(b["batch"] for b in run.batches if (b["attempt"], b["query"]) == (2, query))
        for query in kept.queries
    }
    assert again == {query: cut.batch + 1 for query, cut in kept.queries.items()}, "all of them went back"
    assert not (channel / lost).exists(), "the damaged files are left as they are"
    assert diamond.manifests()[-1].generation == diamond.live.generation

    diamond.check()
    assert_same_result(committed_rows(str(tmp_path / "joined")), committed_rows(str(quiet / "joined")))

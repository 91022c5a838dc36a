"""Is a job healthy? The verdict, its words, and `weir top`, which shows it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from tests.fake_job import Answer, FakeJob
from tests.web_site import checkpointed, described, failed
from weir.cli import main
from weir.clock import Clock, ManualClock
from weir.monitor import measures
from weir.monitor.health import Health, HealthLevel, health, judge
from weir.monitor.measures import Query
from weir.monitor.report import report
from weir.text import moment_of, seconds_since

INTERVAL = "execution.checkpointing.interval"


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    return described(FakeJob(tmp_path).state("RUNNING").batch(41))


def verdict(job: FakeJob) -> Health:
    return health(str(job.dir), report(str(job.dir), job.name, Clock()), Clock())


def test_a_job_that_runs_and_completes_its_checkpoints_is_well(job: FakeJob) -> None:
    assert verdict(job) == Health(HealthLevel.OK, "it runs")
    assert verdict(checkpointed(job, 1, 3)) == Health(HealthLevel.OK, "it runs, and its checkpoints complete")


def test_checkpoints_that_fail_are_said_until_one_completes(job: FakeJob) -> None:
    checkpointed(checkpointed(job, 9, 10), 20, 20)
    assert verdict(job).level is HealthLevel.WARN
    assert verdict(job).words == "the last 2 checkpoints were aborted: its files could not be kept"
    assert verdict(checkpointed(job, 21, 21)).level is HealthLevel.OK


def test_a_checkpoint_that_the_end_of_a_query_aborted_is_no_failure_of_checkpoints(job: FakeJob) -> None:
    body = {"id": 1, "alignment": "", "trigger": "", "seconds": 0.1, "detail": ""}
    job.event("checkpoint aborted", {**body, "reason": "a query failed and was started again"})
    assert verdict(job).level is HealthLevel.OK


def test_a_checkpoint_that_is_overdue_is_said_unless_there_is_no_interval(
    job: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.monitor.health._PATIENCE", -30.0)
    assert verdict(job).words.startswith("no checkpoint has completed for ")
    described(job, **{INTERVAL: "off"})
    assert verdict(job).level is HealthLevel.OK


@pytest.mark.parametrize(
    ("state", "level", "word"),
    [
        ("FAILED", HealthLevel.BAD, "boom: too often"),
        ("RESTARTING", HealthLevel.WARN, "down for 0 s: boom; it waits before it restarts"),
        ("STARTING", HealthLevel.WARN, "down for 0 s: boom; attempt 1 is starting"),
        ("CANCELLING", HealthLevel.OVER, "it is ending"),
    ],
)
def test_the_state_decides_first(state: str, level: HealthLevel, word: str, job: FakeJob) -> None:
    failed(job, "boom").event("gave up", {"reason": "too often"})
    job.state(state)
    assert verdict(job) == Health(level, word)


def test_a_job_that_starts_for_the_first_time_or_after_an_end_is_not_down(tmp_path: Path) -> None:
    job = described(FakeJob(tmp_path).state("STARTING"))
    assert verdict(job) == Health(HealthLevel.OVER, "it is starting")
    job.state("RUNNING").state("CANCELLING").state("CANCELED").state("STARTING")
    assert verdict(job) == Health(HealthLevel.OVER, "it is starting")
    assert measures.outages(str(tmp_path), job.name, job.clock) == []


def test_an_outage_lasts_from_the_last_sign_of_life_and_until_now_while_it_lasts(job: FakeJob) -> None:
    recovery = {"query": "", "cause": "killed", "seconds": 75.0, "parts": {}, "first": None}
    job.event("recovery", recovery)
    job.event("recovery", {**recovery, "query": "counts"}, "counts")  # the others ran meanwhile
    (past,) = measures.outages(str(job.dir), job.name, job.clock)
    assert seconds_since(past[0], moment_of(past[1])) == 75.0 and past[2] == "killed"
    job.event("failure", {"what": "killed again", "why": "", "hint": ""})
    job.state("RESTARTING").restart().state("STARTING")
    _, lasting = measures.outages(str(job.dir), job.name, job.clock)
    assert lasting[0] < lasting[1] and lasting[2] == "killed again"
    job.state("RUNNING")
    assert len(measures.outages(str(job.dir), job.name, job.clock)) == 1


def test_a_lost_job_is_bad_and_one_that_ended_is_over(job: FakeJob) -> None:
    job.killed()
    assert verdict(job).level is HealthLevel.BAD and "died before the job ended" in verdict(job).words
    job.state("FINISHED").end()
    assert verdict(job) == Health(HealthLevel.OVER, "it ended as FINISHED")


def test_many_restarts_are_worth_a_word(job: FakeJob) -> None:
    failed(failed(job, "one"), "two")
    assert verdict(job).level is HealthLevel.OK
    assert verdict(failed(job, "three")).words == "3 restarts or more within the last hour"


def lagging(behind: Sequence[int], clock: ManualClock) -> Query:
    """A query with a batch each ten seconds, each of which left so many records over."""
    began = clock.now()
    batches = [
        {
            "at": (began + timedelta(seconds=10 * number)).isoformat(),
            "sources": [{"name": "kafka", "rows": 5, "behind": left, "unit": "records"}],
        }
        for number, left in enumerate(behind)
    ]
    return Query("counts", batches, began + timedelta(seconds=10 * len(behind)))


@pytest.mark.parametrize(
    ("behind", "late"),
    [
        ([100 * number for number in range(20)], True),
        ([0, 50, 10, 20, 5] * 2 + [90, 60, 70, 80, 95] * 2, True),
        ([100] * 20, False),
        ([0, 900] * 10, False),
        ([100 * number for number in range(19, -1, -1)], False),
        ([100 * number for number in range(19)], False),
    ],
)
def test_a_query_falls_behind_when_its_newest_batches_all_leave_more_over(
    behind: list[int], late: bool, job: FakeJob
) -> None:
    query = lagging(behind, ManualClock())
    assert query.falling_behind is late
    seen = report(str(job.dir), job.name, Clock())
    found = judge(seen, [], [], "off", Clock().now(), [query] if late else [])
    assert found.level is (HealthLevel.WARN if late else HealthLevel.OK)
    if late:
        assert found.words.startswith("counts can't keep up: ") and "records are unread" in found.words


@pytest.fixture
def weir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Answer]:
    for name in [name for name in os.environ if name.startswith("WEIR_")]:
        monkeypatch.delenv(name)

    def call(*arguments: str) -> Answer:
        with pytest.raises(SystemExit) as end:
            main([*arguments, "--dir", str(tmp_path)])
        said = capsys.readouterr()
        return Answer(int(end.value.code or 0), said.out, said.err)

    return call


def test_top_shows_health_queries_checkpoints_and_the_recovery(
    weir: Callable[..., Answer], job: FakeJob
) -> None:
    checkpointed(failed(job, "boom"), 1, 3)
    shown = weir("top", "wordcount").out
    for text in (
        "RUNNING",
        "its checkpoints complete",
        "300k",
        "2 MiB",
        "alignment of counts, 0.25 s",
        "boom",
    ):
        assert text in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    body = weir("top", "wordcount", "--json").json
    assert body["health"] == {"level": "ok", "words": "it runs, and its checkpoints complete"}
    assert (body["queries"][0]["rate"], body["queries"][0]["batch_seconds"]["p99"]) == (25.0, 0.5)
    assert weir("top", "nope").code == 2


def test_a_query_that_failed_for_good_is_bad_and_one_that_starts_again_is_worth_a_word(job: FakeJob) -> None:
    job.queries(what="a row is refused", counts="RUNNING", rows="RESTARTING")
    job.state("RESTARTING")
    assert verdict(job) == Health(HealthLevel.WARN, "query rows is RESTARTING: a row is refused")
    job.queries(what="a row is refused", counts="RUNNING", rows="FAILED")
    job.state("DEGRADED")
    words = "query rows has FAILED: a row is refused; the others run, without checkpoints"
    assert verdict(job) == Health(HealthLevel.BAD, words)

"""`weir list`, `status`, `cancel` and `logs` over job directories that no Spark has seen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.fake_job import FakeJob, Weir
from weir.client import ask as asking
from weir.clock import Clock
from weir.errors import DriverDiedError
from weir.ids import job_name
from weir.monitor.job import LOST, Alive, true_state
from weir.protocol.messages import BatchCommitted
from weir.protocol.states import JobState
from weir.storage import paths
from weir.storage.attempts import AttemptLock
from weir.storage.local import LocalStore


@pytest.fixture
def weir(weir: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weir:
    monkeypatch.setenv("WEIR_EXECUTION_CHECKPOINTING_DIR", str(tmp_path))
    return weir


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    return FakeJob(tmp_path).state("STARTING").state("RUNNING").batch(41)


@pytest.mark.parametrize("state", JobState)
def test_the_written_state_is_shown_while_its_writer_may_live(state: JobState) -> None:
    assert true_state(state, False, Alive.YES) == state.value
    assert true_state(state, False, Alive.UNKNOWN) == state.value


@pytest.mark.parametrize("state", JobState)
def test_a_dead_writer_makes_every_state_lost_but_a_final_one(state: JobState) -> None:
    assert true_state(state, False, Alive.NO) == (state.value if state.final else LOST)
    assert true_state(state, True, Alive.NO) == (state.value if state.final else LOST)


def test_where_nothing_is_written_the_attempt_alone_tells() -> None:
    assert true_state(None, False, Alive.YES) == "RUNNING"
    assert true_state(None, True, Alive.NO) == "CANCELED"
    assert true_state(None, False, Alive.NO) == LOST


def test_an_empty_directory_lists_nothing_and_stays_empty(weir: Weir, tmp_path: Path) -> None:
    answer = weir("list", "--dir", str(tmp_path / "none"))
    assert (answer.code, answer.err) == (0, "")
    assert "there is no job" in answer.out
    assert list(tmp_path.iterdir()) == []


def test_a_running_job_is_listed_with_who_runs_it(weir: Weir, job: FakeJob) -> None:
    answer = weir("list")
    assert "RUNNING" in answer.out and "counts 41" in answer.out and f"{os.getpid()} on" in answer.out
    (one,) = weir("list", "--json").json["jobs"]
    assert (one["name"], one["state"], one["alive"], one["attempt"]) == ("wordcount", "RUNNING", True, 1)
    assert (one["pid"], one["batch"]["batch"], one["advice"]) == (os.getpid(), 41, "")


def test_a_job_whose_supervisor_was_killed_is_lost_and_says_what_to_do(weir: Weir, job: FakeJob) -> None:
    job.killed()
    answer = weir("list")
    assert "LOST" in answer.out and "RUNNING" not in answer.out
    assert "'weir run /jobs/wordcount.py' resumes it" in answer.out.replace("\n", "")
    assert weir("status", "wordcount", "--json").json["state"] == LOST


def test_a_lost_job_is_lost_since_it_was_last_seen_alive(weir: Weir, job: FakeJob, tmp_path: Path) -> None:
    ran_since = weir("status", "wordcount", "--json").json["since"]
    job.batch(42)
    job.killed()
    beat = tmp_path / paths.beat(job.name, job.lock.held)
    os.utime(beat, (0, 0))
    assert weir("status", "wordcount", "--json").json["since"] > ran_since  # the batch was later
    os.utime(beat, (4e9, 4e9))
    assert weir("status", "wordcount", "--json").json["since"].startswith("2096-")


def test_a_supervisor_killed_after_the_last_state_leaves_that_state(weir: Weir, job: FakeJob) -> None:
    job.state("CANCELED").killed()
    (one,) = weir("list", "--all", "--json").json["jobs"]
    assert (one["state"], one["alive"]) == ("CANCELED", False)


def test_a_job_on_another_machine_is_shown_with_a_question_mark(weir: Weir, job: FakeJob) -> None:
    job.rewrite(host="elsewhere")
    assert "RUNNING?" in weir("list").out
    (one,) = weir("list", "--json").json["jobs"]
    assert (one["state"], one["alive"]) == ("RUNNING", None)
    assert "elsewhere" in one["advice"]


def test_ended_jobs_are_listed_only_with_all(weir: Weir, job: FakeJob) -> None:
    job.state("CANCELED").end()
    answer = weir("list")
    assert "no job runs" in answer.out and "1 ended: weir list --all" in answer.out
    assert "CANCELED" in weir("list", "--all").out


def test_a_job_in_a_notebook_has_no_journal_and_is_listed(weir: Weir, tmp_path: Path) -> None:
    lock = AttemptLock(LocalStore(tmp_path), job_name("nb"), Clock())
    lock.acquire("notebook", 0.0, lambda *_: None)
    lock.beat()
    (one,) = weir("list", "--json").json["jobs"]
    assert (one["state"], one["supervised"]) == ("RUNNING", False)
    refused = weir("cancel", "nb")
    assert refused.code == 5 and "leave its 'with' block" in refused.err
    lock.release()
    (one,) = weir("list", "--all", "--json").json["jobs"]
    assert one["state"] == "CANCELED"
    lock.release(failed=True)
    (one,) = weir("list", "--all", "--json").json["jobs"]
    assert one["state"] == "FAILED"


def test_the_end_of_an_earlier_life_is_not_the_state_of_this_one(
    weir: Weir, job: FakeJob, tmp_path: Path
) -> None:
    job.state("FAILED").end()
    lock = AttemptLock(LocalStore(tmp_path), job.name, Clock())
    lock.acquire("second", 0.0, lambda *_: None)
    (one,) = weir("list", "--json").json["jobs"]
    assert (one["state"], one["attempt"]) == ("RUNNING", 2)


def test_folders_that_are_no_jobs_are_not_listed(weir: Weir, job: FakeJob, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "not a job" / "attempts").mkdir(parents=True)
    (tmp_path / "weir.yaml").touch()
    assert [one["name"] for one in weir("list", "--json").json["jobs"]] == ["wordcount"]


def test_tables_fit_eighty_columns(weir: Weir, tmp_path: Path) -> None:
    for name in ("a" * 90, "short"):
        job = FakeJob(tmp_path, name).state("RUNNING").batch(123456, "q" * 60)
        job.event("query started", {"query": "q" * 60, "run": 1}, "q" * 60)
    for table in (weir("list").out, weir("status", "a" * 90).out.partition("\n\n")[2]):
        assert max(map(len, table.splitlines())) <= 80


def test_list_loads_neither_spark_nor_the_supervisor(job: FakeJob, tmp_path: Path) -> None:
    code = """
import sys
from weir.cli import main
try:
    main(["list"])
except SystemExit as end:
    heavy = {"pyspark", "pyarrow", "pandas", "weir.supervisor.loop", "weir.cli.run"}
    print(end.code, heavy & set(sys.modules))
"""
    environ = {**os.environ, "WEIR_EXECUTION_CHECKPOINTING_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.splitlines()[-1] == "0 set()", done.stderr
    assert "RUNNING" in done.stdout


def failed_and_recovered(job: FakeJob) -> None:
    job.event("query started", {"query": "counts", "run": 1, "last_committed": -1}, "counts")
    failure = {"what": "the driver was killed", "why": "out of memory", "hint": "give it more", "error": "X"}
    job.event("failure", failure)
    job.event("restart", {"delay": 1.0, "query": ""})
    job.state("RESTARTING").restart().state("STARTING")
    job.event("query started", {"query": "counts", "run": 1, "last_committed": 41}, "counts")
    job.state("RUNNING").batch(42)
    parts = {"detect": 0.1, "wait": 1.0, "process": 0.5, "session": 3.0, "first commit": 0.4}
    first = {"query": "counts", "batch": 42, "rows": 1500}
    body = {"query": "", "cause": failure["what"], "seconds": 5.0, "parts": parts, "first": first}
    job.event("recovery", body)


def test_status_shows_queries_failure_restarts_and_the_recovery(weir: Weir, job: FakeJob) -> None:
    failed_and_recovered(job)
    out = weir("status", "wordcount").out
    for text in (
        "RUNNING",
        "attempt 2, 1 restart\n",
        f"supervisor {os.getpid()}",
        "300k",
        "2 MiB",
        "the driver was killed",
        "give it more",
    ):
        assert text in out
    assert "5.0 s  the driver was killed; back with batch 42 of counts" in out
    assert "session         3.00 s  " in out and "█" in out


def test_status_as_json_has_the_documented_keys(weir: Weir, job: FakeJob) -> None:
    failed_and_recovered(job)
    body = weir("status", "wordcount", "--json").json
    (query,) = body["queries"]
    assert (query["query"], query["batch"], query["rows"], query["total_rows"]) == ("counts", 42, 1500, 3000)
    assert (body["failure"]["what"], body["failure"]["attempt"]) == ("the driver was killed", 1)
    assert body["recoveries"][0]["parts"]["session"] == 3.0
    assert (body["restarts"], body["gave_up"]) == (1, None)


def test_status_shows_how_far_behind_kafka_a_query_is(weir: Weir, job: FakeJob) -> None:
    job.batch(3, lag={f"clicks-{number}": number for number in range(12)}).batch(4, lag={"clicks-0": 1500})
    assert "lag of counts: 1.5k records (clicks-0 1.5k)" in weir("status", "wordcount").out
    assert weir("status", "wordcount", "--json").json["queries"][0]["lag"] == {"clicks-0": 1500}
    job.batch(5, lag={f"clicks-{number}": number for number in range(12)})
    assert "66 records (clicks-11 11, clicks-10 10" in weir("status", "wordcount").out
    assert "4 more)" in weir("status", "wordcount").out


def test_a_query_that_is_no_longer_in_the_job_is_not_shown(weir: Weir, job: FakeJob) -> None:
    job.batch(3, "removed")
    job.event("query started", {"query": "counts", "run": 1, "last_committed": 41}, "counts")
    job.event("query started", {"query": "fresh", "run": 1, "last_committed": -1}, "fresh")
    queries = weir("status", "wordcount", "--json").json["queries"]
    assert [(one["query"], one["batch"]) for one in queries] == [("counts", 41), ("fresh", None)]


@pytest.mark.parametrize("verb", ["status", "cancel", "logs"])
def test_a_job_that_does_not_exist_is_one_clear_message(verb: str, weir: Weir, tmp_path: Path) -> None:
    answer = weir(verb, "nope")
    assert answer.code == 2
    assert "error: there is no job 'nope' in" in answer.err and "what to do: 'weir list" in answer.err
    body = weir(verb, "nope", "--json")
    assert set(body.json) == {"error"} and set(body.json["error"]) == {"what", "why", "hint"}
    assert body.err == ""
    assert weir(verb, "a/b").err.startswith("error: 'a/b' can't be the name of a job")
    assert list(tmp_path.iterdir()) == []


class Supervisor(threading.Thread):
    """Answers requests as a supervisor does, or ends without an answer."""

    def __init__(self, job: FakeJob, state: str | None) -> None:
        super().__init__(daemon=True)
        self.job, self.end_state = job, state
        self.heard: list[str] = []

    def run(self) -> None:
        while not (found := self.job.requests.pending()):
            threading.Event().wait(0.01)
        self.heard = [request.session for request in found]
        if self.end_state:
            self.job.requests.answer(found[0], done=True, state=self.end_state)
        self.job.lock.release()


@pytest.mark.parametrize(("state", "code"), [("CANCELED", 0), ("FINISHED", 0), ("FAILED", 1)])
def test_cancel_waits_for_the_end_and_says_it(state: str, code: int, weir: Weir, job: FakeJob) -> None:
    supervisor = Supervisor(job, state)
    supervisor.start()
    answer = weir("cancel", "wordcount", "--json")
    assert (answer.code, answer.json) == (code, {"job": "wordcount", "state": state, "attempt": 1})
    assert supervisor.heard == ["first"]


def test_cancel_of_a_job_that_has_ended_says_so(weir: Weir, job: FakeJob) -> None:
    job.state("FINISHED").end()
    answer = weir("cancel", "wordcount")
    assert (answer.code, answer.out) == (0, "wordcount is FINISHED already\n")
    assert weir("cancel", "wordcount", "--json").json["state"] == "FINISHED"
    refused = weir("checkpoint", "wordcount")
    assert refused.code == 5 and "it is FINISHED since" in refused.err
    assert "'weir status wordcount'" in refused.err


def test_ctrl_c_in_cancel_says_that_the_job_still_ends(
    weir: Weir, job: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(asking, "_answer", pressed)
    answer = weir("cancel", "wordcount")
    assert answer.code == 130 and "the cancel of wordcount continues" in answer.err


def test_a_job_that_is_looked_for_in_the_wrong_place_is_told_with_the_whole_path(
    weir: Weir, tmp_path: Path
) -> None:
    answer = weir("status", "nope", "--dir", "somewhere")
    assert f"there is no job 'nope' in {tmp_path / 'somewhere'}" in answer.err and "--dir" in answer.err
    assert str(tmp_path / "somewhere") in weir("list", "--dir", "somewhere").out


def test_a_dashboard_of_a_directory_that_is_not_there_is_refused(weir: Weir) -> None:
    answer = weir("dashboard", "--dir", "nope", "--port", "0")
    assert answer.code == 2 and "there is no such directory" in answer.err


def test_the_watermark_is_a_time_and_before_the_first_event_it_is_nothing(weir: Weir, job: FakeJob) -> None:
    batch = BatchCommitted("counts", 1, 42, 10, 0.5, {}, 3, 100, at=job.clock.now().isoformat())
    for mark, shown in (
        ("1970-01-01T00:00:00.000Z", r"100 B +-\n"),
        (job.clock.now().isoformat(), r"100 B +\d\d:\d\d:\d\d \(\d+ s ago\)\n"),
    ):
        job.journal.batch(job.lock.held, replace(batch, watermark=mark))
        job.journal.flush()
        assert re.search(shown, weir("status", "wordcount").out)


def test_the_hint_of_a_failure_names_the_attempt_that_failed(weir: Weir, job: FakeJob) -> None:
    failure = DriverDiedError(job="wordcount", attempt=1, how="was killed by SIGKILL")
    job.event("failure", {"what": failure.what, "why": "", "hint": failure.hint})
    assert "'weir logs wordcount --attempt 1' shows its last output" in weir("status", "wordcount").out
    job.event(
        "failure", {"what": "Spark failed", "why": "", "hint": "'weir logs wordcount' has the full stack"}
    )
    job.restart()
    seen = weir("status", "wordcount", "--json").json["failure"]["hint"]
    assert seen == "'weir logs wordcount --attempt 1' has the full stack"


def test_cancel_of_a_lost_job_says_that_nobody_is_there(weir: Weir, job: FakeJob) -> None:
    job.killed()
    answer = weir("cancel", "wordcount")
    assert answer.code == 5 and "it is LOST since" in answer.err
    assert "what to do: to resume it: weir run /jobs/wordcount.py" in answer.err
    assert job.requests.pending() == []


def test_a_supervisor_that_ends_without_an_answer_is_not_waited_for(weir: Weir, job: FakeJob) -> None:
    Supervisor(job, None).start()
    answer = weir("cancel", "wordcount")
    assert answer.code == 5 and "ended before it could answer" in answer.err
    assert job.requests.pending() == []


def test_cancel_gives_up_waiting_at_its_limit_and_the_request_stands(weir: Weir, job: FakeJob) -> None:
    answer = weir("cancel", "wordcount", "--timeout", "0")
    assert answer.code == 3 and "has not ended within 0 s" in answer.err
    assert [request.verb for request in job.requests.pending()] == ["cancel"]


def test_logs_shows_the_last_lines_of_the_newest_attempt_over_turned_files(weir: Weir, job: FakeJob) -> None:
    job.log(1, "of the first attempt\n")
    job.log(2, "one\ntwo\n", turned=2)
    job.log(2, "three\n", turned=1)
    job.log(2, "four\nfive")
    assert weir("logs", "wordcount").out == "one\ntwo\nthree\nfour\nfive"
    assert weir("logs", "wordcount", "-n", "3").out == "three\nfour\nfive"
    assert weir("logs", "wordcount", "--attempt", "1", "-n", "-1").out == "of the first attempt\n"
    body = weir("logs", "wordcount", "-n", "2", "--json").json
    assert (body["attempt"], body["lines"]) == (2, ["four", "five"])


def test_output_that_is_not_there_is_said_with_what_is(weir: Weir, job: FakeJob) -> None:
    assert "no supervisor has started a driver" in weir("logs", "wordcount").err
    job.log(1, "x\n")
    answer = weir("logs", "wordcount", "--attempt", "7")
    assert answer.code == 2 and "there is output of attempt 1" in answer.err
    assert "only a run with -d" in weir("logs", "wordcount", "--supervisor").err
    assert "can't be one JSON object" in weir("logs", "wordcount", "-f", "--json").json["error"]["why"]


def test_follow_goes_on_over_turned_files_and_attempts_until_the_job_ends(
    weir: Weir, job: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pause of the reader is one step of the writer, so nothing depends on time."""
    folder = job.dir / paths.logs(job.name)
    job.log(1, "old\nstart\n")

    def turn_over() -> None:
        job.log(1, "before the turn\n")
        (folder / "driver-000001.log").rename(folder / "driver-000001.log.1")
        job.log(1, "after the turn\n")

    def end() -> None:
        job.log(2, "last words\n")
        job.lock.release()

    steps = iter([lambda: job.log(1, "more\n"), turn_over, lambda: job.log(2, "next attempt\n"), end])

    def pause() -> None:
        step = next(steps)
        step()

    monkeypatch.setattr("weir.cli.logs.pause", pause)
    answer = weir("logs", "wordcount", "-f", "-n", "1")
    assert answer.out.splitlines() == [
        *("start", "more", "before the turn", "after the turn", "next attempt", "last words")
    ]
    assert "continuing with driver-000002.log" in answer.err


def test_status_and_list_show_how_each_query_stands(weir: Weir, tmp_path: Path) -> None:
    job = FakeJob(tmp_path).state("RESTARTING").batch(7, "counts")
    later = (job.clock.now() + timedelta(seconds=18)).isoformat()
    job.queries(later, "the database is away", counts="RUNNING", rows="RESTARTING")
    shown = weir("status", "wordcount")
    assert re.search(r"rows starts again in 1\d s: the database is away", shown.out)
    counts, rows = weir("status", "wordcount", "--json").json["queries"]
    assert (counts["state"], counts["restart_in_seconds"], counts["failure"]) == ("RUNNING", None, None)
    assert rows["state"] == "RESTARTING" and 10 < rows["restart_in_seconds"] <= 18
    assert rows["failure"] == "the database is away"
    (listed,) = weir("list", "--json").json["jobs"]
    assert listed["query_states"] == {"RUNNING": 1, "RESTARTING": 1}
    shown = weir("list")
    assert "1 of 2" in shown.out
    assert re.search(r"wordcount: query rows is RESTARTING in 1\d s: the database is away", shown.out)


def test_a_query_that_failed_stays_so_when_its_job_is_over_and_the_others_have_ended(
    weir: Weir, tmp_path: Path
) -> None:
    job = FakeJob(tmp_path).state("DEGRADED")
    job.queries(what="a row is refused", counts="RUNNING", rows="FAILED")
    job.state("CANCELED")
    job.lock.release()
    found = {one["query"]: one["state"] for one in weir("status", "wordcount", "--json").json["queries"]}
    assert found == {"counts": "ENDED", "rows": "FAILED"}


def test_what_an_earlier_life_said_of_the_queries_says_nothing_of_this_one(
    weir: Weir, tmp_path: Path
) -> None:
    job = FakeJob(tmp_path).state("RUNNING")
    job.queries(counts="FAILED")
    job.lock.release()
    FakeJob(tmp_path, session="second").state("STARTING")
    assert weir("list", "--json").json["jobs"][0]["query_states"] == {}


def test_no_command_of_somebody_elses_reaches_the_terminal(job: FakeJob, weir: Weir) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07\x9b31mrm -rf\r\x08"
    job.state("RUNNING").batch(41, query=f"counts{evil}")
    failure = {"what": f"it broke{evil}", "why": evil, "hint": evil, "error": evil, "stack": "", "batch": 1}
    job.event("failure", {**failure, "domain": "user", "retry": True, "exit_code": 2}, "counts")
    job.event("restart", {"delay": 1.0, "query": "counts"}, "counts")
    for verb in ("status", "list", "checkpoints"):
        said = weir(verb, *([] if verb == "list" else ["wordcount"]), "--dir", str(job.dir))
        shown = said.out + said.err
        assert said.code == 0 and not set("\x1b\x07\x9b\r\x08") & set(shown), verb
    assert "it broke" in weir("status", "wordcount", "--dir", str(job.dir)).out

"""The command line as a whole: forms of speech, exit codes, bad commands, `config` and `doctor`."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests.fake_job import FakeJob, Weir
from weir.cli import VERBS, say
from weir.config import describe
from weir.preflight import CheckVerdict, Finding


def test_alone_it_shows_its_verbs(weir: Weir) -> None:
    answer = weir()
    assert answer.code == 0
    assert [verb for verb in VERBS if f"\n  {verb} " not in answer.out] == []
    assert "..." not in answer.out.partition("Commands:")[2], "each verb's first sentence fits its line"


def test_it_says_its_version(weir: Weir) -> None:
    assert weir("--version").out == "weir 0.1.0\n"


@pytest.mark.parametrize("verb", VERBS)
def test_every_help_fits_a_terminal_and_has_an_example(verb: str, weir: Weir) -> None:
    out = weir(verb, "--help").out
    assert f"Example: weir {verb}" in out
    assert max(map(len, out.splitlines())) <= 84


@pytest.mark.parametrize(
    ("arguments", "what", "hint"),
    [
        (["stats"], "no such command 'stats'", "did you mean 'weir status'?"),
        (["status"], "missing argument 'JOB'", "'weir status --help'"),
        (["list", "--jsn"], "no such option: --jsn", "'weir list --help'"),
        (["run", "x.py", "--rate", "5"], "no such option: --rate", "go after '--'"),
        (["logs", "x", "-n", "many"], "invalid value for '-n'", "'weir logs --help'"),
    ],
)
def test_a_command_that_is_not_understood(arguments: list[str], what: str, hint: str, weir: Weir) -> None:
    answer = weir(*arguments)
    assert answer.code == 2 and answer.out == ""
    assert what in answer.err and hint in answer.err
    error = weir(*arguments, "--json")
    assert error.code == 2 and error.err == ""
    assert error.json["error"]["what"].startswith(what)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (["-D", "heartbeat.timeout"], "-D can't be 'heartbeat.timeout'"),
        (["-D", "=5"], "-D can't be '=5'"),
        (["-D", "hartbeat.timeout=5s"], "there is no setting 'hartbeat.timeout'"),
        (["-D", "heartbeat.timeout=soon"], "heartbeat.timeout can't be 'soon'"),
        (["--config", "absent.yaml"], "the settings file absent.yaml can't be read"),
    ],
)
def test_a_setting_that_does_not_fit(given: list[str], what: str, weir: Weir) -> None:
    answer = weir("config", *given)
    assert answer.code == 2 and answer.out == ""
    assert answer.err.startswith(f"error: {what}")
    assert "what to do: " in answer.err


def test_config_says_value_origin_and_meaning_of_every_setting(weir: Weir, tmp_path: Path) -> None:
    (tmp_path / "weir.yaml").write_text("heartbeat.interval: 3 s\nspark.ui.enabled: false\n")
    body = weir("config", "-D", "heartbeat.timeout=30s", "--json").json
    found = {one["key"]: one for one in body["settings"]}
    assert list(found) == [one.key for one in describe()]
    assert (found["heartbeat.interval"]["value"], found["heartbeat.interval"]["origin"]) == (
        "3 s",
        "weir.yaml",
    )
    assert found["heartbeat.timeout"]["origin"] == "command line"
    assert body["spark"] == [{"key": "spark.ui.enabled", "value": "false", "origin": "weir.yaml"}]
    out = weir("config").out
    assert "heartbeat.interval = 3 s  (weir.yaml)" in out
    assert [one.key for one in describe() if f"{one.key} = " not in out] == []


def test_the_directory_comes_from_the_settings_unless_it_is_given(weir: Weir, tmp_path: Path) -> None:
    (tmp_path / "weir.yaml").write_text("execution.checkpointing.dir: from-file\n")
    assert weir("list", "--json").json["dir"] == "from-file"
    assert weir("list", "--json", "-D", "execution.checkpointing.dir=from-d").json["dir"] == "from-d"
    assert weir("list", "--json", "--dir", "from-dir").json["dir"] == "from-dir"


def test_a_directory_that_is_a_file_is_said(weir: Weir, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = weir("list", "--dir", "file")
    assert answer.code == 3 and "the storage could not list file" in answer.err


@pytest.mark.parametrize(
    ("verdict", "code"), [(CheckVerdict.OK, 0), (CheckVerdict.WARNING, 0), (CheckVerdict.FAILED, 1)]
)
def test_doctor_fails_when_a_check_failed(
    verdict: CheckVerdict, code: int, weir: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = [
        Finding("Java", CheckVerdict.OK, "java [17]"),
        Finding("disk", verdict, "10 MiB", "free some room"),
    ]
    monkeypatch.setattr("weir.cli.doctor.run_checks", lambda dir: checks)
    answer = weir("doctor")
    assert answer.code == code
    assert "java [17]" in answer.out and "what to do: free some room" in answer.out
    body = weir("doctor", "--json")
    assert (body.code, body.json["ok"], body.json["checks"][1]["verdict"]) == (code, not code, verdict.value)


NOW = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.9, "59 s"),
        (60, "1 min 0 s"),
        (3599, "59 min"),
        (3600, "1 h 0 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_a_length_of_time_has_two_units_at_most(seconds: float, text: str) -> None:
    assert say.lasting(seconds) == text
    assert say.lasting(say.seconds_since((NOW - timedelta(seconds=seconds)).isoformat(), NOW)) == text


def test_moments_are_read_as_spark_and_as_python_write_them() -> None:
    assert say.seconds_since("2026-05-01T11:59:50.000Z", NOW) == 10
    assert say.seconds_since("2026-05-01T13:00:00+00:00", NOW) == 0
    assert len(say.when("2026-05-01T11:59:50Z", NOW)) == 8


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (999, "999"), (1000, "1k"), (12345, "12.3k"), (4.5e6, "4.5M")]
)
def test_a_number_is_short(value: float, text: str) -> None:
    assert say.number(value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "0.977 KiB"), (1023 * 1024, "0.999 MiB"), (2**41, "2 TiB")],
)
def test_a_size_is_short(count: int, text: str) -> None:
    assert say.size(count) == text


def test_an_error_is_not_taken_for_markup(capsys: pytest.CaptureFixture[str]) -> None:
    say.speak(say.OutputForm.PEOPLE)
    say.say_error("no [bold] here", "because of local[2]", "[red]stop[/]")
    assert capsys.readouterr().err == (
        "error: no [bold] here\n  why: because of local[2]\n  what to do: [red]stop[/]\n"
    )


@pytest.mark.parametrize(
    ("typed", "offered"), [("status wor", "wordcount"), ("canc", "cancel"), ("status x", "")]
)
def test_a_shell_completes_verbs_and_the_names_of_jobs(typed: str, offered: str, tmp_path: Path) -> None:
    FakeJob(tmp_path).end()
    words = f"weir {typed}"
    environ = {
        **os.environ,
        "WEIR_EXECUTION_CHECKPOINTING_DIR": str(tmp_path),
        "_WEIR_COMPLETE": "complete_bash",
    }
    environ |= {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "weir"], env=environ, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.split(), done.stderr) == ([offered] if offered else [], "")

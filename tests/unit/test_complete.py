"""What bash and zsh get when TAB is pressed: completions or nothing, and never a message."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fake_job import FakeJob
from tests.kept_job import write
from weir.cli import main
from weir.cli import shell as shells
from weir.config import choices, describe, resolve
from weir.ids import CheckpointId
from weir.savepoint.manifest import MANIFEST
from weir.storage import paths

BACKEND = "state.backend.type"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("WEIR_", "COMP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WEIR_EXECUTION_CHECKPOINTING_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    """A job with checkpoints 9 (aborted), 10 and 11, and a savepoint that is there and one that is gone."""
    job = FakeJob(tmp_path)
    for key in (
        paths.aborted(job.name, CheckpointId(9)),
        *(paths.completed(job.name, CheckpointId(id)) for id in (10, 11)),
    ):
        write(tmp_path / key, "{}")
    for id, name in enumerate(("gone", "s3://bucket/sp", "kept"), 1):
        path = name if ":" in name else str(tmp_path / "saved" / name)
        write(tmp_path / paths.saved(job.name, CheckpointId(id)), f'{{"path": "{path}"}}')
    write(tmp_path / "saved/kept" / MANIFEST, "{}")
    job.event("savepoint taken", {"path": str(tmp_path / "saved/kept")})
    job.end()
    return job


class Shell:
    """Asks as the script of a shell does."""

    def __init__(
        self, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.name, self.monkeypatch, self.capsys = name, monkeypatch, capsys

    def __call__(self, *words: str) -> list[str]:
        self.monkeypatch.setenv("_WEIR_COMPLETE", f"complete_{self.name}")
        if self.name == "bash":
            self.monkeypatch.setenv("COMP_WORDS", "\n".join(("weir", *words)))
            self.monkeypatch.setenv("COMP_CWORD", str(len(words)))
        else:
            self.monkeypatch.setenv("_TYPER_COMPLETE_ARGS", " ".join(("weir", *words)))
        with pytest.raises(SystemExit) as end:
            main([])
        printed = self.capsys.readouterr()
        assert (end.value.code, printed.err) == (0, "")
        if self.name == "bash":
            return printed.out.split()
        return [line.split('"')[1].replace("\\\\:", ":") for line in printed.out.splitlines() if '"' in line]


@pytest.fixture(params=["bash", "zsh"])
def shell(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    return Shell(request.param, monkeypatch, capsys)


def test_the_keys_of_settings_are_completed(shell: Shell) -> None:
    assert shell("list", "-D", "") == [f"{one.key}=" for one in describe()]
    assert shell("run", "-D", "heartbeat.i") == ["heartbeat.interval=", "heartbeat.interval=10s"]
    assert shell("list", "-D", "no.such") == []
    assert set(shell("configure", "wordcount", "-D", "e")) == {
        f"execution.checkpointing.{name}=" for name in ("interval", "timeout", "min-pause")
    }


def test_the_only_key_is_completed_together_with_its_values(shell: Shell) -> None:
    assert shell("list", "-D", "state.backend.t") == [f"{BACKEND}=rocksdb", f"{BACKEND}=hashmap"]


def test_after_a_key_come_the_values_of_a_setting_that_has_few(shell: Shell) -> None:
    if shell.name == "bash":  # which breaks words at "="
        assert shell("list", "-D", BACKEND, "=") == ["rocksdb", "hashmap"]
        assert shell("list", "-D", BACKEND, "=", "ro") == ["rocksdb"]
        assert shell("list", "-D", "execution.checkpointing.incremental", "=") == ["true", "false"]
        assert shell("list", "-D", "heartbeat.interval", "=") == []
    else:
        assert shell("list", "-D", f"{BACKEND}=") == [f"{BACKEND}=rocksdb", f"{BACKEND}=hashmap"]
        assert shell("list", "-D", f"{BACKEND}=ro") == [f"{BACKEND}=rocksdb"]
        assert shell("list", "-D", "heartbeat.interval=") == []


@pytest.mark.parametrize("key", [one.key for one in describe() if choices(one.key)])
def test_every_value_that_is_completed_can_be_given(key: str) -> None:
    for value in choices(key):
        others = {"execution.checkpointing.interval": "1 min"} if key == "sink.commit" else {}
        resolve(file=None, overrides={**others, key: value})


def test_a_default_that_is_completed_can_be_given(shell: Shell) -> None:
    for one in describe():
        given = [word.partition("=") for word in shell("list", "-D", one.key)]
        for key, _, value in given:
            if value and not choices(key):
                assert resolve(file=None, overrides={key: value}).text(key) == one.default


def test_what_a_job_can_be_restored_to_is_completed_newest_first(
    shell: Shell, job: FakeJob, place: Path
) -> None:
    found = ["chk-11", "chk-10", "latest", f"{place}/saved/kept", "s3://bucket/sp"]
    assert shell("restore", "wordcount", "") == found
    assert shell("restore", "wordcount", "chk-10") == ["chk-10"]
    assert shell("restore", "wordcount", "1") == ["11", "10"]
    assert shell("restore", "nosuch", "") == ["latest"]
    assert shell("restore", "Bad/name", "") == []


def test_the_checkpoints_of_a_job_are_completed_newest_first(shell: Shell, job: FakeJob) -> None:
    assert shell("checkpoints", "wordcount", "") == ["chk-11", "chk-10", "chk-9"]
    assert shell("checkpoints", "wordcount", "/") == []


@pytest.mark.parametrize(
    "words",
    [
        "savepoint show",
        "savepoint copy",
        "savepoint dispose",
        "savepoint convert job.py -s",
        "plan job.py -s",
    ],
)
def test_recorded_savepoints_are_completed(words: str, shell: Shell, job: FakeJob, place: Path) -> None:
    assert shell(*words.split(), "") == [f"{place}/saved/kept", "s3://bucket/sp"]
    assert shell(*words.split(), f"{place}/saved/k") == [f"{place}/saved/kept"]
    assert shell(*words.split(), "./fi") == []
    if shell.name == "bash":
        assert shell(*words.split(), "s3", ":", "//b") == ["//bucket/sp"]


def test_after_savepoint_come_jobs_and_its_second_words(shell: Shell, job: FakeJob) -> None:
    assert shell("savepoint", "") == ["wordcount", "show", "copy", "convert", "dispose"]
    assert shell("savepoint", "w") == ["wordcount"]


def test_nothing_that_goes_wrong_is_printed_into_a_shell(
    shell: Shell, job: FakeJob, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(place / "weir.yaml", "heartbeat.timeout: [")
    for words in (
        ("status", ""),
        ("restore", "wordcount", ""),
        ("savepoint", "show", ""),
        ("state", "show", ""),
    ):
        assert shell(*words) == []


def test_an_error_of_weirs_own_ends_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        print("half an answer")
        raise RuntimeError("broken")

    monkeypatch.setenv("_WEIR_COMPLETE", "complete_bash")
    for at in ("1", "one"):
        monkeypatch.setenv("COMP_WORDS", "weir li")
        monkeypatch.setenv("COMP_CWORD", at)
        with pytest.raises(SystemExit) as end:
            shells.answer(broken)
        assert (end.value.code, capsys.readouterr()) == (1, ("", ""))


def test_a_real_bash_completes_a_value_after_its_key(place: Path) -> None:
    weir = place / "weir"
    weir.write_text(f'#!/bin/sh\nexec {sys.executable} -m weir "$@"\n')
    weir.chmod(0o755)
    shown = subprocess.run(
        [str(weir), "--show-completion", "bash"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    ).stdout
    asks = f"COMP_WORDS=(weir list -D {BACKEND} = ro); COMP_CWORD=5; _weir_completion {weir}"
    done = subprocess.run(
        ["bash", "--norc", "-c", f'{shown}\n{asks}; printf "%s|" "${{COMPREPLY[@]}}"'],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("rocksdb|", "")

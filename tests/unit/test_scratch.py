"""Each driver has a scratch directory of its own, which goes with it, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from weir.config import resolve
from weir.spark.session import scratch_environment
from weir.storage import scratch
from weir.storage.scratch import Scratch
from weir.supervisor.process import DriverProcess, OutputFile, ask_child

JOB_FILE = """
import os, sys
print("password=hunter2")
print(os.environ["TMPDIR"], os.environ["WEIR_SCRATCH"])
open(os.environ["TMPDIR"] + "/left", "w").write("x" * 1000)
sys.stderr.write("token=hunter2 without an end of line")
sys.stdout.flush()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the scratch directories of this test are."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def wait_for(what: Callable[[], bool]) -> None:
    for _ in range(2000):
        if what():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come")


def test_a_driver_works_in_its_own_and_it_goes_with_it_and_its_output_has_no_secrets(
    tmp_path: Path, temporary: Path
) -> None:
    file = tmp_path / "job.py"
    file.write_text(JOB_FILE)
    over = threading.Event()
    shown: list[bytes] = []

    def heard(message: object) -> None:
        if message is None:
            over.set()

    process = DriverProcess(file, [], "", heard, shown.append)
    log = tmp_path / "log"
    process.keep_output(OutputFile(log))
    (path,) = scratch.root().iterdir()
    assert list(scratch.leftovers()) == []  # it is alive
    assert over.wait(60)
    process.end()
    kept = log.read_text()
    assert f"{path}/tmp {path}\n" in kept
    assert "password=***\n" in kept and "token=*** without an end of line" in kept and "hunter2" not in kept
    assert b"password=hunter2" in b"".join(shown)  # the user's own terminal
    wait_for(lambda: not path.exists())


def test_what_a_killed_supervisor_left_is_found_and_that_of_a_living_one_is_not(temporary: Path) -> None:
    code = (
        "import sys, time, subprocess; from weir.storage import scratch;"
        f"scratch.tempfile.tempdir = {str(temporary)!r}; one = scratch.Scratch.make();"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
        " pass_fds=(one.handle,), start_new_session=True);"
        "one.belongs_to(child.pid); print(child.pid, flush=True); time.sleep(600)"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert supervisor.stdout is not None
    driver = int(supervisor.stdout.readline())
    (path,) = scratch.root().iterdir()
    assert list(scratch.leftovers()) == []
    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()
    assert list(scratch.leftovers()) == []  # its driver lives
    os.kill(driver, signal.SIGKILL)
    wait_for(lambda: [one.path for one in scratch.leftovers()] == [path])
    for one in scratch.leftovers():
        scratch.remove(one.path)
    assert list(scratch.root().iterdir()) == []


def test_a_living_one_from_which_a_cleaner_has_deleted_files_is_left_alone(temporary: Path) -> None:
    held = Scratch.make()
    for file in [path for path in held.path.iterdir() if path.is_file()]:
        file.unlink()
    long_ago = time.time() - 3600
    os.utime(held.path, (long_ago, long_ago))
    assert list(scratch.leftovers()) == []
    os.close(held.handle)
    assert [one.path for one in scratch.leftovers()] == [held.path]


def test_a_group_that_lives_without_the_lock_keeps_its_directory(temporary: Path) -> None:
    """As a JVM does for moments, whose Python was killed."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        held = Scratch.make()
        held.belongs_to(child.pid)
        os.close(held.handle)
        assert list(scratch.leftovers()) == []
    finally:
        child.kill()
        child.wait()
    assert [one.path for one in scratch.leftovers()] == [held.path]


def test_one_that_is_just_being_made_is_left_alone(temporary: Path) -> None:
    path = scratch.root() / "half"
    path.mkdir()
    assert list(scratch.leftovers()) == []
    long_ago = time.time() - 3600
    os.utime(path, (long_ago, long_ago))
    assert [one.path for one in scratch.leftovers()] == [path]


def test_a_directory_that_somebody_else_has_put_there_is_refused(temporary: Path) -> None:
    (temporary / f"weir-{os.getuid()}").symlink_to("/")
    with pytest.raises(PermissionError):
        Scratch.make()
    assert list(scratch.leftovers()) == []


def test_only_its_owner_may_look_into_it(temporary: Path) -> None:
    held = Scratch.make()
    assert scratch.root().stat().st_mode & 0o777 == held.path.stat().st_mode & 0o777 == 0o700
    held.delete()


def test_spark_and_its_jvm_work_there(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Scratch.make()
    monkeypatch.setenv("WEIR_SCRATCH", str(held.path))
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dmine=1")
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    given = scratch_environment(resolve(file=None))
    assert given["SPARK_LOCAL_DIRS"] == f"{held.path}/local"
    assert given["SPARK_SUBMIT_OPTS"] == f"-Djava.io.tmpdir={held.path}/tmp -Dmine=1"
    monkeypatch.delenv("WEIR_SCRATCH")
    assert scratch_environment(resolve(file=None)) == {}
    held.delete()


@pytest.mark.parametrize("how", ["setting", "environment", "defaults"])
def test_disks_that_the_user_chose_are_used_and_left_clean(
    how: str, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Scratch.make()
    monkeypatch.setenv("WEIR_SCRATCH", str(held.path))
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    disks, overrides = f"{tmp_path}/a, {tmp_path}/b", {}
    if how == "setting":
        overrides = {"spark.local.dir": disks}
    elif how == "environment":
        monkeypatch.setenv("SPARK_LOCAL_DIRS", disks)
    else:
        (tmp_path / "spark-defaults.conf").write_text(f"# mine\nspark.local.dir   {disks}\n")
        monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    given = scratch_environment(resolve(file=None, overrides=overrides))["SPARK_LOCAL_DIRS"].split(",")
    assert given == [f"{tmp_path}/{disk}/weir-{held.path.name}" for disk in "ab"]
    assert all(Path(one).is_dir() for one in given)
    (tmp_path / "a" / "somebody").mkdir()
    held.delete()
    wait_for(lambda: not held.path.exists() and not any(Path(one).exists() for one in given))
    assert (tmp_path / "a" / "somebody").is_dir()


def test_no_foreign_directory_is_deleted_whatever_the_file_says(temporary: Path, tmp_path: Path) -> None:
    held = Scratch.make()
    mine = tmp_path / "precious"
    mine.mkdir()
    (held.path / "elsewhere.json").write_text(json.dumps([str(mine), "/", 7, "weir-relative"]))
    held.delete()
    wait_for(lambda: not held.path.exists())
    assert mine.is_dir()


def test_a_process_that_only_reads_with_spark_has_one_too(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, said = ask_child("tests.unit.prints_its_scratch", {})
    assert "error" in answer and f"scratch: {scratch.root()}" in said
    wait_for(lambda: list(scratch.root().iterdir()) == [])

"""Where Spark gets weir's classes for local files, and where it must not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weir.config import resolve
from weir.preflight import Verdict
from weir.spark import local_files, session

KEY = "spark.hadoop.fs.file.impl"


@pytest.fixture
def jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "local-files.jar"
    made.touch()
    monkeypatch.setattr(local_files, "JAR", made)
    monkeypatch.delenv(local_files.CLASS_PATH, raising=False)
    return made


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,4]"])
def test_one_jvm_on_this_machine_gets_them(jar: Path, master: str) -> None:
    assert local_files.settings(master)[KEY] == "weir.LocalFiles"


@pytest.mark.parametrize("master", ["spark://somewhere:7077", "yarn", "local-cluster[2,1,1024]", "k8s://x"])
def test_executors_of_their_own_would_not_find_them(jar: Path, master: str) -> None:
    assert local_files.settings(master) == {}


def test_without_the_jar_hadoops_own_are_used_and_the_doctor_says_so(jar: Path) -> None:
    assert local_files.check().verdict is Verdict.OK
    jar.unlink()
    assert local_files.settings("local") == {}
    assert local_files.environment() == {}
    check = local_files.check()
    assert check.verdict is Verdict.WARNING
    assert check.todo.endswith("-m weir.spark.local_files")


def test_the_class_path_of_the_user_stays(jar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert local_files.environment() == {local_files.CLASS_PATH: str(jar)}
    monkeypatch.setenv(local_files.CLASS_PATH, f"/opt/theirs.jar{os.pathsep}")
    both = local_files.environment()[local_files.CLASS_PATH]
    assert both == f"/opt/theirs.jar{os.pathsep}{jar}"
    monkeypatch.setenv(local_files.CLASS_PATH, both)
    assert local_files.environment() == {}


def test_a_setting_of_the_user_wins(jar: Path) -> None:
    theirs = resolve(file=None, overrides={"spark.master": "local[2]", KEY: "their.FileSystem"})
    assert session.builder_settings(theirs)[KEY] == "their.FileSystem"
    ours = resolve(file=None, overrides={"spark.master": "local[2]"})
    assert session.builder_settings(ours)[KEY] == "weir.LocalFiles"

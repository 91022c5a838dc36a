"""Where Spark gets weir's classes for local files, and where it must not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weir.config import resolve
from weir.preflight import CheckVerdict
from weir.spark import local_files, session
from weir.spark.janino import CompileError

KEY = "spark.hadoop.fs.file.impl"


@pytest.fixture
def jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "jvm"
    folder.mkdir()
    (folder / "One.java").write_text("one version")
    monkeypatch.setattr(local_files, "FOLDER", folder)
    made = local_files.packaged()
    made.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(local_files.CLASS_PATH, raising=False)
    return made


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,4]"])
def test_one_jvm_on_this_machine_gets_them(jar: Path, master: str) -> None:
    assert local_files.settings(master)[KEY] == "weir.LocalFiles"


@pytest.mark.parametrize("master", ["spark://somewhere:7077", "yarn", "local-cluster[2,1,1024]", "k8s://x"])
def test_executors_of_their_own_would_not_find_them(jar: Path, master: str) -> None:
    assert local_files.settings(master) == {}


def test_without_the_jar_hadoops_own_are_used_until_it_is_built(jar: Path) -> None:
    assert local_files.check().verdict is CheckVerdict.OK
    jar.unlink()
    assert local_files.settings("local") == {}
    assert local_files.environment() == {}
    assert "the first session builds it" in local_files.check().found


def test_a_package_that_came_without_the_jar_gets_it_in_the_users_cache(
    jar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar.unlink()
    built = []

    def build(target: Path) -> Path:
        built.append(target)
        target.touch()
        return target

    monkeypatch.setattr(local_files, "build", build)
    local_files.ensure()
    local_files.ensure()
    (cached,) = built
    assert cached.parent == tmp_path / "cache" / "weir"
    assert cached.name.startswith(jar.stem)
    assert local_files.jar() == cached
    assert local_files.environment() == {local_files.CLASS_PATH: str(cached)}
    (local_files.FOLDER / "One.java").write_text("another version")
    assert local_files.jar() is None, "the jar of other sources is not used"


def test_a_jar_that_can_not_be_built_stops_nothing(jar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(target: Path) -> Path:
        raise CompileError("no compiler")

    jar.unlink()
    monkeypatch.setattr(local_files, "build", build)
    local_files.ensure()
    assert local_files.jar() is None


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

"""The checks behind 'weir doctor', against fake Javas, Pythons, packages and disks."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from weir import preflight
from weir.errors import PreflightError
from weir.preflight import CheckVerdict, Finding
from weir.storage import open_store

OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def java(path: Path, version: str) -> Path:
    return script(path, f"""echo 'openjdk version "{version}" 2025-04-15' >&2""")


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An otherwise empty PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return folder


@pytest.mark.parametrize(
    ("version", "verdict", "major"),
    [
        ("1.8.0_392", CheckVerdict.FAILED, 8),
        ("11.0.2", CheckVerdict.FAILED, 11),
        ("17", CheckVerdict.OK, 17),
        ("17.0.15", CheckVerdict.OK, 17),
        ("25-ea", CheckVerdict.OK, 25),
    ],
)
def test_java_must_be_17_or_newer(on_path: Path, version: str, verdict: CheckVerdict, major: int) -> None:
    java(on_path / "java", version)
    check = preflight.check_java()
    assert check.verdict is verdict
    assert f"is Java {major}" in check.found


def test_options_that_java_announces_first_do_not_hide_its_version(on_path: Path) -> None:
    script(
        on_path / "java", """echo 'Picked up JAVA_TOOL_OPTIONS: -Xmx1g' >&2; echo 'java version "21"' >&2"""
    )
    assert preflight.check_java().verdict is CheckVerdict.OK


def test_without_java_the_error_says_how_to_install_it(on_path: Path) -> None:
    with pytest.raises(PreflightError) as caught:
        preflight.require_spark()
    assert caught.value.what == "no java on the PATH"
    assert "17 or newer" in caught.value.why
    assert "apt-get install openjdk-17-jre-headless" in caught.value.hint


def test_with_java_nothing_is_raised(on_path: Path) -> None:
    java(on_path / "java", "17.0.1")
    preflight.require_spark()


def test_java_home_alone_counts_when_it_is_set(
    on_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java(on_path / "java", "17")
    java(tmp_path / "jdk8" / "bin" / "java", "1.8.0_1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk8"))
    check = preflight.check_java()
    assert check.verdict is CheckVerdict.FAILED
    assert "JAVA_HOME" in check.todo
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    assert "does not run: No such file" in preflight.check_java().found


@pytest.mark.parametrize("body", ["exit 1", "echo 'Unable to locate a Java Runtime.' >&2; exit 1"])
def test_a_java_that_does_not_run_is_no_java(on_path: Path, body: str) -> None:
    script(on_path / "java", body)
    assert preflight.check_java().verdict is CheckVerdict.FAILED


def test_a_java_that_hangs_is_given_up(on_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_PATIENCE", 0.2)
    script(on_path / "java", "exec /bin/sleep 60")
    assert "no answer within 0.2 s" in preflight.check_java().found


def test_the_python_of_the_workers_must_be_of_the_same_minor_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert preflight.check_worker_python().verdict is CheckVerdict.OK
    expected = {
        sys.executable: CheckVerdict.OK,
        str(script(tmp_path / "old", "echo 3.6")): CheckVerdict.FAILED,
    }
    for worker, verdict in expected.items():
        monkeypatch.setenv("PYSPARK_PYTHON", worker)
        assert preflight.check_worker_python().verdict is verdict
    assert "is Python 3.6, this is " + OWN in preflight.check_worker_python().found


def test_a_worker_python_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "python"))
    check = preflight.check_worker_python()
    assert check.verdict is CheckVerdict.FAILED
    assert "does not run" in check.found


@pytest.mark.parametrize(
    ("package", "version", "verdict"),
    [
        ("pyspark", "4.1.9", CheckVerdict.FAILED),
        ("pyspark", "4.2.0", CheckVerdict.OK),
        ("pyspark", "4.3.0.dev1", CheckVerdict.OK),
        ("pyspark", "4.4.0", CheckVerdict.FAILED),
        ("pandas", "2.2", CheckVerdict.OK),
        ("pandas", "2.10.1", CheckVerdict.OK),
        ("pandas", "3.0.0rc1", CheckVerdict.FAILED),
        ("pyarrow", "26.0.1", CheckVerdict.OK),
        ("protobuf", "6.33.4", CheckVerdict.FAILED),
        ("protobuf", "7.36.2", CheckVerdict.OK),
    ],
)
def test_packages_must_be_there_in_the_right_version(
    monkeypatch: pytest.MonkeyPatch, package: str, version: str, verdict: CheckVerdict
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    needed = next(one for one in preflight.NEEDED if one.package == package)
    check = preflight.check_package(needed)
    assert check.verdict is verdict
    assert version in check.found
    assert bool(check.todo) is (verdict is CheckVerdict.FAILED)


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    check = preflight.check_package(preflight.NEEDED[1])
    assert check == Finding(
        "pandas", CheckVerdict.FAILED, "not installed", f"{sys.executable} -m pip install 'pandas>=2.2,<3'"
    )


def test_storage_is_tried_for_real_and_nothing_is_left_behind(tmp_path: Path) -> None:
    assert preflight.check_storage(str(tmp_path)).verdict is CheckVerdict.OK
    assert preflight.check_storage(f"file://{tmp_path}").verdict is CheckVerdict.OK
    assert list(tmp_path.iterdir()) == []


def test_storage_that_is_not_there_yet_is_not_made(tmp_path: Path) -> None:
    check = preflight.check_storage(str(tmp_path / "a" / "b"))
    assert check.verdict is CheckVerdict.OK
    assert "can be created" in check.found
    assert list(tmp_path.iterdir()) == []


def test_storage_below_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check = preflight.check_storage(str(tmp_path / "file" / "data"))
    assert check.verdict is CheckVerdict.FAILED
    assert "Not a directory" in check.found


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_storage_that_is_read_only_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert preflight.check_storage(str(tmp_path)).verdict is CheckVerdict.FAILED


def test_storage_without_hard_links_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: object, target: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    check = preflight.check_storage(str(tmp_path))
    assert check.verdict is CheckVerdict.FAILED
    assert "Operation not permitted" in check.found
    assert list(tmp_path.iterdir()) == []


def test_storage_whose_links_replace_files_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", shutil.copyfile)
    assert "nothing can be locked" in preflight.check_storage(str(tmp_path)).found


def test_a_storage_elsewhere_has_no_disk_to_look_at() -> None:
    assert preflight.check_disk("s3://bucket/weir").verdict is CheckVerdict.OK


@pytest.mark.parametrize(
    ("free", "verdict"),
    [(99 << 20, CheckVerdict.FAILED), (100 << 20, CheckVerdict.WARNING), (1 << 30, CheckVerdict.OK)],
)
def test_little_disk_warns_and_too_little_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, verdict: CheckVerdict
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert preflight.check_disk(str(tmp_path / "not" / "yet")).verdict is verdict


def test_sparks_local_directory_must_be_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    monkeypatch.setattr(preflight, "_JVM_TEMP", str(tmp_path))
    assert preflight.check_local_dir().found == str(tmp_path)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},{tmp_path}/nothing")
    check = preflight.check_local_dir()
    assert check.verdict is CheckVerdict.FAILED
    assert check.found.startswith(f"{tmp_path}/nothing: ")
    assert "SPARK_LOCAL_DIRS=" in check.todo


def test_a_local_directory_without_exec_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr(os, "ST_NOEXEC", 8, raising=False)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=8))
    assert preflight.check_local_dir().verdict is CheckVerdict.WARNING


def test_another_spark_in_spark_home_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert preflight.check_spark_home().verdict is CheckVerdict.OK
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert "holds no Spark" in preflight.check_spark_home().found
    (tmp_path / "jars").mkdir()
    core = tmp_path / "jars" / "spark-core_2.13-3.5.1.jar"
    core.touch()
    with pytest.raises(PreflightError) as refused:
        preflight.require_spark()
    assert "is Spark 3.5.1, and pyspark is" in refused.value.what and "SPARK_HOME" in refused.value.hint
    core.rename(core.with_name(f"spark-core_2.13-{metadata.version('pyspark')}.jar"))
    assert preflight.check_spark_home().verdict is CheckVerdict.OK


def test_a_worker_python_that_does_not_run_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/nope")
    with pytest.raises(PreflightError) as refused:
        preflight.require_spark()
    assert "/nope does not run" in refused.value.what and "PYSPARK_PYTHON" in refused.value.hint


def test_all_checks_are_made_even_if_every_one_fails(on_path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    checks = preflight.run_checks(str(tmp_path / "file" / "data"))
    assert len({check.name for check in checks}) == len(checks) == 11
    assert all(check.todo for check in checks if check.verdict is CheckVerdict.FAILED)


@pytest.mark.parametrize("kind", ["memory", "s3", "hdfs"])
def test_a_storage_elsewhere_is_tried(kind: str, request: pytest.FixtureRequest) -> None:
    place = "memory://" if kind == "memory" else request.getfixturevalue(f"{kind}_place")
    found = preflight.check_storage(place)
    assert found.verdict is CheckVerdict.WARNING and "savepoints and copies" in found.found
    assert list(open_store(place).list("")) == []


def test_a_storage_elsewhere_that_fails_says_why() -> None:
    found = preflight.check_storage("nowhere://a/b")
    assert found.verdict is CheckVerdict.FAILED and "docs/how-to/storage.md" in found.todo

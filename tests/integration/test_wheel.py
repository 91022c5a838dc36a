"""A wheel built from a clean clone brings the jar; without Java it is built all the same, with a warning."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from weir.spark import local_files

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
JAR = f"weir/spark/jvm/{local_files.packaged().name}"
JAVA_17 = 61
"""The class file version that Java 17 reads at most. Janino writes an older one."""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What the repository has, without what scripts/setup has made."""
    pytest.importorskip("hatchling", reason="no hatchling here; scripts/setup installs it")
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "src", clone / "src", ignore=shutil.ignore_patterns("*.jar", "__pycache__"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, clone / name)
    return clone


def run(command: list[str], clone: Path, **environ: str) -> str:
    """Run it in the clone; what it printed."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HATCH_")}
    done = subprocess.run(
        [sys.executable, *command], cwd=clone, env=kept | environ, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def wheel_of(clone: Path, **environ: str) -> tuple[zipfile.ZipFile, str]:
    """The wheel that pip builds of the clone, and what was printed."""
    command = ["-m", "pip", "wheel", "-v", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    printed = run([*command, "-w", "made", "."], clone, **environ)
    (wheel,) = (clone / "made").glob("weir-*.whl")
    return zipfile.ZipFile(wheel), printed


def test_a_wheel_of_a_clean_clone_brings_the_jar(clone: Path, tmp_path: Path) -> None:
    wheel, printed = wheel_of(clone)
    with wheel:
        assert wheel.namelist().count(JAR) == 1, printed
        (tmp_path / "its.jar").write_bytes(wheel.read(JAR))
    made = local_files.build(tmp_path / "made.jar")
    assert (tmp_path / "its.jar").read_bytes() == made.read_bytes()
    with zipfile.ZipFile(made) as jar:
        classes = {name: jar.read(name)[:8] for name in jar.namelist()}
    assert {"weir/LocalFiles.class", "weir/PlannedSource.class"} <= classes.keys()
    for name, head in classes.items():
        assert head[:4] == b"\xca\xfe\xba\xbe" and int.from_bytes(head[6:8], "big") <= JAVA_17, name
    assert not list((clone / "src").rglob("*.jar")), "the sources stay as they are"


def test_without_java_the_wheel_is_built_with_a_warning(clone: Path) -> None:
    wheel, printed = wheel_of(clone, JAVA_HOME="/nowhere")
    with wheel:
        assert JAR not in wheel.namelist() and "weir/spark/jvm/LocalFiles.java" in wheel.namelist()
    assert f"WARNING: this wheel has no {JAR}: /nowhere/bin/java does not start" in printed


def test_an_editable_install_compiles_nothing(clone: Path) -> None:
    pytest.importorskip("editables", reason="pip brings it for an editable install")
    printed = run(
        ["-c", "import hatchling.build as b; print(b.build_editable('.'))"], clone, JAVA_HOME="/nowhere"
    )
    assert "WARNING" not in printed and list(clone.glob("weir-*.whl"))
    asked = "import hatchling.build as b; print(b.get_requires_for_build_editable())"
    assert "pyspark" not in run(["-c", asked], clone, HATCH_BUILD_NO_HOOKS="true")

"""Jars that tests need, by their Maven coordinates: fetched once for a machine, into `~/.cache/weir-tests`.

They are resolved by the Ivy that PySpark ships, so nothing else must be installed.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_ONE_ARTIFACT = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="weir" module="tests"/>
  <dependencies>
    <dependency org="{group}" name="{artifact}" rev="{version}" transitive="false">
      <artifact name="{artifact}" type="jar" ext="jar" m:classifier="{classifier}"/>
    </dependency>
  </dependencies>
</ivy-module>
"""


class UnavailableError(Exception):
    """The jars can't be fetched here."""


class Coordinates(NamedTuple):
    """One artifact of a Maven repository."""

    group: str
    artifact: str
    version: str
    classifier: str = ""

    @property
    def file(self) -> str:
        """The name of its jar."""
        return "-".join(filter(None, self[1:])) + ".jar"

    def __str__(self) -> str:
        return ":".join(filter(None, self))


def fetched(name: str, wanted: Sequence[Coordinates], *, transitive: bool = False) -> Path:
    """The folder of this name in the cache, with these jars; fetched when it is not there yet.

    Raises `UnavailableError` on a machine that can't fetch them. Any number of processes may ask at once.
    """
    folder = Path.home() / ".cache" / "weir-tests" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f"{name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            making = folder.with_name(f"{name}.making")
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir()
            for one in wanted:
                _fetch(making, one, transitive=transitive)
            shutil.rmtree(making / "ivy")
            making.rename(folder)
    return folder


def _fetch(making: Path, wanted: Coordinates, *, transitive: bool) -> None:
    import pyspark

    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    command = ["java", *_JVM, "-cp", str(ivy), "org.apache.ivy.Main", "-cache", str(making / "ivy")]
    if wanted.classifier:  # which only a file can name
        module = making / "ivy.xml"
        module.write_text(_ONE_ARTIFACT.format(**wanted._asdict()))
        command += ["-ivy", str(module), "-confs", "default"]
    else:
        command += [
            "-dependency",
            *wanted[:3],
            "-confs",
            "default",
            *([] if transitive else ["-notransitive"]),
        ]
    command += ["-retrieve", f"{making}/[artifact]-[revision](-[classifier]).[ext]"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{wanted} can't be fetched: {error}") from error
    if done.returncode or not (making / wanted.file).exists():
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise UnavailableError(f"{wanted} can't be fetched: {lines[-1] if lines else ''}")

"""Files of the local disk without a process for each: `jvm/LocalFiles.java`, and how Spark gets it.

PySpark brings Hadoop without its native library, and there each file of the local disk that is made or
renamed costs a `chmod` or several `readlink` processes: half of the time of a small batch. The classes
here do that in the JVM, and make a rename that must not replace anything refuse where two writers race
(`docs/decisions/0023-local-files-without-processes.md`). Spark has them where driver and executors are
one JVM of this machine; elsewhere, or where the jar was not built, it works with Hadoop's own.

A wheel brings the jar (`hatch_build.py`); in a clone `scripts/setup` makes it (`python -m
weir.spark.local_files`). Where the package came without it, the first session builds it into the user's
cache, once for each version of weir and Spark. `janino.py` compiles it, each time with Java alone.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from weir.preflight import CheckVerdict, Finding, find_java
from weir.spark import janino

SOURCE = Path(__file__).parent / "jvm" / "LocalFiles.java"
JAR = SOURCE.with_name("local-files.jar")
CLASS_PATH = "SPARK_DIST_CLASSPATH"
"""What Spark's launcher appends to the class path; `spark.driver.extraClassPath` would replace the user's."""


def jar() -> Path | None:
    """Where the jar is, in the package or in the user's cache; None when it was not built."""
    return next((path for path in (JAR, _cached()) if path.exists()), None)


def ensure() -> None:
    """Build the jar into the user's cache where there is none; a failure only makes Spark slower."""
    if jar() is not None:
        return
    with suppress(OSError, SystemExit):
        _cached().parent.mkdir(parents=True, exist_ok=True)
        build(_cached())


def _cached() -> Path:
    """The place for the jar of this source and this Spark."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weir"
    source = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    return folder / f"local-files-{source}-spark-{metadata.version('pyspark')}.jar"


def settings(master: str) -> dict[str, str]:
    """The Spark settings that put the classes in Hadoop's place; none where Spark would not find them."""
    if jar() is None or not re.fullmatch(r"local(\[.*\])?", master):
        return {}
    return {
        "spark.hadoop.fs.file.impl": "weir.LocalFiles",
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "weir.LocalFiles$Context",
    }


def environment() -> dict[str, str]:
    """What a process that starts a JVM needs in its environment, so that the JVM finds the classes."""
    known = [part for part in os.environ.get(CLASS_PATH, "").split(os.pathsep) if part]
    found = jar()
    if found is None or str(found) in known:
        return {}
    return {CLASS_PATH: os.pathsep.join([*known, str(found)])}


def check() -> Finding:
    """Whether the jar is there; for `weir doctor`."""
    name = "local files"
    if jar() is not None:
        return Finding(name, CheckVerdict.OK, "written by Spark without a process for each")
    return Finding(name, CheckVerdict.OK, f"{JAR.name} is not there yet: the first session builds it")


def build(target: Path = JAR) -> Path:
    """Compile the classes and put the jar in its place; the same source makes the same jar."""
    try:
        return janino.compile_jar([SOURCE], target, java=find_java() or "java")
    except janino.CompileError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    print(build())

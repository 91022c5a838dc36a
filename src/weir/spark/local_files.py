"""weir's classes for the JVM (`jvm/`): where their jar is, and how Spark gets it.

`LocalFiles.java`: PySpark brings Hadoop without its native library, and there each file of the local disk
that is made or renamed costs a `chmod` or several `readlink` processes: half of the time of a small batch.
The classes do that in the JVM, and make a rename that must not replace anything refuse where two writers race
(`docs/decisions/0023-local-files-without-processes.md`). Spark has them where driver and executors are
one JVM of this machine; elsewhere it works with Hadoop's own.

`PlannedSource.java`: streams between queries and journals, read by Spark itself (`planned_source.py`). The
driver needs those; executors only what reads a journal's entry (`share`).

A wheel brings the jar (`hatch_build.py`); in a clone `scripts/setup` makes it (`python -m
weir.spark.local_files`). Where the package came without it, the first session builds it into the user's
cache, once for each version of weir and Spark. `janino.py` compiles it, each time with Java alone.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.errors import PreflightError
from weir.preflight import CheckVerdict, Finding, find_java
from weir.spark import janino

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).parent / "jvm"
CLASS_PATH = "SPARK_DIST_CLASSPATH"
"""What Spark's launcher appends to the class path; `spark.driver.extraClassPath` would replace the user's."""


def sources() -> list[Path]:
    return sorted(FOLDER.glob("*.java"))


def packaged() -> Path:
    """The place of the jar in the package. Its name is that of its sources: a jar of others is not used."""
    return FOLDER / janino.jar_name(sources())


def jar() -> Path | None:
    """Where the jar is, in the package or in the user's cache; None when it was not built."""
    return next((path for path in (packaged(), _cached()) if path.exists()), None)


def ensure() -> None:
    """Build the jar into the user's cache where there is none; whoever needs it hears of a failure."""
    if jar() is not None:
        return
    with suppress(OSError, janino.CompileError):
        _cached().parent.mkdir(parents=True, exist_ok=True)
        build(_cached())


def _cached() -> Path:
    """The place for the jar of these sources and this Spark."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weir"
    return folder / f"{packaged().stem}-spark-{metadata.version('pyspark')}.jar"


def settings(master: str) -> dict[str, str]:
    """The Spark settings that put the classes in Hadoop's place; none where Spark would not find them."""
    if jar() is None or not _is_one_jvm(master):
        return {}
    return {
        "spark.hadoop.fs.file.impl": "weir.LocalFiles",
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "weir.LocalFiles$Context",
    }


def _is_one_jvm(master: str) -> bool:
    """Whether driver and executors are one process."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def environment() -> dict[str, str]:
    """What a process that starts a JVM needs in its environment, so that the JVM finds the classes."""
    known = [part for part in os.environ.get(CLASS_PATH, "").split(os.pathsep) if part]
    found = jar()
    if found is None or str(found) in known:
        return {}
    return {CLASS_PATH: os.pathsep.join([*known, str(found)])}


def load(jvm: Any, name: str) -> Any:
    """One of the classes, in a JVM that may have been started without them.

    Raises `PreflightError` where the jar is not there and can't be built.
    """
    from py4j.java_gateway import JavaClass  # noqa: PLC0415  only with a JVM

    def found() -> Any:
        made = jvm
        for part in name.split("."):
            made = getattr(made, part)
        return made if isinstance(made, JavaClass) else None

    if (known := found()) is not None:
        return known
    place = jar() or _built()
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    loader.addURL(jvm.java.io.File(str(place)).toURI().toURL())
    if (known := found()) is None:
        raise _missing(f"the JVM does not find {name} in {place}")
    return known


def share(spark: SparkSession) -> None:
    """Give the jar to executors that are other processes: a task that reads a journal needs it."""
    place = jar()
    if place is not None and not _is_one_jvm(str(spark.sparkContext.master)):
        context: Any = spark.sparkContext._jsc
        context.addJar(str(place))


def _built() -> Path:
    try:
        _cached().parent.mkdir(parents=True, exist_ok=True)
        return build(_cached())
    except (OSError, janino.CompileError) as error:
        raise _missing(str(error)) from error


def _missing(reason: str) -> PreflightError:
    return PreflightError(
        what="weir's Java classes, which read streams and journals, are not there",
        why=reason,
        todo=f"make {_cached().parent} writable, or install a wheel of weir, which brings them",
    )


def check() -> Finding:
    """Whether the jar is there; for `weir doctor`."""
    name = "Java classes"
    if jar() is not None:
        return Finding(name, CheckVerdict.OK, "compiled")
    return Finding(name, CheckVerdict.OK, f"{packaged().name} is not there yet: the first session builds it")


def build(target: Path | None = None) -> Path:
    """Compile the classes and put the jar in its place; the same sources make the same jar.

    Raises `CompileError`.
    """
    return janino.compile_jar(sources(), target or packaged(), java=find_java() or "java")


def main() -> None:
    """Build the jar of a clone, if it is not there, and delete those of other sources."""
    for old in FOLDER.glob("*.jar"):
        if old != packaged():
            old.unlink()
    try:
        print(packaged() if packaged().exists() else build())
    except janino.CompileError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()

"""Compile weir's Java classes with Janino, the compiler that Spark brings: it needs Java, not a JDK.

Only the standard library is imported here: `hatch_build.py` loads this file by its path when a wheel is
built, in an environment that has pyspark and nothing else of what weir needs.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

_COMPILER = "org.codehaus.commons.compiler.samples.CompilerDemo"
_ANY_TIME = (1980, 1, 1, 0, 0, 0)


class CompileError(Exception):
    """The jar was not made; the message says why."""


def spark_jars() -> list[str]:
    """The jars of the installed pyspark: Hadoop's classes, and the compiler."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise CompileError("pyspark is not installed")
    jars = sorted(map(str, (Path(spec.origin).parent / "jars").glob("*.jar")))
    if not jars:
        raise CompileError(f"{Path(spec.origin).parent} has no jars")
    return jars


def jar_name(sources: Sequence[Path]) -> str:
    """The name of the jar of these sources, and of no others."""
    digest = hashlib.sha256()
    for source in sorted(sources):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return f"weir-{digest.hexdigest()[:12]}.jar"


def compile_jar(sources: Sequence[Path], target: Path, *, java: str) -> Path:
    """Compile the sources into one jar; the same sources make the same bytes. Raises `CompileError`."""
    path = os.pathsep.join(spark_jars())
    with tempfile.TemporaryDirectory() as folder:
        command = [java, "-cp", path, _COMPILER, "-g", "-d", folder, "-classpath", path]
        try:
            done = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True, check=False)
        except OSError as error:
            raise CompileError(f"{java} does not start: {error}") from error
        classes = sorted(Path(folder).rglob("*.class"))
        if done.returncode or not classes:
            names = ", ".join(source.name for source in sources)
            raise CompileError(f"{names} does not compile:\n{done.stdout}{done.stderr}")
        beside = target.with_suffix(f".{os.getpid()}.new")
        with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as jar:
            for file in classes:
                jar.writestr(zipfile.ZipInfo(str(file.relative_to(folder)), _ANY_TIME), file.read_bytes())
        beside.replace(target)
    return target

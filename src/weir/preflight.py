"""What must be there before a job can run: the checks of `weir doctor`.

Each check looks at the real thing (runs `java -version`, writes a probe file) and returns a `Finding`; none
raises, none needs a JVM or imports pyspark, and none leaves a file. `require_spark` makes those that every
start needs: without them Spark fails later, with a worse message.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path

from weir.errors import PreflightError, WeirError
from weir.storage import Created, open_store
from weir.storage.local import sync_folder
from weir.storage.open import is_local, local_path

OLDEST_JAVA = 17
OLDEST_PYTHON = (3, 10)
LITTLE_DISK = 1 << 30
TOO_LITTLE_DISK = 100 << 20
_INSTALL_JAVA = "install Java 17 or newer, e.g. apt-get install openjdk-17-jre-headless"
_PATIENCE = 30.0
_SHARED_MEMORY = "/dev/shm"
# On Linux the JVM takes /tmp, whatever TMPDIR is.
_JVM_TEMP = "/tmp" if sys.platform == "linux" else tempfile.gettempdir()


class CheckVerdict(str, Enum):
    """How a check ended: fine, fine for now, or a job can't run."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class Finding:
    """One check: what was found, and what to do about it (empty when there is nothing to do)."""

    name: str
    verdict: CheckVerdict
    found: str
    todo: str = ""


@dataclass(frozen=True)
class _Needed:
    """A package that Spark or weir can't do without: at least `least`, below `below`."""

    package: str
    least: tuple[int, ...] = ()
    below: tuple[int, ...] = ()

    @property
    def requirement(self) -> str:
        bounds = [(">=", self.least), ("<", self.below)]
        return self.package + ",".join(sign + ".".join(map(str, v)) for sign, v in bounds if v)


NEEDED = (
    _Needed("pyspark", (4, 2), (4, 4)),
    _Needed("pandas", (2, 2), (3,)),
    _Needed("pyarrow", (18,)),
    _Needed("protobuf", (6, 33, 5)),
)


def run_checks(dir: str) -> list[Finding]:
    """Make every check for a job that keeps its files under `dir`; always returns all of them."""
    checks = [check_java(), check_python(), check_worker_python(), check_spark_home()]
    checks += [check_package(needed) for needed in NEEDED]
    return [*checks, check_storage(dir), check_disk(dir), check_local_dir()]


def require_spark() -> None:
    """Raise `PreflightError` unless the Java, Python and Spark that would be started are there and fit."""
    for check, why in (
        (check_java(), f"Spark needs Java {OLDEST_JAVA} or newer"),
        (check_worker_python(), "Spark starts its Python workers with it"),
        (check_spark_home(), "SPARK_HOME decides which Spark is started"),
    ):
        if check.verdict is CheckVerdict.FAILED:
            raise PreflightError(what=check.found, why=why, todo=check.todo)


def find_java() -> str | None:
    """The Java that Spark would start: that of JAVA_HOME alone when it is set, else that on the PATH."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java")


def check_java() -> Finding:
    """Whether the Java that Spark would start runs, and is new enough."""
    java = find_java()
    then = ", then set JAVA_HOME to it or unset it" if os.environ.get("JAVA_HOME") else ""
    if java is None:
        return Finding("Java", CheckVerdict.FAILED, "no java on the PATH", _INSTALL_JAVA)
    output = _output(java, "-version")
    version = re.search(r'version "(?:1\.)?(\d+)[^"]*"', output)
    if not version:
        return Finding(
            "Java", CheckVerdict.FAILED, f"{java} does not run: {_first_line(output)}", _INSTALL_JAVA + then
        )
    if int(version[1]) < OLDEST_JAVA:
        return Finding("Java", CheckVerdict.FAILED, f"{java} is Java {version[1]}", _INSTALL_JAVA + then)
    return Finding("Java", CheckVerdict.OK, f"{java} is Java {version[1]}")


def check_python() -> Finding:
    """The interpreter that runs this."""
    found = f"{sys.executable} is Python {sys.version_info[0]}.{sys.version_info[1]}"
    if sys.version_info[:2] < OLDEST_PYTHON:
        return Finding("Python", CheckVerdict.FAILED, found, "use Python 3.10 or newer")
    return Finding("Python", CheckVerdict.OK, found)


def check_worker_python() -> Finding:
    """PYSPARK_PYTHON, when it is set, must be of the same minor version: functions are sent pickled."""
    name = "Python of the workers"
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    worker = os.environ.get("PYSPARK_PYTHON")
    if not worker:
        return Finding(name, CheckVerdict.OK, f"PYSPARK_PYTHON is not set: workers get {sys.executable}")
    output = _output(worker, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    todo = f"unset PYSPARK_PYTHON, or set it to a Python {own}"
    if _first_line(output) == own:
        return Finding(name, CheckVerdict.OK, f"{worker} is Python {own}")
    if re.fullmatch(r"\d+\.\d+", _first_line(output)):
        return Finding(
            name, CheckVerdict.FAILED, f"{worker} is Python {_first_line(output)}, this is {own}", todo
        )
    return Finding(name, CheckVerdict.FAILED, f"{worker} does not run: {_first_line(output)}", todo)


def check_spark_home() -> Finding:
    """SPARK_HOME, when it is set, must hold the Spark that pyspark is of: it is the one that is started."""
    name = "SPARK_HOME"
    home = os.environ.get("SPARK_HOME")
    if not home:
        return Finding(name, CheckVerdict.OK, "not set: Spark is that of the package pyspark")
    todo = "unset SPARK_HOME, or set it to a Spark of the same version as the package pyspark"
    jars = sorted(Path(home, "jars").glob("spark-core_*.jar"))
    if not jars:
        return Finding(name, CheckVerdict.FAILED, f"{home} holds no Spark", todo)
    version = jars[-1].stem.rpartition("-")[2]
    try:
        own = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        own = "not installed"
    if version != own:
        return Finding(name, CheckVerdict.FAILED, f"{home} is Spark {version}, and pyspark is {own}", todo)
    return Finding(name, CheckVerdict.OK, f"{home} is Spark {version}")


def check_package(needed: _Needed) -> Finding:
    """Ask the installed metadata; the package itself is not imported."""
    todo = f"{sys.executable} -m pip install '{needed.requirement}'"
    try:
        version = metadata.version(needed.package)
    except metadata.PackageNotFoundError:
        return Finding(needed.package, CheckVerdict.FAILED, "not installed", todo)
    parts = tuple(map(int, re.findall(r"\d+", re.split(r"[^\d.]", version)[0])))
    if parts < needed.least or (needed.below and parts >= needed.below):
        return Finding(
            needed.package, CheckVerdict.FAILED, f"{version}, but {needed.requirement} is needed", todo
        )
    return Finding(needed.package, CheckVerdict.OK, version)


def check_storage(dir: str) -> Finding:
    """Do once what the storage does all the time: create, fsync, link, rename, delete."""
    name = "storage"
    if not is_local(dir):
        return _tried(name, dir)
    folder = _existing(dir)
    try:
        _probe(folder)
    except OSError as error:
        todo = f"make {folder} writable on a file system with hard links, or choose another directory"
        return Finding(name, CheckVerdict.FAILED, f"{folder}: {error.strerror or error}", todo)
    found = str(folder) if folder == Path(local_path(dir)) else f"{folder}, in which {dir} can be created"
    return Finding(name, CheckVerdict.OK, f"{found}, is writable")


def _tried(name: str, url: str) -> Finding:
    """Whether a store does what its verbs promise; one that does may hold savepoints, but no whole job."""
    folder = f".weir-probe-{secrets.token_hex(6)}"
    key = f"{folder}/probe"
    began = time.monotonic()
    try:
        store = open_store(url)
        created = [store.create(key, data) for data in (b"one", b"two")]
        seconds = (time.monotonic() - began) / 2
        right = created == [Created.NOW, Created.EXISTS] and store.get(key) == b"one"
        right = right and list(store.list(folder)) == [key]
        store.delete(key)
    except WeirError as error:
        todo = error.hint if isinstance(error, PreflightError) else "see docs/how-to/storage.md"
        return Finding(name, CheckVerdict.FAILED, f"{error.what}, because {error.why}", todo)
    if not right:
        return Finding(
            name, CheckVerdict.FAILED, f"{url} lost or mixed up what was written", "use another storage"
        )
    found = (
        f"{url} lets one of two writers win, in {1000 * seconds:.0f} ms each: good for savepoints and copies"
    )
    return Finding(name, CheckVerdict.WARNING, found, "a job's own directory must be local")


def check_disk(dir: str) -> Finding:
    """Room for the live files."""
    name = "free disk"
    if not is_local(dir):
        return Finding(name, CheckVerdict.OK, f"{dir} is not on this machine")
    folder = _existing(dir)
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding(
            name, CheckVerdict.WARNING, f"{folder}: {error.strerror or error}", "look at it with df"
        )
    found = f"{free / (1 << 30):.1f} GiB at {folder}"
    if free >= LITTLE_DISK:
        return Finding(name, CheckVerdict.OK, found)
    verdict = CheckVerdict.FAILED if free < TOO_LITTLE_DISK else CheckVerdict.WARNING
    return Finding(name, verdict, found, "free some room, or choose another directory")


def check_local_dir() -> Finding:
    """Where shuffle files and RocksDB's working copies go: SPARK_LOCAL_DIRS, else the JVM's temp dir."""
    name = "Spark's local directory"
    asked = list(filter(None, os.environ.get("SPARK_LOCAL_DIRS", "").split(",")))
    folders = asked or [_JVM_TEMP]
    for folder in folders:
        trouble = _trouble(folder)
        if trouble:
            other = _SHARED_MEMORY if not _trouble(_SHARED_MEMORY) else "a writable directory"
            return Finding(name, CheckVerdict.FAILED, trouble, f"set SPARK_LOCAL_DIRS={other}")
        if os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
            todo = "remount it with exec, or set state.backend.type to hashmap"
            return Finding(
                name, CheckVerdict.WARNING, f"{folder} is mounted noexec: RocksDB may not load", todo
            )
    return Finding(name, CheckVerdict.OK, ", ".join(folders))


def _trouble(folder: str) -> str:
    """Why no file can be written there; "" when one can."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".weir-probe-") as file:
            file.write(b"probe")
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
    return ""


def _existing(dir: str) -> Path:
    """The directory, or the nearest one above it that exists."""
    path = Path(local_path(dir)).absolute()
    return next((folder for folder in (path, *path.parents) if folder.exists()), path)


def _probe(top: Path) -> None:
    with tempfile.TemporaryDirectory(dir=top, prefix=".weir-probe-") as folder:
        created, linked, renamed = (Path(folder, name) for name in ("created", "linked", "renamed"))
        with created.open("xb") as file:
            file.write(b"probe")
            file.flush()
            os.fsync(file.fileno())
        os.link(created, linked)
        try:
            os.link(created, linked)
        except FileExistsError:
            pass
        else:
            raise OSError("a hard link replaced an existing file, so nothing can be locked here")
        created.rename(renamed)
        sync_folder(folder)
        renamed.unlink()
        linked.unlink()


def _output(*command: str) -> str:
    """Everything that a command prints, or why it could not be run."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_PATIENCE:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return done.stdout + done.stderr


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "it printed nothing")

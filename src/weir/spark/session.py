"""The driver's SparkSession: weir's defaults below, the user's `spark.*` settings above.

Settings that Spark reads once go into the builder; those of state are set on the session, after
the number of cores is known. The driver keeps the JVM's process, so that it can end it.

The defaults for state were chosen by measurement (`bench/state_defaults.py`); what was tried, found and
refused is in `docs/explanation/state-defaults.md`. None of them makes a committed batch less durable. The
number of partitions and the format of state files are fixed by Spark with a query's first batch: for a query
that exists already they change nothing.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from py4j.protocol import Py4JError

from weir.config import Config
from weir.errors import JvmNotStartedError
from weir.spark import local_files
from weir.spark.checkpoint_files import HASHMAP, ROCKSDB
from weir.spark.logs import PARTITIONS, PROVIDER, STATE_FORMAT
from weir.storage import scratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Backend = Literal["rocksdb", "hashmap"]

_ROCKSDB = "spark.sql.streaming.stateStore.rocksdb"
_PER_CORE = 2
_CONFIGURATION = "org.apache.hadoop.conf.Configuration"
_YARN = "yarn-default.xml"
_LOCAL_DIR = "spark.local.dir"
_BASE = {
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.stopActiveRunOnRestart": "true",
    # How long a query without new rows waits before it polls its sources again; each poll of a folder costs
    # 2 ms of CPU. Queries that read nothing but streams sleep instead (`planned_source.py`).
    "spark.sql.streaming.pollingDelay": "50ms",
}


def build(config: Config, app: str, output: str = "its output is above") -> SparkSession:
    """Start the JVM and its session.

    Raises `JvmNotStartedError` when it can't even begin; `output` says where to see what the JVM printed.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415  takes a second; not before it is needed

    if SparkContext._gateway is None:
        for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
            os.environ.pop(name, None)  # a JVM of spark-submit's would outlive this driver
        local_files.ensure()
        os.environ.update(local_files.environment())
        os.environ.update(scratch_environment(config))
    settings = builder_settings(config)
    if local_files.environment():  # the job file has started a JVM, which does not know the classes
        ours = local_files.settings(_master(config)).items()
        settings = {key: value for key, value in settings.items() if (key, value) not in ours}
    builder = SparkSession.builder.appName(app)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise JvmNotStartedError(seen=output) from error
    lighten_hadoop(spark, yarn=not _is_local(config))
    return spark


def lighten_hadoop(spark: SparkSession, *, yarn: bool) -> bool:
    """Take out of the session's Hadoop configuration where each entry came from, and YARN's own defaults.

    Spark copies it several times for each batch and sends it to each task that writes a file. It has 1,100
    entries, and Hadoop compresses for every single one the name of the file that it came from: a quarter of
    the CPU time of a small batch (`docs/decisions/0026-a-light-hadoop-configuration.md`). Values are never
    changed.

    `yarn` says whether those are needed: they are, wherever the job may talk to YARN. What somebody has
    set is kept in any case. False when this Hadoop has it elsewhere: then Spark works as it did, more
    slowly. Safe to repeat. A class that is loaded later and brings default values of its own makes Hadoop
    read everything again, the light parts too.
    """
    jvm: Any = spark._jvm
    configuration = spark._jsc.hadoopConfiguration()
    try:
        spark._jsparkSession.sessionState()  # these two load such classes
        jvm.org.apache.hadoop.mapred.JobConf()
        kind = jvm.java.lang.Class.forName(_CONFIGURATION)
        if not yarn:
            defaults = jvm.org.apache.hadoop.conf.Configuration(False)
            defaults.addResource(_YARN)
            properties = kind.getDeclaredMethod("getProps", None)
            properties.setAccessible(True)
            entries = properties.invoke(configuration, None).entrySet()
            entries.removeAll(properties.invoke(defaults, None).entrySet())
        sources = kind.getDeclaredField("updatingResource")
        sources.setAccessible(True)
        sources.set(configuration, None)
    except Py4JError:
        return False
    return True


def builder_settings(config: Config) -> dict[str, str]:
    """Everything that is known before the session is there."""
    local = local_files.settings(_master(config))
    if _is_local(config):
        local |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return {**_BASE, **local, **state_settings(config, None), **config.spark}


def scratch_environment(config: Config) -> dict[str, str]:
    """Where the JVM keeps what need not survive: in the scratch directory that goes with this driver.

    Disks that the user has chosen for that are used: each gets a directory of its own for this driver.
    Nothing where nobody gave a scratch directory (a notebook).
    """
    given = os.environ.get(scratch.VARIABLE)
    if not given:
        return {}
    path = Path(given)
    chosen = os.environ.get("SPARK_LOCAL_DIRS") or config.spark.get(_LOCAL_DIR) or _default(_LOCAL_DIR)
    folders = [path / "local"]
    if chosen:
        folders = [Path(disk.strip()).absolute() / f"weir-{path.name}" for disk in chosen.split(",")]
        scratch.note_elsewhere(path, folders)
        for folder in folders:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    options = f"-Djava.io.tmpdir={path / 'tmp'} {os.environ.get('SPARK_SUBMIT_OPTS', '')}".strip()
    return {"SPARK_LOCAL_DIRS": ",".join(map(str, folders)), "SPARK_SUBMIT_OPTS": options}


def _default(key: str) -> str | None:
    """What spark-defaults.conf says, which an environment variable would win over."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else "")
    with suppress(OSError):
        for line in (Path(folder) / "spark-defaults.conf").read_text().splitlines() if folder else ():
            match = re.fullmatch(rf"\s*{re.escape(key)}[\s=:]+(\S.*?)\s*", line)
            if match:
                return match[1]
    return None


def state_defaults(backend: Backend, *, cores: int, changelog: bool = True) -> dict[str, str]:
    """The Spark settings for state kept in `backend` on `cores` cores in all, unless its author sets them.

    `changelog` is incremental state: a batch writes its changes, not its files.
    The hashmap backend always works that way and ignores it.
    """
    if cores < 1:
        raise ValueError(f"cores must be at least 1, not {cores}")
    settings = {
        # Spark's 200 cost 200 tasks, stores and uploads a batch; two a core even out skew.
        PARTITIONS: str(_PER_CORE * cores),
    }
    if backend == "hashmap":
        # Explicit, so that a provider in spark-defaults.conf does not win unseen.
        settings[PROVIDER] = HASHMAP
        return settings
    return settings | {
        PROVIDER: ROCKSDB,
        # File names unique to the writer: a driver that wakes up late overwrites nothing.
        STATE_FORMAT: "2",
        # A commit writes the batch's changes; the flush and upload leave its path.
        f"{_ROCKSDB}.changelogCheckpointing.enabled": str(changelog).lower(),
        # One cache for all stores of an executor: 500 MB at most, where 8 MB a store thrash.
        f"{_ROCKSDB}.boundedMemoryUsage": "true",
    }


def asked_parallelism(config: Config) -> int | None:
    """The parallelism that somebody has asked for, in weir's words or in Spark's."""
    spark = config.spark.get(PARTITIONS)
    return config.settings.parallelism_default or (int(spark) if spark else None)


def default_parallelism(spark: SparkSession, config: Config) -> int:
    """The parallelism that suits the session's cores."""
    cores = int(spark.sparkContext.defaultParallelism)
    return int(_defaults(config, cores)[PARTITIONS])


def state_settings(config: Config, parallelism: int | None) -> dict[str, str]:
    """What weir sets for Spark's state, without what the user has set."""
    wanted = _defaults(config, 1) | ({PARTITIONS: str(parallelism)} if parallelism else {})
    return {key: value for key, value in wanted.items() if key not in config.spark}


def set_state(spark: SparkSession, config: Config, parallelism: int) -> None:
    """Give a session the settings that new state gets."""
    for key, value in state_settings(config, parallelism).items():
        spark.conf.set(key, value)


def apply(spark: SparkSession, config: Config) -> list[str]:
    """Give a session that is there what the user has set of Spark's settings.

    Returns the keys that Spark reads once, when a session is built, and that have another value here.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415

    fixed = []
    for key, value in config.spark.items():
        try:
            spark.conf.set(key, value)
        except PySparkException:
            if spark.conf.get(key, None) != value:
                fixed.append(key)
    return fixed


def _defaults(config: Config, cores: int) -> dict[str, str]:
    settings = config.settings
    return state_defaults(
        settings.state_backend_type.value, cores=cores, changelog=settings.state_changelog_enabled
    )


def _is_local(config: Config) -> bool:
    return _master(config).startswith("local")


def _master(config: Config) -> str:
    return config.spark.get("spark.master", _BASE["spark.master"])

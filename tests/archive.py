"""`python archive.py <file>`: an archive of the JVM's classes, with which every driver starts sooner.

It runs a small streaming job much like those of the tests, then has the JVM dump the classes that it
has loaded. The archive fits only the Java and the jars that made it; a JVM that it does not fit
starts without it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from weir.spark import local_files
from weir.testing import QUICK


def make(target: Path) -> None:
    """Write the archive; raises when the JVM did not."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.update(local_files.environment())
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    flags = QUICK["spark.driver.extraJavaOptions"]
    state = "spark.sql.streaming.stateStore"
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"{flags} -XX:ArchiveClassesAtExit={target}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config(map=dict(local_files.settings("local[2]")))
        .config(
            f"{state}.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .config(f"{state}.checkpointFormatVersion", "2")
        .config(f"{state}.rocksdb.changelogCheckpointing.enabled", "true")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "in").mkdir()
        (Path(folder) / "in" / "rows.json").write_text('{"k": "a", "v": 1}\n{"k": "b", "v": 2}\n')
        rows = spark.readStream.schema("k string, v long").json(f"{folder}/in")
        counts = rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("sum"))
        writer = counts.writeStream.outputMode("update").trigger(availableNow=True)
        writer = writer.foreachBatch(lambda frame, number: frame.write.parquet(f"{folder}/out/{number}"))
        writer.option("checkpointLocation", f"{folder}/live").start().awaitTermination(120)
        spark.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(120)
    if not target.exists():
        raise SystemExit("the JVM made no archive")


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())

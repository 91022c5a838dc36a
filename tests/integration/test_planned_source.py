"""What of Spark's private API a planned stream stands on, and that no process of Python's is on its path.

Run for each supported version of Spark: the classes are `PlannedSource.java`'s.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from weir.channel.stream import open_stream
from weir.channel.writer import ChannelWriter
from weir.ids import Attempt, BatchId, Run, Token
from weir.protocol.ledger import Staged
from weir.spark import fingerprints, frame_plan, local_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TOKEN = Token(Attempt(1), Run(1))

JOB = """
import json, sys, time
from contextlib import suppress
from pathlib import Path
import psutil
from pyspark.sql import SparkSession
# the JVM starts here, without the jar
spark = SparkSession.builder.master("local[2]").config("spark.driver.host", "127.0.0.1").getOrCreate()

import weir, weir.testing
from tests.line_server import LineServer
folder = Path(sys.argv[1])
server = LineServer()
server.__enter__()
dir = str(folder / "weir")
job = weir.Job("diamond", **{"execution.checkpointing.dir": dir, "parallelism.default": 2})

@job.pipeline
def pipeline(env):
    lines = env.source("lines", weir.sources.socket("127.0.0.1", server.port))
    all = env.stream("all", lines.selectExpr("cast(value as int) as id"))
    left = env.stream("left", all.selectExpr("id", "id + 1 as l"))
    joined = left.join(all.selectExpr("id", "id * 2 as r"), "id")
    env.sink("joined", joined, weir.sinks.files(str(folder / "out")))

def rows():
    return sorted(tuple(row.values()) for row in weir.testing.committed_rows(str(folder / "out")))

with job.start(spark) as run:
    server.send(b"1\\n2\\n3\\n")
    until = time.monotonic() + 120
    while len(rows()) < 3 and time.monotonic() < until:
        run.check()
        time.sleep(0.1)
    from pyspark import SparkContext
    java = psutil.Process(SparkContext._gateway.jvm.java.lang.ProcessHandle.current().pid())
    below = []
    for one in java.children(recursive=True):
        with suppress(psutil.Error):  # without the jar Hadoop runs a chmod now and then
            below.append(one.name())
    found = {"rows": rows(), "below": [name for name in below if "python" in name]}
    print("FOUND", json.dumps(found))
"""


def channel(spark: SparkSession, folder: Path) -> DataFrame:
    """A stream of two columns, whose channel has two small segments."""
    writer = ChannelWriter(folder.name, str(folder), f"{folder}-query")
    writer.open("job/query", "lineage", TOKEN)
    rows = spark.range(10, numPartitions=2).selectExpr("id", "cast(id as string) as unused")
    for number in range(2):
        staged = Staged(BatchId(number), TOKEN)
        writer.stage(rows, staged.batch, TOKEN)
        writer.record(staged)
        writer.commit(staged)
    return open_stream(spark, rows.schema, str(folder), f"{folder}-reader", "")


def scans(plan: Any) -> list[Any]:
    """The file scans of an executed plan."""
    own = [plan] if plan.getClass().getSimpleName() == "FileSourceScanExec" else []
    children = plan.children()
    return own + [scan for number in range(children.size()) for scan in scans(children.apply(number))]


def test_a_channel_is_read_in_columns_and_only_those_that_are_used(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = (
        channel(spark, tmp_path / "channel")
        .select("id")
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "reader"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    (scan,) = scans(query._jsq.streamingQuery().lastExecution().executedPlan())
    assert scan.supportsColumnar()
    assert scan.requiredSchema().size() == 1
    assert scan.inputRDD().getNumPartitions() == 1, "four small files are one task"
    (progress,) = [one for one in query.recentProgress if one.numInputRows]
    assert progress.numInputRows == 20
    assert json.loads(str(progress.sources[0].endOffset)) == {"entry": 3, "barrier": 0, "channel": "channel"}
    logged = (tmp_path / "reader/offsets/0").read_text().split("\n")[2]
    assert logged == '{"entry": 3, "barrier": 0, "channel": "channel"}', "as every weir has written it"


def test_a_planned_stream_is_known_as_weirs_own(spark: SparkSession, tmp_path: Path) -> None:
    frame = channel(spark, tmp_path / "channel")
    (stream,) = frame_plan.streams(frame)
    assert (stream.location, stream.replay) == (str(tmp_path / "channel"), frame_plan.Replayable.YES)
    assert not stream.is_files
    assert fingerprints.sources(frame._jdf.queryExecution().analyzed()) == [("channel channel", 0)]


def test_no_process_of_pythons_is_below_a_jvm_that_was_started_without_the_classes(tmp_path: Path) -> None:
    script, root = tmp_path / "job.py", Path(__file__).parents[2]
    script.write_text(JOB)
    environ = {key: value for key, value in os.environ.items() if key != local_files.CLASS_PATH}
    environ["PYTHONPATH"] = os.pathsep.join([str(root / "src"), str(root)])
    command = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    assert found == {"rows": [[1, 2, 2], [2, 3, 4], [3, 4, 6]], "below": []}

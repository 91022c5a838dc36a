"""Counts and sums per key go through a stream, into files and to a function that keeps state of its own.

Everything lies beside this file: `in`, `out`, `notes`. The function writes a file for each row, by its key.
"""

import json
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

import weir

HERE = Path(__file__).parent
KEY = "execution.checkpointing"

job = weir.Job(
    "graph",
    **{
        "state.backend.type": "hashmap",
        f"{KEY}.interval": "off",
        f"{KEY}.num-retained": 3,
        f"{KEY}.savepoint-dir": str(HERE / "saved"),
    },
)


@job.pipeline
def graph(env: weir.Env) -> None:
    reader = env.spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1)
    rows = env.source("rows", reader.json(str(HERE / "in")))
    counts = rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("sum"))
    changes = env.stream("changes", counts, output_mode="update")
    env.sink("kept", changes, weir.sinks.files(str(HERE / "out")))
    total = env.state("total", "noted", initial=0)

    def note(frame: Any, batch: int, ledger: weir.sinks.BatchLedger) -> None:
        rows = frame.collect()
        (HERE / "notes").mkdir(exist_ok=True)
        for row in rows:
            name = f"{row['k']}-{row['n']}"
            if not ledger.done(name):
                (HERE / "notes" / f"{name}.json").write_text(json.dumps(row.asDict()))
                ledger.mark(name)
        total.value += len(rows)
        (HERE / "total.json").write_text(json.dumps(total.value))

    env.sink("noted", changes, weir.sinks.function(note))


if __name__ == "__main__":
    job.run()

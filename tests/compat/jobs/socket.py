"""Lines from a socket: kept as files, and counted for a function. Argument: the port on loopback.

Everything lies beside this file: `out`, and `notes` with a file for each line and its newest count.
"""

import json
import sys
from pathlib import Path
from typing import Any

import weir

HERE = Path(__file__).parent
KEY = "execution.checkpointing"

job = weir.Job(
    "socket",
    **{
        f"{KEY}.interval": "off",
        f"{KEY}.num-retained": 2,
        f"{KEY}.savepoint-dir": str(HERE / "saved"),
    },
)


def note(frame: Any, batch: int) -> None:
    (HERE / "notes").mkdir(exist_ok=True)
    for row in frame.collect():
        (HERE / "notes" / f"{row['value']}.json").write_text(json.dumps(row["count"]))


@job.pipeline
def socket(env: weir.Env) -> None:
    lines = env.source("lines", weir.sources.socket("127.0.0.1", int(sys.argv[1])))
    env.sink("kept", lines, weir.sinks.files(str(HERE / "out")))
    env.sink("counted", lines.groupBy("value").count(), weir.sinks.function(note), output_mode="update")


if __name__ == "__main__":
    job.run()

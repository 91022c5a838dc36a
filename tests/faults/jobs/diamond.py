"""The diamond: a source into a stream, two streams of different speed behind it, their join into files.

Every id of the script `<folder>/in.jsonl` comes out once, with the values of both sides. The right side
is slow, and waits as long as `<folder>/hold` holds a number that is not above the id; it raises, once,
when `<folder>/fail` is there. With "chain" there is only the right side, and no join.
Arguments: the folder, and "chain" if that is wanted.
"""

import sys
import time
from pathlib import Path

from pyspark.sql import functions as F

import weir
from weir.testing import ScriptedSource
from weir.testing.script import fire_once

SCHEMA = "id long, v long"
PAUSE = 0.002
"""Seconds that the right side takes for each row."""


def left(v: int) -> int:
    """What the left side makes of a value."""
    return 2 * v


def right(v: int) -> int:
    """What the right side makes of a value."""
    return v + 1


def build(env: weir.Env, folder: Path, shape: str = "diamond") -> None:
    hold, fail = folder / "hold", folder / "fail"

    def held(id: int) -> bool:
        try:
            return id >= int(hold.read_text() or id + 1)
        except FileNotFoundError:
            return False

    def slowly(id: int, v: int) -> int:
        while held(id):
            time.sleep(0.01)
        if fail.exists() and fire_once(folder, "failed"):
            raise ValueError(f"I can't stand {id}")
        time.sleep(PAUSE)
        return v + 1

    source = ScriptedSource(folder / "in.jsonl", SCHEMA)
    rows = env.stream("all", env.source("rows", source))
    slow = env.stream("right", rows.select("id", F.udf(slowly, "long")("id", "v").alias("r")))
    joined = slow
    if shape == "diamond":
        fast = env.stream("left", rows.select("id", (2 * F.col("v")).alias("l")))
        joined = fast.join(slow, "id")
    env.sink("joined", joined, weir.sinks.files(str(folder / "joined")))


job = weir.Job("diamond")


@job.pipeline
def diamond(env: weir.Env) -> None:
    build(env, Path(sys.argv[1]), *sys.argv[2:])


if __name__ == "__main__":
    job.run()

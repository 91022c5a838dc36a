"""One query for each kind of operator that keeps state, over one file a batch.

The functions of the author are made inside functions: Spark's workers get them by value.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.spark.session import Backend, state_defaults

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

BATCHES = 6
"""Files of the input; where a watermark is, one batch without a file follows."""
_SCHEMA = "k string, v long, ts timestamp, id long"

Given = dict[int, list[tuple[str, ...]]]
"""What each batch gave, as sorted rows of text."""


def write_input(folder: Path) -> None:
    """Each file has late and repeated rows, so that every kind of state matters."""
    folder.mkdir(parents=True)
    for number in range(BATCHES):
        rows = []
        for i in range(40):
            x = (number * 7919 + i * 104729) % 1000003
            second = number * 10 + i % 10
            when = f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}Z"
            rows.append({"k": f"k{x % 23}", "v": x % 17, "ts": when, "id": x % 97})
        file = folder / f"{number}.json"
        file.write_text("\n".join(map(json.dumps, rows)))
        os.utime(file, (1_700_000_000 + number,) * 2)


@dataclass(frozen=True)
class Kind:
    """A kind of stateful query."""

    name: str
    frame: Callable[[DataFrame, DataFrame], DataFrame]
    """From the input twice."""
    mode: str
    hashmap: bool = True
    """Whether Spark has it on that backend."""
    settings: tuple[tuple[str, str], ...] = ()


def aggregation(lines: DataFrame, _: DataFrame) -> DataFrame:
    return lines.groupBy("k").agg({"v": "sum", "id": "max", "*": "count"})


def global_aggregation(lines: DataFrame, _: DataFrame) -> DataFrame:
    return lines.agg({"v": "sum", "*": "count"})


def windowed(lines: DataFrame, _: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return lines.withWatermark("ts", "20 seconds").groupBy(F.window("ts", "5 seconds"), "k").count()


def session_window(lines: DataFrame, _: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return lines.withWatermark("ts", "20 seconds").groupBy(F.session_window("ts", "2 seconds"), "k").count()


def dedup(lines: DataFrame, _: DataFrame) -> DataFrame:
    return lines.dropDuplicates(["id", "k"])


def dedup_within_watermark(lines: DataFrame, _: DataFrame) -> DataFrame:
    return lines.withWatermark("ts", "5 minutes").dropDuplicatesWithinWatermark(["id"])


def joined(lines: DataFrame, others: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    left = lines.withWatermark("ts", "20 seconds")
    right = others.where("v % 3 = 0").selectExpr("k as k2", "ts as ts2", "id as id2")
    right = right.withWatermark("ts2", "20 seconds")
    near = "k = k2 and ts2 between ts - interval 12 seconds and ts + interval 12 seconds"
    return left.join(right, F.expr(near), "leftOuter")


def aggregation_over_dedup(lines: DataFrame, _: DataFrame) -> DataFrame:
    return lines.dropDuplicates(["id"]).groupBy("k").count()


def limited(lines: DataFrame, _: DataFrame) -> DataFrame:
    return lines.limit(220)


def with_pandas_state(lines: DataFrame, _: DataFrame) -> DataFrame:
    def count(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        import pandas as pd

        (before,) = state.get if state.exists else (0,)
        now = before + sum(len(frame) for frame in frames)
        state.update((now,))
        yield pd.DataFrame({"k": [key[0]], "before": [before], "now": [now]})

    return lines.groupBy("k").applyInPandasWithState(
        count, "k string, before long, now long", "n long", "update", "NoTimeout"
    )


def with_variables(lines: DataFrame, _: DataFrame) -> DataFrame:
    """Value, list (its order matters) and map state with time to live, and timers."""
    from pyspark.sql.streaming import StatefulProcessor
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    class Variables(StatefulProcessor):
        def init(self, handle: Any) -> None:
            number = StructType([StructField("n", LongType())])
            text = StructType([StructField("t", StringType())])
            day = 86_400_000
            self._handle = handle
            self._total = handle.getValueState("total", number, day)
            self._seen = handle.getListState("seen", number, day)
            self._by_size = handle.getMapState("by_size", text, number, day)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
            import pandas as pd

            size = sum(len(frame) for frame in rows)
            total = size + (self._total.get()[0] if self._total.exists() else 0)
            self._total.update((total,))
            self._seen.appendValue((total,))
            self._by_size.updateValue((str(size),), (total,))
            timers = len(list(self._handle.listTimers()))
            if timers < 3:
                self._handle.registerTimer(4_000_000_000_000 + timers)
            seen = ",".join(str(one[0]) for one in self._seen.get())
            sizes = sorted((one[0], two[0]) for one, two in self._by_size.iterator())
            yield pd.DataFrame({"k": [key[0]], "seen": [seen], "sizes": [str(sizes)], "timers": [timers]})

        def close(self) -> None: ...

    return lines.groupBy("k").transformWithStateInPandas(
        Variables(), "k string, seen string, sizes string, timers long", "update", "processingTime"
    )


def with_timers(lines: DataFrame, _: DataFrame) -> DataFrame:
    """Event-time timers that go off behind the watermark."""
    from pyspark.sql.streaming import StatefulProcessor
    from pyspark.sql.types import LongType, StructField, StructType

    class Timers(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._handle = handle
            self._total = handle.getValueState("total", StructType([StructField("n", LongType())]))

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
            import pandas as pd

            total = sum(len(frame) for frame in rows)
            total += self._total.get()[0] if self._total.exists() else 0
            self._total.update((total,))
            self._handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 15_000)
            yield pd.DataFrame({"k": [key[0]], "total": [total], "fired": [0]})

        def handleExpiredTimer(
            self, key: Any, timerValues: Any, expiredTimerInfo: Any
        ) -> Iterator[pd.DataFrame]:
            import pandas as pd

            (total,) = self._total.get()
            yield pd.DataFrame(
                {"k": [key[0]], "total": [total], "fired": [expiredTimerInfo.getExpiryTimeInMs()]}
            )

        def close(self) -> None: ...

    watermarked = lines.withWatermark("ts", "5 seconds")
    return watermarked.groupBy("k").transformWithStateInPandas(
        Timers(), "k string, total long, fired long", "update", "eventTime"
    )


def _join(version: int) -> tuple[tuple[str, str], ...]:
    return (("spark.sql.streaming.join.stateFormatVersion", str(version)),)


_NO_EMPTY_BATCHES = (("spark.sql.streaming.noDataMicroBatches.enabled", "false"),)

KINDS = {
    kind.name: kind
    for kind in (
        Kind("aggregation", aggregation, "update"),
        Kind("global aggregation", global_aggregation, "update"),
        Kind("windowed aggregation", windowed, "append"),
        Kind("session window", session_window, "append"),
        Kind("dedup", dedup, "append"),
        Kind("dedup within watermark", dedup_within_watermark, "append"),
        Kind("join", joined, "append"),
        Kind("join 3", joined, "append", hashmap=False, settings=_join(3)),
        Kind("join 4", joined, "append", hashmap=False, settings=_join(4)),
        Kind("aggregation over dedup", aggregation_over_dedup, "update"),
        Kind("limit", limited, "append"),
        Kind("applyInPandasWithState", with_pandas_state, "update"),
        # timers of processing time would have Spark run batches without data for ever
        Kind("transformWithState", with_variables, "update", hashmap=False, settings=_NO_EMPTY_BATCHES),
        Kind("transformWithState timers", with_timers, "update", hashmap=False),
    )
}


class StatefulQuery:
    """A query of one kind on one backend, to be run from any checkpointLocation."""

    def __init__(
        self,
        spark: SparkSession,
        kind: Kind,
        input: Path,
        backend: Backend,
        partitions: int = 2,
        changelog: bool = True,
    ) -> None:
        self._kind, self._input = kind, input
        self.session = spark.newSession()
        settings = state_defaults(backend, cores=1, changelog=changelog)
        settings |= {
            "spark.sql.shuffle.partitions": str(partitions),
            "spark.sql.streaming.stateStore.minDeltasForSnapshot": "2",
            "spark.sql.session.timeZone": "UTC",
        }
        for key, value in {**settings, **dict(kind.settings)}.items():
            self.session.conf.set(key, value)

    def run(self, location: Path) -> Given:
        """Work off all there is, one file a batch."""
        given: Given = {}

        def keep(frame: DataFrame, batch: int) -> None:
            given[batch] = sorted(tuple(map(str, row)) for row in frame.collect())

        frame = self._kind.frame(self._lines(), self._lines())
        writer = frame.writeStream.outputMode(self._kind.mode).foreachBatch(keep).trigger(availableNow=True)
        writer.option("checkpointLocation", str(location)).start().awaitTermination()
        return given

    def _lines(self) -> DataFrame:
        reader = self.session.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.option("latestFirst", "false").json(str(self._input))

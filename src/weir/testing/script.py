"""A scripted source: batches, crashes, pauses and the end of the input, step by step.

A script is a file with one step a line. Each `Rows` becomes exactly one batch of several non-empty
partitions; the other steps stand between two batches. The source is a Python data source of
Spark's: its reader lives in a process of its own and knows only this file and the marks beside it,
so every attempt reads the same, and a `Crash` happens once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import DataType, DateType, DecimalType, StructType, TimestampType

from weir.spark.data_sources import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


FORMAT = "weir-script"
_NAP = 0.02


@dataclass(frozen=True)
class Rows:
    """One batch. A row is a tuple, or a plain value where the schema has one column."""

    rows: Sequence[Any]


@dataclass(frozen=True)
class Crash:
    """SIGKILL of the driver when the source is asked for what comes after this; once over all attempts.

    Every batch before it has been committed by Spark by then. Only a driver of `weir run` is
    killed; in a notebook or a test of one process the query fails instead.
    """


@dataclass(frozen=True)
class Pause:
    """Nothing comes for this many seconds, or until a file exists; an attempt that dies starts it again."""

    seconds: float = 0.0
    until: str = ""


@dataclass(frozen=True)
class EndOfInput:
    """Nothing comes any more, whatever follows it in the script.

    A query with the trigger `{"availableNow": True}` ends here by itself, with everything before
    it committed; when all queries have ended the job is FINISHED. A query with another trigger
    keeps waiting.
    """


Step = Rows | Crash | Pause | EndOfInput
_KINDS: Mapping[str, type[Step]] = {kind.__name__: kind for kind in (Rows, Crash, Pause, EndOfInput)}


class ScriptedSource:
    """A source for tests; hand it to `env.source(name, ScriptedSource(...))`.

    `script` is the path of a script file, or the steps themselves, which are then kept in `folder`.
    `schema` is Spark's; the rows of a batch are dealt out to `partitions` partitions in turn. The
    same offsets give the same rows in the same partitions, in every attempt.
    """

    def __init__(
        self,
        script: str | Path | Sequence[Step],
        schema: str = "value string",
        *,
        folder: str | Path | None = None,
        partitions: int = 2,
    ) -> None:
        if isinstance(script, str | Path):
            self.path = Path(script).absolute()
        elif folder is None:
            raise ValueError("a script of steps needs a folder, where it is kept for the next attempts")
        else:
            self.path = Path(folder).absolute() / "script.jsonl"
            _keep(self.path, script)
        self._schema = schema
        self._partitions = partitions

    def load(self, spark: SparkSession) -> DataFrame:
        """A streaming frame of the script."""

        driver = os.getpid() if "weir.driver.main" in sys.modules else 0
        register(spark, ScriptDataSource)
        stream = spark.readStream.format(FORMAT).schema(self._schema)
        return (
            stream.option("path", str(self.path))
            .option("partitions", self._partitions)
            .option("driver", driver)
            .load()
        )


def write_script(path: str | Path, *steps: Step) -> None:
    """Add steps to a script file; a job that reads it sees them at once, each of them complete."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(_line(step) for step in steps)
    with open(path, "a", encoding="utf-8") as file:
        file.write(lines)


def read_script(path: str | Path) -> list[Step]:
    """The steps of a script file, without a last line that is still being written."""
    with suppress(FileNotFoundError):
        complete = Path(path).read_text(encoding="utf-8").rpartition("\n")[0]
        steps = [json.loads(line) for line in complete.splitlines() if line]
        return [_KINDS[kind](**fields) for kind, fields in steps]
    return []


class ScriptPosition:
    """Where a reader of a script stands, and what it does about the steps between batches."""

    def __init__(self, path: Path, driver: int) -> None:
        self._path = path
        self._driver = driver
        self._parent = os.getppid()
        self._paused_at: dict[int, float] = {}
        self.until_end = False
        """The query ends with the input: wait out the pauses, instead of coming back later."""

    def next(self, start: int) -> int:
        """How many steps are used up after the next batch, or `start` when there is none."""
        while True:
            steps = read_script(self._path)
            for number in range(start, len(steps)):
                step = steps[number]
                if isinstance(step, Rows):
                    return number + 1
                if isinstance(step, EndOfInput):
                    return start
                if isinstance(step, Crash):
                    self._crash(number)
                elif not self._over(number, step):
                    break
            else:
                return start
            if not self.until_end:
                return start
            if os.getppid() != self._parent:
                sys.exit("the JVM is gone, and nothing waits for this pause")
            time.sleep(_NAP)

    def rows(self, start: int, end: int) -> Iterator[Any]:
        """The rows between two positions."""
        for step in read_script(self._path)[start:end]:
            if isinstance(step, Rows):
                yield from step.rows

    def _crash(self, number: int) -> None:
        if not fire_once(Path(f"{self._path}.fired"), f"crash-{number}"):
            return
        if not self._driver:
            raise RuntimeError("a Crash was reached outside of 'weir run': nothing here may be killed")
        os.kill(self._driver, signal.SIGKILL)
        time.sleep(3600)  # the JVM goes next, and this process with it

    def _over(self, number: int, pause: Pause) -> bool:
        if pause.until:
            return Path(pause.until).exists()
        began_at = self._paused_at.setdefault(number, time.monotonic())
        return time.monotonic() - began_at >= pause.seconds


def fire_once(folder: Path, name: str) -> bool:
    """Leave a mark; True for the first who does, over all processes."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with open(folder / name, "x"):
            return True
    except FileExistsError:
        return False


def _keep(path: Path, steps: Sequence[Step]) -> None:
    text = "".join(_line(step) for step in steps)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(text, encoding="utf-8")
        with suppress(FileExistsError):
            os.link(temporary, path)
        temporary.unlink()
    if path.read_text(encoding="utf-8") != text:
        raise ValueError(f"{path} holds another script; offsets of one mean nothing in the other")


def _line(step: Step) -> str:
    return json.dumps([type(step).__name__, asdict(step)], default=_plain) + "\n"


def _plain(value: object) -> str:
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"a script can't hold {value!r}")


class ScriptDataSource(DataSource):
    """Registered by `ScriptedSource.load`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        position = ScriptPosition(Path(self.options["path"]), int(self.options["driver"]))
        return ScriptReader(position, schema, int(self.options["partitions"]))


@dataclass
class _Share(InputPartition):
    """The rows of one partition of one batch; they travel with the plan."""

    rows: list[tuple[Any, ...]]


class ScriptReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One start of one query on one script.

    Offsets are `{"step": n}`: the first N steps of the script are used up. A batch never has more than one
    `Rows`, whatever limit Spark gives.
    """

    def __init__(self, position: ScriptPosition, schema: StructType, partitions: int) -> None:
        self._position = position
        self._columns = [_reading(field.dataType) for field in schema.fields]
        self._partitions = partitions

    def initialOffset(self) -> dict[str, int]:
        return {"step": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        self._position.until_end = True

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"step": self._position.next(start["step"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        rows = [self._tuple(row) for row in self._position.rows(start["step"], end["step"])]
        shares = [rows[number :: self._partitions] for number in range(self._partitions)]
        return [_Share(share) for share in shares if share]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, _Share)
        return iter(partition.rows)

    def _tuple(self, row: Any) -> tuple[Any, ...]:
        values = row if isinstance(row, list) else [row]
        return tuple(
            None if value is None else column(value)
            for value, column in zip(values, self._columns, strict=True)
        )


def _reading(kind: DataType) -> Callable[[Any], Any]:
    """How a value of this type comes back from the script's JSON."""
    if isinstance(kind, TimestampType):
        return datetime.fromisoformat
    if isinstance(kind, DateType):
        return date.fromisoformat
    if isinstance(kind, DecimalType):
        return Decimal
    return lambda value: value

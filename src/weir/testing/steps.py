"""A little language for streaming tests in one process: add rows, check rows, stop, start, fail.

    with StreamTest(pipeline, spark, folder) as t:
        t.run(
            Start(),
            AddRows(("a", 1), ("b", 2)),
            ProcessAll(),
            CheckRows(("a", 2), ("b", 4)),
            Stop(),
        )

It runs the job by `job.start(spark)`, beside the live session and without a supervisor: quick, and
with the same sources, sinks and files as `weir run`. What needs a process to die is not for this
language but for `JobProcess`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from weir.errors import RunFailedError
from weir.job.graph import Pipeline
from weir.job.job import Job
from weir.testing.compare import committed_rows, folded
from weir.testing.script import Rows, write_script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weir.driver.notebook import Run

SECONDS = 120.0
"""How long a step may take."""


@dataclass(frozen=True)
class Start:
    """Start the job; it resumes from what is stored."""

    def take(self, test: StreamTest) -> None:
        test.start()


@dataclass(frozen=True)
class Stop:
    """End the job as `weir cancel` does."""

    def take(self, test: StreamTest) -> None:
        test.stop()


class AddRows:
    """One more batch for a scripted source: that of `<folder>/in.jsonl`, unless another is named."""

    def __init__(self, *rows: Any, to: str | Path | None = None) -> None:
        self._rows = rows
        self._to = to

    def take(self, test: StreamTest) -> None:
        write_script(self._to or test.script, Rows(self._rows))

    def __repr__(self) -> str:
        return f"AddRows{self._rows}"


@dataclass(frozen=True)
class ProcessAll:
    """Wait until everything that the sources hold is committed, by Spark and by the sinks."""

    def take(self, test: StreamTest) -> None:
        test.live.process_all(SECONDS)


class CheckRows:
    """All rows that were delivered so far, in any order: those in `<folder>/out`, unless another is named."""

    def __init__(self, *rows: Sequence[Any], of: str | Path | None = None) -> None:
        self._rows = rows
        self._of = of

    def take(self, test: StreamTest) -> None:
        found = Counter(tuple(row.values()) for row in committed_rows(str(self._of or test.output)))
        wanted = Counter(map(tuple, self._rows))
        assert found == wanted, f"delivered were {sorted(found.elements(), key=repr)}"

    def __repr__(self) -> str:
        return f"CheckRows{self._rows}"


class CheckTable:
    """The table that the delivered update rows make: the last row for each key."""

    def __init__(self, *rows: Sequence[Any], key: Sequence[str], of: str | Path | None = None) -> None:
        self._rows = rows
        self._key = key
        self._of = of

    def take(self, test: StreamTest) -> None:
        table = folded(committed_rows(str(self._of or test.output)), self._key)
        found = sorted((tuple(row.values()) for row in table.values()), key=repr)
        assert found == sorted(map(tuple, self._rows), key=repr), f"the table is {found}"

    def __repr__(self) -> str:
        return f"CheckTable{self._rows}"


@dataclass(frozen=True)
class ExpectFailure:
    """Wait until a query fails with these words in its failure; the job is stopped then."""

    words: str = ""
    query: str = ""

    def take(self, test: StreamTest) -> None:
        test.expect_failure(self.words, self.query)


Step = Start | Stop | AddRows | ProcessAll | CheckRows | CheckTable | ExpectFailure


class StreamTest:
    """One job in one folder, step by step; leaving the `with` block stops it.

    With a pipeline function a job named "test" is made, which keeps its files in `<folder>/weir`;
    a job is taken as it is. Steps may be run in any number of calls.
    """

    def __init__(self, job: Job | Pipeline, spark: SparkSession, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        self.script = self.folder / "in.jsonl"
        self.output = self.folder / "out"
        self._spark = spark
        self._run: Run | None = None
        if isinstance(job, Job):
            self.job = job
        else:
            self.job = Job("test", **{"execution.checkpointing.dir": str(self.folder / "weir")})
            self.job.pipeline(job)

    def __enter__(self) -> StreamTest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def live(self) -> Run:
        """The run that is under way."""
        assert self._run is not None, "the job is not started: Start() comes first"
        return self._run

    def run(self, *steps: Step) -> None:
        """Take the steps in turn; an AssertionError names the one that did not hold."""
        for number, step in enumerate(steps, 1):
            try:
                step.take(self)
            except (AssertionError, TimeoutError) as error:
                raise AssertionError(f"step {number}, {step!r}: {error}") from error

    def start(self) -> None:
        assert self._run is None, "the job runs already"
        self._run = self.job.start(self._spark)

    def stop(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.stop()

    def expect_failure(self, words: str, query: str = "", seconds: float = SECONDS) -> None:
        try:
            ended = self.live.wait(seconds)
        except RunFailedError:
            failed = self.live.failures[0]
            self.stop()
            text = f"{failed.failure.error}: {failed.failure.what}, {failed.failure.why}"
            assert words in text or words in failed.failure.stack, f"it failed with {text}"
            assert not query or failed.query == query, f"query {failed.query} failed"
        else:
            raise AssertionError("it ended without a failure" if ended else "it does not fail")

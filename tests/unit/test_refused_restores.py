"""A start that can't restore a point says so before it has rewound a sink; one that has begun only goes on.

The engine, the sinks and the files are real; Spark, its queries and the plan are played.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import weir
from tests.kept_job import KeptJob, write
from tests.played_files import PlayedFiles, WholeStore
from weir.checkpoint.manifest import Manifest, QueryCut
from weir.clock import ManualClock
from weir.config import resolve
from weir.driver import start as module
from weir.driver.context import JobContext, JobEnd
from weir.driver.queries import Queries
from weir.driver.runs import LearntJob, RunFactory
from weir.errors import (
    DatabaseError,
    FencedError,
    InputFilesGoneError,
    InputGoneError,
    LeftBehindError,
    LostInputError,
    LostStagingError,
    OutputAheadError,
    RewindBegunError,
    SinkMismatchError,
)
from weir.ids import NO_BATCH, Attempt, BatchId, CheckpointId, Generation, QueryName, Run, SourceName, Token
from weir.job.env import QuerySpec
from weir.job.graph import Graph, Receiving
from weir.job.output import QueryOutput
from weir.job.query import QueryRun
from weir.protocol import ledger
from weir.protocol import messages as m
from weir.protocol.ledger import Staged
from weir.restore import intent, repair
from weir.restore.fetch import Opened
from weir.restore.plan import Replan
from weir.restore.point import Point
from weir.restore.query_damage import Damage
from weir.restore.request import RestoreRequest
from weir.restore.walk import Restoring
from weir.sinks import Outcome
from weir.sinks.function import FunctionSink
from weir.sources import journal, socket
from weir.spark.checkpoint_files import QueryFiles
from weir.spark.file_sink import FileSinkLog
from weir.storage import generation as generations
from weir.storage import paths, sums
from weir.storage.attempts import Lease
from weir.storage.object_store import ObjectStore
from weir.storage.paths import Live

COUNTS, OTHER = QueryName("counts"), QueryName("other")
DOWN = DatabaseError(verb="rewind", place="db", reason="no answer")
MAX_AHEAD = 12


class RunsError(Exception):
    """The start has come to where its queries would run."""


class PlayedRestoring(Restoring):
    """Every point fits the job, as it is."""

    def _plan(self, point: Point, request: RestoreRequest, live: Live, asked: bool) -> Replan:
        queries = point.manifest.queries
        made = SimpleNamespace(
            point=point,
            layout="played",
            target=lambda root: lambda path: root / path,
            has_new_sink=lambda _query: False,
            was=lambda query: query,
            cut=lambda query: BatchId(queries[query].batch) if query in queries else NO_BATCH,
        )
        return cast(Replan, made)

    def _carry_out(self, made: Replan, live: Live) -> None:
        pass


class UnreachableSink(PlayedFiles):
    def rewind(self, to: BatchId) -> Outcome:
        raise DOWN


class Outputs:
    """What the sinks of a job hold; each start opens them anew."""

    def __init__(self, job: KeptJob) -> None:
        self._job = job
        self._stores: dict[QueryName, WholeStore] = {}

    def sink(self, name: QueryName, kind: type[PlayedFiles] = PlayedFiles) -> PlayedFiles:
        return kind(self._stores.setdefault(name, WholeStore()))

    def deliver(self, name: QueryName, upto: int, first: int = 0) -> None:
        sink, token = self.sink(name), Token(Attempt(1), Run(1))
        sink.open(f"{self._job.job}/{name}", self._job.origin.lineage, token)
        for number in range(first, upto + 1):
            staged = Staged(BatchId(number), token)
            sink.write(staged, 1)
            sink.record(staged)
            sink.commit(staged)

    def rewind(self, name: QueryName, to: int, attempt: int = 1) -> None:
        sink = self.sink(name)
        sink.open(f"{self._job.job}/{name}", self._job.origin.lineage, Token(Attempt(attempt), Run(1)))
        sink.rewind(BatchId(to))

    def last(self, name: QueryName) -> BatchId:
        """The newest batch that counts, as the ledger tells it."""
        return functools.reduce(ledger.apply, self._stores[name].history, ledger.Ledger()).last


class Start:
    """One start of the job, up to where its queries would run."""

    def __init__(
        self,
        job: KeptJob,
        sinks: Mapping[QueryName, Any],
        attempt: int = 2,
        receiving: list[Receiving] | None = None,
    ) -> None:
        self._sinks, self._receiving = sinks, receiving or []
        self.told: list[m.Message] = []
        described = weir.Job(job.job)
        described.pipeline(lambda env: None)
        config = resolve(file=None, job_options={}, environ={})
        clock = ManualClock()
        spark: Any = SimpleNamespace(version="4.3.0")
        lease = Lease(Attempt(attempt), 1e9, clock)
        self._context = JobContext(
            described, spark, config, job.store, lease, clock, self.told.append, Queries(), JobEnd()
        )

    @property
    def notes(self) -> list[str]:
        return [one.text for one in self.told if isinstance(one, m.Noted)]

    def start(self, wanted: RestoreRequest | None = None) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "learn", self._learn)
            patch.setattr(module, "_coordinate", self._coordinate)
            module.start(self._context, wanted)

    def _learn(self, context: JobContext, opened: Opened, groups: object, together: object) -> LearntJob:
        live, lease = opened.live, context.lease
        origin = generations.read_origin(context.store, context.name, live.generation)
        assert origin is not None
        factory = RunFactory(
            context, live, Graph(list(self._sinks), self._receiving, {}), cast(Any, groups), None
        )
        frame: Any = SimpleNamespace(schema=None)
        factory.specs = {name: QuerySpec(name, sink, frame=frame) for name, sink in self._sinks.items()}
        token = Token(lease.attempt, Run(1))
        runs = [
            QueryRun(spec, QueryFiles.of(live, name), token, lease, 4) for name, spec in factory.specs.items()
        ]
        return LearntJob(factory, runs, origin, cast(Any, None))

    def _coordinate(self, *_: object) -> Any:
        raise RunsError


@pytest.fixture(autouse=True)
def _played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Restoring", PlayedRestoring)


@pytest.fixture
def job(tmp_path: Path) -> KeptJob:
    return KeptJob(tmp_path / "weir")


@pytest.fixture
def outputs(job: KeptJob) -> Outputs:
    return Outputs(job)


def checkpoint(job: KeptJob, id: int, cuts: Mapping[QueryName, int], *offsets: str) -> Manifest:
    """The queries commit these batches, and a checkpoint of them completes."""
    pins = job.pins()
    queries: dict[str, QueryCut] = {}
    for name, batch in cuts.items():
        for number in range(batch + 1):
            names = job.batch(number, *offsets, query=name)
        kept = pins.keep(f"queries/{name}", names, checkpoint=CheckpointId(id))
        queries[name] = QueryCut(batch=batch, files=kept.files, offsets=offsets)
    job.begin(id)
    return job.complete(job.manifest(id, queries))


def file_sink_log(
    folder: Path, newest: int, monkeypatch: pytest.MonkeyPatch, kind: type[FileSinkLog] = FileSinkLog
) -> FileSinkLog:
    """Every query writes with Spark's own file sink, whose log has batches up to the newest."""
    for number in range(newest + 1):
        write(folder / f"_spark_metadata/{number}", "v1")
    log = kind(folder, COUNTS)
    monkeypatch.setattr(QueryOutput, "_file_sink_log", lambda _output: log)
    return log


def intend(job: KeptJob, point: str, **given: Any) -> Generation:
    request = RestoreRequest(point, **given)
    return intent.intend(job.store, job.job, request, clock=ManualClock(), why="a test")


def pending(job: KeptJob) -> Generation | None:
    return generations.opening(job.store, job.job)


def is_untouched(job: KeptJob) -> bool:
    return generations.live(job.store, job.job) == 1 and not generations.rewinding(job.store, job.job)


# the journal of a source


def lines(job: KeptJob, entries: range) -> None:
    """A journal with just these entries."""
    folder = job.folder / job.job / "sources/lines/log"
    for left in list(folder.iterdir()) if folder.is_dir() else []:
        left.unlink()
    token = Token(Attempt(1), Run(1))
    for number in entries:
        entry = journal.lines(token, number, 4096 * number, f"line {number}")
        write(folder / f"{number:09d}.json", json.dumps(entry))


def receiving() -> list[Receiving]:
    return [Receiving(SourceName("lines"), socket("localhost", 1), [COUNTS])]


def at(entry: int) -> str:
    return json.dumps({"entry": entry, "source": "lines"})


@pytest.fixture
def socket_job(job: KeptJob, outputs: Outputs) -> KeptJob:
    """A checkpoint at entry 300, and a job that has read on since."""
    checkpoint(job, 41, {COUNTS: 1}, at(300))
    for number in range(2, 6):
        job.batch(number, at(5000))
    outputs.deliver(COUNTS, 5)
    lines(job, range(299, 303))
    return job


def test_a_point_whose_lines_are_gone_is_refused_when_it_is_asked_for(socket_job: KeptJob) -> None:
    lines(socket_job, range(4900, 5001))
    with pytest.raises(InputGoneError, match="resumes with entry 300, and the journal holds 4900 to 5000"):
        intend(socket_job, "chk-41")
    lines(socket_job, range(0))
    with pytest.raises(InputGoneError, match="the journal is empty"):
        intend(socket_job, "chk-41")
    assert pending(socket_job) is None
    lines(socket_job, range(299, 5001))
    assert intend(socket_job, "chk-41") == 2


@pytest.mark.parametrize("allow_dropped", [False, True])
def test_a_journal_that_has_moved_on_is_found_before_any_sink_is_rewound(
    socket_job: KeptJob, outputs: Outputs, allow_dropped: bool
) -> None:
    intend(socket_job, "chk-41", allow_dropped=allow_dropped)
    lines(socket_job, range(4900, 5001))
    start = Start(socket_job, {COUNTS: outputs.sink(COUNTS)}, receiving=receiving())
    with pytest.raises(LostInputError if allow_dropped else InputGoneError):
        start.start()
    assert outputs.last(COUNTS) == 5 and is_untouched(socket_job)
    assert pending(socket_job) is None and "the job stays where it was" in start.notes[-1]
    with pytest.raises(RunsError):
        Start(socket_job, {COUNTS: outputs.sink(COUNTS)}, 3, receiving=receiving()).start()
    assert outputs.last(COUNTS) == 5


def test_a_point_that_the_journal_can_serve_is_restored(socket_job: KeptJob, outputs: Outputs) -> None:
    intend(socket_job, "chk-41")
    with pytest.raises(RunsError):
        Start(socket_job, {COUNTS: outputs.sink(COUNTS)}, receiving=receiving()).start()
    assert outputs.last(COUNTS) == 1 and generations.live(socket_job.store, socket_job.job) == 2


# files that a source has read


def files_job(job: KeptJob, folder: Path, compacted: bool) -> list[Path]:
    """A checkpoint after two files, and a job that has read two more since."""
    checkpoint(job, 41, {COUNTS: 1}, '{"logOffset": 1}')
    folder.mkdir()
    read = [folder / f"{number} ü.json" for number in range(4)]
    log = job.root() / "queries/counts/sources/0"
    entries = {}
    for number, path in enumerate(read):
        path.touch()
        entries[number] = json.dumps({"path": path.as_uri(), "timestamp": 1, "batchId": number})
        write(log / str(number), f"v1\n{entries[number]}")
    if compacted:
        (log / "3").unlink()
        write(log / "3.compact", "\n".join(["v1", *entries.values()]))
    return read


@pytest.mark.parametrize("compacted", [False, True])
def test_a_point_is_refused_where_files_are_gone_that_were_read_since(
    job: KeptJob, tmp_path: Path, compacted: bool
) -> None:
    """They would not be read again, and what they led to would be rewound."""
    read = files_job(job, tmp_path / "in", compacted)
    read[0].unlink()
    assert intend(job, "chk-41") == 2, "the point has what was read before it"
    generations.drop(job.store, job.job, Generation(2), "a test")
    read[2].unlink()
    with pytest.raises(InputFilesGoneError, match=r"2 ü\.json since then"):
        intend(job, "chk-41")
    with pytest.raises(InputFilesGoneError):
        damage = [Damage(COUNTS, "metadata", "is gone")]
        repair.to_newest(job.store, job.job, damage, job.clock, lambda _: None)
    assert pending(job) is None
    assert intend(job, "chk-41", allow_dropped=True) == 3


# output that is not there


def test_a_sink_that_lacks_batches_up_to_the_point_refuses_it_before_any_other_is_rewound(
    job: KeptJob, outputs: Outputs
) -> None:
    checkpoint(job, 41, {COUNTS: 3, OTHER: 3})
    job.batch(4)
    job.batch(4, query=OTHER)
    outputs.deliver(COUNTS, 4)
    outputs.deliver(OTHER, 1)
    intend(job, "chk-41")
    with pytest.raises(LostStagingError, match="batch 2 of query 'other'"):
        Start(job, {COUNTS: outputs.sink(COUNTS), OTHER: outputs.sink(OTHER)}).start()
    assert (outputs.last(COUNTS), outputs.last(OTHER)) == (4, 1)
    assert is_untouched(job) and pending(job) is None


def test_a_ledger_that_was_rewound_to_nothing_is_not_one_that_was_lost() -> None:
    store, token = ObjectStore("memory://"), Token(Attempt(1), Run(1))
    sink = FunctionSink(lambda _frame, _batch: None, "job/sinks/counts", store=store)
    files: Any = SimpleNamespace(last_committed=lambda: NO_BATCH)

    def run() -> QueryRun:
        made = FunctionSink(lambda _frame, _batch: None, "job/sinks/counts", store=store)
        lease = Lease(Attempt(1), 1e9, ManualClock())
        found = QueryRun(QuerySpec(COUNTS, made), files, token, lease, 4)
        found.output.open("job/counts", "lineage")
        return found

    assert run().output.only_ledger_is_lost
    sink.open("job/counts", "lineage", token)
    sink.record(Staged(BatchId(0), token))
    sink.commit(Staged(BatchId(0), token))
    sink.rewind(NO_BATCH)
    assert not run().output.only_ledger_is_lost
    with pytest.raises(LostStagingError):
        run().output.check_staged(BatchId(3))


# a rewind that was begun


@pytest.fixture
def begun(job: KeptJob, outputs: Outputs) -> Iterator[KeptJob]:
    """Two sinks, checkpoints at 1, 3 and 5; of a restore from the second one a sink is down."""
    for id, batch in ((41, 1), (42, 3), (43, 5)):
        checkpoint(job, id, {COUNTS: batch, OTHER: batch})
    outputs.deliver(COUNTS, 5)
    outputs.deliver(OTHER, 5)
    intend(job, "chk-42")
    with pytest.raises(DatabaseError):
        Start(job, {COUNTS: outputs.sink(COUNTS), OTHER: outputs.sink(OTHER, UnreachableSink)}).start()
    assert (outputs.last(COUNTS), outputs.last(OTHER)) == (3, 5)
    yield job


def test_a_rewind_that_was_begun_is_finished_or_goes_deeper(begun: KeptJob, outputs: Outputs) -> None:
    with pytest.raises(RewindBegunError, match="its sinks are being rewound to chk-42"):
        intend(begun, "chk-43")
    assert pending(begun) == 2 == intend(begun, "chk-42")
    intend(begun, "chk-41")
    with pytest.raises(RewindBegunError):
        intend(begun, "chk-43")
    with pytest.raises(RunsError):
        Start(begun, {COUNTS: outputs.sink(COUNTS), OTHER: outputs.sink(OTHER)}, 3).start()
    assert (outputs.last(COUNTS), outputs.last(OTHER)) == (1, 1)
    with pytest.raises(LeftBehindError):
        intend(begun, "chk-42")


def test_what_an_earlier_weir_has_begun_to_rewind_is_known_by_its_point(begun: KeptJob) -> None:
    begun.store.put(paths.rewinding(begun.job, Generation(2)), b"{}")
    with pytest.raises(RewindBegunError):
        intend(begun, "chk-43")
    assert intend(begun, "chk-41") == 3


def test_a_newer_point_that_was_asked_for_meanwhile_is_dropped_and_the_rewind_finished(
    begun: KeptJob, outputs: Outputs
) -> None:
    """The check of the intention had passed before the rewind began."""
    origin = generations.read_origin(begun.store, begun.job, Generation(2))
    assert origin is not None
    newer = replace(origin, restored_from="chk-43")
    assert generations.create_origin(begun.store, begun.job, Generation(3), newer)
    start = Start(begun, {COUNTS: outputs.sink(COUNTS), OTHER: outputs.sink(OTHER)}, 3)
    with pytest.raises(RewindBegunError):
        start.start()
    assert pending(begun) == 2 and "the next start resumes the one from chk-42" in start.notes[-1]
    with pytest.raises(RunsError):
        Start(begun, {COUNTS: outputs.sink(COUNTS), OTHER: outputs.sink(OTHER)}, 4).start()
    assert (outputs.last(COUNTS), outputs.last(OTHER)) == (3, 3)
    assert (generations.live(begun.store, begun.job), pending(begun)) == (2, None)


def test_a_point_that_another_restore_went_past_meanwhile_is_dropped(
    begun: KeptJob, outputs: Outputs
) -> None:
    origin = generations.read_origin(begun.store, begun.job, Generation(2))
    assert origin is not None
    newer = replace(origin, restored_from="chk-43")
    generations.mark_live(begun.store, begun.job, Generation(2))
    assert generations.create_origin(begun.store, begun.job, Generation(3), newer)
    with pytest.raises(LeftBehindError):
        Start(begun, {COUNTS: outputs.sink(COUNTS), OTHER: outputs.sink(OTHER)}, 3).start()
    assert pending(begun) is None


def test_a_rewind_of_the_log_of_sparks_file_sink_alone_is_recorded_as_begun(
    job: KeptJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commits of its later batches are lost, so only the log itself knows of them."""

    class UnreachableLog(FileSinkLog):
        def rewind(self, to: BatchId, check: Callable[[], None] = lambda: None) -> None:
            raise DOWN

    checkpoint(job, 41, {COUNTS: 3})
    file_sink_log(tmp_path / "out", 5, monkeypatch, UnreachableLog)
    intend(job, "chk-41")
    with pytest.raises(DatabaseError):
        Start(job, {COUNTS: None}).start()
    assert generations.rewinding(job.store, job.job) == {2: {COUNTS: 3}}


# a query that the point does not know


@pytest.mark.parametrize("asked", [True, False])
def test_the_output_of_a_query_that_the_point_does_not_know_is_not_rewound(
    job: KeptJob, outputs: Outputs, asked: bool
) -> None:
    checkpoint(job, 41, {COUNTS: 3})
    outputs.deliver(COUNTS, 3)
    outputs.deliver(OTHER, 20)
    wanted = RestoreRequest("chk-41") if asked else None
    with pytest.raises(SinkMismatchError, match="it holds batches up to 20"):
        Start(job, {COUNTS: outputs.sink(COUNTS), OTHER: outputs.sink(OTHER)}).start(wanted)
    assert outputs.last(OTHER) == 20 and is_untouched(job) and pending(job) is None


def test_a_query_that_is_new_and_has_delivered_nothing_begins_with_the_point(
    job: KeptJob, outputs: Outputs
) -> None:
    checkpoint(job, 41, {COUNTS: 3})
    outputs.deliver(COUNTS, 3)
    with pytest.raises(RunsError):
        Start(job, {COUNTS: outputs.sink(COUNTS), OTHER: outputs.sink(OTHER)}).start(RestoreRequest("chk-41"))
    assert generations.live(job.store, job.job) == 2


# sinks that are ahead of the live files


def test_what_a_power_loss_took_is_repaired_without_a_person(job: KeptJob, outputs: Outputs) -> None:
    checkpoint(job, 41, {COUNTS: 3})
    outputs.deliver(COUNTS, 3 + MAX_AHEAD)
    with pytest.raises(RunsError):
        Start(job, {COUNTS: outputs.sink(COUNTS)}).start()
    assert outputs.last(COUNTS) == 3 and generations.live(job.store, job.job) == 2


@pytest.mark.parametrize("damaged", [False, True])
def test_an_old_copy_of_the_directory_rewinds_nothing_until_a_person_says_so(
    job: KeptJob, outputs: Outputs, damaged: bool
) -> None:
    checkpoint(job, 41, {COUNTS: 3})
    newest = 4 + MAX_AHEAD
    outputs.deliver(COUNTS, newest)
    if damaged:
        write(job.root() / "queries/counts/commits/3", "")
    with pytest.raises(OutputAheadError, match=f"delivered batches up to {newest}") as refusal:
        Start(job, {COUNTS: outputs.sink(COUNTS)}).start()
    assert "weir repair job --to-last-good" in refusal.value.hint
    assert outputs.last(COUNTS) == newest and is_untouched(job) and pending(job) is None
    found = repair.plan(job.store, job.job)
    assert found is not None
    assert f"its sink holds batches up to {newest}" in found.damage[-1].text
    text = f"batches 4 to {newest} run again, and what they delivered is rewound"
    assert text in found.replays[0].text
    repair.carry_out(
        job.store, job.job, found, accept_duplicates=False, clock=ManualClock(), still=lambda: None
    )
    with pytest.raises(RunsError):
        Start(job, {COUNTS: outputs.sink(COUNTS)}, 3).start()
    assert outputs.last(COUNTS) == 3 and generations.live(job.store, job.job) > 1


def test_a_repair_rewinds_no_more_of_the_log_of_sparks_file_sink_until_a_person_says_so(
    job: KeptJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(job, 41, {COUNTS: 3})
    newest = 4 + MAX_AHEAD
    log = file_sink_log(tmp_path / "out", newest, monkeypatch)
    write(job.root() / "queries/counts/commits/3", "")
    with pytest.raises(OutputAheadError, match=f"delivered batches up to {newest}"):
        Start(job, {COUNTS: None}).start()
    assert log.newest() == newest and is_untouched(job) and pending(job) is None
    found = repair.plan(job.store, job.job)
    assert found is not None
    repair.carry_out(
        job.store, job.job, found, accept_duplicates=False, clock=ManualClock(), still=lambda: None
    )
    with pytest.raises(RunsError):
        Start(job, {COUNTS: None}, 3).start()
    assert log.newest() == 3 and generations.live(job.store, job.job) > 1


def test_sinks_that_fit_again_are_no_damage_any_more(job: KeptJob, outputs: Outputs) -> None:
    checkpoint(job, 41, {COUNTS: 3})
    outputs.deliver(COUNTS, 4 + MAX_AHEAD)
    with pytest.raises(OutputAheadError):
        Start(job, {COUNTS: outputs.sink(COUNTS)}).start()
    outputs.rewind(COUNTS, 3, attempt=2)
    with pytest.raises(RunsError):
        Start(job, {COUNTS: outputs.sink(COUNTS)}, 3).start()
    assert repair.plan(job.store, job.job) is None


# attempts


def test_a_point_of_a_higher_attempt_is_left_for_one_that_is_above_it(job: KeptJob, outputs: Outputs) -> None:
    checkpoint(job, 41, {COUNTS: 3})
    job.batch(4)
    outputs.deliver(COUNTS, 4)
    generation = intend(job, "chk-41")
    origin = generations.read_origin(job.store, job.job, generation)
    assert origin is not None
    body = replace(origin, attempt=500).encode()
    job.store.put(paths.origin(job.job, generation), body)
    job.store.put(paths.origin_sum(job.job, generation), sums.of(body))
    assert generations.awaited_attempt(job.store, job.job) == 500
    with pytest.raises(FencedError, match="attempt 500"):
        Start(job, {COUNTS: outputs.sink(COUNTS)}, 500).start()
    assert outputs.last(COUNTS) == 4 and pending(job) == generation
    with pytest.raises(RunsError):
        Start(job, {COUNTS: outputs.sink(COUNTS)}, 501).start()
    assert outputs.last(COUNTS) == 3

"""The shape of a query is kept at each start, and goes with a savepoint."""

from __future__ import annotations

from pathlib import Path

from tests.kept_job import KeptJob
from tests.planned import CONF, aggregation, dedup, shape
from weir.ids import Attempt, BatchId, Generation, QueryName
from weir.protocol.operators import Operator
from weir.savepoint.about import before, keep, kept
from weir.savepoint.manifest import SavedQuery, SavedSink, SavedSource
from weir.savepoint.take import SavepointFacts, take
from weir.storage import paths

COUNTS = QueryName("counts")
FIRST, SECOND = Attempt(1), Attempt(2)
GENERATION = Generation(1)


def test_each_start_has_its_own(tmp_path: Path) -> None:
    job = KeptJob(tmp_path)
    old, new = shape(aggregation(0)), shape(aggregation(0), dedup(1))
    keep(job.store, job.job, GENERATION, FIRST, COUNTS, old)
    keep(job.store, job.job, GENERATION, SECOND, COUNTS, new)
    keep(job.store, job.job, GENERATION, SECOND, COUNTS, new)
    assert kept(job.store, job.job, GENERATION, FIRST, COUNTS) == old
    assert kept(job.store, job.job, GENERATION, SECOND, COUNTS) == new
    assert kept(job.store, job.job, GENERATION, Attempt(3), COUNTS) is None


def test_what_can_not_be_read_is_not_known(tmp_path: Path) -> None:
    job = KeptJob(tmp_path)
    key = f"{paths.generation(job.job, GENERATION)}/shapes/000001/counts.json"
    job.store.put(key, b'{"operators": 3}')
    assert kept(job.store, job.job, GENERATION, FIRST, COUNTS) is None


def test_a_savepoint_carries_the_shape_of_its_attempt(tmp_path: Path) -> None:
    job = KeptJob(tmp_path / "weir")
    pins = job.pins()
    manifest = job.take(1, pins, job.batch(0), BatchId(0))
    attempt = Attempt(manifest.attempt)
    keep(job.store, job.job, GENERATION, attempt, COUNTS, shape(aggregation(0)))
    keep(job.store, job.job, GENERATION, Attempt(attempt + 1), COUNTS, shape(dedup(0)))
    found = take(
        job.store, manifest, str(tmp_path / "kept"), SavepointFacts("request", "ada", 0.0), job.clock
    )
    assert found.savepoint.queries["counts"].shape == shape(aggregation(0))


def test_operators_are_those_of_the_files_and_known_by_the_shape() -> None:
    stored = Operator.model_validate({**aggregation(0).model_dump(), "rows": 7, "bytes": 100})
    other = Operator.model_validate({**dedup(1).model_dump(), "kind": "somethingElse"})
    saved = SavedQuery(
        batch=3,
        conf=CONF,
        operators=(stored, other),
        sources=(SavedSource(name="0", offset='{"logOffset":3}'),),
        sink=SavedSink(kind="files", description="files /out"),
        shape=shape(aggregation(0), dedup(1)),
    )
    found = before(saved)
    assert [one.rows for one in found.shape.operators] == [7, None]
    assert [one.known for one in found.shape.operators] == [True, False]
    assert found.shape.sink == "files /out"
    assert (found.conf, found.offsets) == (CONF, ('{"logOffset":3}',))


def test_without_a_shape_the_offset_log_tells_what_it_can() -> None:
    saved = SavedQuery(
        batch=3,
        sources=(
            SavedSource(name="0", offset='{"entry": 3, "barrier": 1, "channel": "clean"}', channel="clean"),
            SavedSource(name="1", offset='{"entry": 3, "source": "lines"}'),
            SavedSource(name="2", offset='{"logOffset":3}'),
            SavedSource(name="3", offset="-"),
            SavedSource(name="mine", offset="17"),
        ),
    )
    names = [one.name for one in before(saved).shape.sources]
    assert names == ["channel clean", "source lines", "", "", "named mine"]

"""State as a table: read from wherever it is, compared, exported, edited; and what can't be is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import FLAGS, Once
from tests.saved import save
from tests.stateful import BATCHES, KINDS, Kind, StatefulQuery, write_input
from weir.checkpoint.manifest import QueryCut
from weir.checkpoint.pins import Pins
from weir.errors import StateNotReadableError, StateNotRewritableError
from weir.ids import BatchId, CheckpointId
from weir.savepoint.place import SavepointPlace
from weir.spark.closure import closure
from weir.spark.cut import is_operator
from weir.spark.logs import OperatorEntry
from weir.spark.session import Backend
from weir.storage import files
from weir.storage.generation import FIRST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

CUT = 2
Totals = dict[str, tuple[int, int]]
"""For each key: sum and count."""


@pytest.fixture(scope="session")
def input(once: Once) -> Path:
    return once("stateful-input", lambda folder: write_input(folder / "in")) / "in"


def totals(lines: DataFrame, _: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return lines.groupBy("k").agg(F.sum("v"), F.count("*"))


TOTALS = Kind("totals", totals, "update")


def model(input: Path, batches: range, start: Totals | None = None) -> Totals:
    found = dict(start or {})
    for number in batches:
        for line in (input / f"{number}.json").read_text().splitlines():
            row = json.loads(line)
            total, count = found.get(row["k"], (0, 0))
            found[row["k"]] = (total + row["v"], count + 1)
    return found


def rows(frame: DataFrame) -> Totals:
    return {row["key"]["k"]: (row["value"]["sum"], row["value"]["count"]) for row in frame.collect()}


class Made:
    """The query of totals on one backend, with its savepoint behind batch 2."""

    def __init__(self, spark: SparkSession, input: Path, backend: Backend, folder: Path) -> None:
        self.folder, self._query = folder, StatefulQuery(spark, TOTALS, input, backend)
        self._query.run(folder / "it")
        self.savepoint = save(folder / "it", CUT, folder / "saved")

    def go_on_from(self, savepoint: str) -> Path:
        """Start the query where a savepoint is; its checkpointLocation when all is worked off."""
        location = self.folder / f"on-{uuid.uuid4()}"
        root = Path(savepoint) / "queries/query"
        for name in files.below(root):
            (location / name).parent.mkdir(parents=True, exist_ok=True)
            if is_operator(name):
                entry = OperatorEntry.parse((root / name).read_bytes())
                (location / name).write_bytes(entry.moved(location).data)
            else:
                shutil.copyfile(root / name, location / name)
        self._query.run(location)
        return location


@pytest.fixture(scope="module")
def made(
    spark: SparkSession, input: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Backend], Made]:
    there: dict[str, Made] = {}

    def give(backend: Backend) -> Made:
        if backend not in there:
            there[backend] = Made(spark, input, backend, tmp_path_factory.mktemp(backend))
        return there[backend]

    return give


Give = Callable[["Backend"], Made]


@pytest.mark.long
@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
def test_state_is_read_from_a_savepoint_and_compared(
    backend: Backend, made: Give, spark: SparkSession, input: Path, tmp_path: Path
) -> None:
    from weir import state

    before = state.read(spark, made(backend).savepoint)
    assert rows(before) == model(input, range(CUT + 1))
    after = state.read(spark, made(backend).folder / "it", "it", operator=0)
    assert rows(after) == model(input, range(BATCHES))
    less = before.where("key.k <> 'k1'")
    found = {row["key"]["k"]: row for row in state.diff(less, after).collect()}
    assert found["k1"]["change"] == "added" and found["k1"]["before"] is None
    assert {row["change"] for key, row in found.items() if key != "k1"} == {"changed"}
    assert found["k2"]["after"]["count"] == model(input, range(BATCHES))["k2"][1]
    assert [row["change"] for row in state.diff(before, less).collect()] == ["removed"]
    assert state.diff(before, before).count() == 0
    state.export(before, tmp_path / "rows", "json")
    lines = [line for file in (tmp_path / "rows").glob("*.json") for line in file.read_text().splitlines()]
    assert len(lines) == len(model(input, range(CUT + 1)))


def test_state_is_read_from_live_files_and_from_a_checkpoint(
    made: Give, spark: SparkSession, input: Path, tmp_path: Path
) -> None:
    from tests.kept_job import KeptJob
    from weir import state

    job = KeptJob(tmp_path / "a weir")  # Spark's reader does not find a place with a space in its name
    live = job.root() / "queries/totals"
    half = shutil.ignore_patterns(".*")  # Spark's maintenance goes on behind the end of a query
    shutil.copytree(made("rocksdb").folder / "it", live, ignore=half)
    names = closure(live, BatchId(CUT)).files
    kept = Pins(job.store, job.job, FIRST).keep(
        "queries/totals", names, checkpoint=CheckpointId(1), full=False
    )
    job.complete(job.manifest(1, {"totals": QueryCut(batch=CUT, files=kept.files)}))
    assert rows(state.read(spark, job.folder / "job")) == model(input, range(BATCHES))
    shutil.rmtree(live)
    for path in ("job/chk-1", "job/checkpoints/chk-1.json"):
        assert rows(state.read(spark, job.folder / path, "totals")) == model(input, range(CUT + 1))


@pytest.mark.long
@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
def test_keys_are_deleted_and_begin_anew(
    backend: Backend, made: Give, spark: SparkSession, input: Path, tmp_path: Path
) -> None:
    from weir import state

    start = model(input, range(CUT + 1))
    edited = state.edit(
        spark, made(backend).savepoint, tmp_path, delete="key.k like 'k1_' or value.count > 5"
    )
    left = {k: one for k, one in start.items() if not (k[:2] == "k1" != k or one[1] > 5)}
    assert 0 < len(left) < len(start)
    assert (edited.before, edited.after) == (len(start), len(left))
    assert rows(state.read(spark, edited.place)) == left
    saved = SavepointPlace(edited.place).read()
    assert (saved.trigger, saved.queries["query"].operators[0].rows) == ("edit", len(left))
    assert [SavepointPlace(edited.place).damage(file) for file in saved.files] == [None] * len(saved.files)
    location = made(backend).go_on_from(edited.place)
    assert rows(state.read(spark, location)) == model(input, range(CUT + 1, BATCHES), left)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
def test_values_are_replaced_and_an_empty_operator_is_seeded(
    backend: Backend, made: Give, spark: SparkSession, input: Path, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F

    from weir import state

    start = model(input, range(CUT + 1))
    there = state.read(spark, made(backend).savepoint)
    tenfold = there.where("key.k < 'k15'").withColumn(
        "value", F.col("value").withField("sum", F.col("value.sum") * 10)
    )
    replaced = state.edit(spark, made(backend).savepoint, tmp_path / "replaced", replace=tenfold)
    expected = {k: (s * 10, c) if k < "k15" else (s, c) for k, (s, c) in start.items()}
    assert (replaced.before, replaced.after) == (len(start), len(start))
    location = made(backend).go_on_from(replaced.place)
    assert rows(state.read(spark, location)) == model(input, range(CUT + 1, BATCHES), expected)

    empty = state.edit(spark, replaced.place, tmp_path / "empty", delete="true")
    assert (empty.before, empty.after) == (len(start), 0)
    table = spark.createDataFrame([(f"k{n}", n, 1000 + n) for n in range(50)], "k string, sum int, count int")
    seeded = state.edit(spark, empty.place, tmp_path / "seeded", seed=table)
    assert (seeded.before, seeded.after) == (0, 50)
    location = made(backend).go_on_from(seeded.place)
    table_rows = {f"k{n}": (n, 1000 + n) for n in range(50)}
    assert rows(state.read(spark, location)) == model(input, range(CUT + 1, BATCHES), table_rows)


@pytest.mark.long
def test_what_cannot_be_read_or_edited_is_refused_by_name(
    made: Give, spark: SparkSession, tmp_path: Path
) -> None:
    from weir import state

    savepoint = made("rocksdb").savepoint
    with pytest.raises(StateNotReadableError, match=r"no query 'other'.*there are: query"):
        state.read(spark, savepoint, "other")
    with pytest.raises(StateNotReadableError, match=r"no operator 1.*0 \(stateStoreSave\)"):
        state.read(spark, savepoint, operator=1)
    with pytest.raises(StateNotReadableError, match="only a join has sides"):
        state.read(spark, savepoint, side="left")
    with pytest.raises(StateNotReadableError, match="only transformWithState has variables"):
        state.read(spark, savepoint, var="total")
    with pytest.raises(StateNotReadableError, match="there is no such place"):
        state.read(spark, tmp_path / "nowhere")

    def refused(match: str, **edit: Any) -> None:
        with pytest.raises(StateNotRewritableError, match=match):
            state.edit(spark, savepoint, tmp_path / "new", **edit)
        assert not (tmp_path / "new").exists()

    table = spark.createDataFrame([("k1", 1, 1), ("new", 2, 2)], "k string, sum long, count long")
    refused("exactly one of delete, replace and seed")
    refused("exactly one of delete, replace and seed", delete="true", seed=table)
    refused("the condition can't be used.*the columns are struct<key", delete="nothing = 1")
    refused("1 of the given keys do not exist", replace=table)
    refused("rows already", seed=table)
    refused("no column 'count'.*give value as struct<sum:bigint,count:bigint>", replace=table.drop("count"))
    refused("keys are given more than once", replace=table.where("k = 'k1'").union(table))


OTHERS = [
    ("join", {"side": "left"}, ["left-keyToNumValues", "right-keyWithIndexToValue"]),
    ("join 3", {"side": "right"}, ["left-keyToNumValues", "right-keyWithIndexToValue"]),
    ("transformWithState", {"var": "total"}, ["seen", "by_size", "timers"]),
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "reading", "others"), OTHERS, ids=str)
def test_of_state_with_several_parts_whole_keys_are_deleted(
    name: str, reading: Any, others: list[str], spark: SparkSession, input: Path, tmp_path: Path
) -> None:
    from weir import state

    query = StatefulQuery(spark, KINDS[name], input, "rocksdb")
    query.run(tmp_path / "it")
    savepoint = save(tmp_path / "it", CUT, tmp_path / "saved")
    part = "var" if "var" in reading else "store"
    column = "k" if part == "var" else "field0"
    with pytest.raises(StateNotRewritableError, match="the condition can't be used"):
        state.edit(spark, savepoint, tmp_path / "new", delete="value.n = 1")
    with pytest.raises(StateNotRewritableError, match="only complete keys of it can be deleted"):
        state.edit(spark, savepoint, tmp_path / "new", seed=spark.range(1))
    with pytest.raises(StateNotReadableError, match=f"{others[0]}"):
        state.read(spark, savepoint)
    edited = state.edit(spark, savepoint, tmp_path / "new", delete=f"key.{column} < 'k2'")
    assert edited.after < edited.before
    for given in (reading, *({part: other} for other in others)):
        before, after = state.read(spark, savepoint, **given), state.read(spark, edited.place, **given)
        assert before.where(f"key.{column} < 'k2'").count() > 0
        by: Any = "row" if "side" in given else "key"
        assert state.diff(before.where(f"key.{column} >= 'k2'"), after, by).count() == 0


@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
def test_state_that_is_torn_is_found_by_loading_it(
    backend: Backend, made: Give, input: Path, spark: SparkSession, tmp_path: Path
) -> None:
    """As if it had been torn before its sum was taken: no manifest knows."""
    from weir.state import load as loading

    totals = model(input, range(CUT + 1))
    folders = iter(tmp_path / f"scratch-{number}" for number in range(100))

    def scratch() -> Path:
        folder = next(folders)
        folder.mkdir()
        return folder

    savepoint = tmp_path / "job-1"
    shutil.copytree(made(backend).savepoint, savepoint)
    known = {"query": {0: len(totals)}}
    whole = loading.load(spark, str(savepoint), scratch, known)
    assert (whole.rows, whole.damage, whole.left_out) == (len(totals), (), ())
    more = loading.load(spark, str(savepoint), scratch, {"query": {0: 1}})
    assert more.damage == (f"query query, operator 0 (stateStoreSave) has {len(totals)} rows instead of 1",)
    state = savepoint / "queries/query/state/0"
    newest = max(state.glob("[01]/*.*[a-z]"), key=lambda path: path.stat().st_size)
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    (damage,) = loading.load(spark, str(savepoint), scratch, known).damage
    assert damage.startswith("query query") and ("can't be loaded: " in damage or "can't be read" in damage)


@pytest.fixture
def weir(tmp_path: Path, quick: Mapping[str, str]) -> Callable[..., Any]:
    """`weir state ...`, as a user types it; what it answers."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("WEIR_")}
    options = ["--master", "local[1]", "--conf", f"{FLAGS}={quick[FLAGS]}", "--json"]

    def call(*arguments: str) -> Any:
        command = [sys.executable, "-m", "weir", "state", *arguments, *options]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
        body = json.loads(done.stdout)
        assert ("error" in body) == bool(done.returncode), done.stderr
        return body

    return call


@pytest.mark.long
def test_the_command_line_shows_state(made: Give, input: Path, weir: Callable[..., Any]) -> None:
    savepoint, totals = str(made("rocksdb").savepoint), model(input, range(CUT + 1))
    shown = weir("show", savepoint, "--where", "key.k = 'k1'")
    assert shown["rows"][0]["value"] == {"sum": totals["k1"][0], "count": totals["k1"][1]}
    assert (shown["query"], shown["kind"], shown["count"]) == ("query", "stateStoreSave", 1)
    assert "there is no such place" in weir("show", "nowhere")["error"]["why"]


@pytest.mark.long
def test_the_command_line_exports_edits_and_compares(
    made: Give, input: Path, tmp_path: Path, weir: Callable[..., Any]
) -> None:
    savepoint, totals = str(made("rocksdb").savepoint), model(input, range(CUT + 1))
    assert weir("export", savepoint, "rows", "--where", "key.k = 'k1'")["count"] == 1
    assert "PATH_ALREADY_EXISTS" in weir("export", savepoint, "rows")["error"]["why"]
    edited = weir("edit", savepoint, "emptied", "--delete", "true")
    assert (edited["before"], edited["after"]) == (len(totals), 0)
    seeded = weir("edit", edited["place"], "seeded", "--seed", "rows")
    assert (seeded["before"], seeded["after"]) == (0, 1)
    found = weir("diff", savepoint, seeded["place"], "--export", "gone", "--format", "json")
    assert found["changes"] == {"removed": len(totals) - 1}
    assert len(list((tmp_path / "gone").glob("*.json"))) > 0

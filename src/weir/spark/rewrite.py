"""The state of a query in another shape: other partitions, another backend, other rows.

From the files of a cut into a new folder, at the same batch, so that Spark goes on there as if the
state had always been so. RocksDB is read and written by Spark's own StateRewriter, hashmap files by own
code in Spark's tasks. The new folder appears under its name whole or not at all: everything is made
beside it, read back, and compared (`content.py`). The files of the cut are never touched.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from weir.errors import StateDiffersError, StateNotRewritableError, StateRewriteError
from weir.ids import BatchId
from weir.protocol.operators import Operator, StateStore
from weir.spark import content, cut, rewriter
from weir.spark.checkpoint_files import HASHMAP, ROCKSDB
from weir.spark.closure import closure
from weir.spark.content import Content
from weir.spark.hashmap import LOADED, WRITTEN, loading, writing
from weir.spark.logs import PARTITIONS, PROVIDER, STATE_FORMAT, OffsetEntry, OperatorEntry
from weir.spark.reshape import (
    LIMIT,
    StateRefusal,
    backend_of,
    codec_of,
    partition_columns,
    refusals,
)
from weir.spark.session import Backend, state_defaults
from weir.storage import files

_PROVIDERS = {"rocksdb": ROCKSDB, "hashmap": HASHMAP}
_OBSERVED = "weir_state"
_RULES = "org.apache.spark.sql.catalyst.optimizer"
_WRITING = {
    # as many partitions as were asked for, also where nothing is left of the rows
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.optimizer.excludedRules": f"{_RULES}.PruneFilters,{_RULES}.PropagateEmptyRelation",
}

Place = tuple[int, str]
"""An operator's id and the name of one of its stores."""


@dataclass(frozen=True)
class Change:
    """What becomes of the rows of one store on their way."""

    apply: Callable[[DataFrame], DataFrame]
    """Gets `key_bytes, value_bytes, column_family_name, place` and perhaps more; gives at least these."""
    scatters: bool = False
    """Whether rows come out of it in other partitions than their `place` says."""
    schema: bytes | None = None
    """The store's new schema file, where its columns change."""


@dataclass(frozen=True)
class Rewritten:
    """What a rewrite has made, read back from the new files."""

    partitions: int
    backend: str
    seconds: float
    stores: Mapping[Place, Content]

    @property
    def rows(self) -> int:
        return sum(store.rows for store in self.stores.values())


def rescale(
    spark: SparkSession,
    read: Path,
    write: Path,
    batch: BatchId,
    operators: Sequence[Operator],
    *,
    partitions: int,
    backend: Backend,
) -> Rewritten:
    """Make `write` what `read` is at a committed batch, with so many partitions of that backend.

    `read` is a checkpointLocation with at least the files of that batch, and `operators` are those of
    its metadata; `write` must not be there. Raises `StateNotRewritableError` before anything is
    written, `StateDiffersError` when what was written is not what was there, `StateRewriteError` when
    Spark failed; then `write` is not there either.
    """
    return rewrite(spark, read, write, batch, operators, partitions=partitions, backend=backend)


def rewrite(
    spark: SparkSession,
    read: Path,
    write: Path,
    batch: BatchId,
    operators: Sequence[Operator],
    *,
    partitions: int,
    backend: Backend,
    changes: Mapping[Place, Change] | None = None,
    to: BatchId | None = None,
) -> Rewritten:
    """The same, with changes to the rows of some stores; as the batch `to`, where that is given."""
    conf = cut.conf_of(read, batch)
    # a new number takes as much as a new partition does
    more = 0 if to is None or to == batch else 1
    refused = refusals(operators, conf, partitions=partitions + more, backend=backend)
    if refused:
        raise not_rewritable(read.name, refused)
    begun = time.monotonic()
    target = files.beside(write.absolute())
    scratch = cut.scratch(target)
    try:
        cut.lay_out(read, batch, scratch / "read")
        (scratch / "written").symlink_to(target)
        to = batch if to is None else to
        work = _Work(spark, scratch, target, batch, to, operators, partitions, backend, changes or {})
        stores = work.do()
        _name(target, write.absolute())
    except _Differs as error:
        raise error.told(read.name) from None
    except (PySparkException, Py4JError) as error:
        raise StateRewriteError(query=read.name, reason=_first_line(error)) from error
    finally:
        shutil.rmtree(target, ignore_errors=True)
        shutil.rmtree(scratch, ignore_errors=True)
    return Rewritten(partitions, backend, time.monotonic() - begun, stores)


def not_rewritable(query: str, refused: Sequence[StateRefusal]) -> StateNotRewritableError:
    """The error of what can't be done."""
    hints = dict.fromkeys(one.hint for one in refused)
    return StateNotRewritableError(query=query, reason="; ".join(map(str, refused)), todo="; ".join(hints))


class _Differs(Exception):
    """The new files do not hold what they should."""

    def __init__(self, place: Place, what: str) -> None:
        self.place, self.what = place, what

    def told(self, query: str) -> StateDiffersError:
        operator, store = self.place
        return StateDiffersError(query=query, operator=operator, store=store, reason=self.what)


class _Work:
    """One rewrite: the cut that is laid out in the folder `read` of `scratch` becomes `target`."""

    def __init__(
        self,
        spark: SparkSession,
        scratch: Path,
        target: Path,
        batch: BatchId,
        to: BatchId,
        operators: Sequence[Operator],
        partitions: int,
        backend: Backend,
        changes: Mapping[Place, Change],
    ) -> None:
        view = scratch / "read"
        conf = cut.conf_of(view, batch)
        self._view, self._target, self._batch, self._to = view, target, batch, to
        self._written = scratch / "written"  # the target, under a name that Spark's reader finds
        self._version, self._new_version = int(batch) + 1, int(to) + 1
        self._files = closure(view, batch).files
        stays = to == batch and partitions == int(conf[PARTITIONS]) and backend == backend_of(conf)
        changed = {operator for operator, _ in changes}
        self._carried = [one for one in operators if one.kind == LIMIT or (stays and one.id not in changed)]
        self._operators = {one.id: one for one in operators if one not in self._carried}
        self._stores = {
            (operator.id, store.name): store
            for operator in self._operators.values()
            for store in operator.stores
        }
        self._changes = changes
        self._partitions, self._backend = partitions, backend
        self._was_partitions, self._was_backend = int(conf[PARTITIONS]), backend_of(conf)
        self._codec = codec_of(conf)
        was_format = cut.format_of(view, batch)
        if backend != self._was_backend:
            self._format = 2 if backend == "rocksdb" else 1
        else:
            self._format = was_format
        self._reading = _session(spark, self._was_backend, was_format)
        self._writing = _session(spark, backend, self._format)

    def do(self) -> dict[Place, Content]:
        """All of it; the content of each store, which is what it should be."""
        self._describe()
        before = {place: self._typed(self._reading, self._view, place) for place in self._by_rows()}
        if self._backend == "rocksdb":
            expected, ids = self._write_rocksdb()
        else:
            expected, ids = self._write_hashmap(), {}
        self._carry(ids)
        self._commit(ids)
        after = {place: self._after(place) for place in self._stores}
        for place in self._stores:
            _compare(place, before.get(place) or expected[place], after[place])
        return after

    def _describe(self) -> None:
        """Everything of the cut that is no state: with the new settings, for the new place."""
        conf = {PARTITIONS: str(self._partitions), PROVIDER: _PROVIDERS[self._backend]}
        carried = tuple(f"state/{operator.id}/" for operator in self._carried)
        schemas = {
            _schema_file(place): change.schema
            for place, change in self._changes.items()
            if change.schema is not None
        }
        for path in self._files:
            if cut.is_state(path) or path.startswith(carried or ("-",)):
                continue
            data = (self._view / path).read_bytes()
            if path == f"offsets/{self._batch}":
                data = OffsetEntry.parse(data).with_conf(conf).data
            elif cut.is_operator(path):
                data = OperatorEntry.parse(data).moved(self._target, partitions=self._partitions).data
            self._put(self._renumbered(path), schemas.get(path, data))
        before = f"offsets/{int(self._to) - 1}"
        if self._to > 0 and not (self._target / before).exists():  # it had no batch before this one
            self._put(before, (self._target / f"offsets/{self._to}").read_bytes())
        self._commit({})

    def _renumbered(self, path: str) -> str:
        """Where a file of the batch is in the new one: the logs count batches, and so do descriptions."""
        kind, _, name = path.rpartition("/")
        if self._to == self._batch or not name.isdigit():
            return path
        if kind in ("offsets", "commits"):
            return f"{kind}/{max(0, int(name) + int(self._to) - int(self._batch))}"
        is_operator = kind.startswith("state/") and kind.endswith("/_metadata/v2")
        return f"{kind}/{min(int(name), int(self._to))}" if is_operator else path

    def _commit(self, ids: rewriter.Ids) -> None:
        commit = cut.commit_of(self._view, self._batch)
        version = f"v{self._format}" if commit.version in ("v1", "v2") else None
        self._put(f"commits/{self._to}", commit.with_state(ids, version).data)

    def _put(self, path: str, data: bytes) -> None:
        target = self._target / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def _carry(self, ids: rewriter.Ids) -> None:
        """The files of operators that stay as they are.

        So does a limit, which keeps one row, in partition 0, whatever the parallelism.
        """
        old = cut.commit_of(self._view, self._batch).state_ids
        for operator in self._carried:
            for path in self._files:
                if not path.startswith(f"state/{operator.id}/"):
                    continue
                if cut.is_operator(path):
                    entry = OperatorEntry.parse((self._view / path).read_bytes())
                    self._put(path, entry.moved(self._target, partitions=self._partitions).data)
                else:
                    (self._target / path).parent.mkdir(parents=True, exist_ok=True)
                    files.copy((self._view / path).resolve(), self._target / path)
            if str(operator.id) in old:
                ids[str(operator.id)] = old[str(operator.id)]

    def _write_rocksdb(self) -> tuple[dict[Place, Content], rewriter.Ids]:
        made: dict[Place, DataFrame] = {}

        def transform(operator: int, store: str, given: DataFrame) -> DataFrame:
            place = (operator, store)
            frame = self._moved(place, given if self._was_backend == "rocksdb" else self._loaded(place))
            if "partition_key" not in frame.columns:
                key = given.schema["partition_key"].dataType
                frame = frame.withColumn("partition_key", F.lit(None).cast(key))
            made[place] = frame.select(*given.columns)
            return made[place]

        if not self._operators:
            return {}, {}
        read = self._view if self._was_backend == "rocksdb" else self._written
        ids = rewriter.rewrite(self._writing, read, self._target, self._batch, transform, self._to)
        for place, frame in made.items():
            self._check_partitions(place, _partitions(frame))
        return {place: _observed(frame) for place, frame in made.items()}, ids or {}

    def _write_hashmap(self) -> dict[Place, Content]:
        expected = {}
        for place in self._stores:
            operator, store = place
            source = self._loaded(place) if self._was_backend == "hashmap" else self._bytes(place)
            frame = self._moved(place, source)
            task = writing(self._target, operator, store, self._new_version, self._codec)
            written = frame.select("key_bytes", "value_bytes").mapInArrow(task, WRITTEN)
            rows = {row["partition"]: row["rows"] for row in written.collect()}
            expected[place] = _observed(written)
            self._check_partitions(place, len(rows))
        return expected

    def _check_partitions(self, place: Place, written: int) -> None:
        if written != self._count(place):
            raise _Differs(
                place, f"{self._count(place)} partitions were expected, and {written} were written"
            )

    def _bytes(self, place: Place) -> DataFrame:
        return content.bytes_of(self._reading, self._view, self._batch, *place)

    def _loaded(self, place: Place, *, after: bool = False) -> DataFrame:
        """The rows of a hashmap store, each with the partition that it belongs to."""
        operator, store = place
        root, count = (self._target, self._count(place)) if after else (self._view, self._was_count(place))
        placing = None
        if not after and self._partitions != self._was_partitions:
            columns = partition_columns(self._operators[operator], self._stores[place])
            placing = {
                "key": self._stores[place].key_schema,
                "columns": columns,
                "partitions": self._count(place),
            }
        version = self._new_version if after else self._version
        task = loading(root, operator, store, version, self._codec, placing)
        return self._writing.range(0, count, 1, count).mapInArrow(task, LOADED)

    def _moved(self, place: Place, frame: DataFrame) -> DataFrame:
        """The rows of a store in their new partitions, changed, and measured on the way."""
        count = self._count(place)
        if self._partitions != self._was_partitions:
            if "place" in frame.columns:
                frame = frame.repartitionById(count, "place")
            elif _keyed(self._stores[place]):
                frame = frame.repartition(count, "partition_key")
        change = self._changes.get(place)
        if change is not None:
            frame = change.apply(frame.withColumn("place", F.spark_partition_id()))
            if change.scatters:
                frame = frame.repartitionById(count, "place")
        return frame.observe(_OBSERVED, *content.measures_of_bytes())

    def _count(self, place: Place) -> int:
        """So many partitions has a store from now on; one for what has no key."""
        return self._partitions if _keyed(self._stores[place]) else 1

    def _was_count(self, place: Place) -> int:
        return self._was_partitions if _keyed(self._stores[place]) else 1

    def _by_rows(self) -> list[Place]:
        """The stores that are compared by what Spark reads in them, rather than by their bytes."""
        other = "hashmap" in (self._backend, self._was_backend)
        return [place for place in self._stores if other and place not in self._changes]

    def _typed(self, session: SparkSession, root: Path, place: Place) -> Content:
        frame = content.typed(session, root, self._batch, *place)
        return content.measured(frame, content.measures_of_typed(frame))

    def _after(self, place: Place) -> Content:
        """What the new files hold, when every row is where Spark will look for it."""
        changed = place not in self._by_rows()
        columns: int | None = None
        if self._backend == "rocksdb" and changed:
            frame = content.bytes_of(self._writing, self._written, self._to, *place)
            frame = frame.withColumn("partition_id", F.spark_partition_id())
            measures = content.measures_of_bytes()
        else:
            frame = content.typed(self._writing, self._written, self._to, *place)
            measures = content.measures_of_typed(frame)
            columns = partition_columns(self._operators[place[0]], self._stores[place])
        misplaced = content.misplaced(frame, columns, self._count(place)).alias("misplaced")
        measured = frame.agg(*measures, misplaced).first()
        assert measured is not None
        if measured["misplaced"]:
            raise _Differs(place, f"{measured['misplaced']} rows are in a partition of other rows")
        if self._backend == "hashmap" and changed:
            return content.measured(self._loaded(place, after=True), content.measures_of_bytes())
        return content.content_of(measured["rows"], measured["crossed"], measured["added"])


def _keyed(store: StateStore) -> bool:
    """Whether its rows have keys; those of a global aggregate have none, and are all in partition 0."""
    return bool((store.key_schema or {"fields": []})["fields"])


def _schema_file(place: Place) -> str:
    operator, store = place
    return f"state/{operator}/0/" + ("" if store == "default" else f"{store}/") + "_metadata/schema"


def _session(spark: SparkSession, backend: str, format: int) -> SparkSession:
    """A session of its own, whose settings are those of this backend and format."""
    session = spark.newSession()
    settings = state_defaults("rocksdb" if backend == "rocksdb" else "hashmap", cores=1)
    settings |= {STATE_FORMAT: str(format), **_WRITING}
    del settings[PARTITIONS]
    for key, value in settings.items():
        session.conf.set(key, value)
    return session


def _partitions(frame: DataFrame) -> int:
    """In how many partitions a frame was evaluated."""
    execution: Any = frame._jdf.queryExecution()
    return int(execution.toRdd().getNumPartitions())


def _observed(frame: DataFrame) -> Content:
    """What went through a frame that was evaluated."""
    metrics: Any = frame._jdf.queryExecution().observedMetrics().apply(_OBSERVED)
    return content.content_of(metrics.get(0), metrics.get(1), metrics.get(2))


def _compare(place: Place, expected: Content, found: Content) -> None:
    if found.rows != expected.rows:
        raise _Differs(place, f"{expected.rows} rows were expected, and there are {found.rows}")
    if found.checksum != expected.checksum:
        raise _Differs(place, "its keys and values are not the expected ones")


def _name(target: Path, write: Path) -> None:
    """Give what is whole its name, durably."""
    for path in files.below(target):
        if cut.is_operator(path):
            file = target / path
            file.write_bytes(OperatorEntry.parse(file.read_bytes()).moved(write).data)
    made = [target / path for path in files.below(target)]
    files.parallel(files.sync, made)
    files.sync_folders({folder for path in made for folder in files.up_to(path, target)})
    os.rename(target, write)
    files.sync_folders([write.parent])


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0][:500] if lines else type(error).__name__

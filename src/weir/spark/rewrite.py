"""The state of a query in another shape: other partitions, another backend, other rows.

From the files of a cut into a new folder, at the same batch, so that Spark resumes there as if the
state had always been so. RocksDB is read and written by Spark's own StateRewriter, hashmap files by own
code in Spark's tasks. The new folder appears under its name complete or not at all: everything is made
beside it, read back, and compared (`content.py`). The files of the cut are never touched.
"""

from __future__ import annotations

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
from weir.spark.logs import (
    PARTITIONS,
    PROVIDER,
    STATE_FORMAT,
    OffsetEntry,
    OperatorEntry,
    StateIds,
    store_folder,
)
from weir.spark.reshape import LIMIT, backend_of, codec_of, key_fields, partition_columns, refusals
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


@dataclass(frozen=True)
class _Side:
    """The state of all operators, as it was or as it is to be."""

    session: SparkSession
    """Its settings are those of this backend and format."""
    root: Path
    """The checkpointLocation, by a name that Spark's reader finds."""
    batch: BatchId
    partitions: int
    backend: str
    format: int

    @property
    def version(self) -> int:
        return int(self.batch) + 1

    def count(self, store: StateStore) -> int:
        """How many partitions a store has; one without keys, that of a global aggregate, has one."""
        return self.partitions if key_fields(store) else 1

    def rows_as_bytes(self, place: Place) -> DataFrame:
        return content.bytes_of(self.session, self.root, self.batch, *place)

    def typed_rows(self, place: Place) -> DataFrame:
        return content.typed(self.session, self.root, self.batch, *place)


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
    """Make `write` what `read` is at a committed batch, with this number of partitions of that backend.

    `read` is a checkpointLocation with at least the files of that batch, and `operators` are those of
    its metadata; `write` must not be there. With `changes` to the rows of some stores, and as the batch `to`
    where that is given. Raises `StateNotRewritableError` before anything is written, `StateDiffersError`
    when what was written is not what was there, `StateRewriteError` when Spark failed; then `write` is not
    there either.
    """
    conf = cut.conf_of(read, batch)
    was, to = backend_of(conf), batch if to is None else to
    # a new number takes as much as a new partition does
    refused = refusals(operators, conf, partitions=partitions + (to != batch), backend=backend)
    if refused:
        todo = "; ".join(dict.fromkeys(one.hint for one in refused))
        raise StateNotRewritableError(query=read.name, reason="; ".join(map(str, refused)), todo=todo)
    begun = time.monotonic()
    target = files.beside(write.absolute())
    scratch = cut.scratch(target)
    try:
        cut.lay_out(read, batch, scratch / "read")
        (scratch / "written").symlink_to(target)
        old_format = cut.format_of(read, batch)
        format = old_format if backend == was else 2 if backend == "rocksdb" else 1
        before = _Side(
            *(_session(spark, was, old_format), scratch / "read", batch),
            *(int(conf[PARTITIONS]), was, old_format),
        )
        session = _session(spark, backend, format)
        after = _Side(session, scratch / "written", to, partitions, backend, format)
        stores = _Rewrite(before, after, target, operators, changes or {}).do()
        for path in filter(cut.is_operator, files.below(target)):
            entry = OperatorEntry.parse((target / path).read_bytes())
            files.put(target / path, entry.moved(write.absolute()).data)
        files.publish(target, write.absolute())
    except _Differs as error:
        operator, store = error.place
        raise StateDiffersError(query=read.name, operator=operator, store=store, reason=error.what) from None
    except (PySparkException, Py4JError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = lines[0][:500] if lines else type(error).__name__
        raise StateRewriteError(query=read.name, reason=reason) from error
    finally:
        shutil.rmtree(target, ignore_errors=True)
        shutil.rmtree(scratch, ignore_errors=True)
    return Rewritten(partitions, backend, time.monotonic() - begun, stores)


class _Differs(Exception):
    """The new files do not hold what they should."""

    def __init__(self, place: Place, what: str) -> None:
        self.place, self.what = place, what


class _Rewrite:
    """One rewrite: the state `before` becomes the state `after`, whose files are written to `target`."""

    def __init__(
        self,
        before: _Side,
        after: _Side,
        target: Path,
        operators: Sequence[Operator],
        changes: Mapping[Place, Change],
    ) -> None:
        self._before, self._after, self._target, self._changes = before, after, target, changes
        self._files = closure(before.root, before.batch).files
        self._codec = codec_of(cut.conf_of(before.root, before.batch))
        sides = [(one.batch, one.partitions, one.backend) for one in (before, after)]
        changed = {operator for operator, _ in changes}
        self._carried = [
            one for one in operators if one.kind == LIMIT or (sides[0] == sides[1] and one.id not in changed)
        ]
        self._operators = {one.id: one for one in operators if one not in self._carried}
        self._stores = {
            (operator.id, store.name): store
            for operator in self._operators.values()
            for store in operator.stores
        }

    def do(self) -> dict[Place, Content]:
        """All of it; the content of each store, which is what it should be."""
        self._describe()
        known = {place: _measured(self._before.typed_rows(place)) for place in self._by_rows()}
        if self._after.backend == "rocksdb":
            expected, ids = self._write_rocksdb()
        else:
            expected, ids = self._write_hashmap(), {}
        self._carry(ids)
        self._commit(ids)
        made = {place: self._read_back(place) for place in self._stores}
        for place in self._stores:
            wanted, found = known.get(place) or expected[place], made[place]
            if found.rows != wanted.rows:
                raise _Differs(place, f"{wanted.rows} rows were expected, and there are {found.rows}")
            if found.checksum != wanted.checksum:
                raise _Differs(place, "its keys and values are not the expected ones")
        return made

    def _describe(self) -> None:
        """Everything of the cut that is no state: with the new settings, for the new place."""
        view, after = self._before.root, self._after
        conf = {PARTITIONS: str(after.partitions), PROVIDER: _PROVIDERS[after.backend]}
        carried = tuple(f"state/{operator.id}/" for operator in self._carried)
        schemas = {
            f"{store_folder(operator, 0, store)}/_metadata/schema": change.schema
            for (operator, store), change in self._changes.items()
            if change.schema is not None
        }
        for path in self._files:
            if cut.is_state(path) or path.startswith(carried or ("-",)):
                continue
            data = (view / path).read_bytes()
            if path == f"offsets/{self._before.batch}":
                data = OffsetEntry.parse(data).with_conf(conf).data
            elif cut.is_operator(path):
                data = OperatorEntry.parse(data).moved(self._target, partitions=after.partitions).data
            files.put(self._target / self._renumbered(path), schemas.get(path, data))
        first = self._target / f"offsets/{int(after.batch) - 1}"
        if after.batch > 0 and not first.exists():  # it had no batch before this one
            files.put(first, (self._target / f"offsets/{after.batch}").read_bytes())
        self._commit({})

    def _renumbered(self, path: str) -> str:
        """Where a file of the batch is in the new one: the logs count batches, and so do descriptions."""
        kind, _, name = path.rpartition("/")
        batch, to = int(self._before.batch), int(self._after.batch)
        if to == batch or not name.isdigit():
            return path
        if kind in ("offsets", "commits"):
            return f"{kind}/{max(0, int(name) + to - batch)}"
        is_operator = kind.startswith("state/") and kind.endswith("/_metadata/v2")
        return f"{kind}/{min(int(name), to)}" if is_operator else path

    def _commit(self, ids: StateIds) -> None:
        commit = cut.commit_of(self._before.root, self._before.batch)
        version = f"v{self._after.format}" if commit.version in ("v1", "v2") else None
        files.put(self._target / f"commits/{self._after.batch}", commit.with_state(ids, version).data)

    def _carry(self, ids: StateIds) -> None:
        """The files of operators that stay as they are.

        So does a limit, which keeps one row, in partition 0, whatever the parallelism.
        """
        view = self._before.root
        old = cut.commit_of(view, self._before.batch).state_ids
        for operator in self._carried:
            for path in self._files:
                if not path.startswith(f"state/{operator.id}/"):
                    continue
                if cut.is_operator(path):
                    entry = OperatorEntry.parse((view / path).read_bytes())
                    moved = entry.moved(self._target, partitions=self._after.partitions)
                    files.put(self._target / path, moved.data)
                else:
                    (self._target / path).parent.mkdir(parents=True, exist_ok=True)
                    files.copy((view / path).resolve(), self._target / path)
            if str(operator.id) in old:
                ids[str(operator.id)] = old[str(operator.id)]

    def _write_rocksdb(self) -> tuple[dict[Place, Content], StateIds]:
        before, after = self._before, self._after
        made: dict[Place, DataFrame] = {}

        def transform(operator: int, store: str, given: DataFrame) -> DataFrame:
            place = (operator, store)
            frame = self._moved(place, given if before.backend == "rocksdb" else self._loaded(place))
            if "partition_key" not in frame.columns:
                key = given.schema["partition_key"].dataType
                frame = frame.withColumn("partition_key", F.lit(None).cast(key))
            made[place] = frame.select(*given.columns)
            return made[place]

        if not self._operators:
            return {}, {}
        read = before.root if before.backend == "rocksdb" else after.root
        ids = rewriter.rewrite(after.session, read, self._target, before.batch, transform, after.batch)
        for place, frame in made.items():
            execution: Any = frame._jdf.queryExecution()
            self._check_partitions(place, int(execution.toRdd().getNumPartitions()))
        return {place: _observed(frame) for place, frame in made.items()}, ids or {}

    def _write_hashmap(self) -> dict[Place, Content]:
        expected = {}
        for place in self._stores:
            was_hashmap = self._before.backend == "hashmap"
            frame = self._moved(
                place, self._loaded(place) if was_hashmap else self._before.rows_as_bytes(place)
            )
            task = writing(self._target, *place, self._after.version, self._codec)
            written = frame.select("key_bytes", "value_bytes").mapInArrow(task, WRITTEN)
            rows = {row["partition"]: row["rows"] for row in written.collect()}
            expected[place] = _observed(written)
            self._check_partitions(place, len(rows))
        return expected

    def _check_partitions(self, place: Place, written: int) -> None:
        wanted = self._after.count(self._stores[place])
        if written != wanted:
            raise _Differs(place, f"{wanted} partitions were expected, and {written} were written")

    def _loaded(self, place: Place, *, after: bool = False) -> DataFrame:
        """The rows of a hashmap store, each with the partition that it belongs to."""
        operator, store = place
        side, wanted = self._after if after else self._before, self._after.count(self._stores[place])
        placing = None
        if not after and self._rescales:
            columns = partition_columns(self._operators[operator], self._stores[place])
            placing = {"key": self._stores[place].key_schema, "columns": columns, "partitions": wanted}
        root = self._target if after else side.root
        task = loading(root, operator, store, side.version, self._codec, placing)
        count = side.count(self._stores[place])
        return self._after.session.range(0, count, 1, count).mapInArrow(task, LOADED)

    @property
    def _rescales(self) -> bool:
        return self._after.partitions != self._before.partitions

    def _moved(self, place: Place, frame: DataFrame) -> DataFrame:
        """The rows of a store in their new partitions, changed, and measured on the way."""
        store = self._stores[place]
        count = self._after.count(store)
        if self._rescales:
            if "place" in frame.columns:
                frame = frame.repartitionById(count, "place")
            elif key_fields(store):
                frame = frame.repartition(count, "partition_key")
        change = self._changes.get(place)
        if change is not None:
            frame = change.apply(frame.withColumn("place", F.spark_partition_id()))
            if change.scatters:
                frame = frame.repartitionById(count, "place")
        return frame.observe(_OBSERVED, *content.measures_of_bytes())

    def _by_rows(self) -> list[Place]:
        """The stores that are compared by what Spark reads in them, rather than by their bytes."""
        hashmap = "hashmap" in (self._after.backend, self._before.backend)
        return [place for place in self._stores if hashmap and place not in self._changes]

    def _read_back(self, place: Place) -> Content:
        """What the new files hold, when every row is where Spark will look for it."""
        store, changed = self._stores[place], place not in self._by_rows()
        columns: int | None = None
        if self._after.backend == "rocksdb" and changed:
            frame = self._after.rows_as_bytes(place).withColumn("partition_id", F.spark_partition_id())
            measures = content.measures_of_bytes()
        else:
            frame = self._after.typed_rows(place)
            measures = content.measures_of_typed(frame)
            columns = partition_columns(self._operators[place[0]], store)
        misplaced = content.misplaced(frame, columns, self._after.count(store)).alias("misplaced")
        measured = frame.agg(*measures, misplaced).first()
        assert measured is not None
        if measured["misplaced"]:
            raise _Differs(place, f"{measured['misplaced']} rows are in a partition of other rows")
        if self._after.backend == "hashmap" and changed:
            return content.measured(self._loaded(place, after=True), content.measures_of_bytes())
        return content.content_of(measured["rows"], measured["crossed"], measured["added"])


def _measured(typed: DataFrame) -> Content:
    return content.measured(typed, content.measures_of_typed(typed))


def _session(spark: SparkSession, backend: str, format: int) -> SparkSession:
    """A session of its own, whose settings are those of this backend and format."""
    session = spark.newSession()
    settings = state_defaults("rocksdb" if backend == "rocksdb" else "hashmap", cores=1)
    settings |= {STATE_FORMAT: str(format), **_WRITING}
    del settings[PARTITIONS]
    for key, value in settings.items():
        session.conf.set(key, value)
    return session


def _observed(frame: DataFrame) -> Content:
    """What went through a frame that was evaluated."""
    metrics: Any = frame._jdf.queryExecution().observedMetrics().apply(_OBSERVED)
    return content.content_of(metrics.get(0), metrics.get(1), metrics.get(2))

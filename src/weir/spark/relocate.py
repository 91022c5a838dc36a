"""The files of a cut for a query whose operators or sources are others: added, removed, or moved.

Spark finds state by an operator's number, and the position of a source by its place in the offset
log. Both change when the query does. From the files of a cut a new folder is made in which each piece
is where the changed query looks for it, at the same batch; state that is dropped is left out, and an
operator that is new begins there with nothing. Pieces may come of other queries, too. The new folder
appears under its name complete or not at all, and the files of the cut are never touched: they are
linked, or written again.
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from weir.errors import SurgeryError
from weir.ids import BatchId
from weir.protocol.operators import Operator
from weir.spark import cut
from weir.spark.closure import GoneError, closure
from weir.spark.logs import (
    NO_OFFSET,
    PROVIDER,
    STATE_FORMAT,
    CommitEntry,
    OffsetEntry,
    OperatorEntry,
    StateIds,
    log_offset,
    store_folder,
)
from weir.spark.planner import settings_of_a_new_query
from weir.spark.reshape import backend_of, codec_of
from weir.storage import files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STATE = re.compile(r"state/(\d+)/(.+)")
_NOTHING = "n long"
Names = Mapping[str, str | None]
"""For each source that Spark finds by its name and that changes: its new name, None where it is left out."""


@dataclass(frozen=True)
class Other:
    """What a query gets of another one."""

    state: Path
    """A checkpointLocation with its state, at the batch of the query that gets it."""
    moves: Mapping[int, int]
    """For each operator that is taken: its number there, and its new one."""
    cut: Path
    """The checkpointLocation with its offset log and the logs of its sources."""
    batch: BatchId
    """Its last batch there."""
    sources: Mapping[int, int] = field(default_factory=dict)
    """For each source of the changed query that begins where one of these stands: the number of that one."""
    folders: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """For each of them the number of its folder there, and of the new one."""


def begin(spark: SparkSession, folder: Path, sources: int) -> BatchId:
    """Make `folder` a query that has run one batch over nothing, with the settings of a session; the batch.

    From there `operate` gives a new query positions and operators. Raises `SurgeryError`.
    """
    try:
        settings = json.dumps(settings_of_a_new_query(spark), separators=(",", ":"))
        texts = {
            "metadata": json.dumps({"id": str(uuid.uuid4())}),
            "offsets/0": OffsetEntry("v1", settings, (NO_OFFSET,) * sources).text,
            "commits/0": CommitEntry("v1", {}).with_watermark(0).text,
        }
        for path, text in texts.items():
            files.put(folder / path, text.encode())
    except (OSError, PySparkException, Py4JError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise SurgeryError(query=folder.name, batch=0, reason=reason) from error
    return BatchId(0)


def operate(
    spark: SparkSession,
    read: Path,
    write: Path,
    batch: BatchId,
    *,
    moves: Mapping[int, int],
    added: Sequence[Operator] = (),
    descriptions: Mapping[str, bytes] | None = None,
    sources: Sequence[int | None] | None = None,
    names: Names | None = None,
    ends: Mapping[int, str] | None = None,
    logs: Mapping[int, bytes] | None = None,
    folders: Mapping[int, tuple[int, int]] | None = None,
    others: Sequence[Other] = (),
) -> None:
    """Make `write` what the changed query needs to resume after a committed batch of `read`.

    `read` is a checkpointLocation with at least the files of that batch; `write` must not be there.
    `moves` has the old and new number of each operator that keeps its state: every other one is left
    out. `added` are the operators that begin with nothing, and `descriptions` the files by which Spark
    describes them. `sources` has for each source of the changed query the old one whose position it
    takes, None for one that begins again; without it they stay as they are. `names` has the new names of
    those that Spark finds by a name, None for one whose position is left out. `ends` has other positions
    for some of them, as Spark writes them, and `logs` by folder the first entry of another log of what they
    have read; an empty one for those that have read nothing. `folders` has for each source its old folder
    `sources/N` and its new one, where those are not numbered like the sources. `others` are queries that it
    gets state and positions of.

    Raises `SurgeryError`; then `write` is not there.
    """
    target = files.beside(write.absolute())
    try:
        work = _Relocation(spark, read.absolute(), target, write.absolute(), batch)
        ids = work.carry(moves)
        for other in others:
            ids |= work.take(other)
        work.plant(added, descriptions or {}, ids)
        work.commit(ids, others)
        work.offsets(sources, names or {}, ends or {}, logs or {}, folders or {}, others)
        taken = {to for other in others for to in other.moves.values()}
        work.verify({*moves.values(), *taken, *(one.id for one in added)})
        files.publish(target, write.absolute())
    except (GoneError, OSError, LookupError, ValueError, PySparkException, Py4JError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise SurgeryError(query=read.name, batch=int(batch), reason=reason) from error
    finally:
        shutil.rmtree(target, ignore_errors=True)


class _Relocation:
    """One operation: the cut at `read` becomes `target`, which will be called `name`."""

    def __init__(self, spark: SparkSession, read: Path, target: Path, name: Path, batch: BatchId) -> None:
        self._spark, self._read, self._target, self._name, self._batch = spark, read, target, name, batch
        self._files = closure(read, batch).files
        self._conf = cut.conf_of(read, batch)
        self._commit = cut.commit_of(read, batch)
        stateful = any(_STATE.fullmatch(path) for path in self._files)
        # without state the query has no format yet, and gets that of a new one
        self._format = str(cut.format_of(read, batch)) if stateful else str(spark.conf.get(STATE_FORMAT, "1"))

    def carry(self, moves: Mapping[int, int]) -> StateIds:
        """Bring what stays to its new place; the ids of its state."""
        for path in self._files:
            if _STATE.fullmatch(path) is None and not path.startswith(("offsets/", "commits/", "sources/")):
                self._link(self._read / path, path)
        self._bring(self._read, self._files, moves)
        old = self._commit.state_ids
        return {str(to): old[str(at)] for at, to in moves.items() if str(at) in old}

    def take(self, other: Other) -> StateIds:
        """Bring what comes of another query; the ids of its state."""
        if not other.moves:
            return {}
        root = other.state.absolute()
        self._bring(root, closure(root, self._batch).files, other.moves)
        old = cut.commit_of(root, self._batch).state_ids
        if bool(old) != (self._format == "2"):
            raise ValueError(f"{root.name} keeps its state in another format than this query")
        return {str(to): old[str(at)] for at, to in other.moves.items() if str(at) in old}

    def _bring(self, root: Path, paths: Sequence[str], moves: Mapping[int, int]) -> None:
        for path in paths:
            match = _STATE.fullmatch(path)
            if match is None or int(match[1]) not in moves:
                continue
            to = moves[int(match[1])]
            if cut.is_operator(path):
                data = self._renumbered((root / path).read_bytes(), to)
                files.put(self._target / f"state/{to}/{match[2]}", data)
            else:
                self._link(root / path, f"state/{to}/{match[2]}")

    def plant(self, added: Sequence[Operator], descriptions: Mapping[str, bytes], ids: StateIds) -> None:
        """Describe the new operators, and give each an empty version after the batch."""
        for operator in added:
            for path, data in descriptions.items():
                if path.startswith(f"state/{operator.id}/"):
                    made = self._renumbered(data, operator.id) if cut.is_operator(path) else data
                    files.put(self._target / path, made)
            empty = [self._empty(operator, store.name) for store in operator.stores]
            if all(empty):
                ids[str(operator.id)] = [list(stores) for stores in zip(*empty, strict=True)]

    def commit(self, ids: StateIds, others: Sequence[Other] = ()) -> None:
        """The commit log. Event time is as far as that of any query that gave a piece of its state.

        With less, a dedup would let through what it has forgotten by that time.
        """
        commit = self._commit.with_state(ids, "v2" if ids and self._commit.version == "v1" else None)
        reached = [cut.commit_of(other.cut, other.batch).watermark_ms for other in others]
        if reached:
            commit = commit.with_watermark(max(commit.watermark_ms, *reached))
        files.put(self._target / f"commits/{self._batch}", commit.data)

    def offsets(
        self,
        order: Sequence[int | None] | None,
        names: Names,
        ends: Mapping[int, str],
        logs: Mapping[int, bytes],
        folders: Mapping[int, tuple[int, int]],
        others: Sequence[Other],
    ) -> None:
        """The offset log and the logs of the sources, each source in its new place."""
        for path in self._files:
            if path.startswith("offsets/"):
                entry = OffsetEntry.parse((self._read / path).read_bytes())
                entry = entry if order is None else entry.reordered(order)
                entry = entry.renamed(names) if names else entry
                back = int(self._batch) - int(path.removeprefix("offsets/"))
                taken = {place: end for other in others for place, end in _ends(other, back).items()}
                files.put(self._target / path, entry.with_ends({**taken, **ends}).data)
            elif path.startswith("sources/") and (order is None or not path.split("/")[1].isdigit()):
                _, number, name = path.split("/", 2)
                if (to := names.get(number, number)) is not None:
                    self._link(self._read / path, f"sources/{to}/{name}")
        if order is not None:
            own = {place: (at, place) for place, at in enumerate(order) if at is not None}
            self._logs(self._read, self._batch, {**own, **folders}, own, logs)
        for other in others:
            own = {place: (at, place) for place, at in other.sources.items()}
            self._logs(other.cut.absolute(), other.batch, {**own, **other.folders}, own, logs)
        for folder, data in logs.items():
            if data:
                files.put(self._target / f"sources/{folder}/0", data)

    def _logs(
        self,
        root: Path,
        batch: BatchId,
        folders: Mapping[int, tuple[int, int]],
        own: Mapping[int, tuple[int, int]],
        logs: Mapping[int, bytes],
    ) -> None:
        """The logs of the sources at these places; all uses of one relation have one."""
        lines = cut.offsets_of(root, batch).lines
        there = [path for path in closure(root, batch).files if path.startswith("sources/")]
        for place, (at, _) in own.items():
            was, now = folders[place]
            if now in logs:
                continue
            mine = [path for path in there if path.startswith(f"sources/{was}/")]
            if not mine and log_offset(lines[at]) is not None:
                raise ValueError(f"the log of source {at} is not in sources/{was}")
            for path in mine:
                to = f"sources/{now}/{path.split('/', 2)[2]}"
                if not (self._target / to).exists():
                    self._link(root / path, to)

    def verify(self, wanted: set[int]) -> None:
        """Check that the new folder is complete, and has exactly these operators."""
        needed = closure(self._target, self._batch).files
        for path in needed:
            if not (self._target / path).is_file():
                raise GoneError(path)
        operators = {int(match[1]) for path in needed if (match := _STATE.fullmatch(path))}
        ids = cut.commit_of(self._target, self._batch).state_ids
        if operators != wanted or (ids and {int(id) for id in ids} != wanted):
            raise ValueError(f"operators {sorted(operators)} are there, and {sorted(wanted)} should be")

    def _empty(self, operator: Operator, store: str) -> list[str]:
        """An empty version of a store in every partition; their unique ids, where there are such."""
        folders = [self._target / store_folder(operator.id, n, store) for n in range(operator.partitions)]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        if backend_of(self._conf) == "hashmap":
            from weir.spark.hashmap import write_snapshot  # noqa: PLC0415  loads pyarrow

            for folder in folders:
                write_snapshot(folder / f"{self._batch + 1}.snapshot", [], codec_of(self._conf))
            return []
        families = any(family.name != "default" for one in operator.stores for family in one.families)
        uid = self._empty_rocksdb(operator.id, store, families)
        if uid is None:
            made = f"{self._batch + 1}.zip"
            for folder in folders[1:]:
                shutil.copyfile(folders[0] / made, folder / made)
            return []
        others = [str(uuid.uuid4()) for _ in folders[1:]]
        for folder, other in zip(folders[1:], others, strict=True):
            for ending in (".zip", ".zip.crc"):
                file = folders[0] / f"{self._batch + 1}_{uid}{ending}"
                if file.exists():
                    shutil.copyfile(file, folder / f"{self._batch + 1}_{other}{ending}")
        return [uid, *others]

    def _empty_rocksdb(self, operator: int, store: str, families: bool) -> str | None:
        """Let Spark write an empty version of a store in partition 0; its unique id in format 2."""
        session = self._spark.newSession()
        session.conf.set(PROVIDER, self._conf[PROVIDER])
        session.conf.set(STATE_FORMAT, self._format)
        jvm: Any = self._spark._jvm
        state = jvm.org.apache.spark.sql.execution.streaming.state
        types = jvm.org.apache.spark.sql.types.StructType.fromDDL(_NOTHING)
        nothing = jvm.scala.Option.empty()
        settings = session._jsparkSession.sessionState()
        place = state.StateStoreId(f"file:{self._target}/state", operator, 0, store)
        provider = state.StateStoreProvider.createAndInit(
            state.StateStoreProviderId(place, jvm.java.util.UUID.randomUUID()),
            types,
            types,
            state.NoPrefixKeyStateEncoderSpec(types),
            families,
            state.StateStoreConf(settings.conf(), jvm.org.apache.spark.api.python.PythonUtils.toScalaMap({})),
            settings.newHadoopConf(),
            False,
            nothing,
        )
        try:
            empty = provider.getStore(int(self._batch), nothing, False, True)
            empty.commit()
            made = empty.getStateStoreCheckpointInfo().stateStoreCkptId()
            return str(made.get()) if made.isDefined() else None
        finally:
            provider.close()

    def _renumbered(self, operator_metadata: bytes, id: int) -> bytes:
        return OperatorEntry.parse(operator_metadata).moved(self._name, id=id).data

    def _link(self, source: Path, to: str) -> None:
        target = self._target / to
        target.parent.mkdir(parents=True, exist_ok=True)
        files.link(source, target)


def _ends(other: Other, back: int) -> dict[int, str]:
    """Where the sources that come of another query stood this many batches ago; nowhere before its first."""
    if not other.sources:
        return {}
    file = other.cut / f"offsets/{int(other.batch) - back}"
    if not file.exists():
        return dict.fromkeys(other.sources, NO_OFFSET)
    return OffsetEntry.parse(file.read_bytes()).numbered(other.sources)

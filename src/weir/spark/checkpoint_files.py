"""What weir reads of a query's checkpointLocation. Spark's live files are Spark's: read only.

Two exceptions: `renew_id` is for files that are not live yet, `clear_beginning` for what Spark itself has
abandoned.

`commits/<n>` is the decision record: its existence decides that batch n happened. With state
checkpoint format 2 it also names the state that the deciding run wrote. The facts behind this file
are proven in the project's experiments on Spark 4.3; a test per Spark version pins them.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weir.ids import NO_BATCH, BatchId, QueryName
from weir.spark.logs import PARTITIONS, PROVIDER, CommitEntry, OffsetEntry, OperatorEntry, batches
from weir.storage import Store, files, paths
from weir.storage.open import is_local, local_path, spark_url
from weir.storage.paths import Live

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HASHMAP = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
BACKENDS = {ROCKSDB: "rocksdb", HASHMAP: "hashmap"}

_UNFINISHED = re.compile(r"\.?\.\d+\.[0-9a-f-]{36}\.tmp(\.crc)?")
"""What Spark calls an entry of a log until it is complete, and Hadoop the checksum of it."""


@dataclass(frozen=True)
class Pinned:
    """What the newest offset log entry fixes, whatever the session says."""

    backend: str
    partitions: int


class QueryFiles:
    """One query's checkpointLocation, as a reader."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    @classmethod
    def of(cls, live: Live, name: QueryName) -> QueryFiles:
        """Those of a query in one generation of its job."""
        return cls(live.store, paths.query(live.job, live.generation, name))

    @property
    def location(self) -> str:
        """The checkpointLocation as Spark takes it."""
        return spark_url(f"{self._store.url}/{self._prefix}")

    def query_id(self) -> str:
        """The id that Spark knows the query by; "" before its first start."""
        data = self._store.get(f"{self._prefix}/metadata")
        return str(json.loads(data)["id"]) if data else ""

    def renew_id(self) -> None:
        """Give the query another id, before its files are live. Safe to repeat.

        Delta Lake and Apache Iceberg remember (id, batch) and skip what they have seen. After a restore the
        same numbers stand for other batches, which would be lost in silence.
        """
        if self._store.exists(f"{self._prefix}/metadata"):
            self._store.delete(f"{self._prefix}/.metadata.crc")  # Hadoop's checksum of the old one
            self._store.put(f"{self._prefix}/metadata", json.dumps({"id": str(uuid.uuid4())}).encode())

    def clear_beginning(self) -> None:
        """Before a query that has planned nothing yet is started: delete what is left of a try to.

        A driver that dies while it writes `offsets/0` leaves the temporary file, and beside that Spark
        refuses to begin, for ever (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY). After the first entry it does
        not mind them, and they stay.
        """
        if self.last_planned() == NO_BATCH:
            for log in ("offsets", "commits"):
                folder = f"{self._prefix}/{log}"
                for name in self._hidden_too(folder):
                    if _UNFINISHED.fullmatch(name):
                        self._store.delete(f"{folder}/{name}")

    def last_committed(self) -> BatchId:
        return max(self._batches("commits"), default=NO_BATCH)

    def newest_committed(self, known: BatchId) -> BatchId:
        """The last committed batch, for one who knows an earlier one: lists nothing while that is there."""
        newest = known
        while self.committed(BatchId(newest + 1)):
            newest = BatchId(newest + 1)
        is_known = newest != known or (newest != NO_BATCH and self.committed(newest))
        return newest if is_known else self.last_committed()

    def last_planned(self) -> BatchId:
        return max(self._batches("offsets"), default=NO_BATCH)

    def committed(self, batch: BatchId) -> bool:
        return self._store.exists(f"{self._prefix}/commits/{batch}")

    def committed_state(self, batch: BatchId) -> frozenset[str]:
        """The state ids that `commits/<n>` names; none for stateless queries and format 1."""
        data = self._store.get(f"{self._prefix}/commits/{batch}")
        ids = CommitEntry.parse(data).state_ids if data else {}
        return frozenset(uid for parts in ids.values() for stores in parts for uid in stores)

    def committed_offsets(self) -> list[dict[str, Any]]:
        """Where each source stood after the last committed batch; none before there is one.

        What a planned and uncommitted batch reads begins there.
        """
        return self.offsets(self.last_committed())

    def offsets(self, batch: BatchId) -> list[dict[str, Any]]:
        """Where each source stood after a batch; none when Spark has not planned it, or has purged it.

        Only offsets that are JSON objects, as those of weir's own sources are.
        """
        data = self._store.get(f"{self._prefix}/offsets/{batch}")
        ends = OffsetEntry.parse(data).ends() if data else iter(())
        return [json.loads(end) for _, end in ends if end.startswith("{")]

    def state_ids(self, batch: BatchId) -> frozenset[str]:
        """Ids of the state files of the batch that are there, by any run (format 2).

        One operator's first partition is enough to distinguish runs: every run writes all of them.
        """
        written = map(_written_by, self._names(f"{self._prefix}/state/0/0"))
        return frozenset(uid for version, uid in written if version == str(batch + 1) and uid)

    def uploading(self, batch: BatchId) -> bool:
        """Whether any state of the batch is there already."""
        names = self._names(f"{self._prefix}/state/0")
        return any(_written_by(name)[0] == str(batch + 1) for name in names)

    def state_left_out(self, batch: BatchId) -> list[str]:
        """The state, as "operator/partition", that no run has written after this batch yet.

        None once all of the batch was evaluated, by any run; none in a query without state.
        """
        folder = f"{self._prefix}/state/"
        paths = [key.removeprefix(folder).split("/") for key in self._store.list(f"{self._prefix}/state")]
        written = {f"{path[0]}/{path[1]}" for path in paths if _written_by(path[-1])[0] == str(batch + 1)}
        operators = sorted({path[0] for path in paths if path[0].isdigit()}, key=int)
        asked = [f"{one}/{number}" for one in operators for number in range(self._state_partitions(one))]
        return [one for one in asked if one not in written]

    def conf(self) -> dict[str, str]:
        """The settings that the newest offset log entry fixes; none before the first batch was planned."""
        data = self._store.get(f"{self._prefix}/offsets/{self.last_planned()}")
        return OffsetEntry.parse(data).conf if data else {}

    def pinned(self) -> Pinned | None:
        """What the live files fix, or None before the first batch was planned."""
        conf = self.conf()
        if not conf:
            return None
        provider = conf[PROVIDER]
        return Pinned(BACKENDS.get(provider, provider), int(conf[PARTITIONS]))

    def stateful(self) -> bool:
        """Whether the query keeps any state."""
        return next(self._store.list(f"{self._prefix}/state"), None) is not None

    def _state_partitions(self, operator: str) -> int:
        folder = f"{self._prefix}/state/{operator}/_metadata"
        newest = max(batches(self._names(f"{folder}/v2")), default=None)
        data = self._store.get(f"{folder}/metadata" if newest is None else f"{folder}/v2/{newest}")
        return OperatorEntry.parse(data).partitions if data else 0

    def _batches(self, log: str) -> list[BatchId]:
        return batches(self._names(f"{self._prefix}/{log}"))

    def _hidden_too(self, folder: str) -> list[str]:
        if not is_local(self._store.url):
            return self._names(folder)
        place = Path(local_path(self._store.url)) / folder
        try:
            return [path.name for path in place.iterdir()] if place.is_dir() else []
        except OSError as error:
            raise files.failed("list", place, error, self._store.url) from error

    def _names(self, folder: str) -> list[str]:
        return [key.rsplit("/", 1)[1] for key in self._store.list(folder)]


def _written_by(name: str) -> tuple[str, str]:
    """The version that a file of state is of, and in format 2 the unique id of its writer."""
    version, _, uid = name.partition(".")[0].partition("_")
    return version, uid

"""What of a query's state can't be brought to another parallelism or backend, and why. Pure.

Asked by a restore plan before anything is written, and again by `rewrite.py`, which does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weir.protocol.operators import Operator, StateStore
from weir.spark import unsafe_row as rows
from weir.spark.checkpoint_files import BACKENDS
from weir.spark.logs import PARTITIONS, PROVIDER

CODEC = "spark.sql.streaming.stateStore.compression.codec"
ROW_CHECKSUM = "spark.sql.streaming.stateStore.rowChecksum.enabled"

HASHMAP_CODECS = ("lz4", "zstd")
"""How hashmap state may be compressed to be read and written; the first is Spark's default."""

LIMIT = "globalLimit"
JOIN = "symmetricHashJoin"
SESSION = "sessionWindowStateStoreSaveExec"
TRANSFORM = frozenset(
    {"transformWithStateExec", "transformWithStateInPandasExec", "transformWithStateInPySparkExec"}
)
_REWRITABLE = TRANSFORM | {
    *("stateStoreSave", "dedupe", "dedupeWithinWatermark", SESSION, JOIN),
    *("flatMapGroupsWithState", "applyInPandasWithState"),
}
_INDEXED = "keyWithIndexToValue"
_JOIN_4 = ("keyWithTsToValues", "tsWithKey")


@dataclass(frozen=True)
class StateRefusal:
    """One operator whose state can't be what was asked for."""

    operator: int
    kind: str
    why: str
    hint: str

    def __str__(self) -> str:
        return f"operator {self.operator} ({self.kind}): {self.why}"


def refusals(
    operators: Sequence[Operator], conf: Mapping[str, str], *, partitions: int, backend: str
) -> list[StateRefusal]:
    """Why these operators can't have their state in this many partitions of that backend.

    `conf` is what `offsets/<n>` fixes for the query (`cut.conf_of`). Nothing is refused when
    partitions and backend stay what they are there.
    """
    was = backend_of(conf)
    if partitions == int(conf[PARTITIONS]) and backend == was:
        return []
    asked = _Asked(conf, was, partitions, backend)
    found = (next(asked.against(operator), None) for operator in operators)
    return [one for one in found if one is not None]


def edit_refusal(operator: Operator, conf: Mapping[str, str]) -> StateRefusal | None:
    """Why the rows of an operator can't be edited, whatever is to become of them."""
    if operator.kind == LIMIT:
        return _refusal(operator, "Spark keeps no schema of its state", "leave it as it is")
    backend = backend_of(conf)
    return next(_Asked(conf, backend, int(conf[PARTITIONS]), backend).against(operator), None)


def conversion_refusal(old: Operator, new: Operator) -> StateRefusal | None:
    """Why the values of an aggregation can't be made those of another, whatever becomes of its columns."""
    values = (old.stores[0].value_schema, new.stores[0].value_schema)
    return _unreadable(old, "value", values, "leave what the aggregation computes as it is")


def rekey_refusal(old: Operator, new: Operator) -> StateRefusal | None:
    """Why the keys of an operator can't be made those of another, in another order or with other integers."""
    keys = (old.stores[0].key_schema, new.stores[0].key_schema)
    return _unreadable(old, "key", keys, "leave its keys as they were")


def _unreadable(
    operator: Operator, what: str, schemas: Sequence[dict[str, Any] | None], hint: str
) -> StateRefusal | None:
    for schema in schemas:
        unknown = "columns that are not known" if schema is None else rows.check(schema)
        if unknown:
            return _refusal(operator, f"weir can't parse a {what} with {unknown}", hint)
    return None


def backend_of(conf: Mapping[str, str]) -> str:
    """The backend that `offsets/<n>` fixes; the name of its class where weir has no word for it."""
    return BACKENDS.get(conf[PROVIDER], conf[PROVIDER])


def codec_of(conf: Mapping[str, str]) -> str:
    return conf.get(CODEC, HASHMAP_CODECS[0])


def partition_columns(operator: Operator, store: StateStore) -> int:
    """How many leading columns of a key decide where it is, in a store without column families.

    0 for a global aggregate, which is all in partition 0.
    """
    columns = len(key_fields(store))
    indexed = operator.kind == JOIN and _INDEXED in store.name
    return columns - 1 if operator.kind == SESSION or indexed else columns


def key_fields(store: StateStore) -> list[Any]:
    """The columns of its keys; a global aggregate has none, and all its rows are in partition 0."""
    return list((store.key_schema or {"fields": []})["fields"])


@dataclass(frozen=True)
class _Asked:
    conf: Mapping[str, str]
    there: str
    partitions: int
    backend: str

    def against(self, operator: Operator) -> Iterator[StateRefusal]:
        yield from self._kind(operator)
        if "hashmap" in (self.there, self.backend):
            yield from self._hashmap(operator)

    def _kind(self, operator: Operator) -> Iterator[StateRefusal]:
        families = {family.name for store in operator.stores for family in store.families}
        stays = "leave parallelism and state backend as they are"
        if self.there not in BACKENDS.values():
            yield _refusal(operator, f"its state backend {self.there} is not known to weir", stays)
        elif operator.kind == LIMIT:
            if self.backend != self.there:
                yield _refusal(operator, "Spark keeps no schema of its state", "leave the backend as it is")
        elif operator.kind not in _REWRITABLE:
            yield _refusal(operator, "Spark can't rewrite state of this kind", stays)
        elif operator.kind == JOIN and any(name in family for family in families for name in _JOIN_4):
            yield _refusal(
                operator,
                "Spark's StateRewriter corrupts join state of version 4",
                f"{stays}, or start the query from the beginning with "
                "spark.sql.streaming.join.stateFormatVersion=2",
            )
        elif not families:
            yield _refusal(operator, "the schema of its state is not there", stays)

    def _hashmap(self, operator: Operator) -> Iterator[StateRefusal]:
        rocksdb = "keep it in rocksdb"
        if operator.kind in TRANSFORM:
            yield _refusal(operator, "Spark has no transformWithState on the hashmap backend", rocksdb)
        elif any(family.name != "default" for store in operator.stores for family in store.families):
            yield _refusal(operator, "Spark has no join state of version 3 on the hashmap backend", rocksdb)
        elif (codec := codec_of(self.conf)) not in HASHMAP_CODECS:
            yield _refusal(
                operator,
                f"its state is compressed with {codec}, and weir writes hashmap files only with "
                f"{' or '.join(HASHMAP_CODECS)}",
                "leave parallelism and state backend as they are",
            )
        elif self.conf.get(ROW_CHECKSUM) == "true":
            yield _refusal(
                operator,
                "its rows carry checksums, and the hashmap files that weir writes have none",
                "leave parallelism and state backend as they are",
            )
        elif self.there == "hashmap" and self.partitions != int(self.conf[PARTITIONS]):
            yield from self._keys(operator)

    def _keys(self, operator: Operator) -> Iterator[StateRefusal]:
        """Own code says where a key of the hashmap backend belongs; it must know the key's types."""
        for store in operator.stores:
            unknown = rows.check({"fields": key_fields(store)[: partition_columns(operator, store)]})
            if unknown:
                yield _refusal(
                    operator,
                    f"weir does not know where the hashmap backend keeps keys of type {unknown}",
                    "convert it to rocksdb with the same parallelism first, then rescale it",
                )


def _refusal(operator: Operator, why: str, hint: str) -> StateRefusal:
    return StateRefusal(operator.id, operator.kind, why, hint)

"""Operators and shapes for tests of restore plans, made of few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weir.protocol.operators import Family, StateStore
from weir.protocol.shape import Computed, PlannedOperator, PlannedSource, Shape

CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}
COUNT = Computed(text="count(1)", columns=1, start=(0,))
SUM = Computed(text="sum(v)", columns=1, start=(None,))
AVERAGE = Computed(text="avg(v)", columns=2, start=(0.0, 0))
_TYPES = {"count(1)": ["long"], "sum(v)": ["long"], "sum(w)": ["long"], "avg(v)": ["double", "long"]}


def schema(text: str) -> dict[str, Any]:
    """Of `k string, v long`."""
    fields = [field.split() for field in text.split(", ") if field]
    return {
        "type": "struct",
        "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in fields],
    }


def operator(
    id: int,
    kind: str,
    key: str,
    value: str,
    keys: Sequence[str] = (),
    reads: Sequence[str] = ("reads json /in",),
    computes: Sequence[Computed] = (),
    **more: Any,
) -> PlannedOperator:
    family = Family(key_schema=schema(key), value_schema=schema(value))
    return PlannedOperator(
        id=id,
        kind=kind,
        stores=(StateStore(name="default", families=(family,)),),
        partitions=2,
        keys=tuple(keys),
        computes=tuple(computes),
        reads=tuple(reads),
        sources=tuple(line.removeprefix("reads ") for line in reads if line.startswith("reads ")),
        **more,
    )


def dedup(id: int, *reads: str, key: str = "id") -> PlannedOperator:
    below = reads or ("reads json /in",)
    return operator(id, "dedupe", f"{key} long", "__dummy__ void", keys=[key], reads=below)


def aggregation(
    id: int, *computes: Computed, key: str = "k", reads: Sequence[str] = ("reads json /in",)
) -> PlannedOperator:
    made = computes or (COUNT,)
    columns = [f"{one.text.partition('(')[0]}{i} {t}" for one in made for i, t in enumerate(_TYPES[one.text])]
    value = ", ".join(columns)
    return operator(id, "stateStoreSave", f"{key} string", value, [key], reads, made)


def shape(*operators: PlannedOperator, sources: Sequence[str] = ("json /in",), **more: Any) -> Shape:
    named = tuple(PlannedSource(name=name) for name in sources)
    return Shape(operators=operators, sources=named, **{"spark": "4.3.0", **more})


def unknown(operator: PlannedOperator) -> PlannedOperator:
    """As the files alone tell of it."""
    return operator.model_copy(update={"keys": (), "computes": (), "reads": (), "sources": ()})

"""Whether the state of one operator can be that of another, and how well the two agree.

Spark looks at the kind and at the types of keys and values, by their order; names and what is computed
do not count for it. Here they do: what Spark would take without a word, and is not the same, is told.
Pure: two operators in, an answer out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from weir.protocol.operators import Family, Operator, StateStore
from weir.protocol.shapes import Computed, PlannedOperator

_AGGREGATIONS = {"stateStoreSave", "StatefulStreamlineAggregate"}
_SESSIONS = "sessionWindowStateStoreSaveExec"
_WIDTH = 70


class Level(IntEnum):
    """How well the state of one operator fits another one, best first."""

    SAME = 0
    """Kind, names and types are the same."""
    ACCEPTED = 1
    """Columns have other names; Spark takes it."""
    RESHAPED = 2
    """An aggregation that keeps other columns for the same keys."""
    MISFIT = 3
    """Of the same kind, and Spark would refuse it."""
    OTHER = 4
    """Of another kind."""


@dataclass(frozen=True)
class Fit:
    """How the state of one operator fits another one."""

    level: Level
    why: str = ""
    """What does not fit, or is called otherwise."""
    lost: tuple[str, ...] = ()
    """State variables that the new operator does not have."""


def fit(old: Operator, new: Operator, *, evolving: bool = False) -> Fit:
    """How the state of `old` fits `new`; `evolving` when its values may gain fields (avro encoding)."""
    if old.kind != new.kind and not {old.kind, new.kind} <= _AGGREGATIONS:
        return Fit(Level.OTHER)
    why = next(_misfits(old, new, evolving), "")
    if why:
        reshapable = new.kind in _AGGREGATIONS | {_SESSIONS} and _keys_fit(old, new)
        return Fit(Level.RESHAPED if reshapable else Level.MISFIT, why)
    renamed = next(_renamed(old, new), "")
    return Fit(Level.ACCEPTED if renamed else Level.SAME, renamed, tuple(_lost_variables(old, new)))


def similarity(old: PlannedOperator, new: PlannedOperator) -> float:
    """How much of what tells the two apart is the same: 1 for all, 0 when they share no source."""
    if not set(old.sources) & set(new.sources):
        return 0.0
    mine, its = Counter(old.evidence), Counter(new.evidence)
    return (mine & its).total() / (mine | its).total()


@dataclass(frozen=True)
class Reshape:
    """What becomes of the value of an aggregation that keeps other columns."""

    fields: tuple[int | None, ...]
    """For each column of the new value the one of the old; None for one that begins anew."""
    fresh: tuple[Any, ...]
    """What the columns begin with that begin anew; None for the others."""
    started: tuple[str, ...]
    lost: tuple[str, ...]


def reshape(old: PlannedOperator, new: PlannedOperator) -> Reshape | str:
    """How the value of an aggregation becomes that of another one, or why it can't.

    A function is the same when its text is: only then are its columns taken over.
    """
    before, after = _columns(old), _columns(new)
    if before is None or after is None:
        return "the savepoint does not tell what each column of its value is"
    if before.start != after.start or _types(old)[: before.start] != _types(new)[: after.start]:
        return "its value holds other columns besides what it computes"
    taken = {
        one.text: before.of[one.text]
        for one in new.computes
        if one.text in before.of
        and _types_at(old, before.of[one.text], one) == _types_at(new, after.of[one.text], one)
    }
    if not taken:
        return "nothing of what it has computed is left"
    fields: list[int | None] = list(range(before.start))
    fresh: list[Any] = [None] * before.start
    for one in new.computes:
        if one.text in taken:
            fields += range(taken[one.text], taken[one.text] + one.columns)
            fresh += [None] * one.columns
        elif one.start is None:
            return f"Spark does not tell what {one.text} begins with"
        else:
            fields += [None] * one.columns
            fresh += one.start
    return Reshape(
        fields=tuple(fields),
        fresh=tuple(fresh),
        started=tuple(one.text for one in new.computes if one.text not in taken),
        lost=tuple(one.text for one in old.computes if one.text not in taken),
    )


@dataclass(frozen=True)
class _Columns:
    start: int
    """So many columns of the value come before what is computed."""
    of: Mapping[str, int]
    """The first column of each function."""


def _columns(operator: PlannedOperator) -> _Columns | None:
    computed = sum(one.columns for one in operator.computes)
    start = len(_types(operator)) - computed
    if not operator.computes or start < 0:
        return None
    at, of = start, {}
    for one in operator.computes:
        of[one.text] = at
        at += one.columns
    return _Columns(start, of)


def _types_at(operator: Operator, at: int, one: Computed) -> list[Any]:
    return _types(operator)[at : at + one.columns]


def _types(operator: Operator) -> list[Any]:
    """The types of the columns of the value."""
    schema = operator.stores[0].value_schema if operator.stores else None
    return [bare(field["type"]) for field in schema["fields"]] if schema else []


def _misfits(old: Operator, new: Operator, evolving: bool) -> Iterator[str]:
    """What Spark would refuse, in words; nothing when it takes the state."""
    for name in ("timeMode", "outputMode"):
        was, now = old.properties.get(name), new.properties.get(name)
        if was != now:
            yield f"its {name} was {was}, is now {now}"
    variables, now_variables = _variables(old), _variables(new)
    for name in variables.keys() & now_variables.keys():
        if variables[name] != now_variables[name]:
            yield f"its state variable {name} was a {variables[name]}, is now a {now_variables[name]}"
    before, after = {s.name: s for s in old.stores}, {s.name: s for s in new.stores}
    if before.keys() != after.keys():
        yield f"its stores were {', '.join(before)}, are now {', '.join(after)}"
    for name in before.keys() & after.keys():
        for one, other in _common(before[name], after[name]):
            yield from _schema_misfits(name, one, other, evolving)


def _schema_misfits(store: str, old: Family, new: Family, evolving: bool) -> Iterator[str]:
    where = "" if old.name == "default" and store == "default" else f" in {_place(store, old)}"
    if _differ(old.key_schema, new.key_schema):
        yield f"its key{where} was ({ddl(old.key_schema)}), is now ({ddl(new.key_schema)})"
    if _differ(old.user_key_schema, new.user_key_schema):
        yield f"the map key{where} was ({ddl(old.user_key_schema)}), is now ({ddl(new.user_key_schema)})"
    if not evolving and _differ(old.value_schema, new.value_schema):
        yield f"its value{where} was ({ddl(old.value_schema)}), is now ({ddl(new.value_schema)})"


def _renamed(old: Operator, new: Operator) -> Iterator[str]:
    after = {store.name: store for store in new.stores}
    for store in old.stores:
        for one, other in _common(store, after[store.name]):
            for what, was, now in (
                ("key", one.key_schema, other.key_schema),
                ("value", one.value_schema, other.value_schema),
            ):
                if _names(was) != _names(now):
                    yield f"its {what} was ({ddl(was)}), is now ({ddl(now)})"


def _keys_fit(old: Operator, new: Operator) -> bool:
    pairs = zip(old.stores, new.stores, strict=False)
    return all(not _differ(one.key_schema, other.key_schema) for one, other in pairs)


def _common(old: StateStore, new: StateStore) -> Iterator[tuple[Family, Family]]:
    after = {family.name: family for family in new.families}
    for family in old.families:
        if family.name in after:
            yield family, after[family.name]


def _differ(stored: Mapping[str, Any] | None, schema: Mapping[str, Any] | None) -> bool:
    """As Spark compares: types by their order, and null only where null was possible."""
    if stored is None or schema is None:
        return False
    if bare(stored) != bare(schema):
        return True
    fields = zip(stored["fields"], schema["fields"], strict=True)
    return any(now["nullable"] and not was["nullable"] for was, now in fields)


def bare(type: Any) -> Any:
    """A type of Spark's JSON without names, nullability and metadata."""
    if not isinstance(type, Mapping):
        return type
    if type["type"] == "struct":
        return ["struct", *(bare(field["type"]) for field in type["fields"])]
    if type["type"] == "array":
        return ["array", bare(type["elementType"])]
    if type["type"] == "map":
        return ["map", bare(type["keyType"]), bare(type["valueType"])]
    return bare(type.get("sqlType", type["type"]))


def ddl(schema: Mapping[str, Any] | None) -> str:
    """A schema for people."""
    fields = schema["fields"] if schema else []
    text = ", ".join(f"{field['name']} {_type_name(field['type'])}" for field in fields)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."


def _type_name(type: Any) -> str:
    return str(type["type"]) if isinstance(type, Mapping) else {"long": "bigint"}.get(str(type), str(type))


def _names(schema: Mapping[str, Any] | None) -> Sequence[str]:
    return [field["name"] for field in schema["fields"]] if schema else []


def _place(store: str, family: Family) -> str:
    return store if family.name == "default" else family.name


def _variables(operator: Operator) -> dict[str, str]:
    listed = operator.properties.get("stateVariables") or []
    return {one["stateName"]: one["stateVariableType"] for one in listed}


def _lost_variables(old: Operator, new: Operator) -> Iterator[str]:
    now = _variables(new)
    return (f"state variable {name}" for name in _variables(old) if name not in now)

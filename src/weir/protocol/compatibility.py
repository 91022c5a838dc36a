"""Whether the state of one operator can be that of another, and how well the two agree.

Spark looks at the kind and at the types of keys and values, by their order; names and what is computed
do not count for it. Here they do: what Spark would accept silently, and is not the same, is reported.
Pure: two operators in, an answer out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from weir.protocol.operators import Family, Operator, StateStore
from weir.protocol.shape import Computed, PlannedOperator

_AGGREGATIONS = {"stateStoreSave", "StatefulStreamlineAggregate"}
_SESSIONS = "sessionWindowStateStoreSaveExec"
_KEYED = _AGGREGATIONS | {"dedupe", "dedupeWithinWatermark"}
"""Operators whose state has one store, and in its key one column for each expression that they go by."""
_INTEGERS = ("byte", "short", "integer", "long")
_WIDENS = re.compile(r"cast\(((?:[^()]|\([^()]*\))*) as bigint\)")
_EXACT = re.compile(r"(sum|max|min|first|last)\(")
"""Functions that give the same for an integer and for the same integer as a bigint."""
_WIDTH = 200


class FitLevel(IntEnum):
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

    level: FitLevel
    why: str = ""
    """What does not fit, or is called otherwise."""
    lost: tuple[str, ...] = ()
    """State variables that the new operator does not have."""
    swapped: str = ""
    """Fields of a struct that changed places and have one type: Spark would take one for the other."""
    rekey: Rekey | None = None
    """What becomes of its keys, where they are the same ones in another order, or as longer integers."""


@dataclass(frozen=True)
class Rekey:
    """What becomes of the keys of an operator."""

    fields: tuple[int, ...]
    """For each column of the new key the one of the old."""
    why: str
    """What changed, for people."""


def fit(old: Operator, new: Operator, *, evolving: bool = False) -> Fit:
    """How the state of `old` fits `new`; `evolving` when its values may gain fields (avro encoding)."""
    if old.kind != new.kind and not {old.kind, new.kind} <= _AGGREGATIONS:
        return Fit(FitLevel.OTHER)
    other = rekey(old, new)
    compared = old if other is None else _with_key(old, new)
    why = next(_misfits(compared, new, evolving), "")
    if why:
        keyed = zip(compared.stores, new.stores, strict=False)
        same_keys = not any(_differ(one.key_schema, other.key_schema) for one, other in keyed)
        reshapable = same_keys and new.kind in _AGGREGATIONS | {_SESSIONS}
        return Fit(FitLevel.RESHAPED if reshapable else FitLevel.MISFIT, why, rekey=other)
    if other is not None:
        return Fit(FitLevel.RESHAPED, other.why, rekey=other)
    renamed = next(_renamed(old, new), "")
    level = FitLevel.ACCEPTED if renamed else FitLevel.SAME
    now = _variables(new)
    lost = tuple(f"state variable {name}" for name in _variables(old) if name not in now)
    return Fit(level, renamed, lost, next(_swapped(old, new), ""))


def rekey(old: Operator, new: Operator) -> Rekey | None:
    """How the keys of an operator become those of another; None where they stay, or are other ones.

    Only where each column of the key is known by what it is computed from, and the value does not
    hold the key once more, as Spark's older format of an aggregation does.
    """
    if not (isinstance(old, PlannedOperator) and isinstance(new, PlannedOperator)):
        return None
    if old.kind not in _KEYED or len(old.stores) != 1 or len(new.stores) != 1:
        return None
    before, after = _key_types(old), _key_types(new)
    if not len(before) == len(after) == len(old.keys) == len(new.keys):
        return None
    held = _columns(old)
    if held is not None and held.start:
        return None
    was, now = [_plain(key) for key in old.keys], [_plain(key) for key in new.keys]
    if len(set(was)) < len(was) or set(was) != set(now):
        return None
    fields = tuple(was.index(key) for key in now)
    pairs = [(before[at], after[number], number) for number, at in enumerate(fields)]
    if not all(one == other or _widens(one, other) for one, other, _ in pairs):
        return None
    changes = []
    if fields != tuple(range(len(fields))):
        changes.append(f"its keys changed their order: {', '.join(old.keys)} became {', '.join(new.keys)}")
    for one, other, number in pairs:
        if one != other:
            changes.append(f"its key {now[number]} was {_type_name(one)}, is now {_type_name(other)}")
    return Rekey(fields, "; ".join(changes)) if changes else None


def is_reordered(old: PlannedOperator, new: PlannedOperator) -> bool:
    """Whether both go by the same keys, in another order."""
    return old.keys != new.keys and Counter(old.keys) == Counter(new.keys)


def same_functions(old: PlannedOperator, new: PlannedOperator) -> bool:
    """Whether both compute the same, in whatever order; a cast to bigint of integers changes nothing."""
    return Counter(_functions(old)) == Counter(_functions(new))


def _functions(operator: PlannedOperator) -> list[str]:
    held = _columns(operator)
    if held is None:
        return [one.text for one in operator.computes]
    return [
        _plain(one.text) if _is_exact(one, _types_at(operator, held.of[one.text], one)) else one.text
        for one in operator.computes
    ]


def _is_exact(one: Computed, types: Sequence[Any]) -> bool:
    return _EXACT.match(one.text) is not None and all(type in (*_INTEGERS, "boolean") for type in types)


def _plain(text: str) -> str:
    """A text without casts to bigint."""
    while (made := _WIDENS.sub(r"\1", text)) != text:
        text = made
    return text


def _widens(old: Any, new: Any) -> bool:
    """Whether each value of one type is one of the other, only longer."""
    return new == "long" and old in _INTEGERS


def _with_key(old: Operator, new: Operator) -> Operator:
    """The old operator with the key of the new one."""
    family = old.stores[0].families[0].model_copy(update={"key_schema": new.stores[0].key_schema})
    store = old.stores[0].model_copy(update={"families": (family, *old.stores[0].families[1:])})
    return old.model_copy(update={"stores": (store,)})


def _key_types(operator: Operator) -> list[Any]:
    schema = operator.stores[0].key_schema
    return [bare(field["type"]) for field in schema["fields"]] if schema else []


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
    """For each column of the new value the one of the old; None for one that starts empty."""
    fresh: tuple[Any, ...]
    """What the columns that start empty begin with; None for the others."""
    started: tuple[str, ...]
    lost: tuple[str, ...]
    widened: tuple[str, ...] = ()
    """Functions whose integers become longer ones."""


def reshape(old: PlannedOperator, new: PlannedOperator) -> Reshape | str:
    """How the value of an aggregation becomes that of another one, or why it can't.

    A function is the same when its text is, but for a cast of integers to bigint: only then are its
    columns taken over.
    """
    before, after = _columns(old), _columns(new)
    if before is None or after is None:
        return "the savepoint does not record what each column of its value is"
    if before.start != after.start or _types(old)[: before.start] != _types(new)[: after.start]:
        return "its value holds other columns besides what it computes"
    taken, widened = _taken(old, new, before, after)
    if not taken:
        return "nothing that it computed is left"
    kept = set(taken.values())
    fields: list[int | None] = list(range(before.start))
    fresh: list[Any] = [None] * before.start
    for one in new.computes:
        if one.text in taken:
            fields += range(taken[one.text], taken[one.text] + one.columns)
            fresh += [None] * one.columns
        elif one.start is None:
            return f"Spark does not report what {one.text} begins with"
        else:
            fields += [None] * one.columns
            fresh += one.start
    return Reshape(
        fields=tuple(fields),
        fresh=tuple(fresh),
        started=tuple(one.text for one in new.computes if one.text not in taken),
        lost=tuple(one.text for one in old.computes if before.of[one.text] not in kept),
        widened=widened,
    )


def _taken(
    old: PlannedOperator, new: PlannedOperator, before: _Columns, after: _Columns
) -> tuple[dict[str, int], tuple[str, ...]]:
    """For each function that continues: its first column in the old value; and those that get longer."""
    taken: dict[str, int] = {}
    for one in new.computes:
        at = before.of.get(one.text)
        if at is not None and _types_at(old, at, one) == _types_at(new, after.of[one.text], one):
            taken[one.text] = at
    widened = []
    for one in (one for one in new.computes if one.text not in taken):
        wide = _types_at(new, after.of[one.text], one)
        for other in old.computes:
            at = before.of[other.text]
            narrow = _types_at(old, at, other)
            same = _plain(one.text) == _plain(other.text) and one.columns == other.columns
            longer = len(narrow) == len(wide) and all(
                a == b or _widens(a, b) for a, b in zip(narrow, wide, strict=True)
            )
            if same and longer and _is_exact(other, narrow) and at not in taken.values():
                taken[one.text] = at
                if narrow != wide:
                    widened.append(one.text)
                break
    return taken, tuple(widened)


@dataclass(frozen=True)
class _Columns:
    start: int
    """How many columns of the value come before what is computed."""
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
    """What Spark would refuse, for people; nothing when it takes the state."""
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
            plain = one.name == "default" and name == "default"
            if plain and _differ(one.key_schema, other.key_schema):
                was, now = _key_text(old, one.key_schema), _key_text(new, other.key_schema)
                yield f"its key was ({was}), is now ({now})"
            where = "" if plain else f" in {name if one.name == 'default' else one.name}"
            yield from _schema_misfits(where, one, other, evolving)


def _key_text(operator: Operator, schema: Mapping[str, Any] | None) -> str:
    """A key for people: by what its columns are computed from, which Spark's own names do not tell."""
    keys = operator.keys if isinstance(operator, PlannedOperator) else ()
    fields = schema["fields"] if schema else []
    if len(keys) != len(fields):
        return ddl(schema)
    return ", ".join(f"{key} {_type_name(one['type'])}" for key, one in zip(keys, fields, strict=True))


def _schema_misfits(where: str, old: Family, new: Family, evolving: bool) -> Iterator[str]:
    if where and _differ(old.key_schema, new.key_schema):
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


def _swapped(old: Operator, new: Operator) -> Iterator[str]:
    """Fields of the value that changed places, of operators that keep what the author names."""
    if old.kind in _KEYED | {_SESSIONS}:
        return  # an aggregation names its columns itself
    after = {store.name: store for store in new.stores}
    for store in old.stores:
        for one, other in _common(store, after[store.name]):
            for was, now in zip(_structs(one.value_schema), _structs(other.value_schema), strict=False):
                if was != now and Counter(was) == Counter(now):
                    yield f"its fields {', '.join(was)} became {', '.join(now)}"


def _structs(type: Any) -> Iterator[tuple[str, ...]]:
    """The names of the fields of each struct in a type, outermost first."""
    if not isinstance(type, Mapping):
        return
    if type["type"] == "struct":
        yield tuple(field["name"] for field in type["fields"])
        for field in type["fields"]:
            yield from _structs(field["type"])
    for inner in ("elementType", "keyType", "valueType", "sqlType"):
        if inner in type:
            yield from _structs(type[inner])


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
    if not isinstance(type, Mapping):
        return {"long": "bigint"}.get(str(type), str(type))
    if type["type"] == "struct":
        inner = ", ".join(f"{field['name']} {_type_name(field['type'])}" for field in type["fields"])
        return f"struct<{inner}>"
    if type["type"] == "array":
        return f"array<{_type_name(type['elementType'])}>"
    if type["type"] == "map":
        return f"map<{_type_name(type['keyType'])}, {_type_name(type['valueType'])}>"
    return _type_name(type.get("sqlType", str(type["type"])))


def _names(schema: Mapping[str, Any] | None) -> Sequence[tuple[str, ...]]:
    return list(_structs(schema))


def _variables(operator: Operator) -> dict[str, str]:
    listed = operator.properties.get("stateVariables") or []
    return {one["stateName"]: one["stateVariableType"] for one in listed}

"""The operators that keep state in a query, read from its checkpointLocation alone, without Spark.

Spark numbers operators from the sink upwards and describes each in `state/<id>/_metadata`; the schema
of its keys and values is in files beside its state. All of it is as of one committed batch. Nothing
here writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from weir.ids import BatchId
from weir.protocol.operators import Family, Operator, StateStore
from weir.spark.closure import GoneError, closure
from weir.spark.logs import OperatorEntry, schema_files
from weir.spark.state_schema import Columns, read_schemas

__all__ = ["Family", "Operator", "StateStore", "described", "operators"]


def operators(root: Path, batch: BatchId) -> tuple[Operator, ...]:
    """The operators of a committed batch of the query whose checkpointLocation is `root`, by id.

    Raises `GoneError` when a file of the batch is not there.
    """
    try:
        sizes = {name: (root / name).stat().st_size for name in closure(root, batch).files}
        return described(sizes, lambda name: (root / name).read_bytes())
    except FileNotFoundError as error:
        raise GoneError(str(error.filename)) from error


def described(sizes: Mapping[str, int], read: Callable[[str], bytes]) -> tuple[Operator, ...]:
    """The operators whose state consists of these files, the closure of one batch, with their sizes."""
    found = sorted({int(name.split("/")[1]) for name in sizes if name.startswith("state/")})
    return tuple(_operator(id, sizes, read) for id in found)


def _operator(id: int, sizes: Mapping[str, int], read: Callable[[str], bytes]) -> Operator:
    folder = f"state/{id}"
    needed = [name for name in sizes if name.startswith(f"{folder}/")]
    description = next(name for name in needed if name.startswith(f"{folder}/_metadata/"))
    entry = OperatorEntry.parse(read(description))
    partitions = {name.split("/")[2] for name in needed} - {"_metadata", "_stateSchema"}
    return Operator(
        id=id,
        kind=entry.kind,
        stores=tuple(_store(folder, store, needed, read) for store in entry.stores),
        partitions=len(partitions),
        properties=entry.properties,
        bytes=sum(sizes[name] for name in needed),
    )


def _store(folder: str, store: dict[str, Any], needed: list[str], read: Callable[[str], bytes]) -> StateStore:
    name = store["storeName"]
    inner = "" if name == "default" else f"/{name}"
    files = schema_files(store, folder)[-1:] or [f"{folder}/0{inner}/_metadata/schema"]
    found = [columns for file in files if file in needed for columns in read_schemas(read(file))]
    prefix = store.get("numColsPrefixKey", 0)
    return StateStore(name=name, prefix_columns=prefix, families=tuple(map(_family, found)))


def _family(columns: Columns) -> Family:
    return Family(
        name=columns.family,
        key_schema=columns.key,
        value_schema=columns.value,
        key_encoder=columns.encoder,
        user_key_schema=columns.user_key,
    )

"""The operators that keep state in a query, read from its checkpointLocation alone, without Spark.

Spark numbers operators from the sink upwards and describes each in `state/<id>/_metadata`; the schema
of its keys and values is in files beside its state. All of it is as of one committed batch. Nothing
here writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from weir.ids import BatchId
from weir.protocol.operators import Family, Operator, StateStore
from weir.spark.closure import GoneError, closure
from weir.spark.schemas import Columns, read_schemas

__all__ = ["Family", "Operator", "StateStore", "operators"]


def operators(root: Path, batch: BatchId) -> tuple[Operator, ...]:
    """The operators of a committed batch of the query whose checkpointLocation is `root`, by id.

    Raises `GoneError` when a file of the batch is not there.
    """
    needed = closure(root, batch).files
    found = sorted({int(name.split("/")[1]) for name in needed if name.startswith("state/")})
    return tuple(_operator(root, id, [n for n in needed if n.startswith(f"state/{id}/")]) for id in found)


def _operator(root: Path, id: int, needed: list[str]) -> Operator:
    folder = f"state/{id}"
    description = next(name for name in needed if name.startswith(f"{folder}/_metadata/"))
    metadata = json.loads(_read(root / description).decode().split("\n", 1)[1])
    stores = metadata["stateStoreInfo"]
    partitions = {name.split("/")[2] for name in needed} - {"_metadata", "_stateSchema"}
    properties = metadata.get("operatorPropertiesJson")
    return Operator(
        id=id,
        kind=metadata["operatorInfo"]["operatorName"],
        stores=tuple(_store(root, folder, store) for store in stores),
        partitions=len(partitions),
        properties=json.loads(properties) if properties else {},
        bytes=sum(_size(root / name) for name in needed),
    )


def _store(root: Path, folder: str, store: dict[str, Any]) -> StateStore:
    name = store["storeName"]
    named = store.get("stateSchemaFilePaths") or []
    if named:
        file = root / folder / "_stateSchema" / named[-1].split("/_stateSchema/")[1]
    else:
        inner = "" if name == "default" else f"/{name}"
        file = root / f"{folder}/0{inner}/_metadata/schema"
    found = read_schemas(_read(file)) if named or file.exists() else []
    return StateStore(
        name=name,
        prefix_columns=store.get("numColsPrefixKey", 0),
        families=tuple(map(_family, found)),
    )


def _family(columns: Columns) -> Family:
    return Family(
        name=columns.family,
        key_schema=columns.key,
        value_schema=columns.value,
        key_encoder=columns.encoder,
        user_key_schema=columns.user_key,
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise GoneError(str(path)) from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError as error:
        raise GoneError(str(path)) from error

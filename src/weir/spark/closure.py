"""The files that a committed batch needs to be started from again, and nothing else.

Committed batch N has state version N + 1 in every store. Its closure is found from names,
`offsets/<N>`, `commits/<N>`, the snapshot zips and (state format 2) the changelog headers; every
file in it is immutable. Maintenance may take a file away between listing and use: then `GoneError`
is raised, and the closure of a newer batch is taken instead. The facts are proven in the project's
experiments on Spark 4.3 (117 of 117 copies restarted exactly).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weir.ids import BatchId
from weir.spark.changelog import lineage
from weir.spark.layout import HASHMAP
from weir.spark.zips import members
from weir.storage.members import is_safe

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_PARTITIONS = "spark.sql.shuffle.partitions"


class GoneError(Exception):
    """A file of the closure vanished under the reader; take that of a newer batch."""

    why = "Spark purged it before it was kept (raise spark.sql.streaming.minBatchesToRetain)"


@dataclass(frozen=True)
class Closure:
    """The files of one batch, relative to the checkpointLocation, in a fixed order."""

    batch: BatchId
    files: tuple[str, ...]


def closure(root: Path, batch: BatchId) -> Closure:
    """The closure of a committed batch of the query whose checkpointLocation is `root`."""
    names = tuple(dict.fromkeys(_Reader(root, batch).files()))
    for name in names:  # what Spark's files say of each other may be anybody's, in a restored job
        if not is_safe(name):
            raise ValueError(f"{name!r} is named, which is no file of a query")
    return Closure(batch, names)


class _Reader:
    def __init__(self, root: Path, batch: BatchId) -> None:
        self._root = root
        self._batch = batch
        self._offsets = self._text(f"offsets/{batch}").split("\n")
        self._conf: dict[str, str] = json.loads(self._offsets[1])["conf"]
        commit = self._text(f"commits/{batch}").split("\n")
        self._ids: dict[str, Any] = (
            json.loads(commit[1] if len(commit) > 1 else "{}").get("stateUniqueIds") or {}
        )

    def files(self) -> Iterator[str]:
        yield "metadata"
        yield f"offsets/{self._batch}"
        yield f"commits/{self._batch}"
        if self._batch > 0:
            yield f"offsets/{self._batch - 1}"
        yield from self._sources()
        for operator in sorted(self._numbers("state"), key=int):
            yield from self._operator(operator)

    def _sources(self) -> Iterator[str]:
        ends = dict(self._ends())
        folders = self._list("sources")
        shared = {name for name in ends if name.isdigit()} != {name for name in folders if name.isdigit()}
        for source in sorted(folders):
            last = _log_offset(ends.get(source, "-"))
            if shared and source.isdigit():
                # A frame that is used twice has two lines in the offset log and one folder, so the folders
                # behind it have lower numbers than their lines. Too much of a log does no harm, too little
                # loses its files: the furthest line that may be this folder's counts.
                later = [_log_offset(end) for name, end in ends.items() if int(name) >= int(source)]
                last = max((one for one in later if one is not None), default=last)
            for name in _source_log(self._list(f"sources/{source}"), last):
                yield f"sources/{source}/{name}"

    def _ends(self) -> Iterator[tuple[str, str]]:
        """The end offset of each source, by its number or (format 2 of the log) by its name."""
        for number, line in enumerate(self._offsets[2:]):
            if self._offsets[0] == "v1":
                yield str(number), line
            elif line:
                name, _, offset = line.partition(":")
                yield name, offset

    def _operator(self, operator: str) -> Iterator[str]:
        folder = f"state/{operator}"
        metadata = self._metadata(folder)
        yield metadata
        stores = json.loads(self._text(metadata).split("\n", 1)[1])["stateStoreInfo"]
        for store in stores:
            for path in store.get("stateSchemaFilePaths", []):
                yield f"{folder}/_stateSchema/" + path.split("/_stateSchema/")[1]
        limit = int(self._conf.get(_PARTITIONS, 2**31))
        for partition in sorted(map(int, self._numbers(folder))):
            if partition < limit:
                for number, store in enumerate(stores):
                    yield from self._store(operator, partition, number, store["storeName"])

    def _metadata(self, folder: str) -> str:
        if self._exists(f"{folder}/_metadata/metadata"):
            return f"{folder}/_metadata/metadata"
        usable = [b for b in map(int, self._numbers(f"{folder}/_metadata/v2")) if b <= self._batch]
        if not usable:
            raise GoneError(f"{folder}/_metadata")
        return f"{folder}/_metadata/v2/{max(usable)}"

    def _store(self, operator: str, partition: int, number: int, name: str) -> Iterator[str]:
        folder = f"state/{operator}/{partition}" + ("" if name == "default" else f"/{name}")
        names = set(self._list(folder))
        ids = self._ids.get(operator)
        if ids is not None and partition >= len(ids):
            return
        for file in self._versions(folder, names, ids[partition][number] if ids else None):
            yield f"{folder}/{file}"
            if f"{file}.crc" in names:
                yield f"{folder}/{file}.crc"
        if self._exists(f"{folder}/_metadata/schema"):
            yield f"{folder}/_metadata/schema"

    def _versions(self, folder: str, names: set[str], uid: str | None) -> Iterator[str]:
        """The files with which version batch + 1 of one store can be loaded."""
        version = self._batch + 1
        if self._conf[_PROVIDER] == HASHMAP:
            start = _newest(names, r"(\d+)\.snapshot", version)
            yield from [f"{start}.snapshot"] if start else []
            yield from (f"{v}.delta" for v in range(start + 1, version + 1))
        elif uid is None:
            start = _newest(names, r"(\d+)\.zip", version)
            yield from self._zip(folder, f"{start}.zip") if start else []
            yield from (f"{v}.changelog" for v in range(start + 1, version + 1))
        elif f"{version}_{uid}.zip" in names:
            yield from self._zip(folder, f"{version}_{uid}.zip")
        else:
            ids = self._lineage(f"{folder}/{version}_{uid}.changelog") | {version: uid}
            start = max((v for v, u in ids.items() if f"{v}_{u}.zip" in names), default=0)
            if not start and (oldest := min(ids)) > 1:  # the snapshot that its lineage begins with is gone
                raise GoneError(f"{folder}/{oldest}_{ids[oldest]}.zip")
            yield from self._zip(folder, f"{start}_{ids[start]}.zip") if start else []
            yield from (f"{v}_{ids[v]}.changelog" for v in range(start + 1, version + 1))

    def _zip(self, folder: str, name: str) -> Iterator[str]:
        yield name
        try:
            yield from members(self._root / folder / name)
        except FileNotFoundError as error:
            raise GoneError(f"{folder}/{name}") from error

    def _lineage(self, path: str) -> dict[int, str]:
        try:
            return lineage(self._root / path)
        except FileNotFoundError as error:
            raise GoneError(path) from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def _text(self, path: str) -> str:
        try:
            return (self._root / path).read_text()
        except FileNotFoundError as error:
            raise GoneError(path) from error

    def _exists(self, path: str) -> bool:
        return os.path.exists(f"{self._root}/{path}")

    def _list(self, folder: str) -> list[str]:
        try:
            return [name for name in os.listdir(f"{self._root}/{folder}") if not name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _numbers(self, folder: str) -> list[str]:
        return [name for name in self._list(folder) if name.isdigit()]


def _log_offset(end: str) -> int | None:
    found = json.loads(end).get("logOffset") if end.startswith("{") else None
    return found if isinstance(found, int) else None


def _newest(names: set[str], pattern: str, limit: int) -> int:
    found = (re.fullmatch(pattern, name) for name in names)
    return max((int(match[1]) for match in found if match and int(match[1]) <= limit), default=0)


def _source_log(names: list[str], last: int | None) -> list[str]:
    """A file source's log up to its end offset, from its newest compaction; else everything.

    Entries behind the end were planned and not committed: with them the first batch after a
    restore would take more than the batch that it repeats.
    """
    numbered = {int(n.removesuffix(".compact")): n for n in names if n.removesuffix(".compact").isdigit()}
    usable = {number: name for number, name in numbered.items() if last is None or number <= last}
    first = max((number for number, name in usable.items() if name.endswith(".compact")), default=-1)
    others = [name for name in names if name not in numbered.values()]
    return [usable[number] for number in sorted(usable) if number >= first] + sorted(others)

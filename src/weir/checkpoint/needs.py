"""Does a checkpoint or savepoint name all that its cut needs?

The files themselves say so: what a batch of Spark's consists of, and which files the entries of a channel
name. So a path that is changed or left out in a manifest is found, also in one without a checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import BinaryIO

from weir.channel.log import cut_files
from weir.errors import LostSegmentError
from weir.ids import NO_BATCH, BatchId
from weir.spark.closure import Listed, missing

Read = Callable[[], BinaryIO]


def left_out(
    batches: Mapping[str, int], channels: Mapping[str, tuple[int, int]], files: Mapping[str, Read]
) -> list[str]:
    """What is needed and not there, each with its path; nothing when all is.

    `batches` are the cuts of the queries, `channels` the entries that are kept of each: from the first up to
    the one before the second. The files must be intact.
    """
    found = []
    for name, batch in batches.items():
        if batch != NO_BATCH:
            found += _of_query(f"queries/{name}/", BatchId(batch), files)
    for name, (first, behind) in channels.items():
        found += _of_channel(f"channels/{name}/", first, behind, files)
    return found


def _of_query(folder: str, batch: BatchId, files: Mapping[str, Read]) -> list[str]:
    own = {path.removeprefix(folder): read for path, read in files.items() if path.startswith(folder)}
    try:
        lost = missing(Listed(own, lambda path: own[path]()), batch)
    except ValueError as error:
        return [f"{folder}offsets/{batch} can't be used: {error}"]
    return [f"{folder}{lost} is not in it"] if lost else []


def _of_channel(folder: str, first: int, behind: int, files: Mapping[str, Read]) -> list[str]:
    own = {path.removeprefix(folder): read for path, read in files.items() if path.startswith(folder)}
    try:
        needed = cut_files(_Kept(folder, own), first, behind)  # type: ignore[arg-type]
    except LostSegmentError as error:
        return [f"{error.fields['file']} {error.fields['wrong']}"]
    return [f"{folder}{name} is not in it" for name in needed if name not in own][:1]


class _Kept:
    """The files of a channel, as much of a store as a reader needs."""

    def __init__(self, folder: str, files: Mapping[str, Read]) -> None:
        self._folder = folder.rstrip("/")
        self._files = files

    @property
    def url(self) -> str:
        return self._folder

    def get(self, key: str) -> bytes | None:
        if key not in self._files:
            return None
        with self._files[key]() as file:
            return file.read()

    def exists(self, key: str) -> bool:
        return key in self._files

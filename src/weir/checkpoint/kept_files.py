"""The files of a completed checkpoint, wherever they are: in the pins, in a copy-dir, in its manifest.

A file counts only when its size and CRC are those of the manifest. What is damaged in one place is
taken from another. `damages` and `bring_all` are for any `PointFiles`: those of a checkpoint, a copy or a
savepoint. `edit_of` says what must change in a file that becomes a live one; `left_out`, whether a manifest
names all that its cut needs.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from weir.channel.log import cut_files
from weir.channel.position import Position
from weir.checkpoint.copies import Copies
from weir.checkpoint.manifest import File, Manifest
from weir.errors import DamagedCheckpointError, LostSegmentError
from weir.ids import NO_BATCH, BatchId, CheckpointId, Generation, JobName
from weir.spark.closure import Listed, missing
from weir.spark.logs import OffsetEntry, OperatorEntry, parsed_offset
from weir.storage import Store, files, paths
from weir.storage.files import NotPlainError, Sum, sum_of

_OPERATOR = re.compile(r"queries/([^/]+)/state/\d+/_metadata/v2/\d+")
_OFFSETS = re.compile(r"queries/([^/]+)/offsets/\d+")

Edit = Callable[[bytes], bytes]
"""What is made of the content of a file."""
Read = Callable[[], BinaryIO]


class PointFile(Protocol):
    """A file that a manifest names."""

    @property
    def path(self) -> str:
        """Below the generation, or below the savepoint."""


F = TypeVar("F", bound=PointFile)
F_contra = TypeVar("F_contra", bound=PointFile, contravariant=True)


class PointFiles(Protocol[F_contra]):
    """The files of a checkpoint (`KeptFiles`) or of a savepoint (`SavepointPlace`)."""

    def damage(self, file: F_contra) -> str | None:
        """What is wrong with a file, as a phrase that follows its name; None when it is intact."""

    def open(self, file: F_contra) -> BinaryIO:
        """Its content, to be read from the beginning."""

    def bring(self, file: F_contra, target: Path, edit: Edit | None) -> None:
        """Make the target this file, or what `edit` makes of it; safe to repeat, and to be killed in."""


def damages(
    kept: PointFiles[F], named: Iterable[F], manifest: Manifest, seen: Callable[[F], None] = lambda _: None
) -> list[str]:
    """What is wrong with the files that a point names, each with its path; nothing when it is intact.

    Reads every file; `seen` is called after each, from several threads. Of a manifest without a checksum it
    looks, too, whether the files are all that its cut needs.
    """
    listed = list(named)

    def look(file: F) -> str | None:
        damage = kept.damage(file)
        seen(file)
        return f"{file.path} {damage}" if damage else None

    found = [wrong for wrong in files.parallel(look, listed) if wrong]
    if found or manifest.format > 1:
        return found
    return left_out(manifest, {file.path: partial(kept.open, file) for file in listed})


def bring_all(
    kept: PointFiles[F], targets: Sequence[tuple[F, Path]], manifest: Manifest, generation: Path
) -> None:
    """Bring each file to its target, with what must change in a file of this generation (`edit_of`)."""
    for folder in {target.parent for _, target in targets}:
        folder.mkdir(parents=True, exist_ok=True)

    def bring(pair: tuple[F, Path]) -> None:
        file, target = pair
        kept.bring(file, target, edit_of(manifest, file.path, generation))

    files.parallel(bring, targets)


class KeptFiles:
    """The files of one checkpoint, to be verified and restored. For use from any thread."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self._manifest = manifest
        self._job = JobName(manifest.job)
        self._generation = Generation(manifest.generation)
        self._pins = files.folder_of(store) / paths.pins(self._job, self._generation)
        self._root = store.url
        self._copies = Copies(manifest.copied_to, self._job) if manifest.copied_to else None

    def damage(self, file: File) -> str | None:
        """What is wrong with a file, as a phrase that follows its name; None when it is intact somewhere."""
        if file.within:
            return _wrong(file, _inline(file))
        pinned = _wrong(file, self._pinned(file))
        if pinned is None or self._copies is None:
            return pinned
        copy = self._copies.checksum(self._generation, self._manifest.kept_at(file), file.bytes)
        copied = _wrong(file, copy)
        return None if copied is None else f"{pinned}, and its copy {copied}"

    def bring(self, file: File, target: Path, edit: Edit | None) -> None:
        """Make the target this file, or what `edit` makes of it; its folder must be there.

        Safe to repeat, and to be killed in: the target is complete or absent. A pin is linked, so the
        target must never be edited in place. Raises `DamagedCheckpointError`.
        """
        try:
            if edit is not None:
                files.write(target, edit(self.content(file)))
            elif file.within:
                files.write(target, self.content(file))
            elif not target.exists() or _wrong(file, files.checksum(target, file.bytes)):
                target.unlink(missing_ok=True)  # else it is this file already, from a try that was killed
                self._bring(file, target)
        except OSError as error:
            raise files.failed("restore", target, error, self._root) from error

    def _bring(self, file: File, target: Path) -> None:
        wrong = _wrong(file, self._pinned(file))
        if wrong is None:
            files.link(self.pin(file), target)
        elif self._copies is None:
            raise self._damaged(file, wrong)
        else:
            copy = self._copies.fetch(self._generation, self._manifest.kept_at(file), target, file.bytes)
            if (worse := _wrong(file, copy)) is not None:
                target.unlink(missing_ok=True)
                raise self._damaged(file, f"{wrong}, and its copy {worse}")

    def content(self, file: File) -> bytes:
        """Its content, from wherever it is intact; raises `DamagedCheckpointError`."""
        if file.within:
            if (wrong := _wrong(file, _inline(file))) is not None:
                raise self._damaged(file, wrong)
            return base64.b64decode(file.inline)
        if _wrong(file, self._pinned(file)) is None:
            data = self.pin(file).read_bytes()
        else:
            where = self._manifest.kept_at(file)
            data = (self._copies.read(self._generation, where) if self._copies else None) or b""
        if (wrong := _wrong(file, sum_of(data))) is not None:
            raise self._damaged(file, self.damage(file) or wrong)
        return data

    def open(self, file: File) -> BinaryIO:
        """Its content, to be read from the beginning; raises `DamagedCheckpointError` as `content` does."""
        if not file.within and _wrong(file, self._pinned(file)) is None:
            return files.opened(self.pin(file))
        return io.BytesIO(self.content(file))

    def pin(self, file: File) -> Path:
        """Where it is kept beside the live files, if it is there."""
        return self._pins / self._manifest.kept_at(file)

    def _pinned(self, file: File) -> Sum | None:
        pin = self.pin(file)
        try:
            return files.checksum(pin, file.bytes)
        except (FileNotFoundError, NotADirectoryError, NotPlainError):
            return None
        except OSError as error:
            raise files.failed("read", pin, error, self._root) from error

    def _damaged(self, file: File, wrong: str) -> DamagedCheckpointError:
        return DamagedCheckpointError(
            job=self._job, checkpoint=self._manifest.id, file=file.path, damage=wrong
        )


def _inline(file: File) -> Sum:
    """The sum of what the manifest has itself; one of no file, when that can't be decoded."""
    try:
        return sum_of(base64.b64decode(file.inline, validate=True))
    except ValueError:
        return Sum(file.bytes, -1)


def _wrong(file: File, sum: Sum | None) -> str | None:
    if sum is None:
        return "is gone"
    if sum.bytes != file.bytes:
        return f"has {sum.bytes} bytes instead of {file.bytes}"
    return None if sum.crc == file.crc else "has changed"


def edit_of(manifest: Manifest, path: str, root: Path) -> Edit | None:
    """What must become of a file, at its path in the generation `root`; None for most.

    Spark's own files name one place in full: the schema files of an operator. And at-least-once readers of
    channels that had passed their barrier are reset to it.
    """
    if (operator := _OPERATOR.fullmatch(path)) is not None:
        location = f"{root}/queries/{operator[1]}"
        return lambda data: OperatorEntry.parse(data).moved(location).data
    if (offsets := _OFFSETS.fullmatch(path)) is not None:
        stored = manifest.queries[offsets[1]].set_back
        positions = {
            name: Position(entry, CheckpointId(barrier)) for name, (entry, barrier) in stored.items()
        }
        return (lambda data: reset_readers(data.decode(), positions).encode()) if positions else None
    return None


def reset_readers(offset_log_entry: str, to: Mapping[str, Position]) -> str:
    """An `offsets/<n>` in which no reader of these channels is past its position.

    Every other source stays where it is, and so does a reader that had not come that far.
    """

    def reset(end: str) -> str:
        offset = parsed_offset(end)
        if not isinstance(offset, dict) or offset.keys() != {"entry", "barrier", "channel"}:
            return end
        position = to.get(offset["channel"])
        if position is None or offset["entry"] <= position.entry:
            return end
        return json.dumps(position.offset(offset["channel"]))

    return OffsetEntry.parse(offset_log_entry).with_offsets(reset).text


def left_out(manifest: Manifest, files: Mapping[str, Read]) -> list[str]:
    """What a cut needs and `files` does not have, each with its path; nothing when all is there.

    The files themselves tell: what a batch of Spark's consists of, and which files the entries of a channel
    name. So a path that was changed or left out in a manifest is found, also in one without a checksum. The
    files must be intact.
    """
    lost = []
    for name, cut in manifest.queries.items():
        folder, batch = f"queries/{name}/", BatchId(cut.batch)
        own = _below(folder, files)
        if batch == NO_BATCH:
            continue
        try:
            path = missing(Listed(own, lambda path, own=own: own[path]()), batch)  # type: ignore[misc]
        except ValueError as error:
            lost.append(f"{folder}offsets/{batch} can't be used: {error}")
        else:
            lost += [f"{folder}{path} is not in it"] if path else []
    for name, kept in manifest.channels.items():
        folder = f"channels/{name}/"
        own = _below(folder, files)
        try:
            needed = cut_files(_ChannelFiles(folder, own), kept.first, kept.behind)  # type: ignore[arg-type]
        except LostSegmentError as error:
            lost.append(f"{error.fields['file']} {error.fields['wrong']}")
        else:
            lost += [f"{folder}{path} is not in it" for path in needed if path not in own][:1]
    return lost


def _below(folder: str, files: Mapping[str, Read]) -> dict[str, Read]:
    return {path.removeprefix(folder): read for path, read in files.items() if path.startswith(folder)}


class _ChannelFiles:
    """The files of a channel, as much of a store as a reader needs."""

    def __init__(self, folder: str, files: Mapping[str, Read]) -> None:
        self.url = folder.rstrip("/")
        self._files = files

    def get(self, key: str) -> bytes | None:
        if key not in self._files:
            return None
        with self._files[key]() as file:
            return file.read()

    def exists(self, key: str) -> bool:
        return key in self._files

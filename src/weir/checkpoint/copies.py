"""The second place of a job's checkpoints: `execution.checkpointing.copy-dir`.

    <copy-dir>/<job>/owner.json                      whose copies these are
    <copy-dir>/<job>/checkpoints/chk-<k>.json        the manifests
    <copy-dir>/<job>/generations/NNNN/pins/<path>    the files, where the job's own directory has its pins

So it looks like a job's directory of which only the checkpoints are left, and a restore can come from
it alone. A copy is complete or absent, and durable when `put` returns. The copies belong to one lineage: a
job that starts again from nothing never writes over those of a lost directory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from weir.clock import Clock, retry
from weir.errors import CopiesMismatchError, ExternalError, OutsideError
from weir.ids import CheckpointId, Generation, JobName
from weir.storage import Created, Store, files, open_store, paths
from weir.storage.files import NotPlainError, Sum, sum_of
from weir.storage.members import is_safe
from weir.storage.open import is_local, local_path

_PAUSES = (0.1, 0.5, 2.0)
"""Seconds to wait before each further try."""
T = TypeVar("T")
_COPY = re.compile(r"(\d+)/pins/(.+)")


class Copies:
    """The copies of one job in one place, a folder or an object store. For use from any thread."""

    def __init__(
        self, place: str, job: JobName, clock: Clock | None = None, store: Store | None = None
    ) -> None:
        self.job = job
        self._store = store or open_store(place)
        self._root = Path(local_path(self._store.url)) if is_local(self._store.url) else None
        self._clock = clock or Clock()

    @property
    def url(self) -> str:
        """The place, as it can be opened from anywhere on this machine."""
        return self._store.url

    def claim(self, lineage: str) -> None:
        """Begin to write here; raises `CopiesMismatchError` when copies of another lineage are here."""
        key = f"{self.job}/owner.json"
        created = self._store.create(key, json.dumps({"lineage": lineage}).encode())
        if created is Created.EXISTS and not self.belong_to(lineage):
            raise CopiesMismatchError(job=self.job, place=f"{self.url}/{self.job}")

    def belong_to(self, lineage: str) -> bool:
        """Whether the copies here are of this lineage; also when there are none."""
        data = self._store.get(f"{self.job}/owner.json")
        return data is None or json.loads(data)["lineage"] == lineage

    def put(self, generation: Generation, sources: Mapping[str, Path]) -> dict[str, Sum]:
        """Copy each file to its place, whatever was there: some at a time, each tried several times.

        The sums are of what was read.
        """
        keys = {path: self.key(generation, path) for path in sources}
        puts = [partial(self._put, sources[path], keys[path]) for path in sources]
        sums = files.parallel(self._insist, puts)
        self._sync(keys.values())
        return dict(zip(sources, sums, strict=True))

    def checksum(self, generation: Generation, path: str, expected: int | None = None) -> Sum | None:
        """The sum of a copy; None when it is not there, or is no regular file.

        One that has not the expected size is not read: its sum has that size and no CRC.
        """
        if self._root is None:
            data = self.read(generation, path)
            return None if data is None else sum_of(data)
        copied = self._root / self.key(generation, path)
        try:
            return files.checksum(copied, expected)
        except (FileNotFoundError, NotADirectoryError, NotPlainError):
            return None
        except OSError as error:
            raise files.failed("read", copied, error, self.url) from error

    def read(self, generation: Generation, path: str) -> bytes | None:
        """The content of a copy; None when it is not there."""
        return self._store.get(self.key(generation, path))

    def fetch(
        self, generation: Generation, path: str, target: Path, expected: int | None = None
    ) -> Sum | None:
        """Copy a file back, durably; its sum is what was read. None when it is not there, as in `checksum`.

        One that has not the expected size is not copied.
        """
        if self._root is None:
            data = self.read(generation, path)
            if data is None:
                return None
            files.write(target, data)
            return sum_of(data)
        copied = self._root / self.key(generation, path)
        try:
            size = files.size_of(copied)
            return files.copy(copied, target) if expected in (None, size) else Sum(size, -1)
        except (FileNotFoundError, NotADirectoryError, NotPlainError):
            return None

    def remove(self, copies: Iterable[tuple[Generation, str]]) -> None:
        """Delete copies; absent ones are no error."""
        files.parallel(self._store.delete, (self.key(generation, path) for generation, path in copies))

    def kept(self) -> list[tuple[Generation, str]]:
        """Every copy that is here, by generation and path; temporary files too."""
        top = paths.generations(self.job)
        if self._root is None:
            keys: Iterable[str] = (key.removeprefix(f"{top}/") for key in self._store.list(top))
        else:
            keys = files.below(self._root / top)
        found = (_COPY.fullmatch(key) for key in keys)
        return [(Generation(int(match[1])), match[2]) for match in found if match]

    def remove_empty_folders(self) -> None:
        if self._root is not None:
            for pins in (self._root / paths.generations(self.job)).glob("*/pins"):
                files.remove_empty(pins)

    def put_manifest(self, id: CheckpointId, data: bytes) -> None:
        """Write a manifest; tried several times, like the files."""
        self._insist(lambda: self._store.put(paths.completed(self.job, id), data))

    def manifest(self, id: CheckpointId) -> bytes | None:
        return self._store.get(paths.completed(self.job, id))

    def manifests(self) -> list[CheckpointId]:
        """The ids of the manifests that are here."""
        names = (key.rsplit("/", 1)[1] for key in self._store.list(paths.checkpoints(self.job)))
        numbers = (name.removeprefix("chk-").removesuffix(".json") for name in names)
        return sorted(CheckpointId(int(number)) for number in numbers if number.isdigit())

    def remove_manifest(self, id: CheckpointId) -> None:
        self._store.delete(paths.completed(self.job, id))

    def key(self, generation: Generation, path: str) -> str:
        if not is_safe(path):
            raise OutsideError(path=path, root=f"{self.url}/{self.job}")
        return f"{paths.pins(self.job, generation)}/{path}"

    def _insist(self, work: Callable[[], T]) -> T:
        return retry(work, _PAUSES, self._clock.sleep, on=ExternalError)

    def _put(self, source: Path, key: str) -> Sum:
        try:
            if self._root is None:
                data = source.read_bytes()
                self._store.put(key, data)
                return sum_of(data)
            target = self._root / key
            target.parent.mkdir(parents=True, exist_ok=True)
            return files.copy(source, target)
        except OSError as error:
            raise files.failed("copy", f"{source} to {self.url}/{key}", error, self.url) from error

    def _sync(self, keys: Iterable[str]) -> None:
        root = self._root
        if root is None:
            return
        try:
            files.sync_folders(folder for key in keys for folder in files.up_to(root / key, root))
        except OSError as error:
            raise files.failed("copy to", root, error, self.url) from error

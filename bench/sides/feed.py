"""Input in portions: prepared beforehand, handed over by renaming, worked off by a streaming query."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Write = Callable[[Path, range], None]
"""Write the records with these numbers to a file."""

_FIRST = 1_700_000_000


@dataclass(frozen=True)
class Portion:
    """Files that appear together, and how many records they hold."""

    files: tuple[Path, ...]
    records: int


class Feed:
    """A folder that a file source reads, and what will be put into it."""

    def __init__(self, folder: Path, write: Write, suffix: str = ".parquet") -> None:
        self.folder = folder / "in"
        self._ready = folder / "ready"
        self._write = write
        self._suffix = suffix
        self._files = 0
        self._records = 0
        self.folder.mkdir(parents=True)
        self._ready.mkdir()

    def prepare(self, records: int, files: int) -> Portion:
        """Write the next records, which go on where the last ones ended; nobody reads them yet."""
        each, made = records // files, []
        for _ in range(files):
            path = self._ready / f"{self._files:06d}{self._suffix}"
            self._write(path, range(self._records, self._records + each))
            # Spark's file source takes the oldest first.
            os.utime(path, (_FIRST + self._files, _FIRST + self._files))
            made.append(path)
            self._files, self._records = self._files + 1, self._records + each
        return Portion(tuple(made), each * files)

    def hand_over(self, portion: Portion) -> float:
        """Let the source find a portion; the time at which it could."""
        at = time.time()
        for path in portion.files:
            path.rename(self.folder / path.name)
        return at


def keyed(keys: int) -> Write:
    """Records with a key and a value, as Parquet; the keys take turns, so that so many hold each once.

    The order is scattered by a factor that has no divisor in common with a power of ten.
    """

    def write(path: Path, numbers: range) -> None:
        key = [number * 2654435761 % keys for number in numbers]
        pq.write_table(pa.table({"key": key, "value": list(numbers)}), path)

    return write


def lines(keys: int) -> Write:
    """The same records as JSON, one a line."""

    def write(path: Path, numbers: range) -> None:
        with open(path, "w") as file:
            file.writelines(f'{{"key": {n * 2654435761 % keys}, "value": {n}}}\n' for n in numbers)

    return write


def total(portions: Sequence[Portion]) -> int:
    return sum(portion.records for portion in portions)

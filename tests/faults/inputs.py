"""Input folders for the jobs in `jobs/`: JSON files with fixed names, contents and times.

Spark's file source takes them in the order of their times, two to a batch; so each batch has two
partitions with rows in both. Where a batch ends may still differ from run to run: Spark plans files
before it plans the batch, and after a kill between the two it puts them into the batch before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weir.testing import assert_same_result, committed_rows, folded

FILES = 2
"""Files to a batch."""

Row = dict[str, Any]


def shared_keys(number: int) -> list[Row]:
    """Rows over seven keys, which all batches share."""
    return [{"k": f"k{(number * 5 + i) % 7}", "v": number * 10 + i} for i in range(8)]


def own_keys(number: int) -> list[Row]:
    """Rows over keys of the batch's own, which show later what this batch did, and one shared key."""
    batch = number // FILES
    keys = [f"b{batch}-{i}" for i in range(6)] + ["all"]
    return [{"k": key, "v": number * 10 + i} for i, key in enumerate(keys)]


class Feed:
    """The input folder of a job, to which batches are added; and what `jobs/counts.py` makes of it."""

    def __init__(self, folder: Path, rows: Callable[[int], list[Row]] = shared_keys) -> None:
        self.folder = folder
        self.rows = rows
        """The rows of a file, by its number."""
        self._files = 0
        folder.mkdir(exist_ok=True)

    def add(self, batches: int) -> None:
        """Write the files of so many more batches; a job that looks sees each of them whole."""
        for number in range(self._files, self._files + FILES * batches):
            hidden = self.folder / f".{number:04d}.json"
            hidden.write_text("".join(json.dumps(row) + "\n" for row in self.rows(number)))
            os.utime(hidden, (1e9 + number, 1e9 + number))
            hidden.rename(self.folder / hidden.name[1:])
        self._files += FILES * batches

    def expected(self) -> list[Row]:
        """The table of counts and sums, counted here."""
        table: dict[str, Row] = {}
        for number in range(self._files):
            for row in self.rows(number):
                line = table.setdefault(row["k"], {"k": row["k"], "n": 0, "sum": 0})
                line["n"] += 1
                line["sum"] += row["v"]
        return list(table.values())

    def delivered(self, out: Path) -> bool:
        """Whether all of it has been delivered; a file that was seen alone made a batch of its own."""
        key = ["k"]
        return folded(committed_rows(str(out)), key) == folded(self.expected(), key)

    def check(self, out: Path) -> None:
        """What was delivered is what an independent count gives."""
        assert_same_result(committed_rows(str(out)), self.expected(), mode="update", key=["k"])

"""Input folders for the jobs in `jobs/`: JSON files with fixed names, contents and times.

Spark's file source takes them in the order of their times, two to a batch; so each batch has two
partitions with rows in both, and every run cuts the same batches.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

FILES = 2
"""Files to a batch."""


def write_batches(folder: Path, batches: int, rows: Callable[[int], Iterable[Mapping[str, Any]]]) -> None:
    """Write the files of so many batches; `rows` gives the rows of the file with this number."""
    for number in range(FILES * batches):
        file = folder / f"{number:04d}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows(number)))
        os.utime(file, (1e9 + number, 1e9 + number))


def shared_keys(number: int) -> list[dict[str, Any]]:
    """Rows over seven keys, which all batches share."""
    return [{"k": f"k{(number * 5 + i) % 7}", "v": number * 10 + i} for i in range(8)]


def own_keys(number: int) -> list[dict[str, Any]]:
    """Rows over keys of the batch's own, which show later what this batch did, and one shared key."""
    batch = number // FILES
    keys = [f"b{batch}-{i}" for i in range(6)] + ["all"]
    return [{"k": key, "v": number * 10 + i} for i, key in enumerate(keys)]

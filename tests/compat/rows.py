"""The input of the jobs, file by file, and what their output must be: computed here, without Spark.

A file has a fixed content and time for its number, and a job reads one file in a batch. So the output is
known row by row, whatever was killed and restored on the way.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg

import weir
from weir.errors import FilesNotReadableError
from weir.testing import committed_rows, folded

KEYS = 5
ROWS = 8
"""Rows to a file."""
SPAN = 5
"""Seconds of event time to a file."""
EPOCH = 1_700_000_000
WINDOW = DELAY = 10

Row = dict[str, Any]


def rows_of(number: int) -> list[Row]:
    """The rows of a file of the input."""
    return [
        {"k": f"k{(3 * number + i) % KEYS}", "v": 10 * number + i, "at": EPOCH + SPAN * number + i % SPAN}
        for i in range(ROWS)
    ]


def line_of(number: int) -> str:
    """A line that is sent to a socket; every third is one that was sent before."""
    return f"line-{number // 3}" if number % 3 == 2 else f"line-{number}"


def feed(folder: Path, first: int, behind: int) -> None:
    """Add files to the input; a job that looks sees each of them complete."""
    folder.mkdir(exist_ok=True)
    for number in range(first, behind):
        hidden = folder / f".{number:04d}.json"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows_of(number)))
        os.utime(hidden, (1e9 + number, 1e9 + number))
        hidden.rename(folder / hidden.name[1:])


def _all(files: int) -> Iterator[Row]:
    for number in range(files):
        yield from rows_of(number)


def changes(files: int) -> Counter[tuple[Any, ...]]:
    """Counts and sums per key: each time that a file changed them."""
    table: dict[str, tuple[int, int]] = {}
    found: Counter[tuple[Any, ...]] = Counter()
    for number in range(files):
        rows = rows_of(number)
        for row in rows:
            n, total = table.get(row["k"], (0, 0))
            table[row["k"]] = (n + 1, total + row["v"])
        found.update((k, *table[k]) for k in {row["k"] for row in rows})
    return found


def sums(files: int) -> dict[str, tuple[int, int]]:
    """Counts and sums per key at the end."""
    table: dict[str, tuple[int, int]] = {}
    for row in _all(files):
        n, total = table.get(row["k"], (0, 0))
        table[row["k"]] = (n + 1, total + row["v"])
    return table


def windows(files: int) -> Counter[tuple[Any, ...]]:
    """The windows that the watermark has passed, each with its sum."""
    table: Counter[int] = Counter()
    for row in _all(files):
        table[row["at"] // WINDOW * WINDOW] += row["v"]
    watermark = max(row["at"] for row in _all(files)) - DELAY
    return Counter((start, total) for start, total in table.items() if start + WINDOW <= watermark)


def tuples(rows: list[Row], *columns: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[column] for column in columns) for row in rows)


def notes(folder: Path) -> dict[str, Any]:
    """What a function has written, by the name of the file."""
    return {file.stem: json.loads(file.read_text() or "null") for file in (folder / "notes").glob("*.json")}


# for each job, the output that is there and the one that must be there, by name

Outputs = dict[str, tuple[Any, Any]]


def _graph(here: Path, files: int) -> Outputs:
    wanted = changes(files)
    noted = {f"{k}-{n}": {"k": k, "n": n, "sum": total} for k, n, total in wanted}
    return {
        "kept": (tuples(committed_rows(str(here / "out")), "k", "n", "sum"), wanted),
        "noted": (notes(here), noted),
        "user state": (json.loads((here / "total.json").read_text() or "0"), wanted.total()),
    }


def _rocksdb(here: Path, files: int) -> Outputs:
    return {
        "sums": (tuples(committed_rows(str(here / "sums")), "k", "n", "sum"), changes(files)),
        "windows": (tuples(committed_rows(str(here / "windows")), "start", "sum"), windows(files)),
    }


def _socket(here: Path, lines: int) -> Outputs:
    sent = [line_of(number) for number in range(lines)]
    return {
        "kept": (tuples(committed_rows(str(here / "out")), "value"), Counter((line,) for line in sent)),
        "counted": (notes(here), dict(Counter(sent))),
    }


def _unaligned(here: Path, files: int) -> Outputs:
    table = folded(committed_rows(str(here / "out")), ["k"])
    return {"sums": ({k: (row["n"], row["sum"]) for (k,), row in table.items()}, sums(files))}


def _files(here: Path, files: int) -> Outputs:
    rows = weir.read_files(str(here / "out")).arrow().to_pylist()
    return {
        "kept": (
            Counter((row["k"], row["v"], int(row["part"])) for row in rows),
            Counter((row["k"], row["v"], row["v"] % 2) for row in _all(files)),
        )
    }


def _postgres(here: Path, files: int) -> Outputs:
    with psycopg.connect(os.environ["DATABASE_OF_THE_TEST"]) as connection:
        table = connection.execute('SELECT k, n, "sum" FROM sums').fetchall()
        kept = connection.execute("SELECT k, v FROM kept").fetchall()
    return {
        "sums": ({k: (n, total) for k, n, total in table}, sums(files)),
        "kept": (Counter(kept), Counter((row["k"], row["v"]) for row in _all(files))),
    }


OUTPUTS: dict[str, Callable[[Path, int], Outputs]] = {
    "graph": _graph,
    "rocksdb": _rocksdb,
    "socket": _socket,
    "unaligned": _unaligned,
    "files": _files,
    "postgres": _postgres,
}


def delivered(job: str, here: Path) -> dict[str, int]:
    """How many rows each output has, read without Spark; a database is not asked."""
    if job == "postgres":
        return {}
    return {name: _size(found) for name, (found, _) in OUTPUTS[job](here, 1).items()}


def complete(job: str, here: Path, inputs: int) -> bool:
    """Whether all output for so many files (or lines) of input is there; there may be too much of it."""
    try:
        outputs = OUTPUTS[job](here, inputs)
    except (FileNotFoundError, FilesNotReadableError, ValueError, psycopg.errors.UndefinedTable):
        # not made yet, or just being written
        return False
    return all(_has(found, wanted) for found, wanted in outputs.values())


def check(job: str, here: Path, inputs: int) -> None:
    """The output is that of so many files (or lines) of input, row for row."""
    for name, (found, wanted) in OUTPUTS[job](here, inputs).items():
        assert found == wanted, f"{job}: {name}: {_difference(found, wanted)}"


def _size(found: Any) -> int:
    if isinstance(found, Counter):
        return found.total()
    return found if isinstance(found, int) else len(found)


def _has(found: Any, wanted: Any) -> bool:
    return found >= wanted if isinstance(wanted, Counter) else bool(found == wanted)


def _difference(found: Any, wanted: Any) -> str:
    if isinstance(wanted, Counter):
        return f"too many: {dict(found - wanted)}, missing: {dict(wanted - found)}"
    return f"{found}, and not {wanted}"

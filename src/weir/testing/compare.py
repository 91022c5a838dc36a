"""The result of a run with faults against that of a quiet run.

"The same" is meant as the query's output mode means it: in append mode all rows as a multiset, in
update mode the table that the rows make when each replaces the one before with its key.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from weir.sinks import committed_files

Row = Mapping[str, Any]
_SHOWN = 5


def committed_rows(path: str) -> list[dict[str, Any]]:
    """The rows that a Parquet files sink has delivered, in the order of their batches."""
    return [row for file in committed_files(path) for row in _read(file)]


def folded(rows: Iterable[Row], key: Sequence[str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The table that update rows make: for each key the last row."""
    return {tuple(row[column] for column in key): dict(row) for row in rows}


def assert_same_result(
    faulted: Sequence[Row],
    quiet: Sequence[Row],
    *,
    mode: Literal["append", "update"] = "append",
    key: Sequence[str] = (),
    seed: object = None,
) -> None:
    """Raise AssertionError, with the first differences and the seed, when the results differ."""
    if mode == "update":
        if not key:
            raise ValueError("in update mode the key columns must be known")
        differences = _of_tables(folded(faulted, key), folded(quiet, key))
    else:
        differences = _of_multisets(faulted, quiet)
    if differences:
        more = f"\n  and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        lines = "".join(f"\n  {line}" for line in differences[:_SHOWN])
        about = "" if seed is None else f" (seed {seed})"
        raise AssertionError(f"the results differ in {len(differences)} places{about}:{lines}{more}")


def _of_tables(
    faulted: Mapping[tuple[Any, ...], object], quiet: Mapping[tuple[Any, ...], object]
) -> list[str]:
    keys = sorted(faulted.keys() | quiet.keys(), key=repr)
    return [
        f"{key}: {faulted.get(key, 'missing')}, and {quiet.get(key, 'missing')} in the quiet run"
        for key in keys
        if faulted.get(key) != quiet.get(key)
    ]


def _of_multisets(faulted: Sequence[Row], quiet: Sequence[Row]) -> list[str]:
    ours, theirs = (Counter(json.dumps(r, default=str, sort_keys=True) for r in s) for s in (faulted, quiet))
    return [
        f"{row}: {ours[row]} times, and {theirs[row]} times in the quiet run"
        for row in sorted(ours.keys() | theirs.keys())
        if ours[row] != theirs[row]
    ]


def _read(file: str) -> list[dict[str, Any]]:
    from pyarrow import parquet  # noqa: PLC0415  half a second, which readers of a script need not wait

    # ParquetFile, not read_table: that one takes a folder's name like "a=b" for a column
    with parquet.ParquetFile(file) as opened:
        rows: list[dict[str, Any]] = opened.read().to_pylist()
    return rows

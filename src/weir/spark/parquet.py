"""Parquet files that Spark has written, opened without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq

from weir.storage.open import is_local, local_path


def open_file(url: str) -> pq.ParquetFile:
    """Open a file of the local disk or of an object store; raises what pyarrow raises."""
    # Spark's default timestamps (INT96) have no unit; Spark itself counts microseconds.
    options: dict[str, Any] = {"coerce_int96_timestamp_unit": "us"}
    if is_local(url):
        return pq.ParquetFile(local_path(url), memory_map=True, **options)
    from pyarrow import fs  # noqa: PLC0415  only for places that need it

    system, path = fs.FileSystem.from_uri(url)
    return pq.ParquetFile(system.open_input_file(path), pre_buffer=True, **options)

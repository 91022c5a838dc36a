"""State as files that anybody can read."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pyspark.sql import DataFrame

Format = Literal["parquet", "json"]


def export(frame: DataFrame, target: str | Path, format: Format = "parquet") -> None:
    """Write a frame of state, or of differences, as a folder of Parquet or JSON files.

    The folder must not be there. JSON has one row a line.
    """
    frame.write.mode("errorifexists").format(format).save(str(target))

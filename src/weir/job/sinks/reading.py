"""What a files sink has delivered, for readers: `weir.read_files(path)`.

Readers see the batches that the ledger names when they ask, each whole and once, whatever is being written
beside them. Files are never changed; so what was found can be read later too, for an hour at least, unless a
rollback took it back and its files were deleted since.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weir.errors import FilesNotReadableError
from weir.job.sinks.files import ABOUT
from weir.job.sinks.files_ledger import log_of
from weir.storage import open_store
from weir.storage.open import is_local, local_path, spark_url

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

_ARROW = ("parquet", "orc")
_NULL = "__HIVE_DEFAULT_PARTITION__"
"""What Spark calls the folder of rows without a value."""


def read_files(path: str) -> CommittedFiles:
    """What a files sink at `path` has delivered so far; raises when nothing ever was."""
    store = open_store(path)
    about = store.get(ABOUT)
    if about is None:
        raise FilesNotReadableError(
            path=path,
            reason="no batch was ever written there by a files sink",
            todo="check the path; a files sink makes it with its first batch",
        )
    now = log_of(store).catch_up()
    files = tuple(f"{store.url}/{name}" for name in now.in_order())
    return CommittedFiles(store.url, files, json.loads(about), now.checkpoint)


@dataclass(frozen=True)
class CommittedFiles:
    """Files that count, in the order of their batches."""

    path: str
    files: tuple[str, ...]
    about: dict[str, Any]
    """What the sink tells of them: format, options, partition columns, and the newest schema."""
    checkpoint: int | None = None
    """With `sink.commit: checkpoint`, the one that these files are the output of, to the batch.

    None where batches become visible one by one, and for the moment in which those of one checkpoint do.
    """

    def arrow(self) -> pa.Table:
        """All rows as an Arrow table; Parquet and ORC alone."""
        import pyarrow.dataset as ds  # noqa: PLC0415

        if self.about["format"] not in _ARROW:
            raise FilesNotReadableError(
                path=self.path,
                reason=f"Arrow would have to guess the types in {self.about['format']} files",
                todo="read it with Spark: weir.read_files(path).spark(spark)",
            )
        schema = self._arrow_schema()
        if not self.files:
            return schema.empty_table()
        by = [schema.field(name) for name in self.about["partition_by"]]
        import pyarrow as pa  # noqa: PLC0415

        found = ds.dataset(
            [local_path(file) if is_local(file) else file for file in self.files],
            schema=schema,
            format=_arrow_format(self.about["format"]),
            partitioning=ds.partitioning(pa.schema(by), flavor="hive") if by else None,
            partition_base_dir=local_path(self.path),
        )
        return found.to_table()

    def pandas(self) -> pd.DataFrame:
        """All rows as a pandas frame."""
        frame: pd.DataFrame = self.arrow().to_pandas()
        return frame

    def duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """All rows as a relation of DuckDB's, to query with SQL."""
        import duckdb  # noqa: PLC0415  only for who uses it

        return (connection or duckdb.connect()).from_arrow(self.arrow())

    def spark(self, spark: SparkSession) -> DataFrame:
        """All rows as a frame of Spark's, which is not a stream."""
        from pyspark.sql import functions as F  # noqa: PLC0415
        from pyspark.sql.types import StructType  # noqa: PLC0415

        schema, by = StructType.fromJson(self.about["schema"]), self.about["partition_by"]
        if not self.files:
            return spark.createDataFrame([], schema)
        inside = StructType([field for field in schema.fields if field.name not in by])
        reader = spark.read.format(self.about["format"]).options(**self.about["options"]).schema(inside)
        rows = reader.load([spark_url(file) for file in self.files])
        kinds = {field.name: field.dataType for field in schema.fields}
        values = {name: _partition_value(name, len(by)).cast(kinds[name]) for name in by}
        return (
            rows.withColumns(values).select(*[F.col(_quoted(name)) for name in schema.names]) if by else rows
        )

    def _arrow_schema(self) -> pa.Schema:
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415
        from pyspark.sql.types import StructType  # noqa: PLC0415

        return to_arrow_schema(StructType.fromJson(self.about["schema"]), timezone="UTC")


def _arrow_format(name: str) -> Any:
    import pyarrow.dataset as ds  # noqa: PLC0415

    if name != "parquet":
        return name
    # Spark's default timestamps (INT96) have no unit; Spark itself counts microseconds.
    return ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"))


def _partition_value(name: str, folders: int) -> Column:
    """The value of a column in the name of its folder, one of so many above the file."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    path = F.slice(F.split("_metadata.file_path", "/"), -folders - 1, folders)
    own = F.filter(path, lambda folder: _plain(F.substring_index(folder, "=", 1)) == name)
    value = _plain(F.substring_index(F.get(own, F.lit(0)), "=", -1))
    lost = F.raise_error(F.concat(F.lit(f"no folder is one of column {name}: "), "_metadata.file_path"))
    return F.when(F.size(own) == 0, lost).when(value != _NULL, value)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _plain(text: Column) -> Column:
    """A part of a folder's name, which Spark has escaped once and the address once more."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    for _ in range(2):
        text = F.url_decode(F.replace(text, F.lit("+"), F.lit("%2B")))
    return text

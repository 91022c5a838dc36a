"""What a files sink has delivered, for readers: `weir.read_files(path)`.

In output mode update each batch has the rows that changed, so the files have every version of a row:
`latest` keeps the newest of each key.

Readers see the batches that the ledger names when they ask, each complete and once, whatever is being written
beside them. Files are never changed; so what was found can be read later too, for an hour at least, unless a
rollback rewound it and its files were deleted since.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weir.errors import FilesNotReadableError
from weir.sinks.files_ledger import ABOUT, described, log_of
from weir.storage import open_store
from weir.storage.open import is_local, local_path, spark_url

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

_ARROW = ("parquet", "orc")
_BATCH, _FILE, _ROW = "__weir_batch", "__weir_file", "__weir_row"
_NULL = "__HIVE_DEFAULT_PARTITION__"
"""What Spark calls the folder of rows without a value."""


def read_files(path: str) -> CommittedFiles:
    """What a files sink at `path` has delivered so far; raises when nothing ever was.

    Raises `LostLedgerError` where entries of the ledger are lost or damaged: never fewer files in silence.
    """
    store = open_store(path)
    about = store.get(ABOUT)
    if about is None:
        raise FilesNotReadableError(
            path=path,
            reason="no files sink has written a batch there",
            todo="check the path; a files sink makes it with its first batch",
        )
    now = log_of(store).catch_up()
    names = now.in_order()
    spans = [now.files[name] for name in names]
    return CommittedFiles(
        store.url,
        tuple(f"{store.url}/{name}" for name in names),
        described(store, about),
        now.checkpoint,
        tuple(span.first if span.first == span.last else None for span in spans),
    )


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
    batches: tuple[int | None, ...] = ()
    """The batch of each file; None for one that was merged of several."""
    keys: tuple[str, ...] = ()
    """Of rows that agree in these columns only the newest is read; see `latest`."""
    batch_column: str = ""
    """The column that tells the batch of a row, when there is one; see `with_batch`."""

    def latest(self, *keys: str) -> CommittedFiles:
        """The same files, of which only the newest row of each key is read, as output mode update wants it.

        Raises `FilesNotReadableError` for a column that is not there, and where the batches of rows are
        no longer known because files were merged.
        """
        columns = [one["name"] for one in self.about["schema"]["fields"]]
        missing = [key for key in keys if key not in columns]
        if missing or not keys:
            raise FilesNotReadableError(
                path=self.path,
                reason=f"there is no column {missing[0]!r}" if missing else "no key was given",
                todo=f"name the columns that identify a row, some of {', '.join(columns)}",
            )
        self._check_batches()
        return replace(self, keys=keys)

    def with_batch(self, column: str = "weir_batch") -> CommittedFiles:
        """The same files, read with one more column: the batch that each row was delivered with.

        Raises `FilesNotReadableError` where the column is there already, and where the batches of rows are
        no longer known because files were merged.
        """
        if any(one["name"] == column for one in self.about["schema"]["fields"]):
            raise FilesNotReadableError(
                path=self.path,
                reason=f"there is a column {column!r} already",
                todo="give the batch another column: with_batch('another_name')",
            )
        self._check_batches()
        return replace(self, batch_column=column)

    def arrow(self) -> pa.Table:
        """All rows as an Arrow table; Parquet and ORC alone."""
        self._warn_of_versions()
        if self.about["format"] not in _ARROW:
            raise FilesNotReadableError(
                path=self.path,
                reason=f"Arrow would have to guess the types in {self.about['format']} files",
                todo="read it with Spark: weir.read_files(path).spark(spark)",
            )
        import pyarrow as pa  # noqa: PLC0415

        schema = self._arrow_schema()
        if not self.files:
            table = schema.empty_table()
            return self._with_batch_column(table, None) if self.batch_column else table
        if not self.keys and not self.batch_column:
            return self._read(self.files, schema)
        parts = []
        for batch, files in self._by_batch().items():
            parts.append(self._with_batch_column(self._read(files, schema), batch))
        rows = pa.concat_tables(parts)
        rows = _newest(rows, self.keys) if self.keys else rows
        return rows if self.batch_column else rows.drop_columns([self._batch_name])

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
        from pyspark.sql.types import LongType, StructField, StructType  # noqa: PLC0415

        self._warn_of_versions()
        schema, by = StructType.fromJson(self.about["schema"]), self.about["partition_by"]
        if not self.files:
            more = [StructField(self.batch_column, LongType())] if self.batch_column else []
            return spark.createDataFrame([], StructType([*schema.fields, *more]))
        inside = StructType([field for field in schema.fields if field.name not in by])
        reader = spark.read.format(self.about["format"]).options(**self.about["options"]).schema(inside)
        rows = reader.load([spark_url(file) for file in self.files])
        kinds = {field.name: field.dataType for field in schema.fields}
        values = {name: _partition_value(name, len(by)).cast(kinds[name]) for name in by}
        columns = [F.col(_quoted(name)) for name in schema.names]
        if self.keys or self.batch_column:
            values[self._batch_name] = _batch_value(len(by))
            columns += [F.col(_quoted(self.batch_column))] if self.batch_column else []
        rows = rows.withColumns(values) if values else rows
        rows = _newest_in_spark(rows, self.keys, self._batch_name) if self.keys else rows
        return rows.select(*columns) if values else rows

    def _read(self, files: Sequence[str], schema: pa.Schema) -> pa.Table:
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.dataset as ds  # noqa: PLC0415

        by = [schema.field(name) for name in self.about["partition_by"]]
        dataset = ds.dataset(
            [local_path(file) if is_local(file) else file for file in files],
            schema=schema,
            format=_arrow_format(self.about["format"]),
            partitioning=ds.partitioning(pa.schema(by), flavor="hive") if by else None,
            partition_base_dir=local_path(self.path),
        )
        return dataset.to_table()

    @property
    def _batch_name(self) -> str:
        return self.batch_column or _BATCH

    def _with_batch_column(self, rows: pa.Table, batch: int | None) -> pa.Table:
        import pyarrow as pa  # noqa: PLC0415

        values = pa.array([batch] * len(rows), pa.int64())
        return rows.append_column(self._batch_name, values)

    def _by_batch(self) -> dict[int | None, list[str]]:
        files: dict[int | None, list[str]] = {}
        for file, batch in zip(self.files, self.batches, strict=True):
            files.setdefault(batch, []).append(file)
        return files

    def _check_batches(self) -> None:
        if None in self.batches:
            raise FilesNotReadableError(
                path=self.path,
                reason="files of several batches were merged, so the batch of a row is no longer known",
                todo="leave compact= out of weir.sinks.files for output of which the batch matters",
            )

    def _warn_of_versions(self) -> None:
        if self.about.get("output_mode") == "update" and not self.keys and not self.batch_column:
            warnings.warn(
                f"{self.path} was written in output mode update: it has every version of a row; "
                "read the newest with weir.read_files(path).latest(KEY)",
                stacklevel=3,
            )

    def _arrow_schema(self) -> pa.Schema:
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415
        from pyspark.sql.types import StructType  # noqa: PLC0415

        return to_arrow_schema(StructType.fromJson(self.about["schema"]), timezone="UTC")


def _newest(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The last row of each key, in the order of these rows."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    numbered = rows.select(list(keys)).append_column(_ROW, pa.array(range(len(rows)), pa.int64()))
    last = numbered.group_by(list(keys)).aggregate([(_ROW, "max")])[f"{_ROW}_max"]
    return rows.take(last.take(pc.sort_indices(last)))


def _newest_in_spark(rows: DataFrame, keys: Sequence[str], batch: str) -> DataFrame:
    """The last row of each key: of its newest batch, and there of the last file."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    within = Window.partitionBy(*[F.col(_quoted(key)) for key in keys])
    order = [F.col(_quoted(batch)).desc(), F.col(_FILE).desc(), F.col(_ROW).desc()]
    rows = rows.withColumn(_FILE, F.col("_metadata.file_name"))
    rows = rows.withColumn(_ROW, F.monotonically_increasing_id())
    return rows.withColumn(_ROW, F.row_number().over(within.orderBy(*order))).where(F.col(_ROW) == 1)


def _batch_value(folders: int) -> Column:
    """The batch in the name of the folder that a staging is written to, above those of partitions."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    folder = F.element_at(F.split("_metadata.file_path", "/"), -folders - 2)
    return F.substring_index(folder, "-", 1).cast("bigint")


def _arrow_format(name: str) -> Any:
    import pyarrow.dataset as ds  # noqa: PLC0415

    if name != "parquet":
        return name
    # Spark's default timestamps (INT96) have no unit; Spark itself counts microseconds.
    return ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"))


def _partition_value(name: str, folders: int) -> Column:
    """The value of a column in the name of its folder, one of this many above the file."""
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

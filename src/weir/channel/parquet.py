"""What the log says of a segment's files, read from their ends. Their rows are Spark's to read."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from weir.channel.log import SegmentFile, lost
from weir.spark.parquet import open_file
from weir.storage.open import is_local


def open_parquet(url: str) -> pq.ParquetFile:
    """Open a file of a segment; raise `LostSegmentError` when it is gone or torn."""
    try:
        return open_file(url)
    except FileNotFoundError as error:
        raise lost(url) from error
    except (pa.ArrowInvalid, OSError) as error:
        if not _is_torn(url, error):
            raise
        raise lost(url, _words(error)) from error


def describe(url: str, name: str) -> SegmentFile:
    """What the log says of a file: its rows and its bytes in row groups."""
    with open_parquet(url) as file:
        return SegmentFile(name, file.metadata.num_rows, sum(row_group_bytes(file)))


def row_group_bytes(file: pq.ParquetFile) -> list[int]:
    """The compressed size of each row group."""
    groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
    return [sum(group.column(n).total_compressed_size for n in range(group.num_columns)) for group in groups]


def _is_torn(url: str, error: Exception) -> bool:
    """Whether Arrow could not read what is there; an error of the system has a number."""
    return not isinstance(error, OSError) or (error.errno is None and is_local(url))


def _words(error: Exception) -> str:
    text = " ".join(str(error).split()).replace("(", "[").replace(")", "]")  # the hint is in ( )
    return f"can't be read: {text[:200]}"

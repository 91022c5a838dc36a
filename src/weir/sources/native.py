"""Sources of Spark's own under a name, with their options checked: files and rate.

Each can be replayed: Spark's offset log says what a batch has read, and the same is read again after a crash
and from an older checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_STREAM = (
    "maxFilesPerTrigger",
    "maxBytesPerTrigger",
    "latestFirst",
    "maxFileAge",
    "cleanSource",
    "sourceArchiveDir",
)
_ANY = ("pathGlobFilter", "recursiveFileLookup", "ignoreCorruptFiles", "ignoreMissingFiles", "fileNameOnly")
_DATES = (
    "dateFormat",
    "timestampFormat",
    "timestampNTZFormat",
    "timeFormat",
    "timeZone",
    "locale",
    "enableDateTimeParsingFallback",
)
_TEXT = ("encoding", "charset", "lineSep", "compression")
_BAD = ("mode", "columnNameOfCorruptRecord", "singleVariantColumn", "samplingRatio")
_ANY_AGE = "36500d"
OPTIONS: Mapping[str, frozenset[str]] = {
    "parquet": frozenset({"mergeSchema", "datetimeRebaseMode", "int96RebaseMode"}),
    "orc": frozenset({"mergeSchema"}),
    "text": frozenset({"wholetext", *_TEXT}),
    "json": frozenset(
        {
            *(_TEXT + _DATES + _BAD),
            *("primitivesAsString", "prefersDecimal", "allowComments", "allowUnquotedFieldNames"),
            *("allowSingleQuotes", "allowNumericLeadingZeros", "allowBackslashEscapingAnyCharacter"),
            *("allowUnquotedControlChars", "allowNonNumericNumbers", "dropFieldIfAllNull", "multiLine"),
        }
    ),
    "csv": frozenset(
        {
            *(_TEXT + _DATES + _BAD),
            *("sep", "delimiter", "header", "quote", "escape", "comment", "enforceSchema", "inferSchema"),
            *("ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "nullValue", "nanValue", "emptyValue"),
            *("positiveInf", "negativeInf", "maxColumns", "maxCharsPerColumn", "multiLine", "preferDate"),
            *("charToEscapeQuoteEscaping", "unescapedQuoteHandling", "quoteAll"),
        }
    ),
}
"""Which options Spark knows for reading each format."""


@dataclass(frozen=True)
class NativeSource:
    """A source of Spark's own; keeps the contract of `Source`."""

    format: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    path: str | None = None
    schema: StructType | str | None = None

    def load(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.format(self.format).options(**self.options)
        reader = reader.schema(self.schema) if self.schema is not None else reader
        return reader.load(self.path) if self.path is not None else reader.load()


def files(
    path: str,
    format: str,
    schema: StructType | str | None = None,
    *,
    max_files: int | None = None,
    max_bytes: int | str | None = None,
    **options: Any,
) -> NativeSource:
    """New files below `path`, each once, in the order of their times; `options` are Spark's for the format.

    A file must appear as a whole (be moved there) and stay as it is: a batch that runs again reads it again,
    and so does a job that is restored from an older checkpoint. So Spark's `cleanSource` is refused. `schema`
    may be left out for text only. `max_files` or `max_bytes` bounds a batch.

    Files of any age are read; Spark's own default ignores those a week older than the newest. Spark
    remembers the name of each file for that long: for millions of files give `maxFileAge`, and add no file
    that is older.
    """
    if format not in OPTIONS:
        raise ValueError(f"there is no file format {format!r}; there are {', '.join(OPTIONS)}")
    if schema is None and format != "text":
        raise ValueError(f"a stream of {format} files needs a schema, as 'name string, size bigint'")
    if "cleanSource" in options:
        raise ValueError(
            "cleanSource can't be used: files that it moves away are missing when the job goes back to an "
            "older checkpoint; delete them yourself when no checkpoint needs them any more"
        )
    if set(options) & {"maxFilesPerTrigger", "maxBytesPerTrigger"}:
        raise ValueError("use max_files= or max_bytes=, not maxFilesPerTrigger or maxBytesPerTrigger")
    if max_files is not None and max_bytes is not None:
        raise ValueError("a batch is bounded by max_files or by max_bytes, not by both")
    check_options(f"{format} files", options, {*OPTIONS[format], *_ANY, *_STREAM})
    given = {key: _text(value) for key, value in options.items()}
    if "maxfileage" not in {key.lower() for key in given}:
        given["maxFileAge"] = _ANY_AGE
    if max_files is not None:
        given["maxFilesPerTrigger"] = str(_positive("max_files", max_files))
    if max_bytes is not None:
        given["maxBytesPerTrigger"] = str(max_bytes)
    return NativeSource(format, given, path, schema)


def rate(
    rows_per_second: int = 1, *, ramp_up_seconds: int = 0, partitions: int | None = None
) -> NativeSource:
    """Rows of the columns `timestamp` and `value` (0, 1, 2, ...) at a steady rate: for trying things out.

    What a batch has read is made again, the same, when it runs again.
    """
    given = {"rowsPerSecond": str(_positive("rows_per_second", rows_per_second))}
    if ramp_up_seconds < 0:
        raise ValueError(f"ramp_up_seconds must be 0 or more, not {ramp_up_seconds!r}")
    if ramp_up_seconds:
        given["rampUpTime"] = f"{ramp_up_seconds}s"
    if partitions is not None:
        given["numPartitions"] = str(_positive("partitions", partitions))
    return NativeSource("rate", given)


def check_options(what: str, given: Collection[str], known: Collection[str]) -> None:
    """Raise `ValueError` for an option that Spark would silently ignore; it names the nearest one."""
    lower = {one.lower(): one for one in known}
    for name in given:
        if name.lower() not in lower:
            near = get_close_matches(name.lower(), list(lower), n=1, cutoff=0.0)[0]
            raise ValueError(f"{what} have no option {name!r}; did you mean {lower[near]!r}?")


def _positive(name: str, value: int) -> int:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be 1 or more, not {value!r}")
    return value


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

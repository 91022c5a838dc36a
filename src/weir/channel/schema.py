"""The schema of a channel: `schema.json`, written once, and the frame that its readers get.

Readers get every column as nullable, as from any file source of Spark. Metadata of columns goes on
(it marks windows, for example), except the watermark's, which `event_time.py` declares anew.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.types import StructType

from weir.channel.event_time import CONTROL, DELAY
from weir.channel.log import SCHEMA, lost
from weir.errors import ChannelSchemaError
from weir.storage import Created, Store, sums


def readable(schema: StructType) -> StructType:
    """The schema as a reader gets it."""
    return StructType.fromJson(_readable(json.loads(schema.json())))


def settle(store: Store, channel: str, schema: StructType) -> None:
    """Write the schema of a new channel, or compare it with the one that is there. Safe to repeat.

    Raises `ChannelSchemaError` when rows of another schema are in the channel, or when the rows
    could not be read again, and `LostSegmentError` when the schema that is there is damaged.
    """
    _check_readable(channel, schema)
    wanted = readable(schema)
    data = sums.add(json.dumps({"schema": json.loads(wanted.json())}, indent=1).encode())
    if store.create(SCHEMA, data) is Created.NOW:
        return
    try:
        there = StructType.fromJson(json.loads(sums.strip(store.get(SCHEMA) or data))["schema"])
    except (ValueError, KeyError, TypeError) as error:
        raise lost(f"{store.url}/{SCHEMA}", sums.wrong(error)) from error
    if there.simpleString() != wanted.simpleString():
        raise ChannelSchemaError(
            channel=channel,
            reason=f"it holds rows of {there.simpleString()}, the frame now has {wanted.simpleString()}",
            todo="give the stream a new name to begin a new channel, or restore the old columns",
        )


def _check_readable(channel: str, schema: StructType) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415  loads pyarrow

    names = [name.lower() for name in schema.fieldNames()]
    twice = next((name for name in names if names.count(name) > 1), None)
    try:
        to_arrow_schema(schema, timezone="UTC")
        reason = f"it has two columns {twice!r}" if twice else ""
    except Exception as error:  # Spark's own words name the type
        reason = str(error).strip().partition("\n")[0]
    if CONTROL in names:
        reason = f"the column name {CONTROL!r} is weir's own"
    if reason:
        raise ChannelSchemaError(
            channel=channel, reason=reason, todo="rename, drop or cast the column before env.stream(...)"
        )


def _readable(kind: Any) -> Any:
    """The JSON of a type with everything nullable and no watermark in it."""
    if isinstance(kind, list):
        return [_readable(one) for one in kind]
    if not isinstance(kind, dict):
        return kind
    made = {key: _readable(value) for key, value in kind.items() if key not in (DELAY, "metadata")}
    if "metadata" in kind:
        made["metadata"] = {key: value for key, value in kind["metadata"].items() if key != DELAY}
    return made | {key: True for key in ("nullable", "containsNull", "valueContainsNull") if key in made}

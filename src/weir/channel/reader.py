"""The reading end of a channel: which segments a batch of the reading query takes.

Spark asks for each batch, through `spark/planned_source.py`, and reads the segments' Parquet files by
itself. All that a reader knows comes from its options and from files (`facts.py`); what it decides, from
`position.py`. Offsets are `{"entry": e, "barrier": k, "channel": name}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from weir.channel.facts import Planning
from weir.channel.log import Segment, end_number, lost
from weir.channel.position import Bound, Mode, Position
from weir.errors import LostSegmentError
from weir.spark.planned_source import PlannedBatch, PlannedFile
from weir.storage import open_store
from weir.storage.open import spark_url

KIND = "channel"
FORMAT = "weir.Channels"
MAX_SEGMENTS = 1000
"""So many segments at most make one batch, unless the stream says otherwise."""


class ChannelReader:
    """One channel as one query reads it, for one start of the query; a `PlannedReader`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._store = open_store(options["location"])
        self._channel = options["location"].rstrip("/").rsplit("/", 1)[1]
        query, folder = open_store(options["query"]), options["checkpoints"]
        checkpoints = open_store(folder) if folder else None
        self._planning = Planning(self._store, query, checkpoints, Mode(options["mode"]))
        self._event_time = options["eventtime"] == "true"
        self._bound = Bound(segments=int(options["maxsegmentspertrigger"]) or None)
        self._until: int | None = None

    def latest(self, start: str | None, everything: bool) -> str | None:
        begin = self._position(start)
        # A minimum is not for barriers to wait for, so there is none.
        end = self._planning.next(begin, Bound() if everything else self._bound, self._until)
        return None if start and end == begin else json.dumps(end.offset(self._channel))

    def batch(self, start: str | None, end: str) -> PlannedBatch:
        used = self._planning.segments(self._position(start).entry, self._position(end).entry)
        paths = [f"{self.root}/{one.folder}/{file.name}" for one in used for file in one.files if file.rows]
        return PlannedBatch([*map(PlannedFile, paths)], sum(one.bytes for one in used), self._watermark(used))

    def end_here(self) -> None:
        self._until = end_number(self._store)

    @property
    def root(self) -> str:
        return spark_url(self._store.url)

    def unreadable(self, file: str, wrong: str) -> LostSegmentError:
        return lost(file, wrong)

    def _position(self, offset: str | None) -> Position:
        return Position.parse(json.loads(offset)) if offset else self._planning.start()

    def _watermark(self, used: list[Segment]) -> int | None:
        if not self._event_time:
            return None
        return max((one.watermark_ms for one in used if one.watermark_ms is not None), default=None)

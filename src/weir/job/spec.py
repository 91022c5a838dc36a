"""One query as the author described it, in one evaluation of the pipeline function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weir.channel.writer import ChannelWriter
from weir.ids import QueryName
from weir.sinks import StagingSink
from weir.sinks.user_state import UserStateSink
from weir.spark.frame_plan import is_bounded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter

    from weir.sinks import NativeSink


@dataclass(frozen=True)
class QuerySpec:
    """Either a frame with a sink, or a writer of Spark's."""

    name: QueryName
    sink: StagingSink | NativeSink | None
    frame: DataFrame | None = None
    writer: DataStreamWriter | None = None
    output_mode: str = "append"
    trigger: dict[str, Any] = field(default_factory=dict)
    at_most_once: bool = False
    """A batch that was planned and not committed is skipped at the next start."""
    sources: Mapping[str, DataFrame] = field(default_factory=dict)
    """What the author named with `env.source`, as it was loaded for this query."""

    @property
    def plan(self) -> DataFrame:
        """The frame whose plan the query runs."""
        frame: DataFrame = self.frame if self.frame is not None else self.writer._df  # type: ignore[union-attr]
        return frame

    @property
    def bounded(self) -> bool:
        """Whether the query ends by itself, with what is there when it starts."""
        if self.writer is not None:
            return is_bounded(self.writer)
        return bool(self.trigger.keys() & {"availableNow", "once"})

    @property
    def user_state(self) -> UserStateSink | None:
        """The author's own state that goes with each batch, when there is some."""
        return self.sink if isinstance(self.sink, UserStateSink) else None

    @property
    def channel(self) -> ChannelWriter | None:
        """The channel that the query writes, when it is a stream."""
        return self.sink if isinstance(self.sink, ChannelWriter) else None

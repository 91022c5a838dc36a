"""What savepoints and pages say of a job and its files do not: its code, its graph, where it delivers to."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.channel.writer import ChannelWriter
from weir.job.graph import Graph, QuerySpec
from weir.job.sinks import StagingSink
from weir.job.state import UserStateSink
from weir.savepoint.manifest import SavedSink
from weir.spark.file_sink import described, log_of

if TYPE_CHECKING:
    from weir.job.job import Job

_SHOWN = 12
_LOOKING = ("console", "memory", "noop")


@dataclass(frozen=True)
class JobSource:
    """The file that a job's pipeline is written in; both are empty when there is none."""

    name: str = ""
    version: str = ""
    """The beginning of the file's SHA-256."""


def source_of(job: Job) -> JobSource:
    """The file of the pipeline function, as it is now."""
    with suppress(OSError, AttributeError):  # a notebook's cell, or no plain function
        file = Path(job.function.__code__.co_filename)
        return JobSource(file.name, hashlib.sha256(file.read_bytes()).hexdigest()[:_SHOWN])
    return JobSource()


def saved_sink(spec: QuerySpec) -> SavedSink:
    """A query's sink, without secrets."""
    sink = spec.sink.inner if isinstance(spec.sink, UserStateSink) else spec.sink
    if sink is None:
        log = log_of(spec.writer, spec.name) if spec.writer is not None else None
        what = f"files in {log.folder}, by Spark's own sink" if log else ""
        what = what or (described(spec.writer) if spec.writer is not None else "a writer of Spark's own")
        return SavedSink(kind="spark", description=what, rewindable=log is not None)
    if isinstance(sink, ChannelWriter):
        return SavedSink(kind="channel", description=f"channel {sink.name}")
    return SavedSink(
        kind=type(sink).__name__.removesuffix("Sink").lower(),
        description=sink.describe(),
        rewindable=isinstance(sink, StagingSink) and bool(getattr(sink, "rewindable", True)),
    )


def delivers(spec: QuerySpec) -> bool:
    """Whether its output stays outside of the job: no channel, and nothing that is only looked at."""
    words = saved_sink(spec).description.replace(",", " ").split()
    return spec.channel is None and not (words and words[0].lower() in _LOOKING)


def learnt(spec: QuerySpec, graph: Graph) -> dict[str, Any]:
    """One query of the graph, for whoever looks."""
    return {
        "name": spec.name,
        "inputs": list(graph.inputs[spec.name]),
        "sources": [one.name for one in graph.receiving if spec.name in one.readers],
        "channel": spec.channel is not None,
        "sink": saved_sink(spec).model_dump(include={"kind", "description", "rewindable"}),
        "output_mode": spec.output_mode,
    }

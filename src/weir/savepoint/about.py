"""What savepoints and pages say of a job and its files do not: its code, its graph, where it delivers to."""

from __future__ import annotations

import hashlib
import json
import re
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from weir.channel.writer import ChannelWriter
from weir.ids import Attempt, Generation, JobName, QueryName
from weir.job.env import QuerySpec
from weir.job.graph import Graph
from weir.protocol.shape import PlannedSource, Shape
from weir.savepoint.manifest import SavedQuery, SavedSink, SavedSource
from weir.savepoint.query_change import Before
from weir.sinks import StagingSink
from weir.sinks.user_state import UserStateSink
from weir.spark.file_sink import described, log_of
from weir.storage import Store, paths

if TYPE_CHECKING:
    from weir.job.job import Job


_SHOWN = 12
_SHAPE = re.compile(r"/shapes/(\d+)/([^/]+)\.json$", re.ASCII)
_LOOKING = ("console", "memory", "noop")


@dataclass(frozen=True)
class JobSource:
    """The file that a job's pipeline is written in; both are empty when there is none."""

    name: str = ""
    version: str = ""
    """The beginning of the file's SHA-256."""
    code: str = ""
    """The same of all the job's modules and of its arguments, as far as they are loaded; see `source_of`."""


def source_of(job: Job) -> JobSource:
    """The file of the pipeline function, and all the code of the job, as it is now.

    The code is every module that was loaded from outside of Python's own and installed packages, so it
    is known when the pipeline has been evaluated once: a function may import what it needs.
    """
    with suppress(OSError, AttributeError):  # a notebook's cell, or no plain function
        file = Path(job.function.__code__.co_filename)
        content = file.read_bytes()
        return JobSource(file.name, hashlib.sha256(content).hexdigest()[:_SHOWN], _code(file, content))
    return JobSource()


def _code(file: Path, content: bytes) -> str:
    digest = hashlib.sha256(content)
    for name, data in _modules():
        digest.update(f"\0{name}\0{len(data)}\0".encode() + data)
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is not None and Path(main) == file:  # else the arguments are those of somebody else
        digest.update(repr(sys.argv[1:]).encode())
    return digest.hexdigest()[:_SHOWN]


def _modules() -> Iterator[tuple[str, bytes]]:
    """The modules that are the job's own, with their source, in the order of their names."""
    paths = sysconfig.get_paths()
    installed = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    with suppress(AttributeError):  # a virtual environment of old has none of these
        installed += [*site.getsitepackages(), site.getusersitepackages()]
    own = Path(__file__).parents[1]  # weir itself, wherever it is
    below = tuple(f"{Path(one).resolve()}/" for one in {*installed, str(own)})
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name == "__main__" or not file or str(Path(file).resolve()).startswith(below):
            continue
        loader: Any = getattr(getattr(module, "__spec__", None), "loader", None)
        with suppress(OSError, AttributeError):
            yield name, loader.get_data(file) if hasattr(loader, "get_data") else Path(file).read_bytes()


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
    kind = saved_sink(spec).description.replace(",", " ").split()
    return spec.channel is None and not (kind and kind[0].lower() in _LOOKING)


def learnt(spec: QuerySpec, graph: Graph) -> dict[str, Any]:
    """One query of the graph, for whoever looks."""
    return {
        "name": spec.name,
        "inputs": list(graph.inputs[spec.name]),
        "sources": [one.name for one in graph.receiving if spec.name in one.readers],
        "named": list(spec.sources),
        "channel": spec.channel is not None,
        "sink": saved_sink(spec).model_dump(include={"kind", "description", "rewindable"}),
        "output_mode": spec.output_mode,
    }


# The shapes of a job's queries, kept beside its live files: one for each start and query.
#
# generations/<n>/shapes/<attempt>/<query>.json
#
# Checkpoints name their generation and attempt, so each finds the shape that its state belongs to; a
# savepoint carries it. Without one, as of a job that an older weir ran, the files tell what they can.


def keep(
    store: Store, job: JobName, generation: Generation, attempt: Attempt, query: QueryName, shape: Shape
) -> None:
    """Write down what a query is at this start. Safe to repeat."""
    store.put(_key(job, generation, attempt, query), shape.model_dump_json().encode())


def kept(
    store: Store, job: JobName, generation: Generation, attempt: Attempt, query: QueryName
) -> Shape | None:
    """What a query was at that start; None when nobody wrote it down, or it can't be read."""
    data = store.get(_key(job, generation, attempt, query))
    try:
        return Shape.model_validate_json(data) if data else None
    except ValidationError:
        return None


def last(store: Store, job: JobName, generation: Generation) -> tuple[Attempt, dict[QueryName, Shape]]:
    """What all queries were at the last start in this generation, and which that was; none before one."""
    starts = _starts(store, job, generation)
    newest = max(starts, default=Attempt(0))
    names = starts.get(newest, set())
    found = {name: kept(store, job, generation, newest, name) for name in names}
    return newest, {name: shape for name, shape in found.items() if shape is not None}


def queries(store: Store, job: JobName, generation: Generation) -> set[QueryName]:
    """The queries of the last start in this generation, by the names alone; none before one."""
    starts = _starts(store, job, generation)
    return starts[max(starts)] if starts else set()


def newest(store: Store, job: JobName, generation: Generation, query: QueryName) -> Shape | None:
    """What a query was at its last start in this generation; None when nobody wrote it down."""
    attempts = [attempt for attempt, names in _starts(store, job, generation).items() if query in names]
    return kept(store, job, generation, max(attempts), query) if attempts else None


def _starts(store: Store, job: JobName, generation: Generation) -> dict[Attempt, set[QueryName]]:
    """The queries of each start in this generation, by the names alone; files of others are passed over."""
    found: dict[Attempt, set[QueryName]] = {}
    for key in store.list(f"{paths.generation(job, generation)}/shapes"):
        if match := _SHAPE.search(key):
            found.setdefault(Attempt(int(match[1])), set()).add(QueryName(match[2]))
    return found


def before(query: SavedQuery) -> Before:
    """A query of a savepoint, as a restore plan takes it."""
    shape = query.shape or Shape(sources=tuple(PlannedSource(name=_name(one)) for one in query.sources))
    if not shape.sink and query.sink is not None:
        shape = shape.model_copy(update={"sink": query.sink.description})
    return Before(shape.with_files(query.operators), query.conf, query.offsets)


def _name(source: SavedSource) -> str:
    """What the offset log alone tells of a source: those of weir's name themselves there."""
    if source.channel:
        return f"channel {source.channel}"
    if not source.name.isdigit():
        return f"named {source.name}"
    try:
        offset = json.loads(source.offset)
    except ValueError:
        return ""
    own = isinstance(offset, dict) and offset.keys() == {"entry", "source"}
    return f"source {offset['source']}" if own else ""


def _key(job: JobName, generation: Generation, attempt: Attempt, query: QueryName) -> str:
    return f"{paths.generation(job, generation)}/shapes/{attempt:06d}/{query}.json"

"""What a savepoint consists of: `manifest.json`, plain JSON that can be read without weir.

    <savepoint-dir>/<job>-<id>/manifest.json
    <savepoint-dir>/<job>-<id>/queries/<query>/...      Spark's files of the cut
    <savepoint-dir>/<job>-<id>/channels/<query>/...     what is between two queries
    <savepoint-dir>/<job>-<id>/user-state/<query>/...   values of env.state
    <savepoint-dir>/<job>-<id>/sources/<source>/...     what was received and not read yet

Paths are relative, so that the directory can be moved and copied. A manifest is written last: where
there is none, there is no savepoint.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, ValidationError, model_validator

from weir.checkpoint.manifest import ChannelCut, Manifest, Provenance, QueryCut
from weir.errors import NotASavepointError
from weir.protocol.checkpoint import Alignment
from weir.protocol.operators import Frozen, Operator
from weir.protocol.shape import Shape
from weir.storage import manifest
from weir.storage.members import check_members

MANIFEST = "manifest.json"

DERIVED = ("edit", "convert")
"""The triggers of a savepoint that was made of another one."""


class SavedFile(Frozen):
    """One file of a savepoint."""

    path: str
    """Below the savepoint: `queries/counts/offsets/12`."""
    bytes: Annotated[int, Field(ge=0)]
    sha256: str


class SavedSource(Frozen):
    """Where one source of a query stood."""

    name: str
    """Its number in the query, from 0, or the name that Spark knows it by."""
    offset: str
    """The end offset, as Spark wrote it; "-" when it had none."""
    channel: str = ""
    """The query whose channel it reads; "" for a source from outside."""
    description: str = ""
    """How Spark described it; "" when nobody asked."""


class SavedSink(Frozen):
    """Where a query delivers to."""

    kind: str
    """channel, files, function ...; "spark" for a writer of Spark's own."""
    description: str = ""
    """For people; without secrets."""
    last_batch: int = -1
    """The last batch that is delivered in this savepoint."""
    rewindable: bool = True


class SavedQuery(Frozen):
    """One query at its cut."""

    batch: int
    """Its last batch in the savepoint; -1 before its first."""
    unaligned: bool = False
    positions: dict[str, tuple[int, int]] = {}
    """For each channel that it reads, by the writing query: (entry, barrier)."""
    set_back: dict[str, tuple[int, int]] = {}
    """At-least-once: where the readers must be reset to on restore."""
    watermark_ms: int | None = None
    state_format: int | None = None
    """The version of Spark's state checkpoints; None without state."""
    conf: dict[str, str] = {}
    """What Spark's offset log fixes for this query."""
    output_mode: str = ""
    sources: tuple[SavedSource, ...] = ()
    operators: tuple[Operator, ...] = ()
    sink: SavedSink | None = None
    shape: Shape | None = None
    """How Spark's planner described it when it was started; None when nobody asked."""

    @property
    def offsets(self) -> tuple[str, ...]:
        """The end offsets of its sources, in Spark's order."""
        return tuple(source.offset for source in self.sources)


class SavedChannel(Frozen):
    """What of a channel belongs to the savepoint."""

    first: int
    """The first entry that is kept."""
    behind: int
    """The number after the last entry."""
    batch: int
    """The writer's cut."""


class Savepoint(Provenance, manifest.Stored):
    """A complete savepoint."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: int
    """The checkpoint that it is a copy of."""
    taken_at: str
    seconds: float
    """From the request to the last byte."""
    taken_by: str
    """user@host"""
    trigger: str
    """Why: request, stop, schedule, application; or edit, convert."""
    job_file: str
    job_version: str
    """The beginning of the SHA-256 of the job file; "" for a job without one."""
    alignment: str
    queries: dict[manifest.Query, SavedQuery]
    channels: dict[manifest.Query, SavedChannel]
    files: tuple[SavedFile, ...]

    @model_validator(mode="after")
    def _names_its_own_files(self) -> Savepoint:
        check_members((file.path for file in self.files), self.queries, self.channels, journals=True)
        return self

    @property
    def name(self) -> str:
        return f"{self.job}-{self.id}"

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def derived(self) -> bool:
        """Whether it was made of another one by hand; the job itself never had this state."""
        return self.trigger in DERIVED

    def files_of(self, query: str) -> dict[str, SavedFile]:
        """The files of a query, by their paths in its checkpointLocation."""
        folder = f"queries/{query}/"
        return {f.path.removeprefix(folder): f for f in self.files if f.path.startswith(folder)}


def encode(savepoint: Savepoint) -> bytes:
    """As it is stored, with a checksum of its own."""
    return manifest.encode(savepoint, indent=1)


def decode(data: bytes, place: str) -> Savepoint:
    """The savepoint of a manifest; raises `NotASavepointError` for what can't be used, and says why."""
    try:
        return manifest.decode(data, Savepoint)
    except manifest.NewerManifestError as error:
        raise NotASavepointError(place=place, reason=str(error)) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{one}: " for one in [".".join(map(str, first["loc"]))] if one)
        reason = f"its {MANIFEST} is damaged: {where}{first['msg'].removeprefix('Value error, ')}"
        raise NotASavepointError(place=place, reason=reason) from error
    except ValueError as error:
        why = ": somebody changed it, or the disk lost it" if str(error) == manifest.CHANGED else ""
        raise NotASavepointError(place=place, reason=f"its {MANIFEST} {error}{why}") from error


# A savepoint as a checkpoint's manifest says it: what a restore, a plan and the pages read of it.


def facts(savepoint: Savepoint) -> Manifest:
    """What it consists of, as a checkpoint says it; its files are not among it."""
    return Manifest(
        **savepoint.common,
        format=savepoint.format,
        id=savepoint.id,
        alignment=Alignment(savepoint.alignment),
        full=True,
        trigger=savepoint.trigger,
        begun_at=savepoint.taken_at,
        completed_at=savepoint.taken_at,
        seconds=savepoint.seconds,
        queries={name: _cut(query) for name, query in savepoint.queries.items()},
        channels={
            name: ChannelCut(first=one.first, behind=one.behind, batch=one.batch)
            for name, one in savepoint.channels.items()
        },
    )


def _cut(query: SavedQuery) -> QueryCut:
    return QueryCut(
        batch=query.batch,
        unaligned=query.unaligned,
        offsets=query.offsets,
        positions=query.positions,
        set_back=query.set_back,
        watermark_ms=query.watermark_ms,
        rewindable=query.sink.rewindable if query.sink is not None else False,
    )

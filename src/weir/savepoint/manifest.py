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

import json
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from weir.errors import BadNameError, NotASavepointError
from weir.ids import MAX_ATTEMPT, job_name, query_name
from weir.protocol.operators import Operator
from weir.protocol.shapes import Shape
from weir.storage import sealed
from weir.storage.members import check_members

FORMAT = 2
"""The newest form of a manifest that this weir knows: the second has a checksum of its own."""
MANIFEST = "manifest.json"

DERIVED = ("edit", "convert")
"""The triggers of a savepoint that was made of another one."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class SavedFile(_Frozen):
    """One file of a savepoint."""

    path: str
    """Below the savepoint: `queries/counts/offsets/12`."""
    bytes: Annotated[int, Field(ge=0)]
    sha256: str


class SavedSource(_Frozen):
    """Where one source of a query stood."""

    name: str
    """Its number in the query, from 0, or the name that Spark knows it by."""
    offset: str
    """The end offset, as Spark wrote it; "-" when it had none."""
    channel: str = ""
    """The query whose channel it reads; "" for a source from outside."""
    description: str = ""
    """What Spark said of it; "" when nobody asked."""


class SavedSink(_Frozen):
    """Where a query delivers to."""

    kind: str
    """channel, files, function ...; "spark" for a writer of Spark's own."""
    description: str = ""
    """For people; without secrets."""
    last_batch: int = -1
    """The last batch that is delivered in this savepoint."""
    rewindable: bool = True


class SavedQuery(_Frozen):
    """One query at its cut."""

    batch: int
    """Its last batch in the savepoint; -1 before its first."""
    unaligned: bool = False
    positions: dict[str, tuple[int, int]] = {}
    """For each channel that it reads, by the writing query: (entry, barrier)."""
    set_back: dict[str, tuple[int, int]] = {}
    """At-least-once: where the readers must be set back to on restore."""
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
    """What Spark's planner said of it when it was started; None when nobody asked."""

    @property
    def offsets(self) -> tuple[str, ...]:
        """The end offsets of its sources, in Spark's order."""
        return tuple(source.offset for source in self.sources)


class SavedChannel(_Frozen):
    """What of a channel belongs to the savepoint."""

    first: int
    """The first entry that is kept."""
    behind: int
    """The number behind the last entry."""
    batch: int
    """The writer's cut."""


class Savepoint(_Frozen):
    """A savepoint, whole."""

    format: int
    checksum: str = ""
    """That of its own file, where it is stored (`storage/sealed.py`); else ""."""
    job: str
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
    weir: str
    spark: str
    backend: str
    parallelism: int
    alignment: str
    lineage: str
    generation: Annotated[int, Field(ge=0)]
    attempt: Annotated[int, Field(ge=0, le=MAX_ATTEMPT)]
    """Which took it: what goes on from it must have a higher one, or channels and journals refuse it."""
    queries: dict[str, SavedQuery]
    channels: dict[str, SavedChannel]
    files: tuple[SavedFile, ...]
    owners: dict[str, str] = {}
    """Queries that their sinks know by another name (`Origin.owners`)."""

    @field_validator("job")
    @classmethod
    def _is_a_job(cls, job: str) -> str:
        return _checked(job_name, job)

    @field_validator("queries", "channels")
    @classmethod
    def _are_queries(cls, named: dict[str, Any]) -> dict[str, Any]:
        return {_checked(query_name, name): one for name, one in named.items()}

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


def _checked(check: Callable[[str], str], name: str) -> str:
    try:
        return check(name)
    except BadNameError as error:
        raise ValueError(error.what) from error


def encode(savepoint: Savepoint) -> bytes:
    """As it is stored, with a checksum of its own."""
    stored = savepoint.model_copy(update={"format": FORMAT, "checksum": ""})
    return sealed.seal(stored.model_dump_json(indent=1).encode())


def decode(data: bytes, place: str) -> Savepoint:
    """The savepoint of a manifest; raises `NotASavepointError` for what can't be used, and says why."""
    try:
        form = json.loads(data)["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise NotASavepointError(place=place, reason=f"its {MANIFEST} can't be read") from None
    if not isinstance(form, int) or not form >= 1:
        raise NotASavepointError(place=place, reason=f"its {MANIFEST} can't be read")
    if form > FORMAT:
        reason = f"it has format {form}, and this weir knows those up to {FORMAT}: a newer weir wrote it"
        raise NotASavepointError(place=place, reason=reason)
    try:
        savepoint = Savepoint.model_validate_json(data)
        if (form > 1 or savepoint.checksum) and not sealed.check(data):
            reason = f"its {MANIFEST} is not what its checksum says: somebody changed it, or the disk lost it"
            raise NotASavepointError(place=place, reason=reason)
        return savepoint.model_copy(update={"checksum": ""})
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{one}: " for one in [".".join(map(str, first["loc"]))] if one)
        reason = f"its {MANIFEST} is not whole: {where}{first['msg'].removeprefix('Value error, ')}"
        raise NotASavepointError(place=place, reason=reason) from error

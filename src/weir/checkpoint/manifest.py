"""What a completed checkpoint consists of: the manifest `chk-<k>.json`, written once.

    checkpoints/begun-<k>.json                       it was triggered
    checkpoints/chk-<k>.json | aborted-<k>.json      its end; where both are there, it was aborted

Paths are relative to the generation that the checkpoint was taken of, so that they name the live
file and its pin alike. Everything that a restore needs is here or in a file that is named here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from weir.ids import MAX_ATTEMPT, Attempt, CheckpointId, Generation, JobName
from weir.protocol.checkpoint import Alignment, Reading, Written, inconsistencies
from weir.storage import Store, manifest, paths
from weir.storage.generation import Origin
from weir.storage.members import check_members

_Number = Annotated[int, Field(ge=0, le=2**53)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class File(_Frozen):
    """One immutable file of a checkpoint."""

    path: str
    """Below the generation: `queries/counts/offsets/12`, `channels/clean/log/000000007.json`."""
    bytes: _Number
    crc: int
    """CRC-32 of the file."""
    inline: str = ""
    """The content, in base64: of every file where the storage is `memory`, of small ones anywhere."""

    @property
    def within(self) -> bool:
        """Whether its content is in the manifest itself; nothing is everywhere."""
        return bool(self.inline) or self.bytes == 0


class _Part(_Frozen):
    files: tuple[File, ...] = ()
    new_bytes: int = 0
    """Bytes of files that no earlier retained checkpoint had."""

    @property
    def full_bytes(self) -> int:
        return sum(file.bytes for file in self.files)


class QueryCut(_Part):
    """Where one query stands in the checkpoint, and what it needs to resume from there."""

    batch: int
    """Its last batch in the checkpoint; -1 before its first."""
    unaligned: bool = False
    offsets: tuple[str, ...] = ()
    """The end offsets of its sources, as Spark wrote them."""
    positions: dict[str, tuple[int, int]] = {}
    """For each channel that it reads, by the writing query: (entry, barrier)."""
    set_back: dict[str, tuple[int, int]] = {}
    """At-least-once: the barrier that a restore resets its readers to, by channel, those that are past it.

    `positions` has only the slowest reader of a channel; a query may read one twice."""
    watermark_ms: int | None = None
    rewindable: bool = True
    """Whether its output can be rewound to this batch."""
    phases: dict[str, float] = {}
    """Seconds: barrier, alignment, commit, listing, pinning, copying."""


class ChannelCut(_Part):
    """What of a channel belongs to the checkpoint: the entries that some reader has still to read."""

    first: int
    """The first entry that is kept; it is the one before the slowest reader, if there is one."""
    behind: int
    """The number after the last entry that belongs to the checkpoint."""
    batch: int
    """The writer's cut."""
    phases: dict[str, float] = {}
    """Seconds: pinning, copying. They are among those of the query that writes it, too."""
    rows: int | None = Field(default=None, exclude=True)
    """In its segments. Known where the cut is made and not stored: an earlier weir takes no new fields."""

    @property
    def in_flight_bytes(self) -> int:
        """The bytes of its segments: rows that some reader has still to read."""
        return sum(file.bytes for file in self.files if "/data/" in file.path)


class Provenance(_Frozen):
    """Whose state a checkpoint or savepoint holds, and what has made it: the same for all of one attempt."""

    job: manifest.Job
    generation: _Number
    attempt: Annotated[int, Field(ge=0, le=MAX_ATTEMPT)]
    """What resumes from it must have a higher one, or channels and journals refuse it."""
    lineage: str
    backend: str
    parallelism: int
    spark: str
    weir: str
    owners: dict[str, str] = {}
    """Queries that their sinks know by another name (`Origin.owners`)."""

    @classmethod
    def of(
        cls, job: JobName, generation: Generation, attempt: Attempt, origin: Origin, spark: str
    ) -> Provenance:
        return cls(
            job=job,
            generation=generation,
            attempt=attempt,
            lineage=origin.lineage,
            backend=origin.backend,
            parallelism=origin.parallelism,
            spark=spark,
            weir=version("weir"),
            owners=dict(origin.owners),
        )

    @property
    def common(self) -> dict[str, Any]:
        """These fields alone, for a manifest made of this one."""
        return {name: getattr(self, name) for name in Provenance.model_fields}


class Manifest(Provenance, manifest.Stored):  # the fields of the last base come first in the file
    """A completed checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Annotated[int, Field(ge=1)] = manifest.FORMAT
    """1 for what an earlier weir wrote, which says nothing of it and has no checksum."""
    id: _Number
    alignment: Alignment
    full: bool = False
    trigger: str
    begun_at: str
    completed_at: str
    seconds: float
    copied_to: str = ""
    """Where its files were copied to, besides the pins; a restore can come from there alone."""
    queries: dict[manifest.Query, QueryCut] = {}
    channels: dict[manifest.Query, ChannelCut] = {}
    """By the writing query."""

    @model_validator(mode="after")
    def _names_its_own_files(self) -> Manifest:
        check_members((file.path for file in self.files()), self.queries, self.channels)
        return self

    @property
    def parts(self) -> tuple[_Part, ...]:
        return (*self.queries.values(), *self.channels.values())

    @property
    def new_bytes(self) -> int:
        return sum(part.new_bytes for part in self.parts)

    @property
    def full_bytes(self) -> int:
        return sum(part.full_bytes for part in self.parts)

    @property
    def in_flight_bytes(self) -> int:
        """What its channels hold for their readers; an aligned cut has nothing there."""
        return sum(cut.in_flight_bytes for cut in self.channels.values())

    def files(self) -> Iterator[File]:
        for part in self.parts:
            yield from part.files

    def kept_at(self, file: File) -> str:
        """Where a file of it is kept, below the generation's pins and among the copies alike."""
        return kept_at(file.path, CheckpointId(self.id), full=self.full)

    def inconsistencies(self) -> list[str]:
        """Why its cuts do not belong together, for people; nothing when they do."""
        readings = [
            Reading(name, channel, min(position[0], cut.set_back.get(channel, position)[0]))
            for name, cut in self.queries.items()
            for channel, position in cut.positions.items()
        ]
        written = {name: Written(cut.first, cut.behind) for name, cut in self.channels.items()}
        return inconsistencies(readings, written)

    def kept(self) -> Iterator[str]:
        """Where all its files are kept; nowhere those that are in the manifest itself."""
        return (self.kept_at(file) for file in self.files() if not file.within)


def kept_at(path: str, id: CheckpointId, *, full: bool) -> str:
    """A full checkpoint shares nothing: its files have a folder of their own."""
    return f"full-{id}/{path}" if full else path


def no_cut(inconsistencies: Sequence[str]) -> str:
    """What is wrong with cuts that do not belong together, as a phrase that follows the manifest's name."""
    return f"is not a consistent cut: {inconsistencies[0]}"


def encode(checkpoint: Manifest) -> bytes:
    """As it is stored, with a checksum of its own."""
    return manifest.encode(checkpoint)


def decode(data: bytes) -> Manifest:
    """What is stored so; raises `ValueError` for what is damaged, or names what no checkpoint may name.

    And `NewerManifestError`, which is one, for what a newer weir wrote.
    """
    return manifest.decode(data, Manifest, unsaid=1)


def read(store: Store, job: JobName, id: CheckpointId) -> Manifest | None:
    """The manifest of a completed checkpoint, or None; raises `ValueError` as `decode` does."""
    if store.exists(paths.aborted(job, id)):
        return None
    data = store.get(paths.completed(job, id))
    return decode(data) if data is not None else None


def ids(store: Store, job: JobName) -> dict[str, set[CheckpointId]]:
    """The ids in the folder by what is there: `begun`, `chk`, `aborted`."""
    found: dict[str, set[CheckpointId]] = {"begun": set(), "chk": set(), "aborted": set()}
    for key in store.list(paths.checkpoints(job)):
        kind, _, number = key.rsplit("/", 1)[1].removesuffix(".json").partition("-")
        if kind in found and number.isdigit():
            found[kind].add(CheckpointId(int(number)))
    return found


def completed(store: Store, job: JobName) -> list[CheckpointId]:
    """The ids of the completed checkpoints that are retained, oldest first."""
    there = ids(store, job)
    return sorted(there["chk"] - there["aborted"])

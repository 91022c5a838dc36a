"""The layout of docs/design.md, section 7, below `<dir>/<job>/`: every key is made here and nowhere else.

`Live` is where everything of one generation is, seen from the queries' side; what reads it is above:
`QueryFiles.of` in `spark`, `Place.of` in `sources`.
"""

from __future__ import annotations

from dataclasses import dataclass

from weir.ids import Attempt, CheckpointId, Generation, JobName, QueryName, SourceName
from weir.storage.store import Store


def job(name: JobName) -> str:
    return str(name)


def attempts(name: JobName) -> str:
    return f"{name}/attempts"


def attempt(name: JobName, number: Attempt) -> str:
    return f"{name}/attempts/{number:06d}.json"


def beat(name: JobName, number: Attempt) -> str:
    return f"{name}/attempts/{number:06d}.beat"


def generations(name: JobName) -> str:
    return f"{name}/generations"


def generation(name: JobName, number: Generation) -> str:
    return f"{name}/generations/{number:04d}"


def origin(name: JobName, number: Generation) -> str:
    return f"{generation(name, number)}/origin.json"


def origin_sum(name: JobName, number: Generation) -> str:
    """The checksum of the origin."""
    return f"{generation(name, number)}/origin.crc32"


def laid_out(name: JobName, number: Generation) -> str:
    """Written before the first file of a restored generation is fetched: the plan that they are for."""
    return f"{generation(name, number)}/laid-out.json"


def copied(name: JobName, number: Generation) -> str:
    """Written when every file of a restored generation is in its place."""
    return f"{generation(name, number)}/copied.json"


def rewinding(name: JobName, number: Generation) -> str:
    """Written before the first sink is rewound for a restored generation: then it must be finished."""
    return f"{generation(name, number)}/rewinding.json"


def live(name: JobName, number: Generation) -> str:
    """Written when the job resumes from a restored generation."""
    return f"{generation(name, number)}/live.json"


def dropped(name: JobName, number: Generation) -> str:
    """Written when a restore that was asked for can't be done: the generation will never be live."""
    return f"{generation(name, number)}/dropped.json"


def elsewhere(name: JobName, number: Generation) -> str:
    """For queries with a new sink: up to which batch their output was delivered to another one."""
    return f"{generation(name, number)}/elsewhere.json"


def ahead(name: JobName, number: Generation) -> str:
    """Written when sinks were found to hold more than the live files know of: up to which batches."""
    return f"{generation(name, number)}/ahead.json"


def query(name: JobName, number: Generation, query_name: QueryName) -> str:
    """Spark's checkpointLocation of a query."""
    return f"{generation(name, number)}/queries/{query_name}"


def channel(name: JobName, number: Generation, query_name: QueryName) -> str:
    """The channel that a query writes."""
    return f"{generation(name, number)}/channels/{query_name}"


def pins(name: JobName, number: Generation) -> str:
    """Links or copies that keep the files of retained checkpoints, at their paths below the generation."""
    return f"{generation(name, number)}/pins"


def checkpoints(name: JobName) -> str:
    return f"{name}/checkpoints"


def begun(name: JobName, id: CheckpointId) -> str:
    return f"{name}/checkpoints/begun-{id}.json"


def completed(name: JobName, id: CheckpointId) -> str:
    """The manifest of a checkpoint."""
    return f"{name}/checkpoints/chk-{id}.json"


def aborted(name: JobName, id: CheckpointId) -> str:
    return f"{name}/checkpoints/aborted-{id}.json"


def savepoints(name: JobName) -> str:
    return f"{name}/savepoints"


def saved(name: JobName, id: CheckpointId) -> str:
    """Where the savepoint of a checkpoint was written to; the savepoint itself is the user's."""
    return f"{name}/savepoints/{id}.json"


def source(name: JobName, _number: Generation, source_name: SourceName) -> str:
    """The place of a receiving source; its journal is `log/<n>.json` below it.

    It is no part of a generation: what was received outlives a rollback.
    """
    return f"{name}/sources/{source_name}"


def sink(name: JobName, query_name: QueryName) -> str:
    """The ledger of a sink that has no place of its own; like a source, no part of a generation."""
    return f"{name}/sinks/{query_name}"


def requests(name: JobName) -> str:
    return f"{name}/requests"


def journal(name: JobName) -> str:
    return f"{name}/journal/journal.sqlite"


def logs(name: JobName) -> str:
    return f"{name}/logs"


@dataclass(frozen=True)
class Live:
    """One generation of one job."""

    store: Store
    job: JobName
    generation: Generation

    @property
    def root(self) -> str:
        """The generation's folder, as a path or URL."""
        return f"{self.store.url}/{generation(self.job, self.generation)}"

    @property
    def checkpoints(self) -> str:
        """The folder of the job's checkpoints, as a path or URL."""
        return f"{self.store.url}/{checkpoints(self.job)}"

    def query(self, name: QueryName) -> str:
        """The checkpointLocation of a query, as a path or URL."""
        return f"{self.store.url}/{query(self.job, self.generation, name)}"

    def channel(self, name: QueryName) -> str:
        """The folder of the channel that this query writes, as a path or URL."""
        return f"{self.store.url}/{channel(self.job, self.generation, name)}"

    def sink(self, name: QueryName) -> str:
        """Where the ledger of a sink without a place of its own is; it outlives every generation."""
        return f"{self.store.url}/{sink(self.job, name)}"

"""Where everything of a job's live files is: one generation, seen from the queries' side.

What reads them is above: `QueryFiles.of` in `spark`, `Place.of` in `sources`.
"""

from __future__ import annotations

from dataclasses import dataclass

from weir.ids import Generation, JobName, QueryName
from weir.storage import Store, paths


@dataclass(frozen=True)
class Live:
    """One generation of one job."""

    store: Store
    job: JobName
    generation: Generation

    @property
    def root(self) -> str:
        """The generation's folder, as a path or URL."""
        return f"{self.store.url}/{paths.generation(self.job, self.generation)}"

    @property
    def checkpoints(self) -> str:
        """The folder of the job's checkpoints, as a path or URL."""
        return f"{self.store.url}/{paths.checkpoints(self.job)}"

    def query(self, name: QueryName) -> str:
        """The checkpointLocation of a query, as a path or URL."""
        return f"{self.store.url}/{paths.query(self.job, self.generation, name)}"

    def channel(self, name: QueryName) -> str:
        """The folder of the channel that this query writes, as a path or URL."""
        return f"{self.store.url}/{paths.channel(self.job, self.generation, name)}"

    def sink(self, name: QueryName) -> str:
        """Where the ledger of a sink without a place of its own is; it outlives every generation."""
        return f"{self.store.url}/{paths.sink(self.job, name)}"

"""A savepoint of one query, made of its checkpointLocation, for tests of what is done with savepoints."""

from __future__ import annotations

from pathlib import Path

from weir.ids import BatchId
from weir.savepoint.manifest import SavedQuery, Savepoint
from weir.savepoint.write import begin
from weir.spark.closure import closure
from weir.spark.cut import conf_of, is_operator
from weir.spark.logs import OperatorEntry
from weir.spark.state_schema import operators
from weir.storage import files
from weir.storage.manifest import FORMAT


def save(location: Path, batch: int, folder: Path, query: str = "query") -> Path:
    """Copy what the batch needs, and write a manifest; the savepoint's place."""
    number = BatchId(batch)
    writing = begin(str(folder), "job-1", "lineage")
    below = f"queries/{query}"
    made = []
    for name in closure(location, number).files:
        data: object = files.pieces(location / name)
        if is_operator(name):
            entry = OperatorEntry.parse((location / name).read_bytes())
            text = entry.moved(below).text.replace(f'"file:{below}', f'"{below}')
            data = [text.encode()]
        made.append(writing.add(f"{below}/{name}", data))  # type: ignore[arg-type]
    saved = SavedQuery(batch=batch, conf=conf_of(location, number), operators=operators(location, number))
    return Path(
        writing.finish(
            Savepoint(
                format=FORMAT,
                job="job",
                id=1,
                taken_at="2026-01-01T00:00:00+00:00",
                seconds=1.0,
                taken_by="me@here",
                trigger="request",
                job_file="job.py",
                job_version="",
                weir="0.1.0",
                spark="4.3.0",
                backend="rocksdb",
                parallelism=2,
                alignment="aligned",
                lineage="lineage",
                generation=1,
                attempt=1,
                queries={query: saved},
                channels={},
                files=tuple(made),
            )
        )
    )

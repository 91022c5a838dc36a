"""The shape of a query that has not started, as Spark plans it.

Nothing of the user's data is read, and nothing is written but into a temporary folder, which is gone
afterwards. What Spark wrote there is what a new operator needs to be described with.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from weir.protocol.operators import Operator
from weir.protocol.shape import PlannedOperator, Shape
from weir.spark import planner as operators
from weir.spark.fingerprints import Fingerprint
from weir.spark.logs import OperatorEntry
from weir.spark.operator_metadata import described

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LIMIT = "globalLimit"


@dataclass(frozen=True)
class Planned:
    """A query as Spark will run it."""

    shape: Shape
    files: Mapping[str, bytes]
    """What Spark would write to describe its operators, by the path in the checkpointLocation."""


def planned(
    frame: DataFrame, output_mode: str, pinned: Mapping[str, str] | None = None, sink: str = ""
) -> Planned:
    """What Spark will run for a streaming frame.

    `pinned` are the settings of the query's offset log, when it goes on from one.
    """
    with tempfile.TemporaryDirectory(prefix="weir-plan-") as name:
        folder = Path(name)
        answer = operators.ask(frame, output_mode, folder, pinned)
        files = _descriptions(folder)
    facts = {one.id: one for one in described(dict.fromkeys(files, 0), files.__getitem__)}
    shape = Shape(
        operators=tuple(_operator(facts[id], found, files) for id, found in answer.operators.items()),
        sources=answer.sources,
        sink=sink,
        spark=frame.sparkSession.version,
        older=dict(answer.older),
    )
    return Planned(shape, files)


def _descriptions(folder: Path) -> dict[str, bytes]:
    """All that Spark wrote but Hadoop's checksums, which are not needed and would name another place."""
    files = [path for path in (folder / "state").rglob("*") if path.is_file() and path.suffix != ".crc"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(files)}


def _operator(facts: Operator, found: Fingerprint, files: Mapping[str, bytes]) -> PlannedOperator:
    description = next(path for path in files if path.startswith(f"state/{facts.id}/_metadata/"))
    stores = OperatorEntry.parse(files[description]).stores
    return PlannedOperator(
        **facts.model_dump(exclude={"partitions", "bytes"}),
        partitions=1 if _in_one_partition(facts) else int(stores[0]["numPartitions"]),
        keys=found.keys,
        computes=found.computes,
        reads=found.reads,
        sources=found.sources,
    )


def _in_one_partition(operator: Operator) -> bool:
    """A limit and an aggregate without keys are never shuffled, whatever the parallelism."""
    keys = [store.key_schema["fields"] for store in operator.stores if store.key_schema is not None]
    return operator.kind == _LIMIT or (bool(keys) and not any(keys))

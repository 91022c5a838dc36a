"""A savepoint as a checkpoint's manifest says it: what a restore, a plan and the pages read of it."""

from __future__ import annotations

from weir.checkpoint.manifest import ChannelCut, Manifest, QueryCut
from weir.protocol.checkpoint import Alignment
from weir.savepoint.manifest import SavedQuery, Savepoint


def facts(savepoint: Savepoint) -> Manifest:
    """What it consists of, as a checkpoint says it; its files are not among it."""
    return Manifest(
        id=savepoint.id,
        job=savepoint.job,
        generation=savepoint.generation,
        attempt=savepoint.attempt,
        alignment=Alignment(savepoint.alignment),
        full=True,
        trigger=savepoint.trigger,
        begun_at=savepoint.taken_at,
        completed_at=savepoint.taken_at,
        seconds=savepoint.seconds,
        lineage=savepoint.lineage,
        owners=savepoint.owners,
        backend=savepoint.backend,
        parallelism=savepoint.parallelism,
        spark=savepoint.spark,
        weir=savepoint.weir,
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

"""Complete: the manifest of a checkpoint, when everything of it is kept, and what is reported then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weir.checkpoint.manifest import ChannelCut, Manifest, Provenance, QueryCut
from weir.ids import CheckpointId, QueryName
from weir.protocol.checkpoint_state import Flow, Underway
from weir.protocol.messages import CheckpointCompleted


def manifest_of(
    one: Underway,
    flow: Flow,
    queries: Mapping[QueryName, QueryCut],
    channels: Mapping[QueryName, ChannelCut],
    provenance: Provenance,
    copied_to: str,
    completed_at: str,
    seconds: float,
) -> Manifest:
    """The manifest of what was kept; and copied `copied_to` some place besides."""
    return Manifest(
        **provenance.common,
        id=one.id,
        alignment=one.alignment,
        full=one.full,
        trigger=one.trigger,
        begun_at=one.begun_at,
        completed_at=completed_at,
        seconds=seconds,
        copied_to=copied_to,
        queries={name: _query_cut(one, flow, name, cut, channels.get(name)) for name, cut in queries.items()},
        channels=dict(channels),
    )


def _query_cut(
    one: Underway, flow: Flow, name: QueryName, cut: QueryCut, channel: ChannelCut | None
) -> QueryCut:
    """The cut of a query, with the barriers that no reader of it may be past, and the times of its phases."""
    limits = {channel: one.limit(QueryName(channel)) for channel in cut.positions}
    back = {channel: limit for channel, limit in limits.items() if limit is not None}
    taking = sum(cut.phases.get(phase, 0.0) for phase in ("listing", "pinning", "copying"))
    ack = max(0.0, one.acked[name] - one.barriers[name] - taking)
    barrier = max(one.barriers[input] for input in flow.inputs[name] or (name,))
    phases = {"barrier": barrier, **cut.phases, "ack": ack}
    for phase, seconds in (channel.phases if channel is not None else {}).items():
        phases[phase] = phases.get(phase, 0.0) + seconds  # the channel is kept after its writer
    return cut.model_copy(update={"set_back": back, "phases": phases})


def completed(one: Underway, manifest: Manifest, subsumed: Sequence[CheckpointId]) -> CheckpointCompleted:
    """What is reported of a checkpoint that has completed."""
    return CheckpointCompleted(
        id=one.id,
        alignment=manifest.alignment.value,
        trigger=one.trigger,
        full=one.full,
        seconds=manifest.seconds,
        new_bytes=manifest.new_bytes,
        full_bytes=manifest.full_bytes,
        phases=one.phases_so_far(),
        queries={
            name: {
                "batch": cut.batch,
                "unaligned": cut.unaligned,
                "new_bytes": cut.new_bytes,
                "full_bytes": cut.full_bytes,
                "phases": cut.phases,
            }
            for name, cut in manifest.queries.items()
        },
        subsumed=list(subsumed),
        copied_to=manifest.copied_to,
        in_flight={
            "rows": sum(cut.rows or 0 for cut in manifest.channels.values()),
            "bytes": manifest.in_flight_bytes,
        },
    )

"""What must hold of a completed checkpoint, of retained ones and of channels, at every moment."""

from __future__ import annotations

from tests.protocol.model.world import World, restored
from weir.channel.log import Segment, Tail, apply, counts, entry_key, segments
from weir.channel.position import Status
from weir.checkpoint.manifest import Manifest
from weir.ids import NO_BATCH, CheckpointId
from weir.protocol.checkpoint import Alignment

IMAGES = 3
"""So many unusual checkpoints of a run are restored in the end."""


def check_cut(world: World, manifest: Manifest) -> None:
    """A completed checkpoint is a consistent cut."""
    if world.status(CheckpointId(manifest.id)) is not Status.COMPLETED:
        return  # a zombie wrote it
    assert manifest.queries.keys() == world.graph.inputs.keys(), f"not everybody is in {manifest}"
    for name, kept in manifest.channels.items():
        written = [one.batch for one in segments(Tail(), world.entries(name, kept.behind))]
        last = written[-1] if written else NO_BATCH
        if world.begins[name] == 0:
            assert last == kept.batch == manifest.queries[name].batch, f"{name} ends with {last}"
    plain = True
    for reader, inputs in world.graph.inputs.items():
        doubles = manifest.alignment is Alignment.AT_LEAST_ONCE and len(inputs) > 1
        for channel, position in zip(inputs, world.cut_ends(manifest, reader), strict=True):
            behind = manifest.channels[channel].behind
            told = f"{reader} is at {position} of {channel} in {manifest}"
            waited = not manifest.queries[reader].unaligned and not manifest.queries[channel].unaligned
            assert doubles or position.entry <= behind, told
            if waited:
                assert position.entry >= behind and position.barrier >= manifest.id, told
            plain = plain and position.entry == behind
    if not plain and len(world.images) < IMAGES:
        world.images.append(restored(world, CheckpointId(manifest.id)))


def check_retained(world: World) -> None:
    """Everything that a retained checkpoint refers to is there."""
    for id in world.completed():
        for name in (file.path for file in world.manifest(id).files()):
            assert world.pins.exists(name), f"checkpoint {id} refers to {name}, which is deleted"


def check_readable(world: World, channel: str) -> None:
    """What any reader of the channel still needs is there."""
    store = world.channels[channel]
    for reader in world.graph.readers(channel):
        inputs = world.graph.inputs[reader]
        ends = world.ends(reader, world.last(reader, "commits"))
        for end in [end for end, one in zip(ends, inputs, strict=True) if one == channel]:
            first = max(0, end.entry - 1)
            if first >= world.begins[channel] + len(world.history[channel]):
                continue
            assert store.exists(entry_key(first)), f"{reader} has lost entry {first} of {channel}"
            tail = Tail()
            for number, entry in enumerate(world.history[channel], world.begins[channel]):
                needed = isinstance(entry, Segment) and counts(tail, entry) and number >= end.entry
                tail = apply(tail, entry)
                if needed and isinstance(entry, Segment):
                    assert store.exists(f"{entry.folder}/part-0"), f"{reader} has lost {entry} of {channel}"

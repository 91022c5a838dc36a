"""A job's directory with files as Spark leaves them, for tests of checkpoints that need no Spark."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import xxhash

from weir.checkpoint.manifest import ChannelCut, Manifest, QueryCut, encode
from weir.checkpoint.pins import Pins
from weir.clock import ManualClock
from weir.ids import CheckpointId, Generation, JobName, job_name
from weir.protocol.checkpoint import Alignment
from weir.storage import paths
from weir.storage.generation import FIRST, open_origin
from weir.storage.local import LocalStore

CONF = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "HDFSBackedStateStoreProvider",
    "spark.sql.shuffle.partitions": "1",
}
OPERATOR = {
    "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
    "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 1}],
}
_BLOCK = struct.Struct("<8sBIII")


class KeptJob:
    """One job, one query `counts` with hashmap state, and what checkpoints are made of."""

    def __init__(self, folder: Path, name: str = "job", lineage: bool = True) -> None:
        self.folder = folder
        self.job: JobName = job_name(name)
        self.store = LocalStore(folder)
        self.clock = ManualClock()
        if lineage:
            self.origin = open_origin(
                self.store, self.job, FIRST, backend="hashmap", parallelism=1, spark="4.3.0", clock=self.clock
            )

    def root(self, generation: int = 1) -> Path:
        return self.folder / paths.generation(self.job, Generation(generation))

    def pins(self, generation: int = 1, copy_dir: Path | None = None, inline: int = 0) -> Pins:
        place = str(copy_dir) if copy_dir else None
        return Pins(
            self.store, self.job, Generation(generation), copy_dir=place, inline=inline, clock=self.clock
        )

    def batch(self, number: int, *sources: str, generation: int = 1, query: str = "counts") -> list[str]:
        """What Spark leaves when it commits a batch; the closure of the batch."""
        root = self.root(generation) / "queries" / query
        offsets = ["v1", json.dumps({"batchWatermarkMs": 0, "conf": CONF}), *(sources or ("-",))]
        made: dict[str, str | bytes] = {
            "metadata": json.dumps({"id": "0"}),
            f"offsets/{number}": "\n".join(offsets),
            f"commits/{number}": 'v1\n{"nextBatchWatermarkMs":0}',
            "state/0/_metadata/metadata": "v1\n" + json.dumps(OPERATOR),
            f"state/0/0/{number + 1}.delta": changes(number),
        }
        made |= source_logs(sources)
        for path, text in made.items():
            write(root / path, text)
        before = [f"offsets/{number - 1}"] if number else []
        return [*made, *before, *(f"state/0/0/{v}.delta" for v in range(1, number + 1))]

    def take(
        self,
        id: int,
        pins: Pins,
        names: Sequence[str],
        batch: int,
        *,
        full: bool = False,
        generation: int = 1,
    ) -> Manifest:
        """A completed checkpoint of the one query."""
        self.begin(id)
        kept = pins.keep("queries/counts", names, checkpoint=CheckpointId(id), full=full)
        manifest = self.manifest(
            id,
            {"counts": QueryCut(batch=batch, files=kept.files, new_bytes=kept.new_bytes)},
            full=full,
            generation=generation,
            copied_to=pins.copied_to,
        )
        pins.export_manifest(manifest)
        return self.complete(manifest)

    def begin(self, id: int) -> None:
        self.store.create(paths.begun(self.job, CheckpointId(id)), b"{}")

    def abort(self, id: int) -> None:
        self.store.create(paths.aborted(self.job, CheckpointId(id)), b"{}")

    def complete(self, manifest: Manifest) -> Manifest:
        self.store.create(paths.completed(self.job, CheckpointId(manifest.id)), encode(manifest))
        return manifest

    def manifest(
        self,
        id: int,
        queries: Mapping[str, QueryCut],
        channels: Mapping[str, ChannelCut] | None = None,
        *,
        full: bool = False,
        generation: int = 1,
        copied_to: str = "",
    ) -> Manifest:
        return Manifest(
            id=id,
            job=self.job,
            generation=generation,
            attempt=1,
            alignment=Alignment.ALIGNED,
            full=full,
            trigger="interval",
            begun_at=f"at {id}",
            completed_at="later",
            seconds=0.1,
            lineage=self.origin.lineage,
            backend="hashmap",
            parallelism=1,
            spark="4.3.0",
            weir="0.1.0",
            copied_to=copied_to,
            queries=dict(queries),
            channels=dict(channels or {}),
        )


def source_logs(ends: Sequence[str]) -> dict[str, str | bytes]:
    """What a file source has logged of the files that it has seen, up to its end offset."""
    made: dict[str, str | bytes] = {}
    for number, end in enumerate(ends):
        for entry in range(json.loads(end).get("logOffset", -1) + 1 if end.startswith("{") else 0):
            seen = {
                "path": f"file:///in/{entry}.json",
                "timestamp": 1_790_000_000_000 + entry,
                "batchId": entry,
            }
            made[f"sources/{number}/{entry}"] = "v1\n" + json.dumps(seen, separators=(",", ":"))
    return made


def changes(batch: int) -> bytes:
    """What the hashmap backend writes for a batch that removes one key."""
    key = f"the changes of batch {batch}".encode()
    return blocks(struct.pack(">i", len(key)) + key + struct.pack(">ii", -1, -1))


def blocks(plain: bytes) -> bytes:
    """Bytes as LZ4's stream for Java writes them: one block, not compressed, and the end."""
    checksum = xxhash.xxh32_intdigest(plain, 0x9747B28C) & 0x0FFFFFFF
    end = _BLOCK.pack(b"LZ4Block", 0x15, 0, 0, 0)
    return _BLOCK.pack(b"LZ4Block", 0x15, len(plain), len(plain), checksum) + plain + end


def write(path: Path, content: str | bytes) -> Path:
    """As Spark does: never in place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(content if isinstance(content, bytes) else content.encode())
    return beside.rename(path)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its content."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

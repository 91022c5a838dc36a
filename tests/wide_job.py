"""A job of every kind of file that weir and Spark keep, played without Spark: for tests of damage.

counts            state of hashmap, behind a file source whose log was compacted once
changes           state of RocksDB, format 2: a snapshot, a changelog behind it, their sizes
older             state of RocksDB, format 1
all > fast, slow  a channel with schema, segments and entries; `slow` has its last batch before it
train             receives from a socket source, delivers by a function, has user state
"""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.kept_job import CONF, OPERATOR, KeptJob, blocks, source_logs, write
from weir.channel.log import SCHEMA
from weir.channel.position import Position
from weir.channel.writer import ChannelWriter
from weir.checkpoint.manifest import ChannelCut, Manifest, QueryCut
from weir.checkpoint.pins import Kept
from weir.clock import Clock
from weir.ids import Attempt, BatchId, CheckpointId, QueryName, Run, SourceName, Token
from weir.protocol.ledger import Staged
from weir.sinks.function import FunctionSink
from weir.sinks.staging import folder_of
from weir.sinks.user_state import Values
from weir.sources.contract import Place
from weir.sources.journal import Journal
from weir.spark.checkpoint_files import ROCKSDB
from weir.spark.closure import closure
from weir.storage import open_store, paths, sums
from weir.storage.attempts import Lease
from weir.storage.generation import FIRST
from weir.storage.local import LocalStore

LAST = BatchId(2)
ENDS = '{"logOffset": 11}'
TOKEN = Token(Attempt(1), Run(1))
UIDS = [f"3f0c6ad1-1c7e-4d3c-9f57-0d4b1a2c3d4{number}" for number in range(3)]
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def summed(path: Path) -> None:
    """Hadoop's checksum beside a file."""
    data = path.read_bytes()
    pieces = [zlib.crc32(data[at : at + 512]) for at in range(0, len(data), 512)]
    known = b"crc\0" + struct.pack(">i", 512) + b"".join(struct.pack(">I", one) for one in pieces)
    path.with_name(f".{path.name}.crc").write_bytes(known)


def file_source_batches(job: KeptJob) -> None:
    """Three batches of `counts` over a file source whose log was compacted once."""
    for number in range(3):
        job.batch(number, ENDS)
    root = job.root() / "queries/counts"
    lines = [str(text).partition("\n")[2] for text in list(source_logs([ENDS]).values())[:10]]
    for number in range(10):
        (root / f"sources/0/{number}").unlink()
    write(root / "sources/0/9.compact", "\n".join(["v1", *lines]))
    with_sums(root)


def with_sums(root: Path) -> None:
    for path in [one for one in root.rglob("*") if one.is_file() and not one.name.startswith(".")]:
        summed(path)


class WideJob:
    """The job, at batch 2 of every query; checkpoints 41 and 42 are of the same cut."""

    def __init__(self, folder: Path) -> None:
        self.kept = KeptJob(folder)
        self.root = self.kept.root()
        file_source_batches(self.kept)
        for name, unique in (("changes", True), ("older", False)):
            self._rocksdb(name, unique)
        ends = self._channel()
        for query, entry in (("fast", ends[2]), ("slow", ends[1])):
            for batch in range(3):
                self._batch(query, batch, json.dumps(Position(entry, CheckpointId(0)).offset("all")))
        self._train()
        for query in ("changes", "older", "all", "fast", "slow", "train"):
            with_sums(self.root / "queries" / query)
        for id in (41, 42):
            self._take(id, ends)

    def queries(self) -> list[str]:
        return sorted(path.name for path in (self.root / "queries").iterdir())

    def needed(self) -> list[str]:
        """The files that the next start can't do without, below the store."""
        below = paths.generation(self.kept.job, FIRST)
        found = [f"{below}/origin.json"]
        for query in self.queries():
            files = closure(self.root / "queries" / query, LAST).files
            found += [f"{below}/queries/{query}/{name}" for name in files]
        channel = self.root / "channels/all"
        entries = sorted((channel / "log").iterdir())
        found += [f"{below}/channels/all/log/{one.name}" for one in entries]
        found += [f"{below}/channels/all/{SCHEMA}", f"{below}/channels/all/{self._rows(2)}"]
        values = Values(open_store(str(self.root)), QueryName("train")).files_of(LAST)
        found += [f"{below}/{name}" for name in values]
        job = self.kept.folder / self.kept.job
        found += [
            str(one.relative_to(self.kept.folder))
            for one in sorted((job / "sources/lines/log").iterdir())[2:]
        ]
        found += [str(max((job / "sinks/train/log").iterdir()).relative_to(self.kept.folder))]
        return found

    def may_be_gone(self) -> list[str]:
        """Those of them whose loss leaves a job that starts: nothing refers to them.

        Spark reads a file of state without its checksum, and the head of a channel is trimmed as readers
        go on. The newest entry of a journal has lines that nobody else knows of.
        """
        journal = self.kept.folder / self.kept.job / "sources/lines/log"
        newest = str(max(journal.iterdir()).relative_to(self.kept.folder))
        head = f"{paths.generation(self.kept.job, FIRST)}/channels/all/log/{0:09d}.json"
        return [head, newest, *(name for name in self.needed() if name.endswith(".crc"))]

    def _batch(
        self, query: str, batch: int, *ends: str, conf: Mapping[str, str] = CONF, commit: str = "v1\n{}"
    ) -> Path:
        root = self.root / "queries" / query
        header = json.dumps({"batchWatermarkMs": 0, "conf": conf})
        write(root / "metadata", '{"id": "0"}')
        write(root / f"offsets/{batch}", "\n".join(["v1", header, *(ends or ["-"])]))
        write(root / f"commits/{batch}", commit)
        return root

    def _rocksdb(self, query: str, unique: bool) -> None:
        conf = {**CONF, _PROVIDER: ROCKSDB}
        for batch in range(3):
            ids = {"stateUniqueIds": {"0": [[UIDS[batch]]]}} if unique else {}
            root = self._batch(query, batch, conf=conf, commit="v2\n" + json.dumps(ids))
        write(root / "state/0/_metadata/metadata", "v1\n" + json.dumps(OPERATOR))
        folder = root / "state/0/0"
        table, log = f"000008-{UIDS[0]}.sst", f"000009-{UIDS[0]}.log"
        write(folder / f"SSTs/{table}", "keys and values")
        write(folder / f"logs/{log}", "what is not in a table yet")
        files = {
            "sstFiles": [{"localFileName": "8.sst", "dfsSstFileName": table, "sizeBytes": 15}],
            "logFiles": [{"dfsLogFileName": log, "sizeBytes": 26}],
        }
        snapshot = folder / (f"2_{UIDS[1]}.zip" if unique else "2.zip")
        with zipfile.ZipFile(snapshot, "w") as made:
            made.writestr("metadata", "v1\n" + json.dumps(files))
            made.writestr("000007.options", "of RocksDB itself")
        lineage = json.dumps([{"version": 2, "checkpointUniqueId": UIDS[1]}])
        utf = b"".join(struct.pack(">H", len(one)) + one.encode() for one in ("v3", lineage))
        changelog = folder / (f"3_{UIDS[2]}.changelog" if unique else "3.changelog")
        write(changelog, blocks(utf if unique else b"the changes of a batch"))
        for path in (snapshot, changelog) if unique else ():
            known = {"algorithm": "CRC32C", "value": 0, "mainFileSize": path.stat().st_size}
            write(path.with_name(f"{path.name}.crc"), json.dumps(known))

    def _channel(self) -> list[int]:
        """Three segments, entered; where each ends."""
        folder = self.root / "channels/all"
        schema = {
            "type": "struct",
            "fields": [{"name": "value", "type": "long", "nullable": True, "metadata": {}}],
        }
        write(folder / SCHEMA, sums.add(json.dumps({"schema": schema}).encode()))
        writer = ChannelWriter("all", str(folder), str(self.root / "queries/all"))
        writer.open("job/all", self.kept.origin.lineage, TOKEN)
        ends = []
        for batch in range(3):
            rows = folder / self._rows(batch)
            rows.parent.mkdir(parents=True)
            pq.write_table(pa.table({"value": [batch]}), rows)
            summed(rows)
            staged = Staged(BatchId(batch), TOKEN)
            writer.record(staged)
            self._batch("all", batch)
            writer.commit(staged)
            ends.append(writer.end)
        return ends

    def _rows(self, batch: int) -> str:
        return f"{folder_of(BatchId(batch), TOKEN)}/part-0.parquet"

    def _train(self) -> None:
        store = self.kept.store
        place = Place(SourceName("lines"), store, f"{self.kept.job}/sources/lines")
        journal = Journal(place, TOKEN, Lease(TOKEN.attempt, 3600, Clock()))
        journal.open([])
        for number in range(5):
            journal.append(f"line {number}", 10)
        values = Values(open_store(str(self.root)), QueryName("train"))
        folder = f"{store.url}/{paths.sink(self.kept.job, QueryName('train'))}"
        sink = FunctionSink(
            lambda _frame, _batch: None, folder, store=LocalStore(Path(folder.removeprefix("file://")))
        )
        sink.open("job/train", self.kept.origin.lineage, TOKEN)
        for batch in range(3):
            staged = Staged(BatchId(batch), TOKEN)
            sink.stage(None, staged.batch, TOKEN)  # type: ignore[arg-type]
            values.stage(staged.batch, TOKEN, json.dumps({"seen": list(range(batch + 1))}).encode())
            sink.record(staged)
            self._batch("train", batch, json.dumps({"entry": batch + 1, "source": "lines"}))
            sink.commit(staged)
            values.commit(staged, TOKEN)
            values.forget(staged)

    def _take(self, id: int, ends: Sequence[int]) -> Manifest:
        self.kept.begin(id)
        pins = self.kept.pins(inline=200)

        def keep(folder: str, names: Sequence[str]) -> Kept:
            return pins.keep(folder, names, checkpoint=CheckpointId(id))

        cuts = {}
        for query in self.queries():
            root = f"queries/{query}"
            names = [f"{root}/{name}" for name in closure(self.root / root, LAST).files]
            names += Values(open_store(str(self.root)), QueryName(query)).files_of(LAST)
            kept = keep("", names)
            lines = (self.root / root / f"offsets/{LAST}").read_text().split("\n")[2:]
            entry = {"fast": ends[2], "slow": ends[1]}.get(query)
            positions = {} if entry is None else {"all": (entry, 0)}
            cuts[query] = QueryCut(
                batch=LAST,
                files=kept.files,
                new_bytes=kept.new_bytes,
                offsets=tuple(lines),
                positions=positions,
            )
        first = ends[1] - 1
        names = [SCHEMA, *(f"log/{number:09d}.json" for number in range(first, ends[2])), self._rows(2)]
        kept = keep("channels/all", names)
        cut = ChannelCut(first=first, behind=ends[2], batch=LAST, files=kept.files, new_bytes=kept.new_bytes)
        return self.kept.complete(self.kept.manifest(id, cuts, {"all": cut}))

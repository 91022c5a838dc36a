"""What a files sink holds, as its ledger says: the fold that the sink, its readers and the tests share.

To the entries of `ledger.py` comes one more kind: `merged` says that some files count no longer and that
others, which hold the same rows, count in their place. A fold can be written down as a snapshot and
continued after it, so that nobody has to read the ledger from its beginning. Pure: neighbours are
`storage/folded_log.py`, which keeps the snapshots, and `compaction.py`, which decides what is to be merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weir.ids import BatchId, CheckpointId, Token
from weir.protocol import ledger
from weir.protocol.ledger import Entry, Ledger

KEPT = 100
"""Of how many batches the checkpoint is kept, for a rewind to one of them."""


@dataclass(frozen=True)
class Span:
    """The batches that a file has rows of: one, or a range after a merge."""

    first: BatchId
    last: BatchId


@dataclass
class Contents:
    """The state of a files sink after some entry of its ledger; `apply` takes in the next one."""

    ledger: Ledger = field(default_factory=Ledger)
    files: dict[str, Span] = field(default_factory=dict)
    """What readers see. Each row that counts is in exactly one of these files."""
    replaced: dict[str, float] = field(default_factory=dict)
    """Files that were merged into others and are not known to be deleted, with the time of their merge."""
    checkpoints: dict[BatchId, CheckpointId] = field(default_factory=dict)
    """Batches that were made visible as the last of a checkpoint, the newest of them."""

    @property
    def checkpoint(self) -> CheckpointId | None:
        """The checkpoint that readers see exactly; None where they see the batches one by one."""
        return self.checkpoints.get(self.ledger.last)

    def apply(self, entry: Entry) -> None:
        """Take in one more entry; one that does not count changes nothing."""
        if entry["kind"] == "merged":
            self._merge(entry)
            return
        before, self.ledger = self.ledger, ledger.apply(self.ledger, entry)
        if self.ledger.last < before.last:
            self.files = {name: span for name, span in self.files.items() if span.first <= self.ledger.last}
            # Below the floor merged files are not split, and show more than the checkpoint had.
            reach = range(self.ledger.floor, self.ledger.last + 1)
            self.checkpoints = {at: id for at, id in self.checkpoints.items() if at in reach}
        elif self.ledger.last > before.last:
            batch = self.ledger.last
            self.files.update(dict.fromkeys(entry["body"]["files"], Span(batch, batch)))
            if "checkpoint" in entry["body"]:
                kept = list(self.checkpoints.items())[-KEPT + 1 :]
                self.checkpoints = dict([*kept, (batch, CheckpointId(entry["body"]["checkpoint"]))])

    def in_order(self) -> list[str]:
        """The files that count, in the order of their batches."""
        return sorted(self.files, key=lambda name: self.files[name].first)

    def copy(self) -> Contents:
        """The same, which later entries leave as it is."""
        return Contents(self.ledger, dict(self.files), dict(self.replaced), dict(self.checkpoints))

    def encode(self) -> dict[str, Any]:
        """As a snapshot, of which `decode` makes the same again."""
        now = self.ledger
        return {
            "owner": now.owner,
            "lineage": now.lineage,
            **ledger.by(now.fence),
            "last": now.last,
            "floor": now.floor,
            "rewound": now.rewound,
            "files": [[name, span.first, span.last] for name, span in self.files.items()],
            "replaced": [[name, at] for name, at in self.replaced.items()],
            "checkpoints": [[batch, id] for batch, id in self.checkpoints.items()],
        }

    @classmethod
    def decode(cls, body: Mapping[str, Any]) -> Contents:
        now = Ledger(
            body["owner"],
            body["lineage"],
            ledger.token_of(body),
            BatchId(body["last"]),
            BatchId(body["floor"]),
            bool(body.get("rewound", False)),  # an earlier weir did not keep it
        )
        files = {name: Span(BatchId(first), BatchId(last)) for name, first, last in body["files"]}
        checkpoints = {BatchId(batch): CheckpointId(id) for batch, id in body.get("checkpoints", ())}
        return cls(now, files, dict(body["replaced"]), checkpoints)

    def _merge(self, entry: Entry) -> None:
        """All or nothing: a merge of files that are not all there does not count."""
        counts = ledger.token_of(entry).counts_after(self.ledger.fence)
        if not counts or any(name not in self.files for name in entry["replaces"]):
            return
        spans = [self.files.pop(name) for name in entry["replaces"]]
        span = Span(min(one.first for one in spans), max(one.last for one in spans))
        self.files.update(dict.fromkeys(entry["files"], span))
        for name in entry["swept"]:
            self.replaced.pop(name, None)
        self.replaced.update(dict.fromkeys(entry["replaces"], entry["at"]))
        self.ledger = replace(self.ledger, floor=max(self.ledger.floor, span.last))


def merged(
    token: Token, files: Sequence[str], replaces: Sequence[str], at: float, swept: Iterable[str]
) -> dict[str, Any]:
    """From here on `files` count in the place of `replaces`; those that are `swept` are deleted by now."""
    return {
        "kind": "merged",
        **ledger.by(token),
        "files": list(files),
        "replaces": list(replaces),
        "at": at,
        "swept": sorted(swept),
    }

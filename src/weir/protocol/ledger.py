"""What the entries of a sink's ledger mean, and what a start must do about them.

The ledger is one ordered log. A `fence` announces a token; batch entries of lower tokens behind it
don't count, wherever they come from. A `rewind` takes back the batches above its own. The fold over
the entries is the truth about what was delivered; which files that makes is in `contents.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weir.ids import NO_BATCH, Attempt, BatchId, Run, Token

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Ledger:
    """The state of a sink, as its ledger tells it."""

    owner: str = ""
    lineage: str = ""
    fence: Token = Token(Attempt(0), Run(0))
    last: BatchId = NO_BATCH
    """The newest batch that counts."""
    floor: BatchId = NO_BATCH
    """The oldest batch that the sink can be rewound to."""


def opened(owner: str, lineage: str) -> dict[str, Any]:
    return {"kind": "opened", "owner": owner, "lineage": lineage}


def fence(token: Token) -> dict[str, Any]:
    return {"kind": "fence", "attempt": token.attempt, "run": token.run}


def delivered(batch: BatchId, token: Token, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": "batch", "batch": batch, "attempt": token.attempt, "run": token.run, "body": dict(body)}


def rewound(to: BatchId, token: Token) -> dict[str, Any]:
    return {"kind": "rewind", "to": to, "attempt": token.attempt, "run": token.run}


def apply(ledger: Ledger, entry: Entry) -> Ledger:
    """The ledger after one more entry; an entry that does not count changes nothing."""
    kind = entry["kind"]
    if kind == "opened":
        return replace(ledger, owner=entry["owner"], lineage=entry["lineage"])
    token = Token(Attempt(entry["attempt"]), Run(entry["run"]))
    if token < ledger.fence:
        return ledger
    if kind == "fence":
        return replace(ledger, fence=token)
    if kind == "rewind":
        return replace(ledger, last=BatchId(min(ledger.last, entry["to"])))
    if kind == "batch":
        return replace(ledger, last=BatchId(max(ledger.last, entry["batch"])))
    raise ValueError(f"a ledger has no entries of kind {kind!r}; a newer weir wrote it")


@dataclass(frozen=True)
class Staged:
    """The complete output of one run of one batch, durable but not visible."""

    batch: BatchId
    token: Token
    state_ids: tuple[str, ...] = ()
    """Names of the state files that appeared while this run computed the batch."""


@dataclass(frozen=True)
class StartPlan:
    """What a start does with what it finds staged; what it does not name is discarded."""

    commit: tuple[Staged, ...] = ()
    lost: tuple[BatchId, ...] = ()
    """Batches that Spark committed and that nothing staged can deliver."""


def plan_start(
    last_delivered: BatchId,
    last_committed: BatchId,
    staged: Sequence[Staged],
    committed_state: Mapping[BatchId, frozenset[str]],
) -> StartPlan:
    """Decide, before a query runs: staging of committed batches is committed, the rest discarded.

    Where several runs staged one batch, the one counts whose state Spark's decision record names
    (`committed_state`: the state ids in `commits/<n>`); where the record names none, no state saw
    any of them, and the newest run is as true as the others.
    """
    by_batch: dict[BatchId, list[Staged]] = {}
    for one in staged:
        by_batch.setdefault(one.batch, []).append(one)
    commit, lost = [], []
    for number in range(last_delivered + 1, last_committed + 1):
        batch = BatchId(number)
        runs = by_batch.get(batch, [])
        if not runs:
            lost.append(batch)
            continue
        commit.append(_chosen(runs, committed_state.get(batch, frozenset())))
    return StartPlan(tuple(commit), tuple(lost))


def decided_by(staged: Staged, state: frozenset[str]) -> bool:
    """Whether the run of this staging can have written the decision record with these state ids."""
    return not state or not state.isdisjoint(staged.state_ids)


def _chosen(runs: Sequence[Staged], state: frozenset[str]) -> Staged:
    newest_first = sorted(runs, key=lambda s: s.token, reverse=True)
    deciders = [s for s in newest_first if decided_by(s, state)] or newest_first
    # Of several that saw the same file appear, the one that saw fewest is the one that wrote it.
    return min(deciders, key=lambda s: len(s.state_ids)) if state else newest_first[0]

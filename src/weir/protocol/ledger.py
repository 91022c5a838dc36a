"""What the entries of a sink's ledger mean, and what a start must do about them.

The ledger is one ordered log. A `fence` announces a token; entries of lower tokens after it don't
count, wherever they come from, and neither do those of an equal token of another session: two
directories that resumed from one savepoint come to the same numbers. A `rewind` rewinds the batches
above its own. The fold over the entries is the truth about what was delivered; which files that makes is
in `contents.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from weir.ids import NO_BATCH, NOBODY, Attempt, BatchId, Run, Token, session_mark

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Ledger:
    """The state of a sink, as its ledger tells it."""

    owner: str = ""
    lineage: str = ""
    fence: Token = NOBODY
    last: BatchId = NO_BATCH
    """The newest batch that counts."""
    floor: BatchId = NO_BATCH
    """The oldest batch that the sink can be rewound to."""
    rewound: bool = False
    """Whether batches were ever rewound: then a ledger without a batch is not one that was lost."""


def opened(owner: str, lineage: str) -> dict[str, Any]:
    return {"kind": "opened", "owner": owner, "lineage": lineage}


def fence(token: Token) -> dict[str, Any]:
    return {"kind": "fence", **by(token)}


def delivered(batch: BatchId, token: Token, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": "batch", "batch": batch, **by(token), "body": dict(body)}


def rewound(to: BatchId, token: Token) -> dict[str, Any]:
    return {"kind": "rewind", "to": to, **by(token)}


def by(token: Token) -> dict[str, Any]:
    """A token as entries of every ledger, log and journal carry it."""
    session = {"session": token.session} if token.session else {}
    return {"attempt": token.attempt, "run": token.run, **session}


def token_of(entry: Entry) -> Token:
    """Who has written an entry; those of an earlier weir have no session."""
    return Token(Attempt(entry["attempt"]), Run(entry["run"]), entry.get("session", ""))


def apply(ledger: Ledger, entry: Entry) -> Ledger:
    """The ledger after one more entry; an entry that does not count changes nothing."""
    kind = entry["kind"]
    if kind == "opened":  # of two jobs that open a new place at once the first one owns it
        return ledger if ledger.owner else replace(ledger, owner=entry["owner"], lineage=entry["lineage"])
    token = token_of(entry)
    if not token.counts_after(ledger.fence):
        return ledger
    if kind == "fence":
        return replace(ledger, fence=token)
    if kind == "rewind":
        return replace(ledger, last=BatchId(min(ledger.last, entry["to"])), rewound=True)
    if kind == "batch":
        return replace(ledger, last=BatchId(max(ledger.last, entry["batch"])))
    raise ValueError(f"a ledger has no entries of kind {kind!r}; a newer weir wrote it")


class Standing(Enum):
    """What the fence in a ledger is to a run."""

    OWN = "own"
    """The run's own announcement."""
    OLDER = "older"
    """Of a lower token: the run may announce itself; after that, its own announcement is gone."""
    NEWER = "newer"
    """Of a higher token: the run may no longer write."""
    FOREIGN = "foreign"
    """Written from another directory: nobody knows whether that job still runs, whatever the numbers are."""


def standing(fence: Token, token: Token, *, known: bool = True) -> Standing:
    """What a fence is to the run with this token; `known`: whether it is of an attempt of its directory."""
    if not known or (fence.numbers == token.numbers and not fence.is_same(token)):
        return Standing.FOREIGN
    if fence > token:
        return Standing.NEWER
    return Standing.OLDER if fence < token else Standing.OWN


def is_known(fence: Token, session: str | None, oldest: int, above: int) -> bool:
    """Whether a fence is of an attempt that a job's directory knows.

    `session` is what the directory's record of that attempt says, None without a record and "" where that
    can't be read; `oldest` is the oldest attempt with a record, 0 without any. Up to the attempt `above` they
    were another directory's, and over: a savepoint brought them along, or the user allowed it.
    """
    if not fence.session or fence.attempt <= above or not oldest or fence.attempt < oldest:
        return True
    return session is not None and (not session or session_mark(session) == fence.session)


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


@dataclass(frozen=True)
class Dense:
    """What one run delivers: each batch after the one before it, from where its start has left off.

    A zombie may decide for a batch between a start's look at Spark's log and the first batch of its own:
    Spark then begins one later, and the zombie's batch would be nobody's.
    """

    last: BatchId
    """The last batch that is delivered, or is under way."""

    def missing(self, batch: BatchId) -> BatchId | None:
        """The batch that nobody delivers when this one is next; None when all is well."""
        return BatchId(self.last + 1) if batch != self.last + 1 else None

    def then(self, batch: BatchId) -> Dense:
        return Dense(batch)


def decided_by(staged: Staged, state: frozenset[str]) -> bool:
    """Whether the run of this staging can have written the decision record with these state ids."""
    return not state or not state.isdisjoint(staged.state_ids)


def _chosen(runs: Sequence[Staged], state: frozenset[str]) -> Staged:
    newest_first = sorted(runs, key=lambda s: s.token, reverse=True)
    deciders = [s for s in newest_first if decided_by(s, state)] or newest_first
    # Of several that saw the same file appear, the one that saw fewest is the one that wrote it.
    return min(deciders, key=lambda s: len(s.state_ids)) if state else newest_first[0]

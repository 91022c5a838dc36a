"""What the function of a function sink may ask for: a key, a token, and marks of what it has done already.

    <job>/sinks/<query>/marks/<batch>-<digest>.json    a part of a batch that is done

The digest is of the batch's key and of the part. The key holds the id that Spark knows the query by, which a
restore changes: behind one the same number stands for other rows, and no mark of before is found.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field

from weir.ids import BatchId, Token
from weir.protocol.ledger import by, token_of
from weir.storage import Store

_MARKS = "marks"


@dataclass(frozen=True)
class BatchLedger:
    """The third argument of a sink's function, for one call. For any thread; not on executors."""

    key: str
    """Names this batch, of this query, for other systems: the same when the batch runs again, and never that
    of other rows, behind a restore neither. An idempotency key.
    """
    token: Token
    """Attempt and run of this call, which only grow: of two callers the greater one is right."""
    _batch: BatchId = field(repr=False)
    _store: Store = field(repr=False)
    _check: Callable[[], None] = field(repr=False)

    def done(self, part: str) -> bool:
        """Whether this part of the batch was marked, by this call or by an earlier one of the same batch."""
        return self._store.exists(self._mark(part))

    def mark(self, part: str) -> None:
        """Say, durably, that this part is done; any text of yours names it. Safe to repeat.

        A crash between doing a part and marking it repeats that part. Raises `FencedError` in a run that
        was replaced by another.
        """
        self._check()
        body = {"key": self.key, "part": part, **by(self.token)}
        self._store.create(self._mark(part), json.dumps(body).encode())

    def _mark(self, part: str) -> str:
        digest = hashlib.sha256(json.dumps([self.key, part]).encode()).hexdigest()
        return f"{_MARKS}/{self._batch:09d}-{digest}.json"


def forget_marks(store: Store, token: Token, upto: BatchId | None = None) -> None:
    """Remove the marks of batches up to this one, or of all; those of newer runs stay. Safe to repeat."""
    for key in list(store.list(_MARKS)):
        batch = int(key.removeprefix(f"{_MARKS}/").partition("-")[0])
        data = store.get(key) if upto is None or batch <= upto else None
        if data is not None and _is_of(data, token):
            store.delete(key)


def _is_of(data: bytes, token: Token) -> bool:
    """Whether a mark is of this run or an older one; nobody knows of a damaged one, so it stays."""
    try:
        return token_of(json.loads(data)) <= token
    except (ValueError, KeyError, TypeError, AttributeError):
        return False

"""A savepoint that a restore has claimed: it is weir's, and goes when checkpoints have made up for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from weir.errors import NotASavepointError, WeirError
from weir.protocol import messages as m
from weir.savepoint.copying import dispose
from weir.savepoint.place import Place
from weir.storage.generations import Origin


class Claim:
    """Hears of completed checkpoints; deletes the savepoint, beside everything else, when there are enough.

    As many as are retained: the savepoint stands for the oldest of them. Counted anew at each start. One
    that a restore waits for stays: `awaited` says what that goes on from.
    """

    def __init__(
        self,
        origin: Origin,
        enough: int,
        awaited: Callable[[], str],
        report: Callable[[m.Message], None],
    ) -> None:
        self._place = origin.restored_from if origin.claim and origin.saved else ""
        self._left = enough
        self._awaited = awaited
        self._report = report

    def completed(self, _id: int) -> None:
        """One more checkpoint is complete."""
        self._left -= 1
        if self._place and self._left == 0:
            threading.Thread(target=self._delete, name="weir-claim", daemon=True).start()

    def _delete(self) -> None:
        try:
            if self._awaited() == self._place:
                return
            dispose(Place(self._place))
        except NotASavepointError:
            return  # an earlier start has deleted it
        except WeirError as error:
            self._report(m.Noted(f"the claimed savepoint stays: {error.text}"))
        else:
            self._report(m.SavepointsDeleted([self._place]))

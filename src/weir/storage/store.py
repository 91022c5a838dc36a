"""The six verbs that weir asks of any storage, and what each must guarantee.

Keys are relative, '/'-separated and never escape the store's root. Values are small (control
files). A verb that is known to have failed raises `StorageError`; one whose outcome can't be known
(a time-out, a lost answer) raises `OutcomeUnknownError`; every verb is safe to repeat.
The one contract suite for all backends is `tests/contract/test_store.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Protocol


class Created(Enum):
    """What became of a create-if-absent."""

    NOW = "created now"
    EXISTS = "already exists"


class Store(Protocol):
    """A place for control files."""

    @property
    def url(self) -> str:
        """The root, for messages and for opening the same store elsewhere."""

    def create(self, key: str, data: bytes) -> Created:
        """Write the key if it is absent.

        Of any number of concurrent callers exactly one gets `NOW`; after that the value is complete,
        durable and never changes by this verb. No reader ever sees an incomplete one.
        """

    def put(self, key: str, data: bytes) -> None:
        """Write the key, whatever was there. Readers see the old or the new value, never a mixture."""

    def get(self, key: str) -> bytes | None:
        """The value, or None when the key is absent. A `get` after a `create` or `put` sees it."""

    def exists(self, key: str) -> bool:
        """Whether the key is there. What can't be found out is an error, and never False."""

    def list(self, prefix: str) -> Iterator[str]:
        """All keys below the folder `prefix`, in order of their text; none when it is absent.

        All of them, or an error: a folder that can't be read never counts as an empty one.
        """

    def delete(self, key: str) -> None:
        """Remove the key; an absent one is no error."""

"""Object stores (S3, GCS, Azure) and memory, through obstore.

Create-if-absent is the store's own conditional put. An answer that never came is reported as
`OutcomeUnknownError`: the caller reads before it retries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError
from obstore.store import MemoryStore, from_url

from weir.errors import OutcomeUnknownError, StorageError, WeirError
from weir.storage.store import Created


class ObjectStore:
    """Any store that obstore can open by URL; `memory://` lives as long as the object."""

    def __init__(self, url: str) -> None:
        self._url = url if url.endswith("://") else url.rstrip("/")
        try:
            self._store: Any = MemoryStore() if url.startswith("memory://") else from_url(url)
        except BaseError as error:  # no such kind of store, or a setting of the environment is missing
            reason = str(error).partition("\n")[0]
            raise StorageError(verb="open", path=url, reason=reason, root=url) from error

    @property
    def url(self) -> str:
        return self._url

    def create(self, key: str, data: bytes) -> Created:
        try:
            obstore.put(self._store, key, data, mode="create")
        except AlreadyExistsError:
            return Created.EXISTS
        except BaseError as error:
            raise self._failed("create", key, error) from error
        return Created.NOW

    def put(self, key: str, data: bytes) -> None:
        try:
            obstore.put(self._store, key, data)
        except BaseError as error:
            raise self._failed("write", key, error) from error

    def get(self, key: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._store, key).bytes())
        except FileNotFoundError:
            return None
        except BaseError as error:
            raise self._failed("read", key, error) from error

    def exists(self, key: str) -> bool:
        try:
            obstore.head(self._store, key)
        except FileNotFoundError:
            return False
        except BaseError as error:
            raise self._failed("look for", key, error) from error
        return True

    def list(self, prefix: str) -> Iterator[str]:
        folder = prefix.rstrip("/") + "/" if prefix else None
        try:
            keys = [str(item["path"]) for page in obstore.list(self._store, prefix=folder) for item in page]
        except BaseError as error:
            raise self._failed("list", prefix, error) from error
        return iter(sorted(keys))

    def delete(self, key: str) -> None:
        try:
            obstore.delete(self._store, key)
        except FileNotFoundError:
            return
        except BaseError as error:
            raise self._failed("delete", key, error) from error

    def _failed(self, verb: str, key: str, error: Exception) -> WeirError:
        unknown = isinstance(error, GenericError) and verb in ("create", "write", "delete")
        kind = OutcomeUnknownError if unknown else StorageError
        return kind(verb=verb, path=f"{self._url}/{key}", reason=type(error).__name__, root=self._url)

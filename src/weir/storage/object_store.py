"""Object stores (S3, GCS, Azure) and memory, through obstore.

Create-if-absent is the store's own conditional put. An answer that never came is reported as
`OutcomeUnknownError`: the caller reads before it retries. An S3 server that ignores the condition would
let two writers win: each process tries it once for a bucket, at a key that no listing shows.

Endpoint, region and credentials come from the environment, and never into an error: of what a server
answers only its code is repeated.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import MemoryStore, from_url

from weir.errors import OutcomeUnknownError, StorageError, WeirError
from weir.storage.store import Created

PATIENCE = 30.0
"""How many seconds a request may take, and how long one that is safe to repeat is repeated."""
_RETRIES = 10
_TRIED = ".weir-conditional-put"
"""The key at which a server is tried; it stays, so that the next process needs one request for it."""
_WRITER = "weirwriter"
"""The attribute that names who created an object; Azure takes letters only."""
_ERRORS = (BaseError, OSError, NotImplementedError)
"""What obstore raises: some of it are Python's own errors."""
_KINDS = {"s3": "AWS", "s3a": "AWS", "gs": "GOOGLE"}
"""How the variables of each kind of store begin; those of all others are of Azure."""
_CLIENT = (
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "timeout", "user_agent"),
    *("proxy_url", "proxy_ca_certificate", "proxy_excludes"),
)
"""Settings of the client: obstore reads them from the environment only when it is given none."""
_CODE = re.compile(r"<Code>(\w+)</Code>")
_IGNORED = "the server replaces what it should only create: of two writers both would win"
_UNKNOWN_TO_IT = "it has no conditional put ('If-None-Match: *'), or AWS_CONDITIONAL_PUT turns it off"


class ObjectStore:
    """Any store that obstore can open by URL; `memory://` lives as long as the object."""

    _tried: set[tuple[str, str]] = set()
    """Buckets whose server was found to keep the condition."""

    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        self._url = url if url.endswith("://") else url.rstrip("/")
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError:  # it may hold a secret with a slash in it, so it is not repeated
            bare = url.partition("://")[0] + "://"
            reason = "the URL can't be read: write BUCKET and folders, and keep secrets in the environment"
            raise StorageError(verb="open", path=bare, reason=reason, root=bare) from None
        if parts.password or parts.query:
            bare = f"{parts.scheme}://{parts.hostname}{parts.path}"
            reason = "the URL holds a secret, and URLs are shown and logged: put it into the environment"
            raise StorageError(verb="open", path=bare, reason=reason, root=bare)
        self._bucket = (f"{parts.scheme}://{parts.netloc}", _endpoint())
        try:
            self._store: Any = MemoryStore() if parts.scheme == "memory" else _opened(url, patience)
        except _ERRORS as error:  # no such kind of store, or a setting of the environment is missing
            raise StorageError(verb="open", path=url, reason=_reason(error), root=url) from None

    @property
    def url(self) -> str:
        return self._url

    def create(self, key: str, data: bytes) -> Created:
        self._try_the_condition(key)
        return self._created(key, data)

    def put(self, key: str, data: bytes) -> None:
        try:
            obstore.put(self._store, key, data)
        except _ERRORS as error:
            raise self._failed("write", key, error) from None

    def get(self, key: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._store, key).bytes())
        except FileNotFoundError as error:
            if _code(error) == "NoSuchBucket":
                raise self._failed("read", key, error) from None
            return None
        except _ERRORS as error:
            raise self._failed("read", key, error) from None

    def exists(self, key: str) -> bool:
        try:
            obstore.head(self._store, key)
        except FileNotFoundError:
            return False
        except _ERRORS as error:
            raise self._failed("look for", key, error) from None
        return True

    def list(self, prefix: str) -> Iterator[str]:
        folder = prefix.rstrip("/") + "/" if prefix else None
        try:
            keys = [str(item["path"]) for page in obstore.list(self._store, prefix=folder) for item in page]
        except _ERRORS as error:
            raise self._failed("list", prefix, error) from None
        return iter(sorted(key for key in keys if key != _TRIED))

    def delete(self, key: str) -> None:
        try:
            obstore.delete(self._store, key)
        except FileNotFoundError:
            return
        except _ERRORS as error:
            raise self._failed("delete", key, error) from None

    def _created(self, key: str, data: bytes) -> Created:
        writer = secrets.token_hex(8)
        try:
            obstore.put(self._store, key, data, mode="create", attributes={_WRITER: writer})
        except AlreadyExistsError:
            # obstore repeats a request that a server answered with an error, although it may have been done.
            return Created.NOW if self._writer(key) == writer else Created.EXISTS
        except _ERRORS as error:
            raise self._failed("create", key, error) from None
        return Created.NOW

    def _writer(self, key: str) -> str:
        """Who created an object; "" when that is not known."""
        try:
            return str(obstore.get(self._store, key).attributes.get(_WRITER, ""))
        except FileNotFoundError:
            return ""
        except _ERRORS as error:
            reason = _reason(error)
            raise OutcomeUnknownError(verb="create", path=f"{self._url}/{key}", reason=reason) from None

    def _try_the_condition(self, key: str) -> None:
        """Raise `StorageError` when the server would let two writers of one key win."""
        if not self._url.startswith("s3") or self._bucket in self._tried:
            return
        try:
            kept = Created.EXISTS in (self._created(_TRIED, b""), self._created(_TRIED, b""))
        except (StorageError, OutcomeUnknownError) as error:  # nothing was asked of the key itself yet
            raise self._refused("create", key, str(error.fields["reason"])) from None
        if not kept:
            raise self._refused("create", key, _IGNORED)
        self._tried.add(self._bucket)

    def _refused(self, verb: str, key: str, reason: str) -> StorageError:
        return StorageError(verb=verb, path=f"{self._url}/{key}", reason=reason, root=self._url)

    def _failed(self, verb: str, key: str, error: Exception) -> WeirError:
        reason = _reason(error)
        if isinstance(error, GenericError) and verb in ("create", "write", "delete"):
            return OutcomeUnknownError(verb=verb, path=f"{self._url}/{key}", reason=reason)
        return self._refused(verb, key, reason)


def _opened(url: str, patience: float) -> Any:
    limit = timedelta(seconds=patience)
    own: Any = {"timeout": limit, "allow_http": _endpoint().startswith("http://")}
    kind = _KINDS.get(url.partition(":")[0], "AZURE")
    given = {name: os.environ.get(f"{kind}_{name}".upper()) for name in _CLIENT}
    return from_url(
        url,
        client_options=own | {name: value for name, value in given.items() if value},
        retry_config={"max_retries": _RETRIES, "retry_timeout": limit},
    )


def _endpoint() -> str:
    """Where S3 is, when it is not Amazon's; http without TLS is what the user asked for then."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _code(error: Exception) -> str:
    """What the server calls it."""
    found = _CODE.search(str(error))
    return found[1] if found else ""


def _reason(error: Exception) -> str:
    """Why it failed, in words, and without what the server repeats of the request."""
    text, code = str(error).partition("\n")[0], _code(error)
    if isinstance(error, NotImplementedError) or code == "NotImplemented":
        return _UNKNOWN_TO_IT
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
        return f"the credentials were refused, or permission is missing ({code or type(error).__name__})"
    if code == "NoSuchBucket":
        return "there is no such bucket"
    if code:
        return f"the server answered {code}"
    if "Missing" in text:
        return f"{text.rpartition(': ')[2]}: credentials are taken from the environment"
    if "error sending request" in text or "HTTP error" in text:
        return f"the server can't be reached or does not answer ({text.rpartition('HTTP error: ')[2]})"
    return text if "URL" in text else type(error).__name__

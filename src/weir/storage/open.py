"""From a directory or URL to its store."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from weir.storage.local import LocalStore
from weir.storage.store import Store


def local_state() -> Path:
    """Where this user's weir keeps what is of this machine: the token, and beside jobs in object stores."""
    return Path.home() / ".local" / "state" / "weir"


def is_local(url: str) -> bool:
    """Whether the place is a path of this machine (a plain path or a file: URL)."""
    return url.startswith("file:") or "://" not in url


def local_path(url: str) -> str:
    """The path of a local place."""
    return url.removeprefix("file://").removeprefix("file:") if url.startswith("file:") else url


def absolute(url: str) -> str:
    """The place with an absolute path, for people."""
    return str(Path(local_path(url)).absolute()) if is_local(url) else url


def spark_url(url: str) -> str:
    """The same place as Spark's Hadoop file systems call it."""
    return "s3a" + url.removeprefix("s3") if url.startswith("s3://") else url


def beside(directory: str, key: str) -> Path:
    """The local path for a file that is kept beside a job: SQLite and logs need a file system."""
    root = Path(local_path(directory)) if is_local(directory) else local_state() / quote(directory, safe="")
    return root / key


def open_store(url: str) -> Store:
    """Open the store at a path, `file:`, `memory://`, `s3://`, `gs://` or `az://` URL."""
    if is_local(url):
        return LocalStore(local_path(url))
    from weir.storage.object_store import ObjectStore  # noqa: PLC0415  loads obstore

    return ObjectStore(url)

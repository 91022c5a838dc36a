"""From a directory or URL to its store, and who may look into what a job keeps there: only its own user.

State, journal and logs hold the job's data, and whoever may write there commands the job
(`supervisor/inbox.py`). Only the job's directory itself is closed: so the files in it need no mode of their
own, and output that a sink writes elsewhere keeps the one that the user's umask gives it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import quote

from weir.errors import PreflightError
from weir.ids import JobName
from weir.storage import paths
from weir.storage.local import LocalStore
from weir.storage.store import Store

_OWNER_ONLY = 0o700


def local_state() -> Path:
    """Where this user's weir keeps what is of this machine: the token, and beside jobs in object stores."""
    return Path.home() / ".local" / "state" / "weir"


def is_local(url: str) -> bool:
    """Whether the place is a path of this machine (a plain path or a file: URL)."""
    return url.startswith("file:") or not ("://" in url or _is_hdfs(url))


def _is_hdfs(url: str) -> bool:
    """Whether it is a place of an HDFS; like Hadoop, `hdfs:/a` means the default one."""
    return url.startswith(("hdfs:", "viewfs:"))


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
    """Open the store at a path, `file:`, `memory://`, `hdfs:`, `viewfs:`, `s3://`, `gs://` or `az://` URL."""
    if is_local(url):
        return LocalStore(local_path(url))
    if _is_hdfs(url):
        try:
            from weir.storage.hadoop import HdfsStore  # noqa: PLC0415  loads hdfs_native
        except ModuleNotFoundError as error:
            raise PreflightError(
                what="the package hdfs-native is not installed",
                why=f"weir opens {url} with it, without a JVM",
                todo="pip install 'weir[hdfs]'",
            ) from error
        return HdfsStore(url)
    from weir.storage.object_store import ObjectStore  # noqa: PLC0415  loads obstore

    return ObjectStore(url)


def close_to_others(dir: str, job: JobName) -> str:
    """Make the job's directory, for its owner alone; returns a note for the user, mostly "".

    One that was open is closed, unless it is another user's. Where the storage refuses, it stays as it
    is, and the note says so: the next write there fails loudly if the directory can't be used.
    """
    folder = beside(dir, paths.job(job))
    try:
        if not is_local(dir):
            folder = _made(local_state()) / folder.relative_to(local_state())
        _made(folder)
        about = folder.stat()
        mode = stat.S_IMODE(about.st_mode)
        if not mode & 0o077 or about.st_uid != os.getuid():
            return ""
        folder.chmod(_OWNER_ONLY)
    except OSError as error:
        return f"other users may be able to read {folder}: {error.strerror or error}"
    return (
        f"{folder} was open to other users (mode {mode:04o}) and is closed now; "
        "execution.checkpointing.dir-access=umask leaves it as it is"
    )


def _made(folder: Path) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=_OWNER_ONLY, exist_ok=True)
    return folder

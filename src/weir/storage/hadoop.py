"""HDFS as a store, through hdfs-native: a client without a JVM, for `hdfs:` and `viewfs:` places.

Every write is: a temporary file beside the target, written, forced to the disks of its DataNodes (hsync),
closed, and renamed. The rename of a create does not replace: the NameNode refuses it when the target is
there, so of any number of writers one wins. Temporary files start with a dot and are never listed. The first
write of a process into a folder deletes those that killed writers have left there an hour ago or longer.

What NameNodes and DataNodes must be is read where Hadoop's own clients read it: HADOOP_CONF_DIR, or
HADOOP_HOME/etc/hadoop; so is a user's Kerberos ticket, and HADOOP_USER_NAME where there is no Kerberos.
"""

from __future__ import annotations

import atexit
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Generic, TypeVar, cast

from hdfs_native import Client, WriteOptions

from weir.clock import Clock
from weir.errors import OutcomeUnknownError, StorageError
from weir.storage.store import Created

PATIENCE = 30.0
"""How many seconds a verb waits for a NameNode that is starting, in safe mode, or handing over to another."""
_ANSWER = 10.0
"""How many seconds one request may take: the client itself waits for ever."""
_SETTLING = 0.03
_SLOWEST = 0.24
"""Seconds until a file that is closed is completed from here: at first, and on a busy machine."""
_LAST = 2.0
_DRAWS, _SOON = 6, 2.0
"""How often another order of NameNodes is drawn, and how many seconds the first of them has to answer."""
_CHUNK = 4 << 20
_QUICK_FAILOVER = {
    "dfs.client.failover.max.attempts": "3",
    "dfs.client.failover.sleep.base.millis": "10",
    "dfs.client.failover.sleep.max.millis": "50",
}
"""Each NameNode is asked, and what it answered comes back at once: the patience is ours."""
_LEFT_OVER = 3600.0

Result = TypeVar("Result")


class RefusedError(Exception):
    """HDFS did not do it; `passing` when it may do so in a moment."""

    def __init__(self, reason: str, *, passing: bool) -> None:
        super().__init__(reason)
        self.reason, self.passing = reason, passing


class _UnansweredError(Exception):
    """Whether HDFS did it can't be found out now."""


class HdfsStore:
    """A folder of an HDFS. For use from any thread."""

    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        place, self._root = _parts(url)
        self._url, self._patience = place + self._root, patience
        try:
            self._cluster = _Cluster.of(place)
        except RuntimeError as error:
            raise StorageError(verb="open", path=url, reason=_refused(error).reason, root=url) from error

    @property
    def url(self) -> str:
        return self._url

    def create(self, key: str, data: bytes) -> Created:
        """As every store; when it returns, the value is on the disks of all DataNodes that hold it."""
        return Created.NOW if self._written("create", key, data, overwrite=False) else Created.EXISTS

    def put(self, key: str, data: bytes) -> None:
        """As every store; when it returns, the value is on the disks of all DataNodes that hold it."""
        self._written("write", key, data, overwrite=True)

    def get(self, key: str) -> bytes | None:
        with self._in_words("read", key):
            return self._content(self._path(key))

    def exists(self, key: str) -> bool:
        with self._in_words("look for", key):
            try:
                self._patiently(lambda: self._ask(lambda client: client.get_file_info(self._path(key))))
            except FileNotFoundError:
                return False
            return True

    def list(self, prefix: str) -> Iterator[str]:
        with self._in_words("list", prefix):
            top, found = self._path(prefix).rstrip("/") or "/", []
            todo = [top]
            while todo:
                for status in self._listed(todo.pop()):
                    if status.isdir:
                        todo.append(status.path)
                    elif status.path != top and not status.path.rpartition("/")[2].startswith("."):
                        found.append(status.path)
        return iter(sorted(path[len(self._root) + 1 :] for path in found))

    def delete(self, key: str) -> None:
        """As every store; and delete the folders that it leaves empty, for a store has none."""
        path = self._path(key)
        with self._in_words("delete", key, changes=True):
            self._patiently(lambda: self._ask(lambda client: client.delete(path)))
        folder = path.rpartition("/")[0]
        with suppress(RefusedError, OSError):
            while len(folder) > len(self._root):
                self._ask(partial(_delete, folder))
                folder = folder.rpartition("/")[0]

    def _path(self, key: str) -> str:
        if key.startswith("/") or ".." in key.split("/"):
            raise StorageError(verb="use", path=key, reason="a key must stay below the root", root=self.url)
        return f"{self._root}/{key}"

    @contextmanager
    def _in_words(self, verb: str, key: str, *, changes: bool = False) -> Iterator[None]:
        """The errors of the contract for those of this module."""
        path = f"{self.url}/{key}"
        try:
            yield
        except _UnansweredError as error:
            raise OutcomeUnknownError(verb=verb, path=path, reason=str(error)) from error
        except RefusedError as error:
            if changes and error.passing:
                raise OutcomeUnknownError(verb=verb, path=path, reason=error.reason) from error
            raise StorageError(verb=verb, path=path, reason=error.reason, root=self.url) from error
        except NotImplementedError as error:  # it reads no file of an encryption zone
            reason = f"hdfs-native does not know how: {_first_line(str(error))}"
            raise StorageError(verb=verb, path=path, reason=reason, root=self.url) from error

    def _written(self, verb: str, key: str, data: bytes, *, overwrite: bool) -> bool:
        """Write a value; False when it may not replace what is there."""
        path = self._path(key)
        with self._in_words(verb, key):
            temporary = self._patiently(lambda: self._beside(path, data))
            try:
                self._patiently(lambda: self._ask(lambda client: client.rename(temporary, path, overwrite)))
            except FileExistsError:
                # A rename looks for its source first: it was there, so no earlier try of ours can have won.
                self._forget(temporary)
                return False
            except FileNotFoundError:
                self._settle(path, data)
            except RefusedError as error:
                # The client repeats by itself what was not answered, so this is the answer to the last try
                # only. One that is still on its way shall find nothing.
                self._forget(temporary)
                if error.passing:
                    raise _UnansweredError(error.reason) from error
                raise
            return True

    def _settle(self, path: str, data: bytes) -> None:
        """The source of a rename is gone: an earlier try has moved it, and its answer was lost.

        Or a sweep took it, because this process was stopped for an hour: then the value is not ours.
        """
        try:
            found = self._content(path)
        except RefusedError as error:
            raise _UnansweredError(error.reason) from error
        if found != data:
            raise _UnansweredError("the answer was lost, and the value there is another one")

    def _beside(self, path: str, data: bytes) -> str:
        """A temporary file with this content, complete and on the disks of its DataNodes."""
        folder, _, name = path.rpartition("/")
        temporary = f"{folder}/.{name}.{secrets.token_hex(6)}.tmp"
        options = WriteOptions(create_parent=True, overwrite=False)
        try:
            writer = self._ask(partial(_create, temporary, options))
            for at in range(0, len(data), _CHUNK):
                self._ask(partial(_append, writer, data[at : at + _CHUNK]))
            if data:
                self._ask(lambda _: writer.hsync(), _ANSWER + len(data) / _CHUNK)
            self._close(writer, temporary, len(data))
        except NotImplementedError as error:
            self._forget(temporary)
            reason = f"weir writes replicated files, neither encrypted nor erasure-coded ones: {error}"
            raise RefusedError(reason, passing=False) from error
        except (FileExistsError, FileNotFoundError) as error:  # the answer to a repeated request
            self._forget(temporary)
            raise RefusedError(_first_line(str(error)), passing=True) from error
        except RefusedError:
            self._forget(temporary)
            raise
        self._sweep(folder or "/", temporary)
        return temporary

    def _close(self, writer: Any, temporary: str, size: int) -> None:
        """Close a file that is written.

        The NameNode completes it when a DataNode has reported the block. The client asks for that at once,
        mostly a moment too early, and then once more after half a second: recovering the lease completes
        the file sooner. Where the client has not asked yet, that takes the file from it instead: closing
        fails, the caller writes another one, and the next wait is longer.
        """
        cluster, closing, recovering = self._cluster, _Request(writer.close), False
        wait = cluster.settling
        while not closing.ended(wait):
            recovering = True
            with suppress(FileExistsError):  # the block is not reported yet
                if self._ask(lambda client: client.recover_lease(temporary)):
                    cluster.settling = max(_SETTLING, 0.8 * wait)
                    break
            if closing.seconds > _ANSWER:
                raise RefusedError(f"a file was not completed within {_ANSWER:g} s", passing=True)
        else:
            try:
                closing.result()
            except Exception as error:
                if recovering:
                    cluster.settling = min(2 * wait, _SLOWEST)
                    raise RefusedError(_refused(error).reason, passing=True) from error
                raise _refused(error) from error
        if (there := self._ask(lambda client: client.get_file_info(temporary)).length) != size:
            raise RefusedError(f"a file has {there} bytes instead of {size}", passing=True)

    def _sweep(self, folder: str, own: str) -> None:
        """Delete what killed writers have left in a folder; by the NameNode's clock, which made all of it."""
        if folder in self._cluster.swept:
            return
        self._cluster.swept.add(folder)
        with suppress(RefusedError):
            files = [status for status in self._listed(folder) if _is_temporary(status.path)]
            now = next((file.modification_time for file in files if file.path == own), 0)
            for file in files:
                if file.modification_time < now - _LEFT_OVER * 1000:
                    self._forget(file.path)

    def _forget(self, temporary: str) -> None:
        """Delete a temporary file, without waiting for it; one that stays is swept later."""
        client = self._cluster.client
        _Request(lambda: client.delete(temporary))

    def _content(self, path: str) -> bytes | None:
        def read() -> bytes:
            reader = self._ask(lambda client: client.read(path))
            data = b"".join(iter(lambda: self._ask(lambda _: reader.read(_CHUNK)), b""))
            if len(data) != len(reader):  # it was replaced meanwhile
                raise RefusedError(f"only {len(data)} of {len(reader)} bytes could be read", passing=True)
            return data

        try:
            return self._patiently(read)
        except FileNotFoundError as error:
            if "is not a file" in str(error):
                raise RefusedError("is not a regular file", passing=False) from error
            return None

    def _listed(self, folder: str) -> Sequence[Any]:
        """What is in a folder; nothing when it is absent, or was deleted meanwhile."""
        try:
            return self._patiently(lambda: self._ask(lambda client: [*client.list_status(folder)], PATIENCE))
        except FileNotFoundError:
            return []

    def _patiently(self, step: Callable[[], Result]) -> Result:
        """Repeat a step as long as HDFS may still do it; only what may be done twice."""
        clock, pause = Clock(), 0.1
        until = clock.monotonic() + self._patience
        while True:
            try:
                return step()
            except RefusedError as error:
                if not error.passing or clock.monotonic() + pause > until:
                    raise
            clock.sleep(pause)
            pause = min(2 * pause, 2.0)

    def _ask(self, work: Callable[[Client], Result], seconds: float = _ANSWER) -> Result:
        """One request; raises `RefusedError`, or what says something about the file itself."""
        client = self._cluster.client
        request = _Request(lambda: work(client))
        if not request.ended(min(seconds, self._patience)):
            self._cluster.renew(client)
            raise RefusedError("HDFS does not answer", passing=True)
        try:
            return request.result()
        except (FileNotFoundError, FileExistsError, NotImplementedError):
            raise
        except Exception as error:
            raise _refused(error) from error


def _delete(path: str, client: Client) -> None:
    client.delete(path)


class _NoWriter:
    """What is left in the client's own writer when its inner one was taken out."""

    def close(self) -> None:
        pass


def _create(path: str, options: WriteOptions, client: Client) -> Any:
    """The inner writer of a new file.

    The outer one asks the NameNode once more when it is collected: in whatever thread that happens to be, and
    for ever where nothing answers.
    """
    outer = client.create(path, options)
    inner, outer.inner = outer.inner, cast(Any, _NoWriter())
    return inner


def _append(writer: Any, chunk: bytes, _client: Client) -> None:
    writer.write(chunk)


class _Request(Generic[Result]):
    """Work in a thread of its own: the client may wait for ever, and knows no limit."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work, self._end = work, threading.Event()
        self._result: Result | None = None
        self._error: Exception | None = None
        self._clock = Clock()
        self._began = self._clock.monotonic()
        _running.add(self)
        threading.Thread(target=self._do, name="weir-hdfs", daemon=True).start()

    @property
    def seconds(self) -> float:
        """How long ago it began."""
        return self._clock.monotonic() - self._began

    def ended(self, seconds: float) -> bool:
        """Wait for its end, this long."""
        return self._end.wait(seconds)

    def result(self) -> Result:
        """What it has returned or raised, when it has ended."""
        if self._error is not None:
            raise self._error
        return cast(Result, self._result)

    def _do(self) -> None:
        try:
            self._result = self._work()
        except Exception as error:
            self._error = error
        except BaseException as error:  # a panic of the client
            self._error = RuntimeError(str(error))
        self._end.set()
        _running.discard(self)


_running: set[_Request[Any]] = set()


@atexit.register
def _wait_for_the_last() -> None:
    """An interpreter that ends while the client is at work in another thread would abort the process."""
    until = Clock().monotonic() + _LAST
    for request in list(_running):
        request.ended(max(0.0, until - Clock().monotonic()))


class _Cluster:
    """This process's connection to one HDFS, shared by all its stores."""

    _all: dict[tuple[int, str, str], _Cluster] = {}
    _lock = threading.Lock()

    def __init__(self, place: str) -> None:
        self._place = place
        self.client = Client(place, dict(_QUICK_FAILOVER))
        self._renewing = threading.Lock()
        self.settling = _SETTLING
        self.swept: set[str] = set()
        """The folders in which leftovers were looked for."""

    @classmethod
    def of(cls, place: str) -> _Cluster:
        """That of a place; a process that was forked has its own."""
        key = (os.getpid(), place, os.environ.get("HADOOP_CONF_DIR", ""))
        with cls._lock:
            if key not in cls._all:
                cls._all[key] = cls(place)
            return cls._all[key]

    def renew(self, silent: Client) -> None:
        """Connect once more; of several NameNodes to one that answers, for the first may be gone for good."""
        with self._renewing:
            if self.client is not silent:
                return
            service = self._place.partition("://")[2]
            settings = {**_QUICK_FAILOVER, f"dfs.client.failover.random.order.{service}": "true"}
            self.client = Client(self._place, settings)
            for _ in range(0 if ":" in service else _DRAWS):
                if _Request(partial(self.client.get_file_info, "/")).ended(_SOON):
                    return
                self.client = Client(self._place, settings)


def _parts(url: str) -> tuple[str, str]:
    """Scheme with host, and path; without a host it is the default HDFS, as `hdfs:/a` is to Hadoop."""
    scheme, _, rest = url.partition(":")
    host, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest.lstrip("/"))
    path = re.sub(r"/+", "/", path).strip("/")
    return f"{scheme}://{host}", f"/{path}" if path else ""


def _is_temporary(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.startswith(".") and name.endswith(".tmp")


_CLASS = re.compile(r'\w*RPCError\("([\w.$]+)", "(.*)"\)', re.DOTALL)
_OTHER = re.compile(r'(\w+)\((?:"(.*)")?.*\)', re.DOTALL)
_PASSING = ("StandbyException", "RetriableException", "ObserverRetryOnActiveException", "SafeModeException")
_UNREADY = ("could only be written to", "Name node is in safe mode", "No live nodes", "Zero blocklocations")
_IN_WORDS = {
    "AccessControlException": "permission is missing",
    "NSQuotaExceededException": "the quota of names is used up",
    "DSQuotaExceededException": "the quota of space is used up",
    "SafeModeException": "the NameNode is in safe mode",
    "StandbyException": "no NameNode is active",
    "ParentNotDirectoryException": "a folder on the way there is a file",
    "PathIsNotEmptyDirectoryException": "is not a regular file",
    "InvalidPathException": "HDFS knows no such name",
}
_KERBEROS = ("SASLError", "GSSAPIError", "NoSASLMechanism")


def _refused(error: Exception) -> RefusedError:
    """Why HDFS refused, in words, from what the client says."""
    text = str(error)
    if isinstance(error, OSError):
        return RefusedError(f"HDFS can't be reached: {text}", passing="lookup address" not in text)
    if rpc := _CLASS.fullmatch(text):
        kind, detail = rpc[1].rpartition(".")[2], _first_line(rpc[2])
        passing = kind in _PASSING or any(words in detail for words in _UNREADY)
        words = _IN_WORDS.get(kind)
        return RefusedError(f"{words}: {detail}" if words else detail or kind, passing=passing)
    found = _OTHER.fullmatch(text)
    kind, detail = (found[1], _first_line(found[2] or "")) if found else ("", _first_line(text))
    if kind in _KERBEROS:
        return RefusedError(
            f"Kerberos did not accept this user: {detail or kind}; klist shows the tickets", passing=False
        )
    if "No NameNode hosts found" in detail or "URL must contain a host" in detail:
        reason = "no NameNode of this name is known: name host and port, or set HADOOP_CONF_DIR"
        return RefusedError(reason, passing=False)
    passing = kind in (
        "DataTransferError",
        "OperationFailed",
        "BlocksNotFound",
        "ChecksumError",
        "InternalError",
    )
    return RefusedError(detail or kind, passing=passing)


def _first_line(text: str) -> str:
    return text.replace("\\n", "\n").replace('\\"', '"').partition("\n")[0].strip()

"""Copy a savepoint to another storage, and delete one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from weir.errors import NotASavepointError
from weir.savepoint.manifest import MANIFEST, SavedFile
from weir.savepoint.object_store import discard, is_mark
from weir.savepoint.place import Place
from weir.savepoint.take import Progress, Taken
from weir.savepoint.verify import VERIFIED
from weir.savepoint.writing import begin, delete
from weir.storage import files, open_store


def copy(
    place: Place,
    target: str,
    progress: Progress = lambda _done, _total: None,
    read: Callable[[], None] = lambda: None,
) -> Taken:
    """Copy a savepoint into a folder or URL, under its own name; the copy is as good as the original.

    `read` is called when all is read: the storage may take long to make the rest durable.

    When it raises, nothing of the copy is left. Raises `DamagedSavepointError` when the original is
    not whole, `NotASavepointError` when it is none.
    """
    savepoint = place.read()
    writing = begin(target, savepoint.name, savepoint.lineage)
    done, lock = 0, threading.Lock()

    def counted(file: SavedFile) -> Iterator[bytes]:
        nonlocal done
        for chunk in place.chunks(file):
            yield chunk
            with lock:
                done += len(chunk)
                all_read = done == savepoint.bytes
            progress(done, savepoint.bytes)
            if all_read:
                read()

    try:
        files.parallel(lambda file: writing.add(file.path, counted(file)), savepoint.files)
        return Taken(writing.finish(savepoint), savepoint)
    finally:
        writing.give_up()


def dispose(place: Place) -> Taken:
    """Delete a savepoint, whole or damaged.

    Raises `NotASavepointError` for a place that is none, or that holds other files too.
    """
    savepoint = place.read()
    own = {MANIFEST, VERIFIED, *(file.path for file in savepoint.files)}
    others = sorted(name for name in set(place.names()) - own if place.folder or not is_mark(name))
    if others:
        reason = f"it holds other files too, like {others[0]}: move them away first"
        raise NotASavepointError(place=place.url, reason=reason)
    delete(place.url)
    return Taken(place.url, savepoint)


def clear(place: Place) -> bool:
    """Delete what a killed writer or a killed deletion has left in an object store; False when there is none.

    Whoever asks for it knows that they are dead. On a file system nothing of them can be seen.
    """
    return place.folder is None and discard(open_store(place.url))

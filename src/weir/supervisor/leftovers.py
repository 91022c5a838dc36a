"""What a job has left that nothing needs: found here, deleted at each start and by `weir clean`.

Kept whatever the settings are: all that the live generation, a restore that was asked for, or a retained
checkpoint needs; the newest attempt's output and record. Where a manifest can't be read, it may need
anything, and no generation or shape goes. Savepoints and checkpoints are not looked at: `weir savepoint
dispose` and the retention of checkpoints delete those.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from weir.checkpoint import manifest as mf
from weir.checkpoint.manifest import Manifest
from weir.clock import Clock
from weir.config import Settings
from weir.errors import ExternalError
from weir.ids import Generation, JobName
from weir.storage import Store, files, open_store, paths, scratch
from weir.storage import generation as generations
from weir.storage.open import beside, is_local

_SHAPES_KEPT = 20
"""The shapes of this many starts stay in any case."""
_ANSWER_SECONDS = 86400.0
"""After this time nobody will fetch an answer any more."""
_ATTEMPT = re.compile(r"(\d+)\.(?:json|beat)", re.ASCII)
_LOG = re.compile(r"driver-(\d+)\.log(?:\.\d+)?")


@dataclass(frozen=True)
class JobLeftover:
    """Something that may go."""

    kind: str
    """"log", "attempt", "answer", "shape", "generation" or "scratch"."""
    path: str
    bytes: int | None
    """None where its size can't be asked for."""
    key: str = ""
    """Its key in the store; "" for a file or folder beside it."""


def leftovers(dir: str, job: JobName, settings: Settings, clock: Clock) -> list[JobLeftover]:
    """What would go now; nothing is touched. Also the scratch directories of drivers that have ended."""
    store = open_store(dir)
    found = [
        *_logs(beside(dir, paths.logs(job)), settings, clock),
        *_attempts(store, job, settings.history_retain_attempts),
    ]
    if is_local(dir):
        found += _answers(files.folder_of(store) / paths.requests(job))
        manifests = _manifests(store, job)
        if manifests is not None:
            found += _shapes(store, job, manifests)
            found += _generations(store, job, manifests, settings.history_retain_generations)
    return [*found, *(JobLeftover("scratch", str(one.path), one.bytes) for one in scratch.leftovers())]


def delete(dir: str, found: Iterable[JobLeftover]) -> None:
    """Delete them. Safe to repeat, and to be killed in."""
    store = open_store(dir)
    for one in found:
        if one.kind == "scratch":
            scratch.remove(Path(one.path))
        elif one.key:
            store.delete(one.key)
        elif os.path.isdir(one.path):
            shutil.rmtree(one.path, ignore_errors=True)
        else:
            with suppress(OSError):
                os.unlink(one.path)


def delete_beside(dir: str, job: JobName, settings: Settings, clock: Clock) -> None:
    """The same for a job that starts, in a thread of its own; what can't be deleted stays."""

    def work() -> None:
        with suppress(ExternalError, OSError):
            delete(dir, leftovers(dir, job, settings, clock))

    threading.Thread(target=work, name="weir-leftovers", daemon=True).start()


def _logs(folder: Path, settings: Settings, clock: Clock) -> Iterator[JobLeftover]:
    """The output of old attempts, with its older parts."""
    parts: dict[int, list[Path]] = {}
    with suppress(FileNotFoundError):
        for file in folder.iterdir():
            if match := _LOG.fullmatch(file.name):
                parts.setdefault(int(match[1]), []).append(file)
    now = clock.now().timestamp()
    for newer, number in enumerate(sorted(parts, reverse=True)):
        ages = [now - about.st_mtime for about in map(_stat, parts[number]) if about]
        old = timedelta(seconds=max(0.0, min(ages, default=0.0)))
        if newer and not settings.history_retain_logs.covers(newer, old):
            yield from (JobLeftover("log", str(file), _bytes(file)) for file in sorted(parts[number]))


def _attempts(store: Store, job: JobName, kept: int) -> Iterator[JobLeftover]:
    """Records and beats of old attempts, the oldest first: see `AttemptLock.beat`."""
    keys: dict[int, list[str]] = {}
    for key in store.list(paths.attempts(job)):
        if match := _ATTEMPT.fullmatch(key.rpartition("/")[2]):
            keys.setdefault(int(match[1]), []).append(key)
    for number in sorted(keys)[:-kept]:
        # the beat first: a record without a beat is of somebody who never wrote one
        yield from (JobLeftover("attempt", key, None, key) for key in sorted(keys[number]))


def _answers(folder: Path) -> Iterator[JobLeftover]:
    """Answers that nobody has fetched."""
    now = time.time()
    for file in sorted(folder.glob("*.answer")):
        about = _stat(file)
        if about and now - about.st_mtime > _ANSWER_SECONDS:
            yield JobLeftover("answer", str(file), about.st_size)


def _manifests(store: Store, job: JobName) -> list[Manifest] | None:
    """Those of all checkpoints that are there; None when one can't be read."""
    found = []
    for id in mf.ids(store, job)["chk"]:
        try:
            found.append(mf.decode(store.get(paths.completed(job, id)) or b""))
        except ValueError:
            return None
    return found


def _shapes(store: Store, job: JobName, manifests: list[Manifest]) -> Iterator[JobLeftover]:
    """Shapes of starts that no checkpoint is of, and that are not the last of any query."""
    root = files.folder_of(store)
    for generation in generations.numbers(store, job):
        folder = root / paths.generation(job, generation) / "shapes"
        starts = sorted(int(name) for name in _names(folder) if name.isdecimal())
        needed = [one.attempt for one in manifests if one.generation == generation]
        first = min([*needed, *starts[-_SHAPES_KEPT:]], default=0)
        seen: set[str] = set()
        for number in reversed(starts):
            start = folder / f"{number:06d}"
            names = set(_names(start))
            if number < first and names <= seen:
                yield JobLeftover("shape", str(start), sum(_bytes(start / name) or 0 for name in names))
            seen |= names


def _generations(store: Store, job: JobName, manifests: list[Manifest], kept: int) -> Iterator[JobLeftover]:
    """The files of generations below the live one that no checkpoint is of; their records stay."""
    root, live = files.folder_of(store), generations.live(store, job)
    needed = {Generation(one.generation) for one in manifests}
    if generations.opening(store, job) is not None:
        return
    below = [number for number in generations.numbers(store, job) if number < live]
    for number in below[: len(below) - kept] if kept else below:
        for name in ("queries", "channels", "user-state"):
            folder = root / paths.generation(job, number) / name
            if number not in needed and folder.is_dir():
                size = sum(_bytes(folder / inner) or 0 for inner in files.below(folder))
                yield JobLeftover("generation", str(folder), size)


def _names(folder: Path) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.listdir(folder)
    return []


def _stat(file: Path) -> os.stat_result | None:
    with suppress(OSError):
        return file.stat()
    return None


def _bytes(file: Path) -> int | None:
    about = _stat(file)
    return about.st_size if about else None

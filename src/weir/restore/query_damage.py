"""Is what Spark keeps of one query intact? The facts are collected from its files, and judged without I/O.

A quick look is at names, sizes, and the small files that a start reads anyway, compared with Hadoop's
checksums beside them; nothing big is read. With `FileContents` all state of the last batch is read, too, and
compared with the sums that checkpoints have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from weir.checkpoint import manifest as mf
from weir.ids import NO_BATCH, BatchId, Generation, JobName
from weir.spark import integrity as spark_files
from weir.spark.closure import GoneError, closure, missing_input
from weir.spark.cut import conf_of
from weir.spark.reshape import codec_of
from weir.storage import Store, files
from weir.storage.files import Sum

GONE = "is gone"
_EMPTY = "is empty"
_UNIQUE = re.compile(r"[-_][0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\.\w+$")
"""A name that Spark gives once; state of another name may be written again by a task that runs twice."""
OTHER = "differs from what a checkpoint has of it"


@dataclass(frozen=True)
class Damage:
    """One file that a query or a reader of its channel needs and that is not intact."""

    query: str
    file: str
    wrong: str
    kind: str = "query"
    """Whose file it is: that of the query, of the channel that it writes, or of the generation."""

    @property
    def text(self) -> str:
        return f"{self.file} of {self.kind} {self.query} {self.wrong}"


@dataclass(frozen=True)
class LogFacts:
    """What the files of one query say."""

    planned: BatchId = NO_BATCH
    """The newest entry of the offset log."""
    committed: BatchId = NO_BATCH
    """The newest entry of the commit log."""
    wrong: Mapping[str, str] | None = None
    """Files that a start needs and that are gone, empty or can't be read: what is wrong with each."""


class FileContents:
    """What files hold, each looked at once."""

    def __init__(self, known: Mapping[str, Sum]) -> None:
        self._known = known
        self._seen: dict[Path, str | None] = {}

    @classmethod
    def known(cls, store: Store, job: JobName, generation: Generation) -> FileContents:
        """With the sums that checkpoints of the generation have of files that are never written again."""
        found: dict[str, Sum] = {}
        for id in mf.completed(store, job):
            with suppress(ValueError):
                manifest = mf.read(store, job, id)
                if manifest is not None and manifest.generation == generation:
                    found |= {one.path: Sum(one.bytes, one.crc) for one in manifest.files()}
        return cls(
            {path: sum for path, sum in found.items() if "/state/" not in path or _UNIQUE.search(path)}
        )

    def changed(self, root: Path, below: str) -> Iterator[str]:
        """The files below a folder of the generation that are not what a checkpoint has of them."""
        for path, sum in self._known.items():
            if path.startswith(f"{below}/") and (root / path).exists() and files.checksum(root / path) != sum:
                yield path.removeprefix(f"{below}/")

    def problem(self, root: Path, name: str, codec: str) -> str | None:
        """What is wrong with a file of the query at `root`; None when nothing is."""
        path = root / name
        if path not in self._seen:
            self._seen[path] = self._look(path, f"queries/{root.name}/{name}", codec)
        return self._seen[path]

    def _look(self, path: Path, known_as: str, codec: str) -> str | None:
        kept = self._known.get(known_as)
        if kept is not None and files.checksum(path) != kept:
            return OTHER
        return spark_files.problem(path, codec) or spark_files.checksum_problem(path)


def judge(query: str, facts: LogFacts, expected: BatchId) -> list[Damage]:
    """Decide from the facts; a query that has never run is intact."""
    if facts.committed < expected:
        wrong = f"is lost: a checkpoint has batch {expected}, the newest is {facts.committed}"
        return [Damage(query, f"commits/{expected}", wrong)]
    found = [Damage(query, file, wrong) for file, wrong in (facts.wrong or {}).items()]
    if found:
        return found
    if facts.planned < facts.committed:
        return [Damage(query, f"offsets/{facts.committed}", GONE)]
    if facts.planned > facts.committed + 1:
        return [Damage(query, f"commits/{facts.committed + 1}", GONE)]
    return []


def collect(root: Path, contents: FileContents | None = None) -> LogFacts:
    """The facts of the query whose checkpointLocation is `root`."""
    planned, committed = newest(root / "offsets"), newest(root / "commits")
    wrong: dict[str, str] = {}
    problem = _empty(root / "metadata")
    if problem is None:
        problem = spark_files.description_problem(root / "metadata", "metadata", thorough=True)
    if problem is not None and (planned >= 0 or problem != GONE):
        wrong["metadata"] = problem
    wrong |= _log_problems(root, planned, committed)
    if committed >= 0 and not wrong:
        wrong |= _closure_problems(root, committed, contents)
    if planned > committed and not wrong:
        wrong |= _input_problems(root, planned)
    return LogFacts(planned, committed, wrong)


def _input_problems(root: Path, planned: BatchId) -> dict[str, str]:
    """What is wrong with what a batch reads that will run again."""
    try:
        lost = missing_input(root, planned)
        return {lost: GONE} if lost else {}
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return {f"offsets/{planned}": f"can't be read: {error}"}


def last_intact(root: Path, newest: BatchId, contents: FileContents) -> BatchId | None:
    """The last batch, up to the newest, with all its files; -1 when there never was one, None for none.

    Reads all state that it looks at.
    """
    if newest == NO_BATCH:
        return NO_BATCH
    folder = root / "commits"
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    for batch in sorted((BatchId(int(name)) for name in names if name.isdigit()), reverse=True):
        if batch > newest or _log_problems(root, batch, batch):
            continue
        if not _closure_problems(root, batch, contents):
            return batch
    return None


def _log_problems(root: Path, planned: BatchId, committed: BatchId) -> dict[str, str]:
    """What is wrong with the entries that a start reads."""
    needed = [f"offsets/{batch}" for batch in (planned, planned - 1) if batch >= 0]
    needed += [f"commits/{committed}"] if committed >= 0 else []
    found = {name: spark_files.log_problem(root / name) for name in needed}
    return {name: problem for name, problem in found.items() if problem is not None}


def _closure_problems(root: Path, batch: BatchId, contents: FileContents | None) -> dict[str, str]:
    try:
        batch_files = closure(root, batch)
        needed = [name for name in batch_files.files if name not in batch_files.foreign]
        found = {name: _empty(root / name) for name in needed}
        for name, problem in found.items():
            if problem is None:
                thorough = contents is not None
                found[name] = spark_files.description_problem(root / name, name, thorough=thorough)
        wrong = {name: problem for name, problem in found.items() if problem is not None}
        codec = codec_of(conf_of(root, batch))
        wrong |= spark_files.misfits(root, [name for name in needed if name not in wrong], codec)
        if contents is not None and not wrong:
            looked_at = {name: contents.problem(root, name, codec) for name in needed}
            wrong = {name: problem for name, problem in looked_at.items() if problem is not None}
        return wrong
    except GoneError as error:
        return {str(error): GONE}
    except ValueError as error:
        return {f"the state of batch {batch}": f"can't be read: {error}"}


def _empty(path: Path) -> str | None:
    try:
        return None if path.stat().st_size else _EMPTY
    except FileNotFoundError:
        return GONE


def newest(folder: Path) -> BatchId:
    """The newest batch of a log, by the names of its entries; -1 when it has none."""
    names = (path.name for path in folder.iterdir()) if folder.is_dir() else iter(())
    return BatchId(max((int(name) for name in names if name.isdigit()), default=NO_BATCH))

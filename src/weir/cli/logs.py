"""`weir logs`: what a job's driver printed, attempt after attempt.

Output grows, turns over and continues in the next attempt's file. A file keeps its identity (inode) when
it is renamed: a reader at the end of one looks where that file now stands in the chain, and continues
with the one after it.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from weir.cli import say
from weir.cli.options import AsJson, Define, Directory, JobOf, SettingsFile, command, directory
from weir.clock import Clock
from weir.errors import BadValueError, NoOutputError
from weir.ids import job_name
from weir.monitor.job import look
from weir.monitor.logs import Chain
from weir.storage import paths
from weir.storage.open import beside
from weir.text import without_escapes

_PAUSE = 0.2
Follow = Annotated[bool, typer.Option("-f", "--follow", help="Follow the output, across attempts.")]
Lines = Annotated[
    int, typer.Option("-n", "--lines", min=-1, help="How many of the last lines to show; -1 for all.")
]
OfAttempt = Annotated[
    int | None, typer.Option("--attempt", min=1, metavar="N", help="Show this attempt instead of the newest.")
]
OfSupervisor = Annotated[
    bool, typer.Option("--supervisor", help="Show the supervisor's notes; only a run with -d keeps them.")
]


def logs(
    job: JobOf,
    follows: Follow = False,
    lines: Lines = 100,
    attempt: OfAttempt = None,
    supervisor: OfSupervisor = False,
    dir: Directory = None,
    config: SettingsFile = None,
    define: Define = None,
    json: AsJson = False,
) -> None:
    """Show what a job's driver printed.

    Standard output and standard error of the newest attempt, or of the one named with --attempt.
    With -f it follows the output, also over restarts of the driver, until the job has ended.

    \b
    Example: weir logs wordcount -f -n 20
    """
    if json and follows:
        reason = "output that is followed never ends, so it can't be one JSON object"
        raise BadValueError(key="--json", value="-f", origin="the command line", reason=reason)
    place = directory(dir, config, define)
    standing = look(place, job, Clock())
    chain = _chain(beside(place, paths.logs(job_name(job))), supervisor, attempt)
    if not chain.files():
        raise _nothing(job, place, chain, attempt, supervisor)
    if json:
        with open(chain.files()[-1], "rb") as newest:
            text = b"".join(last_lines(chain, lines, newest)).decode(errors="replace")
        body = {"job": job, "attempt": chain.attempt, "supervisor": supervisor, "state": standing.state}
        say.say_json(body | {"files": list(map(str, chain.files())), "lines": text.splitlines()})
        return
    ended = (lambda: look(place, job, Clock()).over) if follows else None
    follow(chain, lines, ended)


def _chain(folder: Path, supervisor: bool, attempt: int | None) -> Chain:
    """What to read: the supervisor's log, one attempt's, or from the newest attempt on."""
    if supervisor:
        return Chain(folder, "supervisor.log", None)
    if attempt is not None:
        return Chain(folder, f"driver-{attempt:06d}.log", attempt)
    return Chain.newest(folder)


def _nothing(job: str, dir: str, chain: Chain, attempt: int | None, supervisor: bool) -> NoOutputError:
    if supervisor:
        reason, todo = "only a run with -d keeps the supervisor's notes", _shows("status", job, dir)
        return NoOutputError(whose="the supervisor", job=job, reason=reason, todo=todo)
    there = ", ".join(map(str, Chain.attempts(chain.folder)))
    reason = f"there is output of attempt {there}" if there else "no supervisor has started a driver"
    whose = f"attempt {attempt}" if attempt else "any attempt"
    return NoOutputError(whose=whose, job=job, reason=reason, todo=_shows("logs", job, dir))


def _shows(verb: str, job: str, dir: str) -> str:
    return f"'{command(verb, job, dir)}' shows what there is"


def last_lines(chain: Chain, count: int, newest: BinaryIO) -> list[bytes]:
    """The last lines over all files (all lines when the count is negative); reads `newest` to its end."""
    lines: deque[bytes] = deque(maxlen=None if count < 0 else count)
    for file in chain.files()[:-1]:
        lines.extend(file.read_bytes().splitlines(keepends=True))
    lines.extend(newest)
    return list(lines)


def follow(chain: Chain, count: int, ended: Callable[[], bool] | None) -> None:
    """Print the last lines, and with `ended` continue until it is true and all has been printed."""
    file: Path | None = chain.files()[-1]
    wanted: int | None = count
    while file is not None:
        file = _through(chain, file, wanted, ended)
        wanted = None
        if file is not None:
            say.note(f"continuing with {file.name}")


def _through(chain: Chain, file: Path, count: int | None, ended: Callable[[], bool] | None) -> Path | None:
    """Print one file, from its last lines on if a count is given; the file after it, if there is one."""
    with open(file, "rb") as stream:
        if count is not None:
            _print(last_lines(chain, count, stream))
        following = _wait_behind(chain, stream, ended) if ended else None
        if ended:
            _print(_grown(stream))  # what came before the file was rotated, and after the last read
        return following


def _wait_behind(chain: Chain, stream: BinaryIO, ended: Callable[[], bool]) -> Path | None:
    """Print what is appended until there is a next file, or None when nothing will come any more."""
    while True:
        following = chain.after(os.fstat(stream.fileno()).st_ino)
        if following is not None:
            return following
        over = ended()  # asked before the last read, so that nothing is missed
        _print(_grown(stream))
        if over:
            return chain.after(os.fstat(stream.fileno()).st_ino)
        pause()


def pause() -> None:
    time.sleep(_PAUSE)


def _grown(stream: BinaryIO) -> Iterator[bytes]:
    while data := stream.read(65536):
        yield data


def _print(pieces: Iterable[bytes]) -> None:
    """To a file or a program as they are; to a terminal only with their colours."""
    for piece in pieces:
        if sys.stdout.isatty():
            text = without_escapes(piece.decode(errors="replace"), colours=True)
            sys.stdout.buffer.write(text.encode(errors="replace"))
        else:
            sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()

"""Reading output that grows, turns over and goes on in the next attempt's file.

An attempt's output is `driver-<N>.log`; when that grows too big it becomes `.log.1`, and so on, so
the highest number is the oldest. A file keeps its identity (inode) when it is renamed: a reader at
the end of one looks where that file now stands in the chain, and goes on with the one behind it.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from weir.cli import say
from weir.words import without_escapes

_PAUSE = 0.2


@dataclass(frozen=True)
class Chain:
    """The files of one log, oldest first; `onwards` takes the later attempts too."""

    folder: Path
    name: str
    attempt: int | None
    onwards: bool = False

    @classmethod
    def newest(cls, folder: Path) -> Chain:
        """From the newest attempt on."""
        number = max(cls.attempts(folder), default=0)
        return cls(folder, f"driver-{number:06d}.log", number, onwards=True)

    @staticmethod
    def attempts(folder: Path) -> list[int]:
        """The attempts of which there is output."""
        found = (re.fullmatch(r"driver-(\d+)\.log", file.name) for file in folder.glob("driver-*.log"))
        return sorted(int(match[1]) for match in found if match)

    def files(self) -> list[Path]:
        later = [n for n in self.attempts(self.folder) if self.onwards and n > (self.attempt or 0)]
        names = [self.name, *(f"driver-{number:06d}.log" for number in later)]
        return [file for name in names for file in self._turned(name)]

    def _turned(self, name: str) -> list[Path]:
        older = [(int(p.suffix[1:]), p) for p in self.folder.glob(f"{name}.*") if p.suffix[1:].isdigit()]
        current = self.folder / name
        return [path for _, path in sorted(older, reverse=True)] + ([current] if current.exists() else [])

    def behind(self, inode: int) -> Path | None:
        """The file behind the one with this identity; the oldest when that one is no longer there."""
        files = self.files()
        identities = [_inode(file) for file in files]
        if inode not in identities:
            return files[0] if files else None
        place = identities.index(inode) + 1
        return files[place] if place < len(files) else None


def _inode(file: Path) -> int:
    try:
        return file.stat().st_ino
    except FileNotFoundError:  # it is being turned over
        return 0


def last_lines(chain: Chain, count: int, newest: BinaryIO) -> list[bytes]:
    """The last lines over all files (all lines when the count is negative); reads `newest` to its end."""
    lines: deque[bytes] = deque(maxlen=None if count < 0 else count)
    for file in chain.files()[:-1]:
        lines.extend(file.read_bytes().splitlines(keepends=True))
    lines.extend(newest)
    return list(lines)


def follow(chain: Chain, count: int, ended: Callable[[], bool] | None) -> None:
    """Print the last lines, and with `ended` go on until it is true and all has been printed."""
    file: Path | None = chain.files()[-1]
    wanted: int | None = count
    while file is not None:
        file = _through(chain, file, wanted, ended)
        wanted = None
        if file is not None:
            say.note(f"going on with {file.name}")


def _through(chain: Chain, file: Path, count: int | None, ended: Callable[[], bool] | None) -> Path | None:
    """Print one file, from its last lines on if a count is given; the file behind it, if there is one."""
    with open(file, "rb") as stream:
        if count is not None:
            _print(last_lines(chain, count, stream))
        following = _wait_behind(chain, stream, ended) if ended else None
        if ended:
            _print(_grown(stream))  # what came before the file was turned over, and after the last read
        return following


def _wait_behind(chain: Chain, stream: BinaryIO, ended: Callable[[], bool]) -> Path | None:
    """Print what is appended until there is a next file, or None when nothing will come any more."""
    while True:
        following = chain.behind(os.fstat(stream.fileno()).st_ino)
        if following is not None:
            return following
        over = ended()  # asked before the last read, so that nothing is missed
        _print(_grown(stream))
        if over:
            return chain.behind(os.fstat(stream.fileno()).st_ino)
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

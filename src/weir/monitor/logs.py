"""The files of what drivers printed. Secrets were taken out when they were written.

An attempt's output is `driver-<N>.log`; when that grows too big it becomes `.log.1`, and so on, so
the highest number is the oldest.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from weir.ids import job_name
from weir.storage import paths
from weir.storage.open import beside
from weir.text import without_escapes

_MOST = 512 * 1024
"""How many bytes at most are read for a page."""


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
        return [file for name in names for file in self._rotated(name)]

    def _rotated(self, name: str) -> list[Path]:
        older = [(int(p.suffix[1:]), p) for p in self.folder.glob(f"{name}.*") if p.suffix[1:].isdigit()]
        current = self.folder / name
        return [path for _, path in sorted(older, reverse=True)] + ([current] if current.exists() else [])

    def after(self, inode: int) -> Path | None:
        """The file after the one with this identity; the oldest when that one is no longer there."""
        files = self.files()
        identities = [_inode(file) for file in files]
        if inode not in identities:
            return files[0] if files else None
        place = identities.index(inode) + 1
        return files[place] if place < len(files) else None


def _inode(file: Path) -> int:
    try:
        return file.stat().st_ino
    except FileNotFoundError:  # it is being rotated
        return 0


@dataclass(frozen=True)
class LogTail:
    """The last lines that the driver of one attempt printed."""

    attempt: int | None
    """None when there is no output of any attempt."""
    attempts: list[int]
    """Those of which there is output, newest first."""
    lines: list[str]
    cut: bool
    """Whether there are earlier lines."""


def tail(dir: str, job: str, attempt: int | None, lines: int) -> LogTail:
    """The end of the output of an attempt (None: of the newest), without what only a terminal understands."""
    folder = beside(dir, paths.logs(job_name(job)))
    attempts = Chain.attempts(folder)[::-1]
    shown = attempt if attempt is not None else next(iter(attempts), None)
    if shown not in attempts:
        return LogTail(attempt, attempts, [], False)
    files = Chain(folder, f"driver-{shown:06d}.log", shown).files()
    data, cut = _end(files, _MOST)
    found = without_escapes(data.decode(errors="replace")).splitlines()
    if cut:
        found = found[1:]  # its beginning was not read
    return LogTail(shown, attempts, found[-lines:], cut or len(found) > lines)


def _end(files: list[Path], most: int) -> tuple[bytes, bool]:
    """The last bytes of several files, oldest first, and whether there are more."""
    data = b""
    for at, file in enumerate(reversed(files)):
        try:
            with open(file, "rb") as stream:
                size = stream.seek(0, os.SEEK_END)
                room = most - len(data)
                stream.seek(max(0, size - room))
                data = stream.read(room) + data
        except FileNotFoundError:  # it is being rotated
            continue
        if size > room or (size == room and at < len(files) - 1):
            return data, True
    return data, False

"""What a driver prints, in files of bounded size beside its job."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from io import FileIO
from pathlib import Path

from weir.storage.files import write_all


class OutputFile:
    """What the driver prints, without secrets, in files of bounded size: the newest, and a few older ones.

    Nothing here raises for a file system that refuses (a full disk): what can't be kept is left out, and
    the file says so once there is room again. Whoever prints must not wait, and no supervisor end, for that.
    """

    def __init__(self, path: Path, limit: int = 16 * 2**20, keep: int = 3) -> None:
        self._path, self._limit, self._keep = path, limit, keep
        self._lock = threading.Lock()
        self._file: FileIO | None = None
        self._left_out = 0
        self.write(b"")  # so that the file is there, also for a driver that prints nothing

    def write(self, data: bytes) -> None:
        with self._lock:
            try:
                file = self._with_room_for(data)
                if self._left_out:
                    gap = f"weir: {self._left_out} bytes could not be kept here\n"
                    write_all(file.fileno(), gap.encode())
                    self._left_out = 0
                write_all(file.fileno(), data)
            except OSError:
                self._left_out += len(data)

    def close(self) -> None:
        with self._lock, suppress(OSError):
            if self._file is not None:
                self._file.close()

    def _with_room_for(self, data: bytes) -> FileIO:
        if self._file is not None and self._file.tell() + len(data) > self._limit:
            self._file.close()
            self._file = None
            for number in reversed(range(1, self._keep)):
                with suppress(FileNotFoundError):
                    os.replace(f"{self._path}.{number}", f"{self._path}.{number + 1}")
            os.replace(self._path, f"{self._path}.1")
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = FileIO(self._path, "a")
        return self._file

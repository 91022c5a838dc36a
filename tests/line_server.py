"""A TCP server on loopback that says what a test tells it to say, to one client after the other."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from types import TracebackType


class LineServer:
    """Listens at once; the newest client is the one that is spoken to. All waits have a limit."""

    def __init__(self, port: int = 0, seconds: float = 60.0) -> None:
        self._listening = socket.create_server(("127.0.0.1", port))
        self._seconds = seconds
        self._client: socket.socket | None = None

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def __enter__(self) -> LineServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self.hang_up()
        self._listening.close()

    def wait_for_client(self) -> None:
        """Wait for the next client."""
        self.hang_up()
        self._listening.settimeout(self._seconds)
        self._client, _ = self._listening.accept()
        self._client.settimeout(self._seconds)

    def send(self, data: bytes) -> None:
        """Send all of it, to a client that is there or comes."""
        if self._client is None:
            self.wait_for_client()
        assert self._client is not None
        self._client.sendall(data)

    def hang_up(self) -> None:
        """Close the connection in good order."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def break_off(self) -> None:
        """Reset the connection, as a peer that crashed."""
        assert self._client is not None
        self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.hang_up()


def until(there: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Wait until something holds."""
    limit = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < limit, f"waited {seconds:g} s for {what}"
        time.sleep(0.01)

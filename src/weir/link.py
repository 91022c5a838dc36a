"""The duplex pipe between supervisor and driver: typed messages, one JSON line each.

A closed other end is no error, it means that the peer is gone: `receive` yields no more. Sending never
raises for a peer that is gone, because its death is seen when reading.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

from weir.protocol.messages import Message, decode, encode


class Link:
    """One end. Any thread may send; one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._lock = threading.Lock()

    @classmethod
    def pair(cls) -> tuple[Link, socket.socket]:
        """The supervisor's end, and the socket that the driver inherits."""
        left, right = socket.socketpair()
        right.set_inheritable(True)
        return cls(left), right

    @classmethod
    def inherited(cls, handle: int) -> Link:
        """The driver's end, by the number of its file handle; its own children don't get it."""
        end = socket.socket(fileno=handle)
        end.set_inheritable(False)
        return cls(end)

    def send(self, message: Message) -> None:
        with self._lock, suppress(OSError):
            self._socket.sendall(encode(message))

    def receive(self) -> Iterator[Message]:
        """Messages until the peer is gone."""
        with suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                yield decode(line)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

"""What servers on loopback need: free ports, and to be waited for."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def free_port() -> int:
    return free_ports(1)[0]


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def wait_for(what: str, there: Callable[[], Any], seconds: float = 120.0) -> None:
    """Return when it is there, or fail with its name."""
    until = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < until, f"{what} did not come in {seconds:g} s"
        time.sleep(0.05)

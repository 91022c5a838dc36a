"""Processes of this machine: which one is meant, and whether it still lives.

A process id alone says little, because it is used again: so a record also holds when the process started, and
`boot`, which names the machine since its last start and the process namespace.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def lives(pid: int) -> bool:
    """Whether the process exists, as far as this process namespace shows."""
    return _answers(lambda: os.kill(pid, 0))


def group_lives(group: int) -> bool:
    """Whether any process of the group exists, as far as this process namespace shows."""
    return _answers(lambda: os.killpg(group, 0))


def _answers(signal_nothing: Callable[[], None]) -> bool:
    try:
        signal_nothing()
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def boot() -> str:
    """Names this machine since its last start, and the process namespace; "" where that is unknown."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    return ""


def started(pid: int) -> str:
    """When a process started, as its machine counts; "" when it is gone, or that is unknown."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def whoami() -> str:
    """The user of this process, for people: user@host."""
    return f"{user()}@{socket.gethostname()}"


def user() -> str:
    """The name of the user; "" when it has none."""
    with suppress(OSError, KeyError):
        return getpass.getuser()
    return ""

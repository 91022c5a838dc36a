"""Whether processes are gone; told by their ids."""

from __future__ import annotations

import time

import psutil


def wait_until_gone(pids: set[int], seconds: float) -> None:
    """Wait for the end of processes that nobody here waits for."""
    until = time.monotonic() + seconds
    while left := {pid for pid in pids if alive(pid)}:
        assert time.monotonic() < until, f"{left} of {pids} are still there after {seconds:g} s"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False

"""Times, sizes and numbers as people read them: on a terminal, on a page, in an error."""

from __future__ import annotations

import re
from datetime import datetime, timezone

_IN_URL = re.compile(r"(://[^/\s:@\"]+):[^/\s@\"]+@")
_NAMED = re.compile(r"((?:password|passwd|secret|token)=)[^&\s,;\"'\\]+", re.IGNORECASE)


def lasting(seconds: float) -> str:
    """A length of time in its two largest units."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole < 600 else f"{whole // 60} min"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def seconds_since(moment: str, now: datetime) -> float:
    """Seconds from a written moment to now, never below zero; only for showing."""
    return max(0.0, (now - moment_of(moment)).total_seconds())


def when(moment: str, now: datetime) -> str:
    """A written moment in local time: the time alone for today."""
    local = moment_of(moment).astimezone()
    return local.strftime("%H:%M:%S" if local.date() == now.astimezone().date() else "%m-%d %H:%M")


def number(value: float) -> str:
    """A number in at most five characters: 999, 12.3k, 4.5M."""
    for unit in ("", "k", "M", "G"):
        if abs(value) < 999.5:
            return f"{value:.3g}{unit}" if unit else f"{value:.0f}"
        value /= 1000
    return f"{value:.3g}T"


def size(count: float) -> str:
    """A number of bytes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 999.5:  # three digits: 1000 B would be 1e+03 B
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def moment_of(moment: str) -> datetime:
    """A written moment; one without a zone is meant in UTC."""
    read = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    return read if read.tzinfo else read.replace(tzinfo=timezone.utc)


def without_passwords(text: str) -> str:
    """The same with what looks like a password taken out: in a URL, or behind `password=` and the like."""
    return _NAMED.sub(r"\1***", _IN_URL.sub(r"\1:***@", text))

"""Times, sizes and numbers as people read them: on a terminal, on a page, in an error; and no secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

_NAME = (
    r"(?:password|passwd|passphrase|secret(?:[._-]?access)?(?:[._-]?key)?"
    r"|(?:api|account|private)[._-]?key(?:\.[\w.-]+)?)"
)
_QUOTED = (
    r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"  # "..." and '...'
    r"|(?P<within>\\+)(?P<quote>[\"'])(?:(?!(?<!\\)(?P=within)(?P=quote)).)*"  # the same inside of a string
    r"(?<!\\)(?P=within)(?P=quote)"
)
_BARE = r"\\*[\"']?[^\s&,;\"'\\)\]}]+"
_END = r"\\*[\"']?"
_SECRETS = (
    re.compile(r"(sasl\.jaas\.config" + _END + r"\s*[=:]\s*)(?P<value>\*{3}|[^;\n]+;?)", re.IGNORECASE),
    re.compile(r"(://[^\s:/@'\"]*:)(?!\d+[/?#])(?P<value>[^\s'\"]{1,1000})(?=@)"),
    re.compile(rf"({_NAME}{_END}\s*[=:]\s*)(?P<value>{_QUOTED}|{_BARE})", re.IGNORECASE),
    re.compile(rf"(token{_END}\s*=\s*)(?P<value>{_QUOTED}|{_BARE})", re.IGNORECASE),
    re.compile(rf"((?<=[._-])token\s*:\s*)(?P<value>{_QUOTED}|{_BARE})", re.IGNORECASE),
    re.compile(rf"(token\\*[\"']\s*:\s*)(?P<value>{_QUOTED})", re.IGNORECASE),
    re.compile(r"(\bBearer\s+|(?i:authorization\s*[:=]\s*\w+\s+))(?P<value>[\w.~+/=-]+)"),
)
"""Each: what stays, and the value that is taken out."""
_SECRET_KEY = re.compile(rf"(?:{_NAME}|token|sasl\.jaas\.config)$", re.IGNORECASE)
_HIDDEN = "***"
_PLACEHOLDERS = ("password", "<password>", "<token>")
"""As a hint writes them."""


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


def without_secrets(text: str) -> str:
    """The same with what looks like a secret taken out: in a URL, behind `password=` and the like, `Bearer`.

    Everything passes here that reaches a log, the journal, a page, an answer or an error. Safe to repeat.
    """
    for secret in _SECRETS:
        text = secret.sub(_masked, text)
    return text


def body_without_secrets(body: Any) -> Any:
    """The same for what becomes JSON: texts at any depth, and texts under the name of a secret."""
    if isinstance(body, str):
        return without_secrets(body)
    if isinstance(body, Mapping):
        return {
            key: _HIDDEN
            if isinstance(value, str) and _SECRET_KEY.search(str(key))
            else body_without_secrets(value)
            for key, value in body.items()
        }
    return [body_without_secrets(one) for one in body] if isinstance(body, (list, tuple)) else body


def _masked(found: re.Match[str]) -> str:
    """A value keeps its quotes, so that what is around it can still be read."""
    value = found["value"]
    if value in _PLACEHOLDERS:
        return found[0]
    quote = re.match(r"\\*[\"']", value)
    whole = quote is not None and len(value) > len(quote[0]) and value.endswith(quote[0])
    return found[1] + (f"{quote[0]}{_HIDDEN}{quote[0]}" if quote is not None and whole else _HIDDEN)

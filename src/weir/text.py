"""Times, sizes and numbers as people read them: on a terminal, on a page, in an error; and no secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

_NAME = (
    r"(?:password|passwd|passphrase|passcode|secret(?:[._-]?access)?(?:[._-]?key)?"
    r"|(?:api|account|private|shared[._-]?access)[._-]?key(?:\.[\w.-]{1,100})?|basic\.auth\.user\.info)"
)
_GIVEN = r"(?:token|credentials?|(?<![A-Za-z0-9])pwd)"
"""Names that are ordinary words too: what follows them is a secret only in the form of a setting."""
_QUOTED = (
    r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"  # "..." and '...'
    r"|(?P<within>\\+)(?P<quote>[\"'])(?:(?!(?<!\\)(?P=within)(?P=quote)).)*"  # the same inside of a string
    r"(?<!\\)(?P=within)(?P=quote)"
)
_BARE = r"\\*[\"']?[^\s&,;\"'\\)\]}]+"
_END = r"\\*[\"']?"
_USER = r"://[^\s:/@'\"]*:"
_SECRETS = (
    re.compile(r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----)(?P<value>.*?)(?=-----END|\Z)", re.DOTALL),
    re.compile(r"(sasl\.jaas\.config" + _END + r"\s*[=:]\s*)(?P<value>\*{3}|[^;\n]+;?)", re.IGNORECASE),
    re.compile(rf"({_USER})(?!\d+[/?#])(?P<value>[^\s'\"]{{1,1000}})(?=@)"),
    # a password that begins like a port; in these schemes it would be one, with an @ in the path
    re.compile(
        rf"((?<!http)(?<!https)(?<!hdfs)(?<!spark)(?<!ws)(?<!wss){_USER})"
        r"(?P<value>\d+/[^\s'\"?#]{0,1000})(?=@)"
    ),
    re.compile(
        rf"({_NAME}{_END}\s*[=:]\s*(?:[bfru]{{1,2}}(?=\\*[\"']))?)(?P<value>{_QUOTED}|{_BARE})", re.IGNORECASE
    ),
    # .option("password", "x"), ("sasl.password", "x")
    re.compile(
        rf"((?:{_NAME}|{_GIVEN})\\*[\"']\s*,\s*(?:value\s*=\s*)?[bfru]{{0,2}})(?P<value>{_QUOTED})",
        re.IGNORECASE,
    ),
    re.compile(
        rf"((?<![\w-])--?[\w.-]{{0,40}}?(?:{_NAME}|token)\s+)(?P<value>{_QUOTED}|(?!-){_BARE})", re.IGNORECASE
    ),
    re.compile(rf"({_GIVEN}{_END}\s*=\s*)(?P<value>{_QUOTED}|(?!/){_BARE})", re.IGNORECASE),
    re.compile(rf"((?<=[._-])token\s*:\s*)(?P<value>{_QUOTED}|{_BARE})", re.IGNORECASE),
    re.compile(rf"({_GIVEN}\\*[\"']\s*:\s*)(?P<value>{_QUOTED})", re.IGNORECASE),
    re.compile(r"(\bBearer\s+|(?i:authorization\s*[:=]\s*\w+\s+))(?P<value>[\w.~+/=-]+)"),
    # presigned URLs
    re.compile(
        r"((?<![\w-])(?:sig|signature|sharedaccesssignature|x-(?:amz|goog)-(?:signature|credential"
        r"|security-token))=)(?P<value>[^\s&'\"\\<>]+)",
        re.IGNORECASE,
    ),
)
"""Each matches what stays, and the `value` that is removed."""
_MARKS = (
    *(b"passw", b"passp", b"passc", b"pwd", b"secret", b"key", b"token", b"credential", b"sig", b"auth"),
    *(b"bearer", b"jaas", b"://"),
)
"""Every text with a secret contains one of these; searched for first, which is quick."""
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----(?!.*-----END)", re.DOTALL)
_SECRET_KEY = re.compile(
    rf"(?:{_NAME}|token|credentials?|(?:^|[._-])pwd|sasl\.jaas\.config|x-amz-signature)$", re.IGNORECASE
)
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, moves of the cursor
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # titles, links, the clipboard
    r"|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]",  # and what turns a line around
    re.MULTILINE,
)
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_AS_A_WORD, _ANYWHERE = 4, 8
"""The length from which a known secret is removed as a word of its own, and also inside of words."""
_LONGEST_LINE = 65536
_HIDDEN = "***"
_PLACEHOLDERS = ("password", "PASSWORD", "<password>", "<token>")
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


def took(seconds: float) -> str:
    """How long something took: 5 ms, 0.34 s, 2 min 5 s."""
    if 0 < seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms" if seconds >= 0.00095 else "< 1 ms"
    return f"{seconds:.2f} s" if seconds < 100 else lasting(seconds)


def counted(count: int, noun: str) -> str:
    """A number with its noun: no restart, 1 restart, 3 restarts."""
    return f"{number(count) if count else 'no'} {noun}{'' if count in (0, 1) else 's'}"


def seconds_since(moment: str, now: datetime) -> float:
    """Seconds from a written moment to now, never below zero; only for showing."""
    return max(0.0, (now - moment_of(moment)).total_seconds())


def when(moment: str, now: datetime) -> str:
    """A written moment in local time: without the date for today."""
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
    """The text without what looks like a secret: in a URL, after `password=` and the like, after `Bearer`.

    Everything that reaches a log, the journal, a page, an answer or an error passes here. Safe to repeat.
    """
    for secret in _SECRETS:
        text = secret.sub(_masked, text)
    return text


def without_this(text: str, secret: str) -> str:
    """The text without a known secret. A short one is removed only where it is a word of its own.

    Otherwise the password `p` would be removed from every `port`.
    """
    if len(secret) < _AS_A_WORD:
        return text
    within = len(secret) >= _ANYWHERE
    return re.sub(re.escape(secret) if within else rf"(?<!\w){re.escape(secret)}(?!\w)", _HIDDEN, text)


def without_escapes(text: str, *, colours: bool = False) -> str:
    """The text without what a terminal would take for a command; line ends and tabs stay.

    With `colours`, colours and the like stay too.
    """

    def kept(escape: re.Match[str]) -> str:
        return escape[0] if colours and _COLOUR.fullmatch(escape[0]) else ""

    return _ESCAPES.sub(kept, text)


class Scrubber:
    """`without_secrets` for a stream of bytes that comes in pieces: line by line, keys over several lines.

    A line without an end is held back until it ends, or has grown too long.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._in_key = False

    def feed(self, data: bytes) -> bytes:
        """The text that can be passed on now."""
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        if len(data) - end > _LONGEST_LINE:
            end = len(data)
        self._rest = data[end:]
        return self._scrubbed(data[:end])

    def end(self) -> bytes:
        """What was held back."""
        rest, self._rest = self._rest, b""
        return self._scrubbed(rest)

    def _scrubbed(self, data: bytes) -> bytes:
        lines = data.splitlines(keepends=True) if self._in_key or _marked(data) else []
        return b"".join(map(self._line, lines)) if lines else data

    def _line(self, line: bytes) -> bytes:
        if self._in_key:
            _, mark, after = line.partition(b"-----END")
            self._in_key, line = not mark, mark + after
        if not _marked(line):
            return line
        text = line.decode("utf-8", "surrogateescape")
        self._in_key = _KEY_BEGINS.search(text) is not None
        end = "\n" if self._in_key else ""
        return (without_secrets(text) + end).encode("utf-8", "surrogateescape")


def _marked(data: bytes) -> bool:
    low = data.lower()
    return any(mark in low for mark in _MARKS)


def body_without_secrets(body: Any) -> Any:
    """A JSON body without secrets: in texts at any depth, and texts under the name of a secret."""
    if isinstance(body, str):
        return without_secrets(body)
    if isinstance(body, Mapping):
        return {
            key: _HIDDEN
            if isinstance(value, str) and _SECRET_KEY.search(str(key))
            else body_without_secrets(value)
            for key, value in body.items()
        }
    return [body_without_secrets(item) for item in body] if isinstance(body, (list, tuple)) else body


def _masked(secret: re.Match[str]) -> str:
    """A value keeps its quotes, so that the text around it can still be parsed."""
    value = secret["value"]
    if value in _PLACEHOLDERS:
        return secret[0]
    quote = re.match(r"\\*[\"']", value)
    if quote is None or len(value) <= len(quote[0]) or not value.endswith(quote[0]):
        return secret[1] + _HIDDEN
    return f"{secret[1]}{quote[0]}{_HIDDEN}{quote[0]}"

"""Tiny types for every kind of number and name, so that none is taken for another.

A job and a query are known by their names; names become folders, so they are checked here, once.
`Token` is who writes: its numbers only grow, and whoever holds the lower ones may no longer write;
its session distinguishes two writers that came to the same numbers in two directories. Nothing here does
any I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NewType

from weir.errors import BadNameError

JobName = NewType("JobName", str)
QueryName = NewType("QueryName", str)
SourceName = NewType("SourceName", str)
BatchId = NewType("BatchId", int)
"""The number of one Spark micro-batch of one query, from 0."""
Attempt = NewType("Attempt", int)
"""One life of the driver, from 1."""
Run = NewType("Run", int)
"""One start of a query within an attempt, from 1."""
Generation = NewType("Generation", int)
"""One incarnation of the live files of a job, from 1."""

CheckpointId = NewType("CheckpointId", int)
"""One job-wide checkpoint, from 1."""

NO_BATCH = BatchId(-1)
"""What "the last committed batch" is before there is one."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


_SESSION = 12
MAX_ATTEMPT = 10**9
"""No job gets there by itself; a manifest that names a higher attempt is not one of weir's."""


@dataclass(frozen=True)
class Token:
    """Who writes. `<` and its kin compare attempt and run alone; equal tokens are of one session too."""

    attempt: Attempt
    run: Run
    session: str = ""
    """A mark of the session in the attempt's record; "" where it is not known."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "session", session_mark(self.session))

    @property
    def numbers(self) -> tuple[int, int]:
        return self.attempt, self.run

    def is_same(self, other: Token) -> bool:
        """Whether both are one writer; a session that is not known may be any."""
        known = bool(self.session and other.session)
        return self.numbers == other.numbers and (not known or self.session == other.session)

    def counts_after(self, fence: Token) -> bool:
        """Whether what this token has written after a fence counts: not if it is lower, or another's."""
        return self > fence or self.is_same(fence)

    def __lt__(self, other: Token) -> bool:
        return self.numbers < other.numbers

    def __le__(self, other: Token) -> bool:
        return self.numbers <= other.numbers

    def __gt__(self, other: Token) -> bool:
        return self.numbers > other.numbers

    def __ge__(self, other: Token) -> bool:
        return self.numbers >= other.numbers

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)

    def __str__(self) -> str:
        return f"{self.attempt}.{self.run}"


def session_mark(session: str) -> str:
    """What a token carries of a session: enough that no two are equal, and fit for every name."""
    return re.sub(r"[^A-Za-z0-9]", "", session)[:_SESSION]


NOBODY = Token(Attempt(0), Run(0))
"""Below every token: the fence of what nobody has opened."""


def job_name(text: str) -> JobName:
    """Check a job's name; raise `BadNameError` when it could not be a folder's name."""
    return JobName(_checked("job", text))


def query_name(text: str) -> QueryName:
    """Check a query's name; raise `BadNameError` when it could not be a folder's name."""
    return QueryName(_checked("query", text))


def source_name(text: str) -> SourceName:
    """Check a source's name; raise `BadNameError` when it could not be a folder's name."""
    return SourceName(_checked("source", text))


def _checked(kind: str, text: str) -> str:
    if not isinstance(text, str) or not _NAME.fullmatch(text):
        raise BadNameError(kind=kind, name=str(text))
    return text

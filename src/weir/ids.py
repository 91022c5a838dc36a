"""Tiny types for every kind of number and name, so that none is taken for another.

A job and a query are known by their names; names become folders, so they are checked here, once.
`Token` is the fencing token of design section 1: it only grows, and whoever holds the lower one
may no longer write. Nothing here does any I/O.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NewType

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


class Token(NamedTuple):
    """Who writes: compares by attempt first, then by run."""

    attempt: Attempt
    run: Run

    def __str__(self) -> str:
        return f"{self.attempt}.{self.run}"


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

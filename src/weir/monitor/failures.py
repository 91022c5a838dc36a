"""Failures by their cause: seen how often, first and last when, where, and what helps.

What a failure is was decided when it happened, from its type; here it is only put into words for
people. Texts are looked at for advice alone, never for a decision.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from weir.monitor import forms
from weir.supervisor.history import Event

_FRAME = re.compile(
    r'File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>[^\n]+)(?:\n\s+(?P<code>[^\n]+))?'
)
_FOREIGN = re.compile(r"/(site-packages|dist-packages|pyspark|py4j|weir)/|/lib/python3|<frozen|/python/lib/")
_VARIES = re.compile(r"'[^']*'|\"[^\"]*\"|/\S+|\S*\d\S*")
"""What differs from one failure to the next of the same cause: values, paths, numbers and ids."""

_OF_QUERY = re.compile(r"Query \[id = [^\]]*\]\s*")
"""Spark's name for a query in a message; the same cause has another one in each query and each run."""

_MACHINE = (
    "The machine could not start a process, or answer, in time: Spark gives each Python process that it"
    " starts ten seconds. Give the machine more cores or memory, or the job fewer queries with Python."
    " Such failures are counted apart from the job's own and use up none of its restarts; a restart waits"
    " until the machine can start a process in time (restart-strategy.machine-failures.*)."
)
_KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        "memory",
        r"OutOfMemoryError|StackOverflowError|Cannot allocate memory|GC overhead",
        "The process ran out of memory. Give the driver more (--conf spark.driver.memory=4g), keep less"
        " state (a watermark, a time to live), or keep it in RocksDB (state.backend.type: rocksdb).",
    ),
    (
        "killed",
        r"killed by SIGKILL|killed by signal 9",
        "Somebody killed the process, or the kernel did because memory ran out: 'dmesg' names its victims."
        " If it was the kernel, give the driver less (--conf spark.driver.memory) or the machine more.",
    ),
    (
        "disk full",
        r"No space left on device|ENOSPC|Disk quota exceeded",
        "The disk is full: make room where execution.checkpointing.dir and Spark's local directory are;"
        " 'weir doctor' shows how much is free. Nothing that was committed is lost.",
    ),
    (
        "schema",
        r"AnalysisException|SchemaMismatch|STATE_STORE_.*SCHEMA|ChannelSchemaError|SinkMismatchError"
        r"|PinnedStateError|cannot resolve|UNRESOLVED_COLUMN|incompatible schema",
        "A schema or a column is not what the query expects. If the data has changed, fix the query; if the"
        " query has changed, its old state may not fit: take a savepoint with the old code first, and look at"
        " what becomes of each operator before the new one starts.",
    ),
    (
        "overload",
        r"failed to connect back|did not answer within \d+ s",
        _MACHINE,
    ),
    (
        "network",
        r"java\.net\.|ConnectException|UnknownHost|SocketTimeout|Connection (refused|reset)|TimeoutException"
        r"|BrokerNotAvailable|ConnectionError|Name or service not known|no route to host",
        "Something across the network did not answer: check that its address can be reached from here, and"
        " that it is up. The job starts again by itself as restart-strategy.* defines.",
    ),
    (
        "storage",
        r"StorageError|OutcomeUnknownError|Permission denied|Read-only file system|Lost\w+Error"
        r"|Damaged\w*Error",
        "Files of the job can't be read or written, or are missing: 'weir verify JOB' shows what "
        "is intact, 'weir doctor' whether the directory is writable.",
    ),
)
_POISON = (
    "The same batch failed more than once in the job's own code: it can't handle some record."
    " Look at the frames below, let the function set such records aside, and start again; or "
    "restore a point before it with 'weir restore'."
)
_USER = (
    "The job's own code raised. The frames below are the author's own first: fix the function, then start"
    " again. What was committed before stays."
)


@dataclass(frozen=True)
class Frame:
    """One line of a stack."""

    file: str
    line: int
    function: str
    code: str
    own: bool
    """It is the author's, not Python's, Spark's or weir's."""


@dataclass(frozen=True)
class Advice:
    kind: str
    text: str


def grouped(failures: Iterable[Event]) -> list[dict[str, Any]]:
    """The failures, which come oldest first, by cause; the cause that was seen last is first."""
    groups: dict[_Cause, list[Event]] = {}
    for event in failures:
        groups.setdefault(_cause(event), []).append(event)
    found = [_group(events) for events in groups.values()]
    return sorted(found, key=lambda one: str(one["last_at"]), reverse=True)


class _Cause(NamedTuple):
    """What failures have in common that are shown as one."""

    domain: str
    error: str
    where: str
    """The author's own innermost line; the message, without its numbers and values, when there is none."""


def _cause(event: Event) -> _Cause:
    body = event.body
    own = [one for one in frames(str(body.get("stack") or "")) if one.own]
    text = _VARIES.sub("*", _OF_QUERY.sub("", f"{body.get('what', '')} {body.get('why', '')}"))
    where = f"{own[-1].file}:{own[-1].line}" if own else text
    return _Cause(str(body.get("domain", "")), str(body.get("error", "")), where)


def frames(stack: str) -> list[Frame]:
    """The frames of a stack, the author's own first, each where the stack has it otherwise."""
    distinct = dict.fromkeys(_frame(one) for one in _FRAME.finditer(stack))
    return sorted(distinct, key=lambda one: not one.own)


def _frame(one: re.Match[str]) -> Frame:
    own = not _FOREIGN.search(one["file"])
    return Frame(one["file"], int(one["line"]), one["function"].strip(), (one["code"] or "").strip(), own)


def advice(body: dict[str, Any], again: bool = False) -> Advice | None:
    """What helps against a failure of a known kind; `again`: the same batch has failed before."""
    text = " ".join(str(body.get(key, "")) for key in ("error", "what", "why", "stack"))
    if body.get("domain") == "machine":
        return Advice("overload", _MACHINE)
    user = body.get("domain") == "user"
    if user and again:
        return Advice("poison record", _POISON)
    for kind, pattern, words in _KNOWN:
        if re.search(pattern, text):
            return Advice(kind, words)
    return Advice("user code", _USER) if user else None


def _group(events: list[Event]) -> dict[str, Any]:
    last = events[-1]
    batches = [event.body.get("batch") for event in events]
    again = last.body.get("batch") is not None and batches.count(last.body.get("batch")) > 1
    found = advice(last.body, again)
    stack = frames(str(last.body.get("stack") or ""))
    return {
        "count": len(events),
        "first_at": events[0].at,
        "last_at": last.at,
        "queries": sorted({event.query for event in events if event.query}),
        "attempts": sorted({event.attempt for event in events}),
        "batches": list(dict.fromkeys(batch for batch in batches if batch is not None and batch >= 0)),
        "kind": found.kind if found else "",
        "advice": found.text if found else "",
        "frames": [vars(frame) for frame in stack],
        "last": forms.failure(last),
    }

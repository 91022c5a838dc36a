"""The layout of design section 7 below `<dir>/<job>/`: every key is made here and nowhere else."""

from __future__ import annotations

from weir.ids import Attempt, Generation, JobName, QueryName, SourceName


def job(name: JobName) -> str:
    return str(name)


def attempts(name: JobName) -> str:
    return f"{name}/attempts"


def attempt(name: JobName, number: Attempt) -> str:
    return f"{name}/attempts/{number:06d}.json"


def beat(name: JobName, number: Attempt) -> str:
    return f"{name}/attempts/{number:06d}.beat"


def origin(name: JobName, number: Generation) -> str:
    return f"{name}/generations/{number:04d}/origin.json"


def query(name: JobName, number: Generation, query_name: QueryName) -> str:
    """Spark's checkpointLocation of a query."""
    return f"{name}/generations/{number:04d}/queries/{query_name}"


def source(name: JobName, number: Generation, source_name: SourceName) -> str:
    """The place of a receiving source; its journal is `log/<n>.json` below it."""
    return f"{name}/generations/{number:04d}/sources/{source_name}"


def requests(name: JobName) -> str:
    return f"{name}/requests"


def journal(name: JobName) -> str:
    return f"{name}/journal/journal.sqlite"


def logs(name: JobName) -> str:
    return f"{name}/logs"

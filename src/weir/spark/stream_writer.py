"""What weir reads of an unstarted writer of Spark's, and a guard against writers that are started past weir.

What is read are fields of the Java object that the writer wraps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming import DataStreamWriter

ASYNC_PROGRESS = "asyncProgressTrackingEnabled"
CHECKPOINT_LOCATION = "checkpointLocation"
_BOUNDED = {"AvailableNowTrigger$", "OneTimeTrigger$"}
_TRIGGERS = {"ContinuousTrigger": "continuous", "RealTimeTrigger": "realTime"}


def format_of(writer: DataStreamWriter) -> str:
    """The name of the sink's format; "" when none was given."""
    return str(_field(writer, "source") or "")


def option_of(writer: DataStreamWriter, name: str) -> str:
    """One option of the sink, or ""."""
    found = _field(writer, "extraOptions").get(name)
    return str(found.get()) if found.isDefined() else ""


def query_name_of(writer: DataStreamWriter) -> str:
    """The name that `queryName` gave to the query, or ""."""
    return option_of(writer, "queryName")


@contextmanager
def none_started(refusal: Callable[[str], Exception]) -> Iterator[None]:
    """Inside, a writer that this thread starts raises what `refusal` makes of the method's name.

    Nothing has been started then. Other threads, in which weir starts its queries, are not affected.
    """
    from pyspark.sql.streaming import DataStreamWriter  # noqa: PLC0415

    thread = threading.get_ident()
    methods = {name: getattr(DataStreamWriter, name) for name in ("start", "toTable")}

    def guarded(name: str, method: Any) -> Any:
        def call(writer: Any, *args: Any, **options: Any) -> Any:
            if threading.get_ident() == thread:
                raise refusal(name)
            return method(writer, *args, **options)

        return call

    for name, method in methods.items():
        setattr(DataStreamWriter, name, guarded(name, method))
    try:
        yield
    finally:
        for name, method in methods.items():
            setattr(DataStreamWriter, name, method)


def trigger_without_batches(writer: DataStreamWriter) -> str:
    """`continuous` or `realTime`, when the writer has such a trigger; else ""."""
    return _TRIGGERS.get(str(_field(writer, "trigger").getClass().getSimpleName()), "")


def is_bounded(writer: DataStreamWriter) -> bool:
    """Whether its query ends by itself, with what is there when it starts."""
    return str(_field(writer, "trigger").getClass().getSimpleName()) in _BOUNDED


def _field(writer: DataStreamWriter, name: str) -> Any:
    made: Any = writer._jwrite
    field = made.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(made)

"""What weir reads of an unstarted writer of Spark's: fields of the Java object behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming import DataStreamWriter

ASYNC_PROGRESS = "asyncProgressTrackingEnabled"
_BOUNDED = {"AvailableNowTrigger$", "OneTimeTrigger$"}
_TRIGGERS = {"ContinuousTrigger": "continuous", "RealTimeTrigger": "realTime"}


def format_of(writer: DataStreamWriter) -> str:
    """The name of the sink's format; "" when none was given."""
    return str(_field(writer, "source") or "")


def option_of(writer: DataStreamWriter, name: str) -> str:
    """One option of the sink, or ""."""
    found = _field(writer, "extraOptions").get(name)
    return str(found.get()) if found.isDefined() else ""


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

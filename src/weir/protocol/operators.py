"""The operators that keep state in a query: what they are, and which keys and values they have.

As the files of a checkpointLocation show of a query that ran (`weir.spark.state_schema`), and as
Spark's planner says of one that has not. Frozen, and written into savepoints as they are.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """What never changes, and what a newer weir adds to it is left out."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Family(Frozen):
    """One column family of a store: its keys and values. Most stores have one, called "default"."""

    name: str = "default"
    key_schema: dict[str, Any] | None = None
    """Spark's JSON of the struct; None where the files do not say."""
    value_schema: dict[str, Any] | None = None
    key_encoder: dict[str, Any] = {}
    """How Spark lays the key out, where its files say so: type, prefix or ordering columns."""
    user_key_schema: dict[str, Any] | None = None
    """The key inside a map state."""


class StateStore(Frozen):
    """One store of an operator; a join has several."""

    name: str
    prefix_columns: int = 0
    """How many leading columns of the key can be scanned by."""
    families: tuple[Family, ...] = ()

    @property
    def key_schema(self) -> dict[str, Any] | None:
        """Of its first family."""
        return self.families[0].key_schema if self.families else None

    @property
    def value_schema(self) -> dict[str, Any] | None:
        return self.families[0].value_schema if self.families else None


class Operator(Frozen):
    """A stateful operator of a query."""

    id: int
    """Its place in the plan: 0 is nearest the sink."""
    kind: str
    """Spark's name: stateStoreSave, dedupe, symmetricHashJoin, transformWithStateInPySparkExec ..."""
    stores: tuple[StateStore, ...] = ()
    partitions: int = 0
    """How many partitions hold its state; a global aggregate has one, whatever the parallelism."""
    properties: dict[str, Any] = {}
    """What Spark keeps besides, of transformWithState: time mode, output mode, state variables."""
    rows: int | None = None
    """Rows of state, where that is known exactly."""
    bytes: int | None = None
    """Bytes of the files that its state needs; None for an operator that is only planned."""

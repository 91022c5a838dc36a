"""Small user state of one query: `env.state(name, query)`.

    <generation>/user-state/<query>/staged/<batch>-<token>.json   values, as a run left them
    <generation>/user-state/<query>/values/<batch>-<token>.json   values of a batch that counts
    <generation>/user-state/<query>/newest.json                   the last two batches that left values

The last of these makes a loss visible: without it, lost values would look like a query that never had any.

A wrapper round the query's sink takes the values along the path of the batch: staged before the
staging is recorded, and made the values of the batch, by the run that delivers it, before the sink's
own commit. So what recovery finds are the values of the last committed batch, and a batch that runs
again starts from those of the batch before it. Of several deliverers of one batch the highest token
counts: what a zombie writes changes nothing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weir.errors import ExternalError, LostLedgerError, UserStateError
from weir.ids import NO_BATCH, NOBODY, BatchId, QueryName, Token, query_name
from weir.protocol.ledger import Ledger, Staged
from weir.sinks.contract import Outcome, SinkAround, StagingSink
from weir.sinks.fence import Knows, anyone
from weir.sinks.staging import name_of, parse_name, records_in
from weir.spark.closure import GoneError
from weir.storage import Store, sums
from weir.storage.log import parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LIMIT = 1_000_000
"""The largest value of one state, in bytes of JSON."""
KEPT = 100
"""For how many batches values are kept, as Spark keeps its logs."""
_PATIENCE = 10.0
"""Seconds that a checkpoint waits for the delivery of its cut."""

_FOLDER = "user-state"
_NO_VALUES = b"{}"


class State:
    """One state. Its value is there inside a batch of its query, on the driver, and nowhere else.

    A batch begins with the value of the batch before it, or with `initial`; what it is when the
    batch's function returns is written with the batch. It counts if and only if the batch does.
    """

    def __init__(self, name: str, query: QueryName, initial: Any, *, live: bool) -> None:
        self.name = name
        self.query = query
        self._live = live
        self._inside = False
        self._value: Any = None
        self._initial = self._json(initial)

    @property
    def value(self) -> Any:
        """The value: anything that JSON has, of at most 1 MB. It may be changed in place."""
        self._check_inside("read")
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        self._check_inside("assigned")
        self._value = json.loads(self._json(value))

    def begin(self, before: Mapping[str, Any]) -> None:
        """A batch begins, with these values of the query's states before it."""
        self._value = before[self.name] if self.name in before else json.loads(self._initial)
        self._inside = True

    def end(self) -> None:
        """The batch is over, well or not."""
        self._inside = False

    def kept(self) -> Any:
        """What the batch left, checked once more: it may have been changed in place."""
        self._json(self._value)
        return self._value

    def __repr__(self) -> str:
        return f"State({self.name!r}, {self.query!r})"

    def _json(self, value: Any) -> str:
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._refused(
                "kept",
                f"its value is not JSON: {error}",
                "use numbers that are finite, texts, lists, dicts with texts as keys; .tolist() of an array",
            ) from error
        if len(text) > LIMIT:
            raise self._refused(
                "kept",
                f"its value has {len(text):,} bytes as JSON, and at most {LIMIT:,} (1 MB) are kept",
                "write what is large to a file of its own, and keep the file's name in the state",
            )
        return text

    def _check_inside(self, verb: str) -> None:
        if self._inside:
            return
        if self._live:
            reason = f"no batch of query {self.query!r} is running here, and it has a value only inside one"
        else:
            reason = (
                "this object was made by a call of the pipeline function for another query, "
                "or only to build the graph"
            )
        todo = f"use it in the function of the sink of {self.query!r}, made by the same call of the pipeline"
        raise self._refused(verb, reason, todo)

    def _refused(self, verb: str, reason: str, todo: str) -> UserStateError:
        return UserStateError(state=self.name, query=self.query, verb=verb, reason=reason, todo=todo)


class States:
    """The states that one evaluation of a pipeline function declares.

    `evaluated_for` is the query whose states are live in it; None when it only learns the graph.
    """

    def __init__(self, evaluated_for: QueryName | None) -> None:
        self._evaluated_for = evaluated_for
        self._declared: list[State] = []

    def add(self, name: str, query: str, initial: Any) -> State:
        """Declare one; raises when there is one of this name for the query."""
        owner = query_name(query)
        state = State(name, owner, initial, live=owner == self._evaluated_for)
        if any((one.name, one.query) == (name, owner) for one in self._declared):
            raise _undeclared(state, "two states of this query have this name", "rename one of them")
        self._declared.append(state)
        return state

    def check(self, sinks: Mapping[QueryName, object], streams: Iterable[QueryName]) -> None:
        """Refuse a state whose query is not there, or runs nothing of the author's on the driver."""
        for state in self._declared:
            if state.query not in sinks:
                todo = "name the query as in env.sink(...)"
                raise _undeclared(state, "the pipeline makes no query of this name", todo)
            if state.query in set(streams):
                reason = "it is a stream: no code of yours runs in its batches on the driver"
                todo = "keep the state at a query after it, with weir.sinks.function"
                raise _undeclared(state, reason, todo)
            if not isinstance(sinks[state.query], StagingSink):
                reason = "its sink is one of Spark's own, which can't keep a value beside its rows"
                raise _undeclared(state, reason, "use weir.sinks.function, or another sink of weir's")

    def around(self, query: QueryName, sink: StagingSink, values: Values) -> StagingSink:
        """The sink with the states of this query; the sink itself when it has none."""
        own = [state for state in self._declared if state.query == query]
        return UserStateSink(sink, values, own) if own else sink


def _undeclared(state: State, reason: str, todo: str) -> UserStateError:
    return UserStateError(state=state.name, query=state.query, verb="had", reason=reason, todo=todo)


class ValuesGoneError(GoneError):
    """The values of a batch are deleted already."""

    why = f"values are kept for {KEPT} batches, and the checkpoint took longer than those"


class Values:
    """The values of all states of one query, in the store of a generation. For any thread.

    The values of a batch are those of the newest batch up to it that has some: a state that is taken
    out of the pipeline keeps its last value, and resumes with it when it comes back.
    """

    def __init__(self, generation: Store, query: QueryName) -> None:
        self._store = generation
        self._staged = f"{_FOLDER}/{query}/staged"
        self._values = f"{_FOLDER}/{query}/values"
        self._newest = f"{_FOLDER}/{query}/newest.json"

    def stage(self, batch: BatchId, token: Token, values: bytes) -> None:
        """Make what a run left durable; nothing looks at it yet."""
        self._store.put(_key(self._staged, batch, token), sums.add(values))
        self._note([*(one for one in self._notes() if one < batch), batch])

    def commit(self, staged: Staged, deliverer: Token) -> None:
        """Make what was staged the values of the batch. Safe to repeat.

        Nothing to do when nothing was staged: the run had no states.
        """
        data = self._store.get(_key(self._staged, staged.batch, staged.token))
        if data is not None:
            self._store.create(_key(self._values, staged.batch, deliverer), data)

    def forget(self, staged: Staged) -> None:
        """Delete a staging that was committed, and the values of batches that are too old.

        The newest of those stays: it may be the value of many batches, if the query had no state for a time.
        """
        self._store.delete(_key(self._staged, staged.batch, staged.token))
        old = [key for key in records_in(self._store, self._values) if _parse(key)[0] <= staged.batch - KEPT]
        for key in sorted(old, key=_parse)[:-1]:
            self._store.delete(key)

    def discard(self, upto: BatchId, keep: Sequence[Staged]) -> None:
        """Delete every staging up to this batch that is not to be kept."""
        kept = {(one.batch, one.token) for one in keep}
        removed: set[BatchId] = set()
        for key in list(records_in(self._store, self._staged)):
            if _parse(key)[0] <= upto and _parse(key) not in kept:
                self._store.delete(key)
                removed.add(_parse(key)[0])
        if removed.intersection(notes := self._notes()):
            left = {
                _parse(key)[0]
                for folder in (self._staged, self._values)
                for key in records_in(self._store, folder)
            }
            self._note([one for one in notes if one not in removed or one in left])

    def rewind(self, to: BatchId) -> None:
        """Delete the values of every batch above this one."""
        for key in list(records_in(self._store, self._values)):
            if _parse(key)[0] > to:
                self._store.delete(key)
        if any(one > to for one in self._notes()):
            self._note([one for one in self._notes() if one <= to])

    def after(self, batch: BatchId) -> bytes:
        """The values after a committed batch, as a JSON object by the names of the states.

        Raises `LostLedgerError` when they are damaged.
        """
        names = self.files_of(batch)
        data = self._store.get(names[0]) if names else None
        if data is None:
            return _NO_VALUES
        parse(self._store, names[0], data)
        return sums.strip(data)

    def files_of(self, batch: BatchId) -> list[str]:
        """The file, below the generation, that holds the values after a batch that was delivered.

        Empty when there are none. Raises `ValuesGoneError` when there may have been some.
        """
        known = sorted(records_in(self._store, self._values), key=_parse)
        keys = [key for key in known if _parse(key)[0] <= batch]
        if not keys and known and _parse(known[-1])[0] - KEPT > batch:
            raise ValuesGoneError(f"the user state of batch {batch}")
        return keys[-1:]

    def problems(self, committed: BatchId) -> dict[str, str]:
        """What is wrong with the values that a start after this committed batch begins with, by file."""
        staged = [key for key in records_in(self._store, self._staged) if _parse(key)[0] == committed]
        keys = [key for key in records_in(self._store, self._values) if _parse(key)[0] <= committed]
        newest = max(keys, key=_parse, default=None)
        last = _parse(newest)[0] if newest is not None else NO_BATCH
        wrong = {key: self._problem(key) for key in [*staged, *([newest] if newest is not None else [])]}
        if not staged and last < self._noted(committed):
            wrong[f"{self._values}/{self._noted(committed):09d}"] = "is gone"
        return {key: what for key, what in wrong.items() if what is not None}

    def _noted(self, committed: BatchId) -> BatchId:
        """The last batch up to the committed one that is known to have left values."""
        return max((one for one in self._notes() if one <= committed), default=NO_BATCH)

    def _notes(self) -> list[BatchId]:
        """The last two batches that left values, oldest first: the newest may never be committed.

        Empty when it can't be read: values that are there are read without it.
        """
        try:
            known = json.loads(sums.strip(self._store.get(self._newest) or b"{}"))
            return sorted(BatchId(int(one)) for one in known["batches"])
        except (ValueError, KeyError, TypeError):
            return []

    def _note(self, batches: Sequence[BatchId]) -> None:
        self._store.put(self._newest, sums.add(json.dumps({"batches": batches[-2:]}).encode()))

    def _problem(self, key: str) -> str | None:
        data = self._store.get(key)
        try:
            if data is not None:
                parse(self._store, key, data)
        except LostLedgerError as error:
            return str(error.fields["wrong"])
        return None

    def files_with_staged(self, batch: BatchId) -> list[str]:
        """The same of a batch that may not be delivered yet: with what its runs have staged."""
        staged = [key for key in records_in(self._store, self._staged) if _parse(key)[0] == batch]
        return self.files_of(batch) + staged


def _key(folder: str, batch: BatchId, token: Token) -> str:
    return f"{folder}/{name_of(batch, token)}.json"


def _parse(key: str) -> tuple[BatchId, Token]:
    return parse_name(key.rsplit("/", 1)[1].removesuffix(".json"))


class UserStateSink(SinkAround):
    """A sink whose batches carry user state; keeps the contract of `StagingSink`.

    What it delivers is the inner sink's; each step of the values stands before the inner sink's own.
    """

    def __init__(self, inner: StagingSink, values: Values, states: Sequence[State]) -> None:
        self._inner = inner
        self._values = values
        self._states = states
        self._token = NOBODY
        self._last: tuple[BatchId, bytes] | None = None
        """The batch that this run staged last, and the values after it."""
        self._undelivered: set[BatchId] = set()
        self._delivered = threading.Condition()

    @property
    def inner(self) -> StagingSink:
        """The sink that delivers; see `capabilities`."""
        return self._inner

    def describe(self) -> str:
        return self._inner.describe()

    def look(self, owner: str, lineage: str, token: Token, knows: Knows = anyone) -> Ledger:
        return self._inner.look(owner, lineage, token, knows)

    def open(self, owner: str, lineage: str, token: Token, knows: Knows = anyone) -> Ledger:
        self._token = token
        return self._inner.open(owner, lineage, token, knows)

    def stage(self, frame: DataFrame, batch: BatchId, token: Token) -> None:
        before: dict[str, Any] = json.loads(self._before(batch))
        for state in self._states:
            state.begin(before)
        try:
            self._inner.stage(frame, batch, token)
        finally:
            for state in self._states:
                state.end()
        values = json.dumps(before | {state.name: state.kept() for state in self._states}).encode()
        self._values.stage(batch, token, values)
        self._last = batch, values
        with self._delivered:
            self._undelivered.add(batch)

    def record(self, staged: Staged) -> None:
        self._inner.record(staged)

    def staged(self) -> Sequence[Staged]:
        return self._inner.staged()

    def commit(self, staged: Staged) -> Outcome:
        self._values.commit(staged, self._token)
        outcome = self._inner.commit(staged)
        if outcome is not Outcome.UNKNOWN:
            self._values.forget(staged)
            with self._delivered:
                self._undelivered.discard(staged.batch)
                self._delivered.notify_all()
        return outcome

    def discard(self, upto: BatchId, keep: Sequence[Staged]) -> None:
        self._inner.discard(upto, keep)
        self._values.discard(upto, keep)

    def rewind(self, to: BatchId) -> Outcome:
        outcome = self._inner.rewind(to)
        if outcome is not Outcome.UNKNOWN:
            self._values.rewind(to)
        return outcome

    def files_of(self, batch: BatchId, seconds: float = _PATIENCE) -> list[str]:
        """The file, below the generation, that holds the values after a batch that Spark has committed.

        Waits while this run has not delivered it yet; raises `ExternalError` when that takes longer.
        """
        with self._delivered:
            if not self._delivered.wait_for(lambda: batch not in self._undelivered, seconds):
                raise ExternalError(
                    what=f"the user state after batch {batch} is not known yet: "
                    f"{self.describe()} has not taken the batch within {seconds:g} s"
                )
        return self._values.files_of(batch)

    def _before(self, batch: BatchId) -> bytes:
        """The values after the batch before; never those that a first try of this batch left."""
        if self._last is not None and self._last[0] == batch - 1:
            return self._last[1]
        return self._values.after(BatchId(batch - 1))

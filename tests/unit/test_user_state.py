"""User state along the path of a batch, without Spark: a model of its decisions, a real store.

The driver of these tests is killed at every single write, before it and behind it: what the next one
finds are the values of the last committed batch.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from weir import sinks
from weir.checkpoint.vertex import reason_of
from weir.errors import ExternalError, FencedError, OutcomeUnknownError, StorageError, UserStateError
from weir.ids import NO_BATCH, Attempt, BatchId, QueryName, Run, Token
from weir.protocol.ledger import Staged, plan_start
from weir.sinks import Outcome, StagingSink
from weir.sinks.contract import capabilities
from weir.sinks.function import FunctionSink
from weir.sinks.user_state import KEPT, LIMIT, State, States, UserStateSink, Values
from weir.spark.checkpoint_files import QueryFiles
from weir.spark.closure import GoneError
from weir.storage.local import LocalStore
from weir.storage.store import Created, Store
from weir.storage.unreliable import UnreliableStore

OWNER, LINEAGE, TRAIN = "job/train", "lineage", QueryName("train")
FRAME: Any = None


def token(attempt: int) -> Token:
    return Token(Attempt(attempt), Run(1))


class Killed(BaseException):
    """The driver is gone."""


class KillingStore:
    """A local store in which the driver dies at one of its writes, before or behind it."""

    def __init__(self, root: Path, at: int = -1, *, behind: bool = False) -> None:
        self._inner = LocalStore(root)
        self._at = at
        self._behind = behind
        self._writes = count()

    @property
    def url(self) -> str:
        return self._inner.url

    def create(self, key: str, data: bytes) -> Created:
        created: Created = self._write(lambda: self._inner.create(key, data))
        return created

    def put(self, key: str, data: bytes) -> None:
        self._write(lambda: self._inner.put(key, data))

    def delete(self, key: str) -> None:
        self._write(lambda: self._inner.delete(key))

    def get(self, key: str) -> bytes | None:
        return self._inner.get(key)

    def exists(self, key: str) -> bool:
        return self._inner.exists(key)

    def list(self, prefix: str) -> Iterator[str]:
        return self._inner.list(prefix)

    def _write(self, act: Callable[[], Any]) -> Any:
        number = next(self._writes)
        if number == self._at and not self._behind:
            raise Killed
        result = act()
        if number == self._at:
            raise Killed
        return result


@dataclass
class Below:
    """A store that begins at a folder of another."""

    store: Store
    folder: str

    @property
    def url(self) -> str:
        return f"{self.store.url}/{self.folder}"

    def create(self, key: str, data: bytes) -> Created:
        return self.store.create(f"{self.folder}/{key}", data)

    def put(self, key: str, data: bytes) -> None:
        self.store.put(f"{self.folder}/{key}", data)

    def get(self, key: str) -> bytes | None:
        return self.store.get(f"{self.folder}/{key}")

    def exists(self, key: str) -> bool:
        return self.store.exists(f"{self.folder}/{key}")

    def list(self, prefix: str) -> Iterator[str]:
        return iter(
            [key.removeprefix(f"{self.folder}/") for key in self.store.list(f"{self.folder}/{prefix}")]
        )

    def delete(self, key: str) -> None:
        self.store.delete(f"{self.folder}/{key}")


class Driver:
    """One run of the query `train`: recovers, then runs batches as Spark and the committer would.

    Every batch adds its number to the state `seen`.
    """

    def __init__(self, store: Store, attempt: int, step: Callable[[State, int], None] | None = None) -> None:
        self.store = store
        self.attempt = attempt
        self.values = Values(Below(store, "generation"), TRAIN)
        states = States(TRAIN)
        self.state = states.add("seen", "train", [])

        def called(frame: object, batch: int) -> None:
            if step is not None:
                step(self.state, batch)
            else:
                self.state.value.append(batch)

        inner = FunctionSink(called, "", store=Below(store, "sink"))
        self.sink = states.around(TRAIN, inner, self.values)
        self.last = self.sink.open(OWNER, LINEAGE, token(attempt)).last
        self.recover()

    def recover(self) -> None:
        committed = self.committed()
        staged = self.sink.staged()
        plan = plan_start(self.last, committed, staged, {})
        assert not plan.lost
        self.sink.discard(committed, plan.commit)
        for one in plan.commit:
            self.deliver(one)

    def committed(self) -> BatchId:
        return BatchId(max((int(key.rsplit("/", 1)[1]) for key in self.store.list("commits")), default=-1))

    def stage(self, batch: int) -> Staged:
        staged = Staged(BatchId(batch), token(self.attempt))
        self.sink.stage(FRAME, staged.batch, staged.token)
        self.sink.record(staged)
        return staged

    def decide(self, batch: int) -> None:
        self.store.create(f"commits/{batch}", b"v1")

    def run(self, upto: int, lag: int = 0) -> None:
        """Run every batch up to this one; the sink's commits are `lag` batches behind Spark's."""
        pending: deque[Staged] = deque()
        for batch in range(self.committed() + 1, upto + 1):
            pending.append(self.stage(batch))
            self.decide(batch)
            if len(pending) > lag:
                self.deliver(pending.popleft())
        while pending:
            self.deliver(pending.popleft())

    def deliver(self, staged: Staged) -> None:
        while self.sink.commit(staged) is Outcome.UNKNOWN:
            pass

    def found(self, batch: int | None = None) -> Any:
        """The value behind a batch, the last committed one unless told otherwise."""
        behind = self.values.after(self.committed() if batch is None else BatchId(batch))
        return json.loads(behind).get("seen")


def test_the_wrapper_is_a_staging_sink_and_knows_whether_it_can_be_rewound(tmp_path: Path) -> None:
    sink = Driver(LocalStore(tmp_path), 1).sink
    assert isinstance(sink, StagingSink) and isinstance(sink, UserStateSink)
    assert not capabilities(sink).rewindable
    files = sinks.files(str(tmp_path / "out"))
    assert capabilities(UserStateSink(files, Values(LocalStore(tmp_path), TRAIN), [])).rewindable


class OfTheAuthor:
    """Around something that has methods and attributes of the same names, which mean something else."""

    rewindable = False
    at_once = True
    ledger_in_job = True

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def check(self, *_: Any) -> None: ...
    def records_above(self, batch: BatchId) -> int:
        return 7

    def commit_together(self, *_: Any) -> Outcome:
        """Sinks commit together by their group, and this one is of none."""
        raise AssertionError


def test_a_sink_of_the_author_that_keeps_something_called_inner_answers_for_itself(tmp_path: Path) -> None:
    pool = SimpleNamespace(check=print, expect=print, rewindable=True, at_once=False, ledger_in_job=False)
    can = capabilities(sink := OfTheAuthor(pool))
    assert (can.rewindable, can.at_once, can.ledger_in_job) == (False, True, True)
    assert (can.check, can.expect, can.records_above) == (sink.check, None, sink.records_above)
    assert can.commit_together is None
    files = sinks.files(str(tmp_path / "out"), compact="1 mb")
    assert capabilities(OfTheAuthor(files)).forget == files.forget


class CheckedByName(StagingSink, sinks.CheckedSink, sinks.CountingSink):
    """As a job file of an earlier version may have it."""


class PlacedByName(sinks.PlacedSink, sinks.CheckedSink):
    """The same, of a sink that is made when its place is known."""


def test_classes_that_job_files_may_have_as_bases_are_no_staging_sinks() -> None:
    assert StagingSink in CheckedByName.__mro__
    assert StagingSink not in PlacedByName.__mro__  # or it would be used as it is, without its place


def test_a_batch_begins_with_the_value_of_the_batch_before_also_in_a_new_run(tmp_path: Path) -> None:
    seen: list[Any] = []

    def step(state: State, batch: int) -> None:
        seen.append(list(state.value))
        state.value = [*state.value, batch]

    Driver(LocalStore(tmp_path), 1, step).run(upto=1)
    Driver(LocalStore(tmp_path), 2, step).run(upto=3)
    assert seen == [[], [0], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
def test_killed_at_any_write_the_value_is_that_of_the_last_committed_batch(
    behind: bool, lag: int, tmp_path: Path
) -> None:
    for at in count():
        root = tmp_path / str(at)
        try:
            Driver(KillingStore(root, at, behind=behind), 1).run(upto=3, lag=lag)
            break
        except Killed:
            pass
        after = Driver(LocalStore(root), 2)
        last = after.committed()
        assert after.found() == (list(range(last + 1)) or None), f"killed at write {at}"
        after.run(upto=4, lag=lag)
        assert after.found() == [0, 1, 2, 3, 4], f"killed at write {at}"
        left = list(LocalStore(root / "generation/user-state/train").list("staged"))
        assert len(left) <= 1, "at most the staging of the run that was killed before its decision"
    assert at > 20, "it was killed often"


def test_killed_in_the_recovery_too_the_value_is_that_of_the_last_committed_batch(tmp_path: Path) -> None:
    for at in count():
        root = tmp_path / str(at)
        first = Driver(LocalStore(root), 1)
        for batch in range(3):  # decided and not delivered
            first.stage(batch)
            first.decide(batch)
        first.stage(3)
        try:
            Driver(KillingStore(root, at), 2)
            break
        except Killed:
            pass
        after = Driver(LocalStore(root), 3)
        assert after.found() == [0, 1, 2], f"killed at write {at}"
        after.run(upto=3)
        assert after.found() == [0, 1, 2, 3]
    assert at > 10


def test_a_second_try_of_a_batch_does_not_see_what_the_first_assigned(tmp_path: Path) -> None:
    seen: list[Any] = []

    def step(state: State, batch: int) -> None:
        seen.append(json.loads(json.dumps(state.value)))
        state.value.append(f"batch {batch}")  # in place
        state.value = [*state.value, "more"]

    driver = Driver(LocalStore(tmp_path), 1, step)
    driver.run(upto=0)
    for _ in range(2):
        driver.stage(1)
    assert seen[1] == seen[2] == ["batch 0", "more"]


def test_a_function_that_raises_leaves_nothing_behind(tmp_path: Path) -> None:
    def step(state: State, batch: int) -> None:
        state.value = ["half done"]
        raise ConnectionError

    Driver(LocalStore(tmp_path), 1).run(upto=0)
    driver = Driver(LocalStore(tmp_path), 2, step)
    with pytest.raises(ConnectionError):
        driver.stage(1)
    with pytest.raises(UserStateError, match="no batch of query 'train'"):
        driver.state.value  # noqa: B018
    again = Driver(LocalStore(tmp_path), 3)
    again.run(upto=1)
    assert again.found() == [0, 1]


def test_a_zombie_changes_no_value(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    zombie = Driver(store, 1, lambda state, batch: state.value.append("zombie"))
    late = zombie.stage(0)
    successor = Driver(store, 2)
    successor.run(upto=2)
    with pytest.raises(FencedError):
        zombie.sink.commit(late)
    assert [successor.found(batch) for batch in range(3)] == [[0], [0, 1], [0, 1, 2]]
    assert Driver(store, 3).found() == [0, 1, 2]


def test_what_a_zombie_decided_counts_with_its_values(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    zombie = Driver(store, 1, lambda state, batch: state.value.append("zombie"))
    zombie.stage(0)
    successor = Driver(store, 2)  # leaves the staging of batch 0, which nobody has decided
    zombie.decide(0)
    assert Driver(store, 3).found() == ["zombie"]
    assert successor.committed() == 0


def test_of_two_deliverers_of_a_batch_the_later_run_counts_whoever_staged_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    one = Driver(store, 1, lambda state, batch: state.value.append("one")).stage(0)
    sleeper = Driver(store, 2, lambda state, batch: state.value.append("two"))
    two = sleeper.stage(0)
    third = Driver(store, 3)
    third.decide(0)
    with pytest.raises(FencedError):
        sleeper.sink.commit(two)
    third.deliver(one)
    assert third.found(0) == ["one"]


def test_the_values_of_the_newest_batches_are_kept(tmp_path: Path) -> None:
    driver = Driver(LocalStore(tmp_path), 1, lambda state, batch: setattr(state, "value", batch))
    driver.run(upto=KEPT + 10)
    assert driver.found(KEPT + 10) == KEPT + 10
    assert driver.found(11) == 11
    assert driver.found(10) == 10
    assert len(list(driver.store.list("generation/user-state/train/values"))) == KEPT + 1


def test_values_that_are_deleted_already_are_not_taken_for_none(tmp_path: Path) -> None:
    """A checkpoint without them would begin again with the initial value, in silence."""
    driver = Driver(LocalStore(tmp_path), 1, lambda state, batch: setattr(state, "value", batch))
    driver.run(upto=KEPT + 10)
    with pytest.raises(GoneError) as gone:
        driver.values.files_of(BatchId(9))
    assert reason_of(gone.value) == (
        f"the user state of batch 9 is gone: values are kept for {KEPT} batches, "
        "and the checkpoint took longer than those"
    )


def test_a_value_of_many_batches_stays_as_long_as_one_of_them_counts(tmp_path: Path) -> None:
    """The state was taken out of the pipeline, and came back."""
    driver = Driver(LocalStore(tmp_path), 1, lambda state, batch: setattr(state, "value", batch))
    driver.run(upto=5)
    late = 3 * KEPT
    driver.values.stage(BatchId(late), Token(Attempt(1), Run(1)), b"{}")
    again = Staged(BatchId(late), Token(Attempt(1), Run(1)))
    driver.values.commit(again, Token(Attempt(1), Run(1)))
    driver.values.forget(again)
    (name,) = driver.values.files_of(BatchId(late - 1))
    assert name == "user-state/train/values/000000005-1-1.json"


def test_a_checkpoint_finds_the_file_of_its_cut_and_a_restore_goes_on_from_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    driver = Driver(store, 1)
    driver.run(upto=3)
    assert driver.values.files_of(NO_BATCH) == []
    (name,) = driver.values.files_of(BatchId(1))
    assert name == "user-state/train/values/000000001-1-1.json"
    data = store.get(f"generation/{name}")
    assert data is not None
    restored = LocalStore(tmp_path / "restored")
    restored.create(f"generation/{name}", data)
    for batch in range(2):
        restored.create(f"commits/{batch}", b"v1")
    restored.create("sink/log/000000000.json", store.get("sink/log/000000002.json") or b"")
    after = Driver(restored, 2)
    after.run(upto=2)
    assert after.found() == [0, 1, 2]


def test_a_checkpoint_waits_for_a_cut_that_is_not_delivered_yet(tmp_path: Path) -> None:
    driver = Driver(LocalStore(tmp_path), 1)
    driver.run(upto=0)
    staged = driver.stage(1)
    driver.decide(1)
    assert isinstance(driver.sink, UserStateSink)
    with pytest.raises(ExternalError, match="after batch 1 is not known yet"):
        driver.sink.files_of(BatchId(1), seconds=0.01)
    found: list[str] = []
    waiter = threading.Thread(target=lambda: found.extend(driver.sink.files_of(BatchId(1), 30)))  # type: ignore[attr-defined]
    waiter.start()
    driver.sink.commit(staged)
    waiter.join(30)
    assert found == ["user-state/train/values/000000001-1-1.json"]


def test_a_rewind_takes_the_values_back(tmp_path: Path) -> None:
    driver = Driver(LocalStore(tmp_path), 1)
    driver.run(upto=3)
    assert driver.sink.rewind(BatchId(1)) is Outcome.DONE_NOW
    assert driver.sink.rewind(BatchId(1)) is Outcome.ALREADY_DONE
    assert driver.found(3) == [0, 1]


def test_a_state_that_is_taken_out_keeps_its_value_until_it_comes_back(tmp_path: Path) -> None:
    values = Values(LocalStore(tmp_path), TRAIN)

    def run(batch: int, *names: str) -> dict[str, Any]:
        states = States(TRAIN)
        made = [states.add(name, "train", 0) for name in names]

        def add(frame: object, batch: int) -> None:
            for state in made:
                state.value += 1

        sink = states.around(TRAIN, FunctionSink(add, str(tmp_path / "sink")), values)
        sink.open(OWNER, LINEAGE, token(batch + 1))
        staged = Staged(BatchId(batch), token(batch + 1))
        sink.stage(FRAME, staged.batch, staged.token)
        sink.record(staged)
        sink.commit(staged)
        found: dict[str, Any] = json.loads(values.after(staged.batch))
        return found

    assert run(0, "a", "b") == {"a": 1, "b": 1}
    assert run(1, "b") == {"a": 1, "b": 2}
    assert run(2) == {"a": 1, "b": 2}, "no state at all"
    assert run(3, "a", "c") == {"a": 2, "b": 2, "c": 1}


@pytest.mark.parametrize("seed", range(5))
def test_through_a_failing_transport_no_value_is_lost(seed: int, tmp_path: Path) -> None:
    store = UnreliableStore(LocalStore(tmp_path), seed)
    for attempt in range(1, 500):
        try:
            Driver(store, attempt).run(upto=5, lag=1)
            break
        except (OutcomeUnknownError, StorageError):
            store.failing *= 0.99
    assert Driver(LocalStore(tmp_path), 1000).found() == [0, 1, 2, 3, 4, 5], f"seed {seed}"


# what an author may write


def begun(initial: Any = None) -> State:
    state = State("weights", TRAIN, initial, live=True)
    state.begin({})
    return state


@pytest.mark.parametrize("value", [None, True, 3, 2.5, "text", [1, [2]], {"w": [0.1, 0.2], "n": 3}])
def test_a_value_is_anything_that_json_has(value: Any) -> None:
    state = begun()
    state.value = value
    assert state.value == value
    assert begun(initial=value).value == value


def test_a_value_has_its_json_form_at_once_and_is_the_states_own() -> None:
    state, mine = begun(), {1: (2, 3)}
    state.value = mine
    assert state.value == {"1": [2, 3]}
    mine[1] = (4, 5)
    assert state.value == {"1": [2, 3]}


@pytest.mark.parametrize("value", [{1, 2}, object(), float("nan"), float("inf"), b"bytes", {(1, 2): 3}])
def test_a_value_that_is_not_json_is_refused_with_words(value: Any) -> None:
    state = begun()
    with pytest.raises(UserStateError, match=r"'weights' of query 'train' can't be kept.*not JSON"):
        state.value = value
    assert state.value is None, "it stays what it was"
    with pytest.raises(UserStateError, match="not JSON"):
        begun(initial=value)
    state.value = []
    state.value.append(value)
    with pytest.raises(UserStateError, match="not JSON"):
        state.kept()


def test_a_value_that_is_too_large_is_refused_with_its_size_and_the_limit() -> None:
    state = begun()
    state.value = "x" * (LIMIT - 2)
    with pytest.raises(UserStateError, match=r"1,000,001 bytes as JSON, and at most 1,000,000 \(1 MB\)"):
        state.value = "x" * (LIMIT - 1)


def test_a_state_has_no_value_outside_of_a_batch_of_its_query() -> None:
    learning, other, own = (States(query).add("n", "train", 0) for query in (None, QueryName("x"), TRAIN))
    for state in (learning, other):
        with pytest.raises(UserStateError, match="for another query, or only to build the graph"):
            state.value  # noqa: B018
    with pytest.raises(UserStateError, match=r"can't be assigned.*no batch of query 'train' is running"):
        own.value = 1


def test_declarations_that_can_not_work_are_refused(tmp_path: Path) -> None:
    def declared() -> States:
        states = States(None)
        states.add("n", "train", 0)
        return states

    with pytest.raises(UserStateError, match="two states of this query have this name"):
        declared().add("n", "train", 0)
    declared().add("n", "other", 0)
    with pytest.raises(UserStateError, match="makes no query of this name"):
        declared().check({QueryName("other"): sinks.console()}, [])
    for sink in (sinks.console(), sinks.memory(), None):
        with pytest.raises(UserStateError, match="one of Spark's own"):
            declared().check({TRAIN: sink}, [])
    placed = sinks.function(print).at(str(tmp_path), QueryFiles(LocalStore(tmp_path), "query"))
    with pytest.raises(UserStateError, match="it is a stream"):
        declared().check({TRAIN: placed}, [TRAIN])
    declared().check({TRAIN: placed}, [])


def test_a_query_without_states_keeps_its_sink(tmp_path: Path) -> None:
    sink = sinks.function(print).at(str(tmp_path), QueryFiles(LocalStore(tmp_path), "query"))
    assert States(TRAIN).around(TRAIN, sink, Values(LocalStore(tmp_path), TRAIN)) is sink


def test_lost_values_are_found_though_a_later_batch_was_staged_and_never_decided(tmp_path: Path) -> None:
    driver = Driver(LocalStore(tmp_path), 1, lambda state, batch: setattr(state, "value", batch))
    driver.run(upto=3)
    driver.stage(4)
    assert driver.values.problems(BatchId(3)) == {}
    driver.store.delete("generation/user-state/train/values/000000003-1-1.json")
    assert driver.values.problems(BatchId(3)) == {"user-state/train/values/000000003": "is gone"}


def test_a_staging_that_is_discarded_is_not_missed(tmp_path: Path) -> None:
    """Its batch ran again without the state, which came back later."""
    driver = Driver(LocalStore(tmp_path), 1, lambda state, batch: setattr(state, "value", batch))
    driver.run(upto=3)
    driver.stage(4)
    driver.values.discard(BatchId(4), [])
    assert driver.values.problems(BatchId(5)) == {}
    driver.values.rewind(BatchId(2))
    assert driver.values.problems(BatchId(3)) == {}

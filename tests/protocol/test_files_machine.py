"""A files sink that snapshots its ledger, merges its files and sweeps up, with kills and sleepers anywhere.

Any run may be killed before any single operation on the store, or sleep there while its successors open
the sink, deliver, take snapshots, merge and delete; so may a reader. The oracle is the whole ledger, which
is never shortened: who reads must get the rows that it says, each once, as it stood at some moment of the
reading; and an entry that a run believes to be in the ledger must be there. Sink and ledger are the real
ones, on a store in memory; what Spark does is played.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.played_files import TARGET, KilledError, PlayedFiles, SeenStore, WholeStore
from weir.clock import ManualClock
from weir.errors import FencedError
from weir.ids import NO_BATCH, Attempt, BatchId, Run, Token
from weir.protocol.ledger import Staged
from weir.sinks import Outcome
from weir.sinks import compaction as upkeep
from weir.sinks.files_ledger import log_of

MOST_OPERATIONS = 25


@dataclass
class _RunModel:
    token: Token
    store: SeenStore
    sink: PlayedFiles
    staged: dict[BatchId, Staged] = field(default_factory=dict)


def rows_of(store: WholeStore, history: Sequence[dict[str, Any]]) -> Counter[str]:
    """What the whole ledger says, by the simplest means: merges change nothing."""
    fence: tuple[int, int] = (0, 0)
    batches: dict[int, list[str]] = {}
    for entry in history:
        if entry["kind"] in ("opened", "merged"):
            continue
        token = (entry["attempt"], entry["run"])
        if token < fence:
            continue
        if entry["kind"] == "fence":
            fence = token
        elif entry["kind"] == "rewind":
            batches = {batch: rows for batch, rows in batches.items() if batch <= entry["to"]}
        elif entry["batch"] > max(batches, default=NO_BATCH):
            batches[entry["batch"]] = entry["body"]["files"]
    return Counter(_row(name) for names in batches.values() for name in names)


def _row(name: str) -> str:
    _, folder, _, part = name.split("/")
    batch, attempt, run = map(int, folder.split("-"))
    return f"{batch} of {Token(Attempt(attempt), Run(run))}, part {part.removeprefix('part-')}"


class Files(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        mock.patch("weir.sinks.files_ledger.EVERY", 3).start()
        mock.patch("weir.sinks.compaction.FAN", 3).start()
        self.store = WholeStore()
        self.clock = ManualClock()
        self.runs: list[_RunModel] = []
        self.attempts = 0
        self.line = NO_BATCH
        """No retained checkpoint leads back below this batch."""

    @rule(back=st.integers(0, 3))
    def start(self, back: int) -> None:
        """A new run takes over, and perhaps takes some batches back; the older ones do not know it."""
        self._start(back)

    @rule(back=st.integers(0, 3), at=st.integers(0, MOST_OPERATIONS), data=st.data())
    def start_slowly(self, back: int, at: int, data: st.DataObject) -> None:
        """One that is overtaken while it takes over."""
        seen = SeenStore(self.store)
        seen.at(at, lambda: self._burst(data))
        with suppress(FencedError):
            self._start(back, seen)
        seen.at(None, lambda: None)

    @rule(data=st.data(), parts=st.integers(1, 3))
    def deliver(self, data: st.DataObject, parts: int) -> None:
        self._somebody(data, lambda run: self._deliver(run, parts))

    @rule(data=st.data())
    def commit_again(self, data: st.DataObject) -> None:
        """A committer that got no answer, or has slept, does it once more."""

        def again(run: _RunModel) -> None:
            for staged in list(run.staged.values())[-1:]:
                self._commit(run, staged)

        self._somebody(data, again)

    @rule(data=st.data())
    def work(self, data: st.DataObject) -> None:
        self._somebody(data, lambda run: run.sink.work(self.line))

    @rule()
    def checkpoint(self) -> None:
        self.line = max(self.line, log_of(self.store).catch_up().ledger.last)

    @rule()
    def time_goes_by(self) -> None:
        self.clock.advance(upkeep.GRACE.total_seconds() / 2)

    @rule(at=st.integers(0, MOST_OPERATIONS), data=st.data())
    def read_slowly(self, at: int, data: st.DataObject) -> None:
        """What a reader gets was there at some moment, whatever happened while it slept."""
        seen, first = SeenStore(self.store), len(self.store.history)
        seen.at(at, lambda: self._burst(data))
        found = log_of(seen).catch_up().in_order()
        seen.at(None, lambda: None)
        rows = self._rows(found)
        moments = range(first, len(self.store.history) + 1)
        assert any(rows == rows_of(self.store, self.store.history[:moment]) for moment in moments)

    @invariant()
    def every_row_is_there_once(self) -> None:
        now = log_of(self.store).catch_up()
        assert self._rows(now.in_order()) == rows_of(self.store, self.store.history)
        assert now.ledger.floor <= self.line, "a retained checkpoint leads back to where nothing can be taken"

    @invariant()
    def what_was_merged_can_be_read_for_a_while(self) -> None:
        now, lately = log_of(self.store).catch_up(), (self.clock.now() - upkeep.GRACE).timestamp()
        assert all(self.store.exists(name) for name, at in now.replaced.items() if at > lately)

    def teardown(self) -> None:
        try:
            self._comes_to_rest()
        finally:
            mock.patch.stopall()

    def _comes_to_rest(self) -> None:
        """Whatever happened: a run that is let alone keeps the ledger short and the files few."""
        run = self._start(0)
        for _ in range(8):
            self._deliver(run, 1)
        self.checkpoint()
        self.clock.advance(2 * upkeep.GRACE.total_seconds())
        run.sink.work(self.line)
        self.every_row_is_there_once()
        sizes = [len(self.store.get(name) or b"") for name in log_of(self.store).catch_up().files]
        assert sum(2 * size < TARGET for size in sizes) < 16, sizes
        self.clock.advance(2 * upkeep.GRACE.total_seconds())
        for _ in range(8):
            self._deliver(run, 1)
            run.sink.work(self.line)
        self.every_row_is_there_once()
        number = log_of(self.store)
        number.catch_up()
        assert len(list(self.store.list("_weir/log"))) <= 12, number.number
        assert len(list(self.store.list("_weir/snapshots"))) <= 2

    def _start(self, back: int, seen: SeenStore | None = None) -> _RunModel:
        self.attempts += 1
        token, seen = Token(Attempt(self.attempts), Run(1)), seen or SeenStore(self.store)
        sink = PlayedFiles(seen, self.clock)
        now = sink.open("job/query", "lineage", token)
        to = BatchId(max(now.floor, self.line, now.last - back))
        if to < now.last:
            sink.rewind(to)
        sink.discard(min(to, now.last), [])
        run = _RunModel(token, seen, sink)
        self.runs.append(run)
        return run

    def _deliver(self, run: _RunModel, parts: int) -> None:
        batch = BatchId(log_of(run.store).catch_up().ledger.last + 1)
        staged = Staged(batch, run.token)
        run.sink.write(staged, parts)
        run.sink.record(staged)
        run.staged[batch] = staged
        self._commit(run, staged)

    def _commit(self, run: _RunModel, staged: Staged) -> None:
        if run.sink.commit(staged) is Outcome.DONE_NOW:
            there = [one for one in self.store.history if one["kind"] == "batch"]
            mine = [
                one for one in there if one["batch"] == staged.batch and one["attempt"] == run.token.attempt
            ]
            assert mine, f"{staged} was committed, and the ledger does not know it"

    def _somebody(self, data: st.DataObject, does: Callable[[_RunModel], None]) -> None:
        """Any run does it: whole, or it dies in the middle, or sleeps there while others work."""
        if not self.runs:
            return
        run = data.draw(st.sampled_from(self.runs), "who")
        how = data.draw(st.sampled_from(["whole", "dies", "sleeps"]), "how")
        at = data.draw(st.integers(0, MOST_OPERATIONS), "at") if how != "whole" else None
        run.store.at(at, self._die if how == "dies" else lambda: self._burst(data))
        try:
            does(run)
        except (FencedError, KilledError) as error:
            assert run.token.attempt < self.attempts or isinstance(error, KilledError)
            self.runs.remove(run)
        finally:
            run.store.at(None, lambda: None)

    def _die(self) -> None:
        raise KilledError

    def _burst(self, data: st.DataObject) -> None:
        """While one sleeps, a new run gets on, far enough that the ledger is shortened."""
        run = self._start(data.draw(st.integers(0, 2), "back"))
        for _ in range(data.draw(st.sampled_from([0, 1, 3]), "rounds")):
            for _ in range(data.draw(st.sampled_from([1, 4]), "batches")):
                self._deliver(run, 2)
            if data.draw(st.booleans(), "checkpoint"):
                self.checkpoint()
            run.sink.work(self.line)

    def _rows(self, names: Sequence[str]) -> Counter[str]:
        return Counter(row for name in names for row in json.loads(self.store.get(name) or b"null"))


TestFiles = Files.TestCase
TestFiles.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)

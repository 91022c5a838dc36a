"""Any order of steps of any number of actors, with crashes, zombies and failing storage: a completed
checkpoint is a consistent cut that can be restored, and everything drains.

The job, its drivers and what must hold at each step are in `model/`. Here is the disturbance: which
actor takes how many steps, and what goes wrong. In the end the job runs undisturbed: everything must
come through, a new checkpoint must complete, and every retained one is restored and runs to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.protocol.model.driver import Driver, check_rows, quiet, settle
from tests.protocol.model.world import RECORDS, Graph, World, restored
from weir.channel.log import Barrier
from weir.channel.position import Mode, Status
from weir.ids import CheckpointId

GRAPHS = {
    "diamond": Graph({"S": [], "L": ["S"], "R": ["S"], "J": ["L", "R"]}),
    "two roots": Graph({"A": [], "B": [], "J": ["A", "B"]}),
    "twice": Graph({"S": [], "J": ["S", "S"]}),
    "chain": Graph({"S": [], "M": ["S"], "J": ["M"]}),
    "deep": Graph({"A": [], "B": [], "M": ["A", "B"], "J": ["M", "A"]}),
    "alone": Graph({"S": []}),
}
OFTEN = ["diamond", "diamond", "two roots", "two roots", "deep", "twice", "chain", "alone"]
MODES = [Mode.ALIGNED, Mode.ALIGNED, Mode.AT_LEAST_ONCE, Mode.UNALIGNED]
SLOTS = 4
"""Queries are addressed by number, so that one schedule fits every graph."""

slots = st.integers(0, SLOTS - 1)
moves = st.one_of(
    st.tuples(st.just("batch"), slots),
    st.tuples(st.sampled_from(["spark", "committer", "feed", "trigger"]), slots),
    st.tuples(st.just("coordinator"), st.integers(1, 12)),
)
small_moves = st.tuples(st.sampled_from(["batch", "spark", "committer", "coordinator"]), slots)


class Checkpoints(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.zombies: list[Driver] = []
        self.ended: dict[CheckpointId, Status] = {}
        self.copies: list[World] = []

    @initialize(
        graph=st.sampled_from(OFTEN),
        mode=st.sampled_from(MODES),
        retained=st.integers(1, 2),
        kept=st.sampled_from([2, 6]),
    )
    def begin(self, graph: str, mode: Mode, retained: int, kept: int) -> None:
        self.world = World(GRAPHS[graph], mode, retained, kept)
        self.driver = Driver(self.world)
        self.driver.go_on(100)

    def name(self, slot: int) -> str:
        order = self.world.graph.order
        return order[slot % len(order)]

    def move(self, driver: Driver, move: str, value: int) -> None:
        if move == "batch":
            driver.whole_batch(self.name(value))
        elif move in ("spark", "committer"):
            driver.step(move, self.name(value))
        elif move == "feed":
            self.feed(value)
        elif move == "trigger":
            driver.ask("trigger")
        else:
            driver.coordinate(value)

    def feed(self, value: int) -> None:
        roots = self.world.graph.roots
        self.world.rows[roots[value % len(roots)]] += 1

    # what everybody does

    @rule(script=st.lists(moves, min_size=3, max_size=14))
    def work(self, script: list[tuple[str, int]]) -> None:
        """Several steps at once, of everybody, in any order."""
        for move, value in script:
            self.move(self.driver, move, value)

    @rule(
        turns=st.lists(st.tuples(slots, st.integers(0, 3)), min_size=3, max_size=10),
        fails=st.none() | st.tuples(slots, st.integers(0, 3)),
    )
    def during_a_checkpoint(self, turns: list[tuple[int, int]], fails: tuple[int, int] | None) -> None:
        """A checkpoint begins; between its steps rows come and batches run, and an entry can't be written."""
        self.driver.ask("trigger")
        if fails is not None:
            self.world.failures[self.name(fails[0])] = fails[1]
        for slot, steps in turns:
            self.feed(slot)
            self.driver.whole_batch(self.name(slot))
            self.driver.coordinate(steps)

    @rule(
        rounds=st.integers(1, 3), left_out=slots, steps=st.integers(0, 10), catches_up=st.sampled_from([0, 2])
    )
    def one_is_slow(self, rounds: int, left_out: int, steps: int, catches_up: int) -> None:
        """A checkpoint begins, rows come, and everybody works but one, which may catch up then."""
        self.driver.ask("trigger")
        self.driver.coordinate(steps)
        for turn in range(rounds + catches_up):
            for slot in range(SLOTS):
                self.feed(slot)
            slow = self.name(left_out) if turn < rounds else ""
            self.everybody(slow)
            self.driver.coordinate(steps)

    @rule(
        turns=st.lists(st.integers(0, 4), min_size=2, max_size=6),
        fails=st.none() | st.tuples(slots, st.integers(0, 3)),
        slow=st.booleans(),
    )
    def two_in_flight(self, turns: list[int], fails: tuple[int, int] | None, slow: bool) -> None:
        """Two checkpoints begin, one soon after the other; the second one may be kept first."""
        self.world.slow = slow
        for _ in range(2):
            self.driver.ask("trigger")
            self.driver.coordinate(5)
            self.feed(0)
            self.everybody("")
        if fails is not None:
            self.world.failures[self.name(fails[0])] = fails[1]
        for steps in turns:
            self.everybody("")
            self.driver.coordinate(steps)
        self.world.slow = False

    @rule(
        busy=st.sets(slots, min_size=1),
        turns=st.lists(
            st.sampled_from(["", "", "", "trigger", "expire", "expire newest", "turn"]),
            min_size=3,
            max_size=8,
        ),
        steps=st.integers(1, 5),
        free=st.integers(1, 6),
    )
    def checkpoints_wait_for_roots(self, busy: set[int], turns: list[str], steps: int, free: int) -> None:
        """Several begin while roots are in a batch; then one root after the other gets their barriers."""
        self.world.busy = {self.name(slot) for slot in busy}
        for _ in range(2):
            self.driver.ask("trigger")
            self.driver.coordinate(6)
        for number, request in enumerate(turns):
            if number + 1 >= free and self.world.busy:
                self.world.busy.remove(min(self.world.busy))
            if request:
                self.driver.ask(request)
            self.driver.coordinate(steps)
            self.feed(number)
            self.driver.whole_batch(self.name(number))
            self.driver.whole_batch(self.world.graph.order[-1])
        self.world.busy.clear()

    def everybody(self, slow: str) -> None:
        for name in self.world.graph.order:
            if name != slow:
                self.driver.whole_batch(name)

    # what goes wrong

    @rule(
        request=st.sampled_from(["turn", "turn", "expire"]),
        ahead=st.integers(0, 3),
        steps=st.integers(0, 12),
    )
    def no_more_patience(self, request: str, ahead: int, steps: int) -> None:
        """A checkpoint takes too long; the last query may get on before it is told."""
        if self.driver.coordinator.state.pending:
            self.driver.ask(request)
            for _ in range(ahead):
                self.driver.whole_batch(self.world.graph.order[-1])
            self.driver.coordinate(steps)

    @rule(slot=slots, steps=st.integers(0, 6), ahead=st.integers(0, 2))
    def one_stands(self, slot: int, steps: int, ahead: int) -> None:
        """A query is cut where it stands, as one that has ended, and the others align."""
        self.driver.ask("trigger")
        self.driver.coordinate(steps)
        self.everybody("" if ahead else self.name(slot))
        self.driver.ask(f"stands {self.name(slot)}")
        self.driver.coordinate(steps)

    @rule(slot=slots)
    def one_query_starts_again(self, slot: int) -> None:
        if self.driver.running:
            self.driver.restart(self.name(slot))

    @rule(
        steps=st.integers(0, 9),
        sleeps=st.booleans(),
        started=st.integers(0, 30),
        script=st.lists(small_moves, max_size=6),
        mode=st.sampled_from([None, None, None, *Mode]),
    )
    def crash(
        self, steps: int, sleeps: bool, started: int, script: list[tuple[str, int]], mode: Mode | None
    ) -> None:
        """The driver dies in the steps of a checkpoint, or is taken for dead and acts a little later.

        The next one may not get far; the settings may have been changed in between.
        """
        self.driver.ask("trigger")
        self.driver.coordinate(steps)
        self.driver.leased = False
        old, self.world.mode = self.driver, mode or self.world.mode
        self.driver = Driver(self.world)
        self.driver.go_on(started)
        if sleeps:
            self.zombies = [*self.zombies[-1:], old]
            self.zombie(-1, script)

    @rule(
        steps=st.integers(0, 5),
        script=st.lists(small_moves, min_size=1, max_size=6),
        moves=st.lists(moves, max_size=6),
    )
    def a_sleeper_wakes_between_the_halves_of_a_start(
        self, steps: int, script: list[tuple[str, int]], moves: list[tuple[str, int]]
    ) -> None:
        """Its successor has learnt all that there is, and then something more comes."""
        self.driver.ask("trigger")
        self.driver.coordinate(steps)
        self.driver.leased = False
        old, self.driver = self.driver, Driver(self.world)
        self.driver.recover()
        for move, value in script:
            self.move(old, move, value)
        self.driver.go_on(100)
        self.work(moves)

    @precondition(lambda self: self.world.completed())
    @rule(which=st.integers(0, 1), elsewhere=st.booleans(), started=st.sampled_from([3, 100]))
    def rolled_back(self, which: int, elsewhere: bool, started: int) -> None:
        """The job goes on from one of its checkpoints, here or where nobody knows the others."""
        there = self.world.completed()
        self.world = restored(self.world, there[which % len(there)], elsewhere)
        self.zombies, self.ended = [], {}
        self.driver = Driver(self.world)
        self.driver.go_on(started)

    @precondition(lambda self: not self.copies)
    @rule()
    def copied(self) -> None:
        """Somebody copies the directory while the job runs, and starts the copy in the end."""
        self.copies.append(self.world.copy())

    @precondition(lambda self: self.zombies)
    @rule(which=st.integers(-2, -1), script=st.lists(small_moves, min_size=1, max_size=6))
    def zombie(self, which: int, script: list[tuple[str, int]]) -> None:
        for move, value in script:
            self.move(self.zombies[max(which, -len(self.zombies))], move, value)

    @rule(slot=slots, rounds=st.integers(2, 3))
    def sleeps_in_a_commit(self, slot: int, rounds: int) -> None:
        """A driver wakes up when its successor has got far and has trimmed the channels."""
        for name in self.world.graph.order:
            self.feed(slot)
            self.driver.whole_batch(name)
        for _ in range(8):
            self.driver.step("spark", self.name(slot))
        self.driver.step("committer", self.name(slot))
        self.driver.leased = False
        old, self.driver = self.driver, Driver(self.world)
        self.driver.go_on(100)
        for _ in range(rounds):
            self.driver.ask("trigger")
            self.feed(slot)
            self.driver.coordinate(9)
            self.everybody("")
            self.driver.coordinate(40)
        for name in self.world.graph.order:
            old.step("committer", name)
            old.step("spark", name)
        self.zombies = [*self.zombies[-1:], old]

    @rule(
        kind=st.sampled_from(["no data", "in a poll", "late ack", "decline"]),
        slot=slots,
        after=st.integers(0, 8),
        move=small_moves,
    )
    def nuisance(self, kind: str, slot: int, after: int, move: tuple[str, int]) -> None:
        """A batch for the watermark alone; something that happens between two reads of a reader that
        looks for its end; an ack that comes too late; a query that declines."""
        driver, name = self.driver, self.name(slot)
        if kind == "no data" and driver.running:
            driver.runs[name].no_data = True
        elif kind == "in a poll" and driver.running and move[0] in ("committer", "coordinator"):
            self.world.countdown = after
            self.world.interrupt = partial(self.move, driver, *move)
        elif kind == "late ack":
            driver.coordinator.late_ack()
        elif kind == "decline":
            self.world.declines.add(name)

    @rule(
        where=st.none() | slots,
        after=st.integers(0, 3),
        happens=st.booleans(),
        replaced=st.none() | st.integers(0, 6),
        script=st.lists(moves, min_size=3, max_size=8),
    )
    def no_answer(
        self, where: int | None, after: int, happens: bool, replaced: bool, script: list[tuple[str, int]]
    ) -> None:
        """A checkpoint begins; an entry of a channel or a record is written or not, and nobody is told.

        Who waits for the answer about a record may be replaced before it comes.
        """
        faults = self.world.silences if happens else self.world.failures
        faults[RECORDS if where is None else self.name(where)] = after
        if replaced is not None and self.driver.running:
            self.world.meanwhile = partial(self.succeed, replaced)
        self.driver.ask("trigger")
        self.work(script)
        self.world.meanwhile = None

    def succeed(self, steps: int) -> None:
        """Another driver takes over while this one waits, and may begin a checkpoint."""
        self.driver.leased = False
        self.zombies = [*self.zombies[-1:], self.driver]
        self.driver = Driver(self.world)
        self.driver.go_on(100)
        if steps:
            self.driver.ask("trigger")
            self.driver.coordinate(steps)

    # what must hold

    @invariant()
    def every_checkpoint_ends_once(self) -> None:
        """Seen from a driver that runs: what has ended stays so, until it is deleted."""
        if not hasattr(self, "world") or not self.driver.running:
            return
        for id, before in self.ended.items():
            assert self.world.status(id) in (before, Status.UNKNOWN), f"checkpoint {id} was {before}"
        mine = self.driver.coordinator
        assert not mine.state.pending.keys() & mine.state.ended.keys()
        there = (self.world.ids("chk") | self.world.ids("aborted")) - mine.unmarked
        self.ended = {id: self.world.status(id) for id in there}

    def teardown(self) -> None:
        if hasattr(self, "world"):
            check_the_end(self.world, self.driver)
        for copy in self.copies:
            check_the_end(copy, Driver(copy))


def check_the_end(world: World, driver: Driver) -> None:
    """However it stands: undisturbed, everything comes through, also from what is retained."""
    for root in world.graph.roots:
        world.rows[root] += 1
    quiet(world, driver)
    check_rows(world)
    for image in world.images + [restored(world, id, elsewhere=True) for id in world.completed()]:
        quiet(image)
        check_rows(image)


class ManyCheckpoints(Checkpoints):
    """The same, for as long as one likes."""


TestCheckpoints = Checkpoints.TestCase
TestCheckpoints.settings = settings(max_examples=150, stateful_step_count=20, deadline=None)
TestManyCheckpoints = pytest.mark.long(pytest.mark.timeout(1800)(ManyCheckpoints.TestCase))
TestManyCheckpoints.settings = settings(max_examples=4000, stateful_step_count=30, deadline=None)


# What is too rare for chance: one disturbance, in front of every single step of two checkpoints.


def the_last_gets_ahead_and_nobody_waits(world: World, driver: Driver, size: int) -> None:
    driver.ask("turn")
    for _ in range(size):
        driver.whole_batch(world.graph.order[-1])


def everybody_gets_ahead(world: World, driver: Driver, size: int) -> None:
    for name in world.graph.order * size:
        driver.whole_batch(name)


def an_entry_cannot_be_written(world: World, driver: Driver, size: int) -> None:
    world.failures[world.graph.writers[size % 3]] = size // 3


def an_entry_is_written_and_nobody_is_told(world: World, driver: Driver, size: int) -> None:
    world.silences[world.graph.writers[size % 3]] = size // 3


def a_record_cannot_be_written(world: World, driver: Driver, size: int) -> None:
    world.failures[RECORDS] = size


def a_record_is_written_and_nobody_is_told(world: World, driver: Driver, size: int) -> None:
    world.silences[RECORDS] = size


def a_query_starts_again(world: World, driver: Driver, size: int) -> None:
    driver.restart(world.graph.order[size % 4])


def a_query_declines(world: World, driver: Driver, size: int) -> None:
    world.declines.add(world.graph.order[size % 4])


DISTURBANCES = [
    (the_last_gets_ahead_and_nobody_waits, 4),
    (everybody_gets_ahead, 3),
    (an_entry_cannot_be_written, 9),
    (an_entry_is_written_and_nobody_is_told, 3),
    (a_record_cannot_be_written, 3),
    (a_record_is_written_and_nobody_is_told, 3),
    (a_query_starts_again, 4),
    (a_query_declines, 4),
]


USUAL = [
    *((disturb, sizes, Mode.ALIGNED) for disturb, sizes in DISTURBANCES),
    (everybody_gets_ahead, 3, Mode.AT_LEAST_ONCE),
]
ALL = [(disturb, sizes, mode) for disturb, sizes in DISTURBANCES for mode in Mode]
RARE = [pytest.param(*one, marks=pytest.mark.long) for one in ALL if one not in USUAL]


@pytest.mark.parametrize(("disturb", "sizes", "mode"), [*USUAL, *RARE])
def test_one_disturbance_in_any_step_of_two_checkpoints_changes_nothing(
    disturb: Callable[[World, Driver, int], None], sizes: int, mode: Mode
) -> None:
    for before in range(18):
        for size in range(sizes):
            world = World(GRAPHS["diamond"], mode)
            driver = Driver(world)
            driver.go_on(100)
            for step in range(before):
                if step in (0, 4):
                    driver.ask("trigger")
                two_steps(world, driver, step)
            disturb(world, driver, size)
            for step in range(before, before + 6):
                two_steps(world, driver, step)
            check_the_end(world, driver)


def two_steps(world: World, driver: Driver, number: int) -> None:
    """One of the coordinator, one batch of somebody."""
    world.rows["S"] += 1
    driver.coordinate(1)
    driver.whole_batch(world.graph.order[number % 4])


@pytest.mark.parametrize("stopped", range(1, 15))
def test_a_driver_that_sleeps_in_any_step_of_a_checkpoint_changes_nothing(stopped: int) -> None:
    """Its successor gets so far, then the sleeper takes some more steps of its coordinator."""
    for started in range(9):
        for late in range(1, 5):
            world = World(GRAPHS["two roots"], Mode.ALIGNED)
            old = Driver(world)
            old.go_on(100)
            for root in world.rows:
                world.rows[root] += 3
            old.ask("trigger")
            for step in range(stopped):
                old.coordinate(1)
                old.whole_batch(world.graph.order[step % 3])
            old.leased = False
            new = Driver(world)
            new.go_on(started)
            old.coordinate(late)
            check_the_end(world, new)


@pytest.mark.parametrize("records", range(3))
def test_a_sleeper_that_was_not_told_of_a_record_does_not_end_a_checkpoint_again(records: int) -> None:
    """Its successor has found the record, and goes on with what it says."""
    for stopped in range(1, 15):
        for late in range(1, 5):
            world = World(GRAPHS["two roots"], Mode.ALIGNED)
            old = Driver(world)
            old.go_on(100)
            world.silences[RECORDS] = records
            for root in world.rows:
                world.rows[root] += 3
            old.ask("trigger")
            for _ in range(stopped):
                old.coordinate(1)
                everybody_gets_ahead(world, old, 1)
            old.leased = False
            new = Driver(world)
            new.go_on(100)
            ends = {id: world.status(id) for id in world.ids("begun")}
            old.coordinate(late)
            assert {id: world.status(id) for id in ends} == ends
            check_the_end(world, new)


@pytest.mark.parametrize("records", range(2))
def test_a_driver_that_is_replaced_while_it_waits_for_an_answer_does_not_end_a_checkpoint_again(
    records: int,
) -> None:
    """It finds out only then whether the record is there; its successor has gone on with what it says."""
    world = World(GRAPHS["two roots"], Mode.ALIGNED)
    old = Driver(world)
    old.go_on(100)
    world.silences[RECORDS] = records
    successors: list[Driver] = []
    ends: dict[CheckpointId, Status] = {}

    def succeed() -> None:
        old.leased = False
        successors.append(Driver(world))
        successors[0].go_on(100)
        ends.update({id: world.status(id) for id in world.ids("begun")})

    world.meanwhile = succeed
    old.ask("trigger")
    for _ in range(40):
        old.coordinate(1)
        rows_for_everybody(world, successors[0] if successors else old, 1)
    assert ends
    assert {id: world.status(id) for id in ends} == ends
    check_the_end(world, successors[0])


@pytest.mark.parametrize("happens", [False, True])
@pytest.mark.parametrize("steps", range(2, 8))
def test_a_sleeper_does_not_abort_the_checkpoint_that_its_successor_has_begun(
    steps: int, happens: bool
) -> None:
    """It was about to begin one of the same number, and has no answer; the successor's completes."""
    world = World(GRAPHS["two roots"], Mode.ALIGNED)
    old = Driver(world)
    old.go_on(100)
    rows_for_everybody(world, old, 1)
    (world.silences if happens else world.failures)[RECORDS] = 0
    successors: list[Driver] = []

    def succeed() -> None:
        old.leased = False
        successors.append(new := Driver(world))
        new.go_on(100)
        new.ask("trigger")
        new.coordinate(steps)

    world.meanwhile = succeed
    old.ask("trigger")
    old.coordinate(6)
    (new,) = successors
    rows_for_everybody(world, new, 1)
    old.coordinate(6)
    settle(world, new)
    assert world.completed() == [2 if happens else 1]
    check_the_end(world, new)


@pytest.mark.parametrize("graph", ["alone", "chain"])
def test_a_driver_that_sleeps_in_its_start_does_not_abort_what_its_successor_has_begun(graph: str) -> None:
    """Where there is no channel, nothing else keeps it from looking for what was begun and not ended."""
    for started, steps in product(range(4), range(1, 6)):
        world = World(GRAPHS[graph], Mode.ALIGNED)
        old = Driver(world)
        old.go_on(started)
        old.leased = False
        new = Driver(world)
        new.go_on(100)
        rows_for_everybody(world, new, 1)
        new.ask("trigger")
        new.coordinate(steps)
        old.go_on(100)
        rows_for_everybody(world, new, 1)
        settle(world, new)
        assert world.completed() == [1]
        check_the_end(world, new)


@pytest.mark.parametrize("happens", [False, True])
def test_an_abort_without_an_answer_is_written_until_there_is_one(happens: bool) -> None:
    """One of two barriers could not be written: whoever has reached the other waits for the abort."""
    world = World(GRAPHS["two roots"], Mode.ALIGNED)
    driver = Driver(world)
    driver.go_on(100)
    world.failures["B"] = 0
    (world.silences if happens else world.failures)[RECORDS] = 1  # behind `begun-1`
    driver.ask("trigger")
    for root in world.rows:
        world.rows[root] += 3
    driver.coordinate(9)
    assert not world.failures and not world.silences
    everybody_gets_ahead(world, driver, 3)
    driver.coordinate(1)
    assert world.status(CheckpointId(1)) is Status.ABORTED
    settle(world, driver)
    check_the_end(world, driver)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("graph", ["twice", "chain"])
def test_a_newer_checkpoint_that_completes_first_leaves_the_older_one_what_it_needs(
    graph: str, slow: bool
) -> None:
    """Whatever the coordinator looks at next when everybody has got to the barriers of both."""
    for steps in range(2, 24):
        world = World(GRAPHS[graph], Mode.ALIGNED)
        driver = Driver(world)
        driver.go_on(100)
        world.slow = slow
        for step in range(steps):
            if step < 2:
                driver.ask("trigger")
            driver.coordinate(1)
            for root in world.graph.roots if step < 12 else ():
                world.rows[root] += 1
                driver.whole_batch(root)
        everybody_gets_ahead(world, driver, 3)
        if slow and steps >= 12:
            driver.coordinate(30)
            assert world.completed() == [2] and driver.coordinator.state.pending.keys() == {1}
        check_the_end(world, driver)


@pytest.mark.parametrize("aborted", ["", "expire", "expire newest"])
@pytest.mark.parametrize("graph", ["chain", "two roots", "deep", "diamond"])
def test_a_barrier_that_two_checkpoints_share_holds_for_each_of_them(graph: str, aborted: str) -> None:
    """One root after the other gets it; one of the two is aborted while some have reached it."""
    roots = GRAPHS[graph].roots
    for first, ahead, later, mode in product(roots, range(2), range(3), (Mode.ALIGNED, Mode.AT_LEAST_ONCE)):
        world = World(GRAPHS[graph], mode)
        driver = Driver(world)
        driver.go_on(100)
        rows_for_everybody(world, driver, 1)
        world.busy = set(roots)
        for _ in range(2):
            driver.ask("trigger")
            driver.coordinate(6)
        world.busy.discard(first)
        driver.coordinate(9)
        assert [one for one in world.history[first] if isinstance(one, Barrier)][-1].checkpoint == 2
        rows_for_everybody(world, driver, ahead)
        if aborted:
            driver.ask(aborted)
        driver.coordinate(4)
        rows_for_everybody(world, driver, later)
        world.busy.clear()
        driver.coordinate(4)
        rows_for_everybody(world, driver, 2)
        settle(world, driver)
        assert len(world.completed()) == (1 if aborted else 2)
        check_the_end(world, driver)


@pytest.mark.parametrize("mode", [Mode.ALIGNED, Mode.AT_LEAST_ONCE])
@pytest.mark.parametrize("graph", ["chain", "two roots", "deep", "diamond"])
def test_the_number_of_a_shared_barrier_is_not_given_out_again_where_nobody_knows_it(
    graph: str, mode: Mode
) -> None:
    """The older of two that share a barrier is restored elsewhere, and rows come before the next one."""
    world = World(GRAPHS[graph], mode)
    driver = Driver(world)
    driver.go_on(100)
    rows_for_everybody(world, driver, 1)
    world.busy = set(world.graph.roots)
    for _ in range(2):
        driver.ask("trigger")
        driver.coordinate(6)
    world.busy.clear()
    driver.coordinate(9)
    rows_for_everybody(world, driver, 1)
    settle(world, driver)
    assert world.completed() == [1, 2]
    other = restored(world, CheckpointId(1), elsewhere=True)
    assert max(other.barriers()) == 2
    driver = Driver(other)
    driver.go_on(100)
    for id in (3, 4):
        rows_for_everybody(other, driver, 2)
        driver.ask("trigger")
        driver.coordinate(6)
        rows_for_everybody(other, driver, 1)
        settle(other, driver)
        assert other.completed()[-1] == id
    check_the_end(other, driver)


@pytest.mark.parametrize("steps", range(1, 4))
@pytest.mark.parametrize("graph", ["two roots", "deep"])
def test_nobody_waits_for_a_checkpoint_that_a_sleeper_begins_behind_its_successor(
    graph: str, steps: int
) -> None:
    """The successor's next one shares its barrier with it, and is aborted when one root has the barrier."""
    roots = GRAPHS[graph].roots
    for first in roots:
        world = World(GRAPHS[graph], Mode.ALIGNED)
        old = Driver(world)
        old.go_on(100)
        rows_for_everybody(world, old, 1)
        old.ask("trigger")
        old.coordinate(1)  # it has looked at its lease
        old.leased = False
        new = Driver(world)
        new.recover()
        old.coordinate(steps)
        assert world.status(CheckpointId(1)) is Status.PENDING
        new.go_on(100)
        world.busy = set(roots) - {first}
        new.ask("trigger")
        new.coordinate(9)
        rows_for_everybody(world, new, 2)
        new.ask("expire")
        new.coordinate(4)
        world.busy.clear()
        assert world.status(CheckpointId(1)) is Status.ABORTED
        rows_for_everybody(world, new, 2)
        settle(world, new)
        check_the_end(world, new)


@pytest.mark.parametrize("steps", range(1, 7))
@pytest.mark.parametrize("fenced", [0, 1])
def test_what_a_sleeper_begins_before_it_is_fenced_is_aborted(steps: int, fenced: int) -> None:
    """Its successor is there already, and looks only when the sleeper can enter no barrier any more."""
    world = World(GRAPHS["two roots"], Mode.ALIGNED)
    old = Driver(world)
    old.go_on(100)
    rows_for_everybody(world, old, 1)
    old.ask("trigger")
    old.coordinate(1)  # it has looked at its lease
    old.leased = False
    new = Driver(world)
    new.go_on(fenced)
    old.coordinate(steps)
    new.go_on(100)
    assert {world.status(id) for id in world.ids("begun")} == {Status.ABORTED}
    check_the_end(world, new)


def test_a_manifest_that_a_sleeper_writes_after_its_successor_has_looked_counts_for_nothing() -> None:
    """What was kept for it is deleted by then."""
    late = 0
    for stopped in range(1, 20):
        world = World(GRAPHS["two roots"], Mode.ALIGNED)
        old = Driver(world)
        old.go_on(100)
        rows_for_everybody(world, old, 1)
        old.ask("trigger")
        for step in range(stopped):
            old.coordinate(1)
            old.whole_batch(world.graph.order[step % 3])
        if world.completed():
            break
        old.leased = False
        new = Driver(world)
        new.go_on(100)
        new.coordinate(3)
        old.coordinate(2)
        written = world.ids("chk")
        assert not written & set(world.completed())
        late += len(written)
        check_the_end(world, new)
    assert late, "no sleeper came that far"


@pytest.mark.parametrize("graph", ["two roots", "deep"])
def test_nobody_waits_for_a_checkpoint_whose_beginning_had_no_answer(graph: str) -> None:
    """The next one shares its barrier with it, and is aborted when one root has the barrier."""
    roots = GRAPHS[graph].roots
    for first in roots:
        world = World(GRAPHS[graph], Mode.ALIGNED)
        driver = Driver(world)
        driver.go_on(100)
        rows_for_everybody(world, driver, 1)
        world.silences[RECORDS] = 0
        driver.ask("trigger")
        driver.coordinate(6)
        assert not world.silences
        world.busy = set(roots) - {first}
        driver.ask("trigger")
        driver.coordinate(9)
        rows_for_everybody(world, driver, 2)
        driver.ask("expire")
        driver.coordinate(4)
        world.busy.clear()
        rows_for_everybody(world, driver, 2)
        settle(world, driver)
        assert world.status(CheckpointId(2)) is Status.ABORTED
        check_the_end(world, driver)


@pytest.mark.parametrize("failed", ["S", "L", "J"])
def test_what_is_pending_is_aborted_when_a_query_fails(failed: str) -> None:
    world = World(GRAPHS["diamond"], Mode.ALIGNED)
    driver = Driver(world)
    driver.go_on(100)
    rows_for_everybody(world, driver, 1)
    driver.ask("trigger")
    driver.coordinate(6)
    driver.restart(failed)
    assert world.status(CheckpointId(1)) is Status.ABORTED
    check_the_end(world, driver)


def rows_for_everybody(world: World, driver: Driver, times: int) -> None:
    for _ in range(times):
        for root in world.graph.roots:
            world.rows[root] += 1
        everybody_gets_ahead(world, driver, 1)


@pytest.mark.parametrize(
    ("slow", "mode", "kept"),
    [
        ("L", Mode.ALIGNED, 2),
        ("R", Mode.ALIGNED, 2),
        ("L", Mode.AT_LEAST_ONCE, 6),
        ("R", Mode.AT_LEAST_ONCE, 6),
    ],
)
def test_a_reader_whose_other_channel_is_slow_is_cut_and_restored_at_the_barrier(
    slow: str, mode: Mode, kept: int
) -> None:
    """Aligned it waits, though Spark has purged the offsets that it saw last; else it is set back."""
    for steps in (10, 20, 30):
        world = World(GRAPHS["diamond"], mode, kept=kept)
        driver = Driver(world)
        driver.go_on(100)
        for turn in range(32):
            if turn % 16 == 0:
                driver.ask("trigger")
            world.rows["S"] += 1
            for name in world.graph.order:
                if name != slow or turn % 16 >= 3:
                    driver.whole_batch(name)
            driver.coordinate(steps)
        assert world.completed() == [1, 2]
        check_the_end(world, driver)


@pytest.mark.parametrize("slow", ["L", "R"])
def test_a_channel_is_trimmed_to_where_its_slowest_reader_stands(slow: str) -> None:
    """Unaligned checkpoints complete while one of two readers has not come far."""
    world = World(GRAPHS["diamond"], Mode.UNALIGNED, retained=1)
    driver = Driver(world)
    driver.go_on(100)
    for turn in range(6):
        world.rows["S"] += 1
        for name in world.graph.order:
            if name != slow or turn == 1:
                driver.whole_batch(name)
        driver.ask("trigger")
        driver.coordinate(40)
    assert world.completed() == [6]
    check_the_end(world, driver)


@pytest.mark.parametrize("mode", [Mode.ALIGNED, Mode.AT_LEAST_ONCE])
@pytest.mark.parametrize("graph", ["chain", "two roots"])
def test_a_query_that_ends_right_after_it_was_looked_at_is_cut_at_the_barrier(graph: str, mode: Mode) -> None:
    """It has passed the barrier by then."""
    for steps in range(1, 7):
        world = World(GRAPHS[graph], mode)
        driver = Driver(world)
        driver.go_on(100)
        rows_for_everybody(world, driver, 1)
        driver.ask("trigger")
        driver.coordinate(6)
        driver.ask("stands J")
        driver.coordinate(steps)
        rows_for_everybody(world, driver, 2)
        settle(world, driver)
        assert world.completed() == [1]
        check_the_end(world, driver)


@pytest.mark.parametrize("graph", ["diamond", "deep"])
def test_an_unaligned_checkpoint_is_a_cut_while_everybody_works(graph: str) -> None:
    world = World(GRAPHS[graph], Mode.UNALIGNED)
    driver = Driver(world)
    driver.go_on(100)
    for _ in range(24):
        driver.ask("trigger")
        driver.coordinate(1)
        rows_for_everybody(world, driver, 1)
    assert world.completed()
    check_the_end(world, driver)


@pytest.mark.parametrize("happens", [False, True])
def test_a_barrier_that_was_not_written_behind_its_segment_is_written_after_it(happens: bool) -> None:
    """The commit of a query in the middle fails between the two, and is tried again."""
    world = World(GRAPHS["chain"], Mode.ALIGNED)
    driver = Driver(world)
    driver.go_on(100)
    rows_for_everybody(world, driver, 1)
    driver.ask("trigger")
    driver.coordinate(6)
    (world.silences if happens else world.failures)["M"] = 1
    rows_for_everybody(world, driver, 1)
    assert not world.silences and not world.failures
    settle(world, driver)
    assert world.completed() == [1]
    check_the_end(world, driver)


def sleeping(name: str, steps: int) -> tuple[World, Driver]:
    """A chain, and a driver that falls asleep after so many steps of a batch of one query."""
    world = World(GRAPHS["chain"], Mode.ALIGNED)
    old = Driver(world)
    old.go_on(100)
    for _ in range(2):
        world.rows["S"] += 3
        everybody_gets_ahead(world, old, 1)
    world.rows["S"] += 3
    if name != "S":
        old.whole_batch("S")
    for _ in range(steps):
        old.step("spark", name)
        old.step("committer", name)
    old.leased = False
    return world, old


@pytest.mark.parametrize("name", ["S", "M"])
def test_a_batch_that_a_sleeper_decides_while_its_successor_starts_comes_through_once(name: str) -> None:
    for steps in range(1, 11):
        for started in range(12):
            world, old = sleeping(name, steps)
            new = Driver(world)
            new.go_on(started)
            for _ in range(4):
                old.step("spark", name)
            check_the_end(world, new)


def test_what_a_sleeper_enters_where_the_head_of_its_channel_was_changes_nothing() -> None:
    """Its successor has trimmed the channel; the next driver must not take the entry for the head."""
    for steps in range(1, 8):
        world, old = sleeping("S", 0)
        old.leased = True
        old.ask("trigger")
        old.coordinate(steps)
        old.leased = False
        new = Driver(world)
        new.go_on(100)
        for _ in range(3):
            new.ask("trigger")
            world.rows["S"] += 2
            new.coordinate(9)
            everybody_gets_ahead(world, new, 2)
            new.coordinate(40)
        old.coordinate(6)
        new.leased = False
        check_the_end(world, Driver(world))

"""One attempt, and how it gets on when nothing disturbs it."""

from __future__ import annotations

from collections import Counter

from tests.protocol.model.hands import Hands
from tests.protocol.model.spark import ConcurrentError, QueryRun, Steps
from tests.protocol.model.world import World
from weir.channel.log import Segment
from weir.channel.position import Status
from weir.errors import FencedError, LostSegmentError, LostStagingError


class LeaseOverError(Exception):
    """A driver that was replaced looks at its lease."""


class Driver:
    """One attempt: the runs of its queries and its coordinator, under one lease."""

    def __init__(self, world: World) -> None:
        world.attempts += 1
        self.world = world
        self.attempt = world.attempts
        self.leased = True
        self.running = False
        """Everything was started."""
        self.recovered = False
        """All is ready, and no query runs yet."""
        self.runs: dict[str, QueryRun] = {}
        self.coordinator = Hands(world, self)
        self._starting = self._start()

    def check(self) -> None:
        if not self.leased:
            raise LeaseOverError

    def _start(self) -> Steps:
        for name in self.world.graph.order:
            self.runs[name] = QueryRun(self.world, self, name, 1)
            yield from self.runs[name].recover()
        yield from self.coordinator.prepare()
        self.recovered = True
        for run in self.runs.values():
            run.start()
            yield
        self.running = True

    def recover(self) -> None:
        """The first half of a start: sinks are fenced, old checkpoints are aborted, nothing runs."""
        for _ in range(1000):
            if not self.recovered:
                self.step("start")

    def go_on(self, steps: int) -> None:
        """Go on with the start; stop when everything was started."""
        for _ in range(steps):
            if not self.running:
                self.step("start")

    def step(self, actor: str, name: str = "") -> None:
        """One step of the start, of a query's Spark or committer, or of the coordinator."""
        if not self.running:
            self._take(self._starting, None)
        elif actor == "coordinator":
            self._take(self.coordinator.steps, None)
        elif self.runs[name].alive:
            run = self.runs[name]
            self._take(run.spark if actor == "spark" else run.committer, run)

    def _take(self, steps: Steps, run: QueryRun | None) -> None:
        try:
            next(steps, None)
        except (LeaseOverError, LostSegmentError, LostStagingError):
            if self.leased:  # only a zombie misses what others have used up
                raise
            self._die(run)
        except (ConcurrentError, FencedError):
            if self.leased and run is None:
                raise
            self._die(run)  # a zombie got in between: the query must start again

    def _die(self, run: QueryRun | None) -> None:
        if run is not None:
            run.alive = False
        else:
            self.coordinator.steps = iter(())
            self._starting = iter(())

    def whole_batch(self, name: str) -> None:
        """Spark plans and commits a batch, and the committer works off what it has."""
        for _ in range(9):
            self.step("spark", name)
            if not self.running or self.runs[name].idle:
                break
        for _ in range(4):
            if self.running and self.runs[name].queue:
                self.step("committer", name)

    def ask(self, request: str) -> None:
        """Ask the coordinator for something; more than two at a time are too many."""
        if len(self.coordinator.requests) + len(self.coordinator.state.wishes) < 2:
            self.coordinator.requests.append(request)

    def coordinate(self, steps: int) -> None:
        for _ in range(steps):
            self.step("coordinator")
            if not self.coordinator.busy:
                break

    def restart(self, name: str) -> None:
        """One query failed, and starts again alone as a new run; what was pending is aborted."""
        run = self.runs[name]
        run.alive = False
        pending = self.coordinator.state.pending.keys()
        self.coordinator.requests.append("abort all")
        for _ in range(500):
            if not self.coordinator.requests:
                break
            self.step("coordinator")
        else:
            raise StuckError("the coordinator is dead")
        left = pending & self.coordinator.state.pending.keys()
        assert not left, f"{left} outlive the failure of {name}"
        self.runs[name] = QueryRun(self.world, self, name, run.token.run + 1)
        for _ in self.runs[name].recover():
            pass
        self.coordinator.replace(self.runs[name])
        self.runs[name].start()


class StuckError(AssertionError):
    """The job does not get on although nothing disturbs it."""


def quiet(world: World, driver: Driver | None = None) -> Driver:
    """Let the job run undisturbed until nothing is left to do, and take one more checkpoint."""
    world.failures.clear()
    world.silences.clear()
    world.declines.clear()
    world.busy.clear()
    world.interrupt = world.meanwhile = None
    world.slow = False
    driver = driver or Driver(world)
    driver.go_on(1000)
    if not driver.running:
        raise StuckError("it does not start")
    settle(world, driver)
    driver.coordinator.requests.append("trigger")
    settle(world, driver)
    newest = driver.coordinator.last_id
    if world.status(newest) is not Status.COMPLETED:
        raise StuckError(f"checkpoint {newest} is {world.status(newest)}")
    return driver


def settle(world: World, driver: Driver) -> None:
    """Everybody works in turn until everything is read and no checkpoint is pending."""
    coordinator = driver.coordinator
    for _ in range(200):
        before = _durable(world)
        for name in world.graph.order:
            if not driver.runs[name].alive:
                driver.restart(name)
            driver.whole_batch(name)
        driver.coordinate(30)
        if before == _durable(world) and not coordinator.busy:
            break
    else:
        raise StuckError(f"pending: {coordinator.state.pending}")
    for name, inputs in world.graph.inputs.items():
        ends = world.ends(name, world.last(name, "commits")) if inputs else []
        for channel, end in zip(inputs, ends, strict=True):
            rest = world.history[channel][end.entry - world.begins[channel] :]
            left = [
                one for one in rest if isinstance(one, Segment) and one.token == world.tails[channel].fence
            ]
            if left:
                raise StuckError(f"{name} never reads {left} of {channel}")


def _durable(world: World) -> object:
    heads = {name: (world.last(name, "offsets"), world.last(name, "commits")) for name in world.graph.order}
    return heads, {name: len(many) for name, many in world.history.items()}, world.ids("chk")


def check_rows(world: World) -> None:
    """Every row has come through once, or (where doubling is allowed) at least once."""
    for name in world.graph.leaves:
        wanted, got = world.graph.emitted(name, world.rows), Counter(world.state(name))
        assert not wanted - got, f"{name} lost {wanted - got}"
        assert world.doubled or not got - wanted, f"{name} doubled {got - wanted}"

"""A running job that is taken back: the real supervisor, and drivers that play along."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.played_driver import (
    JOB,
    RESTORED,
    Client,
    Driver,
    Run,
    Script,
    dies_when_asked,
    plays_along,
    restores,
)
from weir.clock import Clock
from weir.config import Config, Layer, resolve
from weir.ids import Generation
from weir.protocol import messages as m
from weir.protocol.states import JobState
from weir.restore.request import RestoreRequest
from weir.storage import generation as generations
from weir.storage.local import LocalStore
from weir.supervisor import restore as restoring
from weir.supervisor.home import Home

MISFIT = m.Failure(
    "it can't go on from there", "an operator is gone", "map it, or say where it resumes", retry=False
)
RESHAPED = RestoreRequest("latest", parallelism=8).to_wire()
GENERATION = Generation(2)
"""The one that the restore opens."""


def fails(failure: m.Failure, before: Callable[[], object] = lambda: None) -> Script:
    """Is started, and fails; with something that it does before."""

    def script(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            before()
            driver.heard(m.DriverFailed(failure))
            driver.heard(None)

    return script


def test_a_restore_ends_the_driver_and_another_goes_on_at_once(
    run: Run, drivers: list[Driver], points: list[tuple[str, bool]]
) -> None:
    Driver.scripts = [plays_along, restores]

    def steps(client: Client) -> None:
        answer = client.call("restore", point="chk-41", accept_duplicates=True)
        assert answer == {"done": True, **asdict(RESTORED)}
        client.wait_for(lambda: "RUNNING 2" in run.told.states)

    assert run(steps) is JobState.CANCELED
    assert points == [("chk-41", True)]
    assert [stop.cancelled for stop in drivers[0].heard_of(m.StopQueries)] == [False]
    assert run.told.states[1:5] == ["RUNNING 1", "RESTARTING 1", "STARTING 2", "RUNNING 2"]
    assert run.events("failure", "restart", "recovery") == []
    assert run.events("restore") == [{"point": "chk-41"}]


def test_a_restore_into_another_shape_gives_the_next_driver_its_settings(
    run: Run, drivers: list[Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    Driver.scripts = [plays_along, restores]
    intended: list[RestoreRequest] = []

    def intend(store: object, job: object, request: RestoreRequest, **_: object) -> Generation:
        intended.append(request)
        return GENERATION

    monkeypatch.setattr(restoring, "intend", intend)
    wanted = RestoreRequest("latest", parallelism=8, allow_dropped=True)

    def steps(client: Client) -> None:
        assert client.call("restore", **wanted.to_wire())["done"]

    assert run(steps) is JobState.CANCELED
    assert intended[0] == replace(wanted, backend="rocksdb")
    before, after = (Config.from_wire(one.heard_of(m.Prepare)[0].config) for one in drivers)
    assert (before.settings.parallelism_default, after.settings.parallelism_default) == (None, 8)
    assert after.origins["state.backend.type"] is Layer.DEFAULT


def test_a_restore_that_is_refused_leaves_the_job_as_it_is(
    run: Run, drivers: list[Driver], points: list[tuple[str, bool]]
) -> None:
    def steps(client: Client) -> None:
        answer = client.call("restore", point="chk-99")
        assert (answer["done"], answer["why"]) == (False, "it is not there")
        assert client.call("restore", point="chk-99")["done"] is False

    assert run(steps) is JobState.CANCELED
    assert len(drivers) == 1 and "RESTARTING 1" not in run.told.states


def test_a_restore_whose_driver_fails_answers_with_the_failure(
    run: Run, drivers: list[Driver], points: list[tuple[str, bool]]
) -> None:
    failure = m.Failure("a file is gone", "somebody deleted it", "put it back")
    Driver.scripts = [plays_along, fails(failure)]

    def steps(client: Client) -> None:
        answer = client.call("restore", point="latest")
        words = {"what": failure.what, "why": failure.why, "hint": failure.hint}
        assert answer == {"done": False, **words}

    assert run(steps) is JobState.CANCELED
    assert [body["what"] for body in run.events("failure")] == ["a file is gone"]


def test_a_job_that_waits_for_its_restart_goes_back_without_waiting(
    run: Run, drivers: list[Driver], points: list[tuple[str, bool]]
) -> None:
    Driver.scripts = [dies_when_asked, restores]

    def steps(client: Client) -> None:
        client.call("checkpoint")
        assert client.call("restore", point="latest")["done"]

    assert run(steps) is JobState.CANCELED
    assert len(drivers) == 2


def test_a_driver_that_fails_on_its_way_out_is_no_failure_of_the_job(
    run: Run, drivers: list[Driver], points: list[tuple[str, bool]]
) -> None:
    failure = m.Failure("it broke")

    def stumbles(driver: Driver, message: m.Message) -> None:
        plays_along(driver, message)
        if isinstance(message, m.StopQueries):
            driver.heard(m.QueryFailed("counts", 1, 3, failure))
            driver.heard(m.QueryStarted("counts", 2, 3))
            driver.heard(m.DriverFailed(replace(failure, redeploy=True)))
            driver.heard(None)

    Driver.scripts = [stumbles, restores]

    def steps(client: Client) -> None:
        assert client.call("restore", point="latest")["done"]

    assert run(steps) is JobState.CANCELED
    assert len(drivers) == 2
    assert run.events("restart") == [] and len(run.events("failure")) == 2


def test_a_job_cancelled_during_a_restore_ends_and_says_what_the_next_start_does(
    run: Run, drivers: list[Driver], points: list[tuple[str, bool]]
) -> None:
    def never_starts(driver: Driver, message: m.Message) -> None:
        pass

    Driver.scripts = [plays_along, never_starts]
    answers_: list[dict[str, Any]] = []

    def steps(client: Client) -> None:
        wish = client.ask("restore", point="latest")
        client.wait_for(lambda: "STARTING 2" in run.told.states)
        assert "it is being restored" in client.call("checkpoint")["reason"]
        client.ask("cancel")
        answers_.append(client.answer(wish))

    assert run(steps) is JobState.CANCELED
    assert answers_ == [{"done": False, "reason": "the job ended; the next 'weir run' resumes from there"}]


def test_the_next_attempt_is_above_that_of_the_point_that_was_asked_for(tmp_path: Path) -> None:
    """What a savepoint of another directory holds is fenced by the attempt that took it."""
    config = resolve(
        file=None, job_options={}, environ={}, overrides={"execution.checkpointing.dir": str(tmp_path)}
    )
    store = LocalStore(tmp_path)

    def intend(number: int, attempt: int) -> None:
        origin = generations.Origin(
            "lineage", "rocksdb", 4, "4.3.0", "now", "/saved/7", saved=7, attempt=attempt
        )
        assert generations.create_origin(store, JOB, Generation(number), origin)

    def home() -> Home:
        return Home(JOB, config, "session", Clock(), lambda _holder, _seconds: None)

    intend(1, 57)
    held = home()
    assert held.attempt == 58
    intend(2, 99)
    held.advance(10.0)
    assert held.attempt == 100
    held.advance(10.0)
    assert held.attempt == 101
    held.close()


def parallelisms(drivers: list[Driver]) -> list[int | None]:
    """What each driver was told."""
    told = (Config.from_wire(one.heard_of(m.Prepare)[0].config) for one in drivers)
    return [config.settings.parallelism_default for config in told]


def at_once(dir: Path, attempts: int = 5) -> Run:
    key = "restart-strategy.fixed-delay"
    return Run(
        dir,
        {"restart-strategy.type": "fixed-delay", f"{key}.delay": "10 ms", f"{key}.attempts": str(attempts)},
    )


@pytest.mark.parametrize("retry", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
def test_a_restore_that_can_not_be_done_leaves_the_job_running_where_it_was(
    dropped: bool, retry: bool, tmp_path: Path, drivers: list[Driver], points: list[tuple[str, bool]]
) -> None:
    """The driver drops what can't be done; what only this start can't do is taken up again."""
    run, store, failure = at_once(tmp_path), LocalStore(tmp_path), replace(MISFIT, retry=retry)
    stays = dropped or not retry

    def drop() -> None:
        if dropped:
            generations.drop(store, JOB, GENERATION, "it can't be")

    Driver.scripts = [plays_along, fails(failure, drop), plays_along if stays else restores]

    def steps(client: Client) -> None:
        words = {"what": failure.what, "why": failure.why, "hint": failure.hint}
        assert client.call("restore", **RESHAPED) == {"done": False, **words}
        client.wait_for(lambda: "RUNNING 3" in run.told.states)

    assert run(steps) is JobState.CANCELED
    assert parallelisms(drivers) == [None, 8, None if stays else 8]
    assert (generations.opening(store, JOB) is None) is stays
    assert len(run.events("failure")) == 1 and run.events("gave up") == []
    assert (f"{failure.what}; the job continues where it was" in run.told.notes) is stays


def test_a_restore_that_is_taken_up_again_and_can_not_be_done_then_leaves_the_job_running_too(
    tmp_path: Path, drivers: list[Driver], points: list[tuple[str, bool]]
) -> None:
    run = at_once(tmp_path)
    Driver.scripts = [plays_along, fails(m.Failure("no room")), fails(MISFIT), plays_along]

    def steps(client: Client) -> None:
        assert client.call("restore", **RESHAPED)["what"] == "no room"
        client.wait_for(lambda: "RUNNING 4" in run.told.states)

    assert run(steps) is JobState.CANCELED
    assert parallelisms(drivers) == [None, 8, 8, None]


def test_a_job_whose_sinks_are_taken_back_can_not_stay_where_it_was(
    run: Run, drivers: list[Driver], points: list[tuple[str, bool]]
) -> None:
    store = LocalStore(run.dir)
    rewound = fails(MISFIT, lambda: generations.begin_rewind(store, JOB, GENERATION, {}))
    Driver.scripts = [plays_along, rewound]

    def steps(client: Client) -> None:
        assert client.call("restore", **RESHAPED)["what"] == MISFIT.what
        client.wait_for(lambda: "FAILED 2" in run.told.states)

    assert run(steps) is JobState.FAILED
    assert len(drivers) == 2 and generations.opening(store, JOB) == GENERATION


def test_a_driver_that_dies_when_the_restore_is_live_and_before_it_can_say_so_keeps_its_settings(
    tmp_path: Path, drivers: list[Driver], points: list[tuple[str, bool]]
) -> None:
    run, store = at_once(tmp_path), LocalStore(tmp_path)
    live = fails(m.Failure("it died"), lambda: generations.mark_live(store, JOB, GENERATION))
    Driver.scripts = [plays_along, live, plays_along]

    def steps(client: Client) -> None:
        client.call("restore", **RESHAPED)
        client.wait_for(lambda: "RUNNING 3" in run.told.states)

    assert run(steps) is JobState.CANCELED
    assert parallelisms(drivers) == [None, 8, 8]


def test_a_failure_behind_the_restore_is_no_failure_of_it(
    tmp_path: Path, drivers: list[Driver], points: list[tuple[str, bool]]
) -> None:
    def breaks(driver: Driver, message: m.Message) -> None:
        restores(driver, message)
        if isinstance(message, m.Ask):
            driver.heard(m.DriverFailed(MISFIT))
            driver.heard(None)

    run = at_once(tmp_path)
    Driver.scripts = [plays_along, breaks]

    def steps(client: Client) -> None:
        assert client.call("restore", **RESHAPED)["done"]
        client.call("checkpoint")
        client.wait_for(lambda: "FAILED 2" in run.told.states)

    assert run(steps) is JobState.FAILED
    assert len(drivers) == 2


def test_a_driver_that_was_made_ready_with_other_settings_does_not_carry_out_the_restore(
    tmp_path: Path, drivers: list[Driver], points: list[tuple[str, bool]]
) -> None:
    """It waits for the end of a delay, and has its settings already."""
    key = "restart-strategy.fixed-delay"
    run = Run(tmp_path, {"restart-strategy.type": "fixed-delay", f"{key}.delay": "14 s"})
    Driver.scripts = [dies_when_asked, plays_along, restores]

    def steps(client: Client) -> None:
        client.call("checkpoint")
        client.wait_for(lambda: len(drivers) == 2 and drivers[1].heard_of(m.Prepare))
        assert client.call("restore", **RESHAPED)["done"]

    assert run(steps) is JobState.CANCELED
    assert parallelisms(drivers) == [None, None, 8]
    assert drivers[1].heard_of(m.StartAttempt) == []


def test_a_restore_goes_before_the_point_that_the_job_was_started_from_and_has_not_reached(
    tmp_path: Path, drivers: list[Driver], points: list[tuple[str, bool]]
) -> None:
    run = Run(tmp_path, {}, wanted=RestoreRequest("/saved/wordcount-12"))
    Driver.scripts = [plays_along, fails(MISFIT), plays_along]

    def steps(client: Client) -> None:
        assert client.call("restore", point="latest")["done"] is False
        client.wait_for(lambda: "RUNNING 3" in run.told.states)

    assert run(steps) is JobState.CANCELED
    told = [one.heard_of(m.StartAttempt)[0].wanted.get("point", "") for one in drivers]
    assert told == ["/saved/wordcount-12", "", "/saved/wordcount-12"]

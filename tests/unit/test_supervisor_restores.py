"""A running job that is taken back: the real supervisor, and drivers that play along."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from tests.played_driver import RESTORED, Client, Driver, Run, dies_when_asked, plays_along, restores
from weir.checkpoint.restore import Changes, From
from weir.config import Config
from weir.protocol import messages as m
from weir.protocol.states import JobState
from weir.supervisor import restoring


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
    assert [stop.cancelled for stop in drivers[0].heard_of(m.Stop)] == [False]
    assert run.told.states[1:5] == ["RUNNING 1", "RESTARTING 1", "STARTING 2", "RUNNING 2"]
    assert run.events("failure", "restart", "recovery") == []
    assert run.events("restore") == [{"point": "chk-41"}]


def test_a_restore_into_another_shape_gives_the_next_driver_its_settings(
    run: Run, drivers: list[Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    Driver.scripts = [plays_along, restores]
    intended: list[dict[str, Any]] = []
    monkeypatch.setattr(restoring, "intend", lambda *_args, **given: intended.append(given))
    wanted = From("latest", changes=Changes(parallelism=8, allow_dropped=True))

    def steps(client: Client) -> None:
        assert client.call("restore", **wanted.to_wire())["done"]

    assert run(steps) is JobState.CANCELED
    assert intended[0]["changes"] == Changes(parallelism=8, allow_dropped=True, backend="rocksdb")
    before, after = (Config.from_wire(one.heard_of(m.Prepare)[0].config) for one in drivers)
    assert (before.settings.parallelism_default, after.settings.parallelism_default) == (None, 8)
    assert not after.explicit("state.backend.type")


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
    failure = m.Failure("a file is gone", "somebody deleted it", "bring it back")

    def fails(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.Start):
            driver.heard(m.Failed(failure))
            driver.heard(None)

    Driver.scripts = [plays_along, fails]

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
        if isinstance(message, m.Stop):
            driver.heard(m.QueryFailed("counts", 1, 3, failure))
            driver.heard(m.QueryStarted("counts", 2, 3))
            driver.heard(m.Failed(replace(failure, redeploy=True)))
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
    assert answers_ == [{"done": False, "reason": "the job ended; the next 'weir run' goes on from there"}]

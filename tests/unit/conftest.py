"""weir's command line, called in the test's own process; and the real supervisor over played drivers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fake_job import Answer, Weir
from tests.played_driver import Driver, PlayedProbe, Run, plays_along
from weir.cli import main
from weir.clock import Clock
from weir.errors import NoSuchCheckpointError
from weir.ids import Generation, JobName
from weir.protocol import machine as protocol
from weir.restore.request import RestoreRequest
from weir.storage import Store
from weir.storage import generation as generations
from weir.supervisor import loop, machine
from weir.supervisor import restore as restoring


@pytest.fixture
def weir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Weir:
    """`weir(*words)`: a command, called in an empty folder, `tmp_path`, and without settings around it."""
    for name in [name for name in os.environ if name.startswith("WEIR_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> Answer:
        with pytest.raises(SystemExit) as end:
            main(list(words))
        said = capsys.readouterr()
        return Answer(int(end.value.code or 0), said.out, said.err)

    return call


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Driver]]:
    before = {number: signal.getsignal(number) for number in loop._SIGNALS.values()}
    monkeypatch.setattr(loop, "DriverProcess", Driver)
    monkeypatch.setattr(Driver, "made", [], raising=False)
    monkeypatch.setattr(Driver, "scripts", [plays_along], raising=False)
    monkeypatch.setattr(machine, "MachineProbe", PlayedProbe)
    monkeypatch.setattr(PlayedProbe, "takes", [0.1], raising=False)
    monkeypatch.setattr(PlayedProbe, "started", 0, raising=False)
    for name in ("_FIRST", "_MOST", "_PAUSE"):  # seconds, of protocol/machine.py
        monkeypatch.setattr(protocol, name, 0.01)
    monkeypatch.setattr(protocol, "_SPARING", 0.0)
    yield Driver.made
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """The points that were intended, each as a new generation; chk-99 is not there."""
    found: list[tuple[str, bool]] = []

    def intend(
        store: Store,
        job: JobName,
        request: RestoreRequest,
        *,
        clock: Clock,
        why: str,
        savepoint_dir: str,
    ) -> Generation:
        if request.point == "chk-99":
            raise NoSuchCheckpointError(job=job, point=request.point, reason="it is not there")
        found.append((request.point, request.accept_duplicates))
        origin = generations.open_origin(
            store, job, generations.FIRST, backend="rocksdb", parallelism=4, spark="4", clock=clock
        )
        number = Generation(max(generations.numbers(store, job)) + 1)
        generations.create_origin(store, job, number, replace(origin, restored_from="chk-41", parent=1))
        return number

    monkeypatch.setattr(restoring, "intend", intend)
    return found


@pytest.fixture
def run(tmp_path: Path, drivers: list[Driver]) -> Run:
    return Run(
        tmp_path, {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "1 h"}
    )

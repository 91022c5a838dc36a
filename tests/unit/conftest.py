"""weir's command line, called in the test's own process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fake_job import Answer, Weir
from weir.cli import main


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

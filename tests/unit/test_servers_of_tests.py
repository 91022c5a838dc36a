"""The servers that tests start: one that does not come up leaves no process."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import hdfs_server, s3_server


@pytest.mark.parametrize(
    ("module", "server", "started"),
    [(s3_server, s3_server.S3Server, 1), (hdfs_server, hdfs_server.HdfsServer, 2)],
)
def test_a_server_that_does_not_come_up_leaves_no_process(
    module: Any, server: Any, started: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = tmp_path / "java"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(module, "jar", lambda: tmp_path / "the.jar")
    monkeypatch.setattr(module, "START", 0.3)
    processes: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            processes.append(self)

    monkeypatch.setattr(module.subprocess, "Popen", Noted)
    with pytest.raises((AssertionError, subprocess.TimeoutExpired)), server(tmp_path / "server"):
        pass
    monkeypatch.undo()
    running = [one for one in processes if one.poll() is None]
    for one in running:
        one.kill()
        one.wait(10)
    assert len(processes) == started and not running

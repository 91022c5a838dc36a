"""Lines from a socket, and everything dies: what was journaled counts once.

TCP acknowledges nothing to the peer. So the server sends, the test waits until the journal has it,
then it kills; what it sends behind a kill it sends to the next driver.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.faults.processes import wait_until_gone
from tests.line_server import LineServer
from weir.testing import JobProcess, committed_rows, folded

pytestmark = [pytest.mark.spark, pytest.mark.faults]

ROOT = Path(__file__).parents[2]
JOB = Path(__file__).parent / "jobs" / "lines.py"
EXAMPLE = ROOT / "examples" / "wordcount.py"
SLACK = 60.0
"""For a machine that is busy; a driver whose supervisor is gone ends at once."""


def journaled(folder: Path, job: str) -> list[str]:
    log = folder / job / "sources/lines/log"
    entries = [json.loads(file.read_text()) for file in sorted(log.glob("*.json"))]
    return [line for entry in entries if entry["kind"] == "lines" for line in entry["text"].split("\n")]


def counted(out: Path) -> dict[str, int]:
    return {row["value"]: row["n"] for row in folded(committed_rows(str(out)), ["value"]).values()}


class Peer:
    """Numbered lines, some of them twice, sent to whoever is connected."""

    def __init__(self, server: LineServer, process_dir: Path) -> None:
        self.server = server
        self.dir = process_dir
        self.sent: list[str] = []

    def send(self, process: JobProcess, count: int) -> None:
        """Send so many more lines, a few at a time, each time until the journal has them."""
        for _ in range(0, count, 25):
            new = [f"line {number // 2}" for number in range(len(self.sent), len(self.sent) + 25)]
            self.server.send("".join(f"{line}\n" for line in new).encode())
            self.sent += new
            process.wait_for("the journal", lambda: len(journaled(self.dir, "lines")) >= len(self.sent))

    @property
    def expected(self) -> dict[str, int]:
        return dict(Counter(self.sent))


@pytest.mark.long
def test_every_journaled_line_counts_once_whatever_is_killed(
    quick: Mapping[str, str], tmp_path: Path
) -> None:
    weir, out = tmp_path / "weir", tmp_path / "out"
    with LineServer(seconds=180) as server:
        peer, args = Peer(server, weir), ("127.0.0.1", str(server.port), out)
        with JobProcess(JOB, weir, args=args, settings=quick) as process:
            peer.send(process, 200)
            process.wait_for_batch("counts", 0)
            peer.send(process, 200)
            process.kill_driver()
            server.wait_for_client()  # of the second attempt
            peer.send(process, 200)
            process.wait_for("the lines of two drivers", lambda: counted(out) == peer.expected)
            peer.send(process, 100)
            others = process.members() - {process.pid}
            process.kill_supervisor()
            wait_until_gone(others, SLACK)
        with JobProcess(JOB, weir, args=args, settings=quick) as process:
            process.wait_for("what was journaled and not read", lambda: counted(out) == peer.expected)
            server.wait_for_client()
            peer.send(process, 100)
            process.wait_for("the rest", lambda: counted(out) == peer.expected)
            process.terminate()
            run = process.wait()
    assert run.exit_code == 0, run.stderr
    assert run.attempts == [1, 2, 3]
    assert journaled(weir, "lines") == peer.sent


@pytest.mark.long
def test_the_word_count_goes_on_where_it_was_after_the_supervisor_was_killed(
    quick: Mapping[str, str], tmp_path: Path
) -> None:
    with LineServer(seconds=180) as server:
        args = ("127.0.0.1", str(server.port))
        with JobProcess(EXAMPLE, tmp_path, args=args, settings=quick) as process:
            server.send(b"to be or not to be\n")
            process.wait_for("two words", lambda: shown(process, "be") == 2)
            others = process.members() - {process.pid}
            process.kill_supervisor()
            wait_until_gone(others, SLACK)
        with JobProcess(EXAMPLE, tmp_path, args=args, settings=quick) as process:
            server.wait_for_client()
            server.send(b"be that as it may\n")
            process.wait_for("the third of them", lambda: shown(process, "be") == 3)
            assert shown(process, "that") == 1


def shown(process: JobProcess, word: str) -> int:
    """The count of a word as the console shows it last."""
    return int(([0, *re.findall(rf"\|\s*{word}\|\s*(\d+)\|", process.stdout)])[-1])

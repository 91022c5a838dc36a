"""Scripts for `jobs/scripted.py`, and what their result must be by an independent count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weir.testing import EndOfInput, Pause, Rows, assert_same_result, committed_rows, write_script
from weir.testing.script import Step, read_script

JOB = Path(__file__).parent / "jobs" / "scripted.py"


def batch(number: int) -> Rows:
    """A batch of ten rows over keys that all batches share and two of its own."""
    shared = [(f"k{(number + i) % 5}", number * 10 + i) for i in range(8)]
    return Rows([*shared, (f"only-{number}", number), (f"only-{number}", -1)])


class Script:
    """A script of batches that holds at a gate until the test opens it, then ends."""

    def __init__(self, folder: Path, *steps: Step) -> None:
        self.path = folder / "script.jsonl"
        self.gate = folder / "open"
        write_script(self.path, *steps, EndOfInput())

    @classmethod
    def with_gate(cls, folder: Path, before: int, after: int) -> Script:
        """So many batches, the gate, and so many more."""
        gate = Pause(until=str(folder / "open"))
        first = [batch(number) for number in range(before)]
        return cls(folder, *first, gate, *(batch(number) for number in range(before, before + after)))

    def open_gate(self) -> None:
        self.gate.touch()

    def expected(self) -> list[dict[str, Any]]:
        """The table that the rows of the script make."""
        table: dict[str, dict[str, Any]] = {}
        for step in read_script(self.path):
            for key, value in step.rows if isinstance(step, Rows) else ():
                row = table.setdefault(key, {"k": key, "n": 0, "sum": 0})
                row["n"] += 1
                row["sum"] += value
        return list(table.values())

    def check(self, out: Path) -> None:
        """What was delivered is what an independent count gives."""
        assert_same_result(committed_rows(str(out)), self.expected(), mode="update", key=["k"])

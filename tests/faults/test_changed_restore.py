"""A restore into changed code, at another parallelism, killed at each of its steps."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from weir.clock import Clock
from weir.ids import JobName
from weir.monitor.job import look
from weir.storage import open_store
from weir.supervisor.inbox import Requests
from weir.testing import JobProcess, committed_rows, fired

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(600)]

JOB = Path(__file__).parent / "jobs" / "changed.py"
STEPS = ("intended", "changing", "changed", "copied", "rewound", "live")
KEYS = ("a", "b", "c")


def add(folder: Path, *ids: int) -> None:
    folder.mkdir(exist_ok=True)
    rows = [{"id": id, "k": KEYS[id % 3], "v": id} for id in ids]
    hidden = folder / f".{ids[0]}"
    hidden.write_text("\n".join(map(json.dumps, rows)))
    hidden.rename(folder / f"{ids[0]}.json")


def newest(out: Path) -> dict[str, tuple[int, int | None]]:
    return {row["k"]: (row["sum"], row.get("n")) for row in committed_rows(str(out))}


def saved_before(folder: Path, out: Path, settings: Mapping[str, str]) -> Path:
    """Run the job as it was over its first rows, and stop it with a savepoint."""
    add(folder, *range(6))
    beside = folder.parent
    with JobProcess(JOB, beside / "weir", args=(folder, out, "before"), settings=settings) as process:
        process.wait_for(
            "the first rows", lambda: newest(out) == {"a": (3, None), "b": (5, None), "c": (7, None)}
        )
        return stop_with_savepoint(process, beside / "saved")


def test_a_restore_into_changed_code_is_killed_at_each_step_and_is_exact(
    quick: Mapping[str, str], tmp_path: Path
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    place = saved_before(folder, out, quick)
    add(folder, 6, 6, 7)
    faults = [f"restore.{step}#1:kill" for step in STEPS]
    args, options = (folder, out, "after"), ("-s", place, "--parallelism", "3")
    with JobProcess(
        JOB, tmp_path / "weir", faults=faults, args=args, options=options, settings=quick
    ) as process:
        there = {"a": (9, 1), "b": (12, 1), "c": (7, None)}
        process.wait_for("the rest", lambda: newest(out) == there, seconds=480)
        assert fired(process.marks) >= {fault.partition(":")[0] for fault in faults}
        process.terminate()
        assert process.wait().exit_code == 0
    made = sorted(path.name for path in (tmp_path / "weir/changed/generations").iterdir())
    assert made == ["0001", "0002", "0003"], "killed in front of its report, it was asked for again"
    assert not list((tmp_path / "weir/changed/generations").glob("*/aside"))


def stop_with_savepoint(process: JobProcess, dir: Path) -> Path:
    store, job = open_store(str(process.dir)), JobName("changed")
    requests = Requests(store, job)
    asked = requests.ask(
        "stop", look(str(process.dir), job, Clock()).owner.session, {"savepoint": True, "path": str(dir)}
    )
    process.wait()
    answer = requests.answer_to(asked)
    assert answer is not None and answer["done"], answer
    return Path(answer["path"])


def test_a_savepoint_is_converted_from_the_command_line_and_then_only_copied(
    quick: Mapping[str, str], tmp_path: Path
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    place = saved_before(folder, out, quick)
    command = [sys.executable, "-m", "weir", "savepoint", "convert", str(JOB), str(folder), str(out), "after"]
    command += ["-s", str(place), "--to", str(tmp_path / "converted"), "--parallelism", "3", "--json"]
    command += ["-D", f"execution.checkpointing.dir={tmp_path / 'weir'}", "--master", "local[1]"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["plan"]["overall"] == "fits" and answer["path"] == str(
        tmp_path / "converted/changed-1-converted"
    )
    add(folder, 6, 6, 7)
    args, options = (folder, out, "after"), ("-s", answer["path"], "--parallelism", "3")
    with JobProcess(JOB, tmp_path / "weir", args=args, options=options, settings=quick) as process:
        there = {"a": (9, 1), "b": (12, 1), "c": (7, None)}
        process.wait_for("the rest", lambda: newest(out) == there)
        assert not process.events("plan"), "nothing was left to be changed"
        process.terminate()
        assert process.wait().exit_code == 0

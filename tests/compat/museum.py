"""Exhibits: job directories as an earlier version left them, packed and unpacked where they were made.

Spark's logs hold absolute paths, and checksums lie over them. So each exhibit has one place of its own, where
it is made and unpacked. Only one process at a time has it, and it is deleted before and after.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from tests.compat import rows
from weir.cli import main

MUSEUM = Path("/tmp/weir-museum")
HERE = Path(__file__).parent
EXHIBITS = HERE / "exhibits"
JOBS = HERE / "jobs"


def names() -> list[str]:
    """Every exhibit that was made: `<number of the series>-<job>`."""
    return sorted(path.name.removesuffix(".json") for path in EXHIBITS.glob("*.json"))


def job_of(name: str) -> str:
    """The job of an exhibit: its file in `jobs/`, and its name."""
    return name.partition("-")[2]


def expected(name: str) -> dict[str, Any]:
    """What was known of an exhibit when it was made."""
    known: dict[str, Any] = json.loads((EXHIBITS / f"{name}.json").read_text())
    return known


def write(name: str, known: dict[str, Any]) -> None:
    """Write down what is known of an exhibit; what is small stays on one line, so that it can be compared."""
    (EXHIBITS / f"{name}.json").write_text(_laid_out(known) + "\n")


def _laid_out(value: Any, indent: str = "") -> str:
    short = json.dumps(value)
    if len(indent + short) <= 110 or not isinstance(value, dict | list) or not value:
        return short
    deeper = f"{indent}  "
    if isinstance(value, dict):
        several = [f"{json.dumps(key)}: {_laid_out(one, deeper)}" for key, one in value.items()]
        begin, end = "{", "}"
    else:
        several = [_laid_out(one, deeper) for one in value]
        begin, end = "[", "]"
    return f"{begin}\n{deeper}" + f",\n{deeper}".join(several) + f"\n{indent}{end}"


@contextmanager
def place(name: str) -> Iterator[Path]:
    """The folder of an exhibit, empty but for its job file; deleted afterwards."""
    MUSEUM.mkdir(mode=0o700, exist_ok=True)
    assert MUSEUM.stat().st_uid == os.getuid(), f"{MUSEUM} belongs to somebody else"
    with open(MUSEUM / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = MUSEUM / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        shutil.copy(JOBS / f"{job_of(name)}.py", folder / "job.py")
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def unpacked(name: str) -> Iterator[Path]:
    """An exhibit as it was packed, with the job file of `jobs/`."""
    with place(name) as folder:
        with tarfile.open(EXHIBITS / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        yield folder


def pack(name: str, folder: Path) -> Path:
    """Pack a folder with empty folders, hard links and times, but not the job file and marks of faults."""

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        path = member.name.removeprefix("./")
        if path == "job.py" or path.partition("/")[0].endswith(".faults"):
            return None
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    target = EXHIBITS / f"{name}.tar.gz"
    with tarfile.open(target, "w:gz", compresslevel=9) as archive:
        archive.add(folder, ".", filter=kept)
    return target


# what the commands say


def command(folder: Path, *words: str) -> tuple[int, Any]:
    """A command of weir's about the job in a folder: the exit code, and the answer as JSON."""
    out, err, before = io.StringIO(), io.StringIO(), os.getcwd()
    clean = {key: value for key, value in os.environ.items() if not key.startswith("WEIR_")}
    os.chdir(folder)  # no settings file is here
    try:
        with mock.patch.dict(os.environ, clean, clear=True), redirect_stdout(out), redirect_stderr(err):
            try:
                main([*words, "--json"])
            except SystemExit as end:
                code = int(end.code or 0)
    finally:
        os.chdir(before)
    with suppress(ValueError):
        return code, json.loads(out.getvalue())
    raise AssertionError(f"'weir {' '.join(words)}' has no answer: {out.getvalue()}{err.getvalue()}")


def facts(name: str, folder: Path) -> dict[str, Any]:
    """What the commands that need no Spark know of the job: numbers and states, no wording and no ages."""
    job, dir = job_of(name), ("--dir", str(folder / "weir"))
    saved = ("-D", f"execution.checkpointing.savepoint-dir={folder / 'saved'}")

    def ask(*words: str) -> Any:
        code, answer = command(folder, *words, *dir)
        assert code == 0 and "error" not in answer, f"'weir {' '.join(words)}' ended with {code}: {answer}"
        return answer

    status = ask("top", job, "--once")
    savepoints = ask("savepoints", job, *saved)["savepoints"]
    verified = ask("verify", job, *saved)
    repair = ask("repair", job)
    one_job = (
        "name",
        "state",
        "attempt",
        "since",
        "started_at",
        "batch",
        "query_states",
        "supervised",
        "file",
    )
    one_query = ("query", "state", "run", "batch", "at", "rows", "total_rows", "state_rows", "watermark")
    one_failure = ("at", "attempt", "query", "domain", "error", "batch")
    one_operator = ("name", "rows")
    return {
        "list": [_only(one, one_job) for one in ask("list", "--all")["jobs"]],
        "status": {
            "restarts": status["restarts"],
            "queries": [_only(one, one_query) for one in status["queries"]],
            "operators": {
                one["query"]: [_only(operator, one_operator) for operator in one["operators"]]
                for one in status["queries"]
            },
            "failure": _only(status["failure"], one_failure),
            "recoveries": [
                _only(one, ("at", "attempt", "query", "replayed", "first")) for one in status["recoveries"]
            ],
            "checkpoint": _only(
                status["checkpoint"], ("at", "attempt", "id", "alignment", "trigger", "full")
            ),
            "restored": _only(status["restored"], ("at", "attempt", "checkpoint", "generation")),
        },
        "checkpoints": [_checkpoint(one) for one in ask("checkpoints", job, "--queries")["checkpoints"]],
        "savepoints": [_savepoint(folder, one) for one in savepoints],
        "verified": sorted(
            (_only(one, ("what", "name", "files", "bytes", "damage")) for one in verified["checked"]),
            key=lambda one: (one["what"], one["name"]),
        ),
        "repair": _only(repair, ("damage", "from", "queries", "generation")),
        "logs": _only(ask("logs", job, "-n", "0"), ("attempt", "state")),
        "history": _history(name, folder),
        "delivered": rows.delivered(job, folder),
        # last, because these change something
        "withdrawn": _withdrawn(folder, job),
        "recorded": _recorded(folder, job),
    }


def _history(name: str, folder: Path) -> dict[str, Any]:
    """What REST tells of the journal: every event by its kind, and every batch."""
    dir = f"execution.checkpointing.dir={folder / 'weir'}"
    words = ["dashboard", "--port", "0", "-D", dir, "-D", "rest.token-file=off", "--json"]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("WEIR_")}
    with subprocess.Popen(
        [sys.executable, "-m", "weir", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean,
    ) as served:
        try:
            assert served.stdout is not None and served.stderr is not None
            answer = ""
            while not answer.endswith("}\n"):
                line = served.stdout.readline()
                assert line, served.stderr.read()
                answer += line
            job = f"{json.loads(answer)['url']}/api/v1/jobs/{job_of(name)}"
            events = _get(f"{job}/events?limit=1000")
            batches = _get(f"{job}/batches?recent=1000")
            queries = _get(f"{job}/graph")["queries"]
        finally:
            served.terminate()
    return {
        "events": [" ".join((str(one["attempt"]), one["kind"], one["query"])).strip() for one in events],
        "batches": {
            query: [_numbers(one["batch"], one["rows"]) for one in several]
            for query, several in batches.items()
        },
        "graph": [_only(one, ("query", "inputs", "sources")) for one in queries],
    }


def _numbers(*numbers: int) -> str:
    """Several numbers on one line of the expected facts."""
    return " ".join(map(str, numbers))


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)["data"]


def _withdrawn(folder: Path, job: str) -> dict[str, Any]:
    """Withdraw an intended restore; the exit code alone where there is none."""
    code, answer = command(folder, "restore", job, "--withdraw", "--dir", str(folder / "weir"))
    return {"code": code, "generation": answer.get("generation"), "point": answer.get("withdrawn")}


def _recorded(folder: Path, job: str) -> list[int]:
    """The savepoints that are still known when the journal and the setting are lost: by their records."""
    shutil.rmtree(folder / "weir" / job / "journal")
    nowhere = ("-D", f"execution.checkpointing.savepoint-dir={folder / 'nowhere'}")
    code, answer = command(folder, "savepoints", job, "--dir", str(folder / "weir"), *nowhere)
    assert code == 0, answer
    return [one["id"] for one in answer["savepoints"]]


def _checkpoint(one: dict[str, Any]) -> dict[str, Any]:
    plain = ("id", "status", "attempt", "alignment", "full", "trigger", "begun_at", "ended_at", "full_bytes")
    queries = {name: _only(cut, ("batch", "unaligned", "full_bytes")) for name, cut in one["queries"].items()}
    return {**_only(one, plain), "queries": queries}


def _savepoint(folder: Path, one: dict[str, Any]) -> dict[str, Any]:
    """A savepoint in the list, and what is in it."""
    plain = (
        "path",
        "trouble",
        "job",
        "id",
        "taken_at",
        "trigger",
        "job_file",
        "job_version",
        "bytes",
        "queries",
    )
    code, shown = command(folder, "savepoint", "show", one["path"])
    assert code == 0, shown
    inside = (
        "backend",
        "parallelism",
        "alignment",
        "lineage",
        "generation",
        "attempt",
        "file_count",
        "channels",
    )
    cuts = {}
    for name, query in shown["queries"].items():
        operators = [
            _only(operator, ("kind", "id", "rows", "partitions", "bytes")) for operator in query["operators"]
        ]
        sources = [_only(source, ("name", "offset", "channel")) for source in query["sources"]]
        plain_cut = _only(
            query, ("batch", "unaligned", "positions", "watermark_ms", "state_format", "output_mode")
        )
        sink = _only(query["sink"], ("kind", "last_batch", "rewindable"))
        cuts[name] = {**plain_cut, "sink": sink, "sources": sources, "operators": operators}
    restorable = one["restorable"]["answer"]
    return {**_only(one, plain), "restorable": restorable, **_only(shown, inside), "cuts": cuts}


def _only(one: dict[str, Any] | None, keys: tuple[str, ...]) -> dict[str, Any]:
    """Some keys of an answer; one that it does not have is a mistake of the caller's."""
    return {key: one[key] for key in keys} if one is not None else {}

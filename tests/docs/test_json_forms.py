"""The documented keys of `--json` are those that the verbs print: none more, none less."""

from __future__ import annotations

import json
import os
import re
import runpy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fake_job import FakeJob
from tests.kept_job import write
from tests.unit.test_cli_savepoints import saved
from tests.web_site import checkpointed, described, failed
from weir.cli import main
from weir.ids import Generation
from weir.protocol.messages import BatchCommitted
from weir.storage import paths
from weir.storage.generation import Origin, create_origin
from weir.storage.local import LocalStore

FORMS: dict[str, str] = runpy.run_path(str(Path(__file__).parents[2] / "docs/reference/generate.py"))[
    "JSON_FORMS"
]
BY_NAME = ("parts", "phases", "lag", "durations", "replayed", "query_states", "state_seconds")
"""Their keys are names of other things."""
SAVED_AT = "execution.checkpointing.savepoint-dir"
ORPHANS = "checkpoints --orphans"
FORMS["checkpoints"], _, FORMS[ORPHANS] = FORMS["checkpoints"].partition("; with `--orphans`: ")
_ALL_OF = r"all of (?:a job in )?`(list|status)`"


@pytest.fixture
def full(tmp_path: Path) -> FakeJob:
    """A job of which everything is known that can be shown."""
    place = {SAVED_AT: str(tmp_path / "backup")}
    job = described(FakeJob(tmp_path).state("RUNNING"), **place)
    at = job.clock.now().isoformat()
    batch = BatchCommitted("counts", 1, 41, 10, 0.5, {"addBatch": 400}, 3, 100, at=at, lag={"clicks-0": 7})
    source: dict[str, str | int | None] = {"name": "kafka", "rows": 10, "behind": 7, "unit": "records"}
    operator: dict[str, str | int] = {"name": "stateStoreSave", "rows": 3, "bytes": 100}
    job.journal.batch(job.lock.held, replace(batch, sources=[source], operators=[operator]))
    job.queries(counts="RUNNING")
    job.event("restored", {"checkpoint": 1, "generation": 2, "why": "asked", "seconds": 1.0})
    checkpointed(failed(job), 1, 3)
    job.log(1, "a line\n")
    create_origin(LocalStore(tmp_path), job.name, Generation(1), Origin("lineage", "rocksdb", 2, "4.3", "t"))
    write(tmp_path / paths.pins(job.name, Generation(1)) / ".left.1.tmp", "by a kill")
    saved(tmp_path / "elsewhere", tmp_path / "backup")
    return job


def keys(value: Any, at: str = "") -> Iterator[str]:
    """Every key of an answer, however deep."""
    if isinstance(value, list):
        for one in value:
            yield from keys(one)
    elif isinstance(value, dict):
        named = at == "queries"  # of a checkpoint: by name
        for key, one in value.items():
            if not named:
                yield key
            if key not in BY_NAME:
                yield from keys(one, "" if named else key)


def documented(verb: str) -> set[str]:
    others = re.findall(_ALL_OF, FORMS[verb])
    own = set(re.findall(r"`([a-z][a-z_0-9]*)`", re.sub(_ALL_OF, "", FORMS[verb])))
    return own.union(*(documented(other) for other in others))


@pytest.mark.parametrize(
    "verb", ["list", "status", "top", "checkpoints", ORPHANS, "savepoints", "logs", "config"]
)
def test_what_is_printed_is_what_is_documented(
    verb: str,
    full: FakeJob,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in os.environ if name.startswith("WEIR_")]:
        monkeypatch.delenv(name)
    about = [] if verb in ("list", "config") else ["wordcount"]
    define = {"config": ["-D", "spark.x=1"], "savepoints": ["-D", f"{SAVED_AT}={tmp_path}/backup"]}
    with pytest.raises(SystemExit):
        main([*verb.split(), *about, *define.get(verb, []), "--json", "--dir", str(tmp_path)])
    printed = set(keys(json.loads(capsys.readouterr().out)))
    allowed = {"at", "files", "damage"} if verb == "savepoints" else set()  # of one that was verified
    if verb in ("status", "top"):
        allowed |= {"jobs"}  # `list` has them in a list
    assert printed - documented(verb) == set()
    assert documented(verb) - printed - allowed == set()

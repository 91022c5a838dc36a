"""`weir savepoint` and its words, `savepoints`, `stop` and `verify`."""

from __future__ import annotations

import io
import json
import shutil
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.fake_job import FakeJob, Weir
from tests.kept_job import KeptJob
from weir.cli import VERBS, say
from weir.cli.ask import reached
from weir.clock import Clock
from weir.ids import CheckpointId
from weir.monitor.savepoints import progress_of
from weir.protocol.messages import SavepointProgress, SavepointTaken
from weir.protocol.operators import Family, Operator, StateStore
from weir.savepoint import write as writing
from weir.savepoint.manifest import MANIFEST, SavedSink, encode
from weir.savepoint.place import SavepointPlace
from weir.savepoint.take import QueryFacts, SavepointFacts, TakenSavepoint, take
from weir.savepoint.verify import last_verified
from weir.savepoint.write import HIDDEN
from weir.storage import paths

SAVED = {"id": 8, "path": "/saved/wordcount-8", "seconds": 1.25, "bytes": 3 * 2**20}


@pytest.fixture
def weir(weir: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weir:
    monkeypatch.setenv("WEIR_EXECUTION_CHECKPOINTING_DIR", str(tmp_path / "weir"))
    monkeypatch.setenv("WEIR_EXECUTION_CHECKPOINTING_SAVEPOINT_DIR", str(tmp_path / "saved"))
    return weir


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    return FakeJob(tmp_path / "weir").state("STARTING").state("RUNNING").batch(41)


class Supervisor(threading.Thread):
    """Answers one request with what it is told to answer; the one before it has taken its own away."""

    before: threading.Thread | None = None

    def __init__(self, job: FakeJob, **body: Any) -> None:
        super().__init__(daemon=True)
        if Supervisor.before is not None:
            Supervisor.before.join(20)
        Supervisor.before = self
        self.job, self.body = job, body
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.start()

    def run(self) -> None:
        while not (found := self.job.requests.pending()):
            threading.Event().wait(0.01)
        self.heard = [(request.verb, request.arguments) for request in found]
        self.job.requests.answer(found[0], **self.body)


def saved(folder: Path, target: Path, id: int = 7, job: str = "wordcount", **facts: Any) -> TakenSavepoint:
    """A savepoint on the disk, of a job whose directory is somewhere else."""
    kept = KeptJob(folder / f"kept-{job}", job)
    kept.batch(0)
    names = kept.batch(1, '{"logOffset": 4}')
    manifest = kept.take(id, kept.pins(), names, 1)
    sink = SavedSink(kind="files", description="parquet files in out")
    query = QueryFacts(sink, "update", ("FileStreamSource[in]",), {0: 1234})
    told = SavepointFacts("request", "ada@engine", 0.0, "wordcount.py", "1f3c9a2b0d4e", {"counts": query})
    given = SavepointFacts(**{**vars(told), **facts})
    now = manifest.model_copy(update={"completed_at": Clock().now().isoformat()})
    return take(kept.store, now, str(target), given, kept.clock)


def test_a_savepoint_is_asked_for_and_its_place_is_told(weir: Weir, job: FakeJob, tmp_path: Path) -> None:
    asked = Supervisor(job, done=True, **SAVED)
    answer = weir("savepoint", "wordcount", "backup")
    assert answer.code == 0
    assert answer.out == "savepoint of wordcount in 1.25 s, 3 MiB: /saved/wordcount-8\n"
    (verb, arguments) = asked.heard[0]
    assert (verb, arguments["path"], arguments["detached"]) == ("savepoint", str(tmp_path / "backup"), False)
    assert "@" in arguments["by"]
    Supervisor(job, done=True, **SAVED)
    assert weir("savepoint", "wordcount", "--json").json == {"job": "wordcount", "status": "taken", **SAVED}
    asked = Supervisor(job, done=True, **SAVED)
    weir("savepoint", "wordcount", "s3://bucket/saved")
    assert asked.heard[0][1]["path"] == "s3://bucket/saved"


def test_detached_it_returns_at_once(weir: Weir, job: FakeJob) -> None:
    Supervisor(job, done=True, detached=True)
    answer = weir("savepoint", "wordcount", "--detached", "--json")
    nothing = dict.fromkeys(SAVED)
    assert answer.json == {"job": "wordcount", "status": "asked", **nothing}
    Supervisor(job, done=True, detached=True)
    assert "'weir savepoints wordcount' shows it" in weir("savepoint", "-d", "wordcount").out


def test_a_savepoint_that_was_not_taken_is_exit_code_1_with_the_reason(weir: Weir, job: FakeJob) -> None:
    words = {"what": "no savepoint can be written to /full", "why": "the disk is full", "hint": "make room"}
    Supervisor(job, done=False, reason="the disk is full", **words)
    answer = weir("savepoint", "wordcount")
    assert answer.code == 1
    for word in words.values():
        assert word in answer.err
    Supervisor(job, done=False, reason="it is ending")
    answer = weir("savepoint", "wordcount", "--json")
    assert answer.code == 1
    assert answer.json["error"]["what"] == "job 'wordcount' has not taken a savepoint"
    assert answer.json["error"]["why"] == "it is ending"


def test_nobody_is_asked_who_can_not_answer(weir: Weir, job: FakeJob) -> None:
    job.state("CANCELED").end()
    for verb in ("savepoint", "stop"):
        answer = weir(verb, "wordcount")
        assert answer.code == 5 and f"no supervisor that could {verb} it" in answer.err
    assert weir("savepoint", "nobody").code == 2


def test_the_bar_shows_what_the_journal_says_of_this_request(job: FakeJob, tmp_path: Path) -> None:
    class Seen(say.Bar):
        def __init__(self) -> None:
            self.shown: list[object] = []

        def __call__(self, done: int, total: int) -> None:
            self.shown.append((done, total))

        def phase(self, text: str) -> None:
            self.shown.append(text)

    bar = Seen()
    show = reached(bar, "wordcount")

    def look(request: str) -> None:
        if (progress := progress_of(str(tmp_path / "weir"), "wordcount", request)) is not None:
            show(progress)

    look("mine")
    job.event("savepoint progress", asdict(SavepointProgress("another", "copy", 1, 2)))
    look("mine")
    job.event("savepoint progress", asdict(SavepointProgress("mine", "drain")))
    look("mine")
    job.event("savepoint progress", asdict(SavepointProgress("mine", "copy", 10, 100)))
    look("mine")
    assert bar.shown == [
        "wordcount: processing the remaining input",
        "wordcount: copying",
        (10, 100),
    ]


def test_a_detached_stop_returns_at_once(weir: Weir, job: FakeJob) -> None:
    asked = Supervisor(job, done=True, detached=True)
    answer = weir("stop", "wordcount", "--detached")
    assert answer.out == "wordcount is ending: 'weir status wordcount' shows when it has ended\n"
    assert asked.heard[0][1]["detached"] is True
    Supervisor(job, done=True, detached=True)
    assert weir("stop", "wordcount", "-d", "--json").json == {"job": "wordcount", "status": "asked"}


def test_a_stop_says_where_the_savepoint_is(weir: Weir, job: FakeJob, tmp_path: Path) -> None:
    asked = Supervisor(job, done=True, state="FINISHED", **SAVED)
    answer = weir("stop", "wordcount", "--savepoint-path", "here", "--drain")
    assert answer.out == "wordcount is FINISHED\nsavepoint, 3 MiB: /saved/wordcount-8\n"
    verb, arguments = asked.heard[0]
    assert verb == "stop" and arguments.pop("by")
    here = str(tmp_path / "here")
    assert arguments == {"savepoint": True, "path": here, "drain": True, "detached": False}
    Supervisor(job, done=True, state="FINISHED", **SAVED)
    body = weir("stop", "wordcount", "--json").json
    assert body == {"job": "wordcount", "state": "FINISHED", "attempt": 1, **SAVED}
    asked = Supervisor(job, done=True, state="FAILED")
    answer = weir("stop", "wordcount", "--no-savepoint", "--json")
    assert (answer.code, answer.json) == (1, {"job": "wordcount", "state": "FAILED", "attempt": 1})
    assert asked.heard[0][1]["savepoint"] is False
    assert weir("stop", "wordcount", "--no-savepoint", "--savepoint-path", "x").code == 2
    assert "can't fire them early" in " ".join(weir("stop", "--help").out.split())


def test_the_catalogue_has_what_is_in_the_savepoint_dir_and_what_the_journal_names(
    weir: Weir, job: FakeJob, tmp_path: Path
) -> None:
    assert weir("savepoints").out == "there is no savepoint\n"
    assert weir("savepoints", "wordcount").out == "wordcount has no savepoint\n"
    first = saved(tmp_path, tmp_path / "saved")
    second = saved(tmp_path, tmp_path / "elsewhere", id=9, trigger="stop")
    saved(tmp_path, tmp_path / "saved", id=3, job="another")
    job.event("savepoint taken", asdict(SavepointTaken(9, second.place, "stop", "ada@engine", 1.0, 5)))
    job.event("savepoint taken", asdict(SavepointTaken(5, "/gone/wordcount-5", "stop", "a@b", 1.0, 5)))
    (tmp_path / "saved" / f"{HIDDEN}wordcount-9-abc").mkdir()
    broken = tmp_path / "saved" / "wordcount-11"
    broken.mkdir()
    (broken / MANIFEST).write_text('{"format": 3}')
    assert weir("verify", first.place).code == 0
    found = weir("savepoints", "wordcount", "--json").json["savepoints"]
    assert [one["path"] for one in found] == [str(broken), first.place, second.place]
    assert found[0]["trouble"].endswith("a newer weir wrote it") and found[0]["job"] is None
    one = found[1]
    assert (one["job"], one["id"], one["taken_by"], one["trigger"]) == (
        "wordcount",
        7,
        "ada@engine",
        "request",
    )
    assert (one["job_file"], one["job_version"]) == ("wordcount.py", "1f3c9a2b0d4e")
    assert one["bytes"] == first.savepoint.bytes and one["queries"] == ["counts"]
    assert one["verified"]["damage"] == [] and found[2]["verified"] is None
    assert one["restorable"]["answer"] == "unknown" and found[0]["restorable"] is None
    out = weir("savepoints").out
    assert f"to find out: weir plan FILE -s {first.place}" in " ".join(out.split())
    assert "another" in out and "1f3c9a2" in out and "never" in out
    assert f"{broken}: it has format 3" in out.replace("\n", " ").replace("  ", " ")
    assert weir("savepoints", "nobody").code == 2


def test_a_savepoint_is_shown_with_its_queries_sources_operators_and_sinks(
    weir: Weir, tmp_path: Path
) -> None:
    done = saved(tmp_path, tmp_path / "saved")
    several = {"type": "map", "keyType": "string", "valueType": {"type": "array", "elementType": "long"}}
    struct = {"type": "struct", "fields": [{"name": "k", "type": "string"}, {"name": "at", "type": several}]}
    nested = {"type": "struct", "fields": [{"name": "key", "type": struct}]}
    family = Family(name="mp", key_schema=nested, value_schema={"type": "struct", "fields": []})
    operators = (
        *done.savepoint.queries["counts"].operators,
        Operator(
            id=1,
            kind="transformWithStateInPySparkExec",
            stores=(StateStore(name="default", families=(family, family)),),
        ),
    )
    query = done.savepoint.queries["counts"].model_copy(update={"operators": operators})
    changed = done.savepoint.model_copy(update={"queries": {"counts": query}})
    (Path(done.place) / MANIFEST).write_bytes(encode(changed))
    out = weir("savepoint", "show", done.place).out
    assert f"savepoint 7 of wordcount: {done.place}" in out.replace("\n", " ")
    for text in (
        "by ada@engine (request)",
        "from wordcount.py 1f3c9a2b0d4e; weir 0.1.0, Spark 4.3.0; generation 1",
        "hashmap state, parallelism 1; aligned cut",
        "verified: never",
        "query counts: batch 1, update mode",
        'reads 0, FileStreamSource[in]: {"logOffset": 4}',
        "delivers to parquet files in out: up to batch 1",
        "operator 0, stateStoreSave: 1 partitions, 1,234 rows, 313 B",
        "operator 1, transformWithStateInPySparkExec: 0 partitions, rows unknown\n"
        "    mp: (key (k string, at map<string, array<long>>)) -> ()\n",
    ):
        assert text in out, out
    body = weir("savepoint", "show", done.place, "--json").json
    assert body["place"] == done.place and "files" not in body and body["file_count"] == len(changed.files)
    assert body["queries"]["counts"]["operators"][0]["kind"] == "stateStoreSave"
    answer = weir("savepoint", "show", str(tmp_path), "--json")
    assert answer.code == 2 and answer.json["error"]["why"] == "there is no manifest.json"


def test_a_savepoint_is_copied_verified_and_disposed_of(weir: Weir, tmp_path: Path) -> None:
    done = saved(tmp_path, tmp_path / "saved")
    body = weir("savepoint", "copy", done.place, "copies", "--json").json
    copied = str(tmp_path / "copies" / "wordcount-7")
    size = done.savepoint.bytes
    assert body == {"job": "wordcount", "id": 7, "from": done.place, "path": copied, "bytes": size}
    assert weir("savepoint", "copy", done.place, "more").out.endswith("/more/wordcount-7\n")
    assert weir("verify", copied).out.startswith(f"intact   savepoint {copied}")
    victim = Path(copied) / "queries/counts/offsets/1"
    victim.write_bytes(victim.read_bytes().replace(b"v1", b"v9"))
    answer = weir("verify", copied)
    assert answer.code == 1 and "queries/counts/offsets/1 has changed" in answer.out
    answer = weir("savepoint", "copy", copied, "again")
    assert answer.code == 1 and "is damaged: queries/counts/offsets/1 has changed" in answer.err
    assert weir("savepoint", "dispose", copied, "--json").json["path"] == copied
    assert not Path(copied).exists()
    assert weir("savepoint", "dispose", str(tmp_path / "saved")).code == 2
    assert weir("savepoint", "dispose", done.place).out.startswith(f"deleted {done.place}")


def test_the_only_savepoint_in_a_folder_is_named(weir: Weir, tmp_path: Path) -> None:
    done = saved(tmp_path, tmp_path / "saved")
    (tmp_path / "saved" / f"{HIDDEN}x").mkdir()
    (tmp_path / "saved" / f"{HIDDEN}x" / MANIFEST).write_text("{}")
    answer = weir("verify", str(tmp_path / "saved"))
    assert answer.code == 2 and f"the only savepoint in it is {done.place}" in answer.err
    shutil.copytree(done.place, tmp_path / "saved" / "another")
    assert "the only savepoint" not in weir("verify", str(tmp_path / "saved")).err


def test_a_copy_that_is_read_and_not_yet_on_the_disk_shows_no_time(
    weir: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forcing much to a disk takes long, and a bar at its end would look stuck."""
    done, shown = saved(tmp_path, tmp_path / "saved"), io.StringIO()
    bars: list[say.Bar] = []
    seen: list[tuple[str, float | None, float]] = []
    monkeypatch.setattr(say, "err", Console(file=shown, force_terminal=True, width=120))
    made, finish = say.Bar.__init__, writing._InFolder.finish

    def remember(self: say.Bar, text: str, progress: Any) -> None:
        made(self, text, progress)
        bars.append(self)

    def look(self: Any, savepoint: Any) -> str:
        (task,) = (one for one in bars[0]._shown.tasks if one.visible)  # type: ignore[union-attr]
        seen.append((task.description, task.total, task.completed))
        return finish(self, savepoint)

    monkeypatch.setattr(say.Bar, "__init__", remember)
    monkeypatch.setattr(writing._InFolder, "finish", look)
    assert weir("savepoint", "copy", done.place, str(tmp_path / "copies")).code == 0
    text = f"waiting until {tmp_path / 'copies'} has stored it"
    assert seen == [(text, None, done.savepoint.bytes)]


def test_what_is_left_of_a_savepoint_in_an_object_store_is_disposed_of(
    weir: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.savepoint.verify.clear", lambda _place: True)
    url = "s3://bucket/wordcount-7"
    assert weir("savepoint", "dispose", url).out == f"deleted what was left in {url}\n"
    gone = weir("savepoint", "dispose", url, "--json").json
    assert gone == {"job": None, "id": None, "path": url, "bytes": None}


def test_a_word_directly_behind_savepoint_is_one_and_a_job_of_that_name_can_be_reached(
    weir: Weir, tmp_path: Path
) -> None:
    job = FakeJob(tmp_path / "weir", "show").state("RUNNING")
    asked = Supervisor(job, done=True, **SAVED)
    assert "savepoint of show" in weir("savepoint", "--", "show").out
    assert asked.heard[0][0] == "savepoint"
    assert weir("savepoint", "show", "nowhere").code == 2
    answer = weir("savepoint", "copy", "only-one")
    assert answer.code == 2 and "'weir savepoint copy --help' shows how it is used" in answer.err
    assert "weir savepoint dispose" in weir("savepoint", "dispose", "--help").out
    assert all(verb in weir("--help").out for verb in VERBS)


def test_verify_of_a_job_looks_at_its_live_files_its_checkpoints_and_its_savepoints(
    weir: Weir, tmp_path: Path
) -> None:
    kept = KeptJob(tmp_path / "weir", "wordcount")
    names = kept.batch(0)
    kept.take(1, kept.pins(), names, 0)
    kept.take(2, kept.pins(), names, 0)
    fake = FakeJob(tmp_path / "weir", "wordcount").state("RUNNING").state("CANCELED")
    kept.store.put(paths.completed(kept.job, CheckpointId(2)), b"{")
    done = saved(tmp_path, tmp_path / "saved")
    running = [one["what"] for one in weir("verify", "wordcount", "--json").json["checked"]]
    assert running == ["checkpoint", "checkpoint", "savepoint"]
    fake.end()
    answer = weir("verify", "wordcount", "--json")
    assert answer.code == 1 and not answer.json["ok"]
    found = [(one["what"], one["name"], one["damage"]) for one in answer.json["checked"]]
    assert found == [
        ("live files of", "wordcount", []),
        ("checkpoint", "chk-1", []),
        ("checkpoint", "chk-2", ["chk-2.json can't be read"]),
        ("savepoint", done.place, []),
    ]
    pinned = kept.root() / "pins" / "queries/counts/commits/0"
    pinned.write_text("torn")
    out = weir("verify", "wordcount").out
    assert "damaged  checkpoint chk-1" in out and "queries/counts/commits/0 has 4 bytes" in out
    assert weir("verify", "nobody").code == 2
    assert weir("verify", "./nowhere").code == 2


@pytest.mark.parametrize("place", ["az://nobody/wordcount-5", "/" + 300 * "x" + "/wordcount-5"])
def test_a_savepoint_whose_storage_can_not_be_reached_is_told_and_hides_nothing(
    weir: Weir, tmp_path: Path, place: str
) -> None:
    kept = KeptJob(tmp_path / "weir", "wordcount")
    for batch in (0, 1):
        names = kept.batch(batch)
    kept.take(1, kept.pins(), names, 1)
    fake = FakeJob(tmp_path / "weir", "wordcount").state("RUNNING").state("CANCELED")
    fake.event("savepoint taken", asdict(SavepointTaken(5, place, "stop", "ada@engine", 1.0, 5)))
    fake.end()
    done = saved(tmp_path, tmp_path / "saved")
    found = weir("savepoints", "wordcount", "--json").json["savepoints"]
    assert [one["path"] for one in found] == [place, done.place]
    assert found[0]["trouble"].startswith("can't be reached: the storage could not")
    checked = weir("verify", "wordcount", "--json").json["checked"]
    assert [(one["what"], bool(one["damage"])) for one in checked] == [
        ("live files of", False),
        ("checkpoint", False),
        ("savepoint", True),
        ("savepoint", False),
    ]
    (kept.root() / "queries/counts/commits/1").write_text("")
    kept.store.delete(paths.completed(kept.job, CheckpointId(1)))
    shutil.rmtree(kept.root() / "queries/counts/offsets")
    answer = weir("repair", "wordcount", "--json")
    assert answer.json["from"].endswith(done.place) and place in answer.json["passed_over"][0]


def test_what_is_whole_is_loaded_when_asked_and_the_catalogue_knows(
    weir: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptJob(tmp_path / "weir", "wordcount")
    names = kept.batch(0)
    kept.take(1, kept.pins(), names, 0)
    kept.take(2, kept.pins(), names, 0)
    kept.store.put(paths.completed(kept.job, CheckpointId(2)), b"{")
    FakeJob(tmp_path / "weir", "wordcount").state("RUNNING").state("CANCELED").end()
    done = saved(tmp_path, tmp_path / "saved")
    asked: dict[str, Any] = {}
    whole = {"rows": 0, "damage": [], "left_out": ["query counts, operator 1 (globalLimit)"]}
    lost = {"rows": 1233, "damage": ["operator 0 has 1233 rows instead of 1234"], "left_out": []}

    def answer(request: dict[str, Any], _waiting: object) -> dict[str, Any]:
        asked.update(request)
        return {"loaded": [lost if path == done.place else whole for path in asked["paths"]]}

    monkeypatch.setattr("weir.client.verify.ask_state", answer)
    found = weir("verify", "wordcount", "--load")
    assert found.code == 1
    job = str(tmp_path / "weir/wordcount")
    assert asked["paths"] == [job, f"{job}/chk-1", done.place]  # chk-2 is no use to load
    assert asked["rows"] == {job: {}, f"{job}/chk-1": {}, done.place: {"counts": {0: 1234}}}
    assert "not checked: query counts, operator 1 (globalLimit)" in found.out
    assert "1,233 rows of state loaded\n    operator 0 has 1233 rows instead of 1234" in found.out
    assert "damaged: operator 0 has 1233 rows" in " ".join(weir("savepoint", "show", done.place).out.split())
    (body,) = weir("verify", done.place, "--json").json["checked"]
    assert body["rows"] is None and body["damage"] == [] and "place" not in body
    assert not last_verified(SavepointPlace(done.place)).damage  # type: ignore[union-attr]


def test_a_manifest_can_be_read_without_weir(tmp_path: Path) -> None:
    done = saved(tmp_path, tmp_path / "saved")
    plain = json.loads((Path(done.place) / MANIFEST).read_text())
    assert plain["format"] == 2 and plain["queries"]["counts"]["batch"] == 1
    assert {file["path"] for file in plain["files"]} == set(SavepointPlace(done.place).names()) - {MANIFEST}

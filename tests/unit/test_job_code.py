"""What counts as the code of a job, and what a plain start refuses though the code is the same."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.planned import CONF, aggregation, dedup, shape
from weir.errors import ChangedQueryError
from weir.ids import Attempt, BatchId, QueryName
from weir.protocol.shape import Shape
from weir.restore import plan as replan
from weir.restore.plan import Shapes
from weir.savepoint import about
from weir.savepoint.about import JobSource, source_of
from weir.savepoint.query_change import Before
from weir.spark.checkpoint_files import QueryFiles

SMALL, LARGE = ("where (v < 8)", "reads json /in"), ("where (v >= 8)", "reads json /in")


class Project:
    """A job file with a module of its own beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "job.py").write_text("def pipeline(env): ...\n")
        self.write("by = 'k'\n")

    def write(self, module: str) -> None:
        (self.folder / "weir_tests_lib.py").write_text(module)

    def source(self) -> JobSource:
        importlib.invalidate_caches()
        sys.modules.pop("weir_tests_lib", None)
        importlib.import_module("weir_tests_lib")
        file = str(self.folder / "job.py")
        space: dict[str, Any] = {}
        exec(compile(Path(file).read_text(), file, "exec"), space)
        return source_of(cast(Any, SimpleNamespace(function=space["pipeline"])))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return Project(tmp_path)


def test_a_module_of_the_job_is_its_code(project: Project) -> None:
    before = project.source()
    assert project.source() == before
    project.write("by = 'g'\n")
    after = project.source()
    assert after.version == before.version, "the job file is as it was"
    assert after.code != before.code
    del sys.modules["weir_tests_lib"]


def test_installed_modules_are_not_the_jobs_code() -> None:
    names = {name for name, _ in about._modules()}
    assert __name__ in names
    assert not {"json", "pytest", "pydantic", "weir.savepoint.about"} & names


def test_the_arguments_of_a_job_file_are_its_code(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    main = SimpleNamespace(__file__=str(project.folder / "job.py"))
    monkeypatch.setitem(sys.modules, "__main__", cast(Any, main))
    found = []
    for argument in ("old", "new", "new"):
        monkeypatch.setattr(sys, "argv", ["job.py", argument])
        found.append(project.source().code)
    assert found[0] != found[1] == found[2]
    del sys.modules["weir_tests_lib"]


def start(monkeypatch: pytest.MonkeyPatch, old: Shape, new: Shape, kept: JobSource, now: JobSource) -> Shape:
    """What a plain start says of a query that has run; the shape that it would keep."""
    told: list[Shape] = []
    old = old.model_copy(update={"job": kept.version, "code": kept.code})
    monkeypatch.setattr(about, "newest", lambda *_: old)
    monkeypatch.setattr(about, "keep", lambda *given: told.append(given[-1]))
    monkeypatch.setattr(replan, "local_path", lambda url: url)
    monkeypatch.setattr(replan, "of_live_files", lambda *_: Before(old, CONF, ("5",) * len(old.sources)))
    monkeypatch.setattr(replan, "plan_query", lambda *_: SimpleNamespace(shape=new))
    files = SimpleNamespace(last_committed=lambda: BatchId(3))
    monkeypatch.setattr(QueryFiles, "of", lambda *_: files)
    live: Any = SimpleNamespace(query=lambda _: "/q", store=None, job="job", generation=1)
    spec: Any = SimpleNamespace(name=QueryName("counts"))
    Shapes(live, Attempt(2), now).settle([spec], None)
    return told[0]


SAME = JobSource("job.py", "aa", "bb")
OTHER = JobSource("job.py", "aa", "cc")
SWAPPED = (shape(dedup(0, *SMALL), dedup(1, *LARGE)), shape(dedup(0, *LARGE), dedup(1, *SMALL)))


@pytest.mark.parametrize(
    "kept", [SAME, OTHER, JobSource("job.py", "aa")], ids=["same", "other", "older weir"]
)
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (*SWAPPED, "moved"),
        (shape(dedup(0)), shape(dedup(0, key="user")), "id became user"),
        (shape(sources=["json /a", "rate"]), shape(sources=["rate", "json /a"]), "moved"),
        (shape(aggregation(0)), shape(aggregation(0), dedup(1)), "new"),
        (shape(sources=["json /a"]), shape(sources=["json /a", "rate"]), "new"),
    ],
    ids=["twins", "key", "sources", "operator", "source"],
)
def test_what_spark_would_mix_up_is_refused_whatever_the_code(
    monkeypatch: pytest.MonkeyPatch, old: Shape, new: Shape, words: str, kept: JobSource
) -> None:
    with pytest.raises(ChangedQueryError, match=words):
        start(monkeypatch, old, new, kept, SAME)


def test_a_text_that_differs_is_refused_where_a_module_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = shape(sources=["json /2026-11-17"]), shape(sources=["json /2026-11-18"])
    told = start(monkeypatch, old, new, SAME, SAME)
    assert (told.job, told.code) == ("aa", "bb")
    older = start(monkeypatch, old, new, JobSource("job.py", "aa"), SAME)
    assert older.code == "bb", "an older weir knew the file alone"
    with pytest.raises(ChangedQueryError, match="json /2026-11-18"):
        start(monkeypatch, old, new, OTHER, SAME)

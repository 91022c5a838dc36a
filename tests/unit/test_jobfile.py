"""Job files, good and bad, and what a pipeline may not do. No JVM."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import weir
from weir.driver.jobfile import load
from weir.errors import BadNameError, JobFileError, PipelineError
from weir.ids import job_name
from weir.job.env import Env


@pytest.fixture(autouse=True)
def main_module() -> Iterator[None]:
    main, path, loaded = sys.modules["__main__"], list(sys.path), set(sys.modules)
    workers = os.environ.get("PYTHONPATH")
    yield
    sys.modules["__main__"] = main
    sys.path[:] = path
    for name in set(sys.modules) - loaded:
        if name.split(".")[0] in ("shop", "beside"):
            del sys.modules[name]
    os.environ.pop("PYTHONPATH", None)
    os.environ |= {"PYTHONPATH": workers} if workers is not None else {}


def write(folder: Path, text: str) -> Path:
    file = folder / "job.py"
    file.write_text("import weir\n" + text)
    return file


def refused(file: Path) -> str:
    with pytest.raises(JobFileError) as caught:
        load(file)
    assert caught.value.hint
    return caught.value.why


def test_the_only_job_of_a_file_is_found(tmp_path: Path) -> None:
    job = load(write(tmp_path, "job = weir.Job('one', parallelism_default=3)\n"))
    assert job.name == "one"
    assert job.options == {"parallelism_default": 3}


def test_of_several_jobs_the_one_that_is_run_counts_and_the_rest_of_the_file_does_not(tmp_path: Path) -> None:
    text = "a, b = weir.Job('a'), weir.Job('b')\nif __name__ == '__main__':\n    b.run()\n    1 / 0\n"
    assert load(write(tmp_path, text)).name == "b"


def test_functions_of_the_file_belong_to_main(tmp_path: Path) -> None:
    load(write(tmp_path, "def f(): pass\nname = f.__module__\nweir.Job('one')\n"))
    assert sys.modules["__main__"].__dict__["name"] == "__main__"


def test_bad_files_are_refused_with_words(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "absent.py")
    assert "makes no job" in refused(write(tmp_path, ""))
    assert "2 jobs: 'a', 'b'" in refused(write(tmp_path, "weir.Job('a'); weir.Job('b')"))
    assert "is a directory" in refused(tmp_path)
    assert "job.py:2: ZeroDivisionError" in refused(write(tmp_path, "1 / 0"))
    assert "SyntaxError" in refused(write(tmp_path, "def"))
    assert "ended by itself with exit code 3" in refused(write(tmp_path, "raise SystemExit(3)"))
    assert "exit code 1, before it made a job: no" in refused(write(tmp_path, "raise SystemExit('no')"))


def test_what_a_file_prints_before_it_ends_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--input', required=True)\n"
    monkeypatch.setattr(sys, "argv", ["job.py"])
    why = refused(write(tmp_path, text + "p.parse_args()\n"))
    assert "exit code 2" in why and "the following arguments are required: --input" in why
    assert "usage: job.py" in capsys.readouterr().err, "and it is printed as ever"


def test_a_program_that_starts_its_queries_by_itself_is_refused_before_it_does(tmp_path: Path) -> None:
    text = (
        "from pyspark.sql.streaming import DataStreamWriter\n"
        "writer = object.__new__(DataStreamWriter)\n"
        "writer.start('out').awaitTermination()\n"
    )
    file = write(tmp_path, text)
    why = refused(file)
    assert ".start() on a writer" in why and "starts a query" in why
    assert ".toTable() on a writer" in refused(write(tmp_path, text.replace("start('out')", "toTable('t')")))


def test_a_file_of_a_package_imports_its_neighbours_and_so_do_workers(tmp_path: Path) -> None:
    package = tmp_path / "src" / "shop" / "jobs"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package.parent / "util.py").write_text("name = 'shouted'\n")
    file = write(package, "from ..util import name\nfrom shop.util import name as same\nweir.Job(name)\n")
    assert load(file).name == "shouted"
    assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path / "src")


def test_a_file_of_a_package_may_also_import_what_lies_beside_it_and_be_imported(tmp_path: Path) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    file = write(package, "import beside\nif __name__ == '__main__':\n    weir.Job(beside.name)\n")
    (package / "beside.py").write_text("name = 'near'\n")
    (package / "__init__.py").write_text("import weir\nweir.Job('of-the-package')\n")
    assert load(file).name == "near"
    assert str(package) in os.environ["PYTHONPATH"].split(os.pathsep)


def test_a_module_beside_the_file_can_be_imported_by_workers(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("name = 'near'\n")
    assert load(write(tmp_path, "import beside\nweir.Job(beside.name)\n")).name == "near"
    assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path)


def test_spark_submit_is_refused_with_the_command_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "job.py"), raising=False)
    with pytest.raises(JobFileError) as caught:
        weir.Job("one").run()
    assert "spark-submit" in caught.value.why and f"weir run {tmp_path / 'job.py'}" in caught.value.hint


def test_a_job_without_a_pipeline_is_refused() -> None:
    with pytest.raises(JobFileError) as caught:
        _ = weir.Job("bare").function
    assert "@job.pipeline" in caught.value.hint


@pytest.mark.parametrize("name", ["a/b", "../x", "", ".hidden", "with space", "a" * 101, "ä"])
def test_names_that_could_not_be_folders_are_refused(name: str) -> None:
    with pytest.raises(BadNameError):
        weir.Job(name)


class Stream:
    """As much of a streaming frame as Env looks at."""

    isStreaming = True


def env() -> Env:
    return Env(job_name("job"), None, None)  # type: ignore[arg-type]


def test_what_an_env_refuses() -> None:
    sink = weir.sinks.files("out")
    stream = Stream()
    for build in (
        lambda e: [e.source("a", stream), e.source("a", stream)],
        lambda e: e.source("a", object()),
        lambda e: [e.sink("q", stream, sink), e.sink("q", stream, sink)],
        lambda e: e.sink("q", object(), sink),
        lambda e: e.sink("q", stream),
        lambda e: e.sink("q", stream, sink, trigger={"continuous": "1 second"}),
        lambda e: e.sink("q", stream, sink, trigger={"realTime": "1 second"}),
    ):
        with pytest.raises(PipelineError) as caught:
            build(env())
        assert caught.value.why and caught.value.hint


def test_a_sink_that_writes_inside_the_batch_can_not_be_at_most_once() -> None:
    sink = weir.sinks.postgres("postgresql://localhost/demo", table="t", delivery="at_least_once")
    with pytest.raises(PipelineError, match="a task that Spark runs again writes its rows again"):
        env().sink("q", Stream(), sink, at_most_once=True)  # type: ignore[arg-type]

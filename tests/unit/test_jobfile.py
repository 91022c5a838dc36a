"""Job files, good and bad, and what a pipeline may not do. No JVM."""

from __future__ import annotations

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
    main, path = sys.modules["__main__"], list(sys.path)
    yield
    sys.modules["__main__"] = main
    sys.path[:] = path


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
    assert "ZeroDivisionError" in refused(write(tmp_path, "1 / 0"))
    assert "SyntaxError" in refused(write(tmp_path, "def"))
    assert "SystemExit" in refused(write(tmp_path, "raise SystemExit(3)"))


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

"""Run a job file as `__main__` and find its one job.

As `__main__`, because functions of a module that workers can't import would be pickled by a name
that they can't find; those of `__main__` travel with their code. Modules beside the file, or those of the
package that it is in, can be imported by the driver and by workers on this machine.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from weir.errors import JobFileError, WeirError
from weir.job import job as jobs
from weir.spark.frame_plan import none_started

if TYPE_CHECKING:
    from weir.job.job import Job


def load(path: Path) -> Job:
    """Run the file; the job on which it called `run()`, or else the only one that it made.

    A file that starts a query by itself is refused before the query is started.
    """
    if path.is_dir():
        raise JobFileError(file=path, reason="it is a directory", todo="name the Python file in it")
    if not path.is_file():
        raise JobFileError(file=path, reason="there is no such file", todo="check the path")
    root, package = _package_of(path.absolute())
    main = types.ModuleType("__main__")
    main.__file__ = str(path)
    sys.modules["__main__"] = main
    places = list(dict.fromkeys([str(root), str(path.absolute().parent)]))
    sys.path[:0] = places
    # Workers are started by the JVM, which passes this on to them.
    os.environ["PYTHONPATH"] = os.pathsep.join([*places, *filter(None, [os.environ.get("PYTHONPATH")])])
    jobs.loading_in_driver = True
    with _copied_errors() as printed, none_started(lambda method: _starts_queries(path, method)):
        try:
            if package:
                importlib.import_module(package)
                main.__package__ = package
            jobs.defined.clear()  # a package may import the file too, by its name
            exec(compile(path.read_bytes(), str(path), "exec"), main.__dict__)
        except jobs.JobChosen as chosen:
            return chosen.job
        except WeirError:
            raise
        except SystemExit as error:
            raise _ended(path, error, printed) from error
        except Exception as error:
            raise JobFileError(
                file=path,
                reason=f"{_line_of(error, path)}{type(error).__name__}: {error}",
                todo=f"fix it; '{Path(sys.executable).name} {path.name}' shows the full stack",
            ) from error
        finally:
            jobs.loading_in_driver = False
    return _only(path)


def _package_of(path: Path) -> tuple[Path, str]:
    """The folder that modules are imported from, and the package that the file is in, or ""."""
    folder, names = path.parent, list[str]()
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(names)


def _line_of(error: Exception, path: Path) -> str:
    """Where in the file itself it went wrong, as "job.py:12: "; "" when a syntax error names it itself."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)
    ]
    return f"{path.name}:{lines[-1]}: " if lines else ""


def _ended(path: Path, error: SystemExit, printed: list[str]) -> JobFileError:
    """A file that ended by itself, as argparse does; the last line that it printed is the reason."""
    lines = [line.strip() for line in "".join(printed).splitlines() if line.strip()]
    last = str(error.code) if isinstance(error.code, str) else (lines[-1] if lines else "")
    code = 1 if isinstance(error.code, str) else int(error.code or 0)
    return JobFileError(
        file=path,
        reason=f"it ended by itself with exit code {code}, before it made a job"
        + (f": {last}" if last and code else ""),
        todo=f"arguments of the job come after the file: weir run {path.name} -- ARGUMENTS",
    )


def _starts_queries(path: Path, method: str) -> JobFileError:
    return JobFileError(
        file=path,
        reason=f"it calls .{method}() on a writer: this starts a query that weir could not recover",
        todo="make a weir.Job with a pipeline, and give it the writer, unstarted: env.sink(name, writer)",
    )


@contextmanager
def _copied_errors() -> Iterator[list[str]]:
    """What is printed to standard error inside, which still goes there."""
    copied: list[str] = []
    before = sys.stderr
    sys.stderr = _CopiedStderr(before, copied)
    try:
        yield copied
    finally:
        sys.stderr = before


class _CopiedStderr:
    def __init__(self, inner: TextIO, copied: list[str]) -> None:
        self._inner, self._copied = inner, copied

    def write(self, text: str) -> int:
        self._copied.append(text)
        return self._inner.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def _only(path: Path) -> Job:
    if not jobs.defined:
        raise JobFileError(file=path, reason="it makes no job", todo='make one: job = weir.Job("name")')
    if len(jobs.defined) > 1:
        names = ", ".join(repr(job.name) for job in jobs.defined)
        raise JobFileError(
            file=path,
            reason=f"it makes {len(jobs.defined)} jobs: {names}",
            todo="call run() on the one to run",
        )
    return jobs.defined[0]

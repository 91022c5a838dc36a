"""Run a job file as `__main__` and find its one job.

As `__main__`, because functions of a module that workers can't import would be pickled by a name
that they can't find; those of `__main__` travel whole.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

from weir.errors import JobFileError, WeirError
from weir.job import job as jobs

if TYPE_CHECKING:
    from weir.job.job import Job


def load(path: Path) -> Job:
    """Run the file; the job on which it called `run()`, or else the only one that it made."""
    if not path.is_file():
        raise JobFileError(file=path, reason="there is no such file", todo="check the path")
    main = types.ModuleType("__main__")
    main.__file__ = str(path)
    sys.modules["__main__"] = main
    sys.path.insert(0, str(path.parent))
    jobs.defined.clear()
    jobs.loading_in_driver = True
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), main.__dict__)
    except jobs.JobChosen as chosen:
        return chosen.job
    except WeirError:
        raise
    except (Exception, SystemExit) as error:
        raise JobFileError(
            file=path,
            reason=f"it raised {type(error).__name__}: {error}",
            todo=f"mend it; 'python {path.name}' shows the whole stack",
        ) from error
    finally:
        jobs.loading_in_driver = False
    return _only(path)


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

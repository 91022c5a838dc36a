"""Who may look into a job's directory: by default only the user who runs the job.

State, journal and logs hold the job's data, and whoever may write there commands the job
(`supervisor/inbox.py`). Only the directory itself is closed: so the files in it need no mode of their own,
and output that a sink writes elsewhere keeps the one that the user's umask gives it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from weir.ids import JobName
from weir.storage import paths
from weir.storage.open import beside, is_local, local_state

_OWNER_ONLY = 0o700


def close_to_others(dir: str, job: JobName) -> str:
    """Make the job's directory, for its owner alone; returns a note for the user, mostly "".

    One that was open is closed, unless it is another user's. Where the storage refuses, it stays as it
    is, and the note says so: the next write there fails loudly if the directory can't be used.
    """
    folder = beside(dir, paths.job(job))
    try:
        if not is_local(dir):
            folder = _made(local_state()) / folder.relative_to(local_state())
        _made(folder)
        about = folder.stat()
        mode = stat.S_IMODE(about.st_mode)
        if not mode & 0o077 or about.st_uid != os.getuid():
            return ""
        folder.chmod(_OWNER_ONLY)
    except OSError as error:
        return f"other users may be able to read {folder}: {error.strerror or error}"
    return (
        f"{folder} was open to other users (mode {mode:04o}) and is closed now; "
        "execution.checkpointing.dir-access=umask leaves it as it is"
    )


def _made(folder: Path) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=_OWNER_ONLY, exist_ok=True)
    return folder

"""What the command line gives a supervisor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weir.restore.request import RestoreRequest


@dataclass(frozen=True)
class Inputs:
    """What the command line gives: the file, its arguments, and the layers of settings."""

    file: Path
    arguments: list[str]
    settings_file: Path | None
    environ: Mapping[str, str]
    overrides: Mapping[str, str]
    wanted: RestoreRequest | None = None
    """The checkpoint or savepoint to go on from, at the first start; None: from the live files."""
    name: str = ""
    """The job's name, instead of the one in its file; "": that one."""
    above: int = 0
    """Attempts begin above this one, which the job has had elsewhere."""
    take_over: int | None = None
    """The attempt that the user named to take over from, out of which `above` was made; None: none."""

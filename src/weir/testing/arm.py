"""Arming fault points from outside: the environment that a driver is started with.

A fault is `point#occurrence:action`, for example `batch.staged#2:kill`; the points are
`weir.faults.POINTS`. Each armed fault fires once over all attempts, and leaves a mark in a folder:
so a test can tell that what it meant to show did happen.
"""

from __future__ import annotations

from pathlib import Path

from weir.faults import Fault


def armed(*faults: str, folder: str | Path) -> dict[str, str]:
    """The environment that arms these faults; raises ValueError for a point that does not exist."""
    for fault in faults:
        Fault.parse(fault)
    if not faults:
        return {}
    Path(folder).mkdir(parents=True, exist_ok=True)
    return {"WEIR_FAULTS": ",".join(faults), "WEIR_FAULTS_DIR": str(Path(folder).absolute())}


def fired(folder: str | Path) -> set[str]:
    """The faults that have fired, as `point#occurrence`."""
    return {mark.name for mark in Path(folder).glob("*#*")}

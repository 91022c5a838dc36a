"""`weir verify`: is everything there, and as it was written?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from weir.checkpoint import damage, restore
from weir.checkpoint import manifest as mf
from weir.cli import say
from weir.cli.options import AsJson, Define, Directory, SettingsFile, directory
from weir.cli.saving import savepoint_dir
from weir.clock import Clock
from weir.ids import CheckpointId, JobName, job_name
from weir.savepoint.manifest import MANIFEST
from weir.savepoint.place import Place
from weir.savepoint.verify import verify as verify_savepoint
from weir.storage import Store, generations, open_store
from weir.supervisor.savepoints import known
from weir.supervisor.view import Standing, look

What = Annotated[
    str, typer.Argument(metavar="PATH_OR_JOB", help="A savepoint's directory or URL, or the name of a job.")
]


@dataclass(frozen=True)
class Checked:
    """One thing that was looked at."""

    what: str
    name: str
    files: int | None
    bytes: int | None
    damage: tuple[str, ...]

    @property
    def text(self) -> str:
        size = "" if self.bytes is None else f", {self.files} files, {say.size(self.bytes)}"
        wrong = "".join(f"\n    {one}" for one in self.damage)
        return f"{'damaged' if self.damage else 'whole  '}  {self.what} {self.name}{size}{wrong}"


def verify(
    what: What,
    dir: Directory = None,
    config: SettingsFile = None,
    define: Define = None,
    json: AsJson = False,
) -> None:
    """Check every file of a savepoint or of a job.

    Each file is read and compared with the manifest. Of a job: its live files, when nobody runs it,
    its checkpoints and its savepoints. Damage is exit code 1. Nothing is changed, but 'weir
    savepoints' knows from then on when a savepoint was verified last.

    \b
    Example: weir verify /backup/savepoints/wordcount-41
    """
    if _is_place(what):
        checked = [_savepoint(what)]
    else:
        place = directory(dir, config, define)
        standing = look(place, what, Clock())
        checked = list(_job(place, standing, savepoint_dir(config, define)))
    ok = not any(one.damage for one in checked)
    if json:
        say.say_json({"ok": ok, "checked": [asdict(one) for one in checked]})
    else:
        for one in checked:
            say.say(one.text)
    if not ok:
        raise typer.Exit(1)


def _is_place(text: str) -> bool:
    return "/" in text or text in (".", "..") or open_store(text).exists(MANIFEST)


def _savepoint(path: str) -> Checked:
    place = Place(path)
    with say.bar(f"checking {place.url}") as bar:
        found = verify_savepoint(place, Clock(), bar)
    return Checked("savepoint", place.url, found.files, found.bytes, found.damage)


def _job(dir: str, job: Standing, saved_in: str | None) -> Iterator[Checked]:
    name, store = job_name(job.name), open_store(dir)
    if job.over:  # those of a running job change while one looks
        torn = damage.look(store, name, generations.live(store, name))
        yield Checked("live files of", job.name, None, None, tuple(one.text for one in torn))
    for id in mf.completed(store, name):
        with say.waiting(f"checking chk-{id} of {job.name}"):
            found = _checkpoint(store, name, id)
        if not found.damage or id in mf.completed(store, name):  # else it was dropped meanwhile
            yield found
    for entry in known(dir, job.name, saved_in):
        if entry.savepoint is None:
            yield Checked("savepoint", entry.place, None, None, (entry.trouble,))
        else:
            yield _savepoint(entry.place)


def _checkpoint(store: Store, job: JobName, id: CheckpointId) -> Checked:
    found = tuple(restore.verify_id(store, job, id))
    with suppress(ValueError):  # its manifest can't be read
        if (manifest := mf.read(store, job, id)) is not None:
            count = sum(1 for _ in manifest.files())
            return Checked("checkpoint", f"chk-{id}", count, manifest.full_bytes, found)
    return Checked("checkpoint", f"chk-{id}", None, None, found)

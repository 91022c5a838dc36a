"""`weir verify`: is everything there, and as it was written?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import typer

from weir.checkpoint import damage, restore
from weir.checkpoint import manifest as mf
from weir.cli import say
from weir.cli.options import AsJson, Define, Directory, SettingsFile, directory
from weir.cli.saving import absolute, savepoint_dir
from weir.cli.with_spark import Conf, Master, ask, session
from weir.clock import Clock
from weir.errors import ExternalError, NotASavepointError
from weir.ids import CheckpointId, JobName, job_name
from weir.savepoint.catalogue import out_of_reach
from weir.savepoint.manifest import MANIFEST
from weir.savepoint.place import Place
from weir.savepoint.verify import Verified, leave
from weir.savepoint.verify import verify as verify_savepoint
from weir.storage import Store, generations, open_store
from weir.storage.open import is_local
from weir.supervisor.savepoints import known
from weir.supervisor.view import Standing, look

What = Annotated[
    str, typer.Argument(metavar="PATH_OR_JOB", help="A savepoint's directory or URL, or the name of a job.")
]

Load = Annotated[bool, typer.Option("--load", help="Let Spark load all state, too.")]

_SAVEPOINT = "savepoint"


@dataclass(frozen=True)
class Checked:
    """One thing that was looked at."""

    what: str
    name: str
    files: int | None
    bytes: int | None
    damage: tuple[str, ...]
    place: str = ""
    """Where its state can be loaded from; "" when it can't be."""
    rows: int | None = None
    """Rows of state that were loaded; None when nobody asked."""
    left_out: tuple[str, ...] = ()
    """State that can't be looked into."""

    @property
    def text(self) -> str:
        size = "" if self.bytes is None else f", {self.files} files, {say.size(self.bytes)}"
        loaded = "" if self.rows is None else f", {self.rows:,} rows of state loaded"
        more = [*self.damage, *(f"not looked into: {one}" for one in self.left_out)]
        lines = "".join(f"\n    {one}" for one in more)
        return f"{'damaged' if self.damage else 'whole  '}  {self.what} {self.name}{size}{loaded}{lines}"


def verify(
    what: What,
    load: Load = False,
    conf: Conf = None,
    master: Master = None,
    dir: Directory = None,
    config: SettingsFile = None,
    define: Define = None,
    json: AsJson = False,
) -> None:
    """Check every file of a savepoint or of a job.

    Each file is read and compared with the manifest. Of a job: its live files, when nobody runs it,
    its checkpoints and its savepoints. With --load Spark loads all state of what is whole, too, and
    reads every row. Damage is exit code 1. Nothing is changed, but 'weir savepoints' knows from then
    on when a savepoint was verified last.

    \b
    Example: weir verify /backup/savepoints/wordcount-41
    """
    if _is_place(what):
        checked = [_savepoint(what)]
    else:
        place = directory(dir, config, define)
        standing = look(place, what, Clock())
        checked = list(_job(place, standing, savepoint_dir(config, define)))
    if load:
        checked = _loaded(checked, session(conf, master, config))
    ok = not any(one.damage for one in checked)
    if json:
        say.say_json({"ok": ok, "checked": [_as_json(one) for one in checked]})
    else:
        for one in checked:
            say.say(one.text)
    if not ok:
        raise typer.Exit(1)


def _as_json(one: Checked) -> dict[str, Any]:
    return {name: value for name, value in asdict(one).items() if name != "place"}


def _loaded(checked: list[Checked], spark: dict[str, Any]) -> list[Checked]:
    """The same, after Spark has loaded the state of all that is whole so far."""
    wanted = [one for one in checked if one.place and not one.damage]
    if not wanted:
        return checked
    paths = [one.place for one in wanted]
    asked = {"do": "load", "paths": paths, "rows": {path: _known_rows(path) for path in paths}}
    answers = ask("Spark loads the state", asked, spark)["loaded"]
    found = {one.place: answer for one, answer in zip(wanted, answers, strict=True)}
    for one in wanted:
        _leave(one, found[one.place])
    return [_with(one, found[one.place]) if one in wanted else one for one in checked]


def _with(one: Checked, answer: dict[str, Any]) -> Checked:
    damage, left_out = tuple(answer["damage"]), tuple(answer["left_out"])
    return replace(one, rows=answer["rows"], damage=damage, left_out=left_out)


def _known_rows(path: str) -> dict[str, dict[int, int]]:
    """What a savepoint says of its operators."""
    with suppress(NotASavepointError):
        queries = Place(path).read().queries
        return {
            name: {one.id: one.rows for one in query.operators if one.rows is not None}
            for name, query in queries.items()
        }
    return {}


def _leave(one: Checked, answer: dict[str, Any]) -> None:
    """Let the catalogue know."""
    if one.what == _SAVEPOINT:
        facts = (Clock().now().isoformat(), one.files or 0, one.bytes or 0, tuple(answer["damage"]))
        leave(Place(one.place), Verified(*facts, rows=answer["rows"]))


def _is_place(text: str) -> bool:
    return "/" in text or text in (".", "..") or open_store(text).exists(MANIFEST)


def _savepoint(path: str) -> Checked:
    place = Place(path)
    with say.bar(f"checking {place.url}") as bar:
        found = verify_savepoint(place, Clock(), bar)
    return Checked(_SAVEPOINT, place.url, found.files, found.bytes, found.damage, place.url)


def _job(dir: str, job: Standing, saved_in: str | None) -> Iterator[Checked]:
    name, store = job_name(job.name), open_store(dir)
    if job.over:  # those of a running job change while one looks
        torn = damage.look(store, name, generations.live(store, name), thorough=True)
        told = tuple(one.text for one in torn)
        yield Checked("live files of", job.name, None, None, told, _state_of(dir, job.name))
    for id in mf.completed(store, name):
        with say.waiting(f"checking chk-{id} of {job.name}"):
            found = _checkpoint(store, name, id, _state_of(dir, f"{job.name}/chk-{id}"))
        if not found.damage or id in mf.completed(store, name):  # else it was dropped meanwhile
            yield found
    for entry in known(dir, job.name, saved_in):
        if entry.savepoint is None:
            yield Checked(_SAVEPOINT, entry.place, None, None, (entry.trouble,))
        else:
            yield _reached(entry.place)


def _reached(path: str) -> Checked:
    """A savepoint of a job; one whose storage fails does not hide the others."""
    try:
        return _savepoint(path)
    except ExternalError as error:
        return Checked(_SAVEPOINT, path, None, None, (out_of_reach(error),))


def _state_of(dir: str, name: str) -> str:
    """Where Spark finds the state of a job's live files, or of a checkpoint."""
    return f"{absolute(dir)}/{name}" if is_local(dir) else ""


def _checkpoint(store: Store, job: JobName, id: CheckpointId, place: str) -> Checked:
    found = tuple(restore.verify_id(store, job, id))
    with suppress(ValueError):  # its manifest can't be read
        if (manifest := mf.read(store, job, id)) is not None:
            count = sum(1 for _ in manifest.files())
            return Checked("checkpoint", f"chk-{id}", count, manifest.full_bytes, found, place)
    return Checked("checkpoint", f"chk-{id}", None, None, found)

"""Bring the files of a point into the generation that was intended for it.

The old generation is never touched. `copied.json` is written last: until then only what is intact was
brought, and the next start begins again where this one was killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from weir.checkpoint.kept_files import KeptFiles, bring_all
from weir.checkpoint.manifest import Manifest
from weir.clock import Clock
from weir.ids import Generation, JobName, QueryName
from weir.restore.intent import check_lines, is_journal
from weir.restore.point import named
from weir.savepoint.manifest import SavedFile, facts
from weir.savepoint.place import SavepointPlace
from weir.storage import Store, files, paths
from weir.storage import generation as generations
from weir.storage.generation import Origin, create_origin, read_origin
from weir.storage.members import JOURNALS, below

if TYPE_CHECKING:
    from weir.job.env import QuerySpec
    from weir.job.graph import Graph
    from weir.restore.plan import Replan
    from weir.storage.paths import Live

Target = Callable[[str], "Path | None"]
"""Where a file of the point goes; None for one that nothing in the job needs."""


@dataclass(frozen=True)
class Opened:
    """The generation that a start works on; with what it must be rewound to, if anything."""

    live: Live
    manifest: Manifest | None = None
    replan: Replan | None = None
    origin: Origin | None = None

    @property
    def learnt(self) -> Graph | None:
        """The graph of the job, when the plan has evaluated the pipeline for this very generation.

        None at a start without a restore, and where the files had to be laid out in another generation than
        the plan was made for: frames name the folders of theirs, so the pipeline is evaluated again.
        """
        made = self.replan
        return made.learnt if made is not None and made.live == self.live else None

    def spec(self, query: QueryName) -> QuerySpec | None:
        """The query as that evaluation has made it; None where there was none."""
        return self.replan.specs[query] if self.replan is not None and self.learnt is not None else None


def lay_out(
    store: Store, job: JobName, generation: Generation, layout: str, clock: Clock
) -> tuple[Generation, bool]:
    """The generation whose files are, or will be, laid out so; and whether it had to be another one.

    What a start with other code left in the intended one would be taken for what this plan needs, so
    the same restore is intended once more, and begins with nothing. Safe to repeat.
    """
    key, data = paths.laid_out(job, generation), json.dumps({"layout": layout}).encode()
    if not store.exists(paths.copied(job, generation)):
        store.create(key, data)
    if store.get(key) == data:
        return generation, False
    origin = read_origin(store, job, generation)
    assert origin is not None, "only a restore is laid out"
    again = replace(origin, created_at=clock.now().isoformat())
    number = max(generations.numbers(store, job)) + 1
    while not create_origin(store, job, Generation(number), again):
        number += 1
    store.create(paths.laid_out(job, Generation(number)), data)
    return Generation(number), True


def fetch(
    store: Store,
    job: JobName,
    generation: Generation,
    target: Target | None = None,
    convert: Callable[[], None] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Manifest:
    """Bring every file of the intended point to its place in the generation; what the point consists of.

    With `target` a file may go elsewhere, or nowhere; `convert` is called when all of them are there,
    and makes what a changed job needs of them. Safe to repeat, and to be killed in. `check` is called
    before each step, and raises when the generation is another's by now. Raises `DamagedCheckpointError`,
    and `NoSuchCheckpointError` when it was deleted since.
    """
    origin = read_origin(store, job, generation)
    assert origin is not None and origin.checkpoint is not None, "only a restore is fetched"
    root = files.folder_of(store) / paths.generation(job, generation)
    copied = store.exists(paths.copied(job, generation))
    to = target or (lambda path: root / path)
    check()
    if origin.saved:
        place = SavepointPlace(origin.restored_from)
        manifest = facts(place.read()) if copied else fetch_savepoint(place, root, to)
    else:
        manifest = named(store, job, origin.restored_from)
        if not copied:
            _fetch_checkpoint(store, manifest, root, to)
    check()
    if not copied and convert is not None:
        convert()
        check()
    if not copied:
        body = {"from": origin.restored_from, "bytes": manifest.full_bytes}
        store.create(paths.copied(job, generation), json.dumps(body).encode())
    return manifest


def _fetch_checkpoint(store: Store, manifest: Manifest, root: Path, to: Target) -> None:
    wanted = [(file, target) for file in manifest.files() if (target := to(file.path)) is not None]
    targets = [(file, below(root, target)) for file, target in wanted]
    try:
        bring_all(KeptFiles(store, manifest), targets, manifest, root)
        for folder in {target.parent for _, target in targets}:
            for left in filter(lambda path: files.is_temporary(path.name), list(folder.iterdir())):
                left.unlink()
        files.sync_folders(one for _, target in targets for one in files.up_to(target, root.parent))
    except OSError as error:
        raise files.failed("restore", root, error, store.url) from error


def fetch_savepoint(place: SavepointPlace, root: Path, to: Target) -> Manifest:
    """Copy every file to where `to` says, below the generation `root`; None leaves it out.

    Safe to repeat, and to be killed in. Journals of sources outlive generations: of those only what is
    not there any more comes back. Raises `OtherInputError` as `check_lines` does, and `OutsideError` for a
    target that is not below the generation, before anything is brought.
    """
    savepoint = place.read()
    manifest = facts(savepoint)
    job = root.parent.parent
    check_lines(place, job)
    targets: list[tuple[SavedFile, Path]] = []
    for file in savepoint.files:
        if is_journal(file):
            targets.append((file, below(job / JOURNALS, job / file.path)))
        elif (target := to(file.path)) is not None:
            targets.append((file, below(root, target)))
    try:
        absent = [(file, target) for file, target in targets if not (is_journal(file) and target.exists())]
        bring_all(place, absent, manifest, root)
        files.sync_folders(one for _, target in targets for one in files.up_to(target, job))
    except OSError as error:
        raise files.failed("restore", root, error, place.url) from error
    return manifest

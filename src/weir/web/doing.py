"""What can be asked for: the same requests, by the same way through the storage, as on the command line.

Each function waits for the answer and returns what the verb's `--json` would; it runs in an operation.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from weir.checkpoint.restore import From, intend
from weir.errors import NoSupervisorError, NotDoneError
from weir.ids import job_name
from weir.savepoint import copying
from weir.savepoint.place import Place
from weir.savepoint.verify import verify as verify_savepoint
from weir.storage import open_store
from weir.storage.attempts import whoami
from weir.storage.generations import read_origin
from weir.supervisor import asking
from weir.supervisor.asking import Wish
from weir.supervisor.idle import Idle
from weir.supervisor.restoring import WHY
from weir.supervisor.savepoints import progress_of
from weir.web import sampling
from weir.web.operations import Operation
from weir.web.site import Site


def _ask(site: Site, operation: Operation, wish: Wish, arguments: Mapping[str, Any]) -> dict[str, Any]:
    job = operation.job
    standing, shown = site.look(job), f"'weir status {job}' shows how it stands"
    asking.refuse_without_supervisor(standing, wish.verb, shown)

    def meanwhile(request: str) -> None:
        operation.progress = progress_of(site.dir, job, request) or operation.progress

    answer = asking.ask(site.dir, standing, wish, arguments, None, shown, meanwhile)
    if not answer["done"]:
        raise asking.not_done(standing, wish, answer, shown)
    return {"job": job} | {key: value for key, value in answer.items() if key not in ("done", "detached")}


def checkpoint(site: Site, operation: Operation) -> Mapping[str, Any]:
    return _ask(site, operation, asking.CHECKPOINT, operation.arguments)


def savepoint(site: Site, operation: Operation) -> Mapping[str, Any]:
    return _ask(site, operation, asking.SAVEPOINT, {**operation.arguments, "by": whoami()})


def configure(site: Site, operation: Operation) -> Mapping[str, Any]:
    return _ask(site, operation, asking.CONFIGURE, operation.arguments)


def plan(site: Site, operation: Operation) -> Mapping[str, Any]:
    """Made by a process with Spark that the supervisor starts; where nobody runs the job, by `weir plan`."""
    job = site.look(operation.job)
    if job.over:
        file, point = job.file or "FILE", operation.arguments["point"]
        raise NoSupervisorError(
            job=job.name, verb="plan", reason="nobody runs it", todo=f"'weir plan {file} -s {point}' makes it"
        )
    return _ask(site, operation, asking.PLAN, operation.arguments)


WEIR = (sys.executable, "-m", "weir")


def sample(site: Site, operation: Operation) -> Mapping[str, Any]:
    """Some rows of an operator's state, as `weir state show` reads them: with a Spark of its own."""
    given = operation.arguments
    asked = [f"--query={given['query']}", f"--operator={given['operator']}", f"--limit={given['limit']}"]
    command = [*WEIR, "state", "show", operation.job, *asked, "--dir", site.dir, "--json"]
    said = sampling.run(command, f"'weir state show {operation.job}' takes the time that it needs")
    try:
        body: dict[str, Any] = json.loads(said.out)
    except ValueError:
        raise NotDoneError(what="the state could not be read", why=said.err[-500:], hint="") from None
    if "error" in body:
        raise NotDoneError(**body["error"])
    return body


def cancel(site: Site, operation: Operation) -> Mapping[str, Any]:
    return _ask(site, operation, asking.CANCEL, {})


def stop(site: Site, operation: Operation) -> Mapping[str, Any]:
    return _ask(site, operation, asking.STOP, {**operation.arguments, "by": whoami()})


def restore(site: Site, operation: Operation) -> Mapping[str, Any]:
    """Of a running job now; of one that nobody runs at its next start, which `live` tells."""
    job, wanted = operation.job, From.from_wire(operation.arguments)
    said = {"job": job, "point": wanted.point}
    standing = site.look(job)
    if not standing.over:
        return {**_ask(site, operation, asking.RESTORE, operation.arguments), **said, "live": True}
    idle = Idle.of(site.dir, job, standing)
    store, name = open_store(site.dir), job_name(job)
    generation = intend(
        store,
        name,
        wanted.point,
        accept_duplicates=wanted.accept_duplicates,
        clock=site.clock,
        why=WHY,
        changes=wanted.changes,
        savepoint_dir=site.savepoint_dir(job) or "",
        still=idle.check,
    )
    origin = read_origin(store, name, generation)
    checkpoint = origin.checkpoint if origin else None
    return {**said, "checkpoint": checkpoint, "generation": generation, "live": False}


def verify(site: Site, operation: Operation) -> Mapping[str, Any]:
    """Read every file of a savepoint; damage is a result, not a failure of the operation."""
    entry = site.savepoint(operation.job, str(operation.arguments["path"]))

    def progress(done: int, total: int) -> None:
        operation.progress = {"phase": "verify", "done_bytes": done, "full_bytes": total}

    found = verify_savepoint(Place(entry.place), site.clock, progress)
    return {"path": entry.place, "whole": found.whole, **vars(found)}


def dispose(site: Site, operation: Operation) -> Mapping[str, Any]:
    entry = site.savepoint(operation.job, str(operation.arguments["path"]))
    gone = copying.dispose(Place(entry.place))
    return {"job": operation.job, "path": gone.place, "bytes": gone.savepoint.bytes}

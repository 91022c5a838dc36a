"""`python -m weir.driver.planning RESULT FILE ARGS...`: the restore plan of a job file, alone.

The request is a JSON object on standard input; so is the result, in a file. Holds no attempt, and
writes nothing else, but for one that asks where `to`: then the savepoint is made there that the job
file needs, when the plan fits.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from weir.channel.position import Mode
from weir.checkpoint import restore
from weir.checkpoint.restore import Changes
from weir.config import resolve
from weir.driver import jobfile, replan
from weir.driver.about import source_of
from weir.driver.converting import convert
from weir.ids import Generation, job_name
from weir.job.live import Live
from weir.savepoint import plan_text, points
from weir.savepoint.plan import Refused
from weir.spark import session
from weir.spark.failure import from_exception, shows_output
from weir.storage import generations, open_store


def main() -> None:
    """Answer one request."""
    request, result, file = json.load(sys.stdin), Path(sys.argv[1]), Path(sys.argv[2])
    sys.argv = sys.argv[2:]
    try:
        answer = _answer(request, file)
    except Exception as error:
        found = from_exception(error, file.stem)
        told = {"what": found.what, "why": found.why, "hint": found.hint, "exit_code": found.exit_code}
        answer = {"error": {**told, "log": shows_output(error)}}
    result.write_text(json.dumps(answer))


def _answer(request: dict[str, Any], file: Path) -> dict[str, Any]:
    since = time.monotonic()
    job = jobfile.load(file)
    called, name = job.name, job_name(request["name"] or job.name)
    job.name = name
    settings_file = Path(request["config"]) if request["config"] else None
    config = resolve(
        file=settings_file, job_options=job.options, environ=os.environ, overrides=request["settings"]
    )
    store = open_store(config.settings.execution_checkpointing_dir)
    changes = Changes(
        maps=tuple(request["maps"]),
        allow_dropped=request["allow_dropped"],
        offsets=request["offsets"],
        parallelism=session.asked_parallelism(config),
        backend=config.settings.state_backend_type.value,
        forked_from=called if called != name else "",
    )
    saved_to = config.settings.execution_checkpointing_savepoint_dir or ""
    point = points.find(store, name, request["point"], changes.forked_from, saved_to)
    restore.check_timeline(store, name, point.name, point.manifest)
    if not request.get("to"):
        restore.check_depth(store, name, point.name, point.manifest)
        restore.check_input(store, name, point.name, point.manifest, changes)
    spark = session.build(config, job.name)
    spark.sparkContext.setLogLevel("ERROR")
    session.set_state(spark, config, changes.parallelism or point.manifest.parallelism)
    number = max([0, *generations.numbers(store, name)]) + 1
    live = Live(store, name, Generation(number))
    whole = replan.make(job, spark, live, point, changes, Mode.ALIGNED)
    made, to = whole.plan, request.get("to")
    if not to and not request.get("accept_duplicates"):
        why = "it has delivered more since, and can't take it back: that would come twice"
        stuck = restore.ahead(store, name, point.manifest)
        made = made.refusing(dict.fromkeys(stuck, Refused(why, "to accept that: --accept-duplicates")))
    return {
        "job": name,
        "point": point.name,
        "checkpoint": point.manifest.id,
        "plan": made.model_dump(mode="json"),
        "text": plan_text.text(made),
        "code": made.exit_code,
        "path": convert(spark, whole, to, source_of(job), since) if to and not made.exit_code else "",
    }


if __name__ == "__main__":
    main()

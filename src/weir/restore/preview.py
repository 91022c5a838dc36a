"""The first steps of a restore alone: what would become of everything, with nothing of the job touched.

`weir plan` and the plan of REST stop after the plan. `weir savepoint convert` carries it out, on the files of
its savepoint, into a new one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weir.channel.position import Mode
from weir.checkpoint.records import check_timeline
from weir.protocol.restore_plan import RefusedSink, RestorePlan
from weir.restore import intent
from weir.restore import plan as replan
from weir.restore.convert_savepoint import convert
from weir.restore.point import Point, describe, resolve
from weir.savepoint.about import source_of
from weir.spark import session
from weir.storage.paths import Live

if TYPE_CHECKING:
    from weir.config import Config
    from weir.job.job import Job
    from weir.restore.request import RestoreRequest
    from weir.storage import Store

_COMES_TWICE = "it has delivered more since and can't be rewound: that would be delivered again"


@dataclass(frozen=True)
class Preview:
    """A plan, and where it leads."""

    point: Point
    plan: RestorePlan
    path: str = ""
    """The new savepoint; "" when none was asked for, the plan does not fit, or there is nothing to make."""


def preview(job: Job, config: Config, store: Store, request: RestoreRequest, to: str = "") -> Preview:
    """The plan of a request, as a start makes it; where that fits, and with `to`, a savepoint below `to`.

    What `intend` refuses is refused here; with `to` only the point must be one that the job can use, for
    nothing resumes from it yet. Starts Spark.
    """
    since = time.monotonic()
    saved_to = config.settings.execution_checkpointing_savepoint_dir or ""
    point = resolve(store, job.name, request.point, forked_from=request.forked_from, savepoint_dir=saved_to)
    if to:
        check_timeline(store, job.name, point.name, point.manifest)
    else:
        intent.check(store, job.name, request, point)
    spark = session.build(config, job.name)
    spark.sparkContext.setLogLevel("ERROR")
    session.set_state(spark, config, request.parallelism or point.manifest.parallelism)
    live = Live(store, job.name, intent.next_generation(store, job.name, point.manifest.generation))
    made = replan.make(job, spark, live, describe(store, point), request, Mode.ALIGNED)
    plan = made.plan
    if not to and not request.accept_duplicates:
        stuck = intent.ahead(store, job.name, point.manifest)
        refused = RefusedSink(_COMES_TWICE, "to accept that: --accept-duplicates")
        plan = plan.refusing(dict.fromkeys(stuck, refused))
    path = convert(spark, made, to, source_of(job), since) if to and not plan.exit_code else ""
    return Preview(point, plan, path)

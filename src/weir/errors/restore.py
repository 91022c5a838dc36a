"""From a request of a restore to live files: plans, points, state in another form, repair."""

from __future__ import annotations

from weir.errors.base import InternalError, UserError


class RestorePlanError(UserError):
    """A point that the job, as it is now, can't resume from; nothing was touched."""

    what_form = "job {job!r} can't resume from {point}"
    why_form = "{reason}"
    hint_form = "'weir plan FILE -s {point}' shows what becomes of each part, and what would make it fit"


class TakeOverError(UserError):
    """A take-over without a point: the live files do not know what the other directory delivered."""

    what_form = "--take-over {attempt} can't be used without -s"
    why_form = (
        "the live files of this directory do not know what the job delivered elsewhere: it would resume"
        " after the other directory's batches, and their input would be missing or doubled"
    )
    hint_form = (
        "weir run {file} -s latest --take-over {attempt} first rewinds the sinks to the newest "
        "checkpoint of this directory, and -s PATH to a savepoint. To keep what the other "
        "directory delivered, use the last savepoint that it took"
    )


class NotRewindableError(UserError):
    """A restore would have to rewind output that can't be rewound."""

    what_form = "job {job!r} can't go back to {point}: query {query!r} has delivered more since"
    why_form = "its sink can't be rewound, so what follows the checkpoint would be delivered twice"
    hint_form = "to accept the duplicates: weir restore {job} {point} --accept-duplicates"


class RewindBegunError(UserError):
    """A restore to a newer point than sinks are being rewound to; nothing was changed."""

    what_form = "job {job!r} can't be restored from {point} now: its sinks are being rewound to {begun}"
    why_form = "query {query!r} would need output that its sink may no longer have"
    hint_form = (
        "finish it with 'weir run FILE', which needs every sink to be reachable; or go to a point that is"
        " older than {begun}: 'weir checkpoints {job}' lists them"
    )


class BadMapError(UserError):
    """A `--map` that names what is not there."""

    what_form = "--map {given} can't be used"
    why_form = "{reason}"
    hint_form = "--map QUERY/OLD=NEW takes the numbers of operators, --map QUERY/@OLD=NEW those of sources; NEW may be none, or QUERY/NEW of another query; --map OLD=NEW renames a query"


class BadOffsetsError(UserError):
    """A `--set-offsets` that names what is not there, or no place to resume from."""

    what_form = "--set-offsets {given} can't be used"
    why_form = "{reason}"
    hint_form = "--set-offsets QUERY/SOURCE=WHERE: SOURCE is @NUMBER or the name in env.source, WHERE is earliest, latest, timestamp:2026-11-16T00:00:00Z, initial (as its options say) or an offset as Spark writes it"


class StateNotRewritableError(UserError):
    """State that can't be rescaled, converted or edited as it was asked for; nothing was written."""

    what_form = "the state of query {query!r} can't be rewritten as requested"
    why_form = "{reason}"
    hint_form = "{todo}"


class StateNotReadableError(UserError):
    """State that is not there, or that Spark can't read as it was asked for."""

    what_form = "the state at {path} can't be read"
    why_form = "{reason}"
    hint_form = "{todo}"


class DamagedError(InternalError):
    """Live files are lost or damaged, and no checkpoint is intact that the job could resume from."""

    what_form = "the live files of job {job!r} are damaged: {damage}"
    why_form = "somebody changed or deleted them, or the disk lost them; no checkpoint is intact either"
    hint_form = "'weir repair {job}' checks whether anything else is intact; otherwise restore the job's directory from a backup: weir stops rather than skip data"


class DamagedOriginError(InternalError):
    """The record of how a generation of live files began can't be read."""

    exit_code = 1
    what_form = "{file} of job {job!r} can't be read"
    why_form = "somebody changed it, or the disk lost it: {reason}"
    hint_form = "'weir repair {job}' shows what the job can resume from; 'weir restore {job} --withdraw' cancels a restore that has not begun yet"


class OutsideError(UserError):
    """A file that a restore was to write is outside the job's own directory; nothing was written."""

    what_form = "a restore was to write {path}, which is outside of {root}"
    why_form = "the manifest of the checkpoint or savepoint names a path that weir never writes"
    hint_form = "do not use it: somebody changed it; 'weir savepoints' and 'weir checkpoints JOB' list others"


class StateRewriteError(InternalError):
    """Spark failed while it rewrote state; nothing of it is left."""

    what_form = "the state of query {query!r} could not be rewritten"
    why_form = "{reason}"
    hint_form = "nothing is lost: the original state is unchanged"


class SurgeryError(InternalError):
    """State that could not be brought to where a changed query looks for it; nothing was changed."""

    what_form = "the state of query {query!r} after batch {batch} could not be moved to its new place"
    why_form = "{reason}"
    hint_form = "restore it into the unchanged query; 'weir verify' shows whether the savepoint is intact"


class StateDiffersError(InternalError):
    """Rewritten state is not what it should be; nothing of it is left."""

    what_form = (
        "the new state of operator {operator} of query {query!r}, store {store!r}, is not what it should be"
    )
    why_form = "{reason}"
    hint_form = "nothing is lost: the original state is unchanged; please report this"

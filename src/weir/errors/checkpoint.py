"""Checkpoints and savepoints: taken, kept, named, damaged."""

from __future__ import annotations

from weir.errors.base import ExternalError, InternalError, UserError


class CheckpointTooLargeError(UserError):
    """A checkpoint that is larger than the checkpoint storage `memory` takes."""

    what_form = "the checkpoint has at least {bytes} bytes, and storage 'memory' takes {limit} at most"
    why_form = "it keeps the content of every file in the manifest; it is meant for tests"
    hint_form = "set execution.checkpointing.storage: filesystem"


class CopiesMismatchError(UserError):
    """A copy-dir that holds the checkpoints of another life of the job."""

    what_form = "checkpoints of job {job!r} can't be copied to {place}"
    why_form = "it holds checkpoints of other live files of a job of this name, which would be lost"
    hint_form = "to resume from them: weir restore {job} {place}/checkpoints/chk-<number>.json; otherwise set another execution.checkpointing.copy-dir"


class NoSuchCheckpointError(UserError):
    """A checkpoint that is not there."""

    what_form = "job {job!r} can't go back to {point!r}"
    why_form = "{reason}"
    hint_form = "'weir checkpoints {job}' lists what is there"


class LeftBehindError(NoSuchCheckpointError):
    """A checkpoint or savepoint that the job was rewound past."""

    why_form = "the job was rewound past it, and what it had delivered by then is gone"


class NotListedError(NoSuchCheckpointError):
    """A checkpoint that somebody wants to look at, and that the job never had."""

    what_form = "job {job!r} has no checkpoint {id}"


class NotASavepointError(UserError):
    """A place that holds no savepoint that this weir can use."""

    what_form = "{place} can't be used as a savepoint"
    why_form = "{reason}"
    hint_form = "'weir savepoints' lists the known ones"


class SavepointPlaceError(UserError):
    """A place that a savepoint can't be written to."""

    what_form = "no savepoint can be written to {place}"
    why_form = "{reason}"
    hint_form = "{todo}"


class NoSavepointDirError(SavepointPlaceError):
    """A savepoint without a directory, neither in the request nor in the settings."""

    what_form = "no savepoint directory is configured"
    why_form = "the request names none, and execution.checkpointing.savepoint-dir is not set"
    hint_form = "name one: weir savepoint {job} DIR, weir stop {job} --savepoint-path DIR"


class NoCheckpointError(ExternalError):
    """A checkpoint that was asked for was refused or aborted."""

    what_form = "job {job!r} took no checkpoint"
    why_form = "{reason}"


class NoSavepointError(ExternalError):
    """A savepoint that was asked for was not taken; nothing of it is left."""

    what_form = "job {job!r} took no savepoint"
    why_form = "{reason}"
    hint_form = "{todo}"


class CheckpointsFailedError(ExternalError):
    """More checkpoints failed in a row than execution.checkpointing.tolerable-failed-checkpoints allows."""

    what_form = "{count} checkpoints failed in a row, and {limit} are tolerable"
    why_form = "the last one: {reason}"
    hint_form = "fix the cause, or raise execution.checkpointing.tolerable-failed-checkpoints"


class DamagedCheckpointError(InternalError):
    """Files of a checkpoint are gone or changed; nothing can be restored from it."""

    exit_code = 1
    what_form = "checkpoint {checkpoint} of job {job!r} is damaged: {file} {damage}"
    why_form = "somebody changed or deleted it, or the disk lost it"
    hint_form = "go back to another checkpoint: 'weir checkpoints {job}' lists what is there"


class DamagedSavepointError(InternalError):
    """Files of a savepoint are gone or changed; nothing can be restored from it."""

    exit_code = 1
    what_form = "savepoint {place} is damaged: {file} {damage}"
    why_form = "somebody changed or deleted it, or the disk lost it"
    hint_form = "use another one: 'weir savepoints' lists the known ones"


class InconsistentCheckpointError(DamagedCheckpointError):
    """A checkpoint that is not a consistent cut: a reader is past what its writer has written in it."""

    what_form = "checkpoint {checkpoint} of job {job!r} {damage}"
    why_form = "an earlier weir could complete such a checkpoint after a restore in another directory: rows would be lost or doubled"
    hint_form = "go back to another checkpoint: 'weir checkpoints {job}' lists what is there"


class InconsistentSavepointError(DamagedSavepointError):
    """A savepoint of such a checkpoint."""

    what_form = "savepoint {place} {damage}"
    why_form = "an earlier weir could complete such a checkpoint after a restore in another directory: rows would be lost or doubled"
    hint_form = "use another one: 'weir savepoints' lists the known ones"

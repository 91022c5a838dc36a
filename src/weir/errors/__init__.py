"""The whole error tree; its modules are by subject, and every name is here.

    WeirError                       what happened, why, what to do
    |-- UserError                   the job, its file or its settings must change; a retry does not help
    |   |-- BadNameError            a name that could not be a folder
    |   |-- UnknownKeyError         a setting that does not exist
    |   |-- BadValueError           a setting's value that does not fit
    |   |-- SettingsFileError       a settings file that can't be read
    |   |-- SparkSettingError       a value of one of Spark's own settings that Spark does not take
    |   |-- JobFileError            a job file without a job, with two, or that raises
    |   |-- PipelineError           a pipeline function that does more than build frames
    |   |-- PinnedStateError        a setting that Spark would silently ignore on these live files
    |   |-- ChangedQueryError       a query that is not what its live files are of
    |   |-- RestorePlanError        a point that the job, as it is now, can't resume from
    |   |-- SinkMismatchError       output of another job, or ahead of this job's live files
    |   |-- SinkTakenError          output that the same job has written from another directory
    |   |-- TakeOverError           a take-over from another directory without a point to rewind to
    |   |-- TopicError              a Kafka topic that a job can't use as it is
    |   |-- RecordRefusedError      a record that Kafka does not take
    |   |-- FilesNotReadableError   a folder that holds no output of a files sink, or not for this reader
    |   |-- ChannelSchemaError      a stream whose channel holds rows of another schema
    |   |-- CheckpointTooLargeError a checkpoint larger than the storage `memory` takes
    |   |-- CopiesMismatchError     a copy-dir that holds the checkpoints of another life of the job
    |   |-- NoSuchCheckpointError   a checkpoint that is not there
    |   |   |-- LeftBehindError     a checkpoint or savepoint that the job was rewound past
    |   |   `-- NotListedError      one that was only to be looked at
    |   |-- NotRewindableError      a restore would have to rewind output that can't be rewound
    |   |-- RewindBegunError        a restore to a newer point than sinks are being rewound to
    |   |-- OtherInputError         a restore would read other lines in place of those that a savepoint holds
    |   |-- InputGoneError          a restore would need lines that a source's journal no longer has
    |   |-- InputFilesGoneError     a restore would read files again that were deleted since
    |   |-- NotASavepointError      a place that holds no savepoint that this weir can use
    |   |-- OutsideError            a restore would write outside the job's own directory
    |   |-- SavepointPlaceError     a place that a savepoint can't be written to
    |   |   `-- NoSavepointDirError a savepoint without a directory
    |   |-- BadMapError             a --map that names what is not there
    |   |-- BadOffsetsError         a --set-offsets that names what is not there, or no place to resume from
    |   |-- StateNotRewritableError state that can't be rescaled, converted or edited as it was asked for
    |   |-- StateNotReadableError   state that is not there, or that Spark can't read
    |   |-- UserStateError          user state in a wrong place, or with a value that can't be kept
    |   |-- UserCodeError           the author's own function raised
    |   |-- RefusedRowError         a row that the database of a sink does not take
    |   |-- LoginRefusedError       a database that does not let the user of a sink in
    |   |-- RunFailedError          a query of a run in a notebook failed
    |   |-- NoSuchJobError          a name under which nothing is stored
    |   |-- NoSupervisorError       nobody runs the job who could do what was asked
    |   |-- NoOutputError           output that was never kept, or is no longer there
    |   |-- TokenFileError          a file that has no token for the pages
    |   |-- NoTokenError            a call of REST without the token, or with a wrong one
    |   |-- ForeignRequestError     a call of REST that another site may have made
    |   |-- BadRequestError         a call of REST that can't be understood
    |   `-- NoSuchOperationError    an operation that the server does not know
    |-- ExternalError               something outside failed; a retry may help
    |   |-- StorageError            the store refused: known to have failed
    |   |-- OutcomeUnknownError     the store did not answer: it may have happened
    |   |-- DatabaseError           the database of a sink can't be reached, or could not do it now
    |   |-- BrokerError             Kafka refused or did not answer: known to have failed
    |   |-- JobConnectionError      a connection that the author's own code made failed
    |   |-- JobRunningError         somebody else runs this job
    |   |-- NoAnswerError           a running job has not done what it was asked, so far
    |   |-- NotDoneError            a running job could not do what it was asked
    |   |-- PreflightError          Java, Python or a package is missing or too old
    |   |-- JvmNotStartedError      Spark's JVM ended before it was up
    |   |-- JvmDiedError            Spark's JVM ended under a running job
    |   |-- NoCheckpointError       a checkpoint that was asked for was refused or aborted
    |   |-- NoSavepointError        a savepoint that was asked for was not taken
    |   |-- CheckpointsFailedError  more checkpoints failed in a row than are tolerable
    |   |-- PortTakenError          no port is free at which REST and pages could be served
    |   `-- DriverDiedError         the driver process ended or hung
    |-- MachineError                the machine could not do it in time; counted apart from the job's failures
    |   |-- LateProcessError        a Python process that Spark had started did not connect in time
    |   |-- NoProcessError          the machine has no process to give, or no memory for one
    |   |-- NoThreadError           the machine has no thread to give
    |   `-- LateAnswerError         one part of Spark did not answer another in time
    `-- InternalError               weir's or Spark's own fault
        |-- SupervisorDiedError     a detached supervisor ended without a message
        |-- SparkToolError          a process with Spark that a command had started failed
        |-- FencedError             a newer attempt or run exists: this one may no longer write
        |-- LedgerWentBackError     a sink's ledger is older than what this run has seen of it
        |-- IllegalMoveError        an event that a state machine does not know in its state
        |-- DamagedError            live files are lost or damaged, and no checkpoint is intact
        |-- OutputAheadError        sinks hold more than a crash explains that the live files know nothing of
        |-- DamagedOriginError      the beginning of a generation can't be read
        |-- LostLedgerError         an entry of a ledger is gone or damaged
        |-- DamagedCheckpointError  files of a checkpoint are gone or changed
        |   `-- InconsistentCheckpointError  its cuts do not belong together
        |-- DamagedSavepointError   files of a savepoint are gone or changed
        |   `-- InconsistentSavepointError   its cuts do not belong together
        |-- StateRewriteError       Spark failed while it rewrote state
        |-- SurgeryError            state that could not be brought to where a changed query looks for it
        |-- StateDiffersError       rewritten state is not what it should be
        |-- LiveFilesBehindError    live files that lack batches which a sink holds
        |-- LostStagingError        Spark committed a batch whose staged output is gone or damaged
        |-- LostSegmentError        a file of a channel is gone or damaged that a reader still needs
        |-- LostInputError          a source's journal is gone, or older than what a query has read
        `-- LostRecordsError        a Kafka topic no longer has what a query resumes with

Every error has fields, from which `what`, `why` and `hint` are made; the supervisor decides from
`domain` and `retry`, never from a text. `hint` carries the exact command where there is one. The texts
are without secrets, whatever the fields hold.
"""

from __future__ import annotations

from weir.errors.base import (
    Domain,
    ExternalError,
    InternalError,
    MachineError,
    UserError,
    WeirError,
    Worded,
    error_form,
)
from weir.errors.checkpoint import (
    CheckpointsFailedError,
    CheckpointTooLargeError,
    CopiesMismatchError,
    DamagedCheckpointError,
    DamagedSavepointError,
    InconsistentCheckpointError,
    InconsistentSavepointError,
    LeftBehindError,
    NoCheckpointError,
    NoSavepointDirError,
    NoSavepointError,
    NoSuchCheckpointError,
    NotASavepointError,
    NotListedError,
    SavepointPlaceError,
)
from weir.errors.delivery import (
    BrokerError,
    ChannelSchemaError,
    DatabaseError,
    FilesNotReadableError,
    InputFilesGoneError,
    InputGoneError,
    LedgerWentBackError,
    LiveFilesBehindError,
    LoginRefusedError,
    LostInputError,
    LostLedgerError,
    LostRecordsError,
    LostSegmentError,
    LostStagingError,
    OtherInputError,
    OutputAheadError,
    RecordRefusedError,
    RefusedRowError,
    SinkMismatchError,
    SinkTakenError,
    TopicError,
)
from weir.errors.job import (
    BadNameError,
    BadValueError,
    ChangedQueryError,
    JobConnectionError,
    JobFileError,
    PinnedStateError,
    PipelineError,
    RunFailedError,
    SettingsFileError,
    SparkSettingError,
    UnknownKeyError,
    UserCodeError,
    UserStateError,
)
from weir.errors.process import (
    BadRequestError,
    DriverDiedError,
    FencedError,
    ForeignRequestError,
    IllegalMoveError,
    JobRunningError,
    JvmDiedError,
    JvmNotStartedError,
    LateAnswerError,
    LateProcessError,
    NoAnswerError,
    NoOutputError,
    NoProcessError,
    NoSuchJobError,
    NoSuchOperationError,
    NoSupervisorError,
    NotDoneError,
    NoThreadError,
    NoTokenError,
    OutcomeUnknownError,
    PortTakenError,
    PreflightError,
    SparkToolError,
    StorageError,
    SupervisorDiedError,
    TokenFileError,
)
from weir.errors.restore import (
    BadMapError,
    BadOffsetsError,
    DamagedError,
    DamagedOriginError,
    NotRewindableError,
    OutsideError,
    RestorePlanError,
    RewindBegunError,
    StateDiffersError,
    StateNotReadableError,
    StateNotRewritableError,
    StateRewriteError,
    SurgeryError,
    TakeOverError,
)

__all__ = [
    "BadMapError",
    "BadNameError",
    "BadOffsetsError",
    "BadRequestError",
    "BadValueError",
    "BrokerError",
    "ChangedQueryError",
    "ChannelSchemaError",
    "CheckpointTooLargeError",
    "CheckpointsFailedError",
    "CopiesMismatchError",
    "DamagedCheckpointError",
    "DamagedError",
    "DamagedOriginError",
    "DamagedSavepointError",
    "DatabaseError",
    "Domain",
    "DriverDiedError",
    "ExternalError",
    "FencedError",
    "FilesNotReadableError",
    "ForeignRequestError",
    "IllegalMoveError",
    "InconsistentCheckpointError",
    "InconsistentSavepointError",
    "InputFilesGoneError",
    "InputGoneError",
    "InternalError",
    "JobConnectionError",
    "JobFileError",
    "JobRunningError",
    "JvmDiedError",
    "JvmNotStartedError",
    "LateAnswerError",
    "LateProcessError",
    "LedgerWentBackError",
    "LeftBehindError",
    "LiveFilesBehindError",
    "LoginRefusedError",
    "LostInputError",
    "LostLedgerError",
    "LostRecordsError",
    "LostSegmentError",
    "LostStagingError",
    "MachineError",
    "NoAnswerError",
    "NoCheckpointError",
    "NoOutputError",
    "NoProcessError",
    "NoSavepointDirError",
    "NoSavepointError",
    "NoSuchCheckpointError",
    "NoSuchJobError",
    "NoSuchOperationError",
    "NoSupervisorError",
    "NoThreadError",
    "NoTokenError",
    "NotASavepointError",
    "NotDoneError",
    "NotListedError",
    "NotRewindableError",
    "OtherInputError",
    "OutcomeUnknownError",
    "OutputAheadError",
    "OutsideError",
    "PinnedStateError",
    "PipelineError",
    "PortTakenError",
    "PreflightError",
    "RecordRefusedError",
    "RefusedRowError",
    "RestorePlanError",
    "RewindBegunError",
    "RunFailedError",
    "SavepointPlaceError",
    "SettingsFileError",
    "SinkMismatchError",
    "SinkTakenError",
    "SparkSettingError",
    "SparkToolError",
    "StateDiffersError",
    "StateNotReadableError",
    "StateNotRewritableError",
    "StateRewriteError",
    "StorageError",
    "SupervisorDiedError",
    "SurgeryError",
    "TakeOverError",
    "TokenFileError",
    "TopicError",
    "UnknownKeyError",
    "UserCodeError",
    "UserError",
    "UserStateError",
    "WeirError",
    "Worded",
    "error_form",
]

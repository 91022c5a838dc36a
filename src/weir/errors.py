"""The whole error tree.

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
    |   |-- RestorePlanError        a point that the job, as it is now, can't go on from
    |   |-- SinkMismatchError       output of another job, or ahead of this job's live files
    |   |-- SinkTakenError          output that the same job has written from another directory
    |   |-- TopicError              a topic of Kafka's that a job can't use as it is
    |   |-- RecordRefusedError      a record that Kafka does not take
    |   |-- FilesNotReadableError   a folder that holds no output of a files sink, or not for this reader
    |   |-- ChannelSchemaError      a stream whose channel holds rows of another schema
    |   |-- CheckpointTooLargeError more than the checkpoint storage `memory` takes
    |   |-- CopiesMismatchError     a copy-dir that holds the checkpoints of another life of the job
    |   |-- NoSuchCheckpointError   a checkpoint that is not there
    |   |   |-- LeftBehindError     a checkpoint or savepoint that the job was rewound past
    |   |   `-- NotListedError      one that was only to be looked at
    |   |-- NotRewindableError      a restore would go behind output that can't be taken back
    |   |-- RewindBegunError        a restore to a newer point than sinks are being rewound to
    |   |-- OtherInputError         a restore would read other lines in place of those that a savepoint holds
    |   |-- InputGoneError          a restore would need lines that a source's journal no longer has
    |   |-- NotASavepointError      a place that holds no savepoint that this weir can use
    |   |-- OutsideError            a restore would write outside the job's own directory
    |   |-- SavepointPlaceError     a place that a savepoint can't be written to
    |   |-- BadMapError             a --map that names what is not there
    |   |-- BadOffsetsError         a --set-offsets that names what is not there, or no place to go on from
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
    |   |-- StorageError            the store said no: known to have failed
    |   |-- OutcomeUnknownError     the store did not answer: it may have happened
    |   |-- DatabaseError           the database of a sink can't be reached, or could not do it now
    |   |-- BrokerError             Kafka said no, or nothing: known to have failed
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
    `-- InternalError               weir's or Spark's own fault
        |-- SupervisorDiedError     a detached supervisor ended without a word
        |-- FencedError             a newer attempt or run exists: this one may no longer write
        |-- LedgerWentBackError     a sink's ledger is older than what this run has seen of it
        |-- IllegalMoveError        an event that a state machine does not know in its state
        |-- DamagedError            live files are lost or torn, and no checkpoint is whole
        |-- OutputAheadError        sinks hold more than a crash explains that the live files know nothing of
        |-- DamagedOriginError      the beginning of a generation can't be read
        |-- LostLedgerError         an entry of a ledger is gone or damaged
        |-- DamagedCheckpointError  files of a checkpoint are gone or changed
        |   `-- InconsistentCheckpointError  its cuts do not belong together
        |-- DamagedSavepointError   files of a savepoint are gone or changed
        |   `-- InconsistentSavepointError   its cuts do not belong together
        |-- StateRewriteError       Spark failed while it wrote state anew
        |-- SurgeryError            state that could not be brought to where a changed query looks for it
        |-- StateDiffersError       state that was written anew is not what it should be
        |-- LiveFilesBehindError    live files that lack batches which a sink holds
        |-- LostStagingError        Spark committed a batch whose staged output is gone or torn
        |-- LostSegmentError        a file of a channel is gone or torn that a reader still needs
        |-- LostInputError          a source's journal is gone, or older than what a query has read
        `-- LostRecordsError        a topic of Kafka's no longer has what a query goes on with

Every error has fields, from which `what`, `why` and `hint` are made; the supervisor decides from
`domain` and `retry`, never from a text. `hint` carries the exact command where there is one. The texts
are without secrets, whatever the fields hold.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar

from weir.words import without_secrets


class Domain(str, Enum):
    """Whose fault it is."""

    USER = "user"
    EXTERNAL = "external"
    INTERNAL = "internal"


class WeirError(Exception):
    """The base: `what` happened (lower case, no full stop), `why`, and a `hint` what to do."""

    domain: ClassVar[Domain] = Domain.INTERNAL
    retry: ClassVar[bool] = False
    redeploy: ClassVar[bool] = False
    """The whole driver must be started again; one query's restart would not do."""
    exit_code: ClassVar[int] = 1
    what_form: ClassVar[str] = "{what}"
    why_form: ClassVar[str] = ""
    hint_form: ClassVar[str] = ""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        super().__init__(self.text)

    @property
    def what(self) -> str:
        return without_secrets(self.what_form.format(**self.fields))

    @property
    def why(self) -> str:
        return without_secrets(self.why_form.format(**self.fields))

    @property
    def hint(self) -> str:
        return without_secrets(self.hint_form.format(**self.fields))

    @property
    def text(self) -> str:
        """All of it on one line, as a log wants it."""
        why = f", because {self.why}" if self.why else ""
        hint = f" ({self.hint})" if self.hint else ""
        return self.what + why + hint

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.fields))


def _rebuild(cls: type[WeirError], fields: dict[str, Any]) -> WeirError:
    return cls(**fields)


class UserError(WeirError):
    """The job, its file or its settings must change."""

    domain = Domain.USER
    exit_code = 2


class ExternalError(WeirError):
    """Something outside weir and the job failed; trying again may help."""

    domain = Domain.EXTERNAL
    retry = True
    exit_code = 3


class InternalError(WeirError):
    """weir's or Spark's own fault."""

    exit_code = 4


class BadNameError(UserError):
    """A job or query name that could not be a folder's name."""

    what_form = "{name!r} can't be the name of a {kind}"
    why_form = (
        "names become folders: ASCII letters, digits, '.', '_' and '-' only, at most 100; "
        "a name must start with a letter or a digit"
    )
    hint_form = "rename it"


class UnknownKeyError(UserError):
    """A setting that does not exist."""

    what_form = "there is no setting {key!r} (given in {origin})"
    hint_form = "{advice}'weir config' lists all settings"


class SettingsFileError(UserError):
    """A settings file that can't be read."""

    what_form = "the settings file {file} can't be read"
    why_form = "{reason}"
    hint_form = "fix the file, or name another one with --config FILE"


class BadValueError(UserError):
    """A setting's value that does not fit."""

    what_form = "{key} can't be {value!r} (given in {origin})"
    why_form = "{reason}"
    hint_form = "'weir config' shows every setting with its meaning"


class SparkSettingError(UserError):
    """A value of one of Spark's own settings that Spark does not take."""

    what_form = "Spark does not take one of its settings"
    why_form = "{reason}"
    hint_form = "give it another value, or leave it out"


class JobFileError(UserError):
    """A job file that does not give exactly one job."""

    what_form = "{file} is not a job file"
    why_form = "{reason}"
    hint_form = "{todo}"


class PipelineError(UserError):
    """A pipeline function that can't be run as it is."""

    what_form = "the pipeline of job {job!r} can't be run"
    why_form = "{reason}"
    hint_form = "{todo}"


class PinnedStateError(UserError):
    """A setting that Spark would silently ignore, because the live files pin another value."""

    what_form = "query {query!r} keeps its state with {setting}={live}, but {setting}={asked} was asked for"
    why_form = "Spark fixes this at the first batch and would go on with {live} without a word"
    hint_form = "set {setting}={live} for this job, or have its state changed: weir run FILE -s latest -D {setting}={asked}"


class ChangedQueryError(UserError):
    """A query whose live files are those of another one: Spark would fail, or mix up its state."""

    what_form = "query {query!r} has changed, and its live files are those of the query as it was"
    why_form = "{reason}"
    hint_form = (
        "to carry its state over: weir run FILE -s latest; what will become of it: weir plan FILE -s latest"
    )


class RestorePlanError(UserError):
    """A point that the job, as it is now, can't go on from; nothing was touched."""

    what_form = "job {job!r} can't go on from {point}"
    why_form = "{reason}"
    hint_form = "'weir plan FILE -s {point}' says what becomes of everything, and what would make it fit"


class SinkMismatchError(UserError):
    """A sink whose ledger does not fit this job's live files."""

    what_form = "the sink of query {query!r} can't be used: {path}"
    why_form = "{reason}"
    hint_form = "{todo}"


class SinkTakenError(UserError):
    """Output that the same job has written from other live files, which may still do so."""

    what_form = "the sink of query {query!r} was taken by attempt {attempt} of this job: {path}"
    why_form = (
        "that attempt is not one of this directory's (this start is attempt {own}): the job has run in"
        " another directory, from the same savepoint or from a copy of this one, and may still do so"
    )
    hint_form = (
        "let only one of them run. To go on here, end the other for good, then: weir run FILE -s POINT"
        " --take-over {attempt}, with a savepoint or checkpoint from before the other began"
    )


class TopicError(UserError):
    """A topic of Kafka's that a job can't use as it is."""

    what_form = "topic {topic!r} can't be used"
    why_form = "{reason}"
    hint_form = "{todo}"


class RecordRefusedError(UserError):
    """A record that Kafka does not take; nothing of its batch was delivered."""

    what_form = "Kafka refused a record of a batch for topic {topic!r}; nothing of the batch was delivered"
    why_form = "{reason}"
    hint_form = "make the record fit, or raise max.message.bytes of the topic and message.max.bytes in the sink's config=; then start again"


class FilesNotReadableError(UserError):
    """A folder that holds no output of a files sink, or none that this reader can read."""

    what_form = "the files in {path} can't be read"
    why_form = "{reason}"
    hint_form = "{todo}"


class ChannelSchemaError(UserError):
    """A stream whose channel can't take the rows of its frame."""

    what_form = "the stream {channel!r} can't be written to its channel"
    why_form = "{reason}"
    hint_form = "{todo}"


class CheckpointTooLargeError(UserError):
    """More than the checkpoint storage `memory` takes."""

    what_form = "the checkpoint has at least {bytes} bytes, and storage 'memory' takes {limit} at most"
    why_form = "it keeps the content of every file in the manifest; it is meant for tests"
    hint_form = "set execution.checkpointing.storage: filesystem"


class CopiesMismatchError(UserError):
    """A copy-dir that holds the checkpoints of another life of the job."""

    what_form = "checkpoints of job {job!r} can't be copied to {place}"
    why_form = "it holds those of other live files of a job of this name, and would lose them"
    hint_form = "to go on from them: weir restore {job} {place}/checkpoints/chk-<number>.json; else set another execution.checkpointing.copy-dir"


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


class NotRewindableError(UserError):
    """A restore would go behind output that can't be taken back."""

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


class InputGoneError(UserError):
    """A restore would need lines that the journal of a source no longer has; nothing was changed."""

    what_form = "job {job!r} can't be restored from {point}: source {source!r} has lost the lines that follow"
    why_form = (
        "query {query!r} resumes with entry {entry}, and the journal {has}: it keeps what the live files and"
        " the retained checkpoints need"
    )
    hint_form = (
        "restore a newer point: 'weir checkpoints {job}' lists them; or run it beside this one, without the"
        " lines between: weir run FILE --as NAME -s {point}; if nothing in the job reads the source any more:"
        " --allow-dropped"
    )


class OtherInputError(UserError):
    """A restore would read other lines in place of those that a savepoint holds."""

    what_form = "job {job!r} can't go on from {place}: source {source!r} has received other lines since"
    why_form = "{reason}"
    hint_form = (
        "start it under a name of its own: weir run FILE --as NAME -s {place}; or move {folder} away:"
        " what was received there and not read goes with it"
    )


class NotASavepointError(UserError):
    """A place that holds no savepoint that this weir can use."""

    what_form = "{place} can't be used as a savepoint"
    why_form = "{reason}"
    hint_form = "'weir savepoints' lists those that are known"


class BadMapError(UserError):
    """A `--map` that names what is not there."""

    what_form = "--map {given} can't be used"
    why_form = "{reason}"
    hint_form = "--map QUERY/OLD=NEW takes the numbers of operators, --map QUERY/@OLD=NEW those of sources; NEW may be none, or QUERY/NEW of another query; --map OLD=NEW renames a query"


class BadOffsetsError(UserError):
    """A `--set-offsets` that names what is not there, or no place to go on from."""

    what_form = "--set-offsets {given} can't be used"
    why_form = "{reason}"
    hint_form = "--set-offsets QUERY/SOURCE=WHERE: SOURCE is @NUMBER or the name in env.source, WHERE is earliest, latest, timestamp:2026-11-16T00:00:00Z, initial (as its options say) or an offset as Spark writes it"


class SavepointPlaceError(UserError):
    """A place that a savepoint can't be written to."""

    what_form = "no savepoint can be written to {place}"
    why_form = "{reason}"
    hint_form = "{todo}"


class StateNotRewritableError(UserError):
    """State that can't be rescaled, converted or edited as it was asked for; nothing was written."""

    what_form = "the state of query {query!r} can't be rewritten as it was asked for"
    why_form = "{reason}"
    hint_form = "{todo}"


class StateNotReadableError(UserError):
    """State that is not there, or that Spark can't read as it was asked for."""

    what_form = "the state at {path} can't be read"
    why_form = "{reason}"
    hint_form = "{todo}"


class UserStateError(UserError):
    """User state that can't be had, read or kept as the author wrote it."""

    what_form = "state {state!r} of query {query!r} can't be {verb}"
    why_form = "{reason}"
    hint_form = "{todo}"


class UserCodeError(UserError):
    """A function that the job's author wrote raised."""

    retry = True
    what_form = "code of the job raised {error} in query {query!r}, batch {batch}"
    why_form = "{message}"
    hint_form = "the stack is in 'weir logs {job}'; mend the function, then start again"


class RefusedRowError(UserError):
    """A row that the database of a sink does not take; nothing of its batch was delivered."""

    retry = True
    what_form = "table {table} does not take a row of query {query!r}: column {column}, value {value}"
    why_form = "{reason}"
    hint_form = "fix the row in the query, or the table; or keep such rows, all of them, in a table of their own: weir.sinks.postgres(..., dead_letter=<table>)"


class LoginRefusedError(UserError):
    """A database that does not let the user of a sink in."""

    what_form = "PostgreSQL does not let the sink in: {place}"
    why_form = "{reason}"
    hint_form = "check user, password and database of the url; the same with psql: psql {place}"


class RunFailedError(UserError):
    """A query of a run without a supervisor failed; nothing restarts it."""

    what_form = "query {query!r} failed at batch {batch}: {what}"
    why_form = "{why}"
    hint_form = "{hint}"


class NoSuchJobError(UserError):
    """A job name under which nothing is stored."""

    what_form = "there is no job {job!r} in {dir}"
    why_form = "no job of this name was ever started there"
    hint_form = "'weir list --dir {dir}' shows what is there; for a job that was started elsewhere, give --dir or set WEIR_DIR"


class NoSupervisorError(UserError):
    """Nobody runs the job who could do what was asked."""

    exit_code = 5
    what_form = "job {job!r} has no supervisor that could {verb} it"
    why_form = "{reason}"
    hint_form = "{todo}"


class NoOutputError(UserError):
    """Output that was never kept, or is no longer there."""

    what_form = "there is no output of {whose} of job {job!r}"
    why_form = "{reason}"
    hint_form = "{todo}"


class TokenFileError(UserError):
    """A file that has no token for REST and pages."""

    what_form = "the token for REST and pages can't be read from {file}"
    why_form = "{reason}"
    hint_form = "{todo}"


class NoTokenError(UserError):
    """A call of REST without the token, or with a wrong one."""

    what_form = "the request was refused"
    why_form = "{reason}"
    hint_form = (
        "send the token of rest.token-file, by default ~/.local/state/weir/token: "
        "Authorization: Bearer <token>"
    )


class ForeignRequestError(UserError):
    """A call of REST that another site may have made a browser send."""

    what_form = "the request was refused"
    why_form = "{reason}"
    hint_form = "{todo}"


class BadRequestError(UserError):
    """A call of REST that can't be understood."""

    what_form = "the request can't be understood"
    why_form = "{reason}"
    hint_form = "GET /api/v1/openapi.json describes every call"


class NoSuchOperationError(UserError):
    """An operation that this server has not begun, or has forgotten."""

    what_form = "there is no operation {operation!r}"
    why_form = "a server knows the last {kept} that were begun with it since its own start"
    hint_form = "GET /api/v1/jobs/<job>/events has what happened"


class StorageError(ExternalError):
    """The store refused: the operation is known not to have happened."""

    what_form = "the storage could not {verb} {path}"
    why_form = "{reason}"
    hint_form = "check that the place exists, is writable and has room: weir doctor --dir {root}"


class OutcomeUnknownError(ExternalError):
    """The store did not answer: the operation may have happened or not."""

    what_form = "the storage did not answer whether it could {verb} {path}"
    why_form = "{reason}"
    hint_form = "it is safe to try again"


class DatabaseError(ExternalError):
    """The database of a sink can't be reached, or could not do what was asked; nothing of it happened."""

    what_form = "PostgreSQL could not {verb}: {place}"
    why_form = "{reason}"
    hint_form = (
        "check that the server is up and has room; nothing is lost, and the job goes on once it answers"
    )


class BrokerError(ExternalError):
    """Kafka refused or did not answer: the operation is known not to have happened."""

    what_form = "Kafka at {bootstrap} could not {verb}"
    why_form = "{reason}"
    hint_form = "check that the broker runs and can be reached from here; nothing that was staged is lost"


class JobRunningError(ExternalError):
    """Somebody else runs this job."""

    retry = False
    exit_code = 5
    what_form = "job {job!r} is already running"
    why_form = "attempt {attempt} is held by process {pid} on {host} since {since}, and it is alive"
    hint_form = "'weir status {job}' shows it, 'weir cancel {job}' ends it"


class NoAnswerError(ExternalError):
    """A running job has not done what it was asked, so far; the request stands."""

    what_form = "job {job!r} has not {due} within {seconds:g} s"
    why_form = "{reason}"
    hint_form = "{todo}"


class NotDoneError(ExternalError):
    """A running job could not do what it was asked; it goes on as it was."""

    exit_code = 1
    what_form = "{what}"
    why_form = "{why}"
    hint_form = "{hint}"


class PreflightError(ExternalError):
    """Java, Python or a package is missing or too old."""

    retry = False
    what_form = "{what}"
    why_form = "{why}"
    hint_form = "{todo}"


class JvmNotStartedError(ExternalError):
    """Spark's JVM ended before it was up; what it said is in the driver's output alone."""

    what_form = "Spark's JVM ended before it was up"
    hint_form = (
        "{seen}: an option that it does not take (spark.driver.extraJavaOptions), "
        "more memory than there is (spark.driver.memory), or packages that can't be had (spark.jars.packages)"
    )


class PortTakenError(ExternalError):
    """No port is free at which REST and pages could be served."""

    what_form = "REST and pages can't be served at {address}, port {ports}"
    why_form = "{reason}"
    hint_form = "set rest.port to another port or range, or to 0 for any that is free"


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

    what_form = "{count} checkpoints in a row failed, and {limit} are tolerable"
    why_form = "the last one: {reason}"
    hint_form = "mend the cause, or raise execution.checkpointing.tolerable-failed-checkpoints"


class DriverDiedError(ExternalError):
    """The driver process ended or stopped answering."""

    what_form = "the driver of attempt {attempt} {how}"
    hint_form = "'weir logs {job} --attempt {attempt}' shows its last output"


class JvmDiedError(ExternalError):
    """The JVM of a driver ended, and all queries with it: one failure, whoever notices it first."""

    redeploy = True
    what_form = "the JVM died ({how})"
    hint_form = (
        "'weir logs {job}' shows what it printed last; 'dmesg' names what the kernel killed for memory"
    )


class SupervisorDiedError(InternalError):
    """A detached supervisor ended without saying what became of the job."""

    what_form = "the supervisor of {file} ended with exit code {code} before the job was running"
    why_form = "{reason}"
    hint_form = "run it in this terminal to see more: weir run {file}"


class FencedError(InternalError):
    """A newer attempt or run exists; this one may no longer write anything."""

    retry = True
    redeploy = True
    exit_code = 6
    what_form = "{who} may no longer write"
    why_form = "{by} has taken over"
    hint_form = "nothing to do: the newer one goes on"


class LedgerWentBackError(InternalError):
    """The ledger of a sink is older than what this run has seen of it."""

    retry = True
    redeploy = True
    what_form = "the ledger of {path} went back: it ends with batch {last} of attempt {fence}"
    why_form = (
        "attempt {own} had entered batches up to {known}: the place was put back to an older state while the"
        " job ran, by a failover to a standby that lagged or from a backup"
    )
    hint_form = (
        "bring the newer state back if you can; the next start delivers what is still staged, and says what"
        " is missing"
    )


class IllegalMoveError(InternalError):
    """An event that a state machine does not know in its present state."""

    what_form = "{machine} can't take {event!r} in state {state!r}"


class DamagedError(InternalError):
    """Live files are lost or torn, and no checkpoint is whole that the job could go on from."""

    what_form = "the live files of job {job!r} are damaged: {damage}"
    why_form = "somebody changed or deleted them, or the disk lost them; no checkpoint is whole either"
    hint_form = "'weir repair {job}' looks whether anything else is whole; else bring the job's directory back from a backup: weir will not go on and leave a hole"


class OutputAheadError(InternalError):
    """Sinks hold more than a crash or a power loss explains that the live files know nothing of."""

    what_form = "the sinks of job {job!r} are ahead of its live files: {damage}"
    why_form = (
        "a crash or a power loss loses at most {limit} batches, so these live files are probably an older copy"
        " of the job's directory, or a part of it is gone; nothing was rewound"
    )
    hint_form = (
        "bring the newest copy of the directory back; or rewind the sinks to what these live files know:"
        " 'weir repair {job}' shows which batches, 'weir repair {job} --to-last-good' does it"
    )


class DamagedOriginError(InternalError):
    """The file that says how a generation of live files began can't be read."""

    exit_code = 1
    what_form = "{file} of job {job!r} can't be read"
    why_form = "somebody changed it, or the disk lost it: {reason}"
    hint_form = "'weir repair {job}' says what the job can go on from; a restore that was not begun yet is given up by 'weir restore {job} --withdraw'"


class LostLedgerError(InternalError):
    """An entry of a ledger or journal is gone or damaged, and others come after it."""

    exit_code = 1
    what_form = "{file} {wrong}"
    why_form = "somebody changed or deleted it, or the disk lost it: what comes after it can't be trusted"
    hint_form = "bring the folder back from a backup; weir stops rather than skip data"


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
    hint_form = "use another one: 'weir savepoints' lists those that are known"


class OutsideError(UserError):
    """A file that a restore was to write is outside the job's own directory; nothing was written."""

    what_form = "a restore was to write {path}, which is outside of {root}"
    why_form = "the manifest of the checkpoint or savepoint names a path that none of weir's has"
    hint_form = "do not use it: somebody changed it; 'weir savepoints' and 'weir checkpoints JOB' list others"


class InconsistentCheckpointError(DamagedCheckpointError):
    """A checkpoint that is no consistent cut: a reader is past what its writer has written in it."""

    what_form = "checkpoint {checkpoint} of job {job!r} {damage}"
    why_form = "an earlier weir could complete such a checkpoint after a restore in another directory: rows would be lost or doubled"
    hint_form = "go back to another checkpoint: 'weir checkpoints {job}' lists what is there"


class InconsistentSavepointError(DamagedSavepointError):
    """A savepoint of such a checkpoint."""

    what_form = "savepoint {place} {damage}"
    why_form = "an earlier weir could complete such a checkpoint after a restore in another directory: rows would be lost or doubled"
    hint_form = "use another one: 'weir savepoints' lists those that are known"


class StateRewriteError(InternalError):
    """Spark failed while it wrote state anew; nothing of it is left."""

    what_form = "the state of query {query!r} could not be written anew"
    why_form = "{reason}"
    hint_form = "nothing is lost: what it was to be made from is as it was"


class SurgeryError(InternalError):
    """State that could not be brought to where a changed query looks for it; nothing was changed."""

    what_form = "the state of query {query!r} behind batch {batch} could not be brought to its new place"
    why_form = "{reason}"
    hint_form = "restore it into the query as it was; 'weir verify' tells whether the savepoint is whole"


class StateDiffersError(InternalError):
    """State that was written anew is not what it should be; nothing of it is left."""

    what_form = (
        "the new state of operator {operator} of query {query!r}, store {store!r}, is not what it was to be"
    )
    why_form = "{reason}"
    hint_form = "nothing is lost: what it was to be made from is as it was; please report this"


class LostStagingError(InternalError):
    """Spark committed a batch whose staged output is gone or torn."""

    what_form = (
        "batch {batch} of query {query!r} was committed by Spark, but its staged output is gone from {path}"
    )
    why_form = "somebody deleted or changed files of the sink, the disk lost them, or the ledger and the live files are not of one job"
    hint_form = "bring the folder back from a backup; weir will not go on and leave a hole"


class LiveFilesBehindError(InternalError):
    """The live files of a query lack batches that its sink holds.

    It shows when the sink is opened; a new driver goes back to the newest intact checkpoint.
    """

    retry = True
    redeploy = True
    what_form = "the live files of query {query!r} lack batches that its sink holds"
    why_form = "the disk lost them, or somebody deleted them"
    hint_form = "the next driver goes back to the newest intact checkpoint; 'weir repair {job}' says which"


class LostSegmentError(InternalError):
    """A file of a channel is gone or torn that a reader still needs.

    A new driver finds what is damaged, and goes on from the newest checkpoint that is whole.
    """

    retry = True
    redeploy = True
    what_form = "the channel file {file} {wrong}"
    why_form = "somebody changed or deleted it, or the disk lost it: weir deletes only what every reader and every retained checkpoint has passed"
    hint_form = "the next driver goes on from the newest checkpoint that is whole, as 'weir repair {job}' says before; if it fails here again, 'weir restore {job} latest' goes back"


class LostInputError(InternalError):
    """The journal of a source does not hold what a query goes on with."""

    what_form = "query {query!r} goes on with entry {entry} of source {source!r}, and {path} does not have it"
    why_form = "somebody deleted files there, or the query was taken out of the job for a while: weir deletes only what every query of the job has read"
    hint_form = "bring the folder back, or give the query a new name to start with what is there; weir will not go on and leave a hole"


class LostRecordsError(InternalError):
    """A topic of Kafka's no longer has what a query goes on with."""

    what_form = "a topic of Kafka's has lost records that the query goes on with"
    why_form = "{reason}"
    hint_form = "bring the records back, or go on with what is there and leave a hole: weir.sources.kafka(..., lost_data='skip')"

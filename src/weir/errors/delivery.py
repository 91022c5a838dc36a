"""Where rows come from and go to: sinks and their ledgers, channels, journals of sources, Kafka and PostgreSQL."""

from __future__ import annotations

from weir.errors.base import ExternalError, InternalError, UserError


class SinkMismatchError(UserError):
    """A sink whose ledger does not fit this job's live files."""

    what_form = "the sink of query {query!r} can't be used: {path}"
    why_form = "{reason}"
    hint_form = "{todo}"


class SinkTakenError(UserError):
    """Output that the same job has written from other live files, which may still do so."""

    what_form = "the sink of query {query!r} was taken by attempt {attempt} of this job: {path}"
    why_form = (
        "that attempt does not belong to this directory (this start is attempt {own}): the job "
        "has run in another directory, from the same savepoint or from a copy of this directory, "
        "and may still run there"
    )
    hint_form = (
        "let only one of them run. To continue here, end the other for good, then: weir run FILE -s POINT"
        " --take-over {attempt}, with a savepoint or checkpoint from before the other began"
    )


class TopicError(UserError):
    """A Kafka topic that a job can't use as it is."""

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


class InputGoneError(UserError):
    """A restore would need lines that the journal of a source no longer has; nothing was changed."""

    what_form = (
        "job {job!r} can't be restored from {point}: source {source!r} no longer has the lines that follow it"
    )
    why_form = (
        "query {query!r} resumes with entry {entry}, and the journal {has}: it keeps only what "
        "the live files and the retained checkpoints need"
    )
    hint_form = (
        "restore a newer point: 'weir checkpoints {job}' lists them; or run this point as a fork,"
        " without the lost lines: weir run FILE --as NAME -s {point}; if nothing in the job reads"
        " the source any more: --allow-non-restored-state"
    )


class InputFilesGoneError(UserError):
    """A restore would read files again that were deleted or moved away; nothing was changed."""

    what_form = (
        "job {job!r} can't be restored from {point}: {count} of the files that were read after it are gone"
    )
    why_form = (
        "query {query!r} has read {file} since then, so its rows would be rewound and could not be read again"
    )
    hint_form = (
        "put the files back where they were; or restore a newer point: 'weir checkpoints {job}' lists them;"
        " to lose their rows: weir restore {job} {point} --allow-non-restored-state"
    )


class OtherInputError(UserError):
    """A restore would read other lines in place of those that a savepoint holds."""

    what_form = "job {job!r} can't resume from {place}: source {source!r} has received other lines since"
    why_form = "{reason}"
    hint_form = (
        "start it under another name: weir run FILE --as NAME -s {place}; or move {folder} away, "
        "with the lines that were received there and not read"
    )


class RefusedRowError(UserError):
    """A row that the database of a sink does not take; nothing of its batch was delivered."""

    retry = True
    what_form = "table {table} does not take a row of query {query!r}: column {column}, value {value}"
    why_form = "{reason}"
    hint_form = (
        "fix the row in the query, or change the table; or have all such rows written to a table "
        "of their own: weir.sinks.postgres(..., dead_letter=<table>)"
    )


class LoginRefusedError(UserError):
    """A database that does not let the user of a sink in."""

    what_form = "PostgreSQL refused the sink's login: {place}"
    why_form = "{reason}"
    hint_form = "check the user, password and database in the url; to try it with psql: psql {place}"


class DatabaseError(ExternalError):
    """The database of a sink can't be reached, or could not do what was asked; nothing of it happened."""

    what_form = "PostgreSQL could not {verb}: {place}"
    why_form = "{reason}"
    hint_form = (
        "check that the server is up and has room; nothing is lost, and the job continues once it answers"
    )


class BrokerError(ExternalError):
    """Kafka refused or did not answer: the operation is known not to have happened."""

    what_form = "Kafka at {bootstrap} could not {verb}"
    why_form = "{reason}"
    hint_form = "check that the broker runs and can be reached from here; nothing that was staged is lost"


class LedgerWentBackError(InternalError):
    """The ledger of a sink is older than what this run has seen of it."""

    retry = True
    redeploy = True
    what_form = "the ledger of {path} has lost entries: it ends with batch {last} of attempt {fence}"
    why_form = (
        "attempt {own} had recorded batches up to {known}: while the job ran, the sink was reset "
        "to an older state, by a failover to a lagging standby or from a backup"
    )
    hint_form = (
        "restore the newer state if you can; the next start delivers what is still staged, and "
        "reports what is missing"
    )


class OutputAheadError(InternalError):
    """Sinks hold more than a crash or a power loss explains that the live files know nothing of."""

    what_form = "the sinks of job {job!r} are ahead of its live files: {damage}"
    why_form = (
        "a crash or a power loss loses at most {limit} batches, so these live files are probably an older copy"
        " of the job's directory, or a part of it is gone; nothing was rewound"
    )
    hint_form = (
        "restore the newest copy of the directory; or rewind the sinks to what these live files "
        "know: 'weir repair {job}' shows which batches, 'weir repair {job} --to-last-good' does "
        "it"
    )


class LostLedgerError(InternalError):
    """An entry of a ledger or journal is gone or damaged, and others come after it."""

    exit_code = 1
    what_form = "{file} {wrong}"
    why_form = "somebody changed or deleted it, or the disk lost it: what comes after it can't be trusted"
    hint_form = "restore the folder from a backup; weir stops rather than skip data"


class LostStagingError(InternalError):
    """Spark committed a batch whose staged output is gone or damaged."""

    what_form = (
        "batch {batch} of query {query!r} was committed by Spark, but its staged output is gone from {path}"
    )
    why_form = "somebody deleted or changed files of the sink, the disk lost them, or the ledger and the live files belong to different jobs"
    hint_form = "restore the folder from a backup; weir stops rather than skip data"


class LiveFilesBehindError(InternalError):
    """The live files of a query lack batches that its sink holds.

    It shows when the sink is opened; a new driver goes back to the newest intact checkpoint.
    """

    retry = True
    redeploy = True
    what_form = "the live files of query {query!r} lack batches that its sink holds"
    why_form = "the disk lost them, or somebody deleted them"
    hint_form = (
        "the next driver resumes from the newest intact checkpoint; 'weir repair {job}' shows which one"
    )


class LostSegmentError(InternalError):
    """A file of a channel is gone or damaged that a reader still needs.

    A new driver finds what is damaged, and resumes from the newest checkpoint that is intact.
    """

    retry = True
    redeploy = True
    what_form = "the channel file {file} {wrong}"
    why_form = "somebody changed or deleted it, or the disk lost it: weir deletes only what every reader and every retained checkpoint has passed"
    hint_form = "the next driver resumes from the newest intact checkpoint; 'weir repair {job}' shows it beforehand. If it fails here again, use 'weir restore {job} latest'"


class LostInputError(InternalError):
    """The journal of a source does not hold what a query resumes with."""

    what_form = "query {query!r} resumes with entry {entry} of source {source!r}, and {path} does not have it"
    why_form = "somebody deleted files there, or the query was removed from the job for a while: weir deletes only what every query of the job has read"
    hint_form = "restore the folder, or give the query a new name to start with what is there; weir stops rather than skip data"


class LostRecordsError(InternalError):
    """A Kafka topic no longer has the records that a query resumes with."""

    what_form = "a Kafka topic no longer has the records that the query resumes with"
    why_form = "{reason}"
    hint_form = (
        "restore the records, or skip what is missing and continue: weir.sources.kafka(..., lost_data='skip')"
    )

"""The processes of a job and the storage under them, and what can be asked of them, by command or REST."""

from __future__ import annotations

from typing import Any

from weir.errors.base import ExternalError, InternalError, MachineError, UserError


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


class StorageError(ExternalError):
    """The store refused: the operation is known not to have happened."""

    what_form = "the storage could not {verb} {path}"
    why_form = "{reason}"
    hint_form = "check that it exists, is writable and has room: weir doctor --dir {root}"


class OutcomeUnknownError(ExternalError):
    """The store did not answer: the operation may have happened or not."""

    what_form = "the storage did not answer whether it could {verb} {path}"
    why_form = "{reason}"
    hint_form = "it is safe to try again"


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
    """A running job could not do what it was asked; it continues as it was."""

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
    """Spark's JVM ended before it was up; its message is in the driver's output alone."""

    what_form = "Spark's JVM ended before it was up"
    hint_form = (
        "{seen}; likely causes: an option that Java does not accept "
        "(spark.driver.extraJavaOptions), more memory than the machine has (spark.driver.memory),"
        " or packages that can't be fetched (spark.jars.packages)"
    )


class DriverDiedError(ExternalError):
    """The driver process ended or stopped answering."""

    what_form = "the driver of attempt {attempt} {how}"
    hint_form = "'weir logs {job} --attempt {attempt}' shows its last output"


class JvmDiedError(ExternalError):
    """The JVM of a driver ended, and all queries with it: one failure, whoever notices it first."""

    redeploy = True
    what_form = "the JVM died ({how})"
    hint_form = (
        "'weir logs {job}' shows what it printed last; 'dmesg' shows whether the kernel killed it for memory"
    )


_LIMITS = (
    "'ulimit -u' shows how many processes and threads this user may have, 'free -m' the memory that is left; "
    "a running job tries again by itself, as soon as the machine can start a process in time"
)


class LateProcessError(MachineError):
    """A Python process that Spark had started did not connect in time; Spark's limit can't be changed."""

    what_form = "a Python process that Spark started did not answer within {seconds} s"
    why_form = "the machine is overloaded: more processes want to run than it has cores for"
    hint_form = (
        "give the machine more cores, or the job fewer queries; a running job tries again by itself, as soon "
        "as the machine can start a Python process in time. Only data sources and functions in Python need "
        "such processes"
    )


class NoProcessError(MachineError):
    """The machine has no process to give, or no memory for one."""

    what_form = "the machine could not start a process"
    why_form = "{reason}"
    hint_form = _LIMITS


class NoThreadError(MachineError):
    """The machine has no thread to give; a JVM that lacked one can't be relied on any more."""

    redeploy = True
    what_form = "the machine could not start a thread"
    why_form = "{reason}"
    hint_form = _LIMITS


class LateAnswerError(MachineError):
    """One part of Spark did not answer another in time."""

    what_form = "a part of Spark did not answer another in time"
    why_form = "{reason}"
    hint_form = (
        "the machine or its network is overloaded; a running job tries again by itself, as soon as the machine "
        "can start a process in time. spark.rpc.askTimeout and spark.network.timeout set Spark's patience"
    )


class SupervisorDiedError(InternalError):
    """A detached supervisor ended without saying what became of the job."""

    what_form = "the supervisor of {file} ended with exit code {code} before the job was running"
    why_form = "{reason}"
    hint_form = "run it in this terminal to see more: weir run {file}"


class SparkToolError(InternalError):
    """A process with Spark that a command had started for a plan, or to look into state, failed.

    The exit code is that of the failure in there; `printed` is what it printed, where that helps.
    """

    what_form = "{what}"
    why_form = "{why}"
    hint_form = "{hint}"

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.exit_code = int(fields["exit_code"])

    @property
    def printed(self) -> str:
        return str(self.fields["printed"])


class FencedError(InternalError):
    """A newer attempt or run exists; this one may no longer write anything."""

    retry = True
    redeploy = True
    exit_code = 6
    what_form = "{who} may no longer write"
    why_form = "{by} has taken over"
    hint_form = "nothing to do: the newer one continues"


class IllegalMoveError(InternalError):
    """An event that a state machine does not know in its present state."""

    what_form = "{machine} can't take {event!r} in state {state!r}"


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
    """An operation that this server has not begun, or no longer keeps."""

    what_form = "there is no operation {operation!r}"
    why_form = "a server keeps only its last {kept} operations, and none from before its start"
    hint_form = "GET /api/v1/jobs/<job>/events lists what happened"


class PortTakenError(ExternalError):
    """No port is free at which REST and pages could be served."""

    what_form = "REST and pages can't be served at {address}, port {ports}"
    why_form = "{reason}"
    hint_form = "set rest.port to another port or range, or to 0 for any that is free"

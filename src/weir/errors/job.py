"""A job as its author writes and configures it: names, settings, job files, code, user state."""

from __future__ import annotations

from weir.errors.base import ExternalError, UserError


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

    what_form = "there is no setting {key!r} (from {origin})"
    hint_form = "{advice}'weir config' lists all settings"


class SettingsFileError(UserError):
    """A settings file that can't be read."""

    what_form = "the settings file {file} can't be read"
    why_form = "{reason}"
    hint_form = "fix the file, or name another one with --config FILE"


class BadValueError(UserError):
    """A setting's value that does not fit."""

    what_form = "{key} can't be {value!r} (from {origin})"
    why_form = "{reason}"
    hint_form = "'weir config' shows every setting with its meaning"


class SparkSettingError(UserError):
    """A value of one of Spark's own settings that Spark does not take."""

    what_form = "Spark does not accept one of its settings"
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
    why_form = "Spark fixes this at the first batch and would continue with {live} without a message"
    hint_form = "set {setting}={live} for this job, or have its state changed: weir run FILE -s latest -D {setting}={asked}"


class ChangedQueryError(UserError):
    """A query whose live files are those of another one: Spark would fail, or mix up its state."""

    what_form = "query {query!r} has changed, and its live files belong to the query as it was"
    why_form = "{reason}"
    hint_form = (
        "to carry its state over: weir run FILE -s latest; to see the plan first: weir plan FILE -s latest"
    )


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
    hint_form = "the stack is in 'weir logs {job}'; fix the function, then start again"


class RunFailedError(UserError):
    """A query of a run without a supervisor failed; nothing restarts it."""

    what_form = "query {query!r} failed at batch {batch}: {what}"
    why_form = "{why}"
    hint_form = "{hint}"


class JobConnectionError(ExternalError):
    """A connection that the author's own code made failed, inside a batch; the code is not at fault."""

    what_form = "a connection that code of the job made has failed ({error})"
    why_form = "{message}"
    hint_form = "check that the server is up and can be reached from here; the query starts again by itself"

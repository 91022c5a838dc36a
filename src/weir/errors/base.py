"""What every error of weir has: what happened, why, what to do; whose fault it is, and does a retry help."""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar, Protocol

from weir.text import without_secrets


class Domain(str, Enum):
    """Whose fault it is."""

    USER = "user"
    EXTERNAL = "external"
    MACHINE = "machine"
    """Of the machine under the job: too slow, or without a process, a thread or memory to give."""
    INTERNAL = "internal"


class WeirError(Exception):
    """The base: `what` happened (lower case, no full stop), `why`, and a `hint` what to do."""

    domain: ClassVar[Domain] = Domain.INTERNAL
    retry: ClassVar[bool] = False
    redeploy: ClassVar[bool] = False
    """The whole driver must be started again; one query's restart would not do."""
    exit_code: int = 1
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


class Worded(Protocol):
    """An error or a reported failure: what happened, why, and what to do."""

    @property
    def what(self) -> str: ...

    @property
    def why(self) -> str: ...

    @property
    def hint(self) -> str: ...


def error_form(found: Worded | BaseException) -> dict[str, str]:
    """The one form of an error in JSON, in an answer and on a page: `what`, `why`, `hint`, without secrets.

    An exception that is not weir's own is a breakdown of weir.
    """
    if isinstance(found, BaseException) and not isinstance(found, WeirError):
        what = f"internal error in weir: {type(found).__name__}: {found}"
        return {"what": without_secrets(what), "why": "", "hint": ""}
    return {name: without_secrets(getattr(found, name)) for name in ("what", "why", "hint")}


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


class MachineError(WeirError):
    """The machine could not do in time what every job needs; counted apart from the job's own failures."""

    domain = Domain.MACHINE
    retry = True
    exit_code = 3


class InternalError(WeirError):
    """weir's or Spark's own fault."""

    exit_code = 4

"""What the manifests of checkpoints and savepoints have in common: a version, a checksum, checked names.

    {"format": 2, "checksum": "<SHA-256>", ...}

`decode` distinguishes four kinds of bytes: a manifest of this weir or an earlier one, which is returned; one
of a newer weir (`NewerManifestError`), which is never called damaged; one that was changed since it was
written; and what is no manifest at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ValidationError

from weir.errors import BadNameError
from weir.ids import job_name, query_name
from weir.storage import sums

FORMAT = 2
"""The newest form of a manifest that this weir knows: the second has a checksum of its own."""

NEWER = "a newer weir wrote it"
CHANGED = "does not match its checksum"
UNREADABLE = "can't be read"


class NewerManifestError(ValueError):
    """A manifest that a newer weir wrote: it may be intact, and only that one can tell."""


class Stored(BaseModel):
    """The fields that a manifest begins with."""

    format: int
    checksum: str = ""
    """That of its own file, where it is stored (`storage/sums.py`); else ""."""


M = TypeVar("M", bound=Stored)


def _checked(check: Callable[[str], str]) -> AfterValidator:
    def validate(name: str) -> str:
        try:
            return check(name)
        except BadNameError as error:
            raise ValueError(error.what) from error

    return AfterValidator(validate)


Job = Annotated[str, _checked(job_name)]
"""The name of a job, checked: it becomes a path."""
Query = Annotated[str, _checked(query_name)]


def encode(manifest: Stored, indent: int | None = None) -> bytes:
    """As it is stored, with a checksum of its own."""
    stored = manifest.model_copy(update={"format": FORMAT, "checksum": ""})
    return sums.seal(stored.model_dump_json(indent=indent).encode())


def decode(data: bytes, kind: type[M], *, unsaid: int | None = None) -> M:
    """What is stored so; `unsaid` is the format of a manifest that does not say it, if there are such.

    Raises `NewerManifestError`, or another `ValueError`, whose text says what is wrong with the file: a
    `ValidationError` where it lacks something, or names what no manifest may name.
    """
    form = _format(data, unsaid)
    if form > FORMAT:
        raise NewerManifestError(f"it has format {form}, and this weir knows those up to {FORMAT}: {NEWER}")
    try:
        manifest = kind.model_validate_json(data)
    except ValidationError as error:
        kinds = {problem["type"] for problem in error.errors()}
        if kinds == {"extra_forbidden"} and sums.check(data):
            raise _newer(".".join(map(str, problem["loc"])) for problem in error.errors()) from error
        if kinds == {"json_invalid"}:
            raise ValueError(UNREADABLE) from error
        raise
    if form > 1 or manifest.checksum:
        if not sums.check(data):
            raise ValueError(CHANGED)
        if kind.model_config.get("extra") != "forbid" and (
            added := set(json.loads(data)) - set(kind.model_fields)
        ):
            raise _newer(sorted(added))
    return manifest.model_copy(update={"format": form, "checksum": ""})


def _format(data: bytes, unsaid: int | None) -> int:
    form = sums.format_of(data)
    if form is None:
        try:
            body = json.loads(data)
            form = body.get("format", unsaid)
        except (ValueError, AttributeError, RecursionError):
            raise ValueError(UNREADABLE) from None
    if not isinstance(form, int) or form < 1:
        raise ValueError(UNREADABLE)
    return form


def _newer(fields: Iterable[str]) -> NewerManifestError:
    return NewerManifestError(f"it has {', '.join(fields)}, which this weir does not know: {NEWER}")

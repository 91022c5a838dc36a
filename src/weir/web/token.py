"""The token that REST and pages ask for: from a file of the user's, or made here once for each user.

The own one is in `~/.local/state/weir/token`, which only its owner can read: so whoever has this user's
files has the token, and every server of the user takes the same one, over all jobs and storages.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from weir.errors import TokenFileError
from weir.storage.open import local_state

OFF = "off"
"""As rest.token-file: no token is asked for, which a loopback address alone allows."""
_SHORTEST = 16
_FRESH = "write one line of at least 16 characters there: head -c 24 /dev/urandom | base64 > {file}"


@dataclass(frozen=True)
class RestToken:
    """A token, and whether the user has named its file."""

    text: str
    chosen: bool


def token_for(file: str | None) -> RestToken | None:
    """The token of a server: from the file, or the user's own one; None when it is off.

    Raises `TokenFileError`.
    """
    if file == OFF:
        return None
    if file is not None:
        return RestToken(read_token(Path(file)), chosen=True)
    return RestToken(own_token(), chosen=False)


def own_token() -> str:
    """The user's own token; made now when there is none. Of several that make one at once, one wins."""
    try:
        file = own_file()
    except RuntimeError as error:  # no home directory is known
        todo = "set HOME, or rest.token-file to a file with a token"
        raise TokenFileError(file="~/.local/state/weir/token", reason=str(error), todo=todo) from error
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not file.exists():
            _make(file)
    except OSError as error:
        reason = f"none could be made there: {error.strerror or error}"
        todo = (
            "set rest.token-file to a file with a token, or to 'off' if every local user may control the job"
        )
        raise TokenFileError(file=file, reason=reason, todo=todo) from error
    return read_token(file)


def own_file() -> Path:
    return local_state() / "token"


def _make(file: Path) -> None:
    temporary = file.with_name(f".token.{secrets.token_hex(6)}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w") as written:
            written.write(f"{secrets.token_urlsafe(32)}\n")
            written.flush()
            os.fsync(written.fileno())
        with suppress(FileExistsError):  # somebody was faster, and theirs is taken
            os.link(temporary, file)
    finally:
        temporary.unlink()


def read_token(file: Path) -> str:
    """The token in the first line of a file. Raises `TokenFileError`.

    As with a key of ssh's: a file of one's own that others could read is refused.
    """
    try:
        about = file.stat()
        # A secret that is mounted read-only can't be closed by its reader: then it is the mounter's to do.
        closable = about.st_uid == os.getuid() and os.access(file, os.W_OK)
        if closable and stat.S_IMODE(about.st_mode) & 0o077:
            reason = f"others than its owner could read it (its mode is {stat.S_IMODE(about.st_mode):04o})"
            raise TokenFileError(file=file, reason=reason, todo=f"chmod 600 {file}")
        token = (file.read_text("utf-8").splitlines() or [""])[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TokenFileError(file=file, reason=reason, todo=_FRESH.format(file=file)) from error
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable():
        reason = f"its first line does not have {_SHORTEST} or more plain characters"
        raise TokenFileError(file=file, reason=reason, todo=_FRESH.format(file=file))
    return token

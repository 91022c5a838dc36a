"""Who may ask: in front of every call, before anything is read.

Each call must carry the token; a browser carries a cookie instead, which it got at /login for the token
or for a link that works once. What changes something must come from our own pages or carry the token
itself: a page of another site can neither set the header nor read an answer.

Where the token was turned off, which a loopback address alone allows, a call must be addressed to this
machine by name, so that no foreign name can be pointed here; every local process may then command.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weir.config import is_loopback
from weir.errors import ForeignRequestError, NoTokenError, TokenFileError, WeirError
from weir.storage.open import local_state
from weir.web.envelope import failed

HEADER = "X-Weir-Request"
"""What a call that changes something carries when it has no token."""
LOGIN, LOGOUT, FIGURES = "/login", "/logout", "/metrics"
SESSION_SECONDS = 7 * 86400
_LINK_SECONDS = 3600
_SAFE = ("GET", "HEAD", "OPTIONS")
_OPEN = (LOGIN, "/static/")
_PROTECTION = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
"""Not `no-referrer`: with that a browser says `Origin: null` for our own form, as for a foreign one."""


class Sessions:
    """What takes the place of the token in a browser: links that work once, and cookies that expire.

    A cookie is signed with the token, so that it outlives a restart of the server, and does not give the
    token away. Any thread may call.
    """

    def __init__(self, token: str, now: Callable[[], float] = time.time) -> None:
        self._token = token
        self._now = now
        self._links: dict[str, float] = {}
        self._ended: set[str] = set()

    def is_token(self, given: str) -> bool:
        return _same(given, self._token)

    def link(self) -> str:
        """A code that logs a browser in, once, within the hour."""
        code = secrets.token_urlsafe(24)
        self._links[code] = self._now() + _LINK_SECONDS
        return code

    def redeem(self, code: str) -> bool:
        """Whether it is such a code; it is none any more."""
        until = self._links.pop(code, None)
        return until is not None and self._now() < until

    def begin(self) -> str:
        """A new session: the cookie's value."""
        about = f"{int(self._now()) + SESSION_SECONDS}.{secrets.token_hex(8)}"
        return f"{about}.{self._signature(about)}"

    def knows(self, cookie: str) -> bool:
        """Whether it is the cookie of a session that has not ended."""
        about, _, signature = cookie.rpartition(".")
        until = about.partition(".")[0]
        if not _same(signature, self._signature(about)) or cookie in self._ended:
            return False
        return until.isdecimal() and self._now() < int(until)

    def end(self, cookie: str) -> None:
        """Log out: the cookie is good for nothing here any more."""
        if self.knows(cookie):  # what anybody could send is not kept
            self._ended.add(cookie)

    def _signature(self, about: str) -> str:
        return hmac.new(self._token.encode(), f"weir session {about}".encode(), "sha256").hexdigest()


def cookie_name(headers: Headers) -> str:
    """What the cookie is called: browsers share cookies over the ports of a host, so the port is in it."""
    return f"weir-session-{_port(headers.get('host', ''))}"


def cookie_of(headers: Headers) -> str:
    return cookie_parser(headers.get("cookie", "")).get(cookie_name(headers), "")


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(errors="replace"), other.encode())


class Guard:
    """Lets through what may pass; the rest is answered here."""

    def __init__(
        self, app: ASGIApp, sessions: Sessions | None, address: str, open_figures: bool = False
    ) -> None:
        """`open_figures`: /metrics needs no token when it is asked for by a name of this machine's own."""
        self._app = app
        self._sessions = sessions
        self._address = address
        self._open = (FIGURES,) if open_figures else ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, _protected(send))
            return
        await self._app(scope, receive, _protected(send))

    def _refusal(self, scope: Scope) -> Response | None:
        headers, path, method = Headers(scope=scope), scope["path"], scope["method"]
        sessions = self._sessions
        try:
            carries = sessions is not None and _bearer(headers, sessions)
            if sessions is None or (path in self._open and method in _SAFE):
                self._check_host(headers)
            elif not (carries or path.startswith(_OPEN) or sessions.knows(cookie_of(headers))):
                if method == "GET" and "text/html" in headers.get("accept", ""):
                    return RedirectResponse(LOGIN, 303)
                raise NoTokenError(reason="it carries no token, or a wrong one")
            if method not in _SAFE and not carries:
                _check_origin(headers, needs_header=path not in (LOGIN, LOGOUT))
        except WeirError as error:
            return failed(error)
        return None

    def _check_host(self, headers: Headers) -> None:
        name = _hostname(headers.get("host", ""))
        if not is_loopback(name) and name != self._address:
            reason = f"it is addressed to {name!r}, which is no name of this machine's own"
            todo = f"use http://{self._address}"
            raise ForeignRequestError(reason=reason, todo=todo)


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _port(host: str) -> int:
    try:
        return urlsplit(f"//{host}").port or 80
    except ValueError:
        return 80


def _bearer(headers: Headers, sessions: Sessions) -> bool:
    kind, _, given = headers.get("authorization", "").partition(" ")
    return kind.lower() == "bearer" and sessions.is_token(given.strip())


def _check_origin(headers: Headers, *, needs_header: bool) -> None:
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
    foreign = origin is not None and origin.partition("://")[2] != headers.get("host")
    if foreign or site not in ("same-origin", "none"):
        reason = "it comes from a page of another site"
        raise ForeignRequestError(reason=reason, todo="use the pages that are served here")
    if needs_header and HEADER.lower() not in headers:
        reason = f"it changes something, and has neither the token nor the header {HEADER}"
        raise ForeignRequestError(reason=reason, todo=f"add the header {HEADER}: 1")


def _protected(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _PROTECTION.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return sending


# The token that REST and pages ask for: from a file of the user's, or made here once for each user.
#
# The own one is in `~/.local/state/weir/token`, which only its owner can read: so whoever has this user's
# files has the token, and every server of the user takes the same one, over all jobs and storages.


OFF = "off"
"""As rest.token-file: no token is asked for, which a loopback address alone allows."""
_SHORTEST = 16
_FRESH = "write one line of at least 16 characters there: head -c 24 /dev/urandom | base64 > {file}"


@dataclass(frozen=True)
class Token:
    """A token, and whether the user has named its file."""

    text: str
    chosen: bool


def token_for(file: str | None) -> Token | None:
    """The token of a server: from the file, or the user's own one; None when it is off.

    Raises `TokenFileError`.
    """
    if file == OFF:
        return None
    if file is not None:
        return Token(read_token(Path(file)), chosen=True)
    return Token(own_token(), chosen=False)


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

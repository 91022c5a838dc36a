"""Who may ask: in front of every call, before anything is read.

Each call must carry the token; a browser carries a cookie instead, which it got at /login for the token
or for a link that works once. What changes something must come from our own pages or carry the token
itself: a page of another site can neither set the header nor read an answer.

Where the token was turned off, which a loopback address alone allows, a call must be addressed to this
machine by name, so that no foreign name can be pointed here; every local process may then command.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weir.config import is_loopback
from weir.errors import ForeignRequestError, NoTokenError, WeirError
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
"""Not `no-referrer`: with that a browser sends `Origin: null` for our own form, as for a foreign one."""


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

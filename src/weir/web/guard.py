"""Who may ask: in front of every call, before anything is read.

With a token each call must carry it (a browser carries a cookie that was made of it at /login). Without
one, which a loopback address alone allows, a call must be addressed to this machine by name, so that no
foreign name can be pointed here. What changes something must come from our own pages or carry the token:
a page of another site can neither set the header nor read an answer.
"""

from __future__ import annotations

import hmac
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weir.config import is_loopback
from weir.errors import ForeignRequestError, NoTokenError, TokenFileError, WeirError
from weir.web.envelope import failed

HEADER = "X-Weir-Request"
"""What a call that changes something carries when it has no token."""
COOKIE = "weir-session"
LOGIN = "/login"
_SHORTEST = 16
_SAFE = ("GET", "HEAD", "OPTIONS")
_OPEN = (LOGIN, "/static/")
_PROTECTION = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
"""Not `no-referrer`: with that a browser says `Origin: null` for our own form, as for a foreign one."""


def read_token(file: str | None) -> str | None:
    """The token in the first line of a file; None without a file. Raises `TokenFileError`."""
    if file is None:
        return None
    try:
        token = (Path(file).read_text("utf-8").splitlines() or [""])[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise TokenFileError(file=file, reason=getattr(error, "strerror", None) or str(error)) from error
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable():
        raise TokenFileError(file=file, reason=f"its first line has not {_SHORTEST} plain characters or more")
    return token


def session_of(token: str) -> str:
    """What a browser keeps: it proves that the token was known, and does not give it away."""
    return hmac.new(token.encode(), b"weir session", "sha256").hexdigest()


def same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


class Guard:
    """Lets through what may pass; the rest is answered here."""

    def __init__(self, app: ASGIApp, token: str | None, address: str) -> None:
        self._app = app
        self._token = token
        self._address = address

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
        try:
            carries = self._token is not None and _bearer(headers, self._token)
            if self._token is None:
                self._check_host(headers)
            elif not (carries or path.startswith(_OPEN) or self._known(headers)):
                if method == "GET" and "text/html" in headers.get("accept", ""):
                    return RedirectResponse(LOGIN, 303)
                raise NoTokenError(reason="it carries no token, or a wrong one")
            if method not in _SAFE and not carries:
                _check_origin(headers, needs_header=path != LOGIN)
        except WeirError as error:
            return failed(error)
        return None

    def _known(self, headers: Headers) -> bool:
        assert self._token is not None
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        return same(cookie, session_of(self._token))

    def _check_host(self, headers: Headers) -> None:
        name = _hostname(headers.get("host", ""))
        if not is_loopback(name) and name != self._address:
            reason = f"it is addressed to {name!r}, which is no name of this machine's own"
            todo = f"use http://{self._address}, or set rest.token-file"
            raise ForeignRequestError(reason=reason, todo=todo)


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _bearer(headers: Headers, token: str) -> bool:
    kind, _, given = headers.get("authorization", "").partition(" ")
    return kind.lower() == "bearer" and same(given.strip(), token)


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

"""The page that asks a browser for the token, and the way out."""

from __future__ import annotations

import re
from urllib.parse import parse_qs

from fastapi import FastAPI, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from weir.web.guard import LOGIN, LOGOUT, SESSION_SECONDS, Sessions, cookie_name, cookie_of
from weir.web.pages import templates

_OWN_PAGE = re.compile(r"/(?!/)[\w./-]*", re.ASCII)
"""Where a login may lead: never to another site ("//")."""
_LONGEST = 4096
"""How many bytes a form with a token may have."""


def install(app: FastAPI, sessions: Sessions | None) -> None:
    """The page that asks a browser for the token, and the way out; without a token there is none."""
    if sessions is None:
        return
    app.state.guarded = True
    environment = templates()

    def asked(reason: str = "") -> Response:
        text = environment.get_template("login.html").render(reason=reason, guarded=False)
        return HTMLResponse(text, 401 if reason else 200)

    def entered(request: Request, page: str) -> Response:
        answer = RedirectResponse(page, 303)
        answer.set_cookie(
            cookie_name(request.headers),
            sessions.begin(),
            httponly=True,
            samesite="strict",
            max_age=SESSION_SECONDS,
        )
        return answer

    @app.get(LOGIN, response_class=HTMLResponse, include_in_schema=False)
    def login(request: Request, code: str = "", page: str = "/") -> Response:
        if not code:
            return asked()
        page = page if _OWN_PAGE.fullmatch(page) else "/"
        if sessions.redeem(code):
            return entered(request, page)
        if sessions.knows(cookie_of(request.headers)):  # the link was opened again
            return RedirectResponse(page, 303)
        return asked("This link has been used or is too old.")

    @app.post(LOGIN, response_class=HTMLResponse, include_in_schema=False)
    async def enter(request: Request) -> Response:
        given = (parse_qs(await _form(request)).get("token") or [""])[0].strip()
        return entered(request, "/") if sessions.is_token(given) else asked("This is not the token.")

    @app.post(LOGOUT, include_in_schema=False)
    def leave(request: Request) -> Response:
        sessions.end(cookie_of(request.headers))
        answer = RedirectResponse(LOGIN, 303)
        answer.delete_cookie(cookie_name(request.headers), httponly=True, samesite="strict")
        return answer


async def _form(request: Request) -> str:
    """What a form sends; nothing when it is too long: who sends it is not known yet, and is kept nowhere."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LONGEST:
            return ""
    return body.decode("utf-8", "replace")

"""REST and the pages: what a call or its token can be refused for."""

from __future__ import annotations

from weir.errors.base import ExternalError, UserError


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

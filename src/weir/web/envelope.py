"""One form of an answer, `{"data": ...}`, and one of an error, `{"error": {what, why, hint}}`."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from weir import errors
from weir.errors import BadRequestError, ExternalError, UserError, WeirError, error_form

Data = TypeVar("Data")


class DataAnswer(BaseModel, Generic[Data]):
    """What was asked for."""

    data: Data


class Page(BaseModel):
    """Where a page of a list stands."""

    limit: int
    next_before: int | None = Field(description="pass it as `before` for the next page; null at the end")
    total: int = Field(description="how many there have been")


class Paged(BaseModel):
    """A part of a list."""

    data: list[dict[str, Any]]
    page: Page


class ErrorBody(BaseModel):
    """What happened, why, and what to do about it."""

    model_config = ConfigDict(json_schema_extra={"required": ["what", "why", "hint"]})

    what: str
    why: str = ""
    hint: str = ""


class ErrorAnswer(BaseModel):
    """What was asked for was not done."""

    error: ErrorBody


_STATUS: tuple[tuple[type[WeirError], int], ...] = (
    (errors.NoTokenError, 401),
    (errors.ForeignRequestError, 403),
    (errors.NoSuchJobError, 404),
    (errors.NoSuchCheckpointError, 404),
    (errors.NoSuchOperationError, 404),
    (errors.NotASavepointError, 404),
    (errors.NoSupervisorError, 409),
    (errors.JobRunningError, 409),
    (errors.NotDoneError, 409),
    (errors.NoAnswerError, 504),
    (errors.BadRequestError, 422),
    (UserError, 400),
    (ExternalError, 503),
)
FAILURES: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorAnswer} for code in (400, 401, 403, 404, 405, 409, 422, 503, 504)
}
"""How every endpoint may fail; for its description."""


def status_of(error: WeirError) -> int:
    return next((code for kind, code in _STATUS if isinstance(error, kind)), 500)


def words(error: WeirError) -> ErrorBody:
    """What is shown of an error; what was sent or printed may be in it, so without secrets."""
    return ErrorBody(**error_form(error))


def failed(error: WeirError, status: int | None = None) -> Response:
    """An error as an answer."""
    body = ErrorAnswer(error=words(error)).model_dump()
    headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, errors.NoTokenError) else None
    return JSONResponse(body, status or status_of(error), headers)


def install(app: FastAPI) -> None:
    """Let every error of the application come out in the one form."""

    @app.exception_handler(WeirError)
    def _ours(_request: Request, error: WeirError) -> Response:
        return failed(error)

    @app.exception_handler(Exception)
    def _broken(_request: Request, error: Exception) -> Response:
        return failed(WeirError(what=f"internal error in weir: {type(error).__name__}"))

    @app.exception_handler(RequestValidationError)
    def _invalid(_request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
        return failed(BadRequestError(reason=f"{where}: {first['msg'][:1].lower()}{first['msg'][1:]}"))

    @app.exception_handler(HTTPException)
    def _http(_request: Request, error: HTTPException) -> Response:
        reason = {404: "there is nothing at this address", 405: "this address does not take this method"}
        why = reason.get(error.status_code, str(error.detail))
        return failed(BadRequestError(reason=why), error.status_code)

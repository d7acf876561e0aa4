"""Every error of the server as OpenAI's API words it, with the status that clients expect."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from utils.serving.http.tools import ClientLeft, error_response
from utils.serving.mailbox import (
    EngineDeadError,
    EngineGenerateError,
    FormError,
    QueueOverflowError,
)


def add_error_handlers(app: FastAPI) -> None:
    """Every error in OpenAI's format, with the status that clients expect."""

    @app.exception_handler(RequestValidationError)
    async def bad_body(http: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:]) or None
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = "this server knows no such field"
        elif first["type"] in ("json_invalid", "model_attributes_type"):
            field, message = None, "The body is not a JSON object, or has no Content-Type of one."
        return error_response(400, f"{field}: {message}" if field else message, field)

    @app.exception_handler(HTTPException)
    async def refused(http: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})  # such as Allow, for a method that is not allowed
        return error_response(error.status_code, str(error.detail), headers=headers)

    @app.exception_handler(QueueOverflowError)
    async def busy(http: Request, error: QueueOverflowError) -> Response:
        return error_response(503, str(error), headers={"Retry-After": "1"})

    @app.exception_handler(EngineGenerateError)
    async def failed(http: Request, error: EngineGenerateError) -> Response:
        return error_response(500, str(error))

    @app.exception_handler(FormError)
    async def impossible(http: Request, error: FormError) -> Response:
        return error_response(400, str(error))

    @app.exception_handler(EngineDeadError)
    async def dead(http: Request, error: EngineDeadError) -> Response:
        return error_response(503, str(error))

    @app.exception_handler(ClientLeft)
    async def gone(http: Request, error: ClientLeft) -> Response:
        return Response(status_code=499)  # nobody reads it; nginx's number for this

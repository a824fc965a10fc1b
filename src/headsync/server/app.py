"""The application: which path leads where. What happens there is in the other files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

import headsync
from headsync.server import metrics, recordings
from headsync.server.guard import Guard, error_body
from headsync.server.house import House
from headsync.server.protocol import Stream
from headsync.server.talking import converse
from headsync.server.trouble import StreamError
from headsync.server.vosk import VoskStream

PAGE = Path(__file__).parent / "page"
STATUSES = {"busy": 503, "leaving": 503, "model": 404, "internal": 500}  # other trouble: 400


# A page that loads nothing from elsewhere, runs nothing but its own files, and sits in nobody else's frame.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Page(StaticFiles):
    """The files of the page; WebSockets that lead nowhere are closed here too."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).close()
        else:
            await super().__call__(scope, receive, send)

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(PAGE_HEADERS)
        return response


def build_app(house: House, page: Path = PAGE) -> FastAPI:
    """All routes of one process."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        house.close()

    app = FastAPI(
        title="headsync",
        version=headsync.__version__,
        description="Streaming speech recognition. Live streams use the WebSockets /v1/stream and /vosk.",
        lifespan=lifespan,
        docs_url=None,  # they would load programs from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # "/healthz/" is no path, with the page or without
    )
    app.add_middleware(
        Guard, token=house.token, limits=house.limits, refused=lambda why: house.metrics.refused.labels(why).inc()
    )
    _add_errors(app)
    _add_health(app, house)
    _add_streams(app, house)
    app.include_router(recordings.build_routes(house))
    if page.is_dir():
        app.router.default = Page(directory=page, html=True)  # not a mount, which would answer for others' methods
    return app


def _add_streams(app: FastAPI, house: House) -> None:
    @app.websocket("/v1/stream")
    async def stream(websocket: WebSocket) -> None:
        await converse(websocket, Stream(list(house.services), house.session, house.limits), house)

    @app.websocket("/vosk")
    @app.websocket("/")  # where programs for vosk-server look for it
    async def vosk(websocket: WebSocket) -> None:
        await converse(websocket, VoskStream(house.session, house.limits), house)


def _add_health(app: FastAPI, house: House) -> None:
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Whether the process is alive."""
        return {"status": "ok"}

    @app.get("/readyz", responses={503: {"description": "All streams are in use, or the server is about to stop"}})
    async def readyz() -> JSONResponse:
        """Whether a new stream would be taken."""
        refusal = house.admission.refusal
        return JSONResponse({"status": refusal.code if refusal else "ready"}, 503 if refusal else 200)

    @app.get("/metrics", response_class=Response, responses={
        200: {"description": "Figures for Prometheus", "content": {"text/plain": {"schema": {"type": "string"}}}},
        401: recordings.ERRORS[401],
    })  # fmt: skip
    def page() -> Response:
        """What is counted."""
        return Response(house.metrics.page(), media_type=metrics.CONTENT_TYPE)


def _add_errors(app: FastAPI) -> None:
    """Errors of all kinds in the form of OpenAI's API."""

    @app.exception_handler(StreamError)
    async def trouble(_request: Request, error: StreamError) -> JSONResponse:
        status = STATUSES.get(error.code, 400)
        kind = "invalid_request_error" if status < 500 else "server_error"
        code = "model_not_found" if error.code == "model" else error.code
        headers = {"retry-after": "5"} if status == 503 else None
        return JSONResponse(error_body(str(error), kind, code), status, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse(error_body("; ".join(map(_complaint, error.errors()))), 400)

    @app.exception_handler(HTTPException)
    async def refused(_request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse(error_body(str(error.detail)), error.status_code, error.headers)


def _complaint(error: Any) -> str:
    """What is wrong with one field of a form."""
    return f"{error['loc'][-1]}: {error['msg']}"

"""The application: routes, error responses, and the files of the page."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

from fastapi import FastAPI, Request, Response, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

import headsync
from headsync.server import docs_page, metrics, openai_api
from headsync.server.access_log import AccessLog, request_id
from headsync.server.app_state import AppState
from headsync.server.deepgram import DeepgramStream
from headsync.server.errors import StreamError, api_error, internal_error
from headsync.server.middleware import Admission, BodyLimits, OriginCheck
from headsync.server.openai_realtime import RealtimeStream
from headsync.server.protocol import NativeStream
from headsync.server.vosk import VoskStream
from headsync.server.websocket import handle_websocket
from headsync.server.wyoming_server import wyoming_server

PAGE = Path(__file__).parent / "page"
HTTP_STATUS = {"busy": 503, "draining": 503, "client-limit": 429, "model": 404, "internal": 500}  # other codes: 400

# The page loads only its own files, runs only its own scripts, and cannot be framed.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class PageFiles(StaticFiles):
    """The files of the page. It also closes WebSockets to unknown paths."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).close()
        else:
            await super().__call__(scope, receive, send)

    async def get_response(self, path: str, scope: Scope) -> Response:
        if scope["method"] not in ("GET", "HEAD"):
            await super().get_response(path, {**scope, "method": "GET"})  # raises 404 for an unknown path
            raise HTTPException(405, headers={"Allow": "GET"})
        response = await super().get_response(path, scope)
        response.headers.update(PAGE_HEADERS)
        return response


def build_app(state: AppState, page: Path = PAGE, wyoming: socket.socket | None = None) -> FastAPI:
    """The application of one process; `wyoming` is the listener of the Wyoming protocol."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with wyoming_server(state, wyoming) if wyoming else nullcontext():
            yield
        state.close()

    app = FastAPI(
        title="headsync",
        version=headsync.__version__,
        description="Streaming speech recognition. Live streams use WebSockets.",
        lifespan=lifespan,
        docs_url=None,  # it would load scripts from another host; _add_docs replaces it
        redoc_url=None,
        redirect_slashes=False,  # "/healthz/" is unknown, with or without the page
    )
    _add_middleware(app, state)
    _add_error_handlers(app)
    _add_health(app, state)
    _add_websockets(app, state)
    app.include_router(openai_api.build_routes(state))
    _add_docs(app)
    if page.is_dir():
        app.router.default = PageFiles(directory=page, html=True)  # a mount would answer wrong methods of other routes
    return app


def _add_middleware(app: FastAPI, state: AppState) -> None:
    """The last one added runs first."""
    origins, rejected = state.access.origins, state.metrics.count_rejection
    app.add_middleware(BodyLimits, limits=state.limits, rejected=rejected)
    app.add_middleware(Admission, token=state.token, rate=state.connection_rate, rejected=rejected)
    app.add_middleware(OriginCheck, allowed=origins, rejected=rejected)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization"],
            expose_headers=["x-request-id"],
        )
    app.add_middleware(AccessLog)


def _add_websockets(app: FastAPI, state: AppState) -> None:
    @app.websocket("/v1/stream")
    async def stream(websocket: WebSocket) -> None:
        models, aliases, query = list(state.services), state.access.aliases, websocket.query_params
        protocol = NativeStream(models, state.open_session, state.limits, aliases, query)
        await handle_websocket(websocket, protocol, state)

    @app.websocket("/v1/realtime")
    async def realtime(websocket: WebSocket) -> None:
        def model_name(name: str) -> str:
            return state.service(name).name

        model = websocket.query_params.get("model", "")
        await handle_websocket(websocket, RealtimeStream(model_name, state.open_session, state.limits, model), state)

    @app.websocket("/v1/listen")
    async def listen(websocket: WebSocket) -> None:
        query = websocket.query_params.multi_items()
        protocol = DeepgramStream(query, state.open_session, state.limits, request_id(websocket.scope))
        await handle_websocket(websocket, protocol, state)

    @app.websocket("/vosk")
    @app.websocket("/")  # the path that clients of vosk-server use
    async def vosk(websocket: WebSocket) -> None:
        await handle_websocket(websocket, VoskStream(state.open_session, state.limits), state)


def _add_health(app: FastAPI, state: AppState) -> None:
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Whether the process is alive."""
        return {"status": "ok"}

    @app.get("/readyz", responses={503: {"description": "All streams are in use, or the server is shutting down"}})
    async def readyz() -> JSONResponse:
        """Whether a new stream would be accepted."""
        rejection = state.limiter.rejection()
        return JSONResponse({"status": rejection.code if rejection else "ready"}, 503 if rejection else 200)

    @app.get("/metrics", response_class=Response, responses={
        200: {"description": "Prometheus text format", "content": {"text/plain": {"schema": {"type": "string"}}}},
        401: openai_api.ERROR_RESPONSES[401],
    })  # fmt: skip
    def prometheus() -> Response:
        """Metrics for Prometheus."""
        return Response(state.metrics.render(), media_type=metrics.CONTENT_TYPE)


def _add_docs(app: FastAPI) -> None:
    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(docs_page.render(app.openapi()), headers=PAGE_HEADERS)


def _add_error_handlers(app: FastAPI) -> None:
    """Every error has the body that OpenAI's API uses."""

    @app.exception_handler(StreamError)
    async def stream_error(_request: Request, error: StreamError) -> JSONResponse:
        status = HTTP_STATUS.get(error.code, 400)
        kind = "invalid_request_error" if status < 500 else "server_error"
        code = "model_not_found" if error.code == "model" else error.code
        return JSONResponse(api_error(str(error), kind, code), status, error.retry_header)

    @app.exception_handler(RequestValidationError)
    async def invalid_request(_request: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse(api_error("; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in error.errors())), 400)

    @app.exception_handler(HTTPException)
    async def http_error(_request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse(api_error(str(error.detail)), error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def server_fault(_request: Request, _error: Exception) -> JSONResponse:  # uvicorn logs the traceback
        error = internal_error()
        return JSONResponse(api_error(str(error), "server_error", error.code), 500)

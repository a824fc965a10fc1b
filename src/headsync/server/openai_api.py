"""`/v1/audio/transcriptions` and `/v1/models`, compatible with OpenAI's API.

A recording is streamed through a session in chunks, like a live stream, and shares the network with other streams.
`openai_format` formats the responses.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Any

from fastapi import APIRouter, Depends, File, Form, Request, UploadFile
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.security import HTTPBearer
from starlette.types import Scope

from headsync.errors import AudioError
from headsync.events import Event, Final
from headsync.frontend.audio import stream_audio
from headsync.server import openai_format
from headsync.server.access_log import note_stream, request_id
from headsync.server.app_state import AppState
from headsync.server.base_stream import SessionOptions
from headsync.server.errors import StreamError, api_error, internal_error, unknown_model
from headsync.server.limits import CLIENTS
from headsync.server.model_service import ModelService
from headsync.server.openai_format import Granularity, ResponseFormat, SentText, Transcription
from headsync.server.pcm_stream import PcmStream, Usage
from headsync.text.subtitles import FORMATS

log = logging.getLogger("headsync.server")

CHUNK_SECONDS = 1.0
OWNER = "headsync"

_ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_ERROR_DESCRIPTIONS = {
    400: "The request or its audio is invalid",
    401: "The token is missing or wrong",
    404: "The model is not served",
    408: "The request body arrived too slowly",
    413: "The request is too large",
    429: "This client has too many open streams or new connections",
    503: "All streams are in use, or the server is shutting down",
}
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": description, "content": {"application/json": {"schema": _ERROR_SCHEMA}}}
    for status, description in _ERROR_DESCRIPTIONS.items()
}
_TEXT: dict[str, Any] = {"schema": {"type": "string"}}
TRANSCRIPTION_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The text in the requested format",
        "content": {"application/json": {}, "text/plain": _TEXT, "text/event-stream": _TEXT},
    }
}


class TranscriptionJob:
    def __init__(self, state: AppState, model: str, file: UploadFile, scope: Scope) -> None:
        self._state, self._model, self.scope = state, model, scope
        self._file, self._filename = file.file, file.filename or "file"
        self._finals: list[Final] = []
        self._audio: PcmStream | None = None

    @property
    def result(self) -> Transcription:
        return Transcription(self._finals, self._audio.audio_seconds if self._audio else 0.0)

    async def events(self) -> AsyncGenerator[list[Event]]:
        """The events of each chunk. The job occupies a stream slot until the last chunk."""
        state, chunks, outcome = self._state, self._recognise(), "disconnected"
        with self._slot():
            try:
                while (events := await state.run_in_thread(next, chunks, None)) is not None:
                    self._finals += [event for event in events if isinstance(event, Final)]
                    yield events
                outcome = "done"
            except Exception:  # not GeneratorExit, which a disconnected client causes
                outcome = "error"
                raise
            finally:
                usage = Usage().plus(self._audio)
                state.metrics.observe_end("recording", outcome, *usage)
                note_stream(self.scope, "recording", outcome, *usage)

    @contextmanager
    def _slot(self) -> Iterator[None]:
        state = self._state
        clients = self.scope.get(CLIENTS, ())
        if rejection := state.limiter.rejection(clients):
            state.metrics.count_rejection(rejection.code)
            raise rejection
        open_streams = state.metrics.open_streams.labels("recording")
        with state.limiter.count_client(clients), state.limiter.slot(), open_streams.track_inprogress():
            yield

    def _recognise(self) -> Iterator[list[Event]]:
        """The events of each chunk, computed in the calling thread."""
        model = _service(self._model, self._state).name
        with NamedTemporaryFile() as copy:  # the format is detected from the content
            shutil.copyfileobj(self._file, copy)
            copy.flush()
            try:
                for samples, rate in stream_audio(Path(copy.name), CHUNK_SECONDS):
                    if self._audio is None:
                        session = self._state.open_session(SessionOptions(model))
                        max_seconds = self._state.limits.stream_seconds
                        self._audio = PcmStream(session, rate, max_seconds=max_seconds)
                    yield self._audio.push_samples(samples)
                    if error := self._audio.length_error:
                        raise error
            except AudioError as error:
                raise StreamError("audio", str(error).replace(copy.name, self._filename)) from None
        assert self._audio is not None
        yield self._audio.finish()


def build_routes(state: AppState) -> APIRouter:
    bearer = HTTPBearer(auto_error=False, description="The server's token, if it has one.")
    routes = APIRouter(prefix="/v1", dependencies=[Depends(bearer)], responses=ERROR_RESPONSES)

    @routes.get("/models")
    def models() -> dict[str, Any]:
        """List the served models. The first is the default for streams that name none."""
        return {"object": "list", "data": [_model_object(service) for service in state.services.values()]}

    @routes.get("/models/{name}")
    def model(name: str) -> dict[str, Any]:
        """Describe one model."""
        return _model_object(_service(name, state))

    @routes.post("/audio/transcriptions", response_class=JSONResponse, responses=TRANSCRIPTION_RESPONSES)
    async def transcriptions(
        request: Request,
        file: Annotated[UploadFile, File(description="The recording: WAV, FLAC, MP3, M4A, MP4, WebM, Ogg, Opus, ...")],
        model: Annotated[str, Form(description="The name of a served model.")],
        response_format: Annotated[ResponseFormat, Form()] = "json",
        language: Annotated[str, Form(description="Copied to verbose_json; a model has one language.")] = "",
        stream: Annotated[bool, Form(description="Send text as server-sent events while it is recognised.")] = False,
        granularities: Annotated[list[Granularity] | None, Form(alias="timestamp_granularities[]")] = None,
        include: Annotated[list[str] | None, Form(alias="include[]", description="Must be empty.")] = None,
    ) -> Response:
        """Transcribe a recording."""
        if include:
            raise StreamError("setting", "include[]: log probabilities are not available; leave it empty.")
        job = TranscriptionJob(state, model, file, request.scope)
        events = job.events()
        first = await anext(events)  # errors of the request are raised here, before the response starts
        if stream:
            return StreamingResponse(_event_stream(job, first, events), media_type="text/event-stream")
        async for _ in events:
            if await request.is_disconnected():
                await events.aclose()
                break
        return _response(job.result, response_format, language, granularities or [])

    return routes


async def _event_stream(
    job: TranscriptionJob, first: list[Event], events: AsyncGenerator[list[Event]]
) -> AsyncIterator[str]:
    """Server-sent events: committed text as deltas, then the whole text."""
    sent, chunk = SentText(), first
    try:
        while True:
            for event in chunk:
                text, sent = openai_format.next_delta(sent, event)
                if text:
                    yield openai_format.server_sent_event({"type": "transcript.text.delta", "delta": text})
            chunk = await anext(events)
    except StopAsyncIteration:
        done = {"type": "transcript.text.done", **openai_format.plain_json(job.result)}
        yield openai_format.server_sent_event(done)
    except StreamError as error:
        yield openai_format.server_sent_event(api_error(str(error), code=error.code))
    except Exception:
        log.exception("a transcription failed", extra={"fields": {"id": request_id(job.scope)}})
        fault = internal_error()
        yield openai_format.server_sent_event(api_error(str(fault), "server_error", fault.code))


def _response(
    result: Transcription, response_format: ResponseFormat, language: str, granularities: list[Granularity]
) -> Response:
    if response_format == "json":
        return JSONResponse(openai_format.plain_json(result))
    if response_format == "verbose_json":
        return JSONResponse(openai_format.verbose_json(result, language, granularities))
    return PlainTextResponse(FORMATS[response_format](result.finals))


def _model_object(service: ModelService) -> dict[str, Any]:
    """OpenAI's fields, what the model recognises, and the delay budget of streams that choose none."""
    model = {"id": service.name, "object": "model", "created": service.created, "owned_by": OWNER}
    rest = {"description": service.description, "vocabulary": service.vocabulary, "budget": service.budget}
    return {**model, **rest}


def _service(name: str, state: AppState) -> ModelService:
    if not name:
        raise unknown_model(name, list(state.services))
    return state.service(name)

"""`/v1/audio/transcriptions` and `/v1/models`: whole recordings, in the form of OpenAI's API.

A recording goes through a session as a live stream does, piece by piece, and shares the network with the others.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Depends, File, Form, Request, UploadFile
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.security import HTTPBearer

from headsync.audio import stream_audio
from headsync.errors import AudioError
from headsync.events import Event, Final
from headsync.server import transcripts
from headsync.server.guard import error_body
from headsync.server.hearing import Hearing
from headsync.server.house import House
from headsync.server.service import Service
from headsync.server.transcripts import Granularity, Heard, ResponseFormat, Said
from headsync.server.trouble import StreamError, no_model
from headsync.server.wishes import Wishes
from headsync.subtitles import FORMATS

PIECE_SECONDS = 1.0
OWNER = "headsync"

_ERROR: dict[str, Any] = {
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
_MEANINGS = {
    400: "The request, or the sound in it, is not understood",
    401: "The token is missing or wrong",
    404: "There is no such model",
    408: "The request did not come to its end",
    413: "The request is too large",
    503: "All streams are in use, or the server is about to stop",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": meaning, "content": {"application/json": {"schema": _ERROR}}}
    for status, meaning in _MEANINGS.items()
}
_TEXT: dict[str, Any] = {"schema": {"type": "string"}}
DOCUMENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The text, in the form asked for",
        "content": {"application/json": {}, "text/plain": _TEXT, "text/event-stream": _TEXT},
    }
}


class Recording:
    """An uploaded file on its way to its text."""

    def __init__(self, house: House, model: str, file: BinaryIO, name: str) -> None:
        self._house, self._model, self._file, self._name = house, model, file, name
        self.finals: list[Final] = []
        self.hearing: Hearing | None = None

    @property
    def heard(self) -> Heard:
        return Heard(self.finals, self.hearing.audio_seconds if self.hearing else 0.0)

    async def events(self) -> AsyncGenerator[list[Event]]:
        """What each piece of the recording brought to light; one of the open streams while it lasts."""
        house, pieces, how = self._house, self._recognised(), "gone"
        with self._entered():
            try:
                while (events := await house.aside(next, pieces, None)) is not None:
                    self.finals += [event for event in events if isinstance(event, Final)]
                    yield events
                how = "done"
            except Exception:  # a client that leaves is none
                how = "error"
                raise
            finally:
                hearing = self.hearing
                seconds = (hearing.audio_seconds, hearing.computing_seconds) if hearing else (0.0, 0.0)
                house.metrics.finished("recording", how, *seconds)

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """Be one of the streams; a recording that may not is counted among those refused."""
        house = self._house
        if refusal := house.admission.refusal:
            house.metrics.refused.labels(refusal.code).inc()
            raise refusal
        with house.admission.enter(), house.metrics.streams.labels("recording").track_inprogress():
            yield

    def _recognised(self) -> Iterator[list[Event]]:
        """The same in plain order, for a thread."""
        model = _found(self._model, self._house).name
        with NamedTemporaryFile() as copy:  # what a file holds is told by its content
            shutil.copyfileobj(self._file, copy)
            copy.flush()
            try:
                for samples, rate in stream_audio(Path(copy.name), PIECE_SECONDS):
                    if self.hearing is None:
                        limit = self._house.limits.stream_seconds
                        session = self._house.session(Wishes(model))
                        self.hearing = Hearing(session, rate, most_seconds=limit)
                    yield self.hearing.listen(samples)
                    if trouble := self.hearing.too_long:
                        raise trouble
            except AudioError as error:
                raise StreamError("audio", str(error).replace(copy.name, self._name)) from None
        assert self.hearing is not None
        yield self.hearing.finish()


def build_routes(house: House) -> APIRouter:
    """The routes, documented for programs as well."""
    bearer = HTTPBearer(auto_error=False, description="The token that the server was started with, if any.")
    routes = APIRouter(prefix="/v1", dependencies=[Depends(bearer)], responses=ERRORS)

    @routes.get("/models")
    def models() -> dict[str, Any]:
        """The models that are served; the first is the one that a stream gets without asking."""
        return {"object": "list", "data": [_model(service) for service in house.services.values()]}

    @routes.get("/models/{name}")
    def model(name: str) -> dict[str, Any]:
        """One of the models."""
        return _model(_found(name, house))

    @routes.post("/audio/transcriptions", response_class=JSONResponse, responses=DOCUMENTS)
    async def transcriptions(
        request: Request,
        file: Annotated[UploadFile, File(description="The recording: WAV, FLAC, Ogg, Opus, MP3, ...")],
        model: Annotated[str, Form(description="The name of a model that is served.")],
        response_format: Annotated[ResponseFormat, Form()] = "json",
        language: Annotated[str, Form(description="Repeated in verbose_json; the model knows one.")] = "",
        stream: Annotated[bool, Form(description="Whether to send text as it is recognised.")] = False,
        granularities: Annotated[list[Granularity] | None, Form(alias="timestamp_granularities[]")] = None,
    ) -> Response:
        """The text of a recording."""
        recording = Recording(house, model, file.file, file.filename or "file")
        events = recording.events()
        first = await anext(events)  # what is wrong with a file is mostly known by now
        if stream:
            return StreamingResponse(_sent(recording, first, events), media_type="text/event-stream")
        async for _ in events:
            if await request.is_disconnected():
                await events.aclose()
                break
        return _document(recording.heard, response_format, language, granularities or [])

    return routes


async def _sent(recording: Recording, first: list[Event], events: AsyncGenerator[list[Event]]) -> AsyncIterator[str]:
    """Server-sent events: what stays, as soon as it does, and at the end all of it."""
    said, some = Said(), first
    try:
        while True:
            for event in some:
                piece, said = transcripts.grown(said, event)
                if piece:
                    yield transcripts.server_sent(transcripts.delta(piece))
            some = await anext(events)
    except StopAsyncIteration:
        yield transcripts.server_sent(transcripts.done(recording.heard))
    except StreamError as trouble:
        yield transcripts.server_sent(error_body(str(trouble), code=trouble.code))


def _document(heard: Heard, form: ResponseFormat, language: str, granularities: list[Granularity]) -> Response:
    if form == "json":
        return JSONResponse(transcripts.plain(heard))
    if form == "verbose_json":
        return JSONResponse(transcripts.verbose(heard, language, granularities))
    return PlainTextResponse(FORMATS[form](heard.finals))


def _model(service: Service) -> dict[str, Any]:
    return {"id": service.name, "object": "model", "created": service.created, "owned_by": OWNER}


def _found(name: str, house: House) -> Service:
    if name not in house.services:
        raise no_model(name, list(house.services))
    return house.services[name]

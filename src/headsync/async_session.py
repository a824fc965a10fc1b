"""A session for asyncio: the same events, computed in a thread, so that the event loop stays responsive."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Self, TypeVar

import numpy.typing as npt

from headsync.errors import AudioError
from headsync.events import Event
from headsync.recognizer import Session

T = TypeVar("T")


class AsyncSession:
    """One stream in an asyncio program; calls run in order, in one thread per session.

    Use it as an asynchronous context manager: it is closed at the end of the block, and its thread ends.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._closed = session, False
        from concurrent.futures import ThreadPoolExecutor  # here and below: other programs start sooner

        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headsync-session")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def push(self, samples: npt.ArrayLike, sample_rate: int) -> list[Event]:
        """As `Session.push`."""
        return await self._run(lambda: self._session.push(samples, sample_rate))

    async def finish(self) -> list[Event]:
        """As `Session.finish`."""
        return await self._run(self._session.finish)

    async def events(self, chunks: AsyncIterable[npt.ArrayLike], sample_rate: int) -> AsyncIterator[Event]:
        """The events of all chunks and, after the last one, of the end of the stream."""
        async for samples in chunks:
            for event in await self.push(samples, sample_rate):
                yield event
        for event in await self.finish():
            yield event

    async def close(self) -> None:
        """As `Session.close`; also ends the thread."""
        if not self._closed:
            await self._run(self._session.close)
            self._closed = True
            self._thread.shutdown(wait=False)

    @property
    def audio_seconds(self) -> float:
        """As `Session.audio_seconds`."""
        return self._session.audio_seconds

    async def _run(self, call: Callable[[], T]) -> T:
        if self._closed:
            raise AudioError("this session is closed; open another one for more audio")
        import asyncio

        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

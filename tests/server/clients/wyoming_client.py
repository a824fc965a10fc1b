"""Calls of the client of the package wyoming that the tests compare with the recogniser."""

import asyncio

from wyoming.asr import Transcribe, Transcript, TranscriptChunk, TranscriptStart, TranscriptStop
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.info import Describe, Info
from wyoming.ping import Ping, Pong


async def next_event(client):
    async with asyncio.timeout(60):
        return await client.read_event()


async def describe(port):
    """The description of the server, and the answer to a ping."""
    async with AsyncTcpClient("127.0.0.1", port) as client:
        await client.write_event(Describe().event())
        info = Info.from_event(await next_event(client))
        await client.write_event(Ping(text="a").event())
        return info.to_dict(), Pong.from_event(await next_event(client)).text


async def transcribe(client, chunks, rate, request):
    """The texts of the transcripts, and those of the chunks."""
    await client.write_event(Transcribe(**request).event())
    await client.write_event(AudioStart(rate, 2, 1).event())
    for chunk in chunks:
        await client.write_event(AudioChunk(rate, 2, 1, chunk).event())
    await client.write_event(AudioStop().event())
    received = []
    while (event := await next_event(client)) is not None and not TranscriptStop.is_type(event.type):
        received.append(event)
        if Error.is_type(event.type):
            raise RuntimeError(Error.from_event(event).text)
    if not TranscriptStart.is_type(received[0].type):
        raise RuntimeError(f"the first event is {received[0].type}")
    return [
        [kind.from_event(event).text for event in received if kind.is_type(event.type)]
        for kind in (Transcript, TranscriptChunk)
    ]


async def transcribe_all(port, recordings):
    """Transcribe several recordings with one connection."""
    async with AsyncTcpClient("127.0.0.1", port) as client:
        return [await transcribe(client, *recording) for recording in recordings]

"""The client for vosk-server of the package vosk."""

import argparse
import asyncio

from vosk.transcriber.transcriber import Transcriber


async def transcribe(path, address):
    """The text of a file of 16-bit samples at 16 kHz."""
    transcriber = Transcriber.__new__(Transcriber)  # the constructor downloads a model, also for a server
    transcriber.args = argparse.Namespace(server=address, output_type="txt")
    process = await asyncio.create_subprocess_exec("cat", path, stdout=asyncio.subprocess.PIPE)
    result, size = await transcriber.recognize_stream_server(process)
    await process.wait()
    return transcriber.format_result(result), size

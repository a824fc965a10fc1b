"""Calls of OpenAI's client that the tests compare with the recogniser."""

import base64

import openai

TRANSCRIPTION = "conversation.item.input_audio_transcription"


def every_form(path, base_url):
    """A recording in each response format, and the models."""
    with openai.OpenAI(base_url=base_url, api_key="any", max_retries=0) as client, open(path, "rb") as file:
        given = {"model": "digits-en", "file": (path, file.read())}
        create = client.audio.transcriptions.create
        long = create(**given, response_format="verbose_json", timestamp_granularities=["word", "segment"])
        return {
            "json": create(**given).text,
            **{form: create(**given, response_format=form) for form in ("text", "srt", "vtt")},
            "verbose_json": long.model_dump(),
            "models": [model.id for model in client.models.list()],
            "owner": client.models.retrieve("digits-en").owned_by,
        }


def stream(path, base_url):
    with openai.OpenAI(base_url=base_url, api_key="any", max_retries=0) as client, open(path, "rb") as file:
        events = client.audio.transcriptions.create(model="digits-en", file=file, stream=True)
        return [event.model_dump() for event in events]


def errors(path, base_url):
    """The exception of each refused request."""
    with open(path, "rb") as file:
        good = {"model": "digits-en", "file": (path, file.read())}
    refused = [
        {"model": "whisper-1"},
        {"file": ("notes.txt", b"not sound at all")},
        {"include": ["logprobs"]},
        {"response_format": "xml"},
    ]
    found = []
    with openai.OpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
        for request in refused:
            try:
                client.audio.transcriptions.create(**{**good, **request})
            except openai.APIStatusError as error:
                found.append([type(error).__name__, str(error)])
    return found


async def realtime(chunks, base_url, api_key, turns):
    """The deltas and transcripts for 16-bit samples at 24 kHz."""
    deltas, transcripts = "", []
    async with (
        openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client,
        client.realtime.connect(extra_query={"intent": "transcription"}) as connection,
    ):
        audio = {"input": {"transcription": {"model": "gpt-4o-transcribe"}, "turn_detection": turns}}
        await connection.session.update(session={"type": "transcription", "audio": audio})
        for chunk in chunks:
            await connection.input_audio_buffer.append(audio=base64.b64encode(chunk).decode())
        await connection.input_audio_buffer.commit()
        await connection.input_audio_buffer.clear()  # its answer is the last event
        async for event in connection:
            if event.type == "error":
                raise RuntimeError(event.error.message)
            if event.type == f"{TRANSCRIPTION}.delta":
                deltas += event.delta or ""
            if event.type == f"{TRANSCRIPTION}.completed":
                transcripts.append(event.transcript)
            if event.type == "input_audio_buffer.cleared":
                break
    return deltas, transcripts


async def first_event(base_url, api_key, model):
    async with (
        openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client,
        client.realtime.connect(model=model) as connection,
    ):
        return (await connection.recv()).model_dump()

"""Calls of Deepgram's SDK that the tests compare with the recogniser."""

import contextlib
import threading

import websockets
from deepgram import DeepgramClient
from deepgram.environment import DeepgramClientEnvironment


def client(base, api_key):
    environment = DeepgramClientEnvironment(
        base=base, production=base.replace("http", "ws"), agent=base, agent_rest=base
    )
    return DeepgramClient(api_key=api_key, environment=environment)


def listen(chunks, base, api_key, query):
    """All messages that the SDK receives."""
    with client(base, api_key).listen.v1.connect(**query) as connection:

        def send():
            with contextlib.suppress(websockets.ConnectionClosed):
                for chunk in chunks:
                    connection.send_media(chunk)
                connection.send_close_stream()

        thread = threading.Thread(target=send)
        thread.start()
        messages = []
        with contextlib.suppress(websockets.ConnectionClosed):
            messages.extend(connection)
        thread.join()
    return [message.model_dump(mode="json") for message in messages]


def refusal(base, api_key):
    """The HTTP status with which the server refuses a connection."""
    try:
        with client(base, api_key).listen.v1.connect(model="nova-3"):
            return None
    except websockets.InvalidStatus as error:
        return error.response.status_code

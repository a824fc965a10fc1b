"""The server: live streams over WebSockets, recordings over HTTP, and a page for browsers.

`serve` binds the addresses; `single_process` or `workers` run the application (`app`). `access_log` and `middleware`
see each request first. A live stream passes from `websocket` or `wyoming_server` through `stream_handler` to a protocol
without sockets (`protocol`, `vosk`, `openai_realtime`, `deepgram`, `wyoming`), and from there through `pcm_stream` to a
session of `model_service`, whose calls to the network `batching` joins.
"""

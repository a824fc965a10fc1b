"""The server: live streams over WebSockets, recordings over HTTP, and a page for browsers.

Requests pass through these modules from top to bottom:

    serve            bind the address; run one process or several
    workers          several processes: start, watch, replace, stop
    single_process   load the models and run the application in one process
    draining_server  uvicorn with timeouts; finishes open streams before it stops
    app              routes and error responses
    access_log       log formats; an id and a log entry for every request and stream
    origin           origin check of WebSockets
    auth             token check and rate of connections, before the body is read
    body_limits      size and speed of request bodies
    websocket        WebSockets as connections
    wyoming_server   TCP connections of the Wyoming protocol
    mdns             their announcement
    stream_handler   reads messages of a connection, calls a protocol, sends its replies
    base_stream      common part of the protocols: messages in, messages out, no sockets
    protocol         the protocol of /v1/stream
    vosk             the protocol of vosk-server
    openai_realtime  OpenAI's Realtime API; openai_realtime_config reads its session.update
    deepgram         Deepgram's live API
    wyoming          the Wyoming protocol of Home Assistant
    openai_format    responses of OpenAI's API
    openai_api       /v1/audio/transcriptions and /v1/models
    docs_page        /docs, from the OpenAPI description
    pcm_stream       bytes of audio -> samples -> events of one stream
    session_options  options of one stream
    app_state        state shared by all routes of a process
    model_service    a loaded model that opens sessions
    batching         an engine that runs waiting calls of all streams in one batch
    limits           bounds of a process, and of each of its clients
    metrics          Prometheus metrics
    errors           errors of a stream, with their codes
    page/            the page, plain JavaScript modules
"""

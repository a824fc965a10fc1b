"""Recognition for other programs: live streams and recordings over the network.

    limits       what one process grants
    hearing      bytes of sound -> events of one stream
    protocol     the project's own WebSocket protocol   \
    vosk         the protocol of vosk-server             } messages in, messages out, no sockets
    transcripts  the documents of the transcription API /
    wishes       what a stream asks for when it begins
    service      a model, and how streams share it
    batching     live streams go through the network together
    admission    who may enter, and leaving in good order
    guard        tokens and sizes, before anything else is looked at
    metrics      what is counted
    page         what people see in a browser
    app          the shell: sockets and routes
    run          processes and signals
"""

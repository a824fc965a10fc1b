"""Inputs that once were faults: each raised something else than an error of the package, or took too much memory."""

from __future__ import annotations

import struct

from fuzz.wav import wav

DEEP = b"[" * 3000
HUGE = b"9" * 400  # no float
DIGITS = b"9" * 5000  # no int of Python


def _segments(span: bytes) -> bytes:
    return b"a a.wav\n%%\nu one\n%%\nu s\n%%\nu a " + span


def _update(session_input: bytes) -> bytes:
    return b'{"type":"session.update","session":{"type":"transcription","audio":{"input":' + session_input + b"}}}"


FOUND: dict[str, list[bytes]] = {
    "manifest": [
        DEEP,
        b'{"id":"a","audio":"a","text":"","seconds":' + HUGE + b"}",
        b'{"id":"a","audio":"a","text":"","seconds":' + DIGITS + b"}",
        b'{"id":"a","audio":"a","text":"\\ud800","seconds":1}',
    ],
    "arpa": [b"\\data\\\nngram 1=" + DIGITS],
    "recipe": [
        b"a = " + DEEP,
        b"[training]\nseed = " + DIGITS,
        b"[training]\nnoam_factor = " + HUGE,
        b'extends = "\\u0000"',
        b"\n%%\ndata.train=" + DEEP,
    ],
    "vocabulary": [DEEP, b'{"kind":"words","tokens":["\\ud800"]}'],
    "graphs": [DEEP],
    "checksums": [b"0  " + b"a" * 5000, b"0  /dev/stdin"],
    "stream": [
        b'{"type":"start","settings":{"ctc_weight":' + HUGE + b"}}",
        b'{"type":"start","hotwords":[{"phrase":"one","boost":' + HUGE + b"}]}",
        b'{"type":"start","hotwords":["' + b"one " * 20_000 + b'"]}',
    ],
    "realtime": [
        _update(b'{"turn_detection":{"type":"server_vad","silence_duration_ms":' + HUGE + b"}}"),
        _update(b'{"transcription":{"keywords":["' + b"one " * 20_000 + b'"]}}'),
    ],
    "deepgram": [
        b"?encoding=linear16&sample_rate=" + DIGITS,
        "?encoding=linear16&sample_rate=²".encode(),
        b"?encoding=linear16&sample_rate=16000&endpointing=" + HUGE,
    ],
    "wav-pipe": [
        wav(10, rate=4_000_000_000),
        wav(10, rate=1),
        wav(10, channels=2000),
        wav(10, channels=4000, rate=0x7FFF_FFFF).replace(b"data" + struct.pack("<I", 80_000), b"data" + bytes(4)),
    ],
    "kaldi": [_segments(span) for span in (b"0 inf", b"nan 1", b"1e308 1e309")],
    "table": [b'path,text\n"' + b"a" * 140_000 + b'",one', b"/,one", b".,one"],
    "config": [b"[decoding]\nlength_bonus = " + HUGE],
}

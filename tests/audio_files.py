"""Audio files in every format that is read, encoded by FFmpeg; Vorbis, which it lacks here, by libsndfile."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import soundfile
from numpy.typing import NDArray

CODECS = {
    "wav": "pcm_s16le",
    "flac": "flac",
    "mp3": "libmp3lame",
    "m4a": "aac",
    "mp4": "aac",
    "webm": "libopus",
    "opus": "libopus",
    "ogg": "vorbis",
}
OTHER_CODECS = {"aac": "aac"}
OPUS_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)


def encode(path: Path, samples: NDArray[np.float32], rate: int, **options: str) -> Path:
    """Write (samples, channels) in the format of the path's ending."""
    codec = (CODECS | OTHER_CODECS)[path.suffix[1:]]
    if codec == "vorbis":
        soundfile.write(path, samples, rate, format="OGG", subtype="VORBIS")
        return path
    layout = "mono" if samples.shape[1] == 1 else "stereo"
    written = 48_000 if codec == "libopus" and rate not in OPUS_RATES else rate
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=written, layout=layout)
        assert isinstance(stream, av.AudioStream)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples.T), format="fltp", layout=layout)
        frame.sample_rate = rate
        convert = av.AudioResampler(stream.format, stream.layout, written)
        for converted in [*convert.resample(frame), *convert.resample(None)]:
            container.mux(stream.encode(converted))
        container.mux(stream.encode(None))
    return path

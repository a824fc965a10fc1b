"""Faults in audio and features."""

from __future__ import annotations

from mutations.mutation import Mutation

AUDIO = "tests/frontend/test_audio.py"
FEATURES = "tests/frontend/test_features.py"
PITCH = "tests/frontend/test_pitch.py"

MUTATIONS: list[Mutation] = [
    Mutation(
        "the rest of a block is dropped between two pieces",
        "frontend/audio.py",
        "waiting = [ready[len(ready) - count :]]",
        "waiting, count = [], 0",
        (f"{AUDIO}::test_pieces_of_any_length_are_the_whole_file",),
    ),
    Mutation(
        "float samples of any size are accepted",
        "frontend/audio.py",
        "if largest > LARGEST_FLOAT:",
        "if largest > 1e10:",
        (f"{AUDIO}::test_arrays_that_are_not_audio_are_errors",),
    ),
    Mutation(
        "float samples just above full scale are refused",
        "frontend/audio.py",
        "if largest > LARGEST_FLOAT:",
        "if largest > 1.0:",
        (f"{AUDIO}::test_float_samples_above_full_scale_are_accepted",),
    ),
    Mutation(
        "the second channel is ignored",
        "frontend/audio.py",
        "mono = scaled if scaled.ndim == 1 else scaled.mean(axis=1, dtype=np.float32)",
        "mono = scaled if scaled.ndim == 1 else scaled[:, 0]",
        (f"{AUDIO}::test_channels_are_averaged",),
    ),
    Mutation(
        "the resampler is not drained",
        "frontend/audio.py",
        "return np.concatenate([resampler.push(mono), resampler.finish()])",
        "return resampler.push(mono)",
        (f"{AUDIO}::test_a_tone_keeps_its_pitch_length_and_level",),
    ),
    Mutation(
        "MP3 is decoded by libsndfile, which seeks",
        "frontend/decoders.py",
        'if head.startswith(_SNDFILE_MAGIC) and head[8:] != b"AVI ":',
        'if not head.startswith((b"OggS", b"\\x1aE")) and head[4:8] != b"ftyp":',
        (f"{AUDIO}::test_a_truncated_or_damaged_compressed_file_is_an_error_and_stderr_stays_empty",),
    ),
    Mutation(
        "channels of interleaved formats are mixed up",
        "frontend/decoders.py",
        "table = values.T if frame.format.is_planar else values.reshape(frame.samples, -1)",
        "table = values.reshape(frame.samples, -1)",
        (f"{AUDIO}::test_compressed_stereo_keeps_its_channels",),
    ),
    Mutation(
        "a short compressed file is accepted",
        "frontend/decoders.py",
        "if seconds and declared is not None and seconds < declared - _TOLERANCE_SECONDS:",
        "if False:",
        (f"{AUDIO}::test_a_truncated_or_damaged_compressed_file_is_an_error_and_stderr_stays_empty",),
    ),
    Mutation(
        "damage in the middle of a file is skipped",
        "frontend/decoders.py",
        "if damaged:",
        "if False:",
        (f"{AUDIO}::test_a_damaged_adts_stream_is_an_error",),
    ),
    Mutation(
        "FFmpeg may open playlists",
        "frontend/decoders.py",
        'av.open(file, "r", options=_FFMPEG_OPTIONS, metadata_errors="ignore") as container,',
        'av.open(str(path), "r", metadata_errors="ignore") as container,',
        (f"{AUDIO}::test_a_playlist_opens_no_other_file",),
    ),
    Mutation(
        "the last samples of a push are lost to later frames",
        "frontend/features.py",
        "return _extract(waiting, count), waiting[count * HOP_SAMPLES :].copy()",
        "return _extract(waiting, count), waiting[count * HOP_SAMPLES + 1 :].copy()",
        (FEATURES,),
    ),
    Mutation(
        "energies do not wait for their pitch",
        "frontend/features.py",
        "return rows, FeatureState(rest, waiting[len(pitch) :].copy(), after)",
        "return rows, FeatureState(rest, waiting[:0].copy(), after)",
        (FEATURES,),
    ),
    Mutation(
        "the delay of pitch is forgotten",
        "frontend/features.py",
        "return self.pitch.delay_samples if self.pitch else 0",
        "return 0",
        (FEATURES,),
    ),
    Mutation(
        "running sums restart with every push",
        "frontend/pitch_correlation.py",
        "more = np.cumsum(np.concatenate([sums[-1:], new]))",
        "more = np.cumsum(np.concatenate([0 * sums[-1:], new]))",
        (PITCH,),
    ),
    Mutation(
        "too many samples are dropped after a frame",
        "frontend/pitch_correlation.py",
        "count = min(frames * _HOP - self.begin, len(self.audio) - 1)",
        "count = min(frames * _HOP + 1 - self.begin, len(self.audio) - 1)",
        (PITCH,),
    ),
    Mutation(
        "the best predecessor is searched too near",
        "frontend/pitch.py",
        "below, above = max(_COARSE - int(jumps.min()), 0), max(_COARSE + int(jumps.max()), 0)",
        "below, above = max(-int(jumps.min()), 0), max(int(jumps.max()), 0)",
        (PITCH,),
    ),
    Mutation(
        "a frame is decided one frame late",
        "frontend/pitch.py",
        "if len(undecided) > decision_frames:",
        "if len(undecided) > decision_frames + 1:",
        (PITCH,),
    ),
]

"""Augmentation: ways in which the same words can sound, as pure functions on mono float32 sound at 16 kHz.

Corpora use them when they are prepared. Whatever is random comes from the generator that is passed in, so that a
recording depends on its seed alone.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from headsync.audio import SAMPLE_RATE, FloatArray

NOISES = ("white", "pink", "brown", "hum")
FRAME_SAMPLES = 160  # energies are looked at in steps of 10 ms

Gain = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]  # frequencies in Hz -> amplitudes


def decibel(value: float) -> float:
    """An amplitude factor from decibel."""
    return float(10.0 ** (value / 20.0))


def speed(samples: FloatArray, factor: float) -> FloatArray:
    """Play faster (factor above 1) or slower: tempo, pitch and formants move together, as between people."""
    return np.asarray(soxr.resample(samples, SAMPLE_RATE * factor, SAMPLE_RATE), dtype=np.float32)


def tempo(samples: FloatArray, factor: float) -> FloatArray:
    """Speak faster (factor above 1) or slower at the same pitch: overlap-add of the best matching windows (WSOLA)."""
    window_samples, reach = 480, 160
    hop = window_samples // 2
    if len(samples) < 2 * window_samples:
        return samples
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window_samples) / window_samples)).astype(np.float32)
    length = round(len(samples) / factor)
    count = -(-length // hop) + 1
    padded = np.pad(samples, (hop + reach, window_samples + 2 * reach + hop))
    out = np.zeros((count + 1) * hop, dtype=np.float32)
    natural = reach  # where the last window would go on by itself
    for index in range(count):
        wanted = min(round(index * hop * factor), len(samples))  # the start of the searched stretch in `padded`
        begin = wanted + _best_lag(padded, natural, wanted, hop, reach) if index else reach
        out[index * hop : index * hop + window_samples] += window * padded[begin : begin + window_samples]
        natural = begin + hop
    return out[hop : hop + length]


def _best_lag(padded: FloatArray, natural: int, wanted: int, hop: int, reach: int) -> int:
    target = padded[natural : natural + hop]
    stretch = padded[wanted : wanted + hop + 2 * reach]
    energies = np.convolve(np.square(stretch), np.ones(hop, dtype=np.float32), mode="valid")
    return int(np.argmax(2.0 * np.correlate(stretch, target, mode="valid") - energies))  # the least squared distance


def trim(samples: FloatArray) -> tuple[int, int]:
    """Where the speech begins and ends, by energy over the recording's own background."""
    # The difference of samples whitens the rumble of a room, under which an /f/ or /th/ would drown.
    levels = _levels(np.diff(samples, prepend=samples[:1]))
    if len(levels) == 0:
        return 0, len(samples)
    threshold = max(float(np.percentile(levels, 10)) + 6.0, float(levels.max()) - 35.0)
    loud = levels > min(threshold, float(levels.max()) - 10.0)
    # A click is one loud frame among quiet ones; speech lasts.
    lasting = loud & (np.convolve(np.pad(loud, 2), np.ones(5), mode="valid") >= 3)
    where = np.flatnonzero(lasting if lasting.any() else loud)
    if len(where) == 0:
        return 0, len(samples)
    return int(where[0]) * FRAME_SAMPLES, min(len(samples), int(where[-1] + 1) * FRAME_SAMPLES)


def speech_power(samples: FloatArray) -> float:
    """Mean power of the frames where something is said: pauses should not make a speaker count as quiet."""
    powers = _powers(samples)
    if len(powers) == 0:
        return float(np.mean(np.square(samples))) if len(samples) else 0.0
    return float(powers[powers >= 0.1 * powers.mean()].mean())


def speech_spectrum(samples: FloatArray) -> npt.NDArray[np.float64]:
    """The long-term power spectrum (129 bins) of what is said in a recording: voice, microphone and coding together."""
    width = 256
    if len(samples) < width:
        return np.ones(width // 2 + 1)
    views = np.lib.stride_tricks.sliding_window_view(samples, width)[:: width // 2]
    powers = np.square(np.abs(np.fft.rfft(views * np.hanning(width))))
    loud = powers.sum(1) >= 0.1 * powers.sum(1).mean()
    smooth = np.convolve(np.pad(powers[loud].mean(0), 2, mode="edge"), np.full(5, 0.2), mode="valid")
    return np.asarray(smooth / max(float(smooth.mean()), 1e-20) + 1e-9)


def match_spectrum(samples: FloatArray, spectrum: npt.NDArray[np.float64]) -> FloatArray:
    """The same words as if recorded where the spectrum was taken; no frequency is moved by more than 20 dB."""
    bins = np.linspace(0, SAMPLE_RATE / 2, len(spectrum))
    gains = np.clip(np.sqrt(spectrum / speech_spectrum(samples)), 0.1, 10.0)
    return _filter(samples, lambda hertz: np.interp(hertz, bins, gains))


def noise_spectrum(stretches: Sequence[FloatArray]) -> npt.NDArray[np.float64]:
    """The power spectrum (129 bins) of background noise, from stretches where nobody speaks."""
    width = 256
    views = [np.lib.stride_tricks.sliding_window_view(s, width)[:: width // 2] for s in stretches if len(s) >= width]
    if not views:
        return np.zeros(width // 2 + 1)
    taper = np.hanning(width)
    powers = np.square(np.abs(np.fft.rfft(np.concatenate(views) * taper))) / np.square(taper).sum()
    # A breath or a click in a few windows must not count: the median, which for noise is ln 2 of the mean.
    return np.asarray(np.median(powers, axis=0) / np.log(2.0))


def background(spectrum: npt.NDArray[np.float64], length: int, generator: np.random.Generator) -> FloatArray:
    """Noise of that power spectrum, as long as wanted."""
    bins = np.linspace(0, SAMPLE_RATE / 2, len(spectrum))
    white = generator.standard_normal(length, dtype=np.float32)
    return _filter(white, lambda hertz: np.interp(hertz, bins, np.sqrt(spectrum)))


def noise_of(kind: str, length: int, generator: np.random.Generator, voices: Sequence[FloatArray] = ()) -> FloatArray:
    """Noise of unit power: white, pink, brown, hum, or babble of the voices that are given."""
    if kind == "hum":
        noise = _hum(length, generator)
    elif kind == "babble":
        noise = _babble(length, voices, generator)
    else:
        slope = {"white": 0.0, "pink": 0.5, "brown": 1.0}[kind]
        white = generator.standard_normal(length, dtype=np.float32)
        noise = _filter(white, lambda hertz: np.maximum(hertz, 20.0) ** -slope) if slope else white
    return noise / np.float32(max(float(np.sqrt(np.mean(np.square(noise)))), 1e-9))


def add_noise(samples: FloatArray, noise: FloatArray, snr_db: float) -> FloatArray:
    """Noise of unit power so far under the speech."""
    return samples + noise * np.float32(np.sqrt(speech_power(samples)) * decibel(-snr_db))


def join(pieces: Sequence[FloatArray], starts: Sequence[int], noise: FloatArray) -> FloatArray:
    """The pieces laid into background noise, cross-faded where they overlap; the noise fills what they leave."""
    voice, weight = np.zeros_like(noise), np.zeros_like(noise)
    ends = [start + len(piece) for start, piece in zip(starts, pieces, strict=True)]
    for index, (piece, start, end) in enumerate(zip(pieces, starts, ends, strict=True)):
        fade_in = ends[index - 1] - start if index else 0
        fade_out = end - starts[index + 1] if index + 1 < len(pieces) else 0
        envelope = np.ones(len(piece), dtype=np.float32)
        envelope *= _ramp(len(piece), fade_in)
        envelope *= _ramp(len(piece), fade_out)[::-1]
        voice[start:end] += envelope * piece
        weight[start:end] += np.square(envelope)
    return np.asarray(voice + noise * np.sqrt(np.clip(1.0 - weight, 0.0, 1.0)), dtype=np.float32)


def _ramp(length: int, fade: int) -> FloatArray:
    """Rising over `fade` samples, at the least 5 ms so that nothing clicks, then one."""
    fade = min(max(fade, SAMPLE_RATE // 200), length)
    ramp = np.ones(length, dtype=np.float32)
    ramp[:fade] = np.sin((np.arange(fade) + 0.5) * (0.5 * np.pi / fade))
    return ramp


def roughen(
    samples: FloatArray, generator: np.random.Generator, voices: Callable[[], Sequence[FloatArray]] | None = None
) -> FloatArray:
    """What may happen between a mouth and a recogniser: room, noise, line or microphone, coding, level, clipping.

    `voices` hands out speech for babble; without it there is no babble.
    """
    if generator.random() < 0.4:
        samples = room(samples, generator.uniform(0.1, 0.7), generator)
    if generator.random() < 0.8:
        kind = str(generator.choice([*NOISES, "babble"] if voices else NOISES))
        noise = noise_of(kind, len(samples), generator, voices() if voices and kind == "babble" else ())
        samples = add_noise(samples, noise, generator.uniform(5.0, 40.0))
    line = generator.random()
    if line < 0.2:
        samples = telephone(samples, companded=bool(generator.random() < 0.5))
    elif line < 0.3:
        samples = equalise(samples, generator)
    if generator.random() < 0.2:
        samples = coded(samples, generator.uniform(12.0, 48.0))
    if generator.random() < 0.02:
        samples = np.clip(set_level(samples, generator.uniform(2.0, 10.0)), -1.0, 1.0)
    return set_level(samples, generator.uniform(-40.0, -1.0))


def room(samples: FloatArray, rt60_seconds: float, generator: np.random.Generator) -> FloatArray:
    """The sound in a made-up room: direct path, a few early reflections, a decaying diffuse tail."""
    length = max(1, round(rt60_seconds * SAMPLE_RATE))
    seconds = np.arange(length) / SAMPLE_RATE
    tail = generator.standard_normal(length) * 10.0 ** (-3.0 * seconds / rt60_seconds)
    tail[: SAMPLE_RATE // 500] = 0.0
    tail *= decibel(-generator.uniform(0.0, 12.0)) / max(float(np.sqrt(np.square(tail).sum())), 1e-9)
    early = generator.integers(SAMPLE_RATE // 500, max(length // 2, SAMPLE_RATE // 400), size=generator.integers(2, 7))
    tail[np.minimum(early, length - 1)] += generator.uniform(-0.4, 0.4, size=len(early))
    tail[0] = 1.0
    return _convolve(samples, tail.astype(np.float32))


def telephone(samples: FloatArray, companded: bool) -> FloatArray:
    """The sound of a telephone line: 8 kHz, 300 to 3400 Hz, with the 8-bit mu-law of digital lines if companded."""
    narrow = np.asarray(soxr.resample(samples, SAMPLE_RATE, 8_000), dtype=np.float32)
    narrow = _filter(narrow, _telephone_band, rate=8_000)
    if companded:
        narrow = _mu_law(narrow)
    wide = np.asarray(soxr.resample(narrow, 8_000, SAMPLE_RATE), dtype=np.float32)
    return np.pad(wide, (0, max(0, len(samples) - len(wide))))[: len(samples)]


def coded(samples: FloatArray, kbit: float) -> FloatArray:
    """The sound after Opus coding at about so many kbit a second, as in calls and in most speech on the net."""
    peak = max(float(np.abs(samples).max(initial=0.0)), 1e-9)
    level = 1.0 - (kbit - 6.0) / 250.0  # how the library counts from 256 kbit (0) down to 6 kbit (1)
    file = io.BytesIO()
    driven = samples * np.float32(0.5 / peak)
    soundfile.write(file, driven, SAMPLE_RATE, format="OGG", subtype="OPUS", compression_level=level)
    file.seek(0)
    decoded, _ = soundfile.read(file, dtype="float32")
    whole = np.pad(decoded, (0, max(0, len(samples) - len(decoded))))[: len(samples)]
    return np.asarray(whole * np.float32(peak / 0.5))


def equalise(samples: FloatArray, generator: np.random.Generator) -> FloatArray:
    """Another microphone: a low-pass between 2.5 and 7 kHz, or a tilt of up to 6 dB an octave either way."""
    if generator.random() < 0.5:
        edge = generator.uniform(2_500.0, 7_000.0)
        return _filter(samples, lambda hertz: 1.0 / np.sqrt(1.0 + (hertz / edge) ** 12))
    tilt = generator.uniform(-6.0, 6.0)
    return _filter(samples, lambda hertz: 10.0 ** (tilt * np.log2(np.clip(hertz, 125.0, None) / 1_000.0) / 20.0))


def set_level(samples: FloatArray, peak_db: float) -> FloatArray:
    """Scaled so that the peak stands at that level under full scale; above 0 dB it will clip when stored."""
    peak = float(np.abs(samples).max(initial=0.0))
    return samples * np.float32(decibel(peak_db) / peak) if peak > 0 else samples


def _powers(samples: FloatArray) -> npt.NDArray[np.float64]:
    count = len(samples) // FRAME_SAMPLES
    frames = samples[: count * FRAME_SAMPLES].reshape(count, FRAME_SAMPLES)
    return np.asarray(np.einsum("ts,ts->t", frames, frames) / FRAME_SAMPLES, dtype=np.float64)


def _levels(samples: FloatArray) -> npt.NDArray[np.float64]:
    return np.asarray(10.0 * np.log10(_powers(samples) + 1e-12))


def _filter(samples: FloatArray, gain: Gain, rate: int = SAMPLE_RATE) -> FloatArray:
    """Zero-phase filtering in the frequency domain; gains are worked out on a coarse grid and interpolated."""
    size = _transform_size(len(samples) + rate // 20)
    grid = np.linspace(0.0, rate / 2, 1025)
    gains = np.interp(np.linspace(0.0, rate / 2, size // 2 + 1), grid, gain(grid)).astype(np.float32)
    return np.asarray(np.fft.irfft(np.fft.rfft(samples, size) * gains, size)[: len(samples)], dtype=np.float32)


def _convolve(samples: FloatArray, response: FloatArray) -> FloatArray:
    size = _transform_size(len(samples) + len(response))
    spectrum = np.fft.rfft(samples, size) * np.fft.rfft(response, size)
    return np.asarray(np.fft.irfft(spectrum, size)[: len(samples)], dtype=np.float32)


def _transform_size(length: int) -> int:
    """The next size the fast transform likes: a power of two, or three quarters of one."""
    power = 1 << max(4, int(length - 1).bit_length())
    return power * 3 // 4 if power * 3 // 4 >= length else power


def _telephone_band(hertz: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    low = 1.0 / np.sqrt(1.0 + (300.0 / np.maximum(hertz, 1.0)) ** 8)
    return np.asarray(low / np.sqrt(1.0 + (hertz / 3_400.0) ** 24))


def _mu_law(samples: FloatArray) -> FloatArray:
    peak = max(float(np.abs(samples).max(initial=0.0)), 1e-9)
    driven = samples * np.float32(0.5 / peak)  # lines are driven well below their limit
    code = np.round(np.sign(driven) * np.log1p(255.0 * np.abs(driven)) / np.log(256.0) * 127.0) / 127.0
    return np.asarray(np.sign(code) * np.expm1(np.abs(code) * np.log(256.0)) / 255.0 * (peak / 0.5), dtype=np.float32)


def _hum(length: int, generator: np.random.Generator) -> FloatArray:
    mains = generator.choice([50.0, 60.0]) * generator.uniform(0.998, 1.002)
    turn = np.linspace(0.0, 2.0 * np.pi, 4096, endpoint=False)
    amplitudes, phases = generator.random(8) / np.arange(1, 9), generator.uniform(0.0, 2.0 * np.pi, 8)
    period = sum(a * np.sin(h * turn + p) for h, a, p in zip(range(1, 9), amplitudes, phases, strict=True))
    places = (np.arange(length) * (mains / SAMPLE_RATE * 4096)).astype(np.int64) % 4096
    hiss = np.float32(0.02) * generator.standard_normal(length, dtype=np.float32)
    return np.asarray(np.asarray(period, dtype=np.float32)[places] + hiss)


def _babble(length: int, voices: Sequence[FloatArray], generator: np.random.Generator) -> FloatArray:
    total = np.zeros(length, dtype=np.float32)
    for voice in voices:
        scaled = voice / np.float32(max(np.sqrt(speech_power(voice)), 1e-9)) * np.float32(generator.uniform(0.4, 1.0))
        begin = int(generator.integers(len(voice)))
        total += np.take(scaled, np.arange(begin, begin + length), mode="wrap")
    return total

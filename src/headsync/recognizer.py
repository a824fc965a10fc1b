"""START HERE. Recognition of a stream: audio in, text events out.

    audio -> features -> encoder frames -> endpointer -> online attention + decoder -> search -> events

`Recognizer` is the model: loaded once, immutable, shared by every stream. `Session` is one stream. It computes in
blocks, not in pushes: any chunking of the audio gives the same blocks and therefore bit-identical results.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np
import numpy.typing as npt

from headsync._arguments import StreamSettings
from headsync.config import Config, DecodingConfig, EndpointConfig
from headsync.decoding.build import build_search
from headsync.decoding.decoder_stream import DecoderStream
from headsync.decoding.encoder_stream import Block, EncoderStream
from headsync.endpointing.endpointer import build_endpointer
from headsync.engine import Engine, load_engine
from headsync.errors import AudioError, ConfigError
from headsync.events import Endpoint, Event, Final
from headsync.frontend.audio import Resampler, mix_down, stream_audio
from headsync.frontend.frame_rate import FrameRate
from headsync.frontend.waveform import build_features
from headsync.lm import LanguageModel
from headsync.lm.lstm import load_language_model
from headsync.model_folder import LANGUAGE_MODEL, ModelFolder, find, load_folder
from headsync.recipe import build

if TYPE_CHECKING:
    from headsync.async_session import AsyncSession

LARGEST = 1e18  # a delay or threshold above it has no further effect


class Recognizer:
    """A loaded model, for any number of streams."""

    def __init__(
        self,
        folder: ModelFolder,
        engine: Engine,
        decoding: DecodingConfig,
        lm: LanguageModel | None = None,
        hotwords: Sequence[str | tuple[str, float]] = (),
        endpoint: EndpointConfig | None = None,  # None: as stored with the model
        phrases: Sequence[str] = (),
        threshold: float | None = None,  # None: that of the model
    ) -> None:
        self.folder, self.engine = folder, engine
        self.vocabulary, self.config = folder.vocabulary, folder.config
        self.features = build_features(folder.config)
        self._lm, self._hotwords, self._phrases, self._threshold = lm, hotwords, phrases, threshold
        self.search = build_search(engine, folder.config, decoding, folder.vocabulary, lm, hotwords, phrases, threshold)
        self.endpointer = build_endpointer(endpoint or folder.config.endpoint, folder.config.frame_rate)

    @classmethod
    def load(
        cls,
        name_or_folder: str | Path | None = None,
        *,
        threads: int = 1,
        engine: str = "auto",
        lm: str | Path | None = None,
        hotwords: Sequence[str | tuple[str, float]] = (),
        phrases: Sequence[str] = (),
        **settings: Unpack[StreamSettings],
    ) -> Recognizer:
        """Load a shipped model by name (None: the default model) or a model folder.

        `engine` is "onnx", "torch", or "auto": ONNX Runtime for an exported model, as shipped models are. `lm` is the
        folder of a language model or an ARPA file. `hotwords` are phrases to favour, alone or with a boost in log
        probability. `phrases` restricts the text to these phrases and their sequences; "[unk]" among them stands for
        other speech. All other arguments are settings as in `session`; None: as stored with the model.
        """
        _check_arguments(threads, hotwords)
        folder = load_folder(find(name_or_folder))
        given = _in_frames(settings, folder.config.frame_rate)
        folder = _with_sizes(folder, given)
        threshold = _checked_threshold(given.pop("threshold", None))
        config, endpoint = changed_settings(folder.config.decoding, folder.config.endpoint, given)
        for name in ("lm_weight", "lm_use"):
            if given.get(name) and lm is None and not (folder.path / LANGUAGE_MODEL).exists():
                raise ConfigError(f"{name} = {given[name]} requires a language model; pass one as lm")
        network = load_engine(folder, threads, engine)
        language = _language_model(folder, config, lm)
        return cls(folder, network, config, language, hotwords, endpoint, phrases, threshold)

    def session(
        self, attention: bool = False, phrases: Sequence[str] | None = None, **settings: Unpack[StreamSettings]
    ) -> Session:
        """A new stream; `attention`: with an `Attention` event for each token.

        `phrases` replaces the phrase list of the recogniser for this stream; an empty one allows all text. Settings
        are for this stream alone; the model is not loaded again. `lookahead_ms`, `threshold` (of each head),
        `pause_seconds` and, if the model was trained with varying sizes, `centre_ms` and `right_ms` of the encoder's
        blocks determine the delay. The others are those of `DecodingConfig` and `EndpointConfig` (`beam=10`, ...).
        None: as loaded.
        """
        return Session(self.changed(settings, phrases=phrases), attention)

    def changed(
        self,
        settings: Mapping[str, Any],
        hotwords: Sequence[str | tuple[str, float]] | None = None,
        where: str = "",
        engine: Engine | None = None,
        phrases: Sequence[str] | None = None,
    ) -> Recognizer:
        """The same loaded model with other settings, as in `session`, hotwords, phrases or engine.

        None: as loaded. `where` is for errors.
        """
        given = _in_frames(settings, self.config.frame_rate)
        if not given and hotwords is None and engine is None and phrases is None:
            return self
        folder = _with_sizes(self.folder, given)
        threshold = _checked_threshold(given.pop("threshold", self._threshold))
        decoding, endpoint = changed_settings(self.search.config, self.endpointer.config, given, where)
        hotwords = self._hotwords if hotwords is None else hotwords
        phrases = self._phrases if phrases is None else phrases
        engine = engine or self.engine
        return Recognizer(folder, engine, decoding, self._lm, hotwords, endpoint, phrases, threshold)

    @property
    def budget(self) -> dict[str, float]:
        """The settings that determine the delay of a stream, by the names of `session`."""
        rate, encoder = self.config.frame_rate, self.config.encoder
        sizes = {"centre_ms": encoder.centre_frames, "right_ms": encoder.right_frames} if encoder.varied_frames else {}
        return {
            "lookahead_ms": rate.milliseconds(self.search.config.lookahead_frames),
            "threshold": self._threshold or self.config.decoder.threshold,
            "pause_seconds": self.endpointer.config.pause_seconds,
            **{name: rate.milliseconds(frames) for name, frames in sizes.items()},
        }

    def async_session(
        self, attention: bool = False, phrases: Sequence[str] | None = None, **settings: Unpack[StreamSettings]
    ) -> AsyncSession:
        """As `session`, for asyncio."""
        from headsync.async_session import AsyncSession

        return AsyncSession(self.session(attention, phrases, **settings))

    def transcribe(self, audio: str | os.PathLike[str] | npt.ArrayLike, sample_rate: int | None = None) -> list[Final]:
        """Transcribe an audio file, or samples with their rate; equals pushing it in chunks."""
        session, events = self.session(), []
        for samples, rate in _pieces(audio, sample_rate):
            events += session.push(samples, rate)
        return [event for event in events + session.finish() if isinstance(event, Final)]


@dataclass(frozen=True)
class LoadOptions:
    """The arguments of `Recognizer.load` as a value."""

    model: str | None = None
    lm: Path | None = None
    hotwords: tuple[tuple[str, float], ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()  # all other arguments
    phrases: tuple[str, ...] = ()

    def load(self) -> Recognizer:
        lists: dict[str, Any] = {"hotwords": self.hotwords, "phrases": self.phrases}
        return Recognizer.load(self.model, lm=self.lm, **lists, **dict(self.settings))


class Session:
    """One stream: push samples as they arrive, finish at the end. Not to be used by several threads at once.

    As a context manager it is closed at the end of the block: call `finish` inside the block for the last events.
    """

    def __init__(self, recognizer: Recognizer, attention: bool = False) -> None:
        self._recognizer = recognizer
        self._resampler: Resampler | None = None
        self._features: Any = recognizer.features.start()
        statistics, features = recognizer.folder.statistics, recognizer.features
        self._encoder = EncoderStream.start(recognizer.engine, recognizer.config.encoder, statistics, features)
        self._decoder = DecoderStream.start(recognizer.search, recognizer.endpointer, recognizer.vocabulary, attention)
        self._restarts = recognizer.config.network.family == "moonshine"  # its decoders are worse after other speech
        self._lock = Lock()
        self._finished = False
        self._pushed_samples = self._resampled_samples = 0
        self._waiting: list[npt.NDArray[np.float32]] = []  # at 16 kHz, too few for another block
        self._rate = 0  # until the first push

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def push(self, samples: npt.ArrayLike, sample_rate: int) -> list[Event]:
        """Push audio of any length, rate and number of channels; returns the new events."""
        with self._exclusively():
            if self._finished:
                raise AudioError("this session is finished; open another one for more audio")
            mono = mix_down(np.asarray(samples))
            resampler = self._resampler_for(sample_rate)
            self._pushed_samples += len(mono)
            return self._process(resampler.push(mono), final=False)

    @property
    def audio_seconds(self) -> float:
        """Audio pushed so far; counted in samples, so chunking does not change it."""
        return self._pushed_samples / self._rate if self._rate else 0.0

    def finish(self) -> list[Event]:
        """End the stream and return the last events. A second call returns none."""
        with self._exclusively():
            if self._finished:
                return []
            self._finished = True
            rest = self._resampler.finish() if self._resampler else np.zeros(0, np.float32)
            return self._process(rest, final=True)

    def close(self) -> None:
        """Discard the stream without its last events; pushing to it is an error."""
        with self._exclusively():
            self._finished = True

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise AudioError("this session is in use by another thread; use one session per stream, or a lock")
        try:
            yield
        finally:
            self._lock.release()

    def _process(self, samples: npt.NDArray[np.float32], final: bool) -> list[Event]:
        self._resampled_samples += len(samples)
        self._waiting.append(samples)
        if not final and not self._encoder.is_due(self._resampled_samples):  # one large step is cheaper than many
            return []
        waiting, self._waiting = np.concatenate(self._waiting), []
        frames, self._features = self._recognizer.features.step(waiting, self._features, final)
        self._encoder, events = self._encoder.push(frames), list[Event]()
        while (block := self._next_block(final)) is not None:
            new, self._decoder = self._decoder.push(block)
            events += new
            if self._restarts and any(isinstance(event, Endpoint) and event.reason != "length" for event in new):
                self._encoder = self._encoder.without_left_context()
        return events + (self._decoder.finish(self.audio_seconds) if final else [])

    def _next_block(self, final: bool) -> Block | None:
        block, self._encoder = self._encoder.next_block(final)
        return block if block is None or not final else block._replace(time_seconds=self.audio_seconds)

    def _resampler_for(self, rate: int) -> Resampler:
        if self._resampler is None:
            self._resampler, self._rate = Resampler(rate), rate
        elif rate != self._rate:
            raise AudioError(
                f"this stream began at {self._rate} Hz and cannot continue at {rate!r} Hz; open another session"
            )
        return self._resampler


def changed_settings(
    decoding: DecodingConfig, endpoint: EndpointConfig, given: Mapping[str, Any], where: str = "", prefix: str = ""
) -> tuple[DecodingConfig, EndpointConfig]:
    """The settings with those in `given` replaced, by name; `where` and `prefix` are for errors, as in `build`."""
    names = {field.name for field in fields(EndpointConfig)}
    of_endpoint = {name: value for name, value in given.items() if name in names}
    of_decoding = {name: value for name, value in given.items() if name not in names}
    return (
        build(DecodingConfig, {**asdict(decoding), **of_decoding}, where or "decoding", prefix),
        build(EndpointConfig, {**asdict(endpoint), **of_endpoint}, where or "endpoint", prefix),
    )


def _pieces(
    audio: str | os.PathLike[str] | npt.ArrayLike, sample_rate: int | None
) -> Iterator[tuple[npt.ArrayLike, int]]:
    """An audio file in chunks, or samples as one chunk."""
    if isinstance(audio, (str, os.PathLike)):
        if sample_rate is not None:
            raise AudioError(f"{audio}: an audio file has its own sample rate; call transcribe without sample_rate.")
        yield from stream_audio(audio, piece_seconds=1.0)
    elif sample_rate is None:
        raise AudioError("samples require their rate; pass it as sample_rate, for example 16000.")
    else:
        yield audio, sample_rate


def _checked_threshold(threshold: Any) -> float | None:
    return None if threshold is None else _positive_number("threshold", threshold, "1.0")


def _in_frames(settings: Mapping[str, Any], rate: FrameRate) -> dict[str, Any]:
    """The settings that are given, with M in encoder frames, at least one."""
    given = {name: value for name, value in settings.items() if value is not None}
    if "lookahead_ms" in given:
        seconds = _positive_number("lookahead_ms", given.pop("lookahead_ms"), "320") / 1000
        given["lookahead_frames"] = max(1, rate.frames(seconds))
    return given


def _with_sizes(folder: ModelFolder, given: dict[str, Any]) -> ModelFolder:
    """The folder with the sizes of the encoder's blocks that are given; they are removed from `given`."""
    encoder = folder.config.encoder
    centre = _size("centre_ms", given.pop("centre_ms", None), encoder.centre_frames, folder.config)
    right = _size("right_ms", given.pop("right_ms", None), encoder.right_frames, folder.config)
    encoder = replace(encoder, centre_frames=centre, right_frames=right)
    return replace(folder, config=replace(folder.config, encoder=encoder))


def _size(name: str, milliseconds: Any, own_frames: int, config: Config) -> int:
    """A size of the encoder's blocks in frames, checked; None: the model's own."""
    if milliseconds is None:
        return own_frames
    rate = config.frame_rate
    frames = rate.frames(_positive_number(name, milliseconds, "384") / 1000)
    if not config.encoder.varied_frames:
        raise ConfigError(f"{name} = {milliseconds!r} is not possible: this model was trained with one size of blocks")
    least, most = config.encoder.frame_range
    if not least <= frames <= most:
        limits = f"from {rate.milliseconds(least):g} to {rate.milliseconds(most):g}"
        raise ConfigError(f"{name} = {milliseconds!r} must be {limits}, the sizes that this model was trained with")
    return frames


def _positive_number(name: str, value: Any, example: str) -> float:
    """A number above 0; values of other types raise too, since not every caller uses a type checker."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ConfigError(f"{name} = {value!r} must be a number above 0, for example {example}")
    return float(min(value, LARGEST))


def _check_arguments(threads: Any, hotwords: Any) -> None:
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise ConfigError(f"threads = {threads!r} must be an integer of 1 or more")
    if isinstance(hotwords, str):
        raise ConfigError(f"hotwords = {hotwords!r} must be a list of phrases, for example [{hotwords!r}]")


def _language_model(folder: ModelFolder, config: DecodingConfig, path: str | Path | None) -> LanguageModel | None:
    """The language model at `path`, else the one in the model's folder; None if its weight is 0."""
    if path is None and not (folder.path / LANGUAGE_MODEL).exists():
        return None
    if config.lm_weight == 0:
        if path is None:
            return None
        if not Path(path).exists():
            raise ConfigError(f"{path}: no such language model; check the path")
        raise ConfigError(f"{path}: the language model has no weight; set lm_weight, for example to 0.5")
    return load_language_model(Path(path or folder.path / LANGUAGE_MODEL), folder.vocabulary)

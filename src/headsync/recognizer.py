"""START HERE. Speech in, text out while it is spoken.

    sound -> features -> encoder frames -> online attention + decoder -> search -> events

`Recognizer` is the model: loaded once, immutable, shared by every stream. `Session` is one stream. It works in blocks,
never in pushes: the same blocks come out of any cutting of the audio, and so the same results, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headsync.audio import SAMPLE_RATE, Resampler, mix_down
from headsync.blocks import Block, Blocks
from headsync.config import DecodingConfig
from headsync.engine import Engine, load_engine
from headsync.errors import AudioError, ConfigError
from headsync.events import Event, Final
from headsync.features import Features, levels, normalise
from headsync.folder import LANGUAGE_MODEL, ModelFolder, find, load_folder
from headsync.framing import SUBSAMPLING
from headsync.recipe import build
from headsync.search.build import build_search
from headsync.search.lm import load_language_model
from headsync.search.scorers import LanguageModel
from headsync.utterance import Utterance


class Recognizer:
    """A model that is ready to recognise any number of streams."""

    def __init__(
        self,
        folder: ModelFolder,
        engine: Engine,
        decoding: DecodingConfig,
        lm: LanguageModel | None = None,
        hotwords: Sequence[str | tuple[str, float]] = (),
    ) -> None:
        self.folder, self.engine = folder, engine
        self.vocabulary, self.config = folder.vocabulary, folder.config
        self.features = Features.of(folder.config.features)
        self.search = build_search(engine, folder.config, decoding, folder.vocabulary, lm, hotwords)

    @classmethod
    def load(
        cls,
        name_or_folder: str | Path | None = None,
        *,
        threshold: float | None = None,
        threads: int = 1,
        engine: str = "auto",
        lm: str | Path | None = None,
        hotwords: Sequence[str | tuple[str, float]] = (),
        **decoding: float | str | None,
    ) -> Recognizer:
        """A shipped model by name (None: the default one) or a model folder.

        `engine` is "onnx", "torch", or "auto": ONNX Runtime for a model that has been exported, as shipped ones are.
        `threshold` is that of each head; HS-DACS halts at H times it. `lm` is a language model, its folder or an ARPA
        file; `hotwords` are phrases to listen for, alone or each with a boost in log probability. All further settings
        are those of `DecodingConfig` (`beam=10`, `ctc_weight=0.3`, ...); None means as stored with the model.
        """
        folder = load_folder(find(name_or_folder))
        if threshold is not None and not threshold > 0:
            raise ConfigError(f"threshold = {threshold} must be more than 0")
        given = {name: value for name, value in decoding.items() if value is not None}
        config = build(DecodingConfig, {**asdict(folder.config.decoding), **given}, "decoding")
        if given.get("lm_weight") and lm is None and not (folder.path / LANGUAGE_MODEL).exists():
            raise ConfigError(
                f"lm_weight = {given['lm_weight']}: there is no language model to weigh; name one with --lm"
            )
        network = load_engine(folder, threshold, threads, engine)
        return cls(folder, network, config, _language_model(folder, config, lm), hotwords)

    def session(self, attention: bool = False) -> Session:
        """A new stream; `attention`: it also tells where the heads looked, token by token."""
        return Session(self, attention)

    def transcribe(self, samples: npt.ArrayLike, sample_rate: int) -> list[Final]:
        """A whole recording at once: the same as pushing it piece by piece."""
        session = self.session()
        events = session.push(samples, sample_rate) + session.finish()
        return [event for event in events if isinstance(event, Final)]


class Session:
    """One stream: push samples as they come, finish when there are no more."""

    def __init__(self, recognizer: Recognizer, attention: bool = False) -> None:
        self._recognizer = recognizer
        self._resampler: Resampler | None = None
        self._features = recognizer.features.start()
        columns, delay = recognizer.config.features.columns, recognizer.features.delay_samples
        self._blocks = Blocks.start(recognizer.engine, recognizer.config.encoder, columns, delay)
        self._utterance = Utterance.start(recognizer.search, recognizer.vocabulary, attention)
        self._levels = np.zeros(0)  # of feature frames whose blocks are still to come, in decibels
        self._finished = False
        self._samples = self._heard = 0  # as they were pushed, and at 16 kHz
        self._waiting: list[npt.NDArray[np.float32]] = []  # at 16 kHz, too few for another block
        self._rate = 0  # none yet

    def push(self, samples: npt.ArrayLike, sample_rate: int) -> list[Event]:
        """More sound, of any length, rate and number of channels; what it brought to light."""
        if self._finished:
            raise AudioError("this session has been finished; open another one for more sound")
        mono = mix_down(np.asarray(samples))
        resampler = self._resampler_for(sample_rate)
        self._samples += len(mono)
        return self._take(resampler.push(mono), final=False)

    @property
    def audio_seconds(self) -> float:
        """How much sound has been pushed; counted in samples, so that no cutting changes it."""
        return self._samples / self._rate if self._rate else 0.0

    def finish(self) -> list[Event]:
        """No more sound will come: the last words. Finishing twice brings nothing."""
        if self._finished:
            return []
        self._finished = True
        rest = self._resampler.finish() if self._resampler else np.zeros(0, np.float32)
        return self._take(rest, final=True)

    def _take(self, samples: npt.NDArray[np.float32], final: bool) -> list[Event]:
        self._heard += len(samples)
        self._waiting.append(samples)
        if not final and not self._blocks.is_due(self._heard):  # many small steps would cost more than one
            return []
        waiting, self._waiting = np.concatenate(self._waiting), []
        frames, self._features = self._recognizer.features.step(waiting, self._features, final)
        self._levels = np.concatenate([self._levels, levels(frames)])
        frames = normalise(frames, self._recognizer.folder.statistics)
        blocks, self._blocks = self._blocks.push(frames, final)
        events: list[Event] = []
        for block in blocks:
            events += self._hear(block)
        return events + (self._utterance.finish(self.audio_seconds)[0] if final else [])

    def _hear(self, block: Block) -> list[Event]:
        seconds = min(block.time_seconds, self._heard / SAMPLE_RATE)  # at the end of a stream nothing is waited for
        here, self._levels = np.split(self._levels, [SUBSAMPLING * len(block.log_ctc_TV)])
        level_T = here.reshape(-1, SUBSAMPLING).mean(1)
        events, self._utterance = self._utterance.push(block._replace(time_seconds=seconds, level_T=level_T))
        return events

    def _resampler_for(self, rate: int) -> Resampler:
        if self._resampler is None:
            self._resampler, self._rate = Resampler(rate), rate
        elif rate != self._rate:
            raise AudioError(
                f"this stream began at {self._rate} Hz and cannot go on at {rate!r} Hz; open another session"
            )
        return self._resampler


def _language_model(folder: ModelFolder, config: DecodingConfig, path: str | Path | None) -> LanguageModel | None:
    """The language model asked for, else the one in the model's folder; none where it would have no weight."""
    if path is None and not (folder.path / LANGUAGE_MODEL).exists():
        return None
    if config.lm_weight == 0:
        if path is None:
            return None
        if not Path(path).exists():
            raise ConfigError(f"{path}: there is no such language model")
        raise ConfigError(f"{path}: the language model has no weight; give it one, for example --lm-weight 0.5")
    return load_language_model(Path(path or folder.path / LANGUAGE_MODEL), folder.vocabulary)

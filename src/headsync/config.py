"""Settings: frozen dataclasses; `recipe.py` reads them from TOML files and writes them.

Every default is defined here, beside the paper's name for it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from headsync.errors import ConfigError
from headsync.frontend.frame_rate import LOG_MEL, NUM_MEL, NUM_PITCH, WAVEFORM, FrameRate

HOTWORD_BOOST = 2.0  # default, in log probability
MOST_HYPOTHESES = 1000  # in a beam; the paper's widest has 60
TRIGGER_FRAMES = 8  # triggered attention: encoder frames after its CTC spike that a step may attend to


@dataclass(frozen=True)
class FeaturesConfig:
    """Input features of the network; the paper's systems also use pitch (section 5.1)."""

    pitch: bool = False  # three columns beside the 80 log-mel energies; adds about 0.16 s of latency


@dataclass(frozen=True)
class NetworkConfig:
    """Settings of both encoder and decoder. The paper's sizes are 256/4/2048 and 512/8/2048 (section 5.1)."""

    width: int = 256
    heads: int = 4  # H
    feedforward: int = 2048
    kernels: int = 256  # of each of the two CNN layers: paper
    dropout: float = 0.1
    family: Literal["paper", "moonshine"] = "paper"  # log-mel and encoder frames of 40 ms, or samples and 48 ms

    def __post_init__(self) -> None:
        _check(self, "at least 1", "width", "heads", "feedforward", "kernels")
        _check(self, "at least 0 and less than 1", "dropout")
        if self.width % (2 * self.heads):
            raise ConfigError(f"width = {self.width} must be a multiple of twice heads = {self.heads}")


@dataclass(frozen=True)
class EncoderConfig:
    """The chunk encoder; sizes in encoder frames of 40 ms (48 ms: moonshine), the paper's 64 input frames being 16."""

    layers: int = 6
    left_frames: int = 16
    centre_frames: int = 16
    right_frames: int = 16
    mode: Literal["isolated", "reuse", "contextual", "full"] = "isolated"
    positions: Literal["distance", "sinusoids"] = "distance"  # a learned bias per distance, or sinusoids: paper
    varied_frames: str = ""  # least and most centre and right frames of training, such as "5 14": streams choose theirs

    def __post_init__(self) -> None:
        if self.positions == "sinusoids" and self.mode == "reuse":
            raise ConfigError('positions = "sinusoids" requires mode = "isolated", "contextual" or "full"')
        _check(self, "at least 1", "layers", "centre_frames")
        _check(self, "at least 0", "left_frames", "right_frames")
        if self.varied_frames:
            least, most = self.frame_range
            for name, frames in (("centre_frames", self.centre_frames), ("right_frames", self.right_frames)):
                if not least <= frames <= most:
                    raise ConfigError(f'{name} = {frames} must be within varied_frames = "{self.varied_frames}"')

    @property
    def frame_range(self) -> tuple[int, int]:
        """The least and the most centre and right frames that a stream may choose."""
        try:
            least, most = (int(number) for number in self.varied_frames.split())
        except ValueError:
            least = most = 0
        if not 1 <= least <= most:
            raise ConfigError(f'varied_frames = "{self.varied_frames}" must be two whole numbers, for example "5 14"')
        return least, most


@dataclass(frozen=True)
class DecoderConfig:
    """The online-attention decoder; `attention` names an entry of `headsync.attention.MECHANISMS`."""

    layers: int = 12  # N_d
    attention: str = "hs-dacs"
    threshold: float = 1.0  # of each head; HS-DACS halts at H times this
    energy_bias: float | None = -3.0  # initial value of a learned bias of the energies; "none": no bias (the paper)
    reach: float = 0.0  # share of the threshold that a loss raises the sums to; 0 disables it: ACS, DACS, HS-DACS
    normalised: bool = False  # divide the weights of a step by their sum; the paper does not: ACS, DACS, HS-DACS
    sharpness: float = 1.0  # factor of the energies at the end of training: HMA, MoChA, MMA-MoChA
    heads: int = 0  # H; 0: as many as network.heads
    frame_positions: bool = True  # sinusoids added to encoder frames before keys and values; the paper adds none

    def __post_init__(self) -> None:
        _check(self, "at least 1", "layers")
        _check(self, "at least 0", "heads", "reach")
        _check(self, "more than 0", "threshold", "sharpness")


@dataclass(frozen=True)
class DecodingConfig:
    """Settings of the search; stored with the model."""

    beam: int = 1
    ctc_weight: float = 0.3  # weight of CTC in the joint score; the rest is the decoder's
    lm_weight: float = 0.0  # weight of the language model, if there is one
    lm_use: Literal["fusion", "rescoring"] = "fusion"  # in every step of the search, or on its final hypotheses
    length_bonus: float = 0.0  # for every emitted token
    lookahead_frames: int = 16  # M
    policy: Literal["gated", "published"] = "gated"  # steps wait for a CTC spike, for live streams; or as published
    token_frames: int = 5  # longest duration of a token after its CTC spike
    nbest: int = 1  # hypotheses of an utterance; more than one requires a beam
    confidence_scale: float = 1.0  # of the log odds that a word is correct: see `headsync calibrate`
    confidence_offset: float = 0.0

    def __post_init__(self) -> None:
        _check(self, "at least 1", "nbest", "beam", "lookahead_frames")
        _check(self, "at least 0", "token_frames", "ctc_weight", "lm_weight")
        _check(self, f"at most {MOST_HYPOTHESES}", "beam")
        _check(self, "at most 1", "ctc_weight")
        _check(self, "finite", "length_bonus", "lm_weight", "confidence_scale", "confidence_offset")


@dataclass(frozen=True)
class EndpointConfig:
    """Settings of the endpointer; stored with the model."""

    whole_recording: bool = False  # no endpoints: a recording is one utterance, as in a segmented corpus
    pause_seconds: float = 1.2  # silence that ends an utterance
    longest_seconds: float = 20.0  # from this length on a short pause ends an utterance; at twice the length it ends
    silence_seconds: float = 10.0  # silence without an utterance after which the stream reports an endpoint, once
    spike_probability: float = 0.5  # lowest probability of all tokens together at which CTC spikes
    onset_probability: float = 0.5  # lowest probability of the spike that opens an utterance

    def __post_init__(self) -> None:
        _check(self, "more than 0", "pause_seconds", "silence_seconds")
        if not self.longest_seconds >= self.pause_seconds:
            limit = f"pause_seconds = {self.pause_seconds}"
            raise ConfigError(f"longest_seconds = {self.longest_seconds} must be at least {limit}")
        _check(self, "at least 0 and less than 1", "spike_probability", "onset_probability")


@dataclass(frozen=True)
class DataConfig:
    """Training data: manifests, or texts for a language model. Relative paths are relative to the working folder."""

    train: str = ""
    dev: str = ""
    tokens: Literal["characters", "bpe", "unigram", "words"] = "characters"
    bpe_size: int = 5000  # tokens of a vocabulary of BPE or of a unigram model
    workers: int = 1  # processes that prepare batches

    def __post_init__(self) -> None:
        _check(self, "at least 0", "workers")
        _check(self, "at least 1", "bpe_size")


@dataclass(frozen=True)
class TrainingConfig:
    """Joint CTC/attention training, the settings of section 5.1 where the paper gives them."""

    folder: str = "runs/run"
    start_from: str = ""  # a model folder whose weights and feature statistics to start from; see warm_start.py
    frame_cache: str = ""  # a folder: the encoder of start_from is not trained, its frames are stored there
    match_updates: int = 0  # first updates, which match each decoder layer to that of start_from; 0: no matching
    seed: int = 1
    epochs: int = 100
    epochs_per_pass: int = 1  # more than 1: measure and keep weights several times in a pass over a large corpus
    patience: int = 0  # epochs without improvement before training stops; 0: never
    batch_frames: int = 12_000  # feature frames of an update, padding included, over all processes and parts
    accumulate: int = 1  # parts into which a process splits its share of a batch; more need less memory
    precision: Literal["float32", "bfloat16", "float16"] = "float32"  # of the network; sums stay float32
    ctc_weight: float = 0.3
    label_smoothing: float = 0.1
    loss_per: Literal["token", "utterance"] = "token"  # what the loss of a batch is a mean over
    noam_factor: float = 10.0
    warmup_updates: int = 25_000
    untruncated_updates: int = 0  # first phase, in which no step is halted
    average: int = 5  # checkpoints averaged at the end
    average_of: Literal["best", "last"] = "best"  # by the loss; or, as in ESPnet, the last, with patience by accuracy
    checkpoint_seconds: float = 120.0
    speeds: str = ""  # every pass uses every utterance at each of these speeds, such as "0.9 1.0 1.1"
    frequency_mask_bins: int = 0  # SpecAugment: widest of two bands to mask; 0: none
    time_mask_frames: int = 0  # SpecAugment: longest of two spans to mask; 0: none
    time_warp_frames: int = 0  # SpecAugment: W, maximum shift of a random frame

    def __post_init__(self) -> None:
        _check(
            self, "at least 1", "epochs", "batch_frames", "average", "warmup_updates", "epochs_per_pass", "accumulate"
        )
        try:
            slowest = min(self.all_speeds)
        except ValueError:
            raise ConfigError(f'speeds = "{self.speeds}" must be numbers separated by spaces') from None
        if not slowest >= 0.5:
            raise ConfigError(f"speeds = {slowest} must be at least 0.5")
        _check(self, "at least 0", "seed", "patience", "untruncated_updates", "match_updates", "checkpoint_seconds")
        _check(self, "at least 0", "frequency_mask_bins", "time_mask_frames", "time_warp_frames", "ctc_weight")
        _check(self, "at most 1", "ctc_weight")
        _check(self, "at least 0 and less than 1", "label_smoothing")
        _check(self, "more than 0", "noam_factor")
        self._check_start()

    def _check_start(self) -> None:
        """Check the settings that require a model to start from."""
        if self.frame_cache and not self.start_from:
            raise ConfigError("frame_cache requires start_from, a model folder; set it, or remove frame_cache")
        if self.match_updates and not self.frame_cache:
            raise ConfigError("match_updates requires frame_cache, a folder; set it, or remove match_updates")
        if self.frame_cache and (self.frequency_mask_bins or self.time_mask_frames or self.time_warp_frames):
            raise ConfigError("frame_cache stores encoder frames, so masks and warping of features have no effect")

    @property
    def alone(self) -> bool:
        """Whether only the encoder is trained, by CTC."""
        return self.ctc_weight == 1

    @property
    def all_speeds(self) -> list[float]:
        return [float(speed) for speed in self.speeds.split()] or [1.0]


@dataclass(frozen=True)
class LanguageConfig:
    """An LSTM language model; the paper's are 1 x 1000, 2 x 650 and 4 x 2048 (section 5.1)."""

    layers: int = 2
    width: int = 650
    dropout: float = 0.0
    vocabulary_from: str = ""  # a model folder whose tokens and ids this model shares
    optimiser: Literal["adam", "sgd"] = "adam"
    rate: float = 0.001
    batch_tokens: int = 8_000  # padding included

    def __post_init__(self) -> None:
        _check(self, "at least 1", "layers", "width", "batch_tokens")
        _check(self, "at least 0 and less than 1", "dropout")
        _check(self, "more than 0", "rate")


Kind = Literal["recogniser", "lm"]
TABLES_OF_KIND: dict[Kind, tuple[str, ...]] = {
    "recogniser": ("features", "network", "encoder", "decoder", "decoding", "endpoint", "data", "training"),
    "lm": ("language", "data", "training"),
}


@dataclass(frozen=True)
class Config:
    """A whole recipe: what it makes, and one field for each table of the TOML file."""

    kind: Kind = "recogniser"
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    endpoint: EndpointConfig = field(default_factory=EndpointConfig)
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    language: LanguageConfig = field(default_factory=LanguageConfig)

    def __post_init__(self) -> None:
        for table in dataclasses.fields(self):
            value = getattr(self, table.name)
            if table.name not in ("kind", *TABLES_OF_KIND[self.kind]) and value != type(value)():
                (kind,) = (kind for kind, tables in TABLES_OF_KIND.items() if table.name in tables)
                raise ConfigError(f'{table.name} requires kind = "{kind}", not "{self.kind}"')
        if self.network.family == "moonshine":
            self._check_moonshine()
        if self.encoder.varied_frames and (self.network.family, self.encoder.mode) != ("moonshine", "reuse"):
            raise ConfigError('encoder.varied_frames requires network.family = "moonshine" and encoder.mode = "reuse"')

    @property
    def frame_rate(self) -> FrameRate:
        """Samples, feature frames and encoder frames of the model."""
        return WAVEFORM if self.network.family == "moonshine" else LOG_MEL

    @property
    def columns(self) -> int:
        """Width of a feature frame."""
        if self.network.family == "moonshine":
            return WAVEFORM.window
        return NUM_MEL + (NUM_PITCH if self.features.pitch else 0)

    def _check_moonshine(self) -> None:
        """Refuse settings that this family does not support."""
        bins = self.training.frequency_mask_bins
        refused = {
            "features.pitch = true": self.features.pitch,
            f'encoder.mode = "{self.encoder.mode}"': self.encoder.mode not in ("reuse", "full"),
            "decoder.frame_positions = true": self.decoder.frame_positions,
            f"training.frequency_mask_bins = {bins}": bins > 0,
        }
        if wrong := [setting for setting, is_set in refused.items() if is_set]:
            raise ConfigError(f'{wrong[0]} is not supported with network.family = "moonshine"; change one of them')


_BOUNDS: dict[str, Callable[[float], bool]] = {
    "at least 1": lambda value: value >= 1,
    "at least 0": lambda value: value >= 0,
    "at least 0 and less than 1": lambda value: 0 <= value < 1,
    "more than 0": lambda value: value > 0,
    "at most 1": lambda value: value <= 1,
    f"at most {MOST_HYPOTHESES}": lambda value: value <= MOST_HYPOTHESES,
    "finite": math.isfinite,
}


def _check(table: object, bound: str, *names: str) -> None:
    """Refuse settings outside a bound."""
    for name in names:
        if not _BOUNDS[bound](value := getattr(table, name)):
            raise ConfigError(f"{name} = {value} must be {bound}")

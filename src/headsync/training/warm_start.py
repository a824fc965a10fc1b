"""What a run starts from: nothing, the weights of another model, those of its encoder alone, or both of two models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from headsync.config import Config, TrainingConfig
from headsync.corpora.manifest import Utterance
from headsync.errors import ConfigError, ModelError
from headsync.frontend.features import Statistics
from headsync.frontend.waveform import build_features
from headsync.model_folder import STATISTICS, VOCABULARY, WEIGHTS, find
from headsync.nn.model import Model
from headsync.text.vocabulary import Vocabulary
from headsync.training import Say
from headsync.training.batches import statistics_of

OF_TOKENS = ("ctc.", "decoder.embedding.", "decoder.out.")  # weights that mean nothing under another vocabulary
OF_ENCODER = ("encoder.", "ctc.")
DISTANCES = ".distance_bias"
LAYERS = "encoder.layers."


def take_weights(model: Model, vocabulary: Vocabulary, config: TrainingConfig, say: Say) -> None:
    """Weights of another run, of the same sizes; those that belong to its tokens only where the tokens are the same.

    With two runs to start from, the encoder is that of the one and all else that of the other. An encoder with more
    layers than the one it starts from has new ones on top.
    """
    weights = own = model.state_dict()
    for setting, source in (("start_from", config.start_from), ("encoder_from", config.encoder_from)):
        if not source:
            continue
        folder = _found(setting, source)
        try:
            found = load_file(folder / WEIGHTS)
            if setting == "encoder_from":  # decoders differ from one mechanism to another
                found = weights | {name: found[name] for name in found if name.startswith(OF_ENCODER)}
                found |= {name: _of_span(found[name], own[name]) for name in own if name.endswith(DISTANCES)}
            found |= {name: own[name] for name in own.keys() - found if name.startswith(LAYERS)}
            if Vocabulary.load(folder / VOCABULARY).tokens != vocabulary.tokens:
                say(f"{source} has other tokens: their embedding and the layers that score them are not taken")
                found |= {name: weights[name] for name in own if name.startswith(OF_TOKENS)}
            model.load_state_dict(found)
            weights = found
        except (OSError, SafetensorError, RuntimeError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"training.{setting} = {source!r}: its weights do not fit this recipe ({reason})"
            ) from None


def _found(setting: str, source: str) -> Path:
    try:
        return find(source)
    except ModelError as error:
        raise ConfigError(f"training.{setting} = {error}") from None


def _of_span(found: Tensor, wanted: Tensor) -> Tensor:
    """Biases of distances for windows of another size: the outermost ones stand for those that are missing."""
    more = (wanted.shape[1] - found.shape[1]) // 2
    if more < 0:
        return found[:, -more:more].contiguous()
    return F.pad(found.unsqueeze(0), (more, more), mode="replicate").squeeze(0)


def take_statistics(path: Path, config: Config, utterances: Sequence[Utterance], say: Say) -> Statistics:
    """Measured once; or those that the weights to start from are used to."""
    source, columns = config.training.encoder_from or config.training.start_from, config.columns
    if not path.exists() and source:
        Statistics.load(find(source) / STATISTICS, columns).save(path)
    elif not path.exists():
        say("measuring mean and variance of the features")
        statistics_of(utterances, build_features(config)).save(path)
    return Statistics.load(path, columns)

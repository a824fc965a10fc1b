"""Initial weights of a run: random, those of another model, or those of its encoder alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from headsync.config import Config
from headsync.corpora.manifest import Utterance
from headsync.errors import ConfigError, ModelError
from headsync.frontend.features import Statistics
from headsync.frontend.waveform import build_features
from headsync.model_folder import CONFIG, STATISTICS, VOCABULARY, WEIGHTS, find
from headsync.nn.model import Model
from headsync.recipe import load_config
from headsync.text.vocabulary import Vocabulary
from headsync.training import Say
from headsync.training.batches import statistics_of

OF_TOKENS = ("ctc.", "decoder.embedding.", "decoder.out.")  # weights that depend on the vocabulary
OF_ENCODER = ("encoder.", "ctc.")
DISTANCES = ".distance_bias"
LAYERS = "encoder.layers."


def take_weights(model: Model, vocabulary: Vocabulary, source: str, say: Say) -> None:
    """Load the weights of another model; those of tokens only if the vocabularies are equal.

    A decoder that does not fit or was not trained is not used. If the encoder has more layers than the source, the top
    layers are new.
    """
    if not source:
        return
    own, folder = model.state_dict(), _found(source)
    try:
        found = load_file(folder / WEIGHTS)
        if _untrained(folder) or not _same_shapes(found, own):
            say(f"{source}: only the encoder and its CTC are loaded; the decoder differs, or was not trained")
            found = own | {name: found[name] for name in found if name.startswith(OF_ENCODER)}
        found |= {name: own[name] for name in own.keys() - found if name.startswith(LAYERS)}
        found |= {name: _of_span(found[name], own[name]) for name in own if name.endswith(DISTANCES)}
        if Vocabulary.load(folder / VOCABULARY).tokens != vocabulary.tokens:
            say(f"{source}: the vocabulary differs; embedding and output layers are not loaded")
            found |= {name: own[name] for name in own if name.startswith(OF_TOKENS)}
        model.load_state_dict(found)
    except (OSError, SafetensorError, RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"training.start_from = {source!r}: its weights do not fit this recipe ({reason})") from None


def _found(source: str) -> Path:
    try:
        return find(source)
    except ModelError as error:
        raise ConfigError(f"training.start_from = {error}") from None


def _untrained(folder: Path) -> bool:
    """Whether the decoder of a model has its initial weights: the encoder was trained alone."""
    return load_config(folder / CONFIG).training.alone


def _same_shapes(found: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> bool:
    """Whether all weights of the two decoders have the same names and sizes, but for those of tokens."""
    shapes = [
        {name: x.shape for name, x in each.items() if not name.startswith((*OF_ENCODER, *OF_TOKENS))}
        for each in (found, own)
    ]
    return shapes[0] == shapes[1]


def _of_span(found: Tensor, wanted: Tensor) -> Tensor:
    """Distance biases for windows of another size: missing entries repeat the outermost ones."""
    more = (wanted.shape[1] - found.shape[1]) // 2
    if more < 0:
        return found[:, -more:more].contiguous()
    return F.pad(found.unsqueeze(0), (more, more), mode="replicate").squeeze(0)


def take_statistics(path: Path, config: Config, utterances: Sequence[Utterance], say: Say) -> Statistics:
    """The statistics of the run: stored, of the model to start from, or measured now."""
    source, columns = config.training.start_from, config.columns
    if not path.exists() and source:
        Statistics.load(find(source) / STATISTICS, columns).save(path)
    elif not path.exists():
        say("measuring mean and variance of the features")
        statistics_of(utterances, build_features(config)).save(path)
    return Statistics.load(path, columns)

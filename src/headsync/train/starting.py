"""What a run starts from: nothing, the weights of another model, or those of its encoder alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from headsync.config import TrainingConfig
from headsync.data.manifest import Utterance
from headsync.errors import ConfigError
from headsync.features import Statistics
from headsync.folder import STATISTICS, VOCABULARY, WEIGHTS, save_statistics
from headsync.nn.model import Model
from headsync.tokens import Vocabulary
from headsync.train.data import statistics_of

OF_TOKENS = ("ctc.", "decoder.embedding.", "decoder.out.")  # weights that mean nothing under another vocabulary
OF_ENCODER = ("encoder.", "ctc.")


def take_weights(model: Model, vocabulary: Vocabulary, config: TrainingConfig, say: Callable[[str], None]) -> None:
    """Weights of another run, of the same sizes; those that belong to its tokens only where the tokens are the same."""
    source = config.start_from or config.encoder_from
    if not source:
        return
    own = model.state_dict()
    try:
        weights = load_file(Path(source) / WEIGHTS)
        if config.encoder_from:  # decoders differ from one mechanism to another
            weights = own | {name: weights[name] for name in weights if name.startswith(OF_ENCODER)}
        if Vocabulary.load(Path(source) / VOCABULARY).tokens != vocabulary.tokens:
            say(f"{source} has other tokens: their embedding and the layers that score them start anew")
            weights |= {name: own[name] for name in own if name.startswith(OF_TOKENS)}
        model.load_state_dict(weights)
    except (OSError, SafetensorError, RuntimeError) as error:
        setting, reason = "start_from" if config.start_from else "encoder_from", " ".join(str(error).split())[:200]
        raise ConfigError(f"training.{setting} = {source!r}: its weights do not fit this recipe ({reason})") from None


def take_statistics(
    path: Path, config: TrainingConfig, utterances: Sequence[Utterance], say: Callable[[str], None]
) -> Statistics:
    """Measured once; or those that the weights to start from are used to."""
    source = config.start_from or config.encoder_from
    if not path.exists() and source:
        save_statistics(path, Statistics.load(Path(source) / STATISTICS))
    elif not path.exists():
        say("measuring mean and variance of the features")
        save_statistics(path, statistics_of(utterances))
    return Statistics.load(path)

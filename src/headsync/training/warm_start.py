"""Initial weights of a run: random, those of another model, or those of its encoder alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from headsync._atomic_write import write_atomically
from headsync.attention import mechanism_of
from headsync.attention.softmax import Softmax
from headsync.config import Config
from headsync.corpora.manifest import Utterance
from headsync.errors import ConfigError, ModelError
from headsync.frontend.features import Statistics
from headsync.frontend.waveform import build_features
from headsync.model_folder import CONFIG, STATISTICS, VOCABULARY, WEIGHTS, checksummed, find
from headsync.nn.decoder import Decoder
from headsync.nn.model import Model, build_decoder
from headsync.nn.rotary import CtcHead
from headsync.recipe import load_config
from headsync.text.vocabulary import Vocabulary, build_vocabulary
from headsync.training import Say
from headsync.training.batches import statistics_of

EMBEDDING = "decoder.embedding."
OF_DECODER_TOKENS = (EMBEDDING, "decoder.out.")
OF_TOKENS = ("ctc.", *OF_DECODER_TOKENS)  # weights that depend on the vocabulary
OF_ENCODER = ("encoder.", "ctc.")
OF_DECODER, OF_MECHANISM = "decoder.", ".mechanism."
DISTANCES = ".distance_bias"


def take_weights(model: Model, vocabulary: Vocabulary, source: str, say: Say) -> bool:
    """Load the weights of another model; those of tokens only if the vocabularies are equal.

    Returns whether the decoder of the source was used: not if it does not fit or was not trained. A decoder with
    softmax attention also fits one with another mechanism: the weights of the mechanism are new, and those of layers
    that do not attend are not used.
    """
    if not source:
        return False
    own, folder = model.state_dict(), _found(source)
    try:
        found = load_file(folder / WEIGHTS)
        has_decoder = not _untrained(folder) and (_same_shapes(found, own) or _converts(folder, found, own))
        if has_decoder:
            found = {n: x for n, x in found.items() if n in own or not n.startswith(OF_DECODER)}
            found |= {n: x for n, x in own.items() if OF_MECHANISM in n and n not in found}
        else:
            say(f"{source}: only the encoder and its CTC are loaded; the decoder differs, or was not trained")
            used = (*OF_ENCODER, EMBEDDING) if isinstance(model.ctc, CtcHead) else OF_ENCODER
            found = own | {name: found[name] for name in found if name.startswith(used)}
        found |= {name: _of_span(found[name], own[name]) for name in own if name.endswith(DISTANCES)}
        if Vocabulary.load(folder / VOCABULARY).tokens != vocabulary.tokens:
            say(f"{source}: the vocabulary differs; embedding and output layers are not loaded")
            found |= {name: own[name] for name in own if name.startswith(OF_TOKENS)}
        model.load_state_dict(found)
        return has_decoder
    except (OSError, SafetensorError, RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"training.start_from = {source!r}: its weights do not fit this recipe ({reason})") from None


def write_without_decoder(model: Path, out: Path) -> None:
    """Write a model folder without a decoder, so that runs that start from it have a random one."""
    out.mkdir(parents=True, exist_ok=True)
    with checksummed(out):
        for name in (CONFIG, VOCABULARY, STATISTICS):
            write_atomically(out / name, (model / name).read_bytes())
        used = (*OF_ENCODER, EMBEDDING)  # the embedding may be the output layer of CTC
        kept = {name: x for name, x in load_file(model / WEIGHTS).items() if name.startswith(used)}
        write_atomically(out / WEIGHTS, save(kept))


def start_vocabulary(config: Config, texts: Iterable[str]) -> Vocabulary:
    """The vocabulary of a run: built from its texts, or that of the model whose encoder is not trained."""
    if not config.training.frame_cache:
        return build_vocabulary(config.data, texts)
    return Vocabulary.load(_found(config.training.start_from) / VOCABULARY)


def softmax_decoder(config: Config, vocabulary: Vocabulary) -> Decoder | None:
    """The decoder of the model to start from, if it was trained with softmax attention and has these tokens."""
    folder = _found(config.training.start_from)
    same_tokens = Vocabulary.load(folder / VOCABULARY).tokens == vocabulary.tokens
    if _untrained(folder) or not _has_softmax(folder) or not same_tokens:
        return None
    decoder, weights = build_decoder(load_config(folder / CONFIG), vocabulary.size), load_file(folder / WEIGHTS)
    decoder.load_state_dict({n.removeprefix(OF_DECODER): x for n, x in weights.items() if n.startswith(OF_DECODER)})
    return decoder.eval().requires_grad_(False)


def _has_softmax(folder: Path) -> bool:
    return issubclass(mechanism_of(load_config(folder / CONFIG).decoder), Softmax)


def _found(source: str) -> Path:
    try:
        return find(source)
    except ModelError as error:
        raise ConfigError(f"training.start_from = {error}") from None


def _untrained(folder: Path) -> bool:
    """Whether the decoder of a model has its initial weights: the encoder was trained alone.

    With a frame cache CTC alone was trained, and the decoder is that of an earlier model.
    """
    training = load_config(folder / CONFIG).training
    return training.alone and not training.frame_cache


def _converts(folder: Path, found: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> bool:
    """Whether a softmax decoder has all weights of this one, except those of the mechanism and of tokens."""
    if not _has_softmax(folder):
        return False
    names = [n for n in own if n.startswith(OF_DECODER) and not n.startswith(OF_TOKENS) and OF_MECHANISM not in n]
    return all(name in found and found[name].shape == own[name].shape for name in names)


def _same_shapes(found: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> bool:
    """Whether all weights of the two decoders have the same names and sizes, except those of tokens."""
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

"""Model cards of trained models: what the model is, what it learned from, and how it scored on the development set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from headsync.config import Config
from headsync.corpora.lm_text import HELD_OUT
from headsync.text.vocabulary import Vocabulary
from headsync.training.checkpoint import TrainingProgress

RECOGNISER = """\
# {name}

A streaming speech recogniser ({config.decoder.attention}, {parameters:.2f} M parameters, {vocabulary.size} output \
classes: {vocabulary.kind}).

| | |
|---|---|
| encoder | {encoder.layers} layers, left {left} / centre {centre} / right {right} ms, mode {encoder.mode} |
| decoder | {config.decoder.layers} layers, {heads} heads, look-ahead {lookahead} ms |
| trained on | `{config.data.train}`, {utterances} utterances, seed {config.training.seed} |
| training | {progress.update} updates, {progress.epoch} epochs, the {averaged} averaged |
| development set | `{config.data.dev}` |
| there, after the last epoch | loss {dev[0]:.3f}, {dev[1]} |

These errors steer training; measure the model with `headsync evaluate`. Before you publish this model, state here which
data it was trained on, the licence of that data, and what the model should not be used for.
"""

LANGUAGE_MODEL = """\
# {name}

A language model (LSTM, {config.language.layers} x {config.language.width}, {parameters:.2f} M parameters, \
{vocabulary.size} output classes: {vocabulary.kind}).

| | |
|---|---|
| trained on | `{config.data.train}`, {texts[0]} sentences, {texts[1]} words, seed {config.training.seed} |
| training | {progress.update} updates, {progress.epoch} epochs, the {averaged} averaged |
| development set | {source} |
| there, after the last epoch | perplexity {dev[perplexity]:.2f} per token, {dev[word_perplexity]:.1f} per word |

Before you publish this model, state here which texts it was trained on, their licence, and what the model should not be
used for.
"""


def recogniser_card(
    config: Config, vocabulary: Vocabulary, model: nn.Module, utterances: int, progress: TrainingProgress,
    dev: tuple[float, str],
) -> str:  # fmt: skip
    """The card of a recogniser; `dev` is its loss, and its errors in words."""
    encoder = config.encoder
    sizes = {"left": encoder.left_frames, "centre": encoder.centre_frames, "right": encoder.right_frames}
    sizes["lookahead"] = config.decoding.lookahead_frames
    milliseconds = {name: round(config.frame_rate.milliseconds(frames)) for name, frames in sizes.items()}
    heads = config.decoder.heads or config.network.heads
    shared = _shared(config, vocabulary, model, progress)
    return RECOGNISER.format(**shared, **milliseconds, encoder=encoder, heads=heads, utterances=utterances, dev=dev)


def language_model_card(
    config: Config, vocabulary: Vocabulary, model: nn.Module, texts: tuple[int, int], progress: TrainingProgress,
    dev: Mapping[str, float],
) -> str:  # fmt: skip
    """The card of a language model; `texts` are the numbers of sentences and words."""
    source = f"`{config.data.dev}`" if config.data.dev else f"the last {HELD_OUT:.1%} of it"
    return LANGUAGE_MODEL.format(**_shared(config, vocabulary, model, progress), source=source, texts=texts, dev=dev)


def _shared(config: Config, vocabulary: Vocabulary, model: nn.Module, progress: TrainingProgress) -> dict[str, Any]:
    return {
        "config": config, "vocabulary": vocabulary, "progress": progress,
        "name": config.training.folder.rstrip("/").split("/")[-1],
        "parameters": sum(p.numel() for p in model.parameters()) / 1e6,
        "averaged": f"{len(progress.best)} {config.training.average_of}",
    }  # fmt: skip

"""Model cards of trained models: what the model is, what it learned from, and how it scored on the development set."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from headsync.config import Config
from headsync.corpora.lm_text import HELD_OUT
from headsync.text.vocabulary import Vocabulary
from headsync.training.checkpoint import TrainingProgress

RECOGNISER = """\
# {name}

A streaming speech recogniser ({attention}, {parameters:.2f} M parameters, {classes} output classes: {kind}).

| | |
|---|---|
| encoder | {encoder_layers} layers, left {left} / centre {centre} / right {right} ms, mode {mode} |
| decoder | {decoder_layers} layers, {heads} heads, look-ahead {lookahead} ms |
| trained on | `{train}`, {utterances} utterances, seed {seed} |
| training | {updates} updates, {epochs} epochs, the {averaged} averaged |
| development set | `{dev}` |
| there, after the last epoch | loss {loss:.3f}, {errors} |

These errors steer training; measure the model with `headsync evaluate`. Before you publish this model, state here which
data it was trained on, the licence of that data, and what the model should not be used for.
"""

LANGUAGE_MODEL = """\
# {name}

A language model (LSTM, {layers} x {width}, {parameters:.2f} M parameters, {classes} output classes: {kind}).

| | |
|---|---|
| trained on | `{train}`, {sentences} sentences, {words} words, seed {seed} |
| training | {updates} updates, {epochs} epochs, the {averaged} averaged |
| development set | {dev} |
| there, after the last epoch | perplexity {perplexity:.2f} per token, {word_perplexity:.1f} per word |

Before you publish this model, state here which texts it was trained on, their licence, and what the model should not be
used for.
"""


def recogniser_card(
    config: Config,
    vocabulary: Vocabulary,
    model: nn.Module,
    utterances: int,
    progress: TrainingProgress,
    dev: tuple[float, str],
) -> str:
    """The card of a recogniser; `dev` is its loss, and its errors in words."""
    frame = round(config.frame_rate.seconds * 1000)
    return RECOGNISER.format(
        **_common(config, vocabulary, model, progress),
        attention=config.decoder.attention,
        encoder_layers=config.encoder.layers,
        left=config.encoder.left_frames * frame,
        centre=config.encoder.centre_frames * frame,
        right=config.encoder.right_frames * frame,
        mode=config.encoder.mode,
        decoder_layers=config.decoder.layers,
        heads=config.decoder.heads or config.network.heads,
        lookahead=config.decoding.lookahead_frames * frame,
        utterances=utterances,
        dev=config.data.dev,
        loss=dev[0],
        errors=dev[1],
    )


def language_model_card(
    config: Config, vocabulary: Vocabulary, model: nn.Module, texts: tuple[int, int], progress: TrainingProgress,
    dev: Mapping[str, float],
) -> str:  # fmt: skip
    """The card of a language model; `texts` are the numbers of sentences and words."""
    return LANGUAGE_MODEL.format(
        **_common(config, vocabulary, model, progress),
        layers=config.language.layers,
        width=config.language.width,
        sentences=texts[0],
        words=texts[1],
        dev=f"`{config.data.dev}`" if config.data.dev else f"the last {HELD_OUT:.1%} of it",
        **dev,
    )


def _common(config: Config, vocabulary: Vocabulary, model: nn.Module, progress: TrainingProgress) -> dict[str, object]:
    return {
        "name": config.training.folder.rstrip("/").split("/")[-1],
        "parameters": sum(p.numel() for p in model.parameters()) / 1e6,
        "classes": vocabulary.size,
        "kind": vocabulary.kind,
        "train": config.data.train,
        "seed": config.training.seed,
        "updates": progress.update,
        "epochs": progress.epoch,
        "averaged": f"{len(progress.best)} {config.training.average_of}",
    }

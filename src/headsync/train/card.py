"""The model card that every trained model gets: what it is, what it learned from, how good it was while learning."""

from __future__ import annotations

from headsync.config import Config
from headsync.framing import ENCODER_FRAME_SECONDS
from headsync.tokens import Vocabulary
from headsync.train.evaluate import DevResult

CARD = """\
# {name}

A streaming speech recogniser ({attention}, {parameters:.2f} M parameters, {classes} output classes: {kind}).

| | |
|---|---|
| encoder | {encoder_layers} layers, left {left} / centre {centre} / right {right} ms, mode {mode} |
| decoder | {decoder_layers} layers, {heads} heads, look-ahead {lookahead} ms |
| trained on | `{train}`, {utterances} utterances, seed {seed} |
| training | {updates} updates, {epochs} epochs, the {averaged} best averaged |
| development set | `{dev}` |
| there, after the last epoch | loss {loss:.3f}, attention error {attention_error:.2%}, CTC error {ctc_error:.2%} |

The errors above steer training; measure with `headsync evaluate`. Before you pass this model on, say here which data it
was trained on, under which licence that data is, and what the model should not be used for.
"""


def card(
    config: Config, vocabulary: Vocabulary, parameters: int, utterances: int, updates: int, epochs: int, dev: DevResult
) -> str:
    """The text of the card."""
    frame = round(ENCODER_FRAME_SECONDS * 1000)
    return CARD.format(
        name=config.training.folder.rstrip("/").split("/")[-1],
        attention=config.decoder.attention,
        parameters=parameters / 1e6,
        classes=vocabulary.size,
        kind=vocabulary.kind,
        encoder_layers=config.encoder.layers,
        left=config.encoder.left_frames * frame,
        centre=config.encoder.centre_frames * frame,
        right=config.encoder.right_frames * frame,
        mode=config.encoder.mode,
        decoder_layers=config.decoder.layers,
        heads=config.network.heads,
        lookahead=config.decoding.lookahead_frames * frame,
        train=config.data.train,
        dev=config.data.dev,
        utterances=utterances,
        seed=config.training.seed,
        updates=updates,
        epochs=epochs,
        averaged=min(epochs, config.training.average),
        **dev._asdict(),
    )

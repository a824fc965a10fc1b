"""When the words of a known text were said: forced alignment by the CTC of a model.

A judge of delays that no recogniser has a hand in: the same frames for every system that is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from headsync.data.manifest import Utterance
from headsync.engine.torch import TorchEngine
from headsync.features import Features, normalise
from headsync.folder import ModelFolder, load_folder
from headsync.framing import ENCODER_FRAME_SECONDS
from headsync.nn.model import Model
from headsync.train.align import NOWHERE, first_frames
from headsync.train.data import collate, features_of


class Placed(NamedTuple):
    """Where CTC says a word, in seconds of the recording: the frame of its first token, to that of its last."""

    start_seconds: float
    end_seconds: float


@torch.inference_mode()
def placed_words(model: Path, utterances: Sequence[Utterance]) -> dict[str, tuple[Placed, ...]]:
    """The words of each utterance whose text CTC can say in so many frames."""
    folder = load_folder(model)
    network = TorchEngine.load(folder, None, 1).model
    placed = {utterance.id: _placed(folder, network, utterance) for utterance in utterances}
    return {name: words for name, words in placed.items() if words}


def _placed(folder: ModelFolder, network: Model, utterance: Utterance) -> tuple[Placed, ...]:
    tokens = folder.vocabulary.encode(utterance.text)
    features = features_of(utterance, Features.of(folder.config.features))
    batch = collate([normalise(features, folder.statistics)], [tokens], folder.vocabulary.end)
    frames_BTE, frames_B = network.encoder.whole(batch.features_BTF, batch.lengths_B)
    first_BL = first_frames(network.ctc(frames_BTE).log_softmax(-1), frames_B, batch.targets_BL)
    frames = first_BL[0].tolist()
    if NOWHERE in frames[: len(tokens)]:
        return ()
    spans = folder.vocabulary.words(tokens)
    edges = ((frames[span.first], frames[span.end - 1] + 1) for span in spans)
    return tuple(Placed(*(round(frame * ENCODER_FRAME_SECONDS, 3) for frame in pair)) for pair in edges)

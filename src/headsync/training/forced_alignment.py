"""Forced alignment: the frame at which CTC emits each token of a known text, on its most probable path (Viterbi).

Two uses. Triggered attention lets the step of token i attend to the frames up to a_i and a few more, where a_i is the
frame at which CTC emits the token; in training a_i comes from the CTC of the network that is being trained. And
`align_words` gives the times of the words of a known text, as a reference for delays.

Shapes: B rows, T encoder frames, L output steps, V classes, S = 2L + 1 places in a text with blanks around its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from headsync.attention import mechanism_of
from headsync.attention.softmax import Triggered
from headsync.config import TRIGGER_FRAMES, Config
from headsync.corpora.manifest import Utterance
from headsync.engine.torch import TorchEngine
from headsync.frontend.features import normalise
from headsync.frontend.waveform import build_features
from headsync.model_folder import ModelFolder, load_folder
from headsync.nn.model import Model
from headsync.training.batches import PADDING, Batch, collate, features_of

NOWHERE = -1


class AlignedWord(NamedTuple):
    """The span of a word in seconds of the recording: from the frame of its first token to that of its last."""

    start_seconds: float
    end_seconds: float


def trigger_limits(model: Model, batch: Batch, config: Config) -> Tensor | None:
    """The first frame that each output step may not attend to, (B, L); None unless attention is triggered.

    <eos>, padding and texts with too few frames have no limit.
    """
    if not issubclass(mechanism_of(config.decoder), Triggered):
        return None
    log_p_BTV, frames_B = _ctc(model, batch)
    first_BL = first_frames(log_p_BTV, frames_B, batch.targets_BL)
    limit_BL = (first_BL + TRIGGER_FRAMES + 1).minimum(frames_B[:, None])
    return torch.where(first_BL == NOWHERE, frames_B[:, None], limit_BL)


@torch.no_grad()
def first_frames(log_p_BTV: Tensor, frames_B: Tensor, targets_BL: Tensor) -> Tensor:
    """The frame at which each token is first emitted on the best path, (B, L).

    `targets` are the tokens and <eos>, followed by PADDING. <eos> and padding are NOWHERE; so are all tokens
    of a text that has too few frames.
    """
    count_B = (targets_BL != PADDING).sum(1) - 1  # without <eos>
    labels_BS = _with_blanks(targets_BL.clamp(min=0))
    score_BS, moves = _forward(log_p_BTV, frames_B, labels_BS)
    last_BE = torch.stack([2 * count_B, (2 * count_B - 1).clamp(min=0)], 1)  # ends in blank, or in the last token
    best_B, which_B = score_BS.gather(1, last_BE).max(1)
    path_BT = _backward(moves, last_BE.gather(1, which_B[:, None]).squeeze(1))
    frame_T = torch.arange(log_p_BTV.shape[1], device=path_BT.device)
    token_L = torch.arange(targets_BL.shape[1], device=path_BT.device)
    says_BLT = (path_BT[:, None] == 2 * token_L[:, None] + 1) & (frame_T < frames_B[:, None, None])
    first_BL = torch.where(says_BLT, frame_T, len(frame_T)).amin(-1)
    said_BL = (token_L < count_B[:, None]) & (best_B > -torch.inf)[:, None]
    return first_BL.masked_fill(~said_BL, NOWHERE)


@torch.inference_mode()
def align_words(model: Path, utterances: Sequence[Utterance]) -> dict[str, tuple[AlignedWord, ...]]:
    """The words of each utterance, by CTC of a model; utterances with too few frames for their text are left out."""
    folder = load_folder(model)
    network = TorchEngine.load(folder, 1).model
    aligned = {utterance.id: _align_words(folder, network, utterance) for utterance in utterances}
    return {name: words for name, words in aligned.items() if words}


def _ctc(model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
    """Log probabilities of CTC and the frames of each row, without dropout; the mode of the network is restored."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        frames_BTE, frames_B = model.encode(batch.features_BTF, batch.lengths_B)
        log_p_BTV = model.ctc(frames_BTE).float().log_softmax(-1)
    model.train(was_training)
    return log_p_BTV, frames_B


def _with_blanks(tokens_BL: Tensor) -> Tensor:
    """blank, y_1, blank, y_2, ..., blank."""
    return F.pad(torch.stack([torch.zeros_like(tokens_BL), tokens_BL], 2).flatten(1), (0, 1))


def _forward(log_p_BTV: Tensor, frames_B: Tensor, labels_BS: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The score of the best path to each place after a row's last frame, and the moves at every frame."""
    before_BS = F.pad(labels_BS, (2, 0))[:, :-2]
    may_skip_BS = labels_BS != before_BS  # the blank between different tokens; the label two before a blank is a blank
    score_BS = torch.full_like(labels_BS, -torch.inf, dtype=log_p_BTV.dtype)
    score_BS[:, 0] = 0.0  # before the first frame: a blank at no cost
    moves = []
    for t in range(log_p_BTV.shape[1]):
        one_BS, two_BS = (F.pad(score_BS, (by, 0), value=-torch.inf)[:, :-by] for by in (1, 2))
        best_BS, move_BS = torch.stack([score_BS, one_BS, two_BS.masked_fill(~may_skip_BS, -torch.inf)]).max(0)
        exists_B1 = (t < frames_B)[:, None]
        score_BS = torch.where(exists_B1, best_BS + log_p_BTV[:, t].gather(1, labels_BS), score_BS)
        moves.append(move_BS.masked_fill(~exists_B1, 0))
    return score_BS, moves


def _backward(moves: list[Tensor], last_B: Tensor) -> Tensor:
    """The place at every frame of the best path that ends at `last`, (B, T)."""
    place_B1, path = last_B[:, None], []
    for move_BS in reversed(moves):
        path.append(place_B1)
        place_B1 = place_B1 - move_BS.gather(1, place_B1)
    return torch.cat(path[::-1], 1)


def _align_words(folder: ModelFolder, network: Model, utterance: Utterance) -> tuple[AlignedWord, ...]:
    tokens = folder.vocabulary.encode(utterance.text)
    features = features_of(utterance, build_features(folder.config))
    batch = collate([normalise(features, folder.statistics)], [tokens], folder.vocabulary.end)
    frames_BTE, frames_B = network.encoder.whole(batch.features_BTF, batch.lengths_B)
    first_BL = first_frames(network.ctc(frames_BTE).log_softmax(-1), frames_B, batch.targets_BL)
    frames = first_BL[0].tolist()
    if NOWHERE in frames[: len(tokens)]:
        return ()
    spans = folder.vocabulary.words(tokens)
    seconds = folder.config.frame_rate.seconds
    edges = ((frames[span.first], frames[span.end - 1] + 1) for span in spans)
    return tuple(AlignedWord(*(round(frame * seconds, 3) for frame in pair)) for pair in edges)

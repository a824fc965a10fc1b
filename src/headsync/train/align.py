"""Forced alignment: at which frame CTC emits each token of a known text, for training triggered attention.

Triggered attention lets the step of token i see the frames up to a_i and a few more, a_i being the frame at which CTC
emits the token. In training the text is known, so a_i comes from the most probable of all CTC paths that say it
(Viterbi), by the CTC of the network that is being trained.

Shapes: B rows, T encoder frames, L output steps, V classes, S = 2L + 1 places in a text with blanks around its tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headsync.attention import MECHANISMS
from headsync.attention.softmax import Triggered
from headsync.config import Config
from headsync.nn.model import Model
from headsync.train.data import PADDING, Batch

NOWHERE = -1


def limits_of(model: Model, batch: Batch, config: Config) -> Tensor | None:
    """How far each output step may look, (B, L); None for mechanisms whose limit is not CTC's to give.

    <eos>, padding and texts for which there are too few frames see everything.
    """
    if not issubclass(MECHANISMS[config.decoder.attention], Triggered):
        return None
    log_p_BTV, frames_B = _ctc(model, batch)
    first_BL = first_frames(log_p_BTV, frames_B, batch.targets_BL)
    limit_BL = (first_BL + config.decoder.trigger_frames + 1).minimum(frames_B[:, None])
    return torch.where(first_BL == NOWHERE, frames_B[:, None], limit_BL)


@torch.no_grad()
def first_frames(log_p_BTV: Tensor, frames_B: Tensor, targets_BL: Tensor) -> Tensor:
    """The frame at which each token is first emitted on the best path, (B, L).

    `targets` are the tokens and <eos>, PADDING behind; <eos> and padding are NOWHERE, and so is all of a text that no
    path can say in so few frames.
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


def _ctc(model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
    """Log probabilities of CTC and the frames of each row, without dropout, and without a trace in the network."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        frames_BTE, frames_B = model.encoder.whole(batch.features_BTF, batch.lengths_B)
        log_p_BTV = model.ctc(frames_BTE).float().log_softmax(-1)
    model.train(was_training)
    return log_p_BTV, frames_B


def _with_blanks(tokens_BL: Tensor) -> Tensor:
    """blank, y_1, blank, y_2, ..., blank."""
    return F.pad(torch.stack([torch.zeros_like(tokens_BL), tokens_BL], 2).flatten(1), (0, 1))


def _forward(log_p_BTV: Tensor, frames_B: Tensor, labels_BS: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The score of the best path to each place after a row's last frame, and for every frame how far it had moved."""
    before_BS = F.pad(labels_BS, (2, 0))[:, :-2]
    may_skip_BS = labels_BS != before_BS  # the blank between unlike tokens; before a blank there is always a blank
    score_BS = torch.full_like(labels_BS, -torch.inf, dtype=log_p_BTV.dtype)
    score_BS[:, 0] = 0.0  # before the first frame: a blank that costs nothing
    moves = []
    for t in range(log_p_BTV.shape[1]):
        one_BS, two_BS = (F.pad(score_BS, (by, 0), value=-torch.inf)[:, :-by] for by in (1, 2))
        best_BS, move_BS = torch.stack([score_BS, one_BS, two_BS.masked_fill(~may_skip_BS, -torch.inf)]).max(0)
        heard_B1 = (t < frames_B)[:, None]
        score_BS = torch.where(heard_B1, best_BS + log_p_BTV[:, t].gather(1, labels_BS), score_BS)
        moves.append(move_BS.masked_fill(~heard_B1, 0))
    return score_BS, moves


def _backward(moves: list[Tensor], last_B: Tensor) -> Tensor:
    """The best path to a place, from its last frame to its first: the place at every frame, (B, T)."""
    place_B1, path = last_B[:, None], []
    for move_BS in reversed(moves):
        path.append(place_B1)
        place_B1 = place_B1 - move_BS.gather(1, place_B1)
    return torch.cat(path[::-1], 1)

"""The whole network: chunk encoder, CTC head, online-attention decoder.

Shapes: B rows, T feature or encoder frames, L output steps, V output classes, F features.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from headsync.attention.base import Aligned
from headsync.config import Config
from headsync.nn.decoder import Decoder
from headsync.nn.encoder import ChunkEncoder


class Output(NamedTuple):
    """What training needs of a batch."""

    ctc_BTV: Tensor  # logits
    frames_B: Tensor  # encoder frames of each row
    decoder_BLV: Tensor  # logits
    alignments: list[Aligned]  # one per decoder layer


class Model(nn.Module):
    """Features and tokens in, scores out."""

    def __init__(self, config: Config, features: int, classes: int) -> None:
        super().__init__()
        self.encoder = ChunkEncoder(config.encoder, config.network, features)
        self.ctc = nn.Linear(config.network.width, classes)
        self.decoder = Decoder(config.decoder, config.network, classes)

    def forward(self, features_BTF: Tensor, lengths_B: Tensor, tokens_BL: Tensor) -> Output:
        """`tokens` begins with <sos>; the look-ahead limit M is not used in training (section 5.1)."""
        frames_BTE, frames_B = self.encoder.whole(features_BTF, lengths_B)
        logits, alignments = self.decoder.whole(tokens_BL, frames_BTE, frames_B.unsqueeze(1))
        return Output(self.ctc(frames_BTE), frames_B, logits, alignments)

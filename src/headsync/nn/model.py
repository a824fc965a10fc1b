"""The whole network: chunk encoder, CTC head, online-attention decoder.

Shapes: B rows, T feature or encoder frames, L output steps, V output classes, F features.
"""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from headsync.attention.base import Aligned
from headsync.config import Config
from headsync.nn.decoder import Decoder
from headsync.nn.encoder import ChunkEncoder
from headsync.nn.rotary import CtcHead
from headsync.nn.rotary_decoder import RotaryDecoder
from headsync.nn.rotary_encoder import RotaryEncoder


class Output(NamedTuple):
    """The outputs for a batch that training needs."""

    ctc_BTV: Tensor  # logits
    frames_B: Tensor  # encoder frames of each row
    decoder_BLV: Tensor | None  # logits; None if the encoder is trained alone
    alignments: list[Aligned]  # one per decoder layer that attends to frames


class Model(nn.Module):
    """Features and tokens in, scores out."""

    def __init__(self, config: Config, features: int, classes: int) -> None:
        super().__init__()
        self.encoder: ChunkEncoder | RotaryEncoder
        self.ctc: nn.Linear | CtcHead
        if config.network.family == "moonshine":
            self.encoder = RotaryEncoder(config.encoder, config.network)
            self.decoder: Decoder = RotaryDecoder(config.decoder, config.network, classes)
            self.ctc = CtcHead(config.network, self.decoder.embedding)
        else:
            self.encoder = ChunkEncoder(config.encoder, config.network, features)
            self.ctc = nn.Linear(config.network.width, classes)
            self.decoder = Decoder(config.decoder, config.network, classes)
        self.start = classes - 1  # the token with which every text begins
        self.decodes = True

    def forward(
        self, features_BTF: Tensor, lengths_B: Tensor, tokens_BL: Tensor, limit_BL: Tensor | None = None
    ) -> Output:
        """`tokens` begins with <sos> and is padded with it; without `limit_BL` every step may attend to all frames.

        The look-ahead limit M is not used in training (section 5.1). A step that is padding may attend to nothing.
        If `decodes` is False, the encoder is trained alone and the decoder is not computed.
        """
        frames_BTE, frames_B = self.encoder.whole(features_BTF, lengths_B)
        if not self.decodes:
            return Output(self.ctc(frames_BTE), frames_B, None, [])
        limit_BL = frames_B.unsqueeze(1) if limit_BL is None else limit_BL.minimum(frames_B.unsqueeze(1))
        padding_BL = F.pad(tokens_BL[:, 1:] == self.start, (1, 0))
        limit_BL = limit_BL.expand(tokens_BL.shape).masked_fill(padding_BL, 0)
        logits, alignments = self.decoder.whole(tokens_BL, frames_BTE, limit_BL)
        return Output(self.ctc(frames_BTE), frames_B, logits, alignments)

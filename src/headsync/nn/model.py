"""The whole network: chunk encoder, CTC head, online-attention decoder.

Shapes: B rows, T feature or encoder frames, L output steps, V output classes, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
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

    ctc_BTV: Tensor | None  # logits; None in training if CTC is not trained
    frames_B: Tensor  # encoder frames of each row
    decoder_BLV: Tensor | None  # logits; None if the encoder is trained alone, or each layer of the decoder
    alignments: list[Aligned]  # one per decoder layer that attends to frames
    layers_NBLE: Sequence[Tensor] = ()  # outputs of the decoder's layers
    wanted_NBLE: Sequence[Tensor] = ()  # those of the decoder that they are matched to


class Model(nn.Module):
    def __init__(self, config: Config, features: int, classes: int) -> None:
        super().__init__()
        self.encoder: ChunkEncoder | RotaryEncoder
        self.ctc: nn.Linear | CtcHead
        if config.network.family == "moonshine":
            self.encoder = RotaryEncoder(config.encoder, config.network)
            self.decoder = build_decoder(config, classes)
            self.ctc = CtcHead(config.network, self.decoder.embedding)
        else:
            self.encoder = ChunkEncoder(config.encoder, config.network, features)
            self.ctc = nn.Linear(config.network.width, classes)
            self.decoder = build_decoder(config, classes)
        self.start = classes - 1  # the token with which every text begins
        self.decodes, self.trains_ctc, self.reads_frames = True, True, False

    def forward(
        self,
        features_BTF: Tensor,
        lengths_B: Tensor,
        tokens_BL: Tensor,
        limit_BL: Tensor | None = None,
        inputs_NBLE: Sequence[Tensor] | None = None,
    ) -> Output:
        """`tokens` begins with <sos> and is padded with it; without `limit_BL` every step may attend to all frames.

        The look-ahead limit M is not used in training (section 5.1). A step that is padding may attend to nothing.
        If `decodes` is False, the encoder is trained alone and the decoder is not computed. If `trains_ctc` is False,
        training does not compute CTC. With `inputs_NBLE` each layer of the decoder has its own input, and there are no
        logits.
        """
        frames_BTE, frames_B = self.encode(features_BTF, lengths_B)
        ctc_BTV = self.ctc(frames_BTE) if self.trains_ctc or not self.training else None
        if not self.decodes:
            return Output(ctc_BTV, frames_B, None, [])
        limit_BL = self.limits(tokens_BL, frames_B, limit_BL)
        layers, alignments = self.decoder.layer_outputs(tokens_BL, frames_BTE, limit_BL, inputs_NBLE)
        scores_BLV = self.decoder.scores(layers[-1]) if inputs_NBLE is None else None
        return Output(ctc_BTV, frames_B, scores_BLV, alignments, layers)

    def encode(self, features_BTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Encoder frames of whole utterances and their number; with `reads_frames`, the features are these frames."""
        return (features_BTF, lengths_B) if self.reads_frames else self.encoder.whole(features_BTF, lengths_B)

    def limits(self, tokens_BL: Tensor, frames_B: Tensor, limit_BL: Tensor | None = None) -> Tensor:
        """The first frame that each output step may not attend to; 0 for padding."""
        limit_BL = frames_B.unsqueeze(1) if limit_BL is None else limit_BL.minimum(frames_B.unsqueeze(1))
        padding_BL = F.pad(tokens_BL[:, 1:] == self.start, (1, 0))
        return limit_BL.expand(tokens_BL.shape).masked_fill(padding_BL, 0)


def build_decoder(config: Config, classes: int) -> Decoder:
    of_family = RotaryDecoder if config.network.family == "moonshine" else Decoder
    return of_family(config.decoder, config.network, classes)

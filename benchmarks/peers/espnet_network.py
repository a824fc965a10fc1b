"""ESPnet's streaming Transformer at the paper's size, with random weights. Runs in ESPnet's own environment."""

import contextlib
import sys

import torch

sys.path.append(sys.path.pop(0))  # this folder behind the packages: its espnet.py is not ESPnet
with contextlib.redirect_stdout(sys.stderr):  # importing it prints
    from espnet.nets.batch_beam_search_online import BatchBeamSearchOnline
    from espnet.nets.scorers.ctc import CTCPrefixScorer
    from espnet2.asr.ctc import CTC
    from espnet2.asr.decoder.transformer_decoder import TransformerDecoder
    from espnet2.asr.encoder.contextual_block_transformer_encoder import ContextualBlockTransformerEncoder
    from espnet2.asr.espnet_model import ESPnetASRModel

__all__ = ["AHEAD", "BLOCK", "HOP", "MEL", "BatchBeamSearchOnline", "CTCPrefixScorer", "ESPnetASRModel", "networks"]

MEL = 80
BLOCK, HOP, AHEAD = 40, 16, 16  # encoder frames: 8 | 16 | 16
WIDTH, HEADS, WIDE = 256, 4, 2048


def networks(classes):
    """Encoder, decoder and CTC."""
    torch.manual_seed(0)
    blocks = {"block_size": BLOCK, "hop_size": HOP, "look_ahead": AHEAD, "init_average": True, "ctx_pos_enc": True}
    encoder = ContextualBlockTransformerEncoder(
        MEL, output_size=WIDTH, attention_heads=HEADS, linear_units=WIDE, num_blocks=6, input_layer="conv2d", **blocks
    )
    decoder = TransformerDecoder(classes, WIDTH, attention_heads=HEADS, linear_units=WIDE, num_blocks=12)
    return encoder, decoder, CTC(classes, WIDTH)

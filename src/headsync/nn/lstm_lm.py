"""The LSTM language model for training; `headsync.lm.lstm` is the same network for recognition.

Shapes: B rows, L output steps, E embedding, V output classes (0 is the blank, which no text contains).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from headsync.config import LanguageConfig

BLANK = 0
FORGET_BIAS = 1.0  # initial bias of the forget gates: cells keep their content at first


class LanguageNetwork(nn.Module):
    def __init__(self, config: LanguageConfig, classes: int) -> None:
        super().__init__()
        between = config.dropout if config.layers > 1 else 0.0
        self.embedding = nn.Embedding(classes, config.width)
        self.lstm = nn.LSTM(config.width, config.width, config.layers, batch_first=True, dropout=between)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.width, classes)
        self._start()

    def forward(self, tokens_BL: Tensor) -> Tensor:
        """Logits (B, L, V) of the token after each token; `tokens` begins with <sos>."""
        hidden_BLE, _ = self.lstm(self.dropout(self.embedding(tokens_BL)))
        logits_BLV: Tensor = self.output(self.dropout(hidden_BLE))
        no_token = torch.arange(logits_BLV.shape[-1], device=logits_BLV.device) == BLANK
        return logits_BLV.masked_fill(no_token, -math.inf)

    @torch.no_grad()
    def _start(self) -> None:
        """Initialise embeddings with the scale of the other inputs, and the forget gates."""
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        width = self.lstm.hidden_size
        for layer in range(self.lstm.num_layers):
            bias = getattr(self.lstm, f"bias_ih_l{layer}")
            bias[width : 2 * width] = FORGET_BIAS

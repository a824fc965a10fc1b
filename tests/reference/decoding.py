"""Algorithm 1 over the whole decoder, with <eos> and the joint score, literally; a beam of 1 is greedy.

The subject is what the algorithm does: the loop over layers and frames, heads that halt, the synchronisation of layers,
the limit, <eos>, CTC and the beam. Norms, linear layers and feed-forward parts are those of the network, one position
at a time. Nothing is a stream here: the whole utterance is known, and every step is computed when its turn comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from headsync.nn.layers import positions
from headsync.nn.model import Model
from reference import Array
from reference.accumulate import Halted, acs, dacs, hs_dacs
from reference.ctc import prefix_scores

HALTING: dict[str, Callable[..., Halted]] = {"acs": acs, "dacs": dacs, "hs-dacs": hs_dacs}


@dataclass(frozen=True)
class Text:
    """A hypothesis: y_1 ... y_i, and what step i + 1 needs of the steps before."""

    y: tuple[int, ...] = ()
    attention: float = 0.0  # sum of log p(y_i | ...) of the decoder
    joint: float = 0.0
    t: tuple[int, ...] = ()  # t_1 ... t_i
    s: int = 0  # sum of s_i^{h,l} over steps, heads and layers
    steps: int = 0
    past: tuple[tuple[torch.Tensor, ...], ...] = field(default=())  # of each layer: inputs of its self-attention


@dataclass(frozen=True)
class Paper:
    """A model, an utterance, and the settings of section 5.1."""

    model: Model
    mechanism: str
    frames: torch.Tensor  # (T, width), of the encoder
    log_ctc: Array  # (T, classes)
    M: int
    ctc_weight: float = 0.0
    beam: int = 1
    halting: str = "monotone"
    most_tokens: float = math.inf

    @property
    def T(self) -> int:  # noqa: N802
        return len(self.frames)

    def decode(self) -> Text:
        """The text of the utterance; `joint` is then its score on all T frames."""
        eos, live, ended, n = self.model.start, [Text()], [], 0
        while live and len(live[0].y) < self.most_tokens:
            n = max(n, max(min(self._t(text) + self.M, self.T) for text in live))
            every: list[tuple[float, int, int, Text]] = []
            for row, text in enumerate(live):
                log_p, after = self.step(text)
                for token in range(1, eos + 1):
                    attention = text.attention + float(log_p[token])
                    joint = (1 - self.ctc_weight) * attention + self.ctc_weight * self._ctc(text.y, token, n)
                    grown = replace(after, attention=attention, joint=joint)
                    if token != eos:
                        grown = replace(grown, y=(*text.y, token))
                    every.append((-joint, row, token, grown))
            best = sorted(every, key=lambda one: one[:3])[: self.beam]
            ended += [self._on_all_frames(text) for _, _, token, text in best if token == eos]
            live = [text for _, _, token, text in best if token != eos]
        return max(ended or [self._unfinished(text) for text in live], key=lambda text: text.joint)

    def step(self, text: Text) -> tuple[Array, Text]:
        """Lines 3 to 15: log p of y_i, and the text with t_i, whose y_i is not chosen yet."""
        decoder, i = self.model.decoder, len(text.y) + 1
        y, limit = (text.y[-1] if text.y else self.model.start), min(self._t(text) + self.M, self.T)
        width = decoder.network.width
        x = decoder.embedding.weight[y] * math.sqrt(width) + positions(torch.tensor(i - 1), width).double()
        past, t_i, s = [], 0, 0
        for l, layer in enumerate(decoder.layers):  # noqa: E741
            past.append((*(text.past[l] if text.past else ()), layer.norm_self(x)))
            x = x + self._self_attention(layer, past[l])
            q = layer.cross.query(layer.norm_cross(x)).reshape(layer.cross.heads, -1)
            k, v = self._frames(l)
            halted = HALTING[self.mechanism](q.numpy(), k, v, limit, layer.cross.mechanism.threshold, self._bias(layer))
            x = x + layer.cross.out(torch.tensor(np.concatenate([halted.c[h] for h in sorted(halted.c)])))
            x = x + layer.feedforward(x)
            t_i = max(t_i, *halted.N.values())
            s += sum(halted.N.values())
        if self.halting == "monotone":
            t_i = max(t_i, self._t(text))
        log_p = decoder.out(decoder.norm(x)).log_softmax(-1).numpy()
        return log_p, replace(text, t=(*text.t, t_i), s=text.s + s, steps=text.steps + 1, past=tuple(past))

    def r(self, text: Text) -> float:
        """Eq. (10)."""
        decoder = self.model.decoder
        return text.s / (len(decoder.layers) * decoder.network.heads * text.steps * self.T)

    def _t(self, text: Text) -> int:
        return text.t[-1] if text.t else 0

    def _frames(self, layer: int) -> tuple[Array, Array]:
        """Keys and values of all frames in a layer, (H, T, d) each."""
        decoder = self.model.decoder
        memory = decoder.place(decoder.project(self.frames[None]), 0)
        return memory.keys_BNHTD[0, layer].numpy(), memory.values_BNHTD[0, layer].numpy()

    def _bias(self, layer: torch.nn.Module) -> float:
        bias = getattr(layer.cross.mechanism, "energy_bias", None)  # type: ignore[union-attr]
        return 0.0 if bias is None else float(bias)

    def _self_attention(self, layer: torch.nn.Module, past: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Eq. (1) to (3) of the last position over all positions so far, head by head."""
        attention = layer.self_attention
        projected = [attention.query_key_value(z).chunk(3) for z in past]
        width = len(past[0]) // attention.heads
        heads = []
        for h in range(attention.heads):
            part = slice(h * width, (h + 1) * width)
            q = projected[-1][0][part]
            energies = torch.stack([q @ k[part] / math.sqrt(width) for _, k, _ in projected])
            weights = energies.softmax(0)
            heads.append(sum(w * v[part] for w, (_, _, v) in zip(weights, projected, strict=True)))
        return attention.out(torch.cat(heads))

    def _ctc(self, y: tuple[int, ...], token: int, n: int) -> float:
        """What CTC says of y and then the token in the first n frames: for <eos>, that y is all there is."""
        if not self.ctc_weight:
            return 0.0
        if token == self.model.start:
            return float(prefix_scores(y, self.log_ctc[:n])[1])
        return float(prefix_scores((*y, token), self.log_ctc[:n])[0])

    def _on_all_frames(self, text: Text) -> Text:
        text = replace(text, t=text.t[:-1])  # <eos> is no token
        ctc = prefix_scores(text.y, self.log_ctc)[1] if self.ctc_weight else 0.0
        return replace(text, joint=(1 - self.ctc_weight) * text.attention + self.ctc_weight * float(ctc))

    def _unfinished(self, text: Text) -> Text:
        ctc = prefix_scores(text.y, self.log_ctc)[0] if self.ctc_weight else 0.0
        return replace(text, joint=(1 - self.ctc_weight) * text.attention + self.ctc_weight * float(ctc))

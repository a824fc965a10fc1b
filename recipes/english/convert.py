"""Moonshine's softmax decoder as an online one: ACS, DACS or HS-DACS.

The accumulation mechanisms weight a frame by p = sigmoid(energy) and stop when the running sum of p exceeds a
threshold; softmax divides exp(energy) by its sum Z. p is close to softmax's weight if log Z is subtracted from the
energy. log Z depends on the query only, and is fitted by an affine function of it: q . b + c. That is a bias of the key
projection, which has no effect on softmax. `fit` finds b and c of each head by least squares, in one pass of the
softmax decoder over some utterances; `train.py` trains the result. Cross-entropy alone does not make steps halt, so
`halting_loss` is part of the loss.

The weights of a step are divided by their sum, which the paper does not do: errors of the fit then do not scale the
outputs. The joint threshold is THRESHOLD times the number of heads.

The embedding keeps the rows of the pruned vocabulary (`vocabulary.py`). The decoder attends to pairs of adjacent
states, joined by a linear layer that starts as their average: a frame every 48 ms. Queries and keys of the
cross-attention are computed in float32 (energies of the upper layers reach 60), most other products in bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from cache import States, length_batches, read_index
from moonshine import (
    EOS,
    FAR,
    HEAD,
    HEADS,
    LAYERS,
    WIDTH,
    Cache,
    Decoder,
    DecoderLayer,
    empty_cache,
    heads,
    merge,
    rotary_table,
    rotate,
)
from torch import Tensor, nn
from vocabulary import Vocabulary

FRAMES = 6000  # of a batch
RIDGE = 1e-3
REACH, HALTING_WEIGHT = 1.1, 0.3
AFTER, EARLY = 4, 1  # frames after a spike: by AFTER sums reach REACH, at EARLY they are at most EARLY_SUM
EARLY_SUM = 0.9
THRESHOLD, LEAST_SUM = 0.5, 1e-6


class Weights(NamedTuple):
    """Weights of the frames (B, H, L, T), the number of frames of a step (B, G, L), and its running sums.

    Running sums (B, G, L, T) include each frame, and are in thresholds.
    """

    weights: Tensor
    ends: Tensor
    running: Tensor


class Step(NamedTuple):
    """The last end of the heads of each layer (B, L, layers), running sums and outputs of the layers."""

    ends: Tensor
    running: list[Tensor]
    outputs: list[Tensor]


@dataclass(frozen=True)
class Softmax:
    """The original mechanism: every step needs all frames."""

    def energies(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-1, -2) * HEAD**-0.5

    def weigh(self, e_BHLT: Tensor, seen_BLT: Tensor, halting: bool) -> Weights:
        weights = e_BHLT.masked_fill(~seen_BLT[:, None], FAR).softmax(-1)
        return Weights(weights, seen_BLT.sum(-1)[:, None].expand(*e_BHLT.shape[:3]), weights.cumsum(-1))


def normalised(p_BHLT: Tensor) -> Tensor:
    return p_BHLT / p_BHLT.sum(-1, keepdim=True).clamp(min=LEAST_SUM)


@dataclass(frozen=True)
class DACS(Softmax):
    """Each head halts when the sum of its probabilities exceeds THRESHOLD; its weights are divided by their sum."""

    def weigh(self, e_BHLT: Tensor, seen_BLT: Tensor, halting: bool) -> Weights:
        p = e_BHLT.sigmoid() * seen_BLT[:, None]
        running = self.summed(p).cumsum(-1) / self.most
        if not halting:
            return Weights(normalised(p), seen_BLT.sum(-1)[:, None].expand(*p.shape[:3]), running)
        with torch.no_grad():
            keep = F.pad(running, (1, 0))[..., :-1] <= 1
            ends = (keep & seen_BLT[:, None]).sum(-1)
        return Weights(normalised(p * keep), ends, running)

    def summed(self, p_BHLT: Tensor) -> Tensor:
        return p_BHLT

    @property
    def most(self) -> float:
        return THRESHOLD


@dataclass(frozen=True)
class HSDACS(DACS):
    """The heads of a layer halt together when the sum of all exceeds their number times THRESHOLD."""

    def summed(self, p_BHLT: Tensor) -> Tensor:
        return p_BHLT.sum(1, keepdim=True)

    @property
    def most(self) -> float:
        return THRESHOLD * HEADS


@dataclass(frozen=True)
class ACS(DACS):
    """One probability for all heads, from queries and keys of full width."""

    def energies(self, q: Tensor, k: Tensor) -> Tensor:
        return (merge(q) @ merge(k).transpose(-1, -2) * WIDTH**-0.5).unsqueeze(1)


MECHANISMS = {"softmax": Softmax(), "acs": ACS(), "dacs": DACS(), "hs-dacs": HSDACS()}


class Stack(nn.Module):
    """Pairs of adjacent states to one frame; an odd last state is dropped. It starts as the average of both."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        with torch.no_grad():
            self.pair.weight.copy_(0.5 * torch.eye(WIDTH).repeat(1, 2))

    def forward(self, states_BTD: Tensor, seen_BT: Tensor) -> tuple[Tensor, Tensor]:
        pairs = states_BTD.shape[1] // 2
        joined = states_BTD[:, : 2 * pairs].reshape(len(states_BTD), pairs, 2 * WIDTH)
        with torch.autocast("cpu", enabled=False):
            return self.pair(joined), seen_BT[:, 1 : 2 * pairs : 2]


class OnlineLayer(DecoderLayer):
    """A decoder layer whose cross-attention has a bias of the keys and of the energy, and any mechanism."""

    def __init__(self, mechanism: Softmax) -> None:
        super().__init__()
        self.mechanism = mechanism
        self.key_bias = nn.Parameter(torch.zeros(HEADS, 1, HEAD))
        self.energy_bias = nn.Parameter(torch.zeros(1 if isinstance(mechanism, ACS) else HEADS, 1, 1))

    def attend(
        self, x: Tensor, memory: tuple[Tensor, Tensor], seen: Tensor, halting: bool
    ) -> tuple[Tensor, Tensor, Weights]:
        """Context of the cross-attention, the queries and the weights."""
        attn = self.encoder_attn
        with torch.autocast("cpu", enabled=False):
            q = heads(attn.q_proj(self.post_attention_layernorm(x.float())))
            energy = self.mechanism.energies(q, memory[0] + self.key_bias) + self.energy_bias
            found = self.mechanism.weigh(energy, seen, halting)
        return attn.dense(merge(found.weights @ memory[1])), q, found

    def memory(self, frames_BTD: Tensor) -> tuple[Tensor, Tensor]:
        attn = self.encoder_attn
        with torch.autocast("cpu", enabled=False):
            keys = heads(attn.k_proj(frames_BTD))
        return keys, heads(attn.v_proj(frames_BTD))

    def online(
        self, x: Tensor, past: Cache, memory: tuple[Tensor, Tensor], seen: Tensor, halting: bool
    ) -> tuple[Tensor, Cache, Weights]:
        """As `forward`, and the weights of the cross-attention."""
        x, past = self.own(x, past)
        context, _, found = self.attend(x, memory, seen, halting)
        x = x + context
        return x + self.mlp(self.final_layernorm(x)), past, found

    def own(self, x_BLD: Tensor, past: Cache) -> tuple[Tensor, Cache]:
        """Self-attention over the tokens so far."""
        h, attn, start = self.input_layernorm(x_BLD), self.self_attn, past.keys.shape[2]
        table = rotary_table(start + x_BLD.shape[1])[:, start:]
        q, k, v = (heads(p(h)) for p in (attn.q_proj, attn.k_proj, attn.v_proj))
        past = Cache(torch.cat([past.keys, rotate(k, table)], 2), torch.cat([past.values, v], 2))
        causal = x_BLD.shape[1] > 1
        context = F.scaled_dot_product_attention(rotate(q, table), past.keys, past.values, is_causal=causal)
        return x_BLD + attn.dense(merge(context)), past


class OnlineDecoder(nn.Module):
    """Moonshine's decoder over the pruned vocabulary with one of MECHANISMS."""

    def __init__(self, mechanism: str, tokens: int) -> None:
        super().__init__()
        self.stack = Stack()
        self.embed_tokens = nn.Embedding(tokens, WIDTH)
        self.layers: Any = nn.ModuleList(OnlineLayer(MECHANISMS[mechanism]) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH, bias=False)

    @staticmethod
    def pretrained(mechanism: str, vocabulary: Vocabulary) -> OnlineDecoder:
        """Moonshine's weights; the biases are zero until `fit`."""
        source, decoder = Decoder.pretrained(), OnlineDecoder(mechanism, len(vocabulary))
        weights = source.state_dict()
        weights["embed_tokens.weight"] = weights["embed_tokens.weight"][vocabulary.rows]
        found = decoder.load_state_dict(weights, strict=False)
        assert not found.unexpected_keys
        return decoder

    def forward(
        self, tokens_BL: Tensor, frames_BTD: Tensor, seen_BT: Tensor, halting: bool, limits_BL: Tensor | None = None
    ) -> tuple[Tensor, Step]:
        """Logits of the next token for each token (teacher forcing) from stacked frames, and how the steps ended.

        A step sees the frames before its limit.
        """
        seen = seen_BT[:, None]
        if limits_BL is not None:
            seen = seen & (torch.arange(seen_BT.shape[1]) < limits_BL[..., None])
        x, past, ends, running = self.embed_tokens(tokens_BL), empty_cache(len(tokens_BL)), [], []
        outputs = []
        for layer in self.layers:
            x, _, found = layer.online(x, past, layer.memory(frames_BTD), seen, halting)
            ends.append(found.ends.amax(1))
            running.append(found.running)
            outputs.append(x)
        step = Step(torch.stack(ends, -1), running, outputs)
        return F.linear(self.norm(x), self.embed_tokens.weight), step

    @torch.no_grad()
    def greedy(self, states_TD: Tensor, halting: bool) -> list[int]:
        """Greedy decoding of one utterance."""
        states, seen = self.stack(states_TD[None], torch.ones(1, len(states_TD), dtype=torch.bool))
        memory, pasts = [layer.memory(states) for layer in self.layers], [empty_cache(1)] * LAYERS
        tokens: list[int] = []
        limit = max(4, int(6.5 * 0.024 * len(states_TD)))
        while len(tokens) < limit:
            x = self.embed_tokens(torch.tensor([[tokens[-1] if tokens else 1]]))
            for i, layer in enumerate(self.layers):
                x, pasts[i], _ = layer.online(x, pasts[i], memory[i], seen[:, None], halting)
            token = int(F.linear(self.norm(x[:, -1]), self.embed_tokens.weight)[0, 1:].argmax()) + 1
            if token == EOS:
                break
            tokens.append(token)
        return tokens


class Batch(NamedTuple):
    """States with their text: inputs begin with BOS, targets end with EOS (-100 for padding)."""

    states: Tensor
    seen: Tensor
    inputs: Tensor
    targets: Tensor


def collate(rows: Sequence[dict[str, Any]], states: States, vocabulary: Vocabulary) -> Batch:
    """Rows of a cache's index as tensors."""
    return padded_batch([states(row) for row in rows], [vocabulary.encode(row["text"]) for row in rows])


def padded_batch(states: Sequence[Tensor], texts: Sequence[Sequence[int]]) -> Batch:
    """States and tokens of utterances as tensors."""
    T, L = max(map(len, states)), max(map(len, texts)) + 1
    batch = torch.stack([F.pad(s, (0, 0, 0, T - len(s))) for s in states])
    seen = torch.arange(T) < torch.tensor([len(s) for s in states])[:, None]
    inputs = torch.tensor([[1, *t] + [EOS] * (L - 1 - len(t)) for t in texts])
    targets = torch.tensor([[*t, EOS] + [-100] * (L - 1 - len(t)) for t in texts])
    return Batch(batch, seen, inputs, targets)


@torch.no_grad()
def fit(decoder: OnlineDecoder, batches: Sequence[Batch]) -> list[float]:
    """Set the biases from the softmax decoder; returns the fraction of log Z's variance explained in each layer.

    The layers run with softmax weights for every mechanism.
    """
    sums, softmax = [[torch.zeros(0)] * 4 for _ in decoder.layers], MECHANISMS["softmax"]
    for batch in batches:
        x, past = decoder.embed_tokens(batch.inputs), empty_cache(len(batch.inputs))
        (frames, seen), counted = decoder.stack(batch.states, batch.seen), batch.targets >= 0
        for layer, total in zip(decoder.layers, sums, strict=True):
            x, _ = layer.own(x, past)
            memory = layer.memory(frames)
            q = heads(layer.encoder_attn.q_proj(layer.post_attention_layernorm(x)))
            energy = layer.mechanism.energies(q, memory[0]).masked_fill(~seen[:, None, None], FAR)
            _accumulate(total, _regressors(q, layer.mechanism), energy.logsumexp(-1), counted)
            weights = softmax.weigh(softmax.energies(q, memory[0]), seen[:, None], False).weights
            x = x + layer.encoder_attn.dense(merge(weights @ memory[1]))
            x = x + layer.mlp(layer.final_layernorm(x))
    return [_solve(layer, total) for layer, total in zip(decoder.layers, sums, strict=True)]


def _regressors(q_BHLK: Tensor, mechanism: Softmax) -> Tensor:
    """Queries of the energies, with 1 appended: (B, G, L, K + 1)."""
    q = merge(q_BHLK).unsqueeze(1) if isinstance(mechanism, ACS) else q_BHLK
    return F.pad(q, (0, 1), value=1.0)


def _accumulate(total: list[Tensor], x_BGLK: Tensor, y_BGL: Tensor, counted_BL: Tensor) -> None:
    """Add to the sums of the normal equations: x x', x y, y^2 and y."""
    x = x_BGLK.transpose(0, 1)[:, counted_BL].double()
    y = y_BGL.transpose(0, 1)[:, counted_BL].double()
    new = [x.transpose(1, 2) @ x, (x * y[..., None]).sum(1), torch.stack([y.square().sum(1), y.sum(1)], -1)]
    for i, value in enumerate(new):
        total[i] = value if not total[i].numel() else total[i] + value


def _solve(layer: OnlineLayer, total: list[Tensor]) -> float:
    """Least squares for -log Z; the slope becomes a bias of the keys (times the energies' scale)."""
    squares, products, moments = total[:3]
    size = squares.shape[-1]
    count = squares[:, -1, -1]
    solution = torch.linalg.solve(squares + RIDGE * count.mean() * torch.eye(size, dtype=squares.dtype), products)
    scale = (WIDTH if isinstance(layer.mechanism, ACS) else HEAD) ** 0.5
    layer.key_bias.copy_(-(solution[:, :-1] * scale).reshape(HEADS, 1, HEAD).float())
    layer.energy_bias.copy_(-solution[:, -1].reshape(-1, 1, 1).float())
    residual = (
        moments[:, 0] - 2 * (solution * products).sum(-1) + ((squares @ solution[..., None])[..., 0] * solution).sum(-1)
    )
    spread = moments[:, 0] - moments[:, 1] ** 2 / count
    return float(1 - residual.sum() / spread.sum())


def halting_loss(
    running_BGLT: Sequence[Tensor], batch: Batch, spikes_BL: Tensor | None = None, held_from: int = 0
) -> Tensor:
    """How much sums miss REACH soon after a token's spike, and exceed EARLY_SUM before that; mean over layers.

    The layers below `held_from` may exceed EARLY_SUM. Without spikes sums have to reach REACH at the last frame.
    The end of the sentence may read to the end.
    """
    counted = (batch.targets >= 0) & (batch.targets != EOS)
    steps = counted.sum().clamp(min=1)
    if spikes_BL is None:
        losses = [F.relu(REACH - sums[..., -1].amin(1))[counted].sum() / steps for sums in running_BGLT]
        return torch.stack(losses).sum() / len(running_BGLT)
    losses = [F.relu(REACH - _at(sums, spikes_BL + AFTER).amin(1))[counted].sum() / steps for sums in running_BGLT]
    for sums in running_BGLT[held_from:]:
        losses.append(F.relu(_at(sums, spikes_BL + EARLY).amax(1) - EARLY_SUM)[counted].sum() / steps)
    return torch.stack(losses).sum() / len(running_BGLT)


def _at(sums_BGLT: Tensor, frames_BL: Tensor) -> Tensor:
    """Sums over the frames up to and including these."""
    frames = frames_BL.clamp(min=0, max=sums_BGLT.shape[-1] - 1)[:, None, :, None]
    return sums_BGLT.gather(-1, frames.expand(*sums_BGLT.shape[:3], 1))[..., 0]


def some_batches(name: str, count: int, vocabulary: Vocabulary, corpora: Sequence[str] = ()) -> list[Batch]:
    """Batches of a fixed choice of a cache's utterances."""
    states, rows = States(name), [row for row in read_index(name) if row["copy"] == 0 and row["text"]]
    rows = [row for row in rows if not corpora or row["corpus"] in corpora][:count]
    if not rows:
        raise SystemExit(f"cache {name} is empty; run `python recipes/english/cache.py` first")
    return [collate(part, states, vocabulary) for part in length_batches(rows, FRAMES, np.random.default_rng(0))]

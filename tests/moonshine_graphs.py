"""Graphs as Moonshine's exporter wrote them, of a tiny network with random weights."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, INNER, LAYERS = 32, 8, 24, 2
PIECES = [b"<unk>", b"<s>", b"</s>", b"<0x00>", "▁".encode(), b"a", b"b", "▁a".encode(), b"\xff", b"ab", b"<<ST_0>>"]


def turned(x_BHTD: Tensor, places_T: Tensor) -> Tensor:
    """Rotary positions on neighbouring entries."""
    size = WIDTH // HEADS
    places = places_T[:, None] * 10_000.0 ** (-torch.arange(0, size, 2) / size)
    even, odd = x_BHTD[..., 0::2], x_BHTD[..., 1::2]
    return torch.stack(
        [even * places.cos() - odd * places.sin(), odd * places.cos() + even * places.sin()], -1
    ).flatten(-2)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.dense = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor, seen: Tensor, rotary: bool, causal: bool) -> Tensor:
        q, k, v = (
            y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in (self.q_proj(x), self.k_proj(seen), self.v_proj(seen))
        )
        places = torch.cumsum(torch.ones_like(x[0, :, 0]), 0) - 1  # a size would become a constant of the graph
        if rotary:
            q, k = turned(q, places), turned(k, places)
        energies = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        if causal:
            energies = energies - 1e9 * (places > places[:, None])
        return self.dense((energies.softmax(-1) @ v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(WIDTH, 2 * INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y, gate = self.up_proj(x).chunk(2, -1)
        return self.down_proj(F.silu(gate) * y)


class EncoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = nn.LayerNorm(WIDTH, bias=False), Attention()
        self.post_attention_layernorm, self.mlp = nn.LayerNorm(WIDTH, bias=False), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        h = self.input_layernorm(x)
        x = x + self.self_attn(h, h, True, False)
        return x + self.mlp(self.post_attention_layernorm(x))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(1, WIDTH, 127, 64, bias=False)
        self.groupnorm = nn.GroupNorm(1, WIDTH)
        self.conv2, self.conv3 = nn.Conv1d(WIDTH, 2 * WIDTH, 7, 3), nn.Conv1d(2 * WIDTH, WIDTH, 3, 2)
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(LAYERS))
        self.layer_norm = nn.LayerNorm(WIDTH, bias=False)

    def forward(self, input_values: Tensor) -> Tensor:
        x = self.groupnorm(self.conv1(input_values[:, None]).tanh())
        x = F.gelu(self.conv3(F.gelu(self.conv2(x)))).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.layer_norm(x)


class DecoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = nn.LayerNorm(WIDTH, bias=False), Attention()
        self.post_attention_layernorm, self.encoder_attn = nn.LayerNorm(WIDTH, bias=False), Attention()
        self.final_layernorm, self.mlp = nn.LayerNorm(WIDTH, bias=False), Gated()

    def forward(self, x: Tensor, states: Tensor) -> Tensor:
        h = self.input_layernorm(x)
        x = x + self.self_attn(h, h, True, True)
        x = x + self.encoder_attn(self.post_attention_layernorm(x), states, False, False)
        return x + self.mlp(self.final_layernorm(x))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(len(PIECES), WIDTH)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH, bias=False)

    def forward(self, input_ids: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x, encoder_hidden_states)
        return F.linear(self.norm(x), self.embed_tokens.weight)


def write(folder: Path) -> None:
    """Encoder, decoder and tokenizer."""
    torch.manual_seed(1)
    folder.mkdir(parents=True, exist_ok=True)
    tokens, states = torch.zeros(1, 3, dtype=torch.long), torch.randn(1, 5, WIDTH)
    axes = {"input_values": {1: "samples"}, "input_ids": {1: "tokens"}, "encoder_hidden_states": {1: "frames"}}
    _export(Encoder(), (torch.randn(1, 4000),), folder / "encoder_model.onnx", ["input_values"], axes)
    names = ["input_ids", "encoder_hidden_states"]
    _export(Decoder(), (tokens, states), folder / "decoder_model_merged.onnx", names, axes)
    (folder / "tokenizer.bin").write_bytes(b"".join(bytes([len(piece)]) + piece for piece in PIECES))


def _export(
    module: nn.Module, arguments: tuple[Tensor, ...], path: Path, names: list[str], axes: dict[str, dict[int, str]]
) -> None:
    for parameter in module.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape) / max(1, parameter[0].numel()) ** 0.5
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(), arguments, path, input_names=names, dynamic_axes={name: axes[name] for name in names},
            opset_version=17, dynamo=False,
        )  # fmt: skip

"""Moonshine tiny in torch: encoder (whole utterance, and chunked for streams), decoder and tokenizer.

    python recipes/english/moonshine.py fetch     # packages of the registries into runs/english/moonshine
    python recipes/english/moonshine.py check     # equal to the ONNX graphs; chunked in parallel = stepwise

Weights: npm @usefulsensors/moonshine-js 0.1.2 (float tiny) and 0.1.9 (int8 base), PyPI moonshine-voice 0.0.49
(tokenizer), MIT licence. Every file is checked against its SHA-256 before use.

The encoder: three convolutions give a state every 384 samples (24 ms) from 895 samples, then six pre-norm layers with
rotary positions. `Encoder.whole` is the original: GroupNorm over the whole input, and full attention.
`Encoder.blocks` and `Encoder.step` are the streaming form:

- Level: the first convolution's output is divided by a running level (`Level`) in place of GroupNorm's deviation over
  the whole input. The level is causal, so it adds no delay and depends on no block size.
- Blocks of `centre` frames with `right` frames of look-ahead. In each layer the queries are the centre and right frames
  of a block; the keys are those, and the centre frames of earlier blocks up to `left` frames back, as computed in their
  own blocks. Right frames are computed again in the next block. The delay is centre + right frames.
- Keys are kept unrotated and positions count from the start of the window: they are bounded by left + centre + right.

Shapes: B rows, N samples, T frames, D width, H heads, K width of a head, L tokens, G blocks, M blocks of a group, Q
queries of a block.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

RUNS = Path(__file__).resolve().parents[2] / "runs/english"
FOLDER = RUNS / "moonshine"
RATE, HOP, FIELD = 16_000, 384, 895  # samples: rate, stride of states, receptive field of a state
WIDTH, HEADS, LAYERS, INNER = 288, 8, 6, 1152
HEAD, ROTARY = WIDTH // HEADS, 32
VOCABULARY, BOS, EOS = 32_768, 1, 2
FAR = -1e9  # added to the energy of a key that may not be seen
SHA256 = {
    "tiny/encoder_model.onnx": "cbbf580f703b2af2137e0f6d14cd87f31cc67bd858bfd8715403a9489982d1a5",
    "tiny/decoder_model_merged.onnx": "4131cef00b62942e9cdef691101f2cc7dbbcd828d71eee8c6c46c28fd051d6cb",
    "base/encoder_model.onnx": "1dd9ab0a7f987113d30affcba5a068d11c8f90fa0223caa3e491ade431ad9751",
    "base/decoder_model_merged.onnx": "cc9f3cd6698a369c6008b41aa60aa3fb3322e7f03c9bdf19d8e6b7200afca4f3",
    "tokenizer.bin": "6884b35fd6377d4c4d32336a0bc152f36b64d1e45b6503683cdc238250a8472d",
    "LICENSE": "5da20e09cad096fb153b6c80b26c270027f9601285c498e571fc74fee5ab7157",
}
PACKAGES = {  # archive: (command, SHA-256, {member: file})
    "usefulsensors-moonshine-js-0.1.2.tgz": (
        ["npm", "pack", "@usefulsensors/moonshine-js@0.1.2"],
        "af3cbfe88107b6903768020d8c89826357f103fae3f83060ab7d7d3289341f77",
        {
            "package/dist/model/tiny/float/encoder_model.onnx": "tiny/encoder_model.onnx",
            "package/dist/model/tiny/float/decoder_model_merged.onnx": "tiny/decoder_model_merged.onnx",
        },
    ),
    "usefulsensors-moonshine-js-0.1.9.tgz": (
        ["npm", "pack", "@usefulsensors/moonshine-js@0.1.9"],
        "f99311e895c88e365cfa8c2d951421423b2f510c9ddc8b4d3274bbcd16f5ea75",
        {
            "package/dist/model/base/quantized/encoder_model.onnx": "base/encoder_model.onnx",
            "package/dist/model/base/quantized/decoder_model_merged.onnx": "base/decoder_model_merged.onnx",
        },
    ),
    "moonshine_voice-0.0.49-py3-none-manylinux_2_34_x86_64.whl": (
        [sys.executable, "-m", "pip", "download", "--no-deps", "moonshine-voice==0.0.49"],
        "03edc378e5236832421ccd382b267e43b95af8008137ad6643f5baf5ba31b579",
        {
            "moonshine_voice/assets/tiny-en/tokenizer.bin": "tokenizer.bin",
            "moonshine_voice-0.0.49.dist-info/licenses/LICENSE": "LICENSE",
        },
    ),
}


def _checked(path: Path, digest: str) -> Path:
    if not path.is_file():
        raise SystemExit(f"{path}: not found; run `python recipes/english/moonshine.py fetch` first")
    if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        raise SystemExit(f"{path}: the SHA-256 differs; delete the file and fetch it again")
    return path


def file(name: str) -> Path:
    """A file of the packages, after a check of its SHA-256."""
    return _checked(FOLDER / name, SHA256[name])


def fetch() -> None:
    """Download the packages and unpack the files that are used."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for archive, (command, digest, members) in PACKAGES.items():
        if not (FOLDER / archive).is_file():
            subprocess.run(command, cwd=FOLDER, check=True)
        _checked(FOLDER / archive, digest)
        for member, name in members.items():
            contents = _member(FOLDER / archive, member)
            (FOLDER / name).parent.mkdir(exist_ok=True)
            (FOLDER / name).write_bytes(contents)
            print(file(name))


def _member(archive: Path, member: str) -> bytes:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as zipped:
            return zipped.read(member)
    with tarfile.open(archive) as tar:
        found = tar.extractfile(member)
        assert found is not None
        return found.read()


# ------------------------------------------------------------------------------------------------------------ weights


def onnx_weights(name: str) -> dict[str, np.ndarray]:
    """Initialisers of a Moonshine graph by parameter name, linear weights as in torch (out, in)."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(file(name))).graph
    values = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    nodes = list(graph.node)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "else_branch":  # the decoder's branch without a cache holds all projections
                values |= {t.name: numpy_helper.to_array(t) for t in attribute.g.initializer}
                nodes = list(attribute.g.node)
    weights = {
        n.removesuffix("_merged_0"): v for n, v in values.items() if n.endswith((".weight", ".bias", "_merged_0"))
    }
    for node in nodes:
        path = node.name.strip("/").replace("/", ".")
        if node.op_type == "MatMul" and path.endswith(("proj.MatMul", "dense.MatMul", "fc1.MatMul", "fc2.MatMul")):
            weights[path.removesuffix(".MatMul") + ".weight"] = values[node.input[1]].T
        elif path in ("groupnorm.Mul", "groupnorm.Add"):
            weights[f"groupnorm.{'weight' if path.endswith('Mul') else 'bias'}"] = values[node.input[1]][:, 0]
    return {n.removeprefix("model.decoder."): v for n, v in weights.items() if "onnx::" not in n}


def _load(module: nn.Module, weights: dict[str, np.ndarray]) -> None:
    wanted = module.state_dict()
    missing = sorted(set(wanted) - set(weights))
    if missing:
        raise SystemExit(f"not a Moonshine tiny graph: {missing[0]} (and {len(missing) - 1} more) not found")
    module.load_state_dict({name: torch.from_numpy(weights[name].copy()) for name in wanted})


class Tokenizer:
    """32,768 pieces: three control tokens, 256 bytes, then pieces of text in which ▁ stands for a space."""

    def __init__(self) -> None:
        self.pieces = _pieces(file("tokenizer.bin").read_bytes())
        if len(self.pieces) != VOCABULARY:
            raise SystemExit(f"tokenizer.bin: {len(self.pieces)} pieces instead of {VOCABULARY}")

    def decode(self, tokens: list[int]) -> str:
        text = b"".join(self.pieces[t] for t in tokens if t > EOS)
        return text.decode("utf-8", "replace").replace("▁", " ").strip()


def _pieces(contents: bytes) -> list[bytes]:
    """Each piece is stored after its length in bytes; lengths of 128 and more take two bytes."""
    pieces, place = [], 0
    while place < len(contents):
        length = contents[place]
        place += 1
        if length >= 128:
            length += (contents[place] - 1) * 128
            place += 1
        pieces.append(contents[place : place + length])
        place += length
    return pieces


# ------------------------------------------------------------------------------------------------------------- layers


def rotary_table(frames: int) -> Tensor:
    """cos and sin of the angles of positions 0 .. frames - 1: (2, frames, ROTARY / 2)."""
    inverse = 10_000.0 ** (-torch.arange(0, ROTARY, 2, dtype=torch.float64) / ROTARY)
    angles = torch.arange(frames, dtype=torch.float64)[:, None] * inverse
    return torch.stack([angles.cos(), angles.sin()]).float()


def rotate(x_BHTK: Tensor, table: Tensor) -> Tensor:
    """Rotary positions on the first ROTARY entries, neighbours paired."""
    x, rest = x_BHTK[..., :ROTARY], x_BHTK[..., ROTARY:]
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = table[0], table[1]
    turned = torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)
    return torch.cat([turned.to(rest.dtype), rest], -1)


@functools.cache
def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16. Without this, they are slower than those of float32."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def mixed_precision() -> torch.autocast:
    """bfloat16 for the matrix products of training, on processors that have it."""
    return torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16())


def heads(x_BTD: Tensor) -> Tensor:
    return x_BTD.unflatten(-1, (HEADS, HEAD)).transpose(-3, -2)


def merge(x_BHTK: Tensor) -> Tensor:
    return x_BHTK.transpose(-3, -2).flatten(-2)


def key_mask(valid: Tensor) -> Tensor:
    """Additive mask (..., 1, 1, S) from the visibility of keys (..., S)."""
    return torch.zeros_like(valid, dtype=torch.float32).masked_fill_(~valid, FAR)[..., None, None, :]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.dense = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class EncoderLayer(nn.Module):
    """Pre-norm self-attention and feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(WIDTH, bias=False)
        self.self_attn = Attention()
        self.post_attention_layernorm = nn.LayerNorm(WIDTH, bias=False)
        self.mlp = FeedForward()

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys (both unrotated) and values of all heads."""
        h, attn = self.input_layernorm(x), self.self_attn
        return heads(attn.q_proj(h)), heads(attn.k_proj(h)), heads(attn.v_proj(h))

    def finish(self, x: Tensor, context: Tensor) -> Tensor:
        x = x + self.self_attn.dense(merge(context))
        return x + self.mlp(self.post_attention_layernorm(x))

    def whole(self, x_BTD: Tensor, table: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.project(x_BTD)
        return self.finish(x_BTD, F.scaled_dot_product_attention(rotate(q, table), rotate(k, table), v, mask))

    def blocks(self, x_BGQD: Tensor, shape: Shape, table: Tensor, mask: Tensor) -> Tensor:
        """All blocks of a sequence in parallel: each attends to earlier centre frames up to `shape.left` back."""
        q, k, v = self.project(x_BGQD)  # (B, G, H, Q, K)
        q, k = rotate(q, table), rotate(k, table)
        C, M = shape.centre, shape.group
        keys, values = (torch.cat([_spans(y[..., :C, :], shape), _grouped(y[..., C:, :], M)], 3) for y in (k, v))
        q, keys, values, mask = (y.flatten(0, 1) for y in (_grouped(q, M), keys, values, mask))
        context = F.scaled_dot_product_attention(q, keys, values, mask)  # (B G / M, H, M Q, K)
        context = context.unflatten(0, (len(x_BGQD), -1)).unflatten(3, (M, -1)).transpose(2, 3).flatten(1, 2)
        return self.finish(x_BGQD, context)

    def step(self, x_BQD: Tensor, cache: Cache, shape: Shape) -> tuple[Tensor, Cache]:
        """One block: centre and right frames of it, and the cache of earlier centre frames."""
        q, k, v = self.project(x_BQD)
        past = cache.keys.shape[2]
        table = rotary_table(past + x_BQD.shape[1])
        keys, values = torch.cat([cache.keys, k], 2), torch.cat([cache.values, v], 2)
        context = F.scaled_dot_product_attention(rotate(q, table[:, past:]), rotate(keys, table), values)
        end = past + shape.centre
        start = max(0, end - shape.left)
        return self.finish(x_BQD, context), Cache(keys[:, :, start:end], values[:, :, start:end])


@dataclass(frozen=True)
class Shape:
    """Sizes of the streaming encoder in frames of 24 ms."""

    left: int
    centre: int
    right: int

    @staticmethod
    def of(left: float, centre: float, right: float) -> Shape:
        """From seconds."""
        return Shape(*(max(0, round(s * RATE / HOP)) for s in (left, centre, right)))

    @property
    def group(self) -> int:
        """Blocks whose left frames are read as one span in the parallel form: about 40 frames."""
        return max(1, 40 // self.centre)

    @property
    def delay(self) -> float:
        """Seconds from the start of a block to its states: centre + right."""
        return (self.centre + self.right) * HOP / RATE

    def __str__(self) -> str:
        return " / ".join(f"{n * HOP / RATE:.2f}" for n in (self.left, self.centre, self.right))


class Cache(NamedTuple):
    """Keys (unrotated) and values of earlier centre frames of one layer: (B, H, up to left, K)."""

    keys: Tensor
    values: Tensor


def _grouped(x_BGHQK: Tensor, size: int) -> Tensor:
    """Frames of a group of blocks, concatenated: (B, G / M, H, M Q, K)."""
    return x_BGHQK.unflatten(1, (-1, size)).transpose(2, 3).flatten(3, 4)


def _spans(x_BGHCK: Tensor, shape: Shape) -> Tensor:
    """For each group of blocks its centre frames and the `left` before them: (B, G / M, H, left + M C, K)."""
    line = F.pad(x_BGHCK.transpose(1, 2).flatten(2, 3), (0, 0, shape.left, 0))
    size = shape.group * shape.centre
    return line.unfold(2, shape.left + size, size).permute(0, 2, 1, 4, 3)


# ---------------------------------------------------------------------------------------------------------- front end


@dataclass(frozen=True)
class Level:
    """A causal level in place of GroupNorm's variance over the whole input.

    p is the power of the first convolution's output, one value per 64 samples. The level is the mean of p weighted with
    the square root of p and with exponential forgetting: sum(d p^1.5) / sum(d p^0.5). Loud frames have an immediate
    effect; a pause (40 dB below) moves it by 3 dB after about 18 s. `floor` bounds the gain in silence.
    """

    time: float = 4.0  # seconds
    floor: float = 3e-7
    floor_weight: float = 25.0
    ratio: float = 0.22  # GroupNorm's variance / level, measured on speech (`check` prints it)
    deviation: float = 0.085  # of the convolution's output for speech with a peak of 0.5

    @property
    def decay(self) -> float:
        return float(np.exp(-64 / RATE / self.time))

    def gain(self, power_BN: Tensor, sums: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The factor of each frame of the convolution, and the two sums (B, 2) after the last one."""
        amplitude = power_BN.double().sqrt()
        totals = decayed_sums(torch.stack([amplitude**3, amplitude], 1), self.decay, sums)
        first, second = totals.unbind(1)
        prior = self.floor_weight * self.floor**0.5
        level = (first + prior * self.floor) / (second + prior)
        return (self.deviation / (self.ratio * level).sqrt()).float(), totals[..., -1]


def decayed_sums(x_BN: Tensor, decay: float, start: Tensor | None = None) -> Tensor:
    """y[n] = decay y[n-1] + x[n] along the last axis, in pieces of 64."""
    length, size = x_BN.shape[-1], 64
    steps = torch.arange(size, dtype=x_BN.dtype)
    lag = steps[:, None] - steps
    inside = torch.where(lag >= 0, decay ** lag.clamp(min=0), torch.zeros(()).to(x_BN.dtype))
    pieces = F.pad(x_BN, (0, -length % size)).unflatten(-1, (-1, size)) @ inside.T
    carry = torch.zeros_like(x_BN[..., 0]) if start is None else start
    fade, out = decay ** (steps + 1), []
    for i in range(pieces.shape[-2]):
        out.append(pieces[..., i, :] + carry[..., None] * fade)
        carry = out[-1][..., -1]
    return torch.cat(out, -1)[..., :length]


class FrontState(NamedTuple):
    """Samples not yet consumed by the convolutions, and the sums of the level."""

    samples: Tensor
    sums: Tensor


class Encoder(nn.Module):
    """Moonshine tiny's encoder; the module docstring describes its two forms."""

    def __init__(self, level: Level | None = None) -> None:
        super().__init__()
        self.level = level or Level()
        self.conv1 = nn.Conv1d(1, WIDTH, 127, stride=64, bias=False)
        self.groupnorm = nn.GroupNorm(1, WIDTH)
        self.conv2 = nn.Conv1d(WIDTH, 2 * WIDTH, 7, stride=3)
        self.conv3 = nn.Conv1d(2 * WIDTH, WIDTH, 3, stride=2)
        self.layers: Any = nn.ModuleList(EncoderLayer() for _ in range(LAYERS))
        self.layer_norm = nn.LayerNorm(WIDTH, bias=False)

    @staticmethod
    def pretrained() -> Encoder:
        encoder = Encoder()
        _load(encoder, onnx_weights("tiny/encoder_model.onnx"))
        return encoder

    def _strides(self, x_BDN: Tensor) -> Tensor:
        return F.gelu(self.conv3(F.gelu(self.conv2(x_BDN)))).transpose(1, 2)

    def whole(self, samples_BN: Tensor, lengths: Tensor | None = None) -> Tensor:
        """States of whole utterances as the original computes them; rows may be padded."""
        x = self.conv1(samples_BN[:, None]).tanh()
        if lengths is None:
            x = self.groupnorm(x)
            valid = torch.ones(len(x), frames_of(samples_BN.shape[1]), dtype=torch.bool)
        else:
            x = self._masked_groupnorm(x, (lengths - 127) // 64 + 1)
            frames = torch.tensor([frames_of(int(n)) for n in lengths])
            valid = torch.arange(frames_of(samples_BN.shape[1])) < frames[:, None]
        x, mask, table = self._strides(x), key_mask(valid), rotary_table(valid.shape[1])
        for layer in self.layers:
            x = layer.whole(x, table, mask)
        return self.layer_norm(x)

    def _masked_groupnorm(self, x_BDN: Tensor, counts_B: Tensor) -> Tensor:
        valid = (torch.arange(x_BDN.shape[2]) < counts_B[:, None])[:, None]
        total = (counts_B * WIDTH)[:, None, None]
        mean = (x_BDN * valid).sum((1, 2), keepdim=True) / total
        variance = (((x_BDN - mean) * valid) ** 2).sum((1, 2), keepdim=True) / total
        x = (x_BDN - mean) / (variance + self.groupnorm.eps).sqrt()
        return x * self.groupnorm.weight[:, None] + self.groupnorm.bias[:, None]

    def front(self, samples_BN: Tensor, sums: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Inputs of the first layer with the running level, and the level's sums after the last full hop."""
        x = self.conv1(samples_BN[:, None])
        gain, totals = self.level.gain(x.detach().square().mean(1), sums)
        x = (x * gain[:, None]).tanh() / self.level.deviation
        x = x * self.groupnorm.weight[:, None] + self.groupnorm.bias[:, None]
        return self._strides(x), totals

    def front_step(self, samples_BN: Tensor, state: FrontState | None) -> tuple[Tensor, FrontState]:
        """The front end on the next chunk of a stream: new frames, if any."""
        if state is None:
            state = FrontState(samples_BN[:, :0], torch.zeros(len(samples_BN), 2, dtype=torch.float64))
        samples = torch.cat([state.samples, samples_BN], 1)
        if samples.shape[1] < FIELD:
            return samples.new_zeros(len(samples), 0, WIDTH), state._replace(samples=samples)
        frames = frames_of(samples.shape[1])
        used = frames * HOP
        x, _ = self.front(samples[:, : used - HOP + FIELD], state.sums)
        power = self.conv1(samples[:, None, : used + 127 - 64]).square().mean(1)
        _, sums = self.level.gain(power, state.sums)
        return x, FrontState(samples[:, used:], sums)

    def blocks(self, x_BTD: Tensor, shape: Shape, valid_BT: Tensor | None = None) -> Tensor:
        """States of the streaming form from front-end frames, all blocks in parallel."""
        B, T, _ = x_BTD.shape
        valid = torch.ones(B, T, dtype=torch.bool) if valid_BT is None else valid_BT
        x, mask = _cut(x_BTD, shape), _block_mask(valid, shape)
        table = _block_table(shape, x.shape[1])
        for layer in self.layers:
            x = layer.blocks(x, shape, table, mask)
        return self.layer_norm(x[:, :, : shape.centre].flatten(1, 2)[:, :T])

    def step(self, x_BQD: Tensor, caches: list[Cache] | None, shape: Shape) -> tuple[Tensor, list[Cache]]:
        """States of the next block's centre frames from its centre and right frames (fewer only at the end)."""
        if caches is None:
            empty = x_BQD.new_zeros(len(x_BQD), HEADS, 0, HEAD)
            caches = [Cache(empty, empty)] * LAYERS
        x, after = x_BQD, []
        for layer, cache in zip(self.layers, caches, strict=True):
            x, cache = layer.step(x, cache, shape)
            after.append(cache)
        return self.layer_norm(x[:, : shape.centre]), after


def frames_of(samples: int) -> int:
    """Number of states for a number of samples."""
    return max(0, (samples - FIELD) // HOP + 1)


def _blocks_of(frames: int, shape: Shape) -> int:
    """Number of blocks, rounded up to whole groups."""
    return -(-frames // (shape.centre * shape.group)) * shape.group


def _cut(x_BTD: Tensor, shape: Shape) -> Tensor:
    """Frames in blocks: (B, G, centre + right, D), zeros after the end."""
    C, R, T = shape.centre, shape.right, x_BTD.shape[1]
    blocks = _blocks_of(T, shape)
    padded = F.pad(x_BTD, (0, 0, 0, blocks * C + R - T))
    return padded.unfold(1, C + R, C).transpose(2, 3)[:, :blocks]


def _block_mask(valid_BT: Tensor, shape: Shape) -> Tensor:
    """Additive mask of the keys of each group: (B, G / M, 1, M Q, left + M C + M R), its span and its right frames."""
    C, R, M, T = shape.centre, shape.right, shape.group, valid_BT.shape[1]
    blocks = _blocks_of(T, shape)
    padded = F.pad(valid_BT, (shape.left, blocks * C + R - T))
    span = padded.unfold(1, shape.left + M * C, M * C)[:, : blocks // M]  # (B, G / M, span)
    place, first = torch.arange(shape.left + M * C), torch.arange(M)[:, None] * C
    near = (place >= first) & (place < first + shape.left + C)  # (M, span)
    seen = span[:, :, None] & near
    if R:
        right = padded[:, shape.left + C :].unfold(1, R, C)[:, :blocks].unflatten(1, (-1, M)).flatten(2)
        own = torch.eye(M, dtype=torch.bool).repeat_interleave(R, 1)  # (M, M R)
        seen = torch.cat([seen, right[:, :, None] & own], -1)
    seen = seen.repeat_interleave(C + R, 2)
    return torch.zeros_like(seen, dtype=torch.float32).masked_fill_(~seen, FAR)[:, :, None]


def _block_table(shape: Shape, blocks: int) -> Tensor:
    """Rotary table of the frames of each block, (2, G, 1, Q, ROTARY / 2), at their places in the sequence.

    Only differences of positions matter, so this equals the bounded positions of `step`.
    """
    places = torch.arange(blocks)[:, None] * shape.centre + torch.arange(shape.centre + shape.right)
    return rotary_table(int(places.max()) + 1)[:, places][:, :, None]


# ------------------------------------------------------------------------------------------------------------ decoder


class GatedFeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(WIDTH, 2 * INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.up_proj(x).chunk(2, -1)
        return self.down_proj(F.silu(gate) * x)


class DecoderLayer(nn.Module):
    """Pre-norm self-attention, cross-attention to the encoder's states and gated feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(WIDTH, bias=False)
        self.self_attn = Attention()
        self.post_attention_layernorm = nn.LayerNorm(WIDTH, bias=False)
        self.encoder_attn = Attention()
        self.final_layernorm = nn.LayerNorm(WIDTH, bias=False)
        self.mlp = GatedFeedForward()

    def memory(self, states_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the cross-attention."""
        attn = self.encoder_attn
        return heads(attn.k_proj(states_BTD)), heads(attn.v_proj(states_BTD))

    def forward(self, x_BLD: Tensor, past: Cache, memory: tuple[Tensor, Tensor], mask: Tensor) -> tuple[Tensor, Cache]:
        """New tokens after those in `past` (keys already rotated)."""
        h, attn, start = self.input_layernorm(x_BLD), self.self_attn, past.keys.shape[2]
        table = rotary_table(start + x_BLD.shape[1])[:, start:]
        q, k, v = (heads(p(h)) for p in (attn.q_proj, attn.k_proj, attn.v_proj))
        past = Cache(torch.cat([past.keys, rotate(k, table)], 2), torch.cat([past.values, v], 2))
        causal = x_BLD.shape[1] > 1
        assert not (causal and start), "several tokens at once only at the start"
        context = F.scaled_dot_product_attention(rotate(q, table), past.keys, past.values, is_causal=causal)
        x = x_BLD + attn.dense(merge(context))
        attn = self.encoder_attn
        q = heads(attn.q_proj(self.post_attention_layernorm(x)))
        x = x + attn.dense(merge(F.scaled_dot_product_attention(q, *memory, mask)))
        return x + self.mlp(self.final_layernorm(x)), past


class Decoder(nn.Module):
    """Moonshine tiny's decoder with softmax cross-attention and tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers: Any = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH, bias=False)

    @staticmethod
    def pretrained() -> Decoder:
        decoder = Decoder()
        _load(decoder, onnx_weights("tiny/decoder_model_merged.onnx"))
        return decoder

    def hidden(self, tokens_BL: Tensor, states_BTD: Tensor, valid_BT: Tensor) -> Tensor:
        """Last layer's output for each token, given those before it (teacher forcing)."""
        x, mask, past = self.embed_tokens(tokens_BL), key_mask(valid_BT), empty_cache(len(tokens_BL))
        for layer in self.layers:
            x, _ = layer(x, past, layer.memory(states_BTD), mask)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embed_tokens.weight)

    @torch.no_grad()
    def greedy(self, states_BTD: Tensor, frames_B: Tensor) -> list[list[int]]:
        """Greedy decoding of a batch; at most 6.5 tokens per second, as Moonshine's authors advise."""
        B, limits = len(states_BTD), [max(4, int(6.5 * int(n) * HOP / RATE)) for n in frames_B]
        mask = key_mask(torch.arange(states_BTD.shape[1]) < frames_B[:, None])
        memory = [layer.memory(states_BTD) for layer in self.layers]
        pasts = [empty_cache(B)] * LAYERS
        tokens = torch.full((B, 1), BOS)
        read: list[list[int]] = [[] for _ in range(B)]
        active = list(range(B))
        for _ in range(max(limits)):
            x = self.embed_tokens(tokens)
            for i, layer in enumerate(self.layers):
                x, pasts[i] = layer(x, pasts[i], memory[i], mask)
            tokens = self.logits(self.norm(x)).argmax(-1)
            keep = []
            for row, (b, token) in enumerate(zip(active, tokens[:, 0].tolist(), strict=True)):
                if token != EOS:
                    read[b].append(token)
                    if len(read[b]) < limits[b]:
                        keep.append(row)
            if not keep:
                break
            if len(keep) < len(active):
                active, tokens, mask = [active[r] for r in keep], tokens[keep], mask[keep]
                memory = [(k[keep], v[keep]) for k, v in memory]
                pasts = [Cache(k[keep], v[keep]) for k, v in pasts]
        return read


def empty_cache(rows: int) -> Cache:
    empty = torch.zeros(rows, HEADS, 0, HEAD)
    return Cache(empty, empty)


# ---------------------------------------------------------------------------------------------------------- self-test


def _speech(count: int, longest: float = 12.0) -> list[np.ndarray]:
    """Some utterances of LibriSpeech dev-clean."""
    import soundfile as sf

    manifest = RUNS / "data/librispeech/dev.jsonl"
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    rows = [row for row in rows if row["seconds"] < longest][:: max(1, len(rows) // (2 * count))][:count]
    return [sf.read(manifest.parent / row["audio"], dtype="float32")[0] for row in rows]


def _close(name: str, a: np.ndarray | Tensor, b: np.ndarray | Tensor, most: float = 1e-4) -> None:
    difference = float(np.abs(np.asarray(a) - np.asarray(b)).max())
    print(f"{name}: largest difference {difference:.1e}")
    if not difference <= most:
        raise SystemExit(f"{name}: larger than {most}")


def check_graphs(encoder: Encoder, decoder: Decoder, speech: list[np.ndarray]) -> None:
    """Encoder and decoder equal the ONNX graphs; a padded batch equals its rows alone."""
    import onnxruntime as ort

    sessions = [ort.InferenceSession(file(f"tiny/{n}.onnx")) for n in ("encoder_model", "decoder_model_merged")]
    longest = max(map(len, speech))
    batch = torch.stack([F.pad(torch.from_numpy(s), (0, longest - len(s))) for s in speech])
    together = encoder.whole(batch, torch.tensor([len(s) for s in speech]))
    for samples, row in zip(speech, together, strict=True):
        expected = sessions[0].run(None, {"input_values": samples[None]})[0]
        _close("encoder = graph", encoder.whole(torch.from_numpy(samples)[None]), expected)
        _close("padded batch = row", row[: expected.shape[1]], expected[0])
        states = torch.from_numpy(expected)
        tokens = [BOS, *decoder.greedy(states, torch.tensor([states.shape[1]]))[0]]
        inputs = {i.name: np.zeros((1, HEADS, 0, HEAD), np.float32) for i in sessions[1].get_inputs()}
        inputs |= {"input_ids": np.array([tokens]), "encoder_hidden_states": expected}
        inputs |= {"use_cache_branch": np.array([False])}
        logits = decoder.logits(decoder.hidden(torch.tensor([tokens]), states, torch.ones(1, states.shape[1]).bool()))
        _close("decoder = graph", logits, sessions[1].run(["logits"], inputs)[0], 1e-3)
        print("  ", Tokenizer().decode(tokens))


def check_streaming(encoder: Encoder, samples: Tensor, shape: Shape) -> None:
    """Parallel = stepwise for any chunking; a padded, shifted row = the row alone; the future has no effect."""
    front, _ = encoder.front(samples[None])
    parallel = encoder.blocks(front, shape)
    x, state, pieces = torch.zeros(1, 0, WIDTH), None, torch.Generator().manual_seed(1)
    place = 0
    while place < len(samples):
        size = int(torch.randint(1, 4000, (), generator=pieces))
        frames, state = encoder.front_step(samples[None, place : place + size], state)
        x, place = torch.cat([x, frames], 1), place + size
    _close(f"{shape}: front end in pieces = whole", x, front)
    caches, states = None, []
    for start in range(0, front.shape[1], shape.centre):
        new, caches = encoder.step(front[:, start : start + shape.centre + shape.right], caches, shape)
        states.append(new)
    _close(f"{shape}: parallel = stepwise", parallel, torch.cat(states, 1))
    padded = F.pad(front, (0, 0, shape.centre, 17), value=9.0)
    valid = torch.zeros(1, padded.shape[1], dtype=torch.bool)
    valid[:, shape.centre : -17] = True
    _close(f"{shape}: with padding = alone", encoder.blocks(padded, shape, valid)[:, shape.centre : -17], parallel)
    cut = front.shape[1] // 2 // shape.centre * shape.centre
    noise = samples.clone()
    first = (cut + shape.right - 1) * HOP + FIELD
    noise[first:] = torch.randn(len(samples) - first)
    _close(
        f"{shape}: future replaced by noise",
        encoder.blocks(encoder.front(noise[None])[0], shape)[:, :cut],
        parallel[:, :cut],
    )


def check_level(encoder: Encoder, speech: list[np.ndarray]) -> None:
    """The ratio of GroupNorm's variance and the level, and the same frames for quiet and loud speech."""
    ratios = []
    for samples in speech:
        x = encoder.conv1(torch.from_numpy(samples)[None, None] * 0.5 / np.abs(samples).max())
        gain, _ = encoder.level.gain(x.square().mean(1))
        level = (encoder.level.deviation / gain) ** 2 / encoder.level.ratio
        ratios.append(float(x.tanh().var() / level.mean()))
    mean = np.exp(np.mean(np.log(ratios)))
    print(f"variance / level: {mean:.3f} (used: {encoder.level.ratio}), from {min(ratios):.2f} to {max(ratios):.2f}")
    samples = torch.from_numpy(speech[0])[None] / np.abs(speech[0]).max()
    loud, _ = encoder.front(samples)
    for decibel in (-20, -45, -60):
        quiet, _ = encoder.front(samples * 10 ** (decibel / 20))
        change = float((quiet - loud).square().mean() / loud.var())
        print(f"peak {decibel} dBFS: change of the front end's output {change:.1e} of its variance")


def check() -> None:
    torch.manual_seed(0)
    encoder, decoder, speech = Encoder.pretrained().eval(), Decoder.pretrained().eval(), _speech(8)
    with torch.no_grad():
        check_graphs(encoder, decoder, speech[:3])
        for sizes in ((10.32, 0.65, 0.65), (2.6, 0.24, 0.48), (1.0, 0.48, 0.0)):
            check_streaming(encoder, torch.from_numpy(np.concatenate(speech[:4])), Shape.of(*sizes))
        check_level(encoder, _speech(40))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["fetch", "check"])
    torch.set_num_threads(1)
    {"fetch": fetch, "check": check}[parser.parse_args().command]()


if __name__ == "__main__":
    main()

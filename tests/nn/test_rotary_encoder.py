"""The encoder on samples: all blocks at once, one at a time, and as a literal loop; its level, and what it may know."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headsync.config import Config, ConfigError, DecoderConfig, EncoderConfig, FeaturesConfig, NetworkConfig
from headsync.engine.state_tree import join_rows, take_rows
from headsync.frontend.frame_rate import WAVEFORM
from headsync.nn.rotary_encoder import RotaryEncoder
from headsync.nn.waveform_front import WaveformFront, level_gain
from random_weights import scrambled
from reference.rotary_encoder import encode

NETWORK = NetworkConfig(width=16, heads=2, feedforward=6, dropout=0.0, family="moonshine")
SIZES = [(3, 3, 3), (5, 2, 1), (1, 4, 0), (0, 3, 2), (0, 1, 0), (4, 1, 6), (7, 25, 2)]  # left, centre, right
each_size = pytest.mark.parametrize("size", SIZES, ids=str)
modes = pytest.mark.parametrize("mode", ["reuse", "full"])


def build(size: tuple[int, int, int], mode: str = "reuse", layers: int = 2, seed: int = 0) -> RotaryEncoder:
    encoder = scrambled(RotaryEncoder(EncoderConfig(layers, *size, mode), NETWORK), seed)  # type: ignore[arg-type]
    encoder.front.first.weight.data *= 0.1
    return encoder


def draw(rows: int, frames: int, seed: int = 0, more: int = 5) -> Tensor:
    """Blocks of noise of changing loudness, of as many encoder frames and a few blocks more."""
    source = torch.Generator().manual_seed(seed)
    shape = (rows, WAVEFORM.needed(frames) + more, WAVEFORM.window)
    loudness = torch.rand(shape[:2], generator=source, dtype=torch.float64).square().unsqueeze(2)
    return loudness * torch.randn(shape, generator=source, dtype=torch.float64)


def whole(encoder: RotaryEncoder, blocks: Tensor) -> Tensor:
    return encoder.whole(blocks, torch.full((len(blocks),), blocks.shape[1]))[0]


def embedded(encoder: RotaryEncoder, blocks: Tensor, sizes: list[int]) -> Tensor:
    """The front end on pieces of as many encoder frames."""
    state, parts, first = encoder.start_front(len(blocks)), [], 0
    for size in sizes:
        part, state = encoder.embed(blocks[:, first : first + WAVEFORM.needed(size)], state)
        parts.append(part)
        first += WAVEFORM.stride * size
    return torch.cat(parts, 1)


def stream(
    encoder: RotaryEncoder, blocks: Tensor, padding: float = 0.0, chosen: tuple[int, int] | None = None
) -> Tensor:
    """The drained steps, of the `chosen` centre and right frames; windows at the end are filled up with `padding`."""
    frames = WAVEFORM.embedded(blocks.shape[1])
    x = embedded(encoder, blocks, [1] * frames)
    config, state, centres = encoder.config, encoder.start(len(blocks)), []
    centre, right = (frames, 0) if config.mode == "full" else chosen or (config.centre_frames, config.right_frames)
    for start in range(0, frames, centre):
        there = x[:, start : start + centre + right]
        window = torch.full((len(x), centre + right, x.shape[2]), padding, dtype=x.dtype)
        window[:, : there.shape[1]] = there
        out, state = encoder.step(window, torch.full((len(x),), there.shape[1]), state, centre)
        centres.append(out[:, : there.shape[1]])
    return torch.cat(centres, 1)


def close(one: Tensor, other: Tensor, most: float = 1e-9) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=most)


@each_size
def test_whole_is_the_literal_loop(size: tuple[int, int, int]) -> None:
    encoder, blocks = build(size), draw(1, 8)
    weights = {name: weight.numpy() for name, weight in encoder.state_dict().items()}
    loop = encode(blocks[0].flatten().numpy(), weights, NETWORK.heads, 2, size)
    np.testing.assert_allclose(whole(encoder, blocks)[0].detach(), loop, rtol=0, atol=1e-9)


@modes
@each_size
@settings(max_examples=5, deadline=None)
@given(st.integers(1, 17), st.integers(1, 3), st.integers(0, 1000))
def test_drained_steps_are_the_whole(
    mode: str, size: tuple[int, int, int], frames: int, layers: int, seed: int
) -> None:
    encoder, blocks = build(size, mode, layers, seed), draw(2, frames, seed)
    close(stream(encoder, blocks, padding=9.0), whole(encoder, blocks))


@each_size
def test_steps_of_chosen_sizes_are_the_whole_of_these_sizes(size: tuple[int, int, int]) -> None:
    left, *chosen = size
    expected, blocks = whole(build(size), draw(2, 11)), draw(2, 11)
    close(stream(build((left, 3, 4)), blocks, 9.0, (chosen[0], chosen[1])), expected)


@modes
@each_size
def test_padding_is_inert_in_whole(mode: str, size: tuple[int, int, int]) -> None:
    encoder, blocks = build(size, mode), draw(3, 11)
    lengths = torch.tensor([WAVEFORM.needed(11), WAVEFORM.needed(6) + 1, WAVEFORM.needed(1)])
    padding = torch.arange(blocks.shape[1]) >= lengths[:, None]
    frames, counts = encoder.whole(blocks.masked_fill(padding[:, :, None], torch.nan), lengths)
    assert counts.tolist() == [11, 6, 1]
    for row, count in enumerate(counts.tolist()):
        close(frames[row, :count], whole(encoder, blocks[row : row + 1, : lengths[row]])[0])


def test_a_recording_too_short_for_a_frame_has_none() -> None:
    _, counts = build((3, 3, 3)).whole(draw(1, 0, more=1), torch.tensor([9]))
    assert counts.tolist() == [0]


@each_size
def test_the_future_changes_no_frame_already_emitted(size: tuple[int, int, int]) -> None:
    """A block has been emitted when its right context has arrived."""
    encoder, blocks = build(size), draw(1, 14)
    before, (_, centre, right) = whole(encoder, blocks), size
    for emitted in range(0, 14 - right, centre):
        changed = blocks.clone()
        changed[:, WAVEFORM.needed(emitted + right) :] = 0.5
        close(whole(encoder, changed)[:, :emitted], before[:, :emitted])


def test_a_frame_of_the_right_context_is_used() -> None:
    encoder, blocks = build((3, 3, 3)), draw(1, 9)
    changed = blocks.clone()
    changed[:, WAVEFORM.needed(5) :] = 0.5
    assert (whole(encoder, changed) - whole(encoder, blocks))[:, :3].abs().max() > 1e-3


def test_rows_of_streams_of_different_age_are_independent() -> None:
    encoder, blocks = build((3, 2, 1)), draw(2, 12)
    x = embedded(encoder, blocks, [12])
    later = encoder.start(1)
    for start in (0, 2, 4):
        _, later = encoder.step(x[1:, start : start + 3], torch.tensor([3]), later, 2)
    windows, lengths = torch.cat([x[:1, :3], x[1:, 6:9]]), torch.tensor([3, 3])
    states = [tuple(leaf.detach().numpy() for leaf in state) for state in (encoder.start(1), later)]
    joined = tuple(torch.from_numpy(leaf) for leaf in join_rows(*states))
    together, after = encoder.step(windows, lengths, joined, 2)
    for row, state in enumerate((encoder.start(1), later)):
        alone, own = encoder.step(windows[row : row + 1], lengths[:1], state, 2)
        close(together[row : row + 1], alone)
        for leaf, expected in zip(take_rows(tuple(x.detach().numpy() for x in after), [row]), own, strict=True):
            close(torch.from_numpy(leaf), expected.detach())


def test_a_stream_of_a_month_has_exact_positions() -> None:
    """Positions count from the start of the stream; in single precision they would be lost after an hour."""
    encoder, blocks = build((3, 2, 1)).float(), draw(1, 8).float()
    x = embedded(encoder, blocks, [8])
    outputs = []
    for age in (10, 10**8):
        state = (torch.tensor([age]), *encoder.start(1)[1:])
        out = []
        for start in (0, 2, 4):
            frames, state = encoder.step(x[:, start : start + 3], torch.tensor([3]), state, 2)
            out.append(frames)
        outputs.append(torch.cat(out, 1))
    close(outputs[0], outputs[1], 2e-5)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 100))
def test_the_front_end_in_pieces_is_the_front_end(sizes: list[int], seed: int) -> None:
    encoder, blocks = build((3, 3, 3)), draw(1, sum(sizes), seed)
    close(embedded(encoder, blocks, sizes), embedded(encoder, blocks, [sum(sizes)]))


def test_the_level_is_the_weighted_mean_with_forgetting() -> None:
    power = torch.rand(1, 500, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) ** 4
    gain, sums = level_gain(power, torch.zeros(1, 2, dtype=torch.float64))
    total = weight = 0.0
    for n, p in enumerate(power[0].tolist()):
        total, weight = (s * np.exp(-0.004 / 4) for s in (total, weight))
        total, weight = total + p**1.5, weight + p**0.5
        prior = 25 * 3e-7**0.5
        level = (total + prior * 3e-7) / (weight + prior)
        assert gain[0, n].item() == pytest.approx(0.085 / (0.22 * level) ** 0.5, rel=1e-9)
    assert sums[0, :, -1].tolist() == pytest.approx([total, weight], rel=1e-9)


@pytest.mark.parametrize("decibels", [-45, -20, 20])
def test_loudness_hardly_changes_what_the_layers_see(decibels: float) -> None:
    """From 45 dB below full scale to hard clipping at 20 dB above it; with a fixed level the change would be near 1."""
    front, source = WaveformFront(16).double().eval().requires_grad_(False), torch.Generator().manual_seed(3)
    front.first.weight.copy_(0.1 * torch.randn(front.first.weight.shape, generator=source, dtype=torch.float64))
    blocks = draw(1, 20, 1)
    blocks = blocks / blocks.abs().max()
    loud, _ = front(blocks, front.start(1))
    other, _ = front((blocks * 10 ** (decibels / 20)).clamp(-1, 1), front.start(1))
    change = (other - loud).square().mean() / loud.var()
    assert change < (0.05 if decibels < 0 else 0.5)


def test_silence_stays_finite() -> None:
    encoder = build((3, 3, 3))
    assert torch.isfinite(whole(encoder, torch.zeros_like(draw(1, 9)))).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"encoder": EncoderConfig(mode="isolated")},
        {"decoder": DecoderConfig(frame_positions=True)},
        {"features": FeaturesConfig(pitch=True)},
    ],
)
def test_settings_of_the_other_family_are_refused(wrong: dict[str, object]) -> None:
    good = {"network": NETWORK, "encoder": EncoderConfig(mode="reuse"), "decoder": DecoderConfig(frame_positions=False)}
    assert Config(**good).frame_rate == WAVEFORM  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="moonshine"):
        Config(**(good | wrong))  # type: ignore[arg-type]

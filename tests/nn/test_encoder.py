"""The chunk encoder: all windows at once, one at a time, and as a literal loop, in every mode."""

from __future__ import annotations

import typing
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headsync.config import EncoderConfig, NetworkConfig
from headsync.engine.state_tree import take_rows
from headsync.frontend.frame_rate import LOG_MEL
from headsync.nn.encoder import ChunkEncoder, EncoderState
from random_weights import scrambled
from reference.encoder import encode

FEATURES = 11
NETWORK = NetworkConfig(width=8, heads=2, feedforward=6, kernels=4)
SIZES = [(3, 3, 3), (5, 2, 1), (1, 4, 0), (0, 3, 2), (0, 1, 0), (4, 1, 6), (7, 3, 2)]  # left, centre, right

MODES = typing.get_args(typing.get_type_hints(EncoderConfig)["mode"])

modes = pytest.mark.parametrize("mode", MODES)
windowed = pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "full"])
each_size = pytest.mark.parametrize("size", SIZES, ids=str)


def build(size: tuple[int, int, int], mode: str, layers: int = 3, seed: int = 0) -> ChunkEncoder:
    left, centre, right = size
    config = EncoderConfig(layers, left, centre, right, mode)  # type: ignore[arg-type]
    return scrambled(ChunkEncoder(config, NETWORK, FEATURES), seed)


def draw(rows: int, frames: int, seed: int = 0) -> Tensor:
    """Features of random sound, of as many encoder frames and a few features more."""
    source = torch.Generator().manual_seed(seed)
    return torch.randn(rows, LOG_MEL.needed(frames) + 2, FEATURES, generator=source, dtype=torch.float64)


def whole(encoder: ChunkEncoder, features: Tensor) -> Tensor:
    frames, _ = encoder.whole(features, torch.full((len(features),), features.shape[1]))
    return frames


def windows(encoder: ChunkEncoder, features: Tensor, padding: float = 0.0) -> Iterator[tuple[Tensor, int]]:
    """The windows [centre | right] of a stream, filled up with `padding` at its end, and how much of each there is."""
    embedded = encoder.front(features)
    c, r = encoder.config.centre_frames, encoder.config.right_frames
    if encoder.config.mode == "full":
        c, r = embedded.shape[1], 0
    for start in range(0, embedded.shape[1], c):
        window = torch.full((len(features), c + r, embedded.shape[2]), padding, dtype=torch.float64)
        there = embedded[:, start : start + c + r]
        window[:, : there.shape[1]] = there
        yield window, there.shape[1]


def centre_of(encoder: ChunkEncoder, window: Tensor) -> int:
    return window.shape[1] if encoder.config.mode == "full" else encoder.config.centre_frames


def stream(encoder: ChunkEncoder, features: Tensor, padding: float = 0.0) -> Tensor:
    """The drained steps."""
    state, centres = encoder.start(len(features)), []
    for window, length in windows(encoder, features, padding):
        frames, state = encoder.step(window, torch.full((len(features),), length), state, centre_of(encoder, window))
        centres.append(frames[:, :length])
    return torch.cat(centres, 1)


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


@modes
@each_size
def test_whole_is_the_literal_loop(mode: str, size: tuple[int, int, int]) -> None:
    encoder, features = build(size, mode), draw(1, 8)
    weights = {name: weight.numpy() for name, weight in encoder.state_dict().items()}
    loop = encode(features[0].numpy(), weights, encoder.config)
    np.testing.assert_allclose(whole(encoder, features)[0].detach(), loop, rtol=0, atol=1e-9)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "reuse"])
@each_size
def test_with_sinusoids_whole_is_the_literal_loop(mode: str, size: tuple[int, int, int]) -> None:
    config = EncoderConfig(2, *size, mode, positions="sinusoids")  # type: ignore[arg-type]
    encoder, features = scrambled(ChunkEncoder(config, NETWORK, FEATURES), 0), draw(1, 8)
    weights = {name: weight.numpy() for name, weight in encoder.state_dict().items()}
    without = {f"layers.{n}.attention.distance_bias": np.zeros((NETWORK.heads, 1)) for n in range(2)}
    loop = encode(features[0].numpy(), weights | without, config)
    np.testing.assert_allclose(whole(encoder, features)[0].detach(), loop, rtol=0, atol=1e-6)  # sinusoids are single


@modes
@each_size
@settings(max_examples=6, deadline=None)
@given(st.integers(1, 17), st.integers(1, 3), st.integers(0, 1000))
def test_drained_steps_are_the_whole(
    mode: str, size: tuple[int, int, int], frames: int, layers: int, seed: int
) -> None:
    encoder, features = build(size, mode, layers, seed), draw(2, frames, seed)
    close(stream(encoder, features), whole(encoder, features))


@modes
def test_the_paper_s_window_of_sixteen_frames_each(mode: str) -> None:
    encoder, features = build((16, 16, 16), mode, 2), draw(1, 53)
    close(stream(encoder, features), whole(encoder, features))


@modes
@each_size
def test_padding_is_inert_in_whole(mode: str, size: tuple[int, int, int]) -> None:
    encoder, features = build(size, mode), draw(3, 11)
    lengths = torch.tensor([LOG_MEL.needed(11), LOG_MEL.needed(6) + 1, LOG_MEL.needed(1)])
    padding = torch.arange(features.shape[1]) >= lengths[:, None]
    frames, counts = encoder.whole(features.masked_fill(padding[:, :, None], torch.nan), lengths)
    assert counts.tolist() == [11, 6, 1]
    for row, count in enumerate(counts.tolist()):
        alone = whole(encoder, features[row : row + 1, : lengths[row]])
        close(frames[row, :count], alone[0])
    assert torch.isfinite(frames).all()


@modes
@each_size
def test_padding_is_inert_in_step(mode: str, size: tuple[int, int, int]) -> None:
    encoder, features = build(size, mode), draw(1, 10)
    close(stream(encoder, features, padding=torch.nan), stream(encoder, features, padding=0.0))


@modes
def test_gradients_of_a_nan_padded_batch_are_finite_and_those_of_the_rows(mode: str) -> None:
    encoder, lengths = build((4, 3, 2), mode), [LOG_MEL.needed(9), LOG_MEL.needed(4), LOG_MEL.needed(1)]
    features = draw(3, 9)
    padding = torch.arange(features.shape[1]) >= torch.tensor(lengths)[:, None]
    parameters = list(encoder.parameters())
    frames, counts = encoder.whole(features.masked_fill(padding[:, :, None], torch.nan), torch.tensor(lengths))
    total = sum((frames[row, :count] ** 3).sum() for row, count in enumerate(counts.tolist()))
    batched = torch.autograd.grad(total, parameters)
    total = sum((whole(encoder, features[row : row + 1, :length]) ** 3).sum() for row, length in enumerate(lengths))
    alone = torch.autograd.grad(total, parameters)
    for one, other in zip(batched, alone, strict=True):
        assert torch.isfinite(one).all()
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@windowed
def test_rows_of_a_state_can_be_chosen_and_moved(mode: str) -> None:
    """Streams at different places of their speech share a batch: a row is the stream alone."""
    encoder, features = build((5, 2, 1), mode), draw(3, 10)
    lone, states = [], []
    for row, steps in enumerate((0, 1, 3)):  # windows of the three streams so far
        state = encoder.start(1)
        pieces = list(windows(encoder, features[row : row + 1]))
        for window, length in pieces[:steps]:
            _, state = encoder.step(window, torch.tensor([length]), state, 2)
        states.append(state)
        lone.append((pieces[steps], encoder.step(pieces[steps][0], torch.tensor([pieces[steps][1]]), state, 2)))
    order = [2, 0, 1, 1]
    gathered = take_rows(EncoderState(*(torch.cat(parts) for parts in zip(*states, strict=True))), order)
    window = torch.cat([lone[row][0][0] for row in order])
    frames, after = encoder.step(window, torch.tensor([lone[row][0][1] for row in order]), gathered, 2)
    for place, row in enumerate(order):
        close(frames[place], lone[row][1][0][0])
        for part, alone in zip(take_rows(after, [place]), lone[row][1][1], strict=True):
            close(part, alone)


@modes
def test_a_step_does_not_change_its_input_state(mode: str) -> None:
    encoder, features = build((5, 2, 1), mode), draw(1, 6)
    window, length = next(windows(encoder, features))
    before, kept = encoder.start(1), encoder.start(1)
    first = encoder.step(window, torch.tensor([length]), before, centre_of(encoder, window))
    second = encoder.step(window, torch.tensor([length]), before, centre_of(encoder, window))
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(one, other) for one, other in zip(before, kept, strict=True))


@windowed
def test_no_frame_sees_beyond_its_right_context(mode: str) -> None:
    """The basis of the latency: audio after a window's right context does not change its centre."""
    encoder, features = build((3, 2, 1), mode), draw(1, 12)
    before = whole(encoder, features)
    for place in range(2, LOG_MEL.needed(12), 3):
        changed = features.clone()
        changed[:, place:] += 1.0
        after, heard = whole(encoder, changed), LOG_MEL.embedded(place)
        windows_end = [min(12, 2 * (n // 2) + 3) for n in range(12)]
        same = sum(end <= heard for end in windows_end)
        close(after[:, :same], before[:, :same])
        assert not torch.equal(after[:, same : same + 2], before[:, same : same + 2])


@pytest.mark.parametrize(("mode", "layers", "first"), [
    ("isolated", 1, 5), ("isolated", 3, 5), ("reuse", 1, 5), ("contextual", 1, 3), ("contextual", 2, 1),
])  # fmt: skip
def test_the_left_context_is_used_and_no_more(mode: str, layers: int, first: int) -> None:
    """Isolated windows depend on `left` frames before them, also by way of a state; a context adds a window a layer."""
    encoder = build((3, 2, 1), mode, layers)
    embedded = torch.randn(1, 12, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def last_window(x: Tensor) -> Tensor:
        state = encoder.start(1)
        for start in range(0, 10, 2):
            frames, state = encoder.step(x[:, start : start + 3], torch.tensor([3]), state, 2)
        return frames  # of frames 8 and 9

    before = last_window(embedded)
    for place in range(11):
        changed = embedded.clone()
        changed[:, place] *= -1.0
        assert torch.allclose(last_window(changed), before, rtol=0, atol=1e-12) == (place < first)


def test_reuse_differs_from_isolated_windows() -> None:
    isolated, reuse = build((3, 2, 1), "isolated"), build((3, 2, 1), "reuse")
    features = draw(1, 9)
    close(whole(isolated, features)[:, :2], whole(reuse, features)[:, :2])  # in the first window there is no left side
    assert not torch.allclose(whole(isolated, features), whole(reuse, features))


def test_with_full_context_every_frame_sees_all_however_far_away() -> None:
    encoder, features = build((2, 1, 0), "full"), draw(1, 12)
    before = whole(encoder, features)
    for place in (0, 20, 50):
        changed = features.clone()
        changed[:, place] += 1.0
        assert (whole(encoder, changed) - before).abs().amax(-1).min() > 1e-6


def test_windows_that_hold_an_utterance_have_full_context() -> None:
    isolated, full = build((0, 12, 0), "isolated"), build((0, 12, 0), "full")
    features = draw(2, 12)
    close(whole(full, features), whole(isolated, features))


def test_rows_of_different_lengths_share_a_step_of_full_context() -> None:
    encoder, embedded = build((2, 2, 1), "full"), torch.randn(2, 9, 8, dtype=torch.float64)
    lengths = torch.tensor([9, 4])
    frames, _ = encoder.step(embedded, lengths, encoder.start(2), 9)
    for row, length in enumerate(lengths.tolist()):
        alone, _ = encoder.step(embedded[row : row + 1, :length], lengths[row : row + 1], encoder.start(1), length)
        close(frames[row, :length], alone[0])


def test_weights_fit_every_mode() -> None:
    shapes = [{name: weight.shape for name, weight in build((3, 2, 1), mode).state_dict().items()} for mode in MODES]
    assert all(other == shapes[0] for other in shapes)
    assert shapes[0]["layers.0.attention.distance_bias"] == (2, 11)


def test_the_published_contextual_blocks() -> None:
    encoder, features = build((8, 16, 16), "contextual", 2), draw(1, 53)
    close(stream(encoder, features), whole(encoder, features))


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "reuse"])
def test_with_sinusoids_the_stream_is_the_whole_and_no_bias_is_learned(mode: str) -> None:
    config = EncoderConfig(2, 3, 4, 2, mode, positions="sinusoids")  # type: ignore[arg-type]
    encoder = scrambled(ChunkEncoder(config, NETWORK, FEATURES), 0)
    assert not [name for name, _ in encoder.named_parameters() if "distance" in name]
    features = draw(2, 14)
    expected, state, drained = whole(encoder, features), encoder.start(2), []
    for window, there in windows(encoder, features, padding=torch.nan):
        frames, state = encoder.step(window, torch.full((2,), there), state, centre_of(encoder, window))
        drained.append(frames)
    torch.testing.assert_close(torch.cat(drained, 1)[:, : expected.shape[1]], expected, rtol=0, atol=1e-9)


def test_sinusoids_tell_the_order_of_frames() -> None:
    config = EncoderConfig(1, mode="full", positions="sinusoids")
    encoder = scrambled(ChunkEncoder(config, NETWORK, FEATURES), 0)
    x = torch.randn(1, 6, NETWORK.width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    length = torch.tensor([6])
    forwards, _ = encoder.step(x, length, encoder.start(1), 6)
    backwards, _ = encoder.step(x.flip(1), length, encoder.start(1), 6)
    assert not torch.allclose(forwards, backwards.flip(1), atol=1e-6)


def test_an_untrained_full_context_encoder_attends_to_frames_ten_seconds_away() -> None:
    """The table of distances has 47 frames on each side; what lies further away is not ruled out from the start."""
    torch.manual_seed(0)
    encoder = ChunkEncoder(EncoderConfig(1, mode="full"), NETWORK, FEATURES).double().eval()
    x = torch.randn(1, 300, NETWORK.width, dtype=torch.float64, requires_grad=True)
    frames, _ = encoder.step(x, torch.tensor([300]), encoder.start(1), 300)
    (gradient,) = torch.autograd.grad(frames[0, 0].square().sum(), x)
    far, near = (gradient[0, part].norm(dim=-1).mean() for part in (slice(250, 300), slice(1, 40)))
    assert far > 0.01 * near

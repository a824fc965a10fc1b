"""Softmax attention and multi-head cross-attention against eq. (1) to (3), as literal loops."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headsync.attention.base import NO_LIMIT, AttentionWindow
from headsync.attention.cross_attention import CrossAttention
from headsync.attention.softmax import Softmax, Triggered
from headsync.config import DecoderConfig
from random_weights import scrambled
from reference import softmax as paper
from reference.softmax import attention, multi_head

seeds = st.integers(0, 10_000)


def draw(seed: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=source, dtype=torch.float64) for shape in shapes]


def window(limit: int, frames: int, final: bool) -> AttentionWindow:
    return AttentionWindow(torch.tensor([limit]), torch.tensor([frames]), torch.tensor([final]))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 9), st.integers(1, 4), seeds)
def test_eq01_scaled_dot_product_attention(heads: int, steps: int, frames: int, width: int, seed: int) -> None:
    q, k, v = draw(seed, (1, heads, steps, width), (1, heads, frames, width), (1, heads, frames, width))
    aligned = Softmax(DecoderConfig(), heads, 3).align(q, k, torch.tensor([[frames]]))
    context = aligned.weights_BHLT @ v
    for h in range(heads):
        loop = attention(q[0, h].numpy(), k[0, h].numpy(), v[0, h].numpy())
        np.testing.assert_allclose(context[0, h], loop, rtol=0, atol=1e-9)
    assert aligned.end_BHL.unique().tolist() == [frames]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(1, 12), seeds)
def test_a_limited_step_is_a_softmax_over_the_frames_before_the_limit(frames: int, limit: int, seed: int) -> None:
    q, k = draw(seed, (1, 2, 3), (1, 2, frames, 3))
    out = Softmax(DecoderConfig(), 2, 3).step(q, k, (), window(limit, frames, True))
    seen = min(limit, frames)
    for h in range(2):
        loop = paper.weights(q[0, h].numpy(), k[0, h, :seen].numpy()) + [0.0] * (frames - seen)
        np.testing.assert_allclose(out.weights_BHT[0, h], loop, rtol=0, atol=1e-9)
    assert out.end_BH.tolist() == [[seen, seen]]


def test_a_step_without_limit_waits_for_the_end_of_speech() -> None:
    q, k = draw(0, (1, 2, 3), (1, 2, 7, 3))
    mechanism = Softmax(DecoderConfig(), 2, 3)
    assert not mechanism.step(q, k, (), window(NO_LIMIT, 7, False)).ready_B.any()
    assert not mechanism.step(q, k, (), window(8, 7, False)).ready_B.any()
    assert mechanism.step(q, k, (), window(7, 7, False)).ready_B.all()
    assert mechanism.step(q, k, (), window(NO_LIMIT, 7, True)).ready_B.all()


def test_a_step_without_frames_has_no_weights() -> None:
    q, k = draw(0, (1, 2, 1, 3), (1, 2, 5, 3))
    aligned = Softmax(DecoderConfig(), 2, 3).align(q, k, torch.tensor([[0]]))
    assert aligned.weights_BHLT.unique().tolist() == [0.0]
    assert aligned.end_BHL.unique().tolist() == [0]


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 7), seeds)
def test_eq02_eq03_multi_head_attention(heads: int, steps: int, frames: int, seed: int) -> None:
    """The projections of the heads lie side by side in one matrix; the biases are the network's own addition."""
    width = 3 * heads
    cross = scrambled(CrossAttention(width, heads, Softmax(DecoderConfig(), heads, 3), 0.0), seed)
    for linear in (cross.query, cross.key, cross.value, cross.out):
        linear.bias.data.zero_()
    x, encoded = draw(seed, (1, steps, width), (1, frames, width))
    W_Q, W_K, W_V = (
        np.split(linear.weight.detach().numpy().T, heads, axis=1) for linear in (cross.query, cross.key, cross.value)
    )
    W_O = cross.out.weight.detach().numpy().T
    loop = multi_head(x[0].numpy(), encoded[0].numpy(), encoded[0].numpy(), W_Q, W_K, W_V, W_O)

    k, v = cross.project(encoded)
    whole, _ = cross.whole(x, k, v, torch.tensor([[frames]]))
    np.testing.assert_allclose(whole[0].detach(), loop, rtol=0, atol=1e-9)
    for i in range(steps):
        stepped, _ = cross.step(x[:, i], k, v, (), window(NO_LIMIT, frames, True))
        np.testing.assert_allclose(stepped[0].detach(), loop[i], rtol=0, atol=1e-9)


def test_dropout_leaves_the_halts_alone() -> None:
    """Dropout follows the truncation: weights are dropped and scaled, the frames consumed are the same."""
    cross = CrossAttention(4, 2, Softmax(DecoderConfig(), 2, 3), 0.5).double().train()
    x, encoded = draw(0, (1, 3, 4), (1, 6, 4))
    k, v = cross.project(encoded)
    torch.manual_seed(0)
    contexts = [cross.whole(x, k, v, torch.tensor([[6]])) for _ in range(2)]
    assert not torch.equal(contexts[0][0], contexts[1][0])
    assert torch.equal(contexts[0][1].weights_BHLT, contexts[1][1].weights_BHLT)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 9), seeds)
def test_triggered_attention_with_its_limit_at_the_end_is_softmax(frames: int, seed: int) -> None:
    q, k = draw(seed, (1, 2, 4, 3), (1, 2, frames, 3))
    triggered, softmax = Triggered(DecoderConfig(), 2, 3), Softmax(DecoderConfig(), 2, 3)
    at_end = torch.full((1, 4), frames)
    assert torch.equal(triggered.align(q, k, at_end).weights_BHLT, softmax.align(q, k, at_end).weights_BHLT)
    limits = torch.arange(1, 5).clamp(max=frames).unsqueeze(0)
    weights = triggered.align(q, k, limits).weights_BHLT
    for i, limit in enumerate(limits[0].tolist()):  # each step is a softmax over what its trigger lets it see
        loop = paper.weights(q[0, 0, i].numpy(), k[0, 0, :limit].numpy()) + [0.0] * (frames - limit)
        np.testing.assert_allclose(weights[0, 0, i], loop, rtol=0, atol=1e-9)

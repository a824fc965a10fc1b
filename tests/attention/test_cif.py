"""CIF against the literal accumulator; the last token, the split frame, and the scale of training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headsync.attention.base import NO_LIMIT, Attended, AttentionWindow
from headsync.attention.cif import CIF, KERNEL_FRAMES, integrate
from headsync.attention.energies import before_limit
from headsync.config import DecoderConfig
from headsync.testing import random_case
from random_weights import scrambled
from reference import cif as loops

alphas = st.lists(st.floats(0.01, 0.99), min_size=1, max_size=14)


def build(heads: int = 2, width: int = 4, bias: float = 0.0) -> CIF:
    return scrambled(CIF(DecoderConfig(energy_bias=bias), heads, width))


def certain_alpha(*alpha: float) -> CIF:
    """A mechanism whose frames have these weights."""
    mechanism = build()
    values = torch.tensor([alpha], dtype=torch.float64)

    def alpha_of(k_BHTD: Tensor, limit_B: Tensor) -> Tensor:
        frames = k_BHTD.shape[2]
        return values[:, :frames] * before_limit(frames, limit_B)

    mechanism._alpha = alpha_of  # type: ignore[method-assign]
    return mechanism


def listen(mechanism: CIF, frames: int, final: bool, state: tuple[Tensor, ...]) -> Attended:
    window = AttentionWindow(torch.tensor([NO_LIMIT]), torch.tensor([frames]), torch.tensor([final]))
    q, k = torch.zeros(1, 2, 4, dtype=torch.float64), torch.zeros(1, 2, frames, 4, dtype=torch.float64)
    return mechanism.step(q, k, state, window)


@settings(max_examples=60, deadline=None)
@given(alphas, st.floats(0.5, 3.0))
def test_integrating_is_the_accumulator_of_the_loop(alpha: list[float], scale: float) -> None:
    """Frames of more than 1, which the scale of training can make, belong to several tokens."""
    values = scale * np.array(alpha)
    loop = loops.fire(values)
    total = values.sum()
    if min(total % 1, 1 - total % 1, abs(total % 1 - 0.5)) < 1e-6:
        return  # a tie, on which rounding decides
    steps = len(loop) + 2
    weights, ends, _ = integrate(torch.tensor(values)[None], torch.arange(steps), torch.full((1, steps), len(alpha)))
    for i in range(steps):
        token = loop[i] if i < len(loop) else {}
        expected = [token.get(j, 0.0) for j in range(1, len(alpha) + 1)]
        np.testing.assert_allclose(weights[0, i], expected, rtol=0, atol=1e-9)
        if i < total - 1:
            assert ends[0, i] == max(j for j, share in token.items() if share > 1e-9)


def test_a_frame_is_split_between_two_tokens() -> None:
    weights, ends, complete = integrate(
        torch.tensor([[0.75, 0.5, 0.5, 0.25, 0.5]]), torch.arange(4), torch.full((1, 4), 5)
    )
    assert weights[0].tolist() == [[0.75, 0.25, 0, 0, 0], [0, 0.25, 0.5, 0.25, 0], [0, 0, 0, 0, 0.5], [0] * 5]
    assert ends[0].tolist() == [2, 4, 5, 5]  # the sum is exactly 2 after the fourth frame, which completes the token
    assert complete[0].tolist() == [True, True, False, False]


@pytest.mark.parametrize(("residue", "last"), [(0.5, [0, 0, 0.5]), (0.75, [0, 0, 0.75]), (0.375, [0, 0, 0])])
def test_the_last_token_is_not_lost(residue: float, last: list[float]) -> None:
    """Speech ends in the middle of a token: a remainder of at least 1/2 is one, decided only at the end of speech."""
    mechanism = certain_alpha(0.5, 0.5, residue)
    first = listen(mechanism, 3, False, mechanism.start(1))
    assert (first.ready_B.item(), first.weights_BHT[0, 0].tolist()) == (True, [0.5, 0.5, 0])
    assert not listen(mechanism, 3, False, first.state).ready_B.item()
    second = listen(mechanism, 3, True, first.state)
    assert second.ready_B.item()
    assert second.weights_BHT[0].tolist() == [last, last]
    third = listen(mechanism, 3, True, second.state)  # that of <eos>
    assert third.ready_B.item()
    assert third.weights_BHT.abs().sum() == 0


def test_a_token_is_decided_when_its_sum_reaches_one() -> None:
    mechanism = certain_alpha(0.5, 0.25, 0.25, 0.9)
    ready = [listen(mechanism, frames, False, mechanism.start(1)).ready_B.item() for frames in range(5)]
    assert ready == [False, False, False, True, True]
    assert listen(mechanism, 4, False, mechanism.start(1)).end_BH.tolist() == [[3, 3]]


def test_alpha_sees_a_frame_and_those_just_before_it() -> None:
    case, mechanism = random_case(rows=1, frames=9), build()
    everything = torch.tensor([9])
    before = mechanism._alpha(case.k_BHTD, everything)
    for j in range(9):
        k = case.k_BHTD.clone()
        k[:, 1, j] += 5.0
        changed = (mechanism._alpha(k, everything) - before)[0].abs() > 1e-12
        assert not changed[:j].any()
        assert not changed[j + KERNEL_FRAMES :].any()
        assert changed.any()


def test_queries_have_no_effect_and_all_heads_agree() -> None:
    case, mechanism = random_case(rows=2, heads=2, frames=9, seed=4), build()
    weights = mechanism.align(*case).weights_BHLT
    assert torch.equal(weights, mechanism.align(-case.q_BHLD, case.k_BHTD, case.limit_BL).weights_BHLT)
    assert torch.equal(weights[:, 0], weights[:, 1])
    assert weights.sum() > 1


def test_training_scales_to_the_number_of_tokens() -> None:
    """Row 0 has four steps, that is three tokens and <eos>; row 1 two steps, and fewer frames; row 2 only <eos>."""
    case = random_case(rows=3, steps=4, frames=9)
    limits = torch.tensor([[9, 9, 9, 9], [5, 5, 0, 0], [9, 0, 0, 0]])
    mechanism = build().train()
    aligned = mechanism.align(case.q_BHLD, case.k_BHTD, limits)
    expected = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(aligned.weights_BHLT[:, 0].sum(-1), expected, rtol=0, atol=1e-9)
    totals = [mechanism._alpha(case.k_BHTD[row : row + 1], torch.tensor([n])).sum() for row, n in enumerate((9, 5, 9))]
    assert aligned.surplus_BM is not None
    torch.testing.assert_close(aligned.surplus_BM[:, 0], torch.stack(totals) - torch.tensor([3, 1, 0]))
    assert torch.equal(mechanism.eval().align(case.q_BHLD, case.k_BHTD, limits).surplus_BM, aligned.surplus_BM)


def test_the_gradient_passes_through_the_scale() -> None:
    """In training alpha is scaled to the number of tokens, and the scale depends on every frame."""
    case = random_case(rows=1, steps=4, frames=9, seed=3)
    limits = torch.full((1, 4), 9)
    mechanism = build().train()

    def weights(k: Tensor) -> Tensor:
        return mechanism.align(case.q_BHLD, k, limits).weights_BHLT

    assert torch.autograd.gradcheck(weights, (case.k_BHTD.clone().requires_grad_(),))


def test_training_survives_rows_without_frames_or_steps() -> None:
    k = torch.randn(2, 2, 5, 4, dtype=torch.float64, requires_grad=True)
    aligned = build().train().align(torch.zeros(2, 2, 3, 4), k, torch.tensor([[0, 0, 0], [5, 5, 5]]))
    assert aligned.surplus_BM is not None
    (aligned.weights_BHLT.sum() + aligned.surplus_BM.sum()).backward()
    assert aligned.weights_BHLT[0].abs().sum() == 0
    assert k.grad is not None
    assert k.grad.isfinite().all()


def test_long_speech_in_single_precision_keeps_its_tokens() -> None:
    """2,000 frames and 500 tokens in float32: each token still has the weight 1, to the rounding of a sum of 500."""
    k = torch.randn(1, 2, 2000, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    mechanism = build().float().train()
    weights = mechanism.align(torch.zeros(1, 2, 501, 4), k, torch.full((1, 501), 2000)).weights_BHLT[0, 0]
    assert weights[:500].sum(-1).tolist() == pytest.approx([1.0] * 500, abs=1e-3)
    assert weights[500].abs().sum() == 0
    (weights * torch.linspace(0, 1, 2000)).sum().backward()
    assert k.grad is not None
    assert k.grad.isfinite().all()


def test_half_precision_accumulates_in_single() -> None:
    mechanism = CIF(DecoderConfig(energy_bias=-4.0), 1, 1).bfloat16().eval()
    with torch.no_grad():
        mechanism.alpha.weight.zero_()
    frames = 1200
    q, k = torch.zeros(1, 1, 30, 1, dtype=torch.bfloat16), torch.zeros(1, 1, frames, 1, dtype=torch.bfloat16)
    end = mechanism.align(q, k, torch.tensor([[frames]])).end_BHL[0, 0]
    p = torch.sigmoid(torch.tensor(-4.0)).item()
    assert end[19].item() == pytest.approx(20 / p, abs=2)

"""HMA, MoChA, MMA-MoChA and MTA against their equations as literal loops: the expectation, and the stream."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headsync.attention.base import NO_LIMIT, Aligned, AttentionWindow, Phase
from headsync.attention.bernoulli import HMA, MMA, MTA, Bernoulli, MoChA
from headsync.attention.energies import energies
from headsync.attention.expectation import expected_boundaries, expected_chunks
from headsync.config import DecoderConfig
from headsync.testing import Case, drain_steps, random_case
from random_weights import scrambled
from reference import bernoulli as loops

KINDS = [HMA, MoChA, MMA, MTA]
sizes = st.fixed_dictionaries({"steps": st.integers(1, 5), "frames": st.integers(1, 9), "seed": st.integers(0, 10_000)})
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def build(kind: type[Bernoulli], heads: int = 1, width: int = 4, bias: float = 0.0, **frames: int) -> Bernoulli:
    """`frames`: the chunk of MoChA and MMA-MoChA, and the wait of MMA-MoChA."""
    mechanism = scrambled(kind(DecoderConfig(energy_bias=bias), heads, width))
    for name, value in frames.items():
        setattr(mechanism, name, value)
    return mechanism


def stopping(mechanism: Bernoulli, case: Case, head: int = 0) -> np.ndarray:
    """p_{i,j} of the first row."""
    energy = energies(case.q_BHLD, case.k_BHTD)[0, head] + mechanism.energy_bias.detach()
    return torch.sigmoid(energy).numpy()


def chunk_energies(mechanism: MoChA, case: Case, head: int = 0) -> np.ndarray:
    q, k, A = case.q_BHLD[0, head].numpy(), case.k_BHTD[0, head].numpy(), mechanism.chunk_HDD[head].detach().numpy()
    return np.array([[q_i @ A @ k_j / math.sqrt(len(q_i)) for k_j in k] for q_i in q])


def given_p(p: list[list[list[float]]]) -> Case:
    """One row whose head m stops at frame j of step i with p[m][i][j], to the last bit; the bias has to be 0."""
    energy = torch.tensor(p, dtype=torch.float64).logit()  # (M, L, T) = q k^T with k the unit vectors
    frames = energy.shape[2]
    k = torch.eye(frames, dtype=torch.float64).expand(1, len(p), frames, frames) * math.sqrt(frames)
    return Case(energy.unsqueeze(0), k, torch.full((1, energy.shape[1]), NO_LIMIT))


@settings(max_examples=30, deadline=None)
@given(sizes)
def test_expected_boundaries_are_those_of_the_loop(size: dict[str, int]) -> None:
    case = random_case(rows=2, heads=2, scale=2.0, **size)
    mechanism = build(HMA, heads=2, bias=-0.5)
    alpha = mechanism.align(*case).weights_BHLT.detach()
    for h in range(2):
        loop = loops.expected_boundaries(stopping(mechanism, case, h), case.limit_BL[0].tolist())
        np.testing.assert_allclose(alpha[0, h], loop, rtol=0, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(sizes, st.integers(1, 5))
def test_expected_chunks_are_those_of_the_loop(size: dict[str, int], w: int) -> None:
    case = random_case(rows=1, heads=2, scale=2.0, **size)
    mechanism = build(MoChA, heads=2, chunk_frames=w)
    assert isinstance(mechanism, MoChA)
    beta = mechanism.align(*case).weights_BHLT.detach()
    for h in range(2):
        alpha = loops.expected_boundaries(stopping(mechanism, case, h), case.limit_BL[0].tolist())
        loop = loops.expected_chunks(alpha, chunk_energies(mechanism, case, h), w)
        np.testing.assert_allclose(beta[0, h], loop, rtol=0, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(sizes)
def test_hma_streams_as_the_loop(size: dict[str, int]) -> None:
    case = random_case(rows=1, heads=2, scale=2.0, **size)
    mechanism = build(HMA, heads=2)
    drained = drain_steps(mechanism, case)
    for h in range(2):
        found = loops.boundaries(stopping(mechanism, case, h), case.limit_BL[0].tolist())
        for i, boundary in enumerate(found):
            expected = [float(j == boundary) for j in range(1, size["frames"] + 1)]
            assert drained.weights_BHLT[0, h, i].tolist() == expected
            if boundary is not None:
                assert drained.end_BHL[0, h, i] == boundary


@settings(max_examples=30, deadline=None)
@given(sizes, st.integers(1, 5))
def test_mocha_streams_as_the_loop(size: dict[str, int], w: int) -> None:
    case = random_case(rows=1, heads=1, scale=2.0, **size)
    mechanism = build(MoChA, chunk_frames=w)
    assert isinstance(mechanism, MoChA)
    drained = drain_steps(mechanism, case)
    u = np.pad(chunk_energies(mechanism, case), ((1, 0), (1, 0)))
    for i, boundary in enumerate(loops.boundaries(stopping(mechanism, case), case.limit_BL[0].tolist())):
        inside = loops.chunk(u[i + 1], boundary, w) if boundary else {}
        expected = [inside.get(j, 0.0) for j in range(1, size["frames"] + 1)]
        np.testing.assert_allclose(drained.weights_BHLT[0, 0, i].detach(), expected, rtol=0, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(sizes, st.integers(1, 4), st.integers(0, 5))
def test_mma_heads_wait_for_one_another_as_in_the_loop(size: dict[str, int], heads: int, eps: int) -> None:
    case = random_case(rows=1, heads=heads, scale=2.0, **size)
    mechanism = build(MMA, heads=heads, bias=-1.0, chunk_frames=1, wait_frames=eps)
    weights = drain_steps(mechanism, case).weights_BHLT[0]
    p = np.stack([stopping(mechanism, case, h) for h in range(heads)])
    for i, step in enumerate(loops.synchronised_boundaries(p, case.limit_BL[0].tolist(), eps)):
        for h, boundary in enumerate(step):
            assert weights[h, i].tolist() == [float(j == boundary) for j in range(1, size["frames"] + 1)]


@settings(max_examples=30, deadline=None)
@given(sizes)
def test_mta_is_the_loop(size: dict[str, int]) -> None:
    case = random_case(rows=1, heads=2, scale=2.0, **size)
    mechanism = build(MTA, heads=2, bias=-0.5)
    aligned, drained = mechanism.align(*case), drain_steps(mechanism, case)
    for h in range(2):
        p, limit = stopping(mechanism, case, h), case.limit_BL[0].tolist()
        np.testing.assert_allclose(aligned.weights_BHLT[0, h].detach(), loops.truncated(p, limit), rtol=0, atol=1e-9)
        weights, ends = loops.truncated_stream(p, limit)
        np.testing.assert_allclose(drained.weights_BHLT[0, h].detach(), weights, rtol=0, atol=1e-9)
        assert drained.end_BHL[0, h].tolist() == ends


def test_one_half_stops_hma_but_not_mta() -> None:
    case = given_p([[[0.2, 0.5, 0.6]]])
    assert drain_steps(build(HMA), case).end_BHL.item() == 2
    assert drain_steps(build(MTA), case).end_BHL.item() == 3


def test_boundaries_may_repeat_but_never_move_back() -> None:
    case = given_p([[[0.9, 0.9, 0.1], [0.1, 0.1, 0.9], [0.9, 0.9, 0.9]]])
    assert drain_steps(build(HMA), case).end_BHL.flatten().tolist() == [1, 3, 3]
    assert drain_steps(build(MTA), case).end_BHL.flatten().tolist() == [1, 3, 3]


def test_a_head_without_a_boundary_has_no_context_in_later_steps() -> None:
    case = given_p([[[0.9, 0.1], [0.1, 0.1], [0.9, 0.9]], [[0.9, 0.1], [0.9, 0.1], [0.1, 0.9]]])
    drained = drain_steps(build(HMA, heads=2), case)
    assert drained.weights_BHLT.sum(-1)[0].tolist() == [[1, 0, 0], [1, 1, 1]]
    assert drained.end_BHL[0].tolist() == [[1, 2, 0], [1, 1, 2]]


def test_a_head_is_not_lost_before_the_last_frame() -> None:
    case, mechanism = given_p([[[0.1, 0.1, 0.9]]]), build(HMA)
    for frames, ready in ((0, False), (2, False), (3, True)):
        window = AttentionWindow(torch.tensor([NO_LIMIT]), torch.tensor([frames]), torch.tensor([False]))
        out = mechanism.step(case.q_BHLD[:, :, 0], case.k_BHTD[:, :, :frames], mechanism.start(1), window)
        assert out.ready_B.item() is ready
    window = AttentionWindow(torch.tensor([NO_LIMIT]), torch.tensor([2]), torch.tensor([True]))
    out = mechanism.step(case.q_BHLD[:, :, 0], case.k_BHTD[:, :, :2], mechanism.start(1), window)
    assert (out.ready_B.item(), out.state[1].item()) == (True, True)


def test_a_step_of_mma_is_decided_when_the_last_head_is_due() -> None:
    """The first head stops at frame 1; with eps = 2 the other one is forced to at frame 3, once that has arrived."""
    case = given_p([[[0.1, 0.9, 0.1, 0.1, 0.1]], [[0.1, 0.1, 0.1, 0.1, 0.9]]])
    mechanism = build(MMA, heads=2, width=5, wait_frames=2, chunk_frames=1)
    for frames, ready in ((1, False), (2, False), (3, False), (4, True), (5, True)):
        window = AttentionWindow(torch.tensor([NO_LIMIT]), torch.tensor([frames]), torch.tensor([False]))
        out = mechanism.step(case.q_BHLD[:, :, 0], case.k_BHTD[:, :, :frames], mechanism.start(1), window)
        assert out.ready_B.item() is ready
    assert out.end_BH.tolist() == [[2, 4]]
    assert out.weights_BHT[0].argmax(-1).tolist() == [1, 3]


def test_a_head_that_does_not_move_holds_the_others() -> None:
    """The first head stays on frame 0, and the second never stops by its own energies; eps is 2."""
    sits, never = [0.9] + [0.1] * 6, [0.1] * 7
    case = given_p([[sits] * 4, [never] * 4])
    case = case._replace(limit_BL=torch.full((1, 4), 7))
    drained = drain_steps(build(MMA, heads=2, width=7, wait_frames=2, chunk_frames=1), case)
    assert drained.end_BHL[0, 0].tolist() == [1, 1, 1, 1]
    assert drained.weights_BHLT[0, 1].argmax(-1).tolist() == [2, 2, 2, 2]


def test_a_step_of_mma_is_decided_at_once_when_all_heads_have_stopped() -> None:
    case, mechanism = given_p([[[0.1, 0.9]], [[0.9, 0.1]]]), build(MMA, heads=2, width=2)
    window = AttentionWindow(torch.tensor([NO_LIMIT]), torch.tensor([2]), torch.tensor([False]))
    assert mechanism.step(case.q_BHLD[:, :, 0], case.k_BHTD, mechanism.start(1), window).ready_B.item()


@settings(max_examples=20, deadline=None)
@given(sizes)
def test_mocha_with_chunks_of_one_frame_is_hma(size: dict[str, int]) -> None:
    case = random_case(rows=2, heads=2, scale=2.0, **size)
    mocha, hma = build(MoChA, heads=2, chunk_frames=1), build(HMA, heads=2)
    for form in (lambda mechanism: mechanism.align(*case), lambda mechanism: drain_steps(mechanism, case)):
        torch.testing.assert_close(form(mocha)[:2], form(hma)[:2], rtol=0, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(sizes, st.integers(1, 4))
def test_mma_with_one_head_is_mocha(size: dict[str, int], w: int) -> None:
    case = random_case(rows=2, heads=1, scale=2.0, **size)
    mma, mocha = build(MMA, chunk_frames=w, wait_frames=0), build(MoChA, chunk_frames=w)
    for form in (lambda mechanism: mechanism.align(*case), lambda mechanism: drain_steps(mechanism, case)):
        torch.testing.assert_close(form(mma)[:2], form(mocha)[:2], rtol=0, atol=0)


def test_the_surplus_of_mma_is_boundaries_minus_tokens() -> None:
    case = random_case(rows=2, heads=2, steps=4, frames=9, seed=2)
    case = case._replace(limit_BL=torch.tensor([[9, 9, 9, 9], [9, 9, 0, 0]]))  # three tokens and one, with <eos>
    mechanism = build(MMA, heads=2)
    surplus = mechanism.align(*case).surplus_BM
    assert surplus is not None
    for h in range(2):
        alpha = loops.expected_boundaries(stopping(mechanism, case, h), [9, 9, 9, 9])
        assert surplus[0, h].item() == pytest.approx(alpha.sum() - 3, abs=1e-9)
    assert (surplus[1].abs() <= 1).all()  # of the two steps of the second row


def test_mma_does_not_count_in_the_first_phase_of_training() -> None:
    case, mechanism = random_case(rows=1, heads=2, steps=3, frames=9), build(MMA, heads=2)
    counted = mechanism.align(*case)
    mechanism.phase = Phase(halts=False)
    assert mechanism.align(*case).surplus_BM is None
    assert torch.equal(mechanism.align(*case).weights_BHLT, counted.weights_BHLT)


def test_head_drop_drops_heads_in_training_and_scales_the_others() -> None:
    case = random_case(rows=200, heads=4, steps=2, frames=5)
    mechanism = build(MMA, heads=4)
    mechanism.noise = 0.0
    whole = mechanism.align(*case).weights_BHLT
    torch.manual_seed(0)
    dropped = mechanism.train().align(*case)
    factors = (dropped.weights_BHLT / whole).nan_to_num().flatten(2).amax(2)
    kept = factors > 0
    assert kept.double().mean().item() == pytest.approx(0.5, abs=0.1)
    scale = 4 / kept.sum(1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(factors, kept * scale.double())
    assert sorted(set(kept.sum(1).tolist())) == [0, 1, 2, 3, 4]
    surplus = mechanism.eval().align(*case).surplus_BM
    torch.testing.assert_close(dropped.surplus_BM, surplus)  # a head that is dropped still counts


@kinds
def test_noise_is_added_in_training_only(kind: type[Bernoulli]) -> None:
    case = random_case(rows=1, steps=3, frames=7)
    mechanism, still = build(kind, heads=2), build(kind, heads=2).train()
    mechanism.head_drop = still.head_drop = 0.0
    weights = [mechanism.align(*case).weights_BHLT for _ in range(2)]
    assert torch.equal(*weights)
    mechanism.train()
    noisy = [mechanism.align(*case).weights_BHLT for _ in range(2)]
    assert not torch.allclose(*noisy)
    still.noise = 0.0
    torch.testing.assert_close(still.align(*case).weights_BHLT, weights[0])


def test_the_noise_has_the_published_deviation() -> None:
    mechanism = build(HMA).train()
    torch.manual_seed(0)
    q, k = torch.zeros(1, 1, 100, 4, dtype=torch.float64), torch.zeros(1, 1, 100, 4, dtype=torch.float64)
    assert mechanism._energies(q, k).std().item() == pytest.approx(1.0, abs=0.05)


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 4), st.integers(0, 1000))
def test_the_derivatives_of_both_expectations(steps: int, frames: int, width: int, seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    shape = (1, 2, steps, frames)
    random = (torch.rand(shape, generator=source, dtype=torch.float64) for _ in range(3))
    p, alpha, u = ((0.01 + 0.98 * x).requires_grad_() for x in random)  # finite differences stay in [0, 1]
    assert torch.autograd.gradcheck(expected_boundaries, (p,))
    assert torch.autograd.gradcheck(lambda a, u: expected_chunks(a, u, width), (alpha, u))


def test_small_masses_are_kept() -> None:
    """With p = 0.001, step i stops at its first frames with a probability of about 1e-3 to the power of i + 1."""
    p = torch.full((1, 1, 4, 6), 1e-3, dtype=torch.float64)
    alpha = expected_boundaries(p)[0, 0]
    expected = loops.expected_boundaries(p[0, 0].numpy(), [6, 6, 6, 6])
    assert 0 < expected[3].max() < 1e-9
    np.testing.assert_allclose(alpha, expected, rtol=1e-9, atol=0)


def hard_cases() -> dict[str, Tensor]:
    """Energies (L, T) of +-50 over 2,000 frames."""
    steps, frames = 6, 2000
    source = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (steps, frames), generator=source) * 100.0 - 50.0
    late = torch.full((steps, frames), -50.0)
    late[:, -3:] = 50.0
    return {
        "always": torch.full((steps, frames), 50.0), "never": torch.full((steps, frames), -50.0), "mixed": signs,
        "late": late, "unsure": torch.zeros(steps, frames),
    }  # fmt: skip


@kinds
@pytest.mark.parametrize("name", hard_cases())
def test_nothing_overflows(kind: type[Bernoulli], name: str) -> None:
    """In float32, as in training: values and gradients are finite, and no mass is created."""
    energy = hard_cases()[name].requires_grad_()
    mechanism = kind(DecoderConfig(energy_bias=0.0), 1, 1).eval()
    mechanism._energies = lambda q, k: energy[None, None]  # type: ignore[method-assign]
    k = (energy.detach()[None, None, 0, :, None] + torch.linspace(-50, 50, 2000)[:, None]).requires_grad_()
    weights = mechanism.align(torch.ones(1, 1, 6, 1), k, torch.full((1, 6), 2000)).weights_BHLT
    (weights * torch.linspace(-1, 1, 2000)).sum().backward()
    assert (weights >= 0).all()
    assert (weights.sum(-1) <= 1 + 1e-4).all()
    for gradient in (energy.grad, k.grad if isinstance(mechanism, MoChA) else energy.grad):
        assert gradient is not None
        assert gradient.isfinite().all()
    if name in ("always", "late"):
        assert weights.sum(-1).tolist() == [[pytest.approx([1.0] * 6, abs=1e-4)]]
    if name == "late" and not isinstance(mechanism, MoChA):
        assert weights.argmax(-1).flatten().tolist() == [1997] * 6  # 1,997 frames are passed without loss


@kinds
def test_half_precision_computes_in_single(kind: type[Bernoulli]) -> None:
    frames = 600
    q, k = torch.ones(1, 2, 1, 1, dtype=torch.bfloat16), torch.full((1, 2, frames, 1), -4.0, dtype=torch.bfloat16)
    mechanism = kind(DecoderConfig(energy_bias=0.0), 2, 1).bfloat16().eval()
    aligned: Aligned = mechanism.align(q, k, torch.tensor([[frames]]))
    p = torch.sigmoid(torch.tensor(-4.0)).item()
    assert aligned.weights_BHLT.dtype == torch.bfloat16
    sums = aligned.weights_BHLT.float().sum(-1).flatten().tolist()
    assert sums == pytest.approx([1 - (1 - p) ** frames] * 2, rel=0.01)


@pytest.mark.parametrize("kind", [HMA, MoChA, MMA], ids=lambda kind: kind.__name__)
def test_sharper_energies_bring_training_closer_to_the_stream(kind: type[Bernoulli]) -> None:
    case = random_case(rows=2, heads=2, steps=3, frames=8, seed=5, scale=2.0)
    mechanism = build(kind, heads=2, bias=0.3, wait_frames=100).eval()
    stream = drain_steps(mechanism, case).weights_BHLT.detach()
    gaps = []
    for sharpness in (1.0, 10.0, 1e6):
        mechanism.phase = Phase(sharpness=sharpness)
        gaps.append(float((mechanism.align(*case).weights_BHLT.detach() - stream).abs().max()))
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-9

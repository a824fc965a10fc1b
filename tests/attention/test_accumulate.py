"""ACS, DACS and HS-DACS against the paper's equations and Algorithm 1, as literal loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headsync.attention.accumulate import ACS, DACS, HSDACS
from headsync.attention.base import NO_LIMIT, Aligned, AttentionWindow, Phase
from headsync.attention.energies import energies
from headsync.config import Config, DecoderConfig, DecodingConfig, EncoderConfig, NetworkConfig
from headsync.decoding.hypothesis import SpeechFrames
from headsync.decoding.lookahead import lookahead
from headsync.decoding.published_policy import PublishedSearch
from headsync.endpointing.ctc_spikes import NO_SPIKES
from headsync.engine import Memory
from headsync.engine.torch import TorchEngine
from headsync.nn.model import Model
from headsync.testing import check_mechanism, random_case
from random_weights import scrambled
from reference import accumulate as paper

Sizes = tuple[int, int, int, int]  # heads, output steps, frames, head width
sizes = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 12), st.integers(1, 5))
seeds = st.integers(0, 10_000)
thresholds = st.sampled_from([0.25, 0.5, 1.0, 2.0])


def build(kind: type[DACS], heads: int = 1, threshold: float = 1.0, bias: float = 0.0) -> DACS:
    return kind(DecoderConfig(threshold=threshold, energy_bias=bias), heads, 1).double()


def draw(size: Sizes, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """q (1, H, L, d), k and v (1, H, T, d)."""
    heads, steps, frames, width = size
    source = torch.Generator().manual_seed(seed)
    q = torch.randn(1, heads, steps, width, generator=source, dtype=torch.float64)
    k, v = torch.randn(2, 1, heads, frames, width, generator=source, dtype=torch.float64)
    return 2 * q, k, v


def energies_of(p: list[list[float]]) -> tuple[Tensor, Tensor]:
    """One query of width 1 and keys so that head h gives frame j the halting probability p[h][j], to the last bit."""
    logits = torch.tensor([[math.log(one / (1 - one)) for one in head] for head in p], dtype=torch.float64)
    return torch.ones(1, len(p), 1, 1, dtype=torch.float64), logits[None, :, :, None]


def align(mechanism: DACS, q: Tensor, k: Tensor, limit: int = NO_LIMIT) -> Aligned:
    return mechanism.align(q, k, torch.tensor([[min(limit, k.shape[2])]]))


@settings(max_examples=20, deadline=None)
@given(sizes, seeds)
def test_eq04_energy(size: Sizes, seed: int) -> None:
    q, k, _ = draw(size, seed)
    e = energies(q, k)[0]
    for h, i, j in np.ndindex(*e.shape):
        assert e[h, i, j].item() == pytest.approx(paper.energy(q[0, h, i].numpy(), k[0, h, j].numpy()), abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(sizes, seeds, st.floats(-3, 3))
def test_eq05_halting_probability_is_a_sigmoid(size: Sizes, seed: int, bias: float) -> None:
    q, k, _ = draw(size, seed)
    weights = align(build(DACS, threshold=math.inf, bias=bias), q, k).weights_BHLT[0].detach()
    for h, i, j in np.ndindex(*weights.shape):
        e = paper.energy(q[0, h, i].numpy(), k[0, h, j].numpy()) + float(torch.tensor(bias))
        assert weights[h, i, j].item() == pytest.approx(paper.sigmoid(e), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(sizes, seeds, thresholds, st.integers(1, 14))
def test_eq06_each_head_halts_by_itself(size: Sizes, seed: int, threshold: float, limit: int) -> None:
    q, k, v = draw(size, seed)
    ends = align(build(DACS, size[0], threshold), q, k, limit).end_BHL[0]
    for i in range(size[1]):
        loop = paper.dacs(q[0, :, i].numpy(), k[0].numpy(), v[0].numpy(), limit, threshold)
        assert ends[:, i].tolist() == list(loop.N.values())


@settings(max_examples=40, deadline=None)
@given(sizes, seeds, thresholds, st.integers(1, 14), st.sampled_from([DACS, HSDACS]))
def test_eq07_context(size: Sizes, seed: int, threshold: float, limit: int, kind: type[DACS]) -> None:
    q, k, v = draw(size, seed)
    context = (align(build(kind, size[0], threshold), q, k, limit).weights_BHLT @ v)[0].detach().numpy()
    step = paper.hs_dacs if kind is HSDACS else paper.dacs
    for i in range(size[1]):
        loop = step(q[0, :, i].numpy(), k[0].numpy(), v[0].numpy(), limit, threshold)
        np.testing.assert_allclose(context[:, i], list(loop.c.values()), rtol=0, atol=1e-9)


def test_eq08_all_heads_add_into_one_sum() -> None:
    q, k = energies_of([[0.6, 0.1, 0.1, 0.1], [0.5, 0.5, 0.5, 0.5], [0.2, 0.3, 0.9, 0.9]])
    # over the heads: 1.3, 2.2, 3.7; the joint threshold of three heads is 3
    assert align(build(HSDACS, 3), q, k).end_BHL.flatten().tolist() == [3, 3, 3]
    assert align(build(DACS, 3), q, k).end_BHL.flatten().tolist() == [4, 3, 3]  # 0.9; 1.0 is not passed; 1.4


@settings(max_examples=40, deadline=None)
@given(sizes, seeds, thresholds, st.integers(1, 14))
def test_eq09_head_synchronous_step(size: Sizes, seed: int, threshold: float, limit: int) -> None:
    q, k, v = draw(size, seed)
    mechanism = build(HSDACS, size[0], threshold)
    ends = align(mechanism, q, k, limit).end_BHL[0]
    there = torch.tensor([size[2]])
    for i in range(size[1]):
        loop = paper.hs_dacs(q[0, :, i].numpy(), k[0].numpy(), v[0].numpy(), limit, threshold)
        assert ends[:, i].tolist() == list(loop.N.values())
        assert len(set(loop.N.values())) == 1  # the heads halt together
        stepped = mechanism.step(q[:, :, i], k, (), AttentionWindow(torch.tensor([limit]), there, torch.tensor([True])))
        assert stepped.end_BH[0].tolist() == list(loop.N.values())


@settings(max_examples=20, deadline=None)
@given(sizes, seeds, thresholds)
def test_hs_dacs_with_one_head_is_dacs(size: Sizes, seed: int, threshold: float) -> None:
    q, k, _ = draw((1, *size[1:]), seed)
    one, other = (align(build(kind, 1, threshold, -1.0), q, k) for kind in (DACS, HSDACS))
    assert torch.equal(one.weights_BHLT, other.weights_BHLT)
    assert torch.equal(one.end_BHL, other.end_BHL)


@settings(max_examples=40, deadline=None)
@given(sizes, seeds, thresholds, st.integers(1, 14))
def test_acs_has_one_halting_probability_for_the_whole_layer(
    size: Sizes, seed: int, threshold: float, limit: int
) -> None:
    q, k, v = draw(size, seed)
    mechanism = build(ACS, size[0], threshold, -0.5)
    aligned = align(mechanism, q, k, limit)
    context = (aligned.weights_BHLT @ v)[0].detach().numpy()
    for i in range(size[1]):
        loop = paper.acs(q[0, :, i].numpy(), k[0].numpy(), v[0].numpy(), limit, threshold, -0.5)
        np.testing.assert_allclose(context[:, i], list(loop.c.values()), rtol=0, atol=1e-9)
        assert aligned.end_BHL[0, :, i].tolist() == list(loop.N.values())


@settings(max_examples=20, deadline=None)
@given(sizes, seeds, thresholds)
def test_acs_with_one_head_is_dacs(size: Sizes, seed: int, threshold: float) -> None:
    q, k, _ = draw((1, *size[1:]), seed)
    one, other = (align(build(kind, 1, threshold, -1.0), q, k) for kind in (DACS, ACS))
    assert torch.equal(one.weights_BHLT, other.weights_BHLT)
    assert torch.equal(one.end_BHL, other.end_BHL)


@settings(max_examples=30, deadline=None)
@given(sizes, seeds, st.integers(1, 3), st.integers(1, 6), thresholds)
def test_alg1_inference(size: Sizes, seed: int, layers: int, M: int, threshold: float) -> None:
    """Layer by layer and step by step with given decoder states: contexts, halts and t_i are the algorithm's."""
    H, L, T, d = size
    rng = np.random.default_rng(seed)
    q, bias = 2 * rng.normal(size=(L, layers, H, d)), tuple(np.float32(rng.normal(size=layers)).tolist())
    k, v = rng.normal(size=(2, layers, H, T, d))
    stack = [build(HSDACS, H, threshold, b) for b in bias]
    t, loop = 0, paper.algorithm_1(q, k, v, M, threshold, bias)
    for i in range(L):
        window = AttentionWindow(torch.tensor([t + M]), torch.tensor([T]), torch.tensor([True]))
        for n, mechanism in enumerate(stack):
            out = mechanism.step(torch.tensor(q[i, n][None]), torch.tensor(k[n][None]), (), window)
            context = (out.weights_BHT[0].unsqueeze(1) @ torch.tensor(v[n])).flatten().detach().numpy()
            np.testing.assert_allclose(context, loop.c[i + 1, n + 1], rtol=0, atol=1e-9)
            assert out.end_BH.tolist() == [[loop.N[i + 1, n + 1]] * H]
            t = max(t, int(out.end_BH.max()))
        assert t == loop.t[i + 1]


@pytest.mark.parametrize("seed", [2, 5, 6, 11])  # in these t_i would fall, were it not kept from falling
def test_alg1_inference_in_the_whole_decoder(seed: int) -> None:
    """The search, the decoder and the mechanism together run Algorithm 1 on the states that the network makes."""
    M, T, H, layers, network = 4, 60, 2, 2, NetworkConfig(width=8, heads=2, feedforward=8, kernels=1)
    decoder = DecoderConfig(layers=layers, energy_bias=-4.0)
    config = Config(network=network, encoder=EncoderConfig(layers=1), decoder=decoder)
    model = scrambled(Model(config, 7, 9), seed)
    model.decoder.out.bias.data[8] = -1e3  # no <eos>: the search ends with the number of tokens that it may write
    queries, contexts = [], []
    for layer in model.decoder.layers:
        layer.cross.query.register_forward_hook(lambda _, __, y: queries.append(y.detach().numpy().copy()))
        layer.cross.out.register_forward_hook(lambda _, x, __: contexts.append(x[0].detach().numpy().copy()))
    frames = torch.randn(1, T, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    memory = Memory(*(x.detach().numpy() for x in model.decoder.project(frames)))
    decoding = DecodingConfig(ctc_weight=0.0, lookahead_frames=M)
    search = PublishedSearch(TorchEngine(model), lookahead, decoding, 8, most_tokens_per_frame=0.1)
    speech = SpeechFrames(memory, np.zeros((T, 9), np.float32), NO_SPIKES)
    best = search.advance(search.start(), speech, final=True).best

    q = np.concatenate(queries).reshape(-1, layers, H, 4)
    bias = tuple(layer.cross.mechanism.energy_bias.item() for layer in model.decoder.layers)
    loop = paper.algorithm_1(q, memory.keys_BNHTD[0], memory.values_BNHTD[0], M, bias=bias)
    assert len(best.tokens) == len(q) == 11
    assert best.halts == tuple(loop.t[i] for i in range(1, len(q) + 1))
    assert len(set(best.halts)) > 2
    assert any(max(loop.N[i, n] for n in (1, 2)) < loop.t[i] for i in range(1, len(q) + 1))
    np.testing.assert_allclose(np.concatenate(contexts), list(loop.c.values()), rtol=0, atol=1e-9)
    assert best.consumed == H * sum(loop.N[i, n] for i in range(1, best.steps + 1) for n in range(1, layers + 1))


@pytest.mark.parametrize("kind", [DACS, HSDACS])
def test_a_sum_that_equals_the_threshold_does_not_halt(kind: type[DACS]) -> None:
    q, k = energies_of([[0.5, 0.5, 0.5, 0.5]] * 2)  # the sigmoid of 0 is 1/2, so that these sums are exact
    aligned = align(build(kind, 2), q, k)
    assert aligned.end_BHL.flatten().tolist() == [3, 3]  # 1.0 is not more than 1, 1.5 is
    assert aligned.weights_BHLT[0, 0, 0].tolist() == [0.5, 0.5, 0.5, 0.0]  # the crossing frame keeps its full weight


@pytest.mark.parametrize("kind", [DACS, HSDACS])
def test_a_step_on_the_threshold_is_undecided(kind: type[DACS]) -> None:
    q, k = energies_of([[0.5, 0.5, 0.5]] * 2)
    for frames, ready in ((1, False), (2, False), (3, True)):
        window = AttentionWindow(torch.tensor([16]), torch.tensor([frames]), torch.tensor([False]))
        assert build(kind, 2).step(q[:, :, 0], k[:, :, :frames], (), window).ready_B.item() is ready


def test_a_dacs_step_waits_for_its_slowest_head() -> None:
    q, k = energies_of([[0.9, 0.9, 0.9, 0.9], [0.3, 0.3, 0.3, 0.3]])
    for frames, ready in ((2, False), (3, False), (4, True)):
        window = AttentionWindow(torch.tensor([16]), torch.tensor([frames]), torch.tensor([False]))
        out = build(DACS, 2).step(q[:, :, 0], k[:, :, :frames], (), window)
        assert out.ready_B.item() is ready
    assert out.end_BH.tolist() == [[2, 4]]


def test_nothing_is_renormalised_by_default() -> None:
    q, k = energies_of([[0.9, 0.9, 0.9], [0.05, 0.05, 0.05]])
    weights = align(build(HSDACS, 2), q, k).weights_BHLT[0, :, 0]
    assert weights.flatten().tolist() == pytest.approx([0.9, 0.9, 0.9, 0.05, 0.05, 0.05], abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(sizes, seeds, thresholds, st.sampled_from([ACS, DACS, HSDACS]))
def test_normalised_weights_are_the_weights_divided_by_their_sum(
    size: Sizes, seed: int, threshold: float, kind: type[DACS]
) -> None:
    """Halts are the same, and a stream gets the same weights as training."""
    q, k, _ = draw(size, seed)
    options = {"threshold": threshold, "energy_bias": -0.5}
    plain = kind(DecoderConfig(**options), size[0], size[3]).double()
    normalised = kind(DecoderConfig(**options, normalised=True), size[0], size[3]).double()
    ours, theirs = align(normalised, q, k), align(plain, q, k)
    expected = theirs.weights_BHLT / theirs.weights_BHLT.sum(-1, keepdim=True)
    torch.testing.assert_close(ours.weights_BHLT, expected, rtol=0, atol=1e-12)
    assert torch.equal(ours.end_BHL, theirs.end_BHL)
    check_mechanism(normalised, random_case(heads=size[0], width=size[3], seed=seed))


@settings(max_examples=15, deadline=None)
@given(st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 8), st.integers(1, 3)), seeds)
def test_gradients_are_those_of_the_loop(size: Sizes, seed: int) -> None:
    """Torch differentiates the loop with its halts held fixed: the weights carry a gradient, the halt does not."""
    for kind, step in ((DACS, paper.dacs), (HSDACS, paper.hs_dacs)):
        q, k, v = (x.requires_grad_() for x in draw(size, seed))
        mechanism = build(kind, size[0], bias=-0.5)
        leaves = (q, k, v, mechanism.energy_bias)
        mix = torch.randn(1, *size[:2], size[3], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        ours = torch.autograd.grad(((align(mechanism, q, k).weights_BHLT @ v) * mix).sum(), leaves)
        total = torch.zeros((), dtype=torch.float64)
        for i in range(size[1]):
            q_i, k_i, v_i = (x[0].detach().numpy() for x in (q[:, :, i], k, v))
            N = step(q_i, k_i, v_i, NO_LIMIT, bias=-0.5).N
            for h in range(size[0]):
                for j in range(N[h + 1]):
                    p = torch.sigmoid(q[0, h, i] @ k[0, h, j] / math.sqrt(size[3]) + mechanism.energy_bias)
                    total = total + p * (v[0, h, j] * mix[0, h, i]).sum()
        loops = torch.autograd.grad(total, leaves)
        torch.testing.assert_close(ours, loops, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", [DACS, HSDACS])
def test_no_gradient_goes_through_the_halt(kind: type[DACS]) -> None:
    q, k = energies_of([[0.7, 0.7, 0.7, 0.7]] * 2)
    k.requires_grad_()
    aligned = align(build(kind, 2), q, k)
    aligned.weights_BHLT.sum().backward()
    assert not aligned.end_BHL.requires_grad
    slope = 0.7 * 0.3  # of a sigmoid, at each frame up to the halt, and nothing beyond
    assert k.grad is not None
    assert k.grad[0, 0, :, 0].tolist() == pytest.approx([slope, slope, 0.0, 0.0], abs=1e-9)


@pytest.mark.parametrize("kind", [DACS, HSDACS])
def test_no_step_halts_in_the_first_phase_or_at_an_infinite_threshold(kind: type[DACS]) -> None:
    q, k = energies_of([[0.99] * 50] * 2)
    mechanism = build(kind, 2)
    assert align(mechanism, q, k).end_BHL.unique().tolist() == [2]
    mechanism.phase = Phase(halts=False)
    assert align(mechanism, q, k).end_BHL.unique().tolist() == [50]
    mechanism.phase, mechanism.threshold = Phase(), math.inf
    assert align(mechanism, q, k).end_BHL.unique().tolist() == [50]


@pytest.mark.parametrize("kind", [DACS, HSDACS])
def test_half_precision_accumulates_in_single(kind: type[DACS]) -> None:
    """In bfloat16 a sum of small numbers stops growing: 8 + 0.0156 is 8 again."""
    frames = 1200
    q, k = torch.ones(1, 2, 1, 1, dtype=torch.bfloat16), torch.full((1, 2, frames, 1), -4.0, dtype=torch.bfloat16)
    p = torch.sigmoid(torch.tensor(-4.0, dtype=torch.bfloat16)).item()
    mechanism = build(kind, 2, threshold=9.0).bfloat16()
    expected = math.floor(9.0 / p) + 1
    assert align(mechanism, q, k).end_BHL.unique().tolist() == [expected]


@pytest.mark.parametrize("kind", [ACS, DACS, HSDACS])
def test_sums_that_fall_short_of_the_threshold_count_as_missing_tokens(kind: type[DACS]) -> None:
    q, k, _ = draw((2, 3, 5, 4), seed=3)
    mechanism = kind(DecoderConfig(threshold=0.75, energy_bias=-2.0, reach=1.1), 2, 4).double()
    limit = torch.tensor([[5, 4, 0]])  # the last step is padding
    mechanism.phase = Phase(halts=False)
    p = mechanism.align(q, k, limit).weights_BHLT[0].detach()
    p = p[:1] if kind is ACS else p
    sums = p.sum(0, keepdim=True) / 1.5 if kind is HSDACS else p / 0.75
    expected = [sum(max(0.0, 1.1 - float(sums[m, i].sum())) for i in range(2)) for m in range(len(sums))]
    mechanism.phase = Phase()
    shortfall = mechanism.align(q, k, limit).shortfall_BM
    assert shortfall is not None
    assert shortfall[0].tolist() == pytest.approx(expected)
    assert any(expected)
    shortfall.sum().backward()
    assert mechanism.energy_bias.grad is not None
    assert mechanism.energy_bias.grad < 0  # descending it raises the probabilities


def test_no_shortfall_where_steps_halt_or_reach_is_zero() -> None:
    q, k = energies_of([[0.9, 0.9, 0.9]])
    limit = torch.tensor([[3]])
    asked = DACS(DecoderConfig(energy_bias=0.0, reach=1.1), 1, 1).double()
    assert asked.align(q, k, limit).shortfall_BM.tolist() == [[0.0]]
    assert build(DACS).align(q, k, limit).shortfall_BM is None


@pytest.mark.parametrize("kind", [ACS, DACS, HSDACS])
def test_without_a_bias_there_is_no_parameter_and_the_energies_are_those_of_eq04(kind: type[DACS]) -> None:
    q, k, _ = draw((2, 3, 9, 4), seed=5)
    plain = kind(DecoderConfig(energy_bias=None), 2, 4).double()
    assert list(plain.parameters()) == []
    expected, found = (align(mechanism, q, k) for mechanism in (build(kind, 2, bias=0.0), plain))
    assert torch.equal(found.weights_BHLT, expected.weights_BHLT)
    assert torch.equal(found.end_BHL, expected.end_BHL)

"""The joint loss by hand: CTC by the enumeration of all paths, label smoothing by its definition."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from headsync.attention.base import Aligned
from headsync.config import Config, DecoderConfig, EncoderConfig, NetworkConfig, TrainingConfig
from headsync.frontend.features import NUM_MEL
from headsync.nn.model import Model, Output, build_decoder
from headsync.training.asr_task import ctc_errors
from headsync.training.batches import PADDING, Batch
from headsync.training.distributed import Ranks
from headsync.training.losses import CTC, LayerMatch, Losses, joint_loss, loss_terms, merged, teacher_states
from random_weights import scrambled

TEXTS = [[1, 1], [2]]  # a repeat, which needs a blank between; and a shorter row
FRAMES = [4, 3]
CLASSES, END = 4, 3  # 0 is the blank, 3 the end
SETTINGS = TrainingConfig(ctc_weight=0.3, label_smoothing=0.1)

# CTC always computes in single precision, so six digits are compared.
close = {"rtol": 1e-5, "atol": 1e-6}


def a_batch() -> Batch:
    targets = torch.tensor([[1, 1, END], [2, END, PADDING]])
    tokens = torch.tensor([[END, 1, 1], [END, 2, END]])
    return Batch(torch.zeros(2, 20, NUM_MEL), torch.tensor([20, 16]), tokens, targets)


def an_output(seed: int = 1) -> Output:
    source = torch.Generator().manual_seed(seed)
    ctc = torch.randn(2, 4, CLASSES, generator=source, requires_grad=True)
    decoder = torch.randn(2, 3, CLASSES, generator=source, requires_grad=True)
    weights = torch.rand(2, 2, 3, 4, generator=source)
    ends = torch.tensor([[[1, 2, 4], [2, 2, 2]], [[3, 3, 9], [1, 2, 9]]])
    return Output(ctc, torch.tensor(FRAMES), decoder, [Aligned(weights, ends)])


def ctc_by_enumeration(logits_TV: Tensor, text: list[int]) -> float:
    """-log of the sum over all paths that become the text once repeats are merged and blanks removed."""
    log_p = logits_TV.detach().log_softmax(-1)
    total = 0.0
    for path in itertools.product(range(CLASSES), repeat=len(logits_TV)):
        if [label for label, _ in itertools.groupby(path) if label != 0] == text:
            total += math.exp(sum(float(log_p[t, label]) for t, label in enumerate(path)))
    return -math.log(total)


def smoothed_by_hand(logits_V: Tensor, target: int, smoothing: float) -> float:
    """The cross-entropy with a target that gives every class its share of the smoothing."""
    log_p = logits_V.detach().log_softmax(-1)
    wanted = [smoothing / CLASSES + (1 - smoothing) * (label == target) for label in range(CLASSES)]
    return -sum(w * float(p) for w, p in zip(wanted, log_p, strict=True))


def by_hand(output: Output, settings: TrainingConfig) -> tuple[float, float]:
    """CTC and attention loss, a mean over the five output steps each."""
    ctc = sum(ctc_by_enumeration(output.ctc_BTV[b, : FRAMES[b]], TEXTS[b]) for b in range(2))
    steps = [(b, i, label) for b in range(2) for i, label in enumerate([*TEXTS[b], END])]
    attention = sum(smoothed_by_hand(output.decoder_BLV[b, i], y, settings.label_smoothing) for b, i, y in steps)
    return ctc / 5, attention / 5


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weight", [0.0, 0.3, 0.999])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_joint_loss_is_the_one_computed_by_hand(seed: int, weight: float, smoothing: float) -> None:
    settings = replace(SETTINGS, ctc_weight=weight, label_smoothing=smoothing)
    ctc, attention = by_hand(an_output(seed), settings)
    losses = joint_loss(an_output(seed), a_batch(), loss_terms(settings))
    assert float(losses.figures["ctc"]) == pytest.approx(ctc, rel=1e-5)
    assert float(losses.figures["attention"]) == pytest.approx(attention, rel=1e-5)
    assert float(losses.joint.detach()) == pytest.approx(weight * ctc + (1 - weight) * attention, rel=1e-5)


def test_per_utterance_the_joint_loss_is_the_sum_over_steps_divided_by_the_rows() -> None:
    ctc, attention = by_hand(an_output(), SETTINGS)
    weight = SETTINGS.ctc_weight
    losses = joint_loss(an_output(), a_batch(), loss_terms(SETTINGS), "utterance")
    assert float(losses.joint.detach()) == pytest.approx((weight * ctc + (1 - weight) * attention) * 5 / 2, rel=1e-5)
    assert float(losses.figures["ctc"]) == pytest.approx(ctc, rel=1e-5)  # for the log it stays a mean over steps


def test_without_ctc_its_part_of_the_network_gets_no_gradient() -> None:
    output = an_output()
    joint_loss(output, a_batch(), loss_terms(replace(SETTINGS, ctc_weight=0.0))).joint.backward()
    assert output.ctc_BTV.grad is not None
    assert not output.ctc_BTV.grad.any()


def test_wrong_steps_are_counted_without_the_padding() -> None:
    output, batch = an_output(), a_batch()
    logits = torch.nn.functional.one_hot(batch.targets_BL.clamp(min=0), CLASSES).float()
    logits[0, 1] = torch.tensor([0.0, 0.0, 9.0, 0.0])  # one mistake; the padded step is another, of no account
    losses = joint_loss(output._replace(decoder_BLV=logits), batch, loss_terms(SETTINGS))
    assert float(losses.figures["error"]) == 0.2


def test_halt_and_mass_are_means_over_the_steps_that_exist() -> None:
    output = an_output()
    losses = joint_loss(output, a_batch(), loss_terms(SETTINGS))
    halts = [1 / 4, 2 / 4, 4 / 4, 2 / 4, 2 / 4, 2 / 4, 3 / 3, 3 / 3, 1 / 3, 2 / 3]
    assert float(losses.figures["halt"]) == pytest.approx(sum(halts) / len(halts))
    masses = output.alignments[0].weights_BHLT.sum(-1)
    expected = (masses[0].sum() + masses[1, :, :2].sum()) / 10
    assert float(losses.figures["mass"]) == pytest.approx(float(expected))


def test_without_counts_there_is_no_quantity_loss() -> None:
    losses = joint_loss(an_output(), a_batch(), loss_terms(SETTINGS))
    assert "quantity" not in losses.figures
    assert float(losses.joint.detach()) == pytest.approx(
        0.3 * float(losses.figures["ctc"]) + 0.7 * float(losses.figures["attention"])
    )


def test_the_quantity_loss_by_hand() -> None:
    """Two layers, one with two counts and one with one; a mean over both, and over the five output steps."""
    output = an_output()
    two = torch.tensor([[1.0, -2.0], [0.5, 0.0]], requires_grad=True)
    one = torch.tensor([[-3.0], [0.25]], requires_grad=True)
    aligned = output.alignments[0]
    alignments = [aligned._replace(surplus_BM=two), aligned, aligned._replace(surplus_BM=one)]
    losses = joint_loss(output._replace(alignments=alignments), a_batch(), loss_terms(SETTINGS))
    expected = ((1.5 + 3.0) / 2 + (0.25 + 0.25) / 2) / 5
    assert float(losses.figures["quantity"]) == pytest.approx(expected)
    without = joint_loss(output, a_batch(), loss_terms(SETTINGS)).joint
    assert float((losses.joint - without).detach()) == pytest.approx(expected, rel=1e-4)
    losses.joint.backward()
    assert two.grad is not None
    assert two.grad.tolist() == [[pytest.approx(0.05), pytest.approx(-0.05)], [pytest.approx(0.05), 0.0]]


def test_a_shortfall_counts_like_a_miscount() -> None:
    output = an_output()
    missing = torch.tensor([[1.0, 2.0], [0.5, 0.0]])
    alignments = [output.alignments[0]._replace(shortfall_BM=missing)]
    losses = joint_loss(output._replace(alignments=alignments), a_batch(), loss_terms(SETTINGS))
    assert float(losses.figures["quantity"]) == pytest.approx((1.5 + 0.25) / 5)


def test_without_a_decoder_the_loss_is_ctc_and_nothing_else_is_reported() -> None:
    output = an_output()._replace(decoder_BLV=None, alignments=[])
    losses = joint_loss(output, a_batch(), loss_terms(replace(SETTINGS, ctc_weight=1.0)))
    assert losses.values.keys() == {"loss", "ctc"}
    assert torch.equal(losses.values["loss"], losses.values["ctc"])


def test_parts_are_merged_by_their_share_and_parts_of_weight_zero_are_ignored() -> None:
    """A process without rows computes a row of weight 0, whose figures are not those of the batch."""

    def part(loss: float, error: float) -> Losses:
        return Losses(torch.tensor(loss), {"error": torch.tensor(error, dtype=torch.float64)})

    parts = [part(1.0, 0.5), part(3.0, 0.0), part(math.nan, 1.0), part(9.0, 1.0)]
    assert merged(parts, [0.75, 0.25, 0.0, 0.0], Ranks()) == {"loss": 1.5, "error": 0.375}
    assert merged(parts[:1], [1.0], Ranks()) == {"loss": 1.0, "error": 0.5}


def test_a_text_too_long_for_its_frames_does_not_spoil_the_batch() -> None:
    output = an_output()._replace(frames_B=torch.tensor([2, 3]))  # the repeat needs three frames
    loss = CTC(1.0)(output, a_batch())
    loss.backward()
    assert float(loss.detach()) == pytest.approx(ctc_by_enumeration(output.ctc_BTV[1, :3], TEXTS[1]) / 5, rel=1e-5)
    assert output.ctc_BTV.grad is not None
    assert output.ctc_BTV.grad.isfinite().all()


def test_padding_of_the_logits_has_no_effect() -> None:
    clean, spoilt = an_output(), an_output()
    with torch.no_grad():
        spoilt.ctc_BTV[1, 3] = torch.nan
        spoilt.decoder_BLV[1, 2] = torch.nan
    expected, found = (
        joint_loss(clean, a_batch(), loss_terms(SETTINGS)),
        joint_loss(spoilt, a_batch(), loss_terms(SETTINGS)),
    )
    assert expected.values.keys() == {"loss", "ctc", "attention", "error", "halt", "mass"}
    for name, value in expected.values.items():
        assert torch.equal(found.values[name], value), name
    for part in (expected, found):
        part.joint.backward()
    assert clean.ctc_BTV.grad is not None
    assert spoilt.ctc_BTV.grad is not None
    torch.testing.assert_close(spoilt.ctc_BTV.grad[1, :3], clean.ctc_BTV.grad[1, :3])
    torch.testing.assert_close(spoilt.ctc_BTV.grad[0], clean.ctc_BTV.grad[0])


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(1)
    config = Config(
        network=NetworkConfig(width=8, heads=2, feedforward=8, kernels=2),
        encoder=EncoderConfig(layers=1, left_frames=1, centre_frames=2, right_frames=1),
        decoder=DecoderConfig(layers=1, energy_bias=-1.0),
    )
    return Model(config, NUM_MEL, CLASSES).eval()


def loss_of(model: Model, batch: Batch) -> tuple[Any, list[Tensor]]:
    model.zero_grad()
    losses = joint_loss(model(batch.features_BTF, batch.lengths_B, batch.tokens_BL), batch, loss_terms(SETTINGS))
    losses.joint.backward()
    return losses, [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_nan_in_the_padding_of_the_features_changes_neither_loss_nor_gradient(model: Model) -> None:
    features = torch.randn(2, 20, NUM_MEL, generator=torch.Generator().manual_seed(2))
    spoilt = features.clone()
    spoilt[1, 16:] = torch.nan
    expected, gradients = loss_of(model, a_batch()._replace(features_BTF=features))
    found, of_spoilt = loss_of(model, a_batch()._replace(features_BTF=spoilt))
    assert torch.equal(found.joint, expected.joint)
    assert len(gradients) == len(list(model.parameters()))
    for found_gradient, gradient in zip(of_spoilt, gradients, strict=True):
        assert torch.equal(found_gradient, gradient)


def test_the_loss_of_a_batch_is_the_mean_of_its_rows_by_their_steps(model: Model) -> None:
    features = torch.randn(2, 20, NUM_MEL, generator=torch.Generator().manual_seed(2))
    batch = a_batch()._replace(features_BTF=features)
    both, _ = loss_of(model, batch)
    first, _ = loss_of(model, Batch(*(part[:1] for part in batch)))
    last = Batch(features[1:, :16], batch.lengths_B[1:], batch.tokens_BL[1:, :2], batch.targets_BL[1:, :2])
    second, _ = loss_of(model, last)
    torch.testing.assert_close(both.joint, (3 * first.joint + 2 * second.joint) / 5, **close)


def test_greedy_ctc_errors_by_hand() -> None:
    best = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 2]])  # "1 1", right; "1" where 2 was said, the last frame is padding
    logits = torch.nn.functional.one_hot(best, CLASSES).float()
    assert ctc_errors(logits, torch.tensor(FRAMES), a_batch()) == (1, 3)


def test_ctc_errors_where_nothing_was_said_are_insertions() -> None:
    batch = Batch(torch.zeros(1, 9, 1), torch.tensor([9]), torch.tensor([[END]]), torch.tensor([[END]]))
    logits = torch.nn.functional.one_hot(torch.tensor([[1, 0, 2]]), CLASSES).float()
    assert ctc_errors(logits, torch.tensor([3]), batch) == (2, 0)


@torch.no_grad()
def test_the_match_is_the_share_of_variance_that_is_not_explained() -> None:
    """By loops over layers, steps and entries; padding does not count."""
    config = Config(
        network=NetworkConfig(8, 2, 8, dropout=0.0, family="moonshine"),
        encoder=EncoderConfig(1, mode="reuse"),
        decoder=DecoderConfig(2, "softmax", frame_positions=False),
    )
    model = Model(config, config.columns, CLASSES).eval()
    teacher = scrambled(build_decoder(config, CLASSES)).float()
    batch = a_batch()
    frames = torch.randn(2, max(FRAMES), 8, generator=torch.Generator().manual_seed(1))
    model.reads_frames = True
    output = model(frames, torch.tensor(FRAMES), batch.tokens_BL)
    lengths = torch.tensor(FRAMES)
    states = teacher_states(teacher, frames, lengths, batch)
    found = LayerMatch(1.0)(output._replace(wanted_NBLE=states[1:]), batch)
    limit = model.limits(batch.tokens_BL, output.frames_B)
    wanted = teacher.layer_outputs(batch.tokens_BL, frames, limit)[0]
    shares = []
    for ours, theirs in zip(output.layers_NBLE, wanted, strict=True):
        steps = [(b, i) for b in range(2) for i in range(len(TEXTS[b]) + 1)]
        mean = sum(theirs[b, i] for b, i in steps) / len(steps)
        apart = sum(float((ours[b, i] - theirs[b, i]).square().sum()) for b, i in steps)
        spread = sum(float((theirs[b, i] - mean).square().sum()) for b, i in steps)
        shares.append(apart / spread)
    assert found is not None
    assert float(found) == pytest.approx(sum(shares) / 2, rel=1e-4)
    model.decoder.load_state_dict(teacher.state_dict())
    output = model(frames, lengths, batch.tokens_BL)._replace(wanted_NBLE=states[1:])
    same = LayerMatch(1.0)(output, batch)
    assert same is not None
    assert float(same) == pytest.approx(0.0, abs=1e-9)

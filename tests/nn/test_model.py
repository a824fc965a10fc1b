"""The whole network: the paper's three sizes are built and trained, and rows are independent."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from headsync.attention import MECHANISMS
from headsync.config import Config, DecoderConfig, EncoderConfig, NetworkConfig
from headsync.frontend.features import NUM_MEL
from headsync.frontend.frame_rate import LOG_MEL
from headsync.nn.model import Model
from random_weights import scrambled

PAPER = {  # task: width, heads, feed-forward, classes (section 5.1)
    "wsj": (256, 4, 2048, 52),
    "aishell1": (256, 4, 2048, 4231),
    "librispeech": (512, 8, 2048, 5000),
}


@pytest.mark.parametrize("task", PAPER)
def test_the_paper_s_sizes_build_and_take_a_training_step(task: str) -> None:
    """float32, as in training: nothing is compared but before and after."""
    width, heads, feedforward, classes = PAPER[task]
    torch.manual_seed(0)
    config = Config(network=NetworkConfig(width, heads, feedforward))
    assert (config.encoder.layers, config.decoder.layers, config.network.kernels) == (6, 12, 256)
    model = Model(config, NUM_MEL, classes).train()
    features, tokens = torch.randn(1, LOG_MEL.needed(6), NUM_MEL), torch.tensor([[classes - 1, 3, 1]])
    targets = torch.tensor([3, 1, classes - 1])
    output = model(features, torch.tensor([features.shape[1]]), tokens)
    assert output.ctc_BTV.shape == (1, 6, classes)
    assert output.decoder_BLV.shape == (1, 3, classes)
    assert len(output.alignments) == 12
    log_p = output.ctc_BTV.log_softmax(-1).transpose(0, 1)
    ctc = F.ctc_loss(log_p, targets[None, :2], output.frames_B, torch.tensor([2]))
    (0.3 * ctc + 0.7 * F.cross_entropy(output.decoder_BLV[0], targets)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} learns nothing"
        assert torch.isfinite(parameter.grad).all(), name
    before = model.ctc.weight.detach().clone()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert not torch.equal(model.ctc.weight, before)


def test_initial_values() -> None:
    """Those of PyTorch, except for convolutions and embedded tokens."""
    torch.manual_seed(0)
    model = Model(Config(network=NetworkConfig(64, 4, 128, 32), decoder=DecoderConfig(2)), NUM_MEL, 1000)
    front, decoder = model.encoder.front, model.decoder
    embedded = decoder.embed(torch.arange(1000), torch.zeros(1000, dtype=torch.long))[:, ::2]  # where positions add 0
    assert embedded.std().item() == pytest.approx(1, abs=0.02)
    for layer, inputs in ((front.first, 9), (front.second, 9 * 32)):
        assert layer.weight.std().item() == pytest.approx((2 / inputs) ** 0.5, rel=0.1)
        assert (layer.bias == 0).all()
    for part in (part for part in model.modules() if isinstance(part, torch.nn.Linear)):
        largest = part.in_features**-0.5
        assert 0.9 * largest < part.weight.abs().max() <= largest
        assert part.weight.std().item() == pytest.approx(largest / 3**0.5, rel=0.1)


def small(attention: str = "hs-dacs") -> Model:
    config = Config(
        network=NetworkConfig(width=8, heads=2, feedforward=6, kernels=2),
        encoder=EncoderConfig(1, 3, 2, 1),
        decoder=DecoderConfig(2, attention, energy_bias=-1.0),
    )
    return scrambled(Model(config, 7, CLASSES))


CLASSES, START = 5, 4


def test_the_limits_of_steps_are_those_given_and_never_beyond_the_frames() -> None:
    model, lengths = small("softmax"), torch.tensor([LOG_MEL.needed(6), LOG_MEL.needed(3)])
    features = torch.randn(2, int(lengths[0]), 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens = torch.tensor([[START, 1, 2], [START, 3, START]])  # the second row has two steps, and one of padding
    ends = model(features, lengths, tokens).alignments[0].end_BHL[:, 0]
    assert ends.tolist() == [[6, 6, 6], [3, 3, 0]]
    limits = torch.tensor([[1, 4, 9], [2, 9, 9]])
    limited = model(features, lengths, tokens, limits)
    for aligned in limited.alignments:
        assert aligned.end_BHL[:, 1].tolist() == [[1, 4, 6], [2, 3, 0]]


@pytest.mark.parametrize("attention", MECHANISMS)
def test_steps_of_padding_change_nothing_in_training(attention: str) -> None:
    """Nor does a longer text beside it; without noise and dropout, so that training is the same twice."""
    model, length = small(attention), LOG_MEL.needed(8)
    model.train()
    for part in model.modules():
        for name in ("p", "dropout", "noise", "head_drop"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    features = torch.randn(2, length, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens = torch.tensor([[START, 1, 2, 3], [START, 3, START, START]])
    both = model(features, torch.tensor([length, length]), tokens)
    alone = model(features[1:], torch.tensor([length]), tokens[1:, :2])
    torch.testing.assert_close(both.decoder_BLV[1:, :2], alone.decoder_BLV, rtol=0, atol=1e-9)
    for one, other in zip(both.alignments, alone.alignments, strict=True):
        if one.surplus_BM is not None:
            torch.testing.assert_close(one.surplus_BM[1:], other.surplus_BM, rtol=0, atol=1e-9)


@pytest.mark.parametrize("mode", ["isolated", "reuse"])
def test_nan_padding_is_inert_from_features_to_scores_and_gradients(mode: str) -> None:
    config = Config(
        network=NetworkConfig(width=8, heads=2, feedforward=6, kernels=2),
        encoder=EncoderConfig(2, 3, 2, 1, mode),  # type: ignore[arg-type]
        decoder=DecoderConfig(2, energy_bias=-1.0),
    )
    model = scrambled(Model(config, 7, 5))
    source = torch.Generator().manual_seed(0)
    lengths = torch.tensor([LOG_MEL.needed(9), LOG_MEL.needed(4), LOG_MEL.needed(1)])
    features = torch.randn(3, int(lengths.max()), 7, generator=source, dtype=torch.float64)
    tokens = torch.randint(0, 5, (3, 4), generator=source)
    padding = torch.arange(features.shape[1]) >= lengths[:, None]
    parameters = list(model.parameters())

    def loss(features: torch.Tensor, lengths: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        output = model(features, lengths, tokens)
        exists = torch.arange(output.ctc_BTV.shape[1]) < output.frames_B[:, None]
        return (output.ctc_BTV[exists] ** 3).sum() + (output.decoder_BLV**3).sum()

    together = loss(features.masked_fill(padding[:, :, None], torch.nan), lengths, tokens)
    alone = sum(
        loss(features[row : row + 1, :length], lengths[row : row + 1], tokens[row : row + 1])
        for row, length in enumerate(lengths.tolist())
    )
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-9)
    for one, other in zip(
        torch.autograd.grad(together, parameters), torch.autograd.grad(alone, parameters), strict=True
    ):
        assert torch.isfinite(one).all()
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)

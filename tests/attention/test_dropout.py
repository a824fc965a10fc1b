"""Dropout: probability, scale, random generator and gradients."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from headsync.attention.dropout import Dropout, dropout, noise, relu_dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_of_dropped_elements_and_the_expectation(p: float) -> None:
    torch.manual_seed(0)
    factors = noise(torch.empty(1000, 1001), p)
    assert (factors == 0).double().mean().item() == pytest.approx(p, abs=0.002)
    assert factors.double().mean().item() == pytest.approx(1.0, abs=0.01)
    assert factors.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)], rel=2e-4)


@pytest.mark.parametrize("p", [1e-9, 1 - 1e-9])
def test_extreme_probabilities_keep_some_elements_and_scale_them(p: float) -> None:
    factors = noise(torch.empty(2**20), p)
    assert factors.max().item() == pytest.approx(1 / (1 - max(p, 2**-16)) if p < 0.5 else 2.0**16)
    assert (factors > 0).double().mean().item() == pytest.approx(1 - p, abs=1e-3)


def test_rows_columns_and_neighbours_are_dropped_independently() -> None:
    torch.manual_seed(1)
    kept = (noise(torch.empty(512, 512), 0.5) > 0).double()
    for other in (kept.roll(1, 0), kept.roll(1, 1), kept.roll(4, 1)):
        assert (kept * other).mean().item() == pytest.approx(0.25, abs=0.01)


def test_the_seed_of_pytorch_seeds_dropout() -> None:
    x = torch.ones(3, 50)
    torch.manual_seed(2)
    first, second = dropout(x, 0.5, True), dropout(x, 0.5, True)
    torch.manual_seed(2)
    assert torch.equal(dropout(x, 0.5, True), first)
    assert not torch.equal(first, second)


def test_recomputed_layers_drop_the_same_elements() -> None:
    x = (torch.rand(20, 30) + 1).requires_grad_()
    layer = Dropout(0.5).train()
    y = checkpoint(lambda x: relu_dropout(layer(x), 0.5, True), x, use_reentrant=False)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad != 0, y > 0)
    assert 0 < (y > 0).sum() < y.numel() / 2


def test_without_training_or_probability_nothing_is_dropped() -> None:
    x = torch.randn(4, 5)
    assert dropout(x, 0.5, False) is x
    assert dropout(x, 0.0, True) is x
    assert Dropout(0.5).eval()(x) is x
    assert torch.equal(relu_dropout(x, 0.5, False), torch.relu(x))
    assert torch.equal(relu_dropout(x, 0.0, True), torch.relu(x))


def test_relu_dropout_equals_relu_and_dropout() -> None:
    x = torch.randn(40, 50, dtype=torch.float64)
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    weights = torch.randn(40, 50, dtype=torch.float64)
    torch.manual_seed(3)
    y = relu_dropout(one, 0.3, True)
    torch.manual_seed(3)
    z = dropout(torch.relu(other), 0.3, True)
    assert torch.equal(y, z)
    (y * weights).sum().backward()
    (z * weights).sum().backward()
    torch.testing.assert_close(one.grad, other.grad, rtol=1e-12, atol=0)


def test_other_devices_use_the_dropout_of_pytorch() -> None:
    x = torch.empty(2, 3, device="meta")
    assert dropout(x, 0.5, True).device.type == relu_dropout(x, 0.5, True).device.type == "meta"

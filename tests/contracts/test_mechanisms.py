"""Every entry of MECHANISMS passes the checks of `headsync.testing`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headsync import testing
from headsync.attention import MECHANISMS, build_mechanism
from headsync.attention.base import Aligned, AttentionWindow, Mechanism
from headsync.attention.bernoulli import MMA
from headsync.config import ConfigError, DecoderConfig
from headsync.decoding.lookahead import LIMITS
from headsync.testing import CHECKS, Case, check_mechanism, check_step_equals_align, random_case
from random_weights import scrambled

Check = Callable[[Mechanism, Case], None]


WIDTH = 4  # of a head


def build(name: str, heads: int, threshold: float = 1.0, wait_frames: int = 100) -> Mechanism:
    """With a bias of -1 steps halt after a few frames, some of them beyond the last one."""
    config = DecoderConfig(attention=name, threshold=threshold, energy_bias=-1.0)
    mechanism = scrambled(build_mechanism(config, heads, WIDTH))
    if isinstance(mechanism, MMA):
        mechanism.wait_frames = wait_frames
    return mechanism


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_contract(name: str, check: Check, data: st.DataObject) -> None:
    draw = data.draw
    heads = draw(st.integers(1, 3))
    sizes = {"rows": draw(st.integers(1, 4)), "steps": draw(st.integers(1, 4)), "frames": draw(st.integers(1, 9))}
    case = random_case(heads=heads, width=WIDTH, scale=2.0, seed=draw(st.integers(0, 10_000)), **sizes)
    # where heads wait for each other, a stream differs from its expectation
    wait_frames = 100 if check is check_step_equals_align else draw(st.integers(0, 4))
    check(build(name, heads, draw(st.sampled_from([0.5, 1.0])), wait_frames), case)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_larger_case(name: str) -> None:
    check_mechanism(build(name, 4), random_case(heads=4, rows=5, steps=5, frames=16, seed=3))


@pytest.mark.parametrize("name", MECHANISMS)
def test_it_has_a_limit(name: str) -> None:
    assert name in LIMITS


def test_the_error_for_an_unknown_name_suggests_the_nearest_one() -> None:
    name = next(reversed(MECHANISMS))
    with pytest.raises(ConfigError, match=f'did you mean "{name}"'):
        build(name + "s", 2)


class Faulty:
    """Violates one property of the contract."""

    threshold = 1.0
    expected = False

    def __init__(self, fault: str) -> None:
        self.fault, self.correct = fault, build("dacs", 2)

    def start(self, batch: int) -> tuple[torch.Tensor, ...]:
        return ()

    def align(self, q_BHLD: torch.Tensor, k_BHTD: torch.Tensor, limit_BL: torch.Tensor) -> Aligned:
        if self.fault == "limit":
            limit_BL = limit_BL + 1
        aligned = self.correct.align(q_BHLD, k_BHTD, limit_BL)
        return aligned._replace(weights_BHLT=aligned.weights_BHLT.detach()) if self.fault == "gradients" else aligned

    def step(self, q_BHD: torch.Tensor, k_BHTD: torch.Tensor, state: tuple[torch.Tensor, ...], window: AttentionWindow):
        outcome = self.correct.step(q_BHD, k_BHTD, state, window)
        if self.fault == "more_frames":
            return outcome._replace(ready_B=torch.ones_like(outcome.ready_B))
        if self.fault == "align":
            return outcome._replace(weights_BHT=outcome.weights_BHT * 1.0001)
        if self.fault == "independent":
            return outcome._replace(weights_BHT=outcome.weights_BHT - outcome.weights_BHT.mean(0))
        return outcome


@pytest.mark.parametrize("fault", ["limit", "gradients", "more_frames", "align", "independent"])
def test_the_checks_detect_a_fault(fault: str) -> None:
    check = next(check for check in CHECKS if fault in check.__name__)
    case = random_case(seed=1)
    check(Faulty("none"), case)
    with pytest.raises((AssertionError, RuntimeError)):
        check(Faulty(fault), case)


def test_all_checks_are_public() -> None:
    assert {check.__name__ for check in CHECKS} | {"check_mechanism"} == {
        name for name in vars(testing) if name.startswith("check_")
    }

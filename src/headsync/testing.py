"""Checks for online attention mechanisms, those of this package and your own.

    mechanism = MyAttention(...).double().eval()
    check_mechanism(mechanism, random_case(heads=4))

A mechanism has two forms: `align` for training and `step` for streaming. Each check tests one property of the forms and
raises AssertionError if it does not hold. Values are compared in float64 with a tolerance of 1e-9. If the training form
is an expectation (`expected`), the forms are compared where all probabilities are 0 or 1.

Shapes: B rows, H heads, L output steps, T encoder frames, D head width.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headsync.attention.base import Aligned, Attended, AttentionWindow, Mechanism, MechanismState
from headsync.engine.state_tree import take_rows

CERTAIN = 1e9  # a scale of energies at which every sigmoid is 0 or 1, and every softmax selects one frame


class Case(NamedTuple):
    """Queries, keys, and the limit of each output step."""

    q_BHLD: Tensor
    k_BHTD: Tensor
    limit_BL: Tensor


def random_case(
    *, rows: int = 3, heads: int = 2, steps: int = 4, frames: int = 9, width: int = 4, scale: float = 1.0, seed: int = 0
) -> Case:
    """Random queries and keys with energies of about `scale`; limits increase, and some exceed the number of frames."""
    source = torch.Generator().manual_seed(seed)
    q = scale * torch.randn(rows, heads, steps, width, generator=source, dtype=torch.float64)
    k = torch.randn(rows, heads, frames, width, generator=source, dtype=torch.float64)
    limit = torch.randint(1, frames + 4, (rows, steps), generator=source).sort(1).values
    return Case(q, k, limit)


def check_mechanism(mechanism: Mechanism, case: Case) -> None:
    """Run all checks."""
    for check in CHECKS:
        check(mechanism, case)


def drain_steps(mechanism: Mechanism, case: Case) -> Aligned:
    """All output steps one at a time, with all frames available."""
    state, outcomes = mechanism.start(len(case.q_BHLD)), []
    for i in range(case.q_BHLD.shape[2]):
        outcome = _step(mechanism, case, i, state)
        state = outcome.state
        outcomes.append(outcome)
    weights = torch.stack([outcome.weights_BHT for outcome in outcomes], 2)
    return Aligned(weights, torch.stack([outcome.end_BH for outcome in outcomes], 2))


def check_step_equals_align(mechanism: Mechanism, case: Case) -> None:
    """The steps equal the parallel form; if that is an expectation, where all probabilities are 0 or 1."""
    if mechanism.expected:
        case = case._replace(q_BHLD=case.q_BHLD * CERTAIN)
    stepped, aligned = drain_steps(mechanism, case), mechanism.align(*case)
    _assert_same(stepped.weights_BHLT, aligned.weights_BHLT, "step and align have different weights")
    if not mechanism.expected:  # an expectation consumes all frames
        _assert_same(stepped.end_BHL, aligned.end_BHL, "step and align consume different frames")


def check_limit(mechanism: Mechanism, case: Case) -> None:
    """No head consumes a frame at or beyond the limit, and frames that were not consumed have no weight."""
    frames = case.k_BHTD.shape[2]
    limit = case.limit_BL.clamp(max=frames).unsqueeze(1)
    for form in (mechanism.align(*case), drain_steps(mechanism, case)):
        assert (form.end_BHL <= limit).all(), "a head consumed frames beyond its limit"
        beyond = torch.arange(frames) >= form.end_BHL.unsqueeze(-1)
        assert (form.weights_BHLT[beyond] == 0).all(), "a frame that was not consumed has weight"


def check_padding_has_no_effect(mechanism: Mechanism, case: Case) -> None:
    """The values of frames beyond the end of a row have no effect."""
    rows, frames = len(case.k_BHTD), case.k_BHTD.shape[2]
    length_B = 1 + torch.arange(rows) * (frames - 1) // max(1, rows - 1)  # from one frame to all
    case = case._replace(limit_BL=case.limit_BL.minimum(length_B.unsqueeze(1)))
    missing = torch.arange(frames) >= length_B[:, None, None]
    padded = [case._replace(k_BHTD=case.k_BHTD.masked_fill(missing.unsqueeze(-1), fill)) for fill in (0.0, torch.nan)]
    _assert_same(_aligned(mechanism, padded[0]), _aligned(mechanism, padded[1]), "padding changes align")
    for i in range(case.q_BHLD.shape[2]):
        window = AttentionWindow(case.limit_BL[:, i] + frames, length_B, torch.ones(rows, dtype=torch.bool))
        zeros, nans = (_step(mechanism, c, i, mechanism.start(rows), window) for c in padded)
        _assert_same(zeros, nans, "padding changes step")


def check_rows_are_independent(mechanism: Mechanism, case: Case) -> None:
    """A row in a batch equals the row alone."""
    aligned, stepped = _aligned(mechanism, case), drain_steps(mechanism, case)[:2]
    for row in range(len(case.q_BHLD)):
        alone = take_rows(case, [row])
        _assert_same(_aligned(mechanism, alone), take_rows(aligned, [row]), "align: a row depends on the others")
        _assert_same(drain_steps(mechanism, alone)[:2], take_rows(stepped, [row]), "step: a row depends on the others")


def check_row_selection(mechanism: Mechanism, case: Case) -> None:
    """Rows can be selected before or after a step, with the same result; beam search relies on this."""
    state, rows = mechanism.start(len(case.q_BHLD)), [len(case.q_BHLD) - 1, 0, 0]
    for i in range(case.q_BHLD.shape[2]):
        outcome = _step(mechanism, case, i, state)
        chosen = _step(mechanism, take_rows(case, rows), i, take_rows(state, rows))
        _assert_same(chosen, take_rows(outcome, rows), "selecting rows before and after a step differs")
        state = outcome.state


def check_more_frames_change_nothing(mechanism: Mechanism, case: Case) -> None:
    """More frames do not change a decided step, and a step is decided if all frames before its limit are available."""
    rows = len(case.q_BHLD)
    state = mechanism.start(rows)
    for i in range(case.q_BHLD.shape[2]):
        final = _step(mechanism, case, i, state)
        assert final.ready_B.all(), "a step is undecided although the last frame is available"
        for frames in range(case.k_BHTD.shape[2] + 1):
            length_B = torch.full((rows,), frames)
            window = AttentionWindow(case.limit_BL[:, i], length_B, torch.zeros(rows, dtype=torch.bool))
            early = _step(mechanism, case._replace(k_BHTD=case.k_BHTD[:, :, :frames]), i, state, window)
            assert early.ready_B[window.complete].all(), "a step is undecided although all frames are available"
            ready = early.ready_B.nonzero().flatten().tolist()
            _assert_same(take_rows(_padded(early, final), ready), take_rows(final, ready), "decided too early")
        state = final.state


def check_shared_keys(mechanism: Mechanism, case: Case) -> None:
    """All rows may share the keys of one row; the hypotheses of a beam share their frames."""
    shared = case._replace(k_BHTD=case.k_BHTD[:1])
    copied = case._replace(k_BHTD=case.k_BHTD[:1].expand_as(case.k_BHTD))
    _assert_same(drain_steps(mechanism, shared), drain_steps(mechanism, copied), "rows cannot share their keys")


def check_pickled_state(mechanism: Mechanism, case: Case) -> None:
    """A stream can be pickled between any two steps and continues unchanged."""
    state = mechanism.start(len(case.q_BHLD))
    for i in range(case.q_BHLD.shape[2]):
        outcome = _step(mechanism, case, i, state)
        loaded = _step(mechanism, case, i, pickle.loads(pickle.dumps(state)))
        _assert_same(loaded, outcome, "pickling changes the state")
        state = pickle.loads(pickle.dumps(outcome.state))


def check_gradients(mechanism: Mechanism, case: Case) -> None:
    """The gradients of the parallel form are finite and equal finite differences and the gradients of the steps.

    If the parallel form is an expectation, the steps make hard decisions and have no such gradients.
    """
    q, k = (x.clone().requires_grad_() for x in (case.q_BHLD, case.k_BHTD))
    leaves = [q, k, *(mechanism.parameters() if isinstance(mechanism, nn.Module) else ())]

    def weights(q: Tensor, k: Tensor) -> Tensor:
        return mechanism.align(q, k, case.limit_BL).weights_BHLT

    assert torch.autograd.gradcheck(weights, (q, k), fast_mode=True), "gradients differ from finite differences"
    aligned = weights(q, k)
    mix = torch.randn(aligned.shape, generator=torch.Generator().manual_seed(1), dtype=aligned.dtype)
    ours = torch.autograd.grad((aligned * mix).sum(), leaves, materialize_grads=True)
    assert all(torch.isfinite(gradient).all() for gradient in ours), "a gradient is not finite"
    if not mechanism.expected:
        stepped = drain_steps(mechanism, Case(q, k, case.limit_BL)).weights_BHLT
        of_steps = torch.autograd.grad((stepped * mix).sum(), leaves, materialize_grads=True)
        _assert_same(ours, of_steps, "step and align have different gradients")


CHECKS: tuple[Callable[[Mechanism, Case], None], ...] = (
    check_step_equals_align,
    check_limit,
    check_padding_has_no_effect,
    check_rows_are_independent,
    check_row_selection,
    check_more_frames_change_nothing,
    check_shared_keys,
    check_pickled_state,
    check_gradients,
)


def _aligned(mechanism: Mechanism, case: Case) -> tuple[Tensor, ...]:
    """All results of the parallel form."""
    return tuple(part for part in mechanism.align(*case) if part is not None)


def _step(
    mechanism: Mechanism, case: Case, i: int, state: MechanismState, window: AttentionWindow | None = None
) -> Attended:
    """Output step i; by default all frames are available."""
    rows, frames = len(case.q_BHLD), case.k_BHTD.shape[2]
    whole = AttentionWindow(case.limit_BL[:, i], torch.full((rows,), frames), torch.ones(rows, dtype=torch.bool))
    window = window or whole
    outcome = mechanism.step(case.q_BHLD[:, :, i], case.k_BHTD, state, window)
    assert (outcome.end_BH <= window.end.unsqueeze(1)).all(), "a head consumed frames that are not available"
    return outcome


def _padded(outcome: Attended, like: Attended) -> Attended:
    """Weights padded with zeros for the frames that were not available."""
    weights = torch.zeros_like(like.weights_BHT)
    weights[:, :, : outcome.weights_BHT.shape[2]] = outcome.weights_BHT
    return outcome._replace(weights_BHT=weights)


def _assert_same(one: Any, other: Any, problem: str) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9, msg=lambda why: f"{problem}: {why}")

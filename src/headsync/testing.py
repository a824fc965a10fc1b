"""The contract of online attention as checks: for the mechanisms of this package, and for other people's.

    mechanism = MyAttention(...).double().eval()
    check_mechanism(mechanism, random_case(heads=4))

A mechanism is written twice, `align` for training and `step` for streaming, and a stream shows it frames little by
little. Each check states one promise that binds the two forms, or the stream, and raises AssertionError where it is
broken. All of them compare in float64 to 1e-9. A mechanism whose training form is an expectation says so by `expected`:
its two forms are then compared where all probabilities are 0 or 1.

Shapes: B rows, H heads, L output steps, T encoder frames, D head width.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headsync.attention.base import Aligned, Attended, OnlineAttention, State, Window, decidable, reach
from headsync.engine.state_tree import take_rows

__all__ = [
    "CHECKS",
    "Case",
    "check_arrival_changes_nothing",
    "check_gradients",
    "check_limit_is_kept",
    "check_mechanism",
    "check_one_memory_serves_all_rows",
    "check_padding_is_inert",
    "check_rows_are_independent",
    "check_rows_commute",
    "check_state_survives_pickling",
    "check_step_is_align",
    "drain_steps",
    "random_case",
]


CERTAIN = 1e9  # energies so large that every sigmoid is 0 or 1, and every softmax has one winner


class Case(NamedTuple):
    """Something to attend to: queries, keys, and how far each output step may look."""

    q_BHLD: Tensor
    k_BHTD: Tensor
    limit_BL: Tensor


def random_case(
    *, rows: int = 3, heads: int = 2, steps: int = 4, frames: int = 9, width: int = 4, scale: float = 1.0, seed: int = 0
) -> Case:
    """Random queries and keys with energies of about `scale`; limits rise from step to step, some beyond all frames."""
    source = torch.Generator().manual_seed(seed)
    q = scale * torch.randn(rows, heads, steps, width, generator=source, dtype=torch.float64)
    k = torch.randn(rows, heads, frames, width, generator=source, dtype=torch.float64)
    limit = torch.randint(1, frames + 4, (rows, steps), generator=source).sort(1).values
    return Case(q, k, limit)


def check_mechanism(mechanism: OnlineAttention, case: Case) -> None:
    """All checks, one after the other."""
    for check in CHECKS:
        check(mechanism, case)


def drain_steps(mechanism: OnlineAttention, case: Case) -> Aligned:
    """All output steps one at a time, every frame having arrived: what `align` says at once."""
    state, outcomes = mechanism.start(len(case.q_BHLD)), []
    for i in range(case.q_BHLD.shape[2]):
        outcome = _step(mechanism, case, i, state)
        state = outcome.state
        outcomes.append(outcome)
    weights = torch.stack([outcome.weights_BHT for outcome in outcomes], 2)
    return Aligned(weights, torch.stack([outcome.end_BH for outcome in outcomes], 2))


def check_step_is_align(mechanism: OnlineAttention, case: Case) -> None:
    """The drained steps are the parallel form; where that is an expectation, if nothing is left to chance."""
    if mechanism.expected:
        case = case._replace(q_BHLD=case.q_BHLD * CERTAIN)
    stepped, aligned = drain_steps(mechanism, case), mechanism.align(*case)
    _assert_same(stepped.weights_BHLT, aligned.weights_BHLT, "stepping and aligning differ")
    if not mechanism.expected:  # an expectation looks at everything
        _assert_same(stepped.end_BHL, aligned.end_BHL, "stepping and aligning consume other frames")


def check_limit_is_kept(mechanism: OnlineAttention, case: Case) -> None:
    """No head consumes a frame at or beyond the limit, and none has weight where it has not looked."""
    frames = case.k_BHTD.shape[2]
    limit = case.limit_BL.clamp(max=frames).unsqueeze(1)
    for form in (mechanism.align(*case), drain_steps(mechanism, case)):
        assert (form.end_BHL <= limit).all(), "a head consumed frames beyond its limit"
        beyond = torch.arange(frames) >= form.end_BHL.unsqueeze(-1)
        assert (form.weights_BHLT[beyond] == 0).all(), "a frame that was not consumed has weight"


def check_padding_is_inert(mechanism: OnlineAttention, case: Case) -> None:
    """Frames beyond a row's last one change nothing, whatever they hold."""
    rows, frames = len(case.k_BHTD), case.k_BHTD.shape[2]
    there = 1 + torch.arange(rows) * (frames - 1) // max(1, rows - 1)  # from one frame to all
    case = case._replace(limit_BL=case.limit_BL.minimum(there.unsqueeze(1)))
    missing = torch.arange(frames) >= there[:, None, None]
    padded = [case._replace(k_BHTD=case.k_BHTD.masked_fill(missing.unsqueeze(-1), fill)) for fill in (0.0, torch.nan)]
    _assert_same(_aligned(mechanism, padded[0]), _aligned(mechanism, padded[1]), "padding is not inert in align")
    for i in range(case.q_BHLD.shape[2]):
        window = Window(case.limit_BL[:, i] + frames, there, torch.ones(rows, dtype=torch.bool))
        zeros, nans = (_step(mechanism, c, i, mechanism.start(rows), window) for c in padded)
        _assert_same(zeros, nans, "padding is not inert in step")


def check_rows_are_independent(mechanism: OnlineAttention, case: Case) -> None:
    """A row in a batch is the row alone."""
    aligned, stepped = _aligned(mechanism, case), drain_steps(mechanism, case)[:2]
    for row in range(len(case.q_BHLD)):
        alone = take_rows(case, [row])
        _assert_same(_aligned(mechanism, alone), take_rows(aligned, [row]), "align: a row depends on the others")
        _assert_same(drain_steps(mechanism, alone)[:2], take_rows(stepped, [row]), "step: a row depends on the others")


def check_rows_commute(mechanism: OnlineAttention, case: Case) -> None:
    """Choosing rows and then stepping is stepping and then choosing rows: what a beam search relies on."""
    state, rows = mechanism.start(len(case.q_BHLD)), [len(case.q_BHLD) - 1, 0, 0]
    for i in range(case.q_BHLD.shape[2]):
        outcome = _step(mechanism, case, i, state)
        chosen = _step(mechanism, take_rows(case, rows), i, take_rows(state, rows))
        _assert_same(chosen, take_rows(outcome, rows), "choosing rows does not commute with step")
        state = outcome.state


def check_arrival_changes_nothing(mechanism: OnlineAttention, case: Case) -> None:
    """A step that is decided on few frames is decided for good, and one that has all it may see is decided."""
    rows = len(case.q_BHLD)
    state = mechanism.start(rows)
    for i in range(case.q_BHLD.shape[2]):
        settled = _step(mechanism, case, i, state)
        assert settled.ready_B.all(), "a step is undecided although no more frames will come"
        for frames in range(case.k_BHTD.shape[2] + 1):
            there = torch.full((rows,), frames)
            window = Window(case.limit_BL[:, i], there, torch.zeros(rows, dtype=torch.bool))
            early = _step(mechanism, case._replace(k_BHTD=case.k_BHTD[:, :, :frames]), i, state, window)
            assert early.ready_B[decidable(window)].all(), "a step that has all it may see is undecided"
            ready = early.ready_B.nonzero().flatten().tolist()
            _assert_same(take_rows(_lengthened(early, settled), ready), take_rows(settled, ready), "decided too early")
        state = settled.state


def check_one_memory_serves_all_rows(mechanism: OnlineAttention, case: Case) -> None:
    """Keys of one row may stand for those of all: the hypotheses of a beam share their frames."""
    shared = case._replace(k_BHTD=case.k_BHTD[:1])
    copied = case._replace(k_BHTD=case.k_BHTD[:1].expand_as(case.k_BHTD))
    _assert_same(drain_steps(mechanism, shared), drain_steps(mechanism, copied), "rows cannot share their keys")


def check_state_survives_pickling(mechanism: OnlineAttention, case: Case) -> None:
    """A stream can be put aside between any two steps, and goes on as if it had not."""
    state = mechanism.start(len(case.q_BHLD))
    for i in range(case.q_BHLD.shape[2]):
        outcome = _step(mechanism, case, i, state)
        thawed = _step(mechanism, case, i, pickle.loads(pickle.dumps(state)))
        _assert_same(thawed, outcome, "the state changes when it is pickled")
        state = pickle.loads(pickle.dumps(outcome.state))


def check_gradients(mechanism: OnlineAttention, case: Case) -> None:
    """The gradients of the parallel form are those of finite differences, all finite, and those of the drained steps.

    A step whose parallel form is an expectation decides instead, and has no such gradients.
    """
    q, k = (x.clone().requires_grad_() for x in (case.q_BHLD, case.k_BHTD))
    leaves = [q, k, *(mechanism.parameters() if isinstance(mechanism, nn.Module) else ())]

    def weights(q: Tensor, k: Tensor) -> Tensor:
        return mechanism.align(q, k, case.limit_BL).weights_BHLT

    assert torch.autograd.gradcheck(weights, (q, k), fast_mode=True), "gradients are not those of finite differences"
    aligned = weights(q, k)
    mix = torch.randn(aligned.shape, generator=torch.Generator().manual_seed(1), dtype=aligned.dtype)
    ours = torch.autograd.grad((aligned * mix).sum(), leaves, materialize_grads=True)
    assert all(torch.isfinite(gradient).all() for gradient in ours), "a gradient is not finite"
    if not mechanism.expected:
        stepped = drain_steps(mechanism, Case(q, k, case.limit_BL)).weights_BHLT
        of_steps = torch.autograd.grad((stepped * mix).sum(), leaves, materialize_grads=True)
        _assert_same(ours, of_steps, "the gradients of stepping and aligning differ")


CHECKS: tuple[Callable[[OnlineAttention, Case], None], ...] = (
    check_step_is_align,
    check_limit_is_kept,
    check_padding_is_inert,
    check_rows_are_independent,
    check_rows_commute,
    check_arrival_changes_nothing,
    check_one_memory_serves_all_rows,
    check_state_survives_pickling,
    check_gradients,
)


def _aligned(mechanism: OnlineAttention, case: Case) -> tuple[Tensor, ...]:
    """All that the parallel form says."""
    return tuple(part for part in mechanism.align(*case) if part is not None)


def _step(mechanism: OnlineAttention, case: Case, i: int, state: State, window: Window | None = None) -> Attended:
    """Output step i; unless told otherwise, every frame has arrived."""
    rows, frames = len(case.q_BHLD), case.k_BHTD.shape[2]
    all_there = Window(case.limit_BL[:, i], torch.full((rows,), frames), torch.ones(rows, dtype=torch.bool))
    window = window or all_there
    outcome = mechanism.step(case.q_BHLD[:, :, i], case.k_BHTD, state, window)
    assert (outcome.end_BH <= reach(window).unsqueeze(1)).all(), "a head consumed frames that it could not see"
    return outcome


def _lengthened(outcome: Attended, like: Attended) -> Attended:
    """Weights padded with zeros for the frames that had not arrived."""
    weights = torch.zeros_like(like.weights_BHT)
    weights[:, :, : outcome.weights_BHT.shape[2]] = outcome.weights_BHT
    return outcome._replace(weights_BHT=weights)


def _assert_same(one: Any, other: Any, complaint: str) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9, msg=lambda why: f"{complaint}: {why}")

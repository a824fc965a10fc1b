"""Faults in the CTC prefix scores."""

from __future__ import annotations

from mutations.mutation import Mutation

TESTS = ("tests/decoding/test_ctc_prefix.py",)

MUTATIONS: list[Mutation] = [
    Mutation(
        "a repeated label needs no blank",
        "decoding/ctc_prefix.py",
        "starts = starts_TBL[t + 1, :, 1:] = np.where(repeats_BL, blank_TBL[t, :, :-1], either[:, :-1]) + p_BL",
        "starts = starts_TBL[t + 1, :, 1:] = either[:, :-1] + p_BL",
        TESTS,
    ),
    Mutation(
        "a label does not last",
        "decoding/ctc_prefix.py",
        "label_TBL[t + 1, :, 1:] = np.logaddexp(label_TBL[t, :, 1:] + p_BL, starts)",
        "label_TBL[t + 1, :, 1:] = starts",
        TESTS,
    ),
    Mutation(
        "blanks follow blanks only",
        "decoding/ctc_prefix.py",
        "blank_TBL[t + 1] = either + p_blank",
        "blank_TBL[t + 1] = blank_TBL[t] + p_blank",
        TESTS,
    ),
    Mutation(
        "a new prefix ignores a repeated label",
        "decoding/ctc_prefix.py",
        "phi_BT = np.where(_repeated(state, tokens_B[:, None]), state.blank_BT, _either(state))[:, :-1]",
        "phi_BT = _either(state)[:, :-1]",
        TESTS,
    ),
    Mutation(
        "the end of a text ignores blanks",
        "decoding/ctc_prefix.py",
        "return np.logaddexp(state.label_BL[:, -1], state.blank_BL[:, -1])",
        "return state.label_BL[:, -1]",
        TESTS,
    ),
    Mutation(
        "a candidate ignores a repeated label",
        "decoding/ctc_prefix.py",
        "psi_BK = np.where(_repeated(state, tokens_BK), again, psi_BK)",
        "pass",
        TESTS,
    ),
]

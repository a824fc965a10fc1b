"""One output step of one layer by every mechanism, literally: weights, contexts and the frames consumed.

`earlier` holds the stopping probabilities of the steps before, by monotonic head, in place of a boundary that is
carried along: the loops of `reference.bernoulli` are run again from the first step on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from reference import Array, one_based
from reference.accumulate import Halted, acs, dacs, energy, hs_dacs, sigmoid
from reference.bernoulli import boundaries, chunk, synchronised_boundaries, truncated_stream
from reference.cif import fire
from reference.softmax import weights

Earlier = tuple[Array, ...]
Heads = dict[int, dict[int, float]]  # by head h: weights by frame j
Outcome = tuple[Halted, Earlier]
Step = Callable[[Any, Array, Array, Array, int, Earlier], Outcome]  # mechanism, q, k, v, limit, earlier


def _halted(alpha: Heads, N: dict[int, int], v: Array) -> Halted:
    """Contexts as in eq. (7); v (H, T, d)."""
    v = one_based(v, 2)
    c = {h: sum((w * v[h, j] for j, w in alpha[h].items()), np.zeros(v.shape[2])) for h in alpha}
    return Halted({(h, j): w for h in alpha for j, w in alpha[h].items()}, N, c)


def _bias(mechanism: Any) -> float:
    bias = getattr(mechanism, "energy_bias", None)
    return 0.0 if bias is None else float(bias)


def accumulation(halting: Callable[..., Halted]) -> Step:
    """ACS, DACS, HS-DACS: nothing is carried from step to step but t_{i-1}, which is in the limit."""

    def step(mechanism: Any, q: Array, k: Array, v: Array, limit: int, earlier: Earlier) -> Outcome:
        return halting(q, k, v, limit, mechanism.threshold, _bias(mechanism)), ()

    return step


def softmax(mechanism: Any, q: Array, k: Array, v: Array, limit: int, earlier: Earlier) -> Outcome:
    """Eq. (1) over the frames up to the limit: offline, triggered and blockwise attention."""
    H, T, _ = k.shape
    last = min(limit, T)
    alpha = {h: dict(enumerate(weights(q[h - 1], k[h - 1, :last]), 1)) for h in range(1, H + 1)}
    return _halted(alpha, dict.fromkeys(alpha, last), v), ()


def stopping(mechanism: Any, q: Array, k: Array) -> Array:
    """p (H, T) of each head."""
    return np.array(
        [[sigmoid(energy(q_h, k_hj) + _bias(mechanism)) for k_hj in k_h] for q_h, k_h in zip(q, k, strict=True)]
    )


def _consumed(found: int | None, before: int | None, T: int) -> int:
    """Frames up to the boundary; all of them if there is none; none if the head has been lost before."""
    return found if found is not None else T if before is not None else 0


def hma(mechanism: Any, q: Array, k: Array, v: Array, limit: int, earlier: Earlier) -> Outcome:
    H, T, _ = k.shape
    p = (*earlier, stopping(mechanism, q, k))
    alpha: Heads = {}
    N = {}
    for h in range(1, H + 1):
        *others, found = boundaries(np.array([p_i[h - 1] for p_i in p]), [T] * len(p))
        alpha[h] = {} if found is None else {found: 1.0}
        N[h] = _consumed(found, others[-1] if others else 1, T)
    return _halted(alpha, N, v), p


def mocha(mechanism: Any, q: Array, k: Array, v: Array, limit: int, earlier: Earlier) -> Outcome:
    hard, p = hma(mechanism, q, k, v, limit, earlier)
    found = {h: next((j for g, j in hard.p if g == h), None) for h in hard.N}
    return _halted(_chunks(mechanism, q, k, found), hard.N, v), p


def mma(mechanism: Any, q: Array, k: Array, v: Array, limit: int, earlier: Earlier) -> Outcome:
    """Heads of a layer that wait for one another, each with a chunk."""
    H, T, _ = k.shape
    p = (*earlier, stopping(mechanism, q, k))
    every = synchronised_boundaries(np.array(p).swapaxes(0, 1), [T] * len(p), mechanism.wait_frames)
    before = every[-2] if len(every) > 1 else [1] * H
    found = {h: every[-1][h - 1] for h in range(1, H + 1)}
    N = {h: _consumed(found[h], before[h - 1], T) for h in found}
    return _halted(_chunks(mechanism, q, k, found), N, v), p


def _chunks(mechanism: Any, q: Array, k: Array, found: dict[int, int | None]) -> Heads:
    """Of each head the softmax over the chunk that ends at its boundary; energies q A k^T / sqrt(d_k)."""
    A = mechanism.chunk_HDD.numpy()
    alpha: Heads = {}
    for h, j in found.items():
        u = one_based([energy(q[h - 1] @ A[h - 1], k_j) for k_j in k[h - 1]])
        alpha[h] = {} if j is None else chunk(u, j, mechanism.chunk_frames)
    return alpha


def mta(mechanism: Any, q: Array, k: Array, v: Array, limit: int, earlier: Earlier) -> Outcome:
    H, T, _ = k.shape
    p = (*earlier, stopping(mechanism, q, k))
    alpha: Heads = {}
    N = {}
    for h in range(1, H + 1):
        w, ends = truncated_stream(np.array([p_i[h - 1] for p_i in p]), [T] * len(p))
        alpha[h], N[h] = dict(enumerate(w[-1].tolist(), 1)), ends[-1]
    return _halted(alpha, N, v), p


def cif(mechanism: Any, q: Array, k: Array, v: Array, limit: int, earlier: Earlier) -> Outcome:
    """Step i has the i-th token of the accumulator; a step for which none is left has no context."""
    H, T, _ = k.shape
    tokens, i = fire(cif_weights(mechanism, k)), len(earlier) + 1
    alpha = tokens[i - 1] if i <= len(tokens) else {}
    N = max(alpha) if alpha else T
    every = range(1, H + 1)
    return _halted(dict.fromkeys(every, alpha), dict.fromkeys(every, N), v), (*earlier, np.empty(0))


def cif_weights(mechanism: Any, k: Array) -> Array:
    """alpha_j from frame j and the two before it: a convolution, a ReLU, a projection and a sigmoid."""
    H, T, d = k.shape
    W, b, out = (x.numpy() for x in (mechanism.convolution.weight, mechanism.convolution.bias, mechanism.alpha.weight))
    found = []
    for j in range(T):
        seen = [k[:, j - back].reshape(-1) if j >= back else np.zeros(H * d) for back in range(3)]
        hidden = np.maximum(W @ np.concatenate(seen) + b, 0.0)
        found.append(sigmoid(float(out[0] @ hidden) + _bias(mechanism)))
    return np.array(found)


STEPS: dict[str, Step] = {
    "acs": accumulation(acs),
    "dacs": accumulation(dacs),
    "hs-dacs": accumulation(hs_dacs),
    "hma": hma,
    "mocha": mocha,
    "mma-mocha": mma,
    "mta": mta,
    "cif": cif,
    "softmax": softmax,
    "triggered": softmax,
    "bs-dec": softmax,
}

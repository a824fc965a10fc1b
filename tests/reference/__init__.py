"""The paper's definitions as literal loops with its names and indices: slow, plain, and never imported by src.

Indices count from 1 as in the paper. `one_based` puts NaN where index 0 would be, so that a slip poisons the result.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def one_based(x: npt.ArrayLike, axes: int = 1) -> Array:
    """The same array with its first `axes` axes counted from 1."""
    array = np.asarray(x, dtype=np.float64)
    before = [(1, 0)] * axes + [(0, 0)] * (array.ndim - axes)
    return np.pad(array, before, constant_values=np.nan)

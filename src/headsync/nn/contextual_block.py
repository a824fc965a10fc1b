"""Contextual blocks: each window of the encoder has a context vector, which carries information from earlier windows.

The context of a window is initialised with the mean of its embedded frames, and passes through the layers as one more
position after the frames of the window. In every layer the frames and the context of a window attend to the window's
frames and to the *previous* window's context, as input to this layer; the first window uses its own context instead. So
each layer adds one window of history, and all windows can still be computed in parallel: a layer needs only the output
of the layer below for the previous window.

A context has no position in time: the distance bias from and to it is zero. The weights are those of isolated windows.
The published window is 8 | 16 | 16: blocks of 40 frames every 16, the last 16 being look-ahead.

Shapes: N windows (of all rows), W frames of a window, E width, Q queries, K keys.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def append(x_NWE: Tensor, exists_NW: Tensor) -> Tensor:
    """The windows with their contexts appended: the mean of the frames that exist."""
    frames_N1 = exists_NW.sum(1, keepdim=True).clamp(min=1)
    total_NE = x_NWE.masked_fill(~exists_NW[:, :, None], 0.0).sum(1)
    return torch.cat([x_NWE, (total_NE / frames_N1).unsqueeze(1)], 1)


def exists(exists_NW: Tensor) -> Tensor:
    """Which keys exist: those of existing frames, and the context's."""
    return F.pad(exists_NW, (0, 1), value=True)


def no_place(place_WK: Tensor, entry: int) -> Tensor:
    """The places of frames, and `entry` if a context is the query or the key."""
    return F.pad(place_WK, (0, 1, 0, 1), value=entry)


def whole_keys(h_NWE: Tensor, windows: int) -> Tensor:
    """Key inputs of a layer in all windows of all rows: frames, and the previous window's context."""
    contexts = h_NWE[:, -1].unflatten(0, (-1, windows))
    previous = torch.cat([contexts[:, :1], contexts[:, :-1]], 1).flatten(0, 1)
    return torch.cat([h_NWE[:, :-1], previous.unsqueeze(1)], 1)


def step_keys(h_BWE: Tensor, previous_BE: Tensor, first_B: Tensor) -> Tensor:
    """The same for the next window of a stream; `first_B`: whether it is the first."""
    previous_BE = torch.where(first_B[:, None], h_BWE[:, -1], previous_BE)
    return torch.cat([h_BWE[:, :-1], previous_BE.unsqueeze(1)], 1)

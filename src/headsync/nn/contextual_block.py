"""Contextual blocks: one vector per window of the encoder, its context, that hands on what windows before it heard.

The context of a window starts as the mean of its embedded frames, and goes through the layers as one more position of
the window, behind its frames. In every layer the frames and the context of a window attend to the window's frames and
to the *previous* window's context, as that was before this layer; the first window, having none before it, sees its own
context instead. So what a window knows of the past deepens by one window with each layer, and all windows can still be
computed at once: a layer needs of the window before nothing but what the layer below gave.

A context has no place in time: the distance bias is zero towards it and from it. The weights are those of isolated
windows, none is added. The published window is 8 | 16 | 16: blocks of 40 frames every 16, the last 16 being look-ahead.

Shapes: N windows (of all rows), W frames of a window, E width, Q queries, K keys.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def append(x_NWE: Tensor, exists_NW: Tensor) -> Tensor:
    """The windows with their contexts behind them: the mean of those frames that exist."""
    frames_N1 = exists_NW.sum(1, keepdim=True).clamp(min=1)
    total_NE = x_NWE.masked_fill(~exists_NW[:, :, None], 0.0).sum(1)
    return torch.cat([x_NWE, (total_NE / frames_N1).unsqueeze(1)], 1)


def exists(exists_NW: Tensor) -> Tensor:
    """Which keys exist: those of the frames that do, and the context's."""
    return F.pad(exists_NW, (0, 1), value=True)


def no_place(place_WK: Tensor, entry: int) -> Tensor:
    """The places of frames, and `entry` wherever a context is the query or the key."""
    return F.pad(place_WK, (0, 1, 0, 1), value=entry)


def whole_keys(h_NWE: Tensor, windows: int) -> Tensor:
    """Inputs of a layer's keys in all windows of all rows: frames, and the previous window's context."""
    contexts = h_NWE[:, -1].unflatten(0, (-1, windows))
    previous = torch.cat([contexts[:, :1], contexts[:, :-1]], 1).flatten(0, 1)
    return torch.cat([h_NWE[:, :-1], previous.unsqueeze(1)], 1)


def step_keys(h_BWE: Tensor, previous_BE: Tensor, first_B: Tensor) -> Tensor:
    """The same for the next window of a stream; `first` where there was none before."""
    previous_BE = torch.where(first_B[:, None], h_BWE[:, -1], previous_BE)
    return torch.cat([h_BWE[:, :-1], previous_BE.unsqueeze(1)], 1)

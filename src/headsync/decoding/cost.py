"""Cost ratio r: the share of the encoder frames that the attention heads consumed (section 5.3)."""

from __future__ import annotations


def cost_ratio(consumed: int, *, layers: int, heads: int, steps: int, frames: int) -> float:
    """Give r = sum_l sum_h sum_i s_i^{h,l} / (N_d H L T), eq. (10).

    `consumed` is the numerator: the frames that all heads of all layers consumed in all output steps. `frames` is T,
    the encoder frames of the utterance. An utterance without steps has r = 0.
    """
    everything = layers * heads * steps * frames
    assert 0 <= consumed <= everything, "heads consumed more frames than the utterance has"
    return consumed / everything if everything else 0.0

"""Online attention: where a decoder looks, and when it stops looking, in speech that is still arriving.

`MECHANISMS` is the whole table; a recipe names an entry as `decoder.attention`. Tests and contracts run over the table,
so that a new entry is under test from the moment it stands here.
"""

from __future__ import annotations

from headsync.attention.accumulate import DACS, HSDACS
from headsync.attention.base import OnlineAttention
from headsync.attention.softmax import Softmax
from headsync.config import DecoderConfig, nearest_name

MECHANISMS: dict[str, type[Softmax] | type[DACS]] = {
    "softmax": Softmax,
    "dacs": DACS,
    "hs-dacs": HSDACS,
}


def build_mechanism(config: DecoderConfig, heads: int) -> OnlineAttention:
    """The mechanism that a recipe names."""
    if config.attention not in MECHANISMS:
        raise nearest_name("decoder.attention =", config.attention, MECHANISMS)
    return MECHANISMS[config.attention](config, heads)

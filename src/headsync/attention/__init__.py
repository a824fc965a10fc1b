"""Online attention: where a decoder looks, and when it stops looking, in speech that is still arriving.

`MECHANISMS` is the whole table; a recipe names an entry as `decoder.attention`. Tests and contracts run over the table,
so that a new entry is under test from the moment it stands here.
"""

from __future__ import annotations

from headsync.attention.accumulate import ACS, DACS, HSDACS
from headsync.attention.base import Mechanism
from headsync.attention.bernoulli import HMA, MMA, MTA, MoChA
from headsync.attention.cif import CIF
from headsync.attention.softmax import BlockSynchronous, Softmax, Triggered
from headsync.config import DecoderConfig
from headsync.errors import nearest_name

MECHANISMS: dict[str, type[Mechanism]] = {
    "softmax": Softmax,
    "triggered": Triggered,
    "bs-dec": BlockSynchronous,
    "hma": HMA,
    "mocha": MoChA,
    "mma-mocha": MMA,
    "mta": MTA,
    "cif": CIF,
    "acs": ACS,
    "dacs": DACS,
    "hs-dacs": HSDACS,
}


def mechanism_of(config: DecoderConfig) -> type[Mechanism]:
    """The mechanism that a recipe names."""
    if config.attention not in MECHANISMS:
        raise nearest_name("decoder.attention =", config.attention, MECHANISMS)
    return MECHANISMS[config.attention]


def build_mechanism(config: DecoderConfig, heads: int, width: int) -> Mechanism:
    """The mechanism that a recipe names, for heads of the given width."""
    return mechanism_of(config)(config, heads, width)

"""Online attention: which frames a decoder attends to, and where it stops, while speech is still arriving.

`MECHANISMS` lists all mechanisms; a recipe names one as `decoder.attention`. The contract tests run over this table and
so cover new entries. Installed packages add mechanisms with entry points of the group `headsync.mechanisms`.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from headsync.attention.accumulate import ACS, DACS, HSDACS
from headsync.attention.base import Mechanism
from headsync.attention.bernoulli import HMA, MMA, MTA, MoChA
from headsync.attention.cif import CIF
from headsync.attention.softmax import BlockSynchronous, Softmax, Triggered
from headsync.config import DecoderConfig
from headsync.errors import ConfigError, nearest_name

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


GROUP = "headsync.mechanisms"


def mechanism_of(config: DecoderConfig) -> type[Mechanism]:
    """The mechanism that a recipe names: an entry of the table, or one of an installed package."""
    if config.attention in MECHANISMS:
        return MECHANISMS[config.attention]
    for entry in entry_points(group=GROUP, name=config.attention):
        where = f'decoder.attention = "{entry.name}": {entry.value} of {entry.dist.name if entry.dist else "a package"}'
        try:
            loaded = entry.load()
        except Exception as error:
            raise ConfigError(f"{where} cannot be imported ({error}); repair or remove the package") from error
        if not (isinstance(loaded, type) and issubclass(loaded, Mechanism)):
            raise ConfigError(f"{where} is not a subclass of headsync.attention.base.Mechanism; repair the package")
        return loaded
    raise nearest_name("decoder.attention =", config.attention, {*MECHANISMS, *entry_points(group=GROUP).names})


def build_mechanism(config: DecoderConfig, heads: int, width: int) -> Mechanism:
    """The mechanism that a recipe names, for heads of the given width."""
    return mechanism_of(config)(config, heads, width)

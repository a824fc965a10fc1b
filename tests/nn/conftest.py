"""Settings of all tests of the network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headsync.attention.bernoulli import MMA


@pytest.fixture(autouse=True, scope="module")
def _heads_do_not_wait() -> Iterator[None]:
    """Heads of MMA-MoChA do not wait for each other, so that a stream equals the training form."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MMA, "wait_frames", 100)
        yield

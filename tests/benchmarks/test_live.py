"""The figures of a recogniser in the comparison in real time, against a case computed by hand."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from headsync.evaluation.latency import TimedWord

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(PEERS)
    return runpy.run_path(str(PEERS / "live.py"))


def test_figures_follow_from_displayed_texts(live: dict[str, Any]) -> None:
    """Case and punctuation do not count; "nine" is displayed first and becomes "one"."""
    shown = [  # utterance, text, whether final, seconds pushed, seconds with computing
        (0, "", False, 0.1, 0.1), (0, "Nine", False, 0.5, 0.6), (0, "one two", False, 1.0, 1.2),
        (0, "One, two.", True, 1.5, 1.9),
    ]  # fmt: skip
    results = {
        "00000": {"shown": shown, "seconds": 2.0, "computing": 0.5},
        "00001": {"shown": [(0, "six", True, 2.0, 2.1)], "seconds": 2.0, "computing": 0.3},
    }
    texts = {"00000": "One two", "00001": "five six"}
    times = {"00000": [TimedWord("One", 0.1, 0.4), TimedWord("two", 0.5, 0.9)], "00001": ()}
    figures = live["measured"](results, texts, times, live["normaliser"]("words"))
    counts = figures["counts"]
    assert (counts.substitutions, counts.deletions, counts.insertions, counts.words) == (0, 1, 0, 4)
    delays = figures["delays"]
    assert delays.user_perceived == pytest.approx((0.6, 0.1))
    assert delays.user_perceived_computing == pytest.approx((0.8, 0.3))
    assert delays.first_token == pytest.approx((0.4,))
    assert delays.finalisation == pytest.approx((0.6,))
    assert delays.laal == pytest.approx(((1.0 + 0.0) / 2, 2.0))
    assert figures["stability"].normalised_erasure == pytest.approx(1 / 3)
    assert figures["computing"] == pytest.approx(0.2)
    assert live["row"]("moonshine", figures).startswith(
        "| Moonshine tiny, re-decoding of growing audio | 25.0% | 0.35 / 0.55 | 0.55 / 0.75 |"
    )

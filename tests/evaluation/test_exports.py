"""Logs for other tools, against lines computed by hand."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import soundfile

from fakes import FakeRecognizer
from headsync.corpora.manifest import Utterance
from headsync.evaluation.delay_figures import CURVES, TradeOff, delay_distribution, trade_off
from headsync.evaluation.evaluate import UtteranceResult, evaluate
from headsync.evaluation.exports import write_ctm, write_simuleval, write_simulstream
from headsync.evaluation.figure_files import STYLE
from headsync.evaluation.latency import Delays, Moment, TimedEvents, displayed_texts
from headsync.events import Event, Final, Partial, Word


def words(text: str) -> tuple[Word, ...]:
    return tuple(Word(word, 0.0, 0.1) for word in text.split())


EVENTS: list[Event] = [
    Partial(0, "a", words("a"), 0.0, 0.5),
    Partial(0, "b c", words("b c"), 0.0, 1.0),
    Final(0, "b c", words("b c"), 0.0, 1.5, (), 0.5),
    Partial(1, "d", words("d"), 0.0, 2.0),
    Final(1, "d e", words("d e"), 0.0, 2.5, (), 0.5),
]
STREAM = TimedEvents(EVENTS, 3.0, [0.6, 1.1, 1.6, 2.1, 2.6])


def test_all_words_on_display_after_each_change() -> None:
    texts = [(moment.audio_seconds, " ".join(words)) for moment, words in displayed_texts(STREAM)]
    assert texts == [(0.5, "a"), (1.0, "b c"), (2.0, "b c d"), (2.5, "b c d e")]
    assert displayed_texts(TimedEvents([], 1.0)) == []
    removed: list[Event] = [Partial(0, "a", words("a"), 0.0, 0.5), Partial(0, "", (), 0.0, 1.0)]  # without a Final
    assert displayed_texts(TimedEvents([*removed, EVENTS[-1]], 3.0)) == [
        (Moment(0.5, 0.5), ("a",)), (Moment(1.0, 1.0), ()), (Moment(2.5, 2.5), ("d", "e")),
    ]  # fmt: skip


@pytest.fixture
def outcomes(tmp_path: Path) -> tuple[UtteranceResult, ...]:
    soundfile.write(tmp_path / "a.wav", np.zeros(16_000, np.float32), 8_000)
    utterances = [Utterance(name, tmp_path / "a.wav", "one two", 2.0) for name in ("u 1", "silent")]
    return evaluate(FakeRecognizer("one two"), utterances).outcomes


def test_simuleval_has_the_times_from_which_words_stay(outcomes: tuple[UtteranceResult, ...], tmp_path: Path) -> None:
    write_simuleval(tmp_path / "out", outcomes)
    first, silent = map(json.loads, (tmp_path / "out" / "instances.log").read_text().splitlines())
    assert first["delays"] == pytest.approx([500, 800])  # the words end at 0.3 and 0.6 s and are shown 0.2 s later
    assert (np.array(first["elapsed"]) >= first["delays"]).all()
    assert (first["index"], first["prediction"], first["reference"]) == (0, "one two", "one two")
    assert (first["prediction_length"], first["source_length"]) == (2, 2000.0)
    assert (silent["index"], silent["prediction"], silent["delays"]) == (1, "", [])
    assert (tmp_path / "out" / "config.yaml").read_text() == "source_type: speech\ntarget_type: text\n"


def test_a_ctm_is_sorted_by_recording(outcomes: tuple[UtteranceResult, ...], tmp_path: Path) -> None:
    """sclite refuses other orders; the words of a recording stay in their order."""
    other = UtteranceResult(**{**vars(outcomes[0]), "id": "a 2"})
    write_ctm(tmp_path / "out.ctm", [*outcomes, other])
    lines = [line.split() for line in (tmp_path / "out.ctm").read_text().splitlines()]
    assert [(line[0], line[4]) for line in lines] == [("a_2", "one"), ("a_2", "two"), ("u_1", "one"), ("u_1", "two")]


def test_simulstream_has_the_words_that_each_change_removes_and_adds(
    outcomes: tuple[UtteranceResult, ...], tmp_path: Path
) -> None:
    changed = UtteranceResult(**{**vars(outcomes[0]), "displayed": tuple(displayed_texts(STREAM))})
    write_simulstream(tmp_path / "out", [changed, outcomes[1]])
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert lines[0] == {"id": 0, "metadata": {"wav_name": "u_1.wav"}}
    changes = [(each["total_audio_processed"], each["deleted_tokens"], each["generated_tokens"]) for each in lines[1:6]]
    assert changes == [
        (0.5, [], ["a"]), (1.0, ["a"], ["b", "c"]), (2.0, [], ["d"]), (2.5, [], ["e"]), (2.0, [], []),
    ]  # fmt: skip
    assert [each["computation_time"] for each in lines[1:6]] == pytest.approx([0.1] * 4 + [0.0])
    assert lines[6:] == [
        {"id": 1, "metadata": {"wav_name": "silent.wav"}},
        {"id": 1, "total_audio_processed": 2.0, "computation_time": 0.0, "generated_tokens": [], "deleted_tokens": []},
    ]
    assert (tmp_path / "out" / "reference.txt").read_text() == "one two\none two\n"
    audio = json.loads((tmp_path / "out" / "audio.yaml").read_text())
    assert audio[0] == {"wav": "u_1.wav", "offset": 0.0, "duration": 2.0}


def test_the_distribution_of_delays_is_drawn() -> None:
    figure = delay_distribution(Delays(user_perceived=(0.3, 0.1, 0.2), finalisation=(1.0,)))
    curves = {line.get_label(): line.get_xydata().tolist() for line in figure.axes[0].lines}  # type: ignore[union-attr]
    assert curves.keys() == {"user-perceived latency", "finalisation"}
    assert curves["user-perceived latency"] == pytest.approx(
        np.array([[0.1, 0.0], [0.1, 1 / 3], [0.2, 2 / 3], [0.3, 1.0]])
    )
    assert not delay_distribution(Delays()).axes[0].lines


def test_the_legend_of_the_delays_is_inside_the_figure() -> None:
    with matplotlib.rc_context(STYLE):
        figure = delay_distribution(Delays(**dict.fromkeys(CURVES, (0.3, 0.1))))
        figure.draw_without_rendering()
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 4
    box = legend.get_window_extent()
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert box.y1 <= figure.bbox.y1


def test_the_best_points_of_a_trade_off_are_labelled() -> None:
    points = [TradeOff("quick", 0.2, 0.1, True), TradeOff("neither", 0.4, 0.2, False)]
    axis = trade_off({"pause 1 s": points}, "delay").axes[0]
    assert [text.get_text() for text in axis.texts] == ["quick"]
    assert np.asarray(axis.collections[0].get_offsets()).tolist() == [[0.2, 10.0], [0.4, 20.0]]


def test_labels_of_neighbours_are_apart_and_inside_the_figure() -> None:
    """Two points with equal errors a small step apart, and a late one."""
    delays = (0.75, 0.85, 1.2)
    points = [TradeOff(f"M {delay:g} ms, 0.75, 384 + 384 ms", delay, 0.4, True) for delay in delays]
    with matplotlib.rc_context(STYLE):
        figure = trade_off({"pause 1 s": points}, "delay")
        figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == 3
    assert not any(one.overlaps(other) for n, one in enumerate(boxes) for other in boxes[:n])
    frame = figure.axes[0].get_window_extent()
    assert all(frame.x0 <= box.x0 < box.x1 <= frame.x1 for box in boxes)


def test_moments_have_both_clocks(outcomes: tuple[UtteranceResult, ...]) -> None:
    assert all(isinstance(moment, Moment) for moment in outcomes[0].settled)
    assert [moment.audio_seconds for moment in outcomes[0].settled] == pytest.approx([0.5, 0.8])

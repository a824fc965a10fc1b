from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from fakes import COST_RATIO, WAIT_SECONDS, FakeRecognizer, FakeSession
from headsync.cli.evaluate import rows
from headsync.corpora.manifest import Utterance
from headsync.errors import AudioError
from headsync.evaluation.evaluate import evaluate, summarise
from headsync.evaluation.formatting import FormattingCounts
from headsync.evaluation.latency import Delays, TimedWord, measure_delays
from headsync.evaluation.stability import measure_stability
from headsync.evaluation.timed_session import TimedSession
from headsync.events import Event, Stops
from headsync.frontend.audio import read_audio
from headsync.recognizer import Recognizer
from recordings import DIGIT_RECORDINGS


def utterance(folder: Path, name: str, text: str, seconds: float) -> Utterance:
    audio = folder / f"{name}.wav"
    soundfile.write(audio, np.zeros(round(seconds * 8000), dtype=np.float32), 8000)
    return Utterance(name, audio, text, seconds)


@pytest.fixture
def utterances(tmp_path: Path) -> list[Utterance]:
    return [
        utterance(tmp_path, "right", "one two three", 2.0),
        utterance(tmp_path, "wrong", "four five", 2.0),
        utterance(tmp_path, "silence", "", 4.0),
        utterance(tmp_path, "noise", "", 4.0),
    ]


def test_the_report_sums_up_what_was_heard(utterances: list[Utterance]) -> None:
    recognizer = FakeRecognizer("one two three", "four nine six", "", "eight")
    report = evaluate(recognizer, utterances)
    assert report.utterances == 4
    assert report.audio_seconds == pytest.approx(12.0)
    assert (report.counts.substitutions, report.counts.deletions, report.counts.insertions) == (1, 0, 2)
    assert report.error_rate == pytest.approx(3 / 5)
    assert report.interval is not None
    assert report.interval.low <= 3 / 5 <= report.interval.high
    assert report.invented_per_minute == pytest.approx(2 / 12 * 60)
    assert report.cost_ratio == COST_RATIO
    delay = report.delays["user_perceived"]
    assert delay is not None
    assert (delay.number, delay.p50, delay.p99) == pytest.approx((7, WAIT_SECONDS, WAIT_SECONDS))
    assert 0 < report.real_time_factor < 1


def test_shares_of_what_ended_the_steps_are_pooled(utterances: list[Utterance]) -> None:
    report = evaluate(FakeRecognizer("one two three", "four nine six", "", "eight"), utterances)
    assert report.stops is None  # which the recogniser of this test does not count
    counts = [Stops(6, 1, 1), Stops(0, 5, 0), Stops(), Stops(2, 0, 1)]
    outcomes = [replace(each, stops=stops) for each, stops in zip(report.outcomes, counts, strict=True)]
    shares = {"threshold": 0.5, "limit": 0.375, "end": 0.125}
    assert summarise(outcomes).to_dict()["stops"] == shares
    assert dict(rows(summarise(outcomes)))["steps ended by threshold / M / end"] == "50.0% / 37.5% / 12.5%"


def test_the_report_is_json(utterances: list[Utterance]) -> None:
    document = evaluate(FakeRecognizer("one two three", "four nine six", "", "eight"), utterances).to_dict()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["counts"] == {"substitutions": 1, "deletions": 0, "insertions": 2, "words": 5, "errors": 3}
    assert document["outcomes"][1] == {
        "id": "wrong",
        "speaker": "",
        "reference": "four five",
        "hypothesis": "four nine six",
        "substitutions": 1,
        "deletions": 0,
        "insertions": 1,
    }


def test_without_reference_and_hypothesis_there_are_no_figures(utterances: list[Utterance]) -> None:
    report = evaluate(FakeRecognizer(), utterances[2:])
    assert report.error_rate is None
    assert report.interval is None
    assert report.cost_ratio is None
    assert set(report.delays.values()) == {None}
    assert report.invented_per_minute == 0.0
    assert json.dumps(report.to_dict(), allow_nan=False)


def test_no_utterances_at_all_are_no_error() -> None:
    assert evaluate(FakeRecognizer(), []).to_dict()["utterances"] == 0


def test_progress_counts_up(utterances: list[Utterance]) -> None:
    seen: list[tuple[int, int]] = []
    evaluate(FakeRecognizer(), utterances, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_audio_comes_in_pieces_of_a_tenth_of_a_second(utterances: list[Utterance]) -> None:
    sizes: list[float] = []

    class WatchedSession(FakeSession):
        def push(self, samples: Any, sample_rate: int) -> list[Event]:
            sizes.append(len(samples) / sample_rate)
            return super().push(samples, sample_rate)

    class Watched(FakeRecognizer):
        def session(self) -> FakeSession:
            return WatchedSession("")

    evaluate(Watched(), utterances[:1])
    assert sizes == pytest.approx([0.1] * 20)


def test_a_missing_recording_is_named(tmp_path: Path) -> None:
    with pytest.raises(AudioError, match=r"gone\.wav"):
        evaluate(FakeRecognizer(), [Utterance("gone", tmp_path / "gone.wav", "one", 1.0)])


def test_real_time_factor_is_computing_over_audio() -> None:
    ticks = iter(range(100))
    session = TimedSession(FakeRecognizer("one"), clock=lambda: float(next(ticks)))
    for _ in range(4):
        session.push(np.zeros(4000, dtype=np.float32), 8000)
    session.finish()
    assert session.audio_seconds == pytest.approx(2.0)
    assert session.real_time_factor == pytest.approx(5 / 2)  # five calls of one tick each
    assert session.text == "one"
    assert TimedSession(FakeRecognizer()).real_time_factor == 0.0


def test_errors_by_speaker_and_a_clustered_interval(tmp_path: Path) -> None:
    texts = [("a", "one two"), ("a", "one two"), ("b", "one two"), ("", "one")]
    utterances = [
        replace(utterance(tmp_path, f"u{n}", text, 2.0), speaker=speaker) for n, (speaker, text) in enumerate(texts)
    ]
    report = evaluate(FakeRecognizer("one two", "one nine", "eight nine", "one"), utterances)
    assert {name: (counts.errors, counts.words) for name, counts in report.speakers.items()} == {
        "a": (1, 4), "b": (2, 2),
    }  # fmt: skip
    assert report.to_dict()["speakers"]["a"] == {"errors": 1, "words": 4, "error_rate": 0.25}
    # Two speakers: a draw is (a, a), (a, b) or (b, b), with rates 1/4, 3/6 and 1.
    assert report.interval_by_speaker == pytest.approx((0.25, 1.0))
    printed = dict(rows(report))
    assert printed["clustered by speaker"] == "2 speakers  (95 %: 25.00% to 100.00%)"
    assert printed["error rate by speaker"] == "25.00% (a), median 62.50%, 100.00% (b)"
    one = evaluate(FakeRecognizer("one"), utterances[:1])
    assert one.interval_by_speaker is None
    assert "error rate by speaker" not in dict(rows(one))


def test_the_table_counts_words_with_reference_times(utterances: list[Utterance]) -> None:
    times = {"right": [TimedWord(word, n * 0.3, n * 0.3 + 0.3) for n, word in enumerate(("one", "two", "three"))]}
    report = evaluate(FakeRecognizer("one two nine", "four five"), utterances[:2], word_times=times)
    assert dict(rows(report))["word ends of delays"] == "reference, 2 words"
    assert dict(rows(evaluate(FakeRecognizer("one"), utterances[:1])))["word ends of delays"] == "recogniser"


def test_normalised_texts_are_counted_and_formatting_errors_apart(tmp_path: Path) -> None:
    pytest.importorskip("whisper_normalizer")
    utterances = [utterance(tmp_path, "u", "Yes, it's twenty.", 4.0)]
    plain = evaluate(FakeRecognizer("yes it's twenty"), utterances)
    normal = evaluate(FakeRecognizer("yes it's twenty"), utterances, normalise="english")
    assert (plain.counts.errors, normal.counts.errors, normal.counts.words) == (2, 0, 4)  # yes it is 20
    assert plain.formatting == normal.formatting == FormattingCounts(3, 1, 2)
    assert all(word.right for word in normal.outcomes[0].words)


def test_computing_time_delays_the_display_of_words() -> None:
    """Audio of 0.1 s in each push; computing takes 0.25 s in each: the session falls behind."""
    ticks = iter(np.arange(0, 100, 0.25))
    session = TimedSession(FakeRecognizer("one"), clock=lambda: float(next(ticks)))
    for _ in range(20):
        session.push(np.zeros(800, np.float32), 8_000)
    session.finish()
    assert session.wall_seconds[-1] == pytest.approx(0.1 + 21 * 0.25)
    assert len(session.wall_seconds) == len(session.events)


def test_r_is_averaged_over_recordings(utterances: list[Utterance]) -> None:
    """A recording that was cut into several utterances counts once; one without text has no r."""
    report = evaluate(FakeRecognizer("one two three", "four nine six", "", "eight"), utterances)
    ratios = [(0.2, 0.4), (0.7,), (), (0.2,)]
    outcomes = [replace(one, cost_ratios=each) for one, each in zip(report.outcomes, ratios, strict=True)]
    assert summarise(outcomes).cost_ratio == pytest.approx((0.3 + 0.7 + 0.2) / 3)


def test_the_cutting_of_the_audio_changes_no_figure_on_the_audio_clock() -> None:
    """Also not LAAL, which compares the times of events with the length of the audio."""
    recognizer, recording = Recognizer.load("digits-en"), sorted(DIGIT_RECORDINGS.glob("*.flac"))[0]
    samples, rate = read_audio(recording)
    figures = []
    for piece in (len(samples), 1600, 777, 331):
        session = TimedSession(recognizer)
        for first in range(0, len(samples), piece):
            session.push(samples[first : first + piece], rate)
        session.finish()
        events = session.timed_events
        delays = measure_delays(events, None, 5)
        kinds = [getattr(delays, name) for name in Delays.__dataclass_fields__ if "computing" not in name]
        figures.append((kinds, measure_stability(events), session.text, session.audio_seconds))
    assert all(each == figures[0] for each in figures)
    assert figures[0][0][0]

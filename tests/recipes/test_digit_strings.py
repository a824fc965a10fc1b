"""The content of the digit recordings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from digit_corpus import DIGITS
from digit_strings import LONGEST_SECONDS, StringMaker, _starts
from headsync.corpora.manifest import read_manifest
from headsync.frontend.audio import SAMPLE_RATE
from miniature import read_all


def test_phone_and_silence_have_the_texts_of_test(prepared: Path) -> None:
    parts = read_all(prepared)
    texts = [one.text for one in parts["test"]]
    assert [one.text for one in parts["test-phone"]] == texts
    assert [one.text for one in parts["test-silence"]] == texts
    for plain, silence in zip(parts["test"], parts["test-silence"], strict=True):
        assert silence.seconds == pytest.approx(plain.seconds + 60.0, abs=1e-3)
        samples, _ = soundfile.read(silence.audio)
        assert -66 < 10 * np.log10(np.mean(np.square(samples[: 29 * SAMPLE_RATE]))) < -49


def test_babble_is_added_before_during_and_after_the_same_strings(prepared: Path) -> None:
    parts = read_all(prepared)
    for part in ("dev", "test"):
        for plain, among in zip(parts[part], parts[f"{part}-babble"], strict=True):
            assert among.text == plain.text
            assert among.seconds == pytest.approx(plain.seconds + 60.0, abs=1e-3)
            samples, _ = soundfile.read(among.audio)
            string = 10 * np.log10(np.mean(np.square(soundfile.read(plain.audio)[0])))
            for babble in (samples[: 29 * SAMPLE_RATE], samples[-29 * SAMPLE_RATE :]):
                assert -32 < 10 * np.log10(np.mean(np.square(babble))) - string < 0


def test_the_digits_are_in_the_order_of_the_text(prepared: Path) -> None:
    """Digit d is a tone of 200 + 100 d hertz: the strongest tones over time must read as the text."""
    for one in read_manifest(prepared / "test.jsonl"):
        samples, _ = soundfile.read(one.audio)
        frames = np.lib.stride_tricks.sliding_window_view(samples, 1_024)[::256] * np.hanning(1_024)
        spectra = np.abs(np.fft.rfft(frames, 4_096))
        loud = spectra.max(axis=1) > 0.3 * spectra.max()
        hertz = spectra.argmax(axis=1) * SAMPLE_RATE / 4_096
        heard = [int(value) for value in np.round((hertz[loud] - 200) / 100)]
        words = [DIGITS[digit] for index, digit in enumerate(heard) if index == 0 or digit != heard[index - 1]]
        spoken = one.text.split()
        assert words == [word for index, word in enumerate(spoken) if index == 0 or word != spoken[index - 1]]


def test_no_recording_is_longer_than_the_longest(maker: StringMaker) -> None:
    for index in range(30):
        assert len(maker.record("test-hard", index).samples) <= LONGEST_SECONDS * SAMPLE_RATE + 1


def test_digits_that_do_not_fit_are_left_out_of_sound_and_text(
    maker: StringMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {index: maker.record("test", index) for index in range(20)}
    monkeypatch.setattr("digit_strings.LONGEST_SECONDS", 2.0)
    shorter = 0
    for index, made in whole.items():
        cut = maker.record("test", index)
        assert made.text.startswith(cut.text)
        assert cut.text
        shorter += cut.text != made.text
    assert shorter > 5


def test_gaps_set_digits_apart_and_overlaps_join_them() -> None:
    pieces = [np.zeros(length, np.float32) for length in (3_000, 3_000, 600, 3_000)]
    assert _starts(pieces, [500, -800, -800, 0], lead=100) == [100, 3_600, 6_400, 6_800]  # a third of 600 at most


@pytest.mark.parametrize(("part", "allowed"), [("test-hard", {"e1", "e4"}), ("dev-hard", {"t1"})])
def test_test_speech_is_used_in_test_alone(maker: StringMaker, part: str, allowed: set[str]) -> None:
    heard: list[Path] = []
    maker = StringMaker(maker.sources)
    read = maker.other
    maker.other = lambda path: heard.append(path) or read(path)  # type: ignore
    for index in range(30):
        maker.record(part, index)
    assert heard
    assert {path.stem for path in heard} <= allowed

"""The studio: what is heard in a recording of joined digits, and who never is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from headsync.audio import SAMPLE_RATE
from headsync.data.manifest import read_manifest
from headsync.data.studio import DIGITS, LONGEST_SECONDS, Studio, _starts
from miniature import read_all


def test_phone_and_silence_say_the_same_as_test(made: Path) -> None:
    parts = read_all(made)
    texts = [one.text for one in parts["test"]]
    assert [one.text for one in parts["test-phone"]] == texts
    assert [one.text for one in parts["test-silence"]] == texts
    for plain, silence in zip(parts["test"], parts["test-silence"], strict=True):
        assert silence.seconds == pytest.approx(plain.seconds + 60.0, abs=1e-3)
        samples, _ = soundfile.read(silence.audio)
        assert -66 < 10 * np.log10(np.mean(np.square(samples[: 29 * SAMPLE_RATE]))) < -49


def test_babble_stands_before_beneath_and_after_the_same_strings(made: Path) -> None:
    parts = read_all(made)
    for part in ("dev", "test"):
        for plain, among in zip(parts[part], parts[f"{part}-babble"], strict=True):
            assert among.text == plain.text
            assert among.seconds == pytest.approx(plain.seconds + 60.0, abs=1e-3)
            samples, _ = soundfile.read(among.audio)
            string = 10 * np.log10(np.mean(np.square(soundfile.read(plain.audio)[0])))
            for babble in (samples[: 29 * SAMPLE_RATE], samples[-29 * SAMPLE_RATE :]):
                assert -32 < 10 * np.log10(np.mean(np.square(babble))) - string < 0


def test_half_of_the_babble_in_training_has_a_string_in_it(studio: Studio) -> None:
    made = [studio.record("train-babble", index) for index in range(40)]
    assert 8 <= sum(bool(one.text) for one in made) <= 28
    for one in made:
        assert bool(one.text) == bool(one.speaker)
        assert 2.0 <= len(one.samples) / SAMPLE_RATE <= LONGEST_SECONDS


def test_strings_from_away_are_whole_and_a_place_has_the_sound_and_background_of_its_speech(studio: Studio) -> None:
    made = [studio.record("train-away", index) for index in range(20)]
    for one in made:
        assert one.text
        assert one.speaker in studio.plan.speakers["train"]
        assert 0.1 < len(one.samples) / SAMPLE_RATE <= LONGEST_SECONDS + 0.1
    place = studio.place(studio.plan.others["train"][0].audio)
    hertz = np.linspace(0, SAMPLE_RATE / 2, len(place.speech))
    assert abs(hertz[place.speech.argmax()] - 430) < 70  # the tone of the only sentence that serves
    assert 0 < place.noise.mean() < 0.01 * place.speech.mean()


def test_the_digits_are_heard_in_the_order_of_the_text(made: Path) -> None:
    """Digit d is a tone of 200 + 100 d hertz: the strongest tones over time must read as the text."""
    for one in read_manifest(made / "test.jsonl"):
        samples, _ = soundfile.read(one.audio)
        frames = np.lib.stride_tricks.sliding_window_view(samples, 1_024)[::256] * np.hanning(1_024)
        spectra = np.abs(np.fft.rfft(frames, 4_096))
        loud = spectra.max(axis=1) > 0.3 * spectra.max()
        hertz = spectra.argmax(axis=1) * SAMPLE_RATE / 4_096
        heard = [int(value) for value in np.round((hertz[loud] - 200) / 100)]
        words = [DIGITS[digit] for index, digit in enumerate(heard) if index == 0 or digit != heard[index - 1]]
        spoken = one.text.split()
        assert words == [word for index, word in enumerate(spoken) if index == 0 or word != spoken[index - 1]]


def test_no_recording_is_longer_than_the_longest(studio: Studio) -> None:
    for index in range(30):
        assert len(studio.record("train", index).samples) <= LONGEST_SECONDS * SAMPLE_RATE + 1


def test_digits_that_do_not_fit_are_left_out_of_sound_and_text(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {index: studio.record("test", index) for index in range(20)}
    monkeypatch.setattr("headsync.data.studio.LONGEST_SECONDS", 2.0)
    shorter = 0
    for index, made in whole.items():
        cut = studio.record("test", index)
        assert made.text.startswith(cut.text)
        assert cut.text
        shorter += cut.text != made.text
    assert shorter > 5


def test_gaps_set_digits_apart_and_overlaps_join_them() -> None:
    pieces = [np.zeros(length, np.float32) for length in (3_000, 3_000, 600, 3_000)]
    assert _starts(pieces, [500, -800, -800, 0], lead=100) == [100, 3_600, 6_400, 6_800]  # a third of 600 at most


def test_train_holds_strings_other_speech_and_nothing_in_the_wanted_shares(studio: Studio) -> None:
    made = [studio.record("train", index) for index in range(200)]
    strings = [one for one in made if one.text]
    other_only = [one for one in made if not one.text and one.speaker.startswith("speech-")]
    nothing = [one for one in made if not one.speaker]
    nonsense = [one for one in made if not one.text and one.speaker and not one.speaker.startswith("speech-")]
    assert 0.65 < len(strings) / len(made) < 0.79
    assert 0.09 < len(other_only) / len(made) < 0.21
    assert 0.04 < len(nonsense) / len(made) < 0.13
    assert 0.02 < len(nothing) / len(made) < 0.09
    among = [one for one in strings if "speech-" in one.speaker]
    assert 0.12 < len(among) / len(strings) < 0.28
    lengths = [len(one.text.split()) for one in strings]
    assert set(lengths) == set(range(1, 11))
    assert 4.4 < np.mean(lengths) < 5.6
    assert all(np.isfinite(one.samples).all() for one in made)


def test_nonsense_is_a_digit_backwards_or_the_halves_of_two(studio: Studio) -> None:
    kinds = set()
    for seed in range(20):
        digit = studio._piece("02", 4, None, np.random.default_rng(seed))
        nonsense = studio._no_digit("02", 4, None, np.random.default_rng(seed))
        backwards = np.array_equal(nonsense, digit[::-1])
        if not backwards:
            third = len(nonsense) // 3
            first, last = (round(pitch(part), -2) for part in (nonsense[:third], nonsense[-third:]))
            assert first == 600
            assert last in {200, 300, 400, 500, 800, 900, 1000, 1100}  # neither four nor five, which begins alike
        kinds.add(backwards)
    assert kinds == {True, False}


def pitch(samples: npt.NDArray[np.float32]) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples)), 16_000))
    return float(spectrum.argmax())


def test_natural_strings_and_their_speakers_never_enter_training(studio: Studio) -> None:
    allowed = {one.id for one in studio.plan.others["train"]}
    assert allowed == {"t7", "t8"}
    heard: list[Path] = []
    studio = Studio(studio.plan)
    read = studio.other
    studio.other = lambda path: heard.append(path) or read(path)  # type: ignore
    for index in range(60):
        studio.record("train", index)
    assert {path.stem for path in heard} == allowed


@pytest.mark.parametrize(("part", "allowed"), [("test-hard", {"e1", "e4"}), ("dev-hard", {"t1"})])
def test_test_speech_is_heard_in_test_alone(studio: Studio, part: str, allowed: set[str]) -> None:
    heard: list[Path] = []
    studio = Studio(studio.plan)
    read = studio.other
    studio.other = lambda path: heard.append(path) or read(path)  # type: ignore
    for index in range(30):
        studio.record(part, index)
    assert heard
    assert {path.stem for path in heard} <= allowed

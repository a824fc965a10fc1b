"""The digit sets: reproducible recordings, disjoint speakers, errors in one sentence."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile

import prepare_digits
from digit_corpus import DIGITS, as_int16, find_takes, natural_strings, read_kaldi, split_speakers, without_digits
from digit_strings import Sources, StringMaker
from headsync.corpora.manifest import Counts, read_manifest
from headsync.errors import DataError
from headsync.frontend.audio import SAMPLE_RATE
from miniature import FEW, SMALL, read_all, say
from prepare_digits import prepare


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_every_part_holds_its_strings_as_16_bit_flac_at_16_khz(prepared: Path) -> None:
    for part, utterances in read_all(prepared).items():
        assert len(utterances) == getattr(SMALL, part.split("-")[0]), part
        for one in utterances:
            info = soundfile.info(one.audio)
            assert (info.format, info.subtype, info.samplerate, info.channels) == ("FLAC", "PCM_16", SAMPLE_RATE, 1)
            assert one.seconds == pytest.approx(info.frames / SAMPLE_RATE, abs=1e-3)
            assert one.audio.is_relative_to(prepared / part / "000")


def test_every_text_is_one_to_ten_digit_words(prepared: Path) -> None:
    for utterances in read_all(prepared).values():
        for one in utterances:
            assert set(one.text.split()) <= set(DIGITS)
            assert 1 <= len(one.text.split()) <= 10


# --- reproducible ---


def test_two_workers_make_the_same_bytes_as_one(source: Path, speech: Path, prepared: Path, tmp_path: Path) -> None:
    prepare(source, tmp_path, strings=SMALL, speech=speech, workers=2)
    assert files(tmp_path) == files(prepared)


def test_the_seed_decides_the_strings(source: Path, tmp_path: Path) -> None:
    prepare(source, tmp_path / "one", strings=FEW, seed=1)
    prepare(source, tmp_path / "two", strings=FEW, seed=2)
    prepare(source / "data", tmp_path / "again", strings=FEW, seed=1)
    assert files(tmp_path / "one") == files(tmp_path / "again")
    name = "test/000/test-000000.flac"
    assert files(tmp_path / "one")[name] != files(tmp_path / "two")[name]


def test_a_second_run_makes_only_missing_recordings(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(source, tmp_path, strings=FEW)
    first = files(tmp_path)
    (tmp_path / "train-clean/000/train-clean-000002.flac").unlink()
    (tmp_path / "train-clean/000/train-clean-000003.flac").write_bytes(b"damaged")
    recorded = []
    record = StringMaker.record
    monkeypatch.setattr(StringMaker, "record", lambda *job: recorded.append(job[1:]) or record(*job))
    prepare(source, tmp_path, strings=FEW)
    assert recorded == [("train-clean", 2), ("train-clean", 3)]
    assert files(tmp_path) == first


def test_more_strings_keep_the_existing_recordings(source: Path, tmp_path: Path) -> None:
    prepare(source, tmp_path, strings=FEW)
    first = files(tmp_path / "train-clean")
    prepare(source, tmp_path, strings=Counts(train=6, dev=1, test=1))
    second = files(tmp_path / "train-clean")
    assert {name: second[name] for name in first} == first
    assert len(read_manifest(tmp_path / "train-clean.jsonl")) == 6


def test_a_folder_made_with_another_seed_is_refused(source: Path, tmp_path: Path) -> None:
    prepare(source, tmp_path, strings=FEW, seed=1)
    with pytest.raises(DataError, match="another seed or source; choose an empty folder"):
        prepare(source, tmp_path, strings=FEW, seed=2)


# --- disjoint speakers ---


def test_speakers_of_the_parts_are_disjoint(prepared: Path) -> None:
    voices: dict[str, set[str]] = {"train": set(), "dev": set(), "test": set()}
    for part, utterances in read_all(prepared).items():
        for one in utterances:
            voices[part.split("-")[0]] |= {name for name in one.speaker.split("+") if not name.startswith("speech-")}
    assert all(voices.values())
    assert not voices["train"] & voices["dev"] | voices["train"] & voices["test"] | voices["dev"] & voices["test"]


@pytest.mark.parametrize(
    ("count", "women", "sizes"), [(54, 12, (44, 4, 6)), (60, 12, (49, 4, 7)), (8, 3, (6, 1, 1)), (3, 0, (1, 1, 1))]
)
def test_speakers_are_split_with_both_sexes_in_each_part(count: int, women: int, sizes: tuple[int, int, int]) -> None:
    sexes = {f"{index:02d}": "female" if index < women else "male" for index in range(count)}
    parts = split_speakers(sexes)
    assert tuple(len(parts[part]) for part in ("train", "dev", "test")) == sizes
    assert sorted(sum(parts.values(), ())) == sorted(sexes)
    assert split_speakers(dict(reversed(sexes.items()))) == parts
    if count >= 54:
        assert all({sexes[name] for name in names} == {"female", "male"} for names in parts.values())


def test_speakers_of_unknown_sex_are_split_too(source: Path, tmp_path: Path) -> None:
    for folder in (source / "data").iterdir():
        if folder.is_dir():
            (tmp_path / folder.name).symlink_to(folder)
    takes, sexes = find_takes(tmp_path)
    assert set(sexes.values()) == {"unknown"}
    assert len(split_speakers(sexes)["train"]) == 6
    assert len(takes) == 8


# --- natural speech ---


def test_natural_strings_keep_their_recordings(prepared: Path, speech: Path) -> None:
    natural = read_manifest(prepared / "natural.jsonl")
    assert [(one.id, one.text, one.speaker) for one in natural] == [
        ("t3", "zero three five", "s3"),
        ("e2", "nine", "s9"),
    ]
    assert natural[0].audio == speech / "WAVE" / "t3.wav"


def test_sentences_are_without_digits_and_their_text_is_empty(prepared: Path) -> None:
    assert [(one.id, one.text) for one in read_manifest(prepared / "sentences.jsonl")] == [("e1", ""), ("e4", "")]
    assert [(one.id, one.text) for one in read_manifest(prepared / "dev-sentences.jsonl")] == [("t1", "")]
    assert read_manifest(prepared / "dev-among.jsonl") == []  # the development speaker has no digits


def test_without_other_speech_its_sets_are_not_written(source: Path, tmp_path: Path) -> None:
    prepare(source, tmp_path, strings=FEW)
    written = {path.stem for path in tmp_path.glob("*.jsonl")}
    tests = {"test", "test-hard", "test-phone", "test-silence"}
    assert written == tests | {"dev", "dev-hard", "train-clean", "train-hard"}


# --- errors ---


def lose_a_digit(root: Path) -> None:
    for number in range(3):
        for digit in range(9 if number == 1 else 10):
            say(root / f"{number}" / f"{digit}_{number}_0.wav", 300, 0.2, 16_000, 0)


def two_speakers(root: Path) -> None:
    for number in range(2):
        for digit in range(10):
            say(root / f"{number}" / f"{digit}_{number}_0.wav", 300, 0.2, 16_000, 0)


def damage_the_meta_file(root: Path) -> None:
    two_speakers(root)
    (root / "audioMNIST_meta.txt").write_text("{")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda root: None, "no AudioMNIST recordings"),
        (lambda root: root.rmdir(), "no AudioMNIST recordings"),
        (lambda root: (root / "data").mkdir(), "no AudioMNIST recordings"),
        (lose_a_digit, "no recording of the digit 9"),
        (two_speakers, "at least 3"),
        (damage_the_meta_file, "invalid list of speakers"),
    ],
)
def test_a_wrong_source_is_reported_in_one_sentence(
    tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    root = tmp_path / "source"
    root.mkdir()
    damage(root)
    with pytest.raises(DataError, match=reason) as caught:
        prepare(root, tmp_path / "out", strings=FEW)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_command_reports_an_error_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["prepare_digits.py", str(tmp_path), str(tmp_path / "out")])
    with pytest.raises(DataError, match="no AudioMNIST recordings"):
        prepare_digits.main()


@pytest.mark.parametrize("lost", ["test/text", "train/wav.scp", "train/utt2spk"])
def test_a_missing_list_of_other_speech_is_reported(source: Path, speech: Path, tmp_path: Path, lost: str) -> None:
    for path in speech.rglob("*"):
        if path.is_file() and path != speech / lost:
            target = tmp_path / "speech" / path.relative_to(speech)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path)
    with pytest.raises(DataError, match="no such list"):
        prepare(source, tmp_path / "out", strings=FEW, speech=tmp_path / "speech")


def test_inconsistent_lists_are_reported(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train/text").write_text("a HELLO\n")
    (tmp_path / "train/wav.scp").write_text("a a.wav\n")
    (tmp_path / "train/utt2spk").write_text("b s1\n")
    with pytest.raises(DataError, match=r"a is in text but not in wav\.scp and utt2spk"):
        read_kaldi(tmp_path, "train")
    (tmp_path / "train/utt2spk").write_text("a s1\n")
    with pytest.raises(DataError, match=r"a\.wav does not exist"):
        read_kaldi(tmp_path, "train")


# --- real speech ---


@pytest.mark.parametrize(
    ("part", "index", "digest"),
    [
        ("test-phone", 1, "2566ebc836b2ec35"),
        ("test-silence", 0, "ea38c3e1e7c02951"),
        ("test-hard", 3, "cf289b24da96bcb6"),
        ("dev-hard", 1, "bc6f4c2784873503"),
        ("test-babble", 0, "e26458f524779d34"),
    ],
)
def test_the_recordings_are_those_of_the_published_figures(
    shared_data: Path, part: str, index: int, digest: str
) -> None:
    takes, sexes = find_takes(shared_data / "AudioMNIST")
    spoken = {name: read_kaldi(shared_data / "speechocean762", name) for name in ("train", "test")}
    others = {name: without_digits(spoken, name) for name in ("train", "dev", "test")}
    maker = StringMaker(Sources(1, takes, split_speakers(sexes), others))
    samples = as_int16(maker.record(part, index).samples)
    assert hashlib.sha256(samples.tobytes()).hexdigest()[:16] == digest


def test_the_real_corpora_have_the_published_sizes(shared_data: Path) -> None:
    takes, sexes = find_takes(shared_data / "AudioMNIST")
    parts = split_speakers(sexes)
    assert [len(parts[part]) for part in ("train", "dev", "test")] == [44, 4, 6]
    spoken = {part: read_kaldi(shared_data / "speechocean762", part) for part in ("train", "test")}
    natural = natural_strings(spoken)
    assert len(natural) == 77
    others = {part: without_digits(spoken, part) for part in ("train", "dev", "test")}
    assert [len(others[part]) for part in others] == [1127, 123, 491]
    speakers = [{one.speaker for one in others[part]} for part in others] + [{one.speaker for one in natural}]
    assert len(set.union(*speakers)) == sum(map(len, speakers))
    assert sum(len(recordings) for by_digit in takes.values() for recordings in by_digit) == 10_800

"""AudioMNIST: lists that are reproducible, speakers that are apart, natural speech that never enters training."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile

from headsync.audio import SAMPLE_RATE
from headsync.data import audiomnist
from headsync.data.audiomnist import AWAY_SHARE, BABBLE_SHARE, CLEAN_SHARE, Counts, prepare, split_speakers
from headsync.data.kaldi import read_kaldi
from headsync.data.manifest import Utterance, read_manifest, write_manifest
from headsync.data.studio import DIGITS, Studio
from headsync.errors import DataError
from miniature import FEW, SMALL, read_all, say


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# --- what is made ---


def test_every_part_has_its_strings_as_16_bit_flac_at_16_khz(made: Path) -> None:
    for part, utterances in read_all(made).items():
        shares = {"train-clean": CLEAN_SHARE, "train-speech": 2, "train-among": 8, "train-babble": BABBLE_SHARE}
        shares |= {"train-away": AWAY_SHARE}
        wanted = getattr(SMALL, part.split("-")[0]) / shares.get(part, 1) if part != "train-foreign" else 0
        assert len(utterances) in (math.floor(wanted), round(wanted)), part
        for one in utterances:
            info = soundfile.info(one.audio)
            assert (info.format, info.subtype, info.samplerate, info.channels) == ("FLAC", "PCM_16", SAMPLE_RATE, 1)
            assert one.seconds == pytest.approx(info.frames / SAMPLE_RATE, abs=1e-3)
            assert one.audio.is_relative_to(made / part / "000")


def test_texts_are_digit_words_and_tests_always_have_some(made: Path) -> None:
    for part, utterances in read_all(made).items():
        for one in utterances if part != "train-speech" else ():
            assert set(one.text.split()) <= set(DIGITS)
            assert len(one.text.split()) <= 10
            assert one.text or part in ("train", "train-babble")


def test_spelt_recordings_tell_every_word_that_is_said(made: Path) -> None:
    spelt = read_manifest(made / "train-spelt.jsonl")
    sentences = {"go to the shop", "he won it", "seventeen people", "the house is big"}
    for one in spelt:
        if one.id.startswith("train-speech"):
            rest = [word for word in one.text.split() if word not in DIGITS]
            assert " ".join(rest) in sentences
            assert ("+" in one.speaker) == (len(rest) < len(one.text.split()))
        else:
            assert bool(one.text) == bool(one.speaker)  # no nonsense, and nobody unheard
            assert "speech-" not in one.speaker
    assert {one.id for one in read_all(made)["train-speech"]} <= {one.id for one in spelt}


def test_what_an_encoder_learns_to_spell_has_every_sentence_twice_and_no_digit_among_words(made: Path) -> None:
    letters = read_manifest(made / "train-letters.jsonl")
    assert len({one.id for one in letters}) == len(letters)
    sentences = [one for one in letters if not one.id.startswith("train-")]
    assert sorted(one.text for one in sentences) == sorted(
        2 * ["go to the shop", "he won it", "seventeen people", "the house is big"]
    )
    assert {one.speaker for one in sentences} == {"s2", "s4"}
    assert {one.id for one in letters} - {one.id for one in sentences} <= {
        one.id for one in read_manifest(made / "train-spelt.jsonl")
    }


def test_what_a_teacher_explains_is_told_in_full(made: Path) -> None:
    taught = read_manifest(made / "train-taught.jsonl")
    sentences = [one for one in taught if not one.id.startswith("train-")]
    assert sorted(one.text for one in sentences) == [
        "go to the shop",
        "he won it",
        "seventeen people",
        "the house is big",
    ]
    made_up = {one.id: one for one in read_all(made)["train-speech"]}
    strings = [one for one in taught if one not in sentences and one.id not in made_up]
    assert set(made_up) < {one.id for one in taught}
    assert {one.id.rpartition("-")[0] for one in strings} == {"train", "train-away"}
    assert all(set(one.text.split()) <= set(DIGITS) and "speech-" not in one.speaker for one in strings)


def test_lists_of_strings_with_less_and_with_more_beside_them(made: Path) -> None:
    names = ("strings", "away", "said", "babbled", "pupil")
    lists = {name: read_manifest(made / f"train-{name}.jsonl") for name in names}
    assert lists["said"] == [one for one in lists["strings"] + lists["away"] if one.text]
    assert lists["pupil"][: len(lists["babbled"])] == lists["babbled"]
    assert 0 < len(lists["said"]) < len(lists["babbled"])


def test_what_is_read_by_a_teacher_has_sentences_of_which_only_digits_are_told(made: Path) -> None:
    names = ("pupil", "read", "unread", "reader", "taught", "speech", "said", "foreign", "babble")
    lists = {name: read_manifest(made / f"train-{name}.jsonl") for name in names}
    sentences = lists["unread"]
    assert lists["read"] == lists["pupil"] + sentences
    assert all(set(one.text.split()) <= set(DIGITS) for one in sentences)
    assert [one.audio for one in sentences] == [one.audio for one in lists["taught"]][: len(sentences)]
    assert {one.id for one in lists["speech"]} < {one.id for one in sentences}
    known = lists["said"] + lists["foreign"] + lists["babble"]
    assert lists["reader"][: len(known)] == known
    few = lists["reader"][len(known) :]
    assert few
    assert all(not one.text and one.speaker in {"s2", "s4"} for one in few)


def test_told_sentences_are_of_nobody_who_is_measured(made: Path) -> None:
    train, dev = (read_manifest(made / f"{part}-told.jsonl") for part in ("train", "dev"))
    assert [one.text for one in dev] == ["we call it bear"]
    assert {one.speaker for one in train} == {"s2", "s4"}  # not s3, who says a natural string
    assert {"no one knows", "seventeen people"} < {one.text for one in train}


def test_speech_from_elsewhere_is_trained_on_with_strings_beside_some_of_it(
    source: Path, speech: Path, tmp_path: Path
) -> None:
    texts = {"near": ["go to the shop", "no one knows"], "far": ["bu zhi dao", "hen hao", "xie xie", "zai jian"]}
    manifests = [tmp_path / f"{name}.jsonl" for name in texts]
    for path, said in zip(manifests, texts.values(), strict=True):
        sounds = [speech / "WAVE" / f"t{number + 1}.wav" for number in range(len(said))]
        write_manifest(path, [Utterance(t, s, t, 1.0, path.stem) for t, s in zip(said, sounds, strict=True)])
    heard = audiomnist.from_elsewhere(manifests)
    assert [one.speaker for one in heard] == ["near"] * 4 + ["far"] * 4  # without the one with a digit; same weights
    out = tmp_path / "made"
    prepare(source, out, strings=Counts(train=128, dev=1, test=1), speech=speech, foreign=manifests)
    foreign = read_manifest(out / "train-foreign.jsonl")
    assert len(foreign) == 20
    strings = [one for one in foreign if one.text]
    assert 1 <= len(strings) <= 10
    assert all({"speech-near", "speech-far"} & set(one.speaker.split("+")) for one in foreign)
    assert all(set(one.text.split()) <= set(DIGITS) for one in strings)
    mixed = {one.id for one in read_manifest(out / "train-mixed.jsonl")}
    assert {one.id for one in foreign} < mixed
    with pytest.raises(DataError, match="another seed or source"):  # never two corpora in one folder
        prepare(source, out, strings=Counts(train=128, dev=1, test=1), speech=speech, foreign=manifests[:1])


def test_train_strings_leave_out_all_other_speech_and_keep_nonsense(made: Path) -> None:
    train, alone = (read_manifest(made / f"{name}.jsonl") for name in ("train", "train-strings"))
    assert {one.id for one in alone} == {one.id for one in train if "speech-" not in one.speaker}
    assert 0 < len(alone) <= len(train)


def test_of_sentences_with_digits_in_them_the_digits_are_told(made: Path) -> None:
    assert [(one.text, one.speaker) for one in read_all(made)["train-among"]] == [("one", "speech-s4")]
    assert {one.id for one in read_manifest(made / "train-all.jsonl")} == {
        one.id for part in ("train", "train-among") for one in read_all(made)[part]
    }
    assert read_manifest(made / "dev-among.jsonl") == []  # the speaker for development says none
    assert {one.id for one in read_manifest(made / "dev-sentences.jsonl")} == {"t1"}


# --- reproducible ---


def test_two_workers_make_the_same_bytes_as_one(source: Path, speech: Path, made: Path, tmp_path: Path) -> None:
    prepare(source, tmp_path, strings=SMALL, speech=speech, workers=2)
    assert files(tmp_path) == files(made)


def test_another_seed_makes_other_strings(source: Path, tmp_path: Path) -> None:
    prepare(source, tmp_path / "one", strings=FEW, seed=1)
    prepare(source, tmp_path / "two", strings=FEW, seed=2)
    prepare(source, tmp_path / "again", strings=FEW, seed=1)
    assert files(tmp_path / "one") == files(tmp_path / "again")
    name = "train/000/train-000000.flac"
    assert files(tmp_path / "one")[name] != files(tmp_path / "two")[name]


def test_the_data_folder_itself_is_a_source_too(source: Path, tmp_path: Path) -> None:
    prepare(source, tmp_path / "one", strings=FEW)
    prepare(source / "data", tmp_path / "two", strings=FEW)
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_a_second_run_makes_only_what_is_missing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(source, tmp_path, strings=FEW)
    first = files(tmp_path)
    (tmp_path / "train/000/train-000002.flac").unlink()
    (tmp_path / "train/000/train-000003.flac").write_bytes(b"damaged")
    recorded = []
    record = Studio.record
    monkeypatch.setattr(Studio, "record", lambda *job: recorded.append(job[1:]) or record(*job))
    prepare(source, tmp_path, strings=FEW)
    assert recorded == [("train", 2), ("train", 3)]
    assert files(tmp_path) == first


def test_more_strings_keep_those_that_are_there(source: Path, tmp_path: Path) -> None:
    prepare(source, tmp_path, strings=FEW)
    first = files(tmp_path / "train")
    prepare(source, tmp_path, strings=Counts(train=6, dev=1, test=1))
    second = files(tmp_path / "train")
    assert {name: second[name] for name in first} == first
    assert len(read_manifest(tmp_path / "train.jsonl")) == 6


def test_a_folder_made_with_another_seed_is_refused(source: Path, tmp_path: Path) -> None:
    prepare(source, tmp_path, strings=FEW, seed=1)
    with pytest.raises(DataError, match="another seed or source; name an empty folder"):
        prepare(source, tmp_path, strings=FEW, seed=2)


def test_progress_counts_to_the_end(source: Path, tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    prepare(source, tmp_path, strings=FEW, progress=lambda done, total: heard.append((done, total)))
    assert heard == [(done, len(heard)) for done in range(1, len(heard) + 1)]


# --- speakers apart ---


def test_speakers_of_the_parts_are_apart(made: Path) -> None:
    voices: dict[str, set[str]] = {"train": set(), "dev": set(), "test": set()}
    for part, utterances in read_all(made).items():
        for one in utterances:
            voices[part.split("-")[0]] |= {name for name in one.speaker.split("+") if not name.startswith("speech-")}
    voices["train"].discard("")
    assert all(voices.values())
    assert not voices["train"] & voices["dev"] | voices["train"] & voices["test"] | voices["dev"] & voices["test"]


@pytest.mark.parametrize(
    ("count", "women", "sizes"), [(54, 12, (44, 4, 6)), (60, 12, (49, 4, 7)), (8, 3, (6, 1, 1)), (3, 0, (1, 1, 1))]
)
def test_speakers_are_split_with_both_sexes_everywhere_they_suffice(
    count: int, women: int, sizes: tuple[int, int, int]
) -> None:
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
    takes, sexes = audiomnist.find_takes(tmp_path)
    assert set(sexes.values()) == {"unknown"}
    assert len(split_speakers(sexes)["train"]) == 6
    assert len(takes) == 8


# --- natural speech ---


def test_natural_strings_are_listed_as_they_were_recorded(made: Path, speech: Path) -> None:
    natural = read_manifest(made / "natural.jsonl")
    assert [(one.id, one.text, one.speaker) for one in natural] == [
        ("t3", "zero three five", "s3"),
        ("e2", "nine", "s9"),
    ]
    assert natural[0].audio == speech / "WAVE" / "t3.wav"


def test_sentences_are_those_of_test_without_a_digit(made: Path) -> None:
    assert [(one.id, one.text) for one in read_manifest(made / "sentences.jsonl")] == [("e1", ""), ("e4", "")]


def test_without_other_speech_there_are_no_lists_of_it(source: Path, tmp_path: Path) -> None:
    prepare(source, tmp_path, strings=FEW)
    assert not (tmp_path / "natural.jsonl").exists()
    assert not (tmp_path / "sentences.jsonl").exists()


# --- what may be wrong ---


def lose_a_digit(root: Path) -> None:
    for number in range(3):
        for digit in range(9 if number == 1 else 10):
            say(root / f"{number}" / f"{digit}_{number}_0.wav", 300, 0.2, 16_000, 0)


def two_speakers(root: Path) -> None:
    for number in range(2):
        for digit in range(10):
            say(root / f"{number}" / f"{digit}_{number}_0.wav", 300, 0.2, 16_000, 0)


def spoil_the_meta(root: Path) -> None:
    two_speakers(root)
    (root / "audioMNIST_meta.txt").write_text("{")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda root: None, "no AudioMNIST recordings"),
        (lambda root: root.rmdir(), "no AudioMNIST recordings"),
        (lambda root: (root / "data").mkdir(), "no AudioMNIST recordings"),
        (lose_a_digit, "no recording of the digit 9"),
        (two_speakers, "at least 3"),
        (spoil_the_meta, "list of speakers cannot be read"),
    ],
)
def test_a_wrong_source_is_told_in_one_sentence(tmp_path: Path, spoil: Callable[[Path], None], reason: str) -> None:
    root = tmp_path / "source"
    root.mkdir()
    spoil(root)
    with pytest.raises(DataError, match=reason) as caught:
        prepare(root, tmp_path / "out", strings=FEW)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("lost", ["test/text", "train/wav.scp", "train/utt2spk"])
def test_a_missing_list_of_other_speech_is_told(source: Path, speech: Path, tmp_path: Path, lost: str) -> None:
    for path in speech.rglob("*"):
        if path.is_file() and path != speech / lost:
            target = tmp_path / "speech" / path.relative_to(speech)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path)
    with pytest.raises(DataError, match="no such list"):
        prepare(source, tmp_path / "out", strings=FEW, speech=tmp_path / "speech")


def test_lists_that_do_not_fit_together_are_told(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train/text").write_text("a HELLO\n")
    (tmp_path / "train/wav.scp").write_text("a a.wav\n")
    (tmp_path / "train/utt2spk").write_text("b s1\n")
    with pytest.raises(DataError, match=r"a is in text but not in wav\.scp and utt2spk"):
        read_kaldi(tmp_path, "train")
    (tmp_path / "train/utt2spk").write_text("a s1\n")
    with pytest.raises(DataError, match=r"a\.wav is not there"):
        read_kaldi(tmp_path, "train")


# --- the real corpora, where they are ---


def test_the_real_corpora_keep_their_promises(shared_data: Path) -> None:
    takes, sexes = audiomnist.find_takes(shared_data / "AudioMNIST")
    parts = split_speakers(sexes)
    assert [len(parts[part]) for part in ("train", "dev", "test")] == [44, 4, 6]
    spoken = {part: read_kaldi(shared_data / "speechocean762", part) for part in ("train", "test")}
    natural = audiomnist.natural_strings(spoken)
    assert len(natural) == 77
    others = {part: audiomnist.without_digits(spoken, part) for part in ("train", "dev", "test")}
    assert [len(others[part]) for part in others] == [1127, 123, 491]
    heard = [{one.speaker for one in others[part]} for part in others] + [{one.speaker for one in natural}]
    assert len(set.union(*heard)) == sum(map(len, heard))  # nobody is in two of them
    assert sum(len(recordings) for by_digit in takes.values() for recordings in by_digit) == 10_800

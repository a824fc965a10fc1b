"""Kaldi data folders: files, pipes that are never run, segments that are cut."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from headsync.corpora.kaldi import prepare
from headsync.corpora.manifest import read_manifest
from headsync.errors import DataError


def say(path: Path, samples: np.ndarray, rate: int = 16_000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, rate, subtype="PCM_16")


def noise(seed: int, count: int = 8_000) -> np.ndarray:
    return (np.random.default_rng(seed).normal(0, 3_000, count)).astype(np.int16)


def lists(folder: Path, **content: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in content.items():
        text = "".join(f"{key} {value}".rstrip() + "\n" for key, value in rows.items())
        (folder / name.replace("wav", "wav.scp")).write_text(text)


def named(out: Path) -> set[tuple[str, str]]:
    return {(one["kind"], one["name"]) for one in json.loads((out / "report.json").read_text())["problems"]}


def test_a_data_folder_becomes_a_manifest(tmp_path: Path) -> None:
    say(tmp_path / "wav" / "a.wav", noise(1))
    say(tmp_path / "data" / "train" / "b.flac", noise(2), rate=8_000)
    lists(tmp_path / "data" / "train", wav={"a": "../../wav/a.wav", "b": "b.flac"}, text={"a": "Hello  you", "b": "no"},
          utt2spk={"a": "s1"})  # fmt: skip
    report = prepare(tmp_path / "data" / "train", tmp_path / "out")
    found = read_manifest(tmp_path / "out" / "train.jsonl")
    assert [(one.id, one.text, one.seconds, one.speaker) for one in found] == [
        ("a", "Hello  you", 0.5, "s1"), ("b", "no", 1.0, ""),
    ]  # fmt: skip
    assert [one.audio for one in found] == [tmp_path / "wav" / "a.wav", tmp_path / "data" / "train" / "b.flac"]
    assert not report.problems


def test_a_folder_of_data_folders_gets_a_manifest_for_each(tmp_path: Path) -> None:
    """Paths may also be relative to the parent folder, and a selection from another folder has the same ids."""
    say(tmp_path / "data" / "wav" / "a.wav", noise(1))
    for part in ("train", "train_small"):
        lists(tmp_path / "data" / part, wav={"a": "wav/a.wav"}, text={"a": "hello"})
    prepare(tmp_path / "data", tmp_path / "out")
    for part in ("train", "train_small"):
        assert [one.audio for one in read_manifest(tmp_path / "out" / f"{part}.jsonl")] == [
            tmp_path / "data" / "wav" / "a.wav"
        ]


@pytest.mark.parametrize(
    "command",
    ["flac -c -d -s {} |", "/usr/bin/flac -d -c {}|", "cat '{}' |", "sox {} -t wav - |"],
)
def test_a_pipe_that_only_decodes_is_read_without_running_it(tmp_path: Path, command: str) -> None:
    say(tmp_path / "data" / "a.flac", noise(1))
    lists(tmp_path / "data", wav={"a": command.format(tmp_path / "data" / "a.flac")}, text={"a": "hello"})
    prepare(tmp_path / "data", tmp_path / "out")
    assert read_manifest(tmp_path / "out" / "data.jsonl")[0].audio == tmp_path / "data" / "a.flac"


@pytest.mark.parametrize(
    "command",
    ["touch {0}/ran |", "sox {0}/a.flac -t wav - speed 1.1 |", "cat {0}/a.flac; touch {0}/ran |",
     "flac -c -d -s {0}/a.flac | touch {0}/ran |", "flac 'unended {0}/a.flac |"],
)  # fmt: skip
def test_any_other_pipe_is_refused_and_never_run(tmp_path: Path, command: str) -> None:
    say(tmp_path / "a.flac", noise(1))
    say(tmp_path / "b.flac", noise(2))
    lists(tmp_path / "data", wav={"a": command.format(tmp_path), "b": "b.flac"}, text={"a": "hello", "b": "no"})
    report = prepare(tmp_path / "data", tmp_path / "out")
    assert named(tmp_path / "out") == {("unreadable", "a")}
    assert "commands are not run" in report.summary()
    assert not (tmp_path / "ran").exists()
    assert [one.id for one in read_manifest(tmp_path / "out" / "data.jsonl")] == ["b"]


def test_segments_are_cut_to_the_sample(tmp_path: Path) -> None:
    samples = noise(1, 32_000)
    say(tmp_path / "data" / "long.wav", samples)
    lists(tmp_path / "data", wav={"long": "long.wav"}, segments={"u1": "long 0.25 0.75", "u2": "long 1.5 2.0 1"},
          text={"u1": "one", "u2": "two"}, utt2spk={"u1": "s", "u2": "s"})  # fmt: skip
    prepare(tmp_path / "data", tmp_path / "out")
    first, second = read_manifest(tmp_path / "out" / "data.jsonl")
    np.testing.assert_array_equal(soundfile.read(first.audio, dtype="int16")[0], samples[4_000:12_000])
    np.testing.assert_array_equal(soundfile.read(second.audio, dtype="int16")[0], samples[24_000:])
    assert (first.seconds, first.text, second.text) == (0.5, "one", "two")
    assert first.audio.is_relative_to(tmp_path / "out")


def test_all_damage_is_reported_and_the_rest_is_prepared(tmp_path: Path) -> None:
    say(tmp_path / "data" / "a.wav", noise(1))
    (tmp_path / "data" / "void.wav").write_bytes(b"")
    (tmp_path / "data" / "junk.wav").write_bytes(b"nothing")
    wav = {"a": "a.wav", "v": "void.wav", "j": "junk.wav"}
    spans = {"ok": "a 0 0.5", "void": "v 0 0.5", "junk": "j 0 0.5", "late": "a 0.25 0.6", "none": "a 0.3 0.3",
             "bad": "a zero 1", "gone": "b 0 1", "mute": "a 0 0.25", "hush": "a 0 0.1"}  # fmt: skip
    text = {name: "words" for name in spans if name != "mute"} | {"hush": "", "text-only": "words"}
    lists(tmp_path / "data", wav=wav, segments=spans, text=text)
    with (tmp_path / "data" / "segments").open("a") as file:
        file.write("ok a 0 0.5\n")
    prepare(tmp_path / "data", tmp_path / "out")
    assert named(tmp_path / "out") == {
        ("empty file", "void"), ("unreadable", "junk"), ("unreadable", "late"), ("unreadable", "none"),
        ("unreadable list", "bad"), ("missing audio", "gone"), ("missing audio", "text-only"),
        ("no transcript", "mute"), ("empty transcript", "hush"), ("duplicate", "ok"),
    }  # fmt: skip
    assert [one.id for one in read_manifest(tmp_path / "out" / "data.jsonl")] == ["ok"]


def test_a_folder_without_wav_scp_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no wav\.scp"):
        prepare(tmp_path, tmp_path / "out")


def test_the_real_corpus(shared_data: Path, tmp_path: Path) -> None:
    """A part of it: its lists with all but twenty lines left out."""
    source = shared_data / "speechocean762"
    if not source.is_dir():
        pytest.skip(f"needs speechocean762 in {shared_data}")
    rows = {name: (source / "test" / name).read_text().splitlines()[:20] for name in ("text", "wav.scp", "utt2spk")}
    (tmp_path / "test").mkdir()
    (tmp_path / "WAVE").symlink_to(source / "WAVE")
    for name, lines in rows.items():
        (tmp_path / "test" / name).write_text("\n".join(lines))
    report = prepare(tmp_path, tmp_path / "out", workers=2)
    assert not report.problems
    assert report.sizes["test"].utterances == 20

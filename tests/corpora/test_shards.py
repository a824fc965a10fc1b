"""Shards: the round trip of a manifest, compatibility with lhotse, and damage as one sentence."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile

from headsync.corpora.manifest import Utterance, write_manifest
from headsync.corpora.shards import prepare, read_members, read_shards
from headsync.errors import DataError
from headsync.frontend.audio import read_audio


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Seven utterances of 16 kHz, the last one empty of words and in stereo."""
    utterances = []
    for n in range(7):
        shape = (1600 + 160 * n, 2) if n == 6 else (1600 + 160 * n,)
        sound = np.random.default_rng(n).integers(-9000, 9000, shape, dtype=np.int16)
        soundfile.write(tmp_path / f"{n}.wav", sound, 16_000)
        text = "" if n == 6 else f"word {n} é"
        utterances.append(Utterance(f"u{n}", tmp_path / f"{n}.wav", text, len(sound) / 16_000, f"s{n % 2}"))
    write_manifest(tmp_path / "train.jsonl", utterances)
    return tmp_path / "train.jsonl"


def test_shards_contain_every_sample_of_a_manifest(manifest: Path, tmp_path: Path) -> None:
    assert prepare(manifest, tmp_path / "shards", size=3) == 3
    utterances = read_shards(tmp_path / "shards")
    assert [(u.id, u.text, u.speaker) for u in utterances[:2]] == [("u0", "word 0 é", "s0"), ("u1", "word 1 é", "s1")]
    assert [u.audio.name for u in utterances] == [f"recording.00000{n // 3}.tar" for n in range(7)]
    sounds = read_members(utterances)
    for n, utterance in enumerate(utterances):
        samples, rate = soundfile.read(io.BytesIO(sounds[utterance.id]), dtype="float32", always_2d=True)
        np.testing.assert_array_equal(samples, read_audio(tmp_path / f"{n}.wav")[0])
        assert (utterance.seconds, rate) == (len(samples) / 16_000, 16_000)


def test_only_requested_utterances_are_read(manifest: Path, tmp_path: Path) -> None:
    prepare(manifest, tmp_path / "shards", size=3)
    utterances = read_shards(tmp_path / "shards")
    assert read_members([utterances[4], utterances[0]]).keys() == {"u0", "u4"}


def test_a_second_run_writes_only_what_is_missing(manifest: Path, tmp_path: Path) -> None:
    prepare(manifest, tmp_path / "shards", size=3)
    files = sorted((tmp_path / "shards").iterdir())
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
    (tmp_path / "shards" / "cuts.000001.jsonl.gz").unlink()
    prepare(manifest, tmp_path / "shards", size=3)
    assert sorted((tmp_path / "shards").iterdir()) == files
    again = {path.name for path in files if path.stat().st_mtime_ns != before[path][0]}
    assert again == {"cuts.000001.jsonl.gz", "recording.000001.tar"}
    assert all(path.read_bytes() == before[path][1] for path in files)


def test_shards_of_another_corpus_are_not_mixed_in(manifest: Path, tmp_path: Path) -> None:
    prepare(manifest, tmp_path / "shards", size=2)
    with pytest.raises(DataError, match=r"cuts\.000003\.jsonl\.gz exists and is not part"):
        prepare(manifest, tmp_path / "shards", size=3)


def test_unreadable_shards_are_errors(manifest: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="headsync prepare shards"):
        read_shards(tmp_path / "empty")
    prepare(manifest, tmp_path / "shards", size=3)
    utterances = read_shards(tmp_path / "shards")
    with tarfile.open(utterances[0].audio, "w"):
        pass
    with pytest.raises(DataError, match="the audio of 'u0' is not in this shard"):
        read_members(utterances)
    utterances[3].audio.write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"recording\.000001\.tar: this shard cannot be read"):
        read_members(utterances[3:])
    (tmp_path / "shards" / "cuts.000002.jsonl.gz").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"cuts\.000002\.jsonl\.gz: this list of cuts cannot be read"):
        read_shards(tmp_path / "shards")


@pytest.mark.filterwarnings("ignore")
def test_lhotse_reads_our_shards(manifest: Path, tmp_path: Path) -> None:
    lhotse = pytest.importorskip("lhotse", reason="needs lhotse, to read its form with")
    prepare(manifest, tmp_path / "shards", size=3)
    cuts = list(lhotse.CutSet.from_shar(in_dir=tmp_path / "shards"))
    assert [cut.id for cut in cuts] == [f"u{n}" for n in range(7)]
    assert cuts[1].supervisions[0].text == "word 1 é"
    np.testing.assert_array_equal(cuts[2].load_audio()[0], read_audio(tmp_path / "2.wav")[0][:, 0])


@pytest.mark.filterwarnings("ignore")
def test_we_read_shards_of_lhotse(manifest: Path, tmp_path: Path) -> None:
    lhotse = pytest.importorskip("lhotse", reason="needs lhotse, to write its form with")
    from lhotse.shar import SharWriter

    (tmp_path / "shards").mkdir()
    with SharWriter(str(tmp_path / "shards"), fields={"recording": "flac"}, shard_size=2) as writer:
        for n in range(3):
            recording = lhotse.Recording.from_file(tmp_path / f"{n}.wav", recording_id=f"u{n}")
            cut = recording.to_cut()
            said = lhotse.SupervisionSegment(f"u{n}", f"u{n}", 0, recording.duration, text=f"word {n}", speaker="s")
            cut.supervisions = [said]
            writer.write(cut)
    utterances = read_shards(tmp_path / "shards")
    assert [(u.text, u.speaker) for u in utterances] == [(f"word {n}", "s") for n in range(3)]
    samples, _ = soundfile.read(io.BytesIO(read_members(utterances)[utterances[2].id]), dtype="float32")
    np.testing.assert_allclose(samples, read_audio(tmp_path / "2.wav")[0][:, 0], atol=1e-4)

"""WSJ: a miniature of the discs with index files, .dot transcripts and shorten-compressed SPHERE files."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

from headsync.corpora import wsj
from headsync.corpora.manifest import read_manifest
from headsync.corpora.wsj import normalise, prepare, read_sphere
from headsync.errors import DataError
from sphere_files import Samples, write_sphere

TRAIN0, TRAIN1 = "11-13.1/wsj0/doc/indices/train/tr_s_wv1.ndx", "13-34.1/wsj1/doc/indices/si_tr_s.ndx"
DEV, EVAL = "13-34.1/wsj1/doc/indices/h1_p0.ndx", "11-13.1/wsj0/doc/indices/test/nvp/si_et_20.ndx"


def speech(seed: int, count: int = 1_500) -> Samples:
    generator = np.random.default_rng(seed)
    samples = 900 * np.sin(np.arange(count) / 9) + generator.normal(0, 60, count)
    samples[256:512] = 0
    return samples.astype(np.int16)


def write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def discs(tmp_path: Path) -> Path:
    """Two utterances for training, one for development, one for testing; disc names and cases vary as in copies."""
    root = tmp_path / "discs"
    write(root / TRAIN0, ";; File: tr_s_wv1.ndx", "11_1_1:wsj0/si_tr_s/01i/01ic0201.wv1",
          "11_2_1:wsj0/si_tr_s/401/401c0201.wv1")  # fmt: skip
    write(root / TRAIN1, ";; comment", "13_1_1: wsj1/si_tr_s/46a/46ac0201.wv1")
    write(root / DEV, "13_16_1:wsj1/si_dt_20/4k0/4k0c0301.wv1")
    write(root / EVAL, "11_14_1:wsj0/si_et_20/440/440c0401")  # this index leaves out the ending
    write_sphere(root / "11-1.1/wsj0/si_tr_s/01i/01ic0201.wv1", speech(1))
    write_sphere(root / "13-1.1/wsj1/si_tr_s/46a/46ac0201.wv1", speech(2), shorten=False)
    write_sphere(root / "13-16.1/WSJ1/SI_DT_20/4K0/4K0C0301.WV1", speech(3))
    write_sphere(root / "11-14.1/wsj0/si_et_20/440/440c0401.wv1", speech(4))
    write(
        root / "11-4.1/wsj0/transcrp/dots/si_tr_s/01i/01ic0200.dot", r"The set I\. B\. M\. [door_slam] uses (01ic0201)"
    )
    write(root / "13-34.1/wsj1/trans/si_tr_s/46a/46ac0200.dot", "<And> it rose %percent --dash (46ac0201)")
    write(root / "13-34.1/WSJ1/TRANS/SI_DT_20/4K0/4K0C0300.DOT", "It [<cough] fell . ~ (4K0C0301)")
    write(root / "11-13.1/wsj0/transcrp/dots/si_et_20/440/440c0400.dot", "NO DATA (440c0401)")
    newspaper = root / "13-32.1/wsj1/doc/lng_modl/lm_train/np_data"
    for year, text in (("87", b"<art 1>\nProfits  rose .\n</s>\n\n"), ("89", b"Mr. Smith declined\n")):
        (newspaper / year).mkdir(parents=True)
        (newspaper / year / f"w{year}_001.z").write_bytes(gzip.compress(text, mtime=0))
    (newspaper / "86").mkdir()
    (newspaper / "86" / "w86_001.z").write_bytes(gzip.compress(b"not of these years\n", mtime=0))
    return root


def problems(out: Path) -> set[tuple[str, str]]:
    report = json.loads((out / "report.json").read_text())
    return {(problem["kind"], problem["name"]) for problem in report["problems"]}


def test_the_three_parts_are_decoded_and_transcribed(discs: Path, tmp_path: Path) -> None:
    report = prepare(discs, tmp_path / "out")
    assert not report.problems
    found = {part: [(one.id, one.speaker, one.text) for one in read_manifest(tmp_path / "out" / f"{part}.jsonl")]
             for part in wsj.INDICES}  # fmt: skip
    assert found == {
        "train_si284": [
            ("01ic0201", "01i", "THE SET I. B. M. <NOISE> USES"),
            ("46ac0201", "46a", "AND IT ROSE PERCENT -DASH"),
        ],
        "test_dev93": [("4k0c0301", "4k0", "IT FELL")],
        "test_eval92": [("440c0401", "440", "NO DATA")],
    }
    for seed, part, index in ((1, "train_si284", 0), (2, "train_si284", 1), (3, "test_dev93", 0)):
        one = read_manifest(tmp_path / "out" / f"{part}.jsonl")[index]
        samples, rate = soundfile.read(one.audio, dtype="int16")
        np.testing.assert_array_equal(samples, speech(seed))
        assert (rate, one.seconds) == (16_000, round(1_500 / 16_000, 4))


def test_the_text_for_the_language_model_is_that_of_the_transcripts_and_the_newspaper(
    discs: Path, tmp_path: Path
) -> None:
    prepare(discs, tmp_path / "out")
    assert (tmp_path / "out" / "lm_train.txt").read_text().splitlines() == [
        "AND IT ROSE PERCENT -DASH", "THE SET I. B. M. <NOISE> USES", "PROFITS ROSE .", "MR. SMITH DECLINED",
    ]  # fmt: skip
    assert (tmp_path / "out" / "lm_dev.txt").read_text().splitlines() == ["IT FELL"]


def test_without_the_newspaper_there_is_no_text_to_train_the_language_model(discs: Path, tmp_path: Path) -> None:
    shutil.rmtree(discs / "13-32.1")
    report = prepare(discs, tmp_path / "out")
    assert problems(tmp_path / "out") == {("unreadable list", wsj.NEWSPAPER[0])}
    assert "add disc 13-32.1" in report.problems[0].what
    assert not (tmp_path / "out" / "lm_train.txt").exists()
    assert (tmp_path / "out" / "lm_dev.txt").exists()


def test_a_damaged_newspaper_text_is_an_error(discs: Path, tmp_path: Path) -> None:
    (path,) = (discs / "13-32.1").rglob("w89_001.z")
    path.write_bytes(b"\x1f\x9dpacked by another program")
    with pytest.raises(DataError, match=r"w89_001\.z: cannot be decompressed; run gunzip"):
        prepare(discs, tmp_path / "out")


def test_a_second_run_decodes_only_what_is_missing(
    discs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(discs, tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.*") if path.is_file()}
    (tmp_path / "out" / "audio" / "01i" / "01ic0201.flac").unlink()
    decoded = []
    monkeypatch.setattr(wsj, "read_sphere", lambda path, rate: decoded.append(path.name) or read_sphere(path, rate))
    prepare(discs, tmp_path / "out")
    assert decoded == ["01ic0201.wv1"]
    assert {path: path.read_bytes() for path in before} == before


def test_the_classes_are_counted_as_published(discs: Path, tmp_path: Path) -> None:
    """Characters, the space, symbols as one each; <unk>, blank and <eos> besides."""
    report = prepare(discs, tmp_path / "out")
    signs = set("THESETI.B.M.USESANDITROSEPERCENT-DASH") | {" ", "<NOISE>"}
    assert report.classes is not None
    assert (report.classes.found, report.classes.published) == (len(signs) + 3, 52)
    assert "only 2 of 37416 utterances of train_si284 are present" in report.summary()


def test_all_characters_of_the_published_list_make_52() -> None:
    letters, signs = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "!\"&'()*,-./:;?_`{}~"
    published = [*letters, *signs, "<*IN*>", "<*MR.*>", "<NOISE>"]
    found = wsj.characters([" ".join(published)], wsj.SYMBOLS)
    assert len(found) + 3 == wsj.CLASSES


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        (r"isn\'t it", "ISN'T IT"),
        ("[loud_breath] and", "<NOISE> AND"),
        ("[<door_slam] a [door_slam>] b", "A B"),
        ("[phone_ring/] a [/phone_ring]", "A"),
        ("a . b ~", "A B"),
        ("<it's> here", "IT'S HERE"),
        ("five .point six %percent", "FIVE POINT SIX PERCENT"),
        (r"ten \%percent", "TEN PERCENT"),
        ("<*in*> .POINTED", "<*IN*> .POINTED"),
        ('"double-quote', '"DOUBLE-QUOTE'),
        ("--dash -dash", "-DASH -DASH"),
    ],
)
def test_transcripts_are_normalised_as_published(raw: str, clean: str) -> None:
    assert normalise(raw) == clean


def test_all_damage_is_reported_and_the_rest_is_prepared(discs: Path, tmp_path: Path) -> None:
    names = ["cut", "sum", "rate", "void", "none", "mute", "talk", "junk", "hush"]
    ids = {name: f"02{n}c02{n:02d}" for n, name in enumerate(names)}
    folder = discs / "11-1.1/wsj0/si_tr_s"
    for name, key in ids.items():
        write_sphere(folder / key[:3] / f"{key}.wv1", speech(9), rate=8_000 if name == "rate" else 16_000,
                     checksum=1 if name == "sum" else None)  # fmt: skip
    path = {name: folder / key[:3] / f"{key}.wv1" for name, key in ids.items()}
    path["cut"].write_bytes(path["cut"].read_bytes()[:1_800])
    path["void"].write_bytes(b"")
    path["none"].unlink()
    path["junk"].write_bytes(b"no sound at all")
    with (discs / TRAIN0).open("a") as index:
        index.writelines(f"11_1_1:wsj0/si_tr_s/{key[:3]}/{key}.wv1\n" for key in ids.values())
    spoken = [f"WORDS ({key})" for name, key in ids.items() if name not in ("mute", "hush")]
    write(discs / "11-4.1/wsj0/transcrp/dots/a.dot", *spoken, f"[<cough] ({ids['hush']})")
    write(discs / "11-4.1/wsj0/transcrp/dots/b.dot", f"OTHER WORDS ({ids['talk']})")
    report = prepare(discs, tmp_path / "out")
    assert problems(tmp_path / "out") == {
        ("unreadable", ids["cut"]), ("unreadable", ids["junk"]), ("wrong checksum", ids["sum"]),
        ("wrong sample rate", ids["rate"]), ("empty file", ids["void"]), ("missing audio", ids["none"]),
        ("no transcript", ids["mute"]), ("duplicate", ids["talk"]), ("empty transcript", ids["hush"]),
    }  # fmt: skip
    assert sum(report.counts.values()) == len(names)
    kept = read_manifest(tmp_path / "out" / "train_si284.jsonl")
    assert [one.id for one in kept] == ["01ic0201", "46ac0201"]
    assert not list((tmp_path / "out").rglob("*.unfinished"))


def test_a_missing_index_is_named_and_none_at_all_is_an_error(discs: Path, tmp_path: Path) -> None:
    (discs / TRAIN1).unlink()
    prepare(discs, tmp_path / "out")
    assert problems(tmp_path / "out") == {("unreadable list", "wsj1/doc/indices/si_tr_s.ndx")}
    with pytest.raises(DataError, match="LDC93S6B"):
        prepare(tmp_path / "nothing", tmp_path / "other")

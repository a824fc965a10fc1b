"""recipes/reader.py: a small network that learns to read a teacher's states, and reads what has no text."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from conftest import ROOT
from headsync.data.manifest import Utterance, read_manifest, write_manifest
from headsync.tokens import Vocabulary
from headsync.train.teacher import INDEX, STATES, Teacher

WORDS, COLUMNS, FRAMES = ("no", "yes"), 8, 24


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """600 recordings of one or two words; a word is three states in its own direction, all else is noise."""
    noise = np.random.default_rng(1)
    utterances, states = [], noise.normal(0, 0.3, (600 * FRAMES, COLUMNS))
    for number in range(600):
        said = [WORDS[w] for w in noise.integers(0, 2, noise.integers(1, 3))]
        for place, word in enumerate(said):
            first = number * FRAMES + 4 + 10 * place
            states[first : first + 3, WORDS.index(word)] += 3.0
        utterances.append(Utterance(str(number), tmp_path / f"{number}.flac", " ".join(said), 1.0, "s"))
    np.save(tmp_path / STATES, states.astype(np.float16))
    places = {str(one.audio): [n * FRAMES, FRAMES] for n, one in enumerate(utterances)}
    (tmp_path / INDEX).write_text(json.dumps(places))
    write_manifest(tmp_path / "lessons.jsonl", utterances[:500])
    write_manifest(tmp_path / "unread.jsonl", utterances[500:])
    return tmp_path


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "recipes")
    return importlib.import_module("reader")


def run(*arguments: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "recipes" / "reader.py"), *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_it_reads_recordings_that_were_no_lesson(folder: Path) -> None:
    updates = "reader.PASSES, reader.AT_ONCE = 8, 8"  # for a corpus that is small
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'recipes')!r}); import reader; {updates}; "
    arguments = ["", *(str(folder / name) for name in ("", "lessons.jsonl", "unread.jsonl"))]
    code += f"sys.argv = {arguments!r}; reader.main()"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    teacher = Teacher.load(folder, Vocabulary("words", WORDS))
    assert teacher.readings_NV is not None
    readings_NTV = teacher.readings_NV.reshape(600, FRAMES, 4).astype(np.float32)
    assert np.isnan(readings_NTV[:500]).all()
    right = 0
    texts = [json.loads(line)["text"] for line in (folder / "unread.jsonl").read_text().splitlines()]
    for text, reading_TV in zip(texts, readings_NTV[500:], strict=True):
        np.testing.assert_allclose(np.exp(reading_TV).sum(1), 1.0, atol=0.01)
        best = reading_TV.argmax(1)
        begins = np.flatnonzero((best != 0) & (best != np.r_[0, best[:-1]]))
        right += " ".join(WORDS[best[t] - 1] for t in begins) == text
    assert right >= 90
    told, surely = (read_manifest(folder / f"unread-{name}.jsonl") for name in ("told", "surely"))
    assert sum(one.text == text for one, text in zip(told, texts, strict=True)) == right
    known = {one.id: text for one, text in zip(told, texts, strict=True)}
    assert 50 < len(surely) <= 100
    assert sum(one.text == known[one.id] for one in surely) >= 0.95 * len(surely)


def reading(*frames: tuple[float, int]) -> np.ndarray:
    """Frames in which a token is read with a probability; the rest is blank's."""
    p_TV = np.full((len(frames), 4), 1e-9)
    for row, (sure, token) in zip(p_TV, frames, strict=True):
        row[[0, token]] = 1 - sure, sure
    return np.log(p_TV)


def test_words_in_doubt_are_told_or_keep_a_recording_out(reader: ModuleType) -> None:
    vocabulary = Vocabulary("words", WORDS)
    quiet, no, yes, doubt, faint = (1e-6, 1), (0.9, 1), (0.9, 2), (0.55, 2), (0.2, 2)
    assert reader.told(reading(quiet, no, no, quiet, no, yes, quiet), vocabulary) == "no no yes"
    assert reader.told(reading(quiet, doubt, quiet, faint), vocabulary) == "yes"
    assert reader.told(reading(quiet), vocabulary) == ""
    assert reader.surely(reading(quiet, no, no, quiet, no, yes, quiet), vocabulary) == "no no yes"
    assert reader.surely(reading(quiet, no, quiet, faint), vocabulary) == "no"
    assert reader.surely(reading(quiet, doubt, yes, quiet), vocabulary) == "yes"  # one word, in the end without doubt
    assert reader.surely(reading(quiet, no, quiet, doubt), vocabulary) is None


def test_what_the_teacher_has_not_heard_is_named(folder: Path) -> None:
    write_manifest(folder / "other.jsonl", [Utterance("x", folder / "x.flac", "yes", 1.0, "s")])
    told = run(folder, folder / "other.jsonl", folder / "unread.jsonl")
    assert told.returncode != 0
    assert "has heard nothing of" in told.stderr
    assert "Traceback" not in told.stderr

"""Reference word times from files, and exports for other tools."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fakes import FakeRecognizer
from headsync.corpora.manifest import Utterance
from headsync.errors import DataError
from headsync.evaluation.evaluate import evaluate
from headsync.evaluation.exports import write_ctm, write_trn
from headsync.evaluation.latency import TimedWord
from headsync.evaluation.reference_times import find_word_times, read_word_times

WORDS = {"a": [TimedWord("one", 0.1, 0.4), TimedWord("two", 0.5, 0.75)], "b": [TimedWord("three", 0.0, 0.5)]}
TEXTGRID = """File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = 1
tiers? <exists>
size = 2
item []:
    item [1]:
        class = "IntervalTier"
        name = "phones"
        xmin = 0
        xmax = 1
        intervals: size = 1
        intervals [1]:
            xmin = 0
            xmax = 1
            text = "W"
    item [2]:
        class = "IntervalTier"
        name = "words"
        xmin = 0
        xmax = 1
        intervals: size = 3
        intervals [1]:
            xmin = 0
            xmax = 0.1
            text = ""
        intervals [2]:
            xmin = 0.1
            xmax = 0.4
            text = "one"
        intervals [3]:
            xmin = 0.5
            xmax = 0.75
            text = "two"
"""


def test_ctm_json_and_textgrid_are_equal(tmp_path: Path) -> None:
    lines = ";; comment\na 1 0.1 0.3 one 0.9\na 1 0.5 0.25 two\n\nb 1 0 0.5 three\n"
    (tmp_path / "test.ctm").write_text(lines)
    words = {name: [word._asdict() for word in words] for name, words in WORDS.items()}
    (tmp_path / "other.words.json").write_text(json.dumps(words))
    (tmp_path / "third.TextGrid").mkdir()
    (tmp_path / "third.TextGrid" / "a.TextGrid").write_text(TEXTGRID)
    for name in ("test", "other", "third"):
        path = find_word_times(tmp_path / f"{name}.jsonl")
        assert path is not None
        found = read_word_times(path)
        for utterance, words in found.items():
            assert [tuple(word) for word in words] == [pytest.approx(tuple(word)) for word in WORDS[utterance]]
        assert found.keys() == ({"a"} if name == "third" else {"a", "b"})
    assert find_word_times(tmp_path / "none.jsonl") is None


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.ctm", "a 1 0.1\n"), ("a.ctm", "a 1 x 0.3 one\n"), ("a.json", "{"), ("a.json", '{"a": [{"text": "one"}]}')],
)
def test_damaged_times_are_one_sentence_with_the_file(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=f"{name}: these word times cannot be read"):
        read_word_times(tmp_path / name)
    (tmp_path / "b.TextGrid").mkdir()
    (tmp_path / "b.TextGrid" / "x.TextGrid").write_text("damaged")
    with pytest.raises(DataError, match="no interval tier"):
        read_word_times(tmp_path / "b.TextGrid")


def test_delays_are_measured_against_the_file_and_results_exported(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(16_000, np.float32), 8_000)
    utterances = [Utterance("a", tmp_path / "a.wav", "One two.", 2.0, "anna-1")]
    report = evaluate(FakeRecognizer("one two"), utterances, word_times=WORDS)
    own = evaluate(FakeRecognizer("one two"), utterances)
    assert (report.word_times, own.word_times) == ("reference", "recogniser")
    shift = [
        spoken.end - word.end_seconds for spoken, word in zip(WORDS["a"], own.outcomes[0].final_words, strict=True)
    ]
    expected = [delay - by for delay, by in zip(own.outcomes[0].delays.user_perceived, shift, strict=True)]
    assert report.outcomes[0].delays.user_perceived == pytest.approx(expected)
    write_ctm(tmp_path / "out.ctm", report.outcomes)
    lines = (tmp_path / "out.ctm").read_text().splitlines()
    first = report.outcomes[0].final_words[0]
    assert lines[0] == f"a 1 {first.start_seconds:.3f} {first.end_seconds - first.start_seconds:.3f} one 1.000"
    assert [word.text for word in read_word_times(tmp_path / "out.ctm")["a"]] == ["one", "two"]
    write_trn(tmp_path / "trn", report.outcomes)
    assert (tmp_path / "trn" / "ref.trn").read_text() == "One two. (anna_1-a)\n"
    assert (tmp_path / "trn" / "hyp.trn").read_text() == "one two (anna_1-a)\n"
    write_trn(tmp_path / "trn", report.outcomes, "words")
    assert (tmp_path / "trn" / "ref.trn").read_text() == "one two (anna_1-a)\n"

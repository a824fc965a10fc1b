"""Texts for language models: sentences from files, and ids from sentences."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headsync.corpora.lm_text import encode, read_sentences, split_off, word_vocabulary
from headsync.errors import DataError
from headsync.text.vocabulary import UNKNOWN, Vocabulary

LETTERS = Vocabulary("characters", ("<space>", "a", "b"))


def test_a_sentence_is_a_line_that_is_not_empty(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("  Ein  Haus \n\n\t\nzwei\tÄpfel", encoding="utf-8")
    assert read_sentences(path) == ["Ein Haus", "zwei Äpfel"]
    assert read_sentences(path, "lower") == ["ein haus", "zwei äpfel"]
    assert read_sentences(path, "upper") == ["EIN HAUS", "ZWEI ÄPFEL"]


def test_a_compressed_text_is_read(tmp_path: Path) -> None:
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress(b"a b\nb\n", mtime=0))
    assert read_sentences(path) == ["a b", "b"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b" \n\n", "contains no sentence"),
        ("a.txt", b"\xff\xfe", "not in UTF-8"),
        ("a.txt.gz", b"plain", "cannot be read"),
        ("a.txt.gz", gzip.compress(b"abc" * 99, mtime=0)[:-9], "cannot be read"),
    ],
)
def test_a_binary_file_is_an_error(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_sentences(tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path / name}: {message}")


def test_the_last_sentences_are_held_out() -> None:
    assert split_off("abcdefghij", 0.2) == ("abcdefgh", "ij")
    assert split_off("abc", 0.02) == ("ab", "c")
    with pytest.raises(DataError, match="1 sentences are too few to hold some out"):
        split_off("a", 0.5)


@given(st.lists(st.text("ab ", max_size=8), max_size=8))
def test_ids_are_the_concatenated_sentences(sentences: list[str]) -> None:
    corpus, omitted = encode(sentences, LETTERS)
    assert not omitted
    assert [corpus[n].tolist() for n in range(len(corpus))] == [LETTERS.encode(sentence) for sentence in sentences]
    assert corpus.lengths.tolist() == [len(LETTERS.encode(sentence)) for sentence in sentences]
    assert corpus.words == sum(len(sentence.split()) for sentence in sentences)


def test_sentences_outside_the_vocabulary_are_omitted_and_returned() -> None:
    corpus, omitted = encode(["a", "ax b", "b b"], LETTERS)
    assert omitted == ["ax b"]
    assert (len(corpus), corpus.words) == (2, 3)


def test_the_most_frequent_words_are_kept_and_ties_are_broken_alphabetically() -> None:
    sentences = ["c b a", "a b", "<unk> a c", "d"]
    vocabulary = word_vocabulary(sentences, most=2)
    assert vocabulary == Vocabulary("words", (UNKNOWN, "a", "b"))
    assert word_vocabulary(sentences).tokens == (UNKNOWN, "a", "b", "c", "d")

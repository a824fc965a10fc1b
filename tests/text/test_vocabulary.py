"""Vocabularies: text to ids and back, and which ids spell which word."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headsync.config import DataConfig
from headsync.errors import DataError, ModelError
from headsync.text.vocabulary import UNKNOWN, TokenKind, Vocabulary, build_vocabulary

DIGITS = Vocabulary("words", ("one", "three", "two"))
LETTERS = Vocabulary.build("characters", ["two one", "three"])
PIECES = Vocabulary("bpe", ("▁t", "hr", "▁two", "▁", "e", "h", "r", "t", "w", "o"))

texts = st.lists(st.text("abcdéß中", min_size=1, max_size=4), max_size=6).map(" ".join)


def test_ids_are_blank_then_tokens_then_the_end() -> None:
    assert (DIGITS.blank, DIGITS.end, DIGITS.size) == (0, 4, 5)
    assert DIGITS.encode("two one") == [3, 1]


def test_the_same_texts_in_any_order_build_the_same_ids() -> None:
    assert Vocabulary.build("words", ["two one", "three"]) == Vocabulary.build("words", ["three", "one two one"])
    assert LETTERS.tokens == ("<space>", "e", "h", "n", "o", "r", "t", "w")


@given(texts=st.lists(texts, min_size=1), kind=st.sampled_from(["characters", "words"]))
def test_decoding_undoes_encoding(texts: list[str], kind: TokenKind) -> None:
    if not any(texts):
        return
    vocabulary = Vocabulary.build(kind, texts)
    for text in texts:
        assert vocabulary.decode(vocabulary.encode(text)) == text


def test_sound_tokens_are_not_part_of_the_text() -> None:
    vocabulary = Vocabulary.build("characters", ["no <noise> on", "<noise>"])
    assert vocabulary.tokens == ("<noise>", "<space>", "n", "o")
    ids = vocabulary.encode("no <noise> on")
    assert [vocabulary.tokens[token_id - 1] for token_id in ids] == [
        "n",
        "o",
        "<space>",
        "<noise>",
        "<space>",
        "o",
        "n",
    ]
    assert vocabulary.decode(ids) == vocabulary.readable("no <noise> on") == "no on"
    assert Vocabulary("words", ("<noise>", "on")).decode([1, 2, 1]) == "on"


def test_a_word_is_complete_when_no_token_can_extend_it() -> None:
    assert [span.text for span in LETTERS.words(LETTERS.encode("two one"), complete=True)] == ["two"]
    space = LETTERS.tokens.index("<space>") + 1
    assert [span.text for span in LETTERS.words([*LETTERS.encode("two one"), space], complete=True)] == ["two", "one"]
    assert [span.text for span in PIECES.words(PIECES.encode("two three"), complete=True)] == ["two"]
    assert [span.text for span in DIGITS.words([3, 1], complete=True)] == ["two", "one"]


def test_runs_of_white_space_are_one_space() -> None:
    assert LETTERS.encode("  two \t one\n") == LETTERS.encode("two one")


def test_blanks_and_ends_are_not_text() -> None:
    assert DIGITS.decode([4, 0, 3, 0, 1, 4]) == "two one"
    assert LETTERS.decode([LETTERS.end, *LETTERS.encode("two"), LETTERS.blank]) == "two"


def test_the_error_for_an_unknown_word_lists_known_ones() -> None:
    with pytest.raises(DataError, match="'nine' in 'two nine' is not in the vocabulary, which has one, three, two"):
        DIGITS.encode("two nine")
    with pytest.raises(DataError, match="the character 'x'"):
        LETTERS.encode("one x")


def test_characters_are_grouped_into_words_with_their_positions() -> None:
    ids = LETTERS.encode("two one")
    assert LETTERS.words(ids) == [("two", 0, 3), ("one", 4, 7)]
    assert LETTERS.words(ids[:5]) == [("two", 0, 3), ("o", 4, 5)]
    assert LETTERS.words(ids[:4]) == [("two", 0, 3)]


def test_leading_and_double_spaces_make_no_empty_word() -> None:
    space = LETTERS.encode("o o")[1]
    one = LETTERS.encode("one")
    assert LETTERS.words([space, *one, space, space, *one, space]) == [("one", 1, 4), ("one", 6, 9)]


def test_every_word_token_is_a_word() -> None:
    assert DIGITS.words([4, 3, 1]) == [("two", 1, 2), ("one", 2, 3)]
    assert DIGITS.words([]) == []


def test_an_id_outside_the_vocabulary_fails_an_assertion() -> None:
    for wrong in (-1, DIGITS.size):
        with pytest.raises(AssertionError):
            DIGITS.decode([wrong])


def test_a_vocabulary_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        DIGITS.kind = "characters"  # type: ignore[misc]


@pytest.mark.parametrize("vocabulary", [DIGITS, LETTERS, PIECES, Vocabulary("characters", ("ß", "中"))])
def test_a_saved_vocabulary_loads_unchanged(tmp_path: Path, vocabulary: Vocabulary) -> None:
    path = tmp_path / "vocabulary.json"
    vocabulary.save(path)
    assert Vocabulary.load(path) == vocabulary
    assert set(json.loads(path.read_text(encoding="utf-8"))) == {"kind", "tokens"}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"kind": "words"}',
        '{"kind": "words", "tokens": "abc"}',
        '{"kind": "syllables", "tokens": ["a"]}',
        '{"tokens": ["a"]}',
        '{"kind": "words", "tokens": []}',
        '{"kind": "words", "tokens": ["a", "a"]}',
        '{"kind": "words", "tokens": ["a b"]}',
        '{"kind": "words", "tokens": ["a", 1]}',
        '{"kind": "characters", "tokens": ["ab"]}',
        '{"kind": "characters", "tokens": [" "]}',
        '{"kind": "bpe", "tokens": ["a▁b"]}',
    ],
)
def test_a_damaged_vocabulary_is_an_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "vocabulary.json"
    path.write_text(content)
    with pytest.raises(ModelError, match=r"vocabulary\.json"):
        Vocabulary.load(path)


def test_a_missing_vocabulary_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="copy the model again"):
        Vocabulary.load(tmp_path / "vocabulary.json")


def test_texts_without_words_are_an_error() -> None:
    with pytest.raises(DataError, match="at least one token"):
        Vocabulary.build("words", ["", "  "])


def test_words_outside_the_vocabulary_become_unk_if_it_exists() -> None:
    vocabulary = Vocabulary("words", (UNKNOWN, "one"))
    assert vocabulary.encode("nine one") == [1, 2]
    assert vocabulary.decode([1, 2]) == "<unk> one"


def test_pieces_are_grouped_into_words_by_the_mark_of_their_start() -> None:
    ids = PIECES.encode("two three")
    assert [PIECES.tokens[i - 1] for i in ids] == ["▁t", "w", "o", "▁t", "hr", "e", "e"]  # "▁two" has no way to arise
    assert PIECES.words(ids) == [("two", 0, 3), ("three", 3, 7)]
    assert PIECES.words(ids[1:]) == [("wo", 0, 2), ("three", 2, 6)]  # a text may begin within a word


def test_a_mark_alone_belongs_to_the_next_word() -> None:
    mark, h, o = (PIECES.tokens.index(token) + 1 for token in ("▁", "h", "o"))
    assert PIECES.words([mark, h, o, mark, h, mark]) == [("ho", 1, 3), ("h", 4, 5)]


@given(
    ids=st.lists(st.integers(0, PIECES.size - 1), max_size=12), vocabulary=st.sampled_from([DIGITS, LETTERS, PIECES])
)
def test_the_text_of_a_prefix_is_a_prefix_of_the_text(ids: list[int], vocabulary: Vocabulary) -> None:
    ids = [i % vocabulary.size for i in ids]
    for first in range(len(ids)):
        assert vocabulary.decode(ids).startswith(vocabulary.decode(ids[:first]))


@pytest.mark.parametrize("kind", ["characters", "words", "bpe"])
def test_a_recipe_sets_the_kind_of_tokens(kind: TokenKind) -> None:
    data = DataConfig(tokens=kind, bpe_size=9)
    vocabulary = build_vocabulary(data, ["two one", "three two"])
    assert vocabulary.kind == kind
    assert vocabulary.decode(vocabulary.encode("three one")) == "three one"
    assert len(vocabulary.tokens) == {"characters": 9, "words": 3, "bpe": 9}[kind]


def test_a_mark_within_a_word_is_an_error() -> None:
    with pytest.raises(DataError, match="'▁' in 'two▁two' marks the start of a word"):
        PIECES.encode("two▁two")


@pytest.mark.parametrize("tokens", ["characters", "bpe", "unigram"])
def test_a_character_outside_the_training_texts_is_unk(tokens: str) -> None:
    data = DataConfig(tokens=tokens, bpe_size=24)  # type: ignore[arg-type]
    vocabulary = build_vocabulary(data, ["IT ROSE <NOISE>", "IT FELL"])
    assert vocabulary.tokens.index("<unk>") + 1 in vocabulary.encode("Ü")


def test_a_word_outside_the_training_texts_is_an_error() -> None:
    with pytest.raises(DataError, match="is not in the vocabulary"):
        build_vocabulary(DataConfig(tokens="words"), ["IT ROSE", "IT FELL"]).encode("IT SANK")


def test_unknown_is_spelled_as_one_character() -> None:
    vocabulary = build_vocabulary(DataConfig(), ["AB"])
    assert vocabulary.tokens == ("<unk>", "A", "B")
    assert vocabulary.encode("AÜ") == [2, 1]
    assert vocabulary.encode("<unk>") == [1]


def test_punctuation_is_subwords_without_a_letter_or_digit() -> None:
    tokens = ("▁", "▁a", ",", "▁'", "'s", "1", "é", "\u093e")
    assert Vocabulary("bpe", tokens).punctuation == {3, 4}
    assert Vocabulary("words", ("a", ",")).punctuation == frozenset()

"""ARPA files: back-off by its definition, and one sentence with the line for every error in a file."""

from __future__ import annotations

import gzip
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arpa_files import random_table, write_arpa
from headsync.engine.state_tree import take_rows
from headsync.errors import ModelError
from headsync.lm import LanguageModel
from headsync.lm.arpa import ArpaModel, read_ngrams, words_of
from headsync.text.vocabulary import Vocabulary
from reference.arpa import Table, log_p

LETTERS = Vocabulary("characters", ("<space>", "a", "b", "c"))
LN10 = math.log(10)


def load(folder: Path, table: Table, vocabulary: Vocabulary = LETTERS) -> ArpaModel:
    return ArpaModel.load(write_arpa(folder / "model.arpa", table), vocabulary)


def scored(model: LanguageModel, tokens: list[int], end: int) -> np.ndarray:
    """The vectors after <sos> and after each token."""
    state, vectors = model.start(1), []
    for token in (end, *tokens):
        scores, state = model.step(np.array([token]), state)
        vectors.append(scores[0])
    return np.array(vectors)


@settings(deadline=None, max_examples=25)
@given(orders=st.integers(1, 4), seed=st.integers(0, 1000), tokens=st.lists(st.integers(1, 4), max_size=6))
def test_every_vector_equals_the_definition_and_sums_to_one(
    tmp_path_factory: pytest.TempPathFactory, orders: int, seed: int, tokens: list[int]
) -> None:
    table = random_table(LETTERS.tokens, orders, seed)
    vectors = scored(load(tmp_path_factory.getbasetemp(), table), tokens, LETTERS.end)
    for position, vector in enumerate(vectors):
        context = ["<s>", *(LETTERS.tokens[token - 1] for token in tokens[:position])]
        expected = [log_p(table, context, word) for word in (*LETTERS.tokens, "</s>")]
        np.testing.assert_allclose(vector[1:], expected, atol=1e-9)
        assert vector[0] == -np.inf
        assert np.exp(vector).sum() == pytest.approx(1.0, abs=1e-9)


SMALL: Table = {
    ("<s>",): (-99.0, -0.5), ("</s>",): (-1.0, 0.0), ("a",): (-0.3, -0.2), ("b",): (-0.6, -0.1),
    ("<s>", "a"): (-0.1, 0.0), ("a", "b"): (-0.25, 0.0), ("b", "</s>"): (-0.05, 0.0),
}  # fmt: skip
AB = Vocabulary("characters", ("a", "b"))


def test_a_model_computed_by_hand(tmp_path: Path) -> None:
    start, a, b = scored(load(tmp_path, SMALL, AB), [1, 2], AB.end)
    np.testing.assert_allclose(start[1:], np.array([-0.1, -0.5 - 0.6, -0.5 - 1.0]) * LN10)
    np.testing.assert_allclose(a[1:], np.array([-0.2 - 0.3, -0.25, -0.2 - 1.0]) * LN10)
    np.testing.assert_allclose(b[1:], np.array([-0.1 - 0.3, -0.1 - 0.6, -0.05]) * LN10)


def test_rows_can_be_taken_and_repeated(tmp_path: Path) -> None:
    table = random_table(LETTERS.tokens, 3, 1)
    model = load(tmp_path, table)
    _, state = model.step(np.array([LETTERS.end] * 2), model.start(2))
    _, state = model.step(np.array([1, 3]), state)
    scores, _ = model.step(np.array([2, 2, 4]), take_rows(state, [1, 0, 1]))
    expected = [scored(model, tokens, LETTERS.end)[-1] for tokens in ([3, 2], [1, 2], [3, 4])]
    np.testing.assert_array_equal(scores, expected)


def test_scores_can_be_changed_without_changing_the_cache(tmp_path: Path) -> None:
    model = load(tmp_path, SMALL, AB)
    scores, _ = model.step(np.array([AB.end]), model.start(1))
    before = scores.copy()
    scores[:] = 0
    np.testing.assert_array_equal(model.step(np.array([AB.end]), model.start(1))[0], before)


def test_tokens_outside_the_file_are_its_unk(tmp_path: Path) -> None:
    table = {**SMALL, ("<unk>",): (-1.5, -0.7), ("a", "<unk>"): (-0.9, 0.0), ("<unk>", "b"): (-0.4, 0.0)}
    vocabulary = Vocabulary("characters", ("a", "b", "c"))
    vectors = scored(load(tmp_path, table, vocabulary), [1, 3, 3], vocabulary.end)
    assert vectors[0][3] == pytest.approx((-0.5 - 1.5) * LN10)
    assert vectors[1][3] == pytest.approx(-0.9 * LN10)
    np.testing.assert_allclose(vectors[2][1:], np.array([-0.7 - 0.3, -0.4, -0.7 - 1.5, -0.7 - 1.0]) * LN10)
    np.testing.assert_array_equal(vectors[3], vectors[2])


def test_n_grams_of_other_tokens_are_ignored(tmp_path: Path) -> None:
    more = {**SMALL, ("z",): (-0.1, -0.3), ("a", "z"): (-0.1, 0.0), ("z", "b"): (-0.1, 0.0)}
    np.testing.assert_array_equal(
        scored(load(tmp_path, more, AB), [1, 2], 3), scored(load(tmp_path, SMALL, AB), [1, 2], 3)
    )


def test_a_file_that_lacks_the_recognisers_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.arpa: does not fit the recogniser, because it lacks the tokens 'c'$"):
        load(tmp_path, SMALL, Vocabulary("characters", ("a", "b", "c")))
    unknown = {**SMALL, ("<unk>",): (-1.5, 0.0)}
    with pytest.raises(ModelError, match="it lacks the tokens 'c', 'd', 'e', 'f', 'g' and 1 more"):
        load(tmp_path, unknown, Vocabulary("characters", tuple("abcdefgh")))


def test_a_compressed_file_gives_the_same_model(tmp_path: Path) -> None:
    plain = write_arpa(tmp_path / "model.arpa", SMALL)
    packed = tmp_path / "model.arpa.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert list(read_ngrams(packed)) == list(read_ngrams(plain))
    assert words_of(packed) == {"<s>", "</s>", "a", "b"}


def test_upper_case_markers_a_byte_order_mark_and_a_word_of_probability_zero(tmp_path: Path) -> None:
    vocabulary = Vocabulary("characters", ("a", "b"))
    text = "\n".join(LINES).replace("</s>", "</S>").replace("-0.3 a", "-inf a").replace("ngram 1=3", "ngram 1=4")
    (tmp_path / "model.arpa").write_text(text.replace("-99 <s>", "-0.4 <UNK>\n-99 <S>"), encoding="utf-8-sig")
    model = ArpaModel.load(tmp_path / "model.arpa", vocabulary)
    scores_BV, _ = model.step(np.array([1]), model.start(1))
    assert np.isfinite(scores_BV[0, 1:]).all()  # a text is always left to the search
    assert scores_BV[0, 1] < -200
    assert scores_BV[0, 2] > scores_BV[0, 1]


def test_a_file_without_an_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.arpa").write_text("\n".join(LINES).replace("</s>", "b"))
    with pytest.raises(ModelError, match="</s> is missing, so no sentence can end"):
        ArpaModel.load(tmp_path / "model.arpa", Vocabulary("characters", ("a", "b")))


LINES = """\
\\data\\
ngram 1=3
ngram 2=1

\\1-grams:
-99 <s> -0.5
-1.0 </s>
-0.3 a -0.2

\\2-grams:
-0.1 <s> a

\\end\\
""".splitlines()


@pytest.mark.parametrize(
    ("line", "instead", "expected"),
    [
        (1, "data", r"not an ARPA file, because it has no \data"),
        (2, "ngram one=3", 'line 2: expected "ngram 1=...", found "ngram one=3"'),
        (3, "ngram 3=1", 'line 3: expected "ngram 2=...", found "ngram 3=1"'),
        (5, "\\grams:", r'line 5: expected "ngram 3=...", found "\grams:"'),
        (8, "-0.3", "line 8: a 1-gram requires a number, 1 words and an optional back-off"),
        (8, "-0.3 a b c", "line 8: a 1-gram requires a number"),
        (8, "x a -0.2", 'line 8: the logarithms of "x a -0.2" are not numbers'),
        (8, "-0.3 a y", "line 8: the logarithms"),
        (8, "0.3 a -0.2", 'line 8: "0.3 a -0.2" is not a log probability'),
        (8, "nan a -0.2", 'line 8: "nan a -0.2" is not a log probability'),
        (8, "", "line 10: there are 2 1-grams, not 3"),
        (10, "\\3-grams:", r'line 10: expected \2-grams:, found "\3-grams:"'),
        (10, "\\end\\", r'line 10: expected \2-grams:, found "\end\"'),
        (12, "-0.1 a a", "line 13: there are 2 2-grams, not 1"),
        (13, "\\3-grams:", r'line 13: expected \end\, found "\3-grams:"'),
        (13, "", r"it ends before \end\ "),
    ],
)
def test_the_error_for_a_malformed_file_names_the_line(tmp_path: Path, line: int, instead: str, expected: str) -> None:
    path = tmp_path / "model.arpa"
    path.write_text("\n".join([*LINES[: line - 1], instead, *LINES[line:]]))
    with pytest.raises(ModelError) as caught:
        list(read_ngrams(path))
    message = str(caught.value)
    assert message.startswith(f"{path}: {expected.strip()}")
    assert "\n" not in message


def test_a_truncated_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.arpa"
    for length in range(len(LINES)):
        path.write_text("\n".join(LINES[:length]))
        with pytest.raises(ModelError):
            list(read_ngrams(path))


def test_a_binary_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such language model"):
        list(read_ngrams(tmp_path / "none.arpa"))
    (tmp_path / "noise.arpa").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelError, match="not text in UTF-8"):
        list(read_ngrams(tmp_path / "noise.arpa"))
    packed = gzip.compress("\n".join(LINES).encode())
    for content in (b"plain", packed[: len(packed) // 2], packed[:30] + b"\x00" * 20 + packed[50:]):
        (tmp_path / "cut.arpa.gz").write_bytes(content)
        with pytest.raises(ModelError, match=r"cut\.arpa\.gz"):
            list(read_ngrams(tmp_path / "cut.arpa.gz"))


def test_the_reader_is_lazy(tmp_path: Path) -> None:
    path = tmp_path / "model.arpa"
    path.write_text("\n".join(LINES[:8]))
    assert len(list(itertools.islice(read_ngrams(path), 3))) == 3

"""A word model over characters: whole words have the scores of the word model, and every step is a distribution."""

from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arpa_files import random_table, write_arpa
from headsync.config import Config, LanguageConfig
from headsync.engine.state_tree import take_rows
from headsync.lm import LanguageModel
from headsync.lm.arpa import ArpaModel
from headsync.lm.lstm import LstmModel
from headsync.lm.word_lm import LEAST_UNKNOWN, WordsOverCharacters
from headsync.model_folder import WEIGHTS, load_language_folder, save_language_folder
from headsync.nn.lstm_lm import LanguageNetwork
from headsync.text.vocabulary import UNKNOWN, Vocabulary
from headsync.training.checkpoint import save_weights
from random_weights import scrambled

LETTERS = Vocabulary("characters", ("'", "<space>", "a", "b", "c", "d"))
WORDS = ("a", "ab", "abba", "abc", "b", "bad", "cab", "d'accab", "dab")
SPELLED = Vocabulary("words", (UNKNOWN, *WORDS, "zebra"))  # the last one cannot be spelled with these letters
PENALTY = math.log(len(LETTERS.tokens))


@pytest.fixture(scope="module")
def lstm(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    path = tmp_path_factory.mktemp("lstm")
    config = Config(kind="lm", language=LanguageConfig(layers=1, width=6))
    save_language_folder(path, config, SPELLED)
    save_weights(path / WEIGHTS, scrambled(LanguageNetwork(config.language, SPELLED.size)).float().state_dict())
    return LstmModel.load(load_language_folder(path))


@pytest.fixture(scope="module")
def arpa(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    path = tmp_path_factory.mktemp("arpa") / "words.arpa"
    return ArpaModel.load(write_arpa(path, random_table(SPELLED.tokens, 3, 1)), SPELLED)


@pytest.fixture(scope="module", params=["lstm", "arpa"])
def words(request: pytest.FixtureRequest) -> LanguageModel:
    return request.getfixturevalue(request.param)


def log_p(model: LanguageModel, ids: list[int], end: int) -> float:
    """Of a whole sentence, its end included."""
    state, total, last = model.start(1), 0.0, end
    for token in (*ids, end):
        scores, state = model.step(np.array([last]), state)
        total, last = total + float(scores[0, token]), token
    return total


sentences = st.lists(st.sampled_from(WORDS), max_size=5)


@settings(deadline=None, max_examples=40)
@given(said=sentences)
def test_the_score_of_a_sentence_equals_that_of_the_word_model(words: LanguageModel, said: list[str]) -> None:
    text = " ".join(said)
    spelled = WordsOverCharacters(words, SPELLED, LETTERS)
    expected = log_p(words, SPELLED.encode(text), SPELLED.end)
    assert log_p(spelled, LETTERS.encode(text), LETTERS.end) == pytest.approx(expected, abs=1e-9)


def test_a_character_scores_the_ratio_of_the_words_that_continue_with_it(words: LanguageModel) -> None:
    """Literally, for every prefix after "bad "."""
    spelled = WordsOverCharacters(words, SPELLED, LETTERS)
    state = words.start(1)
    for token in (SPELLED.end, *SPELLED.encode("bad")):
        log_p_V, state = words.step(np.array([token]), state)
    p = dict(zip(SPELLED.tokens, np.exp(log_p_V[0, 1:-1]), strict=True))

    def mass(prefix: str) -> float:
        own = sum(p[word] for word in WORDS if word.startswith(prefix))
        return float(own + p[UNKNOWN] * math.exp(-PENALTY * len(prefix)))

    state = spelled.start(1)
    for token in (LETTERS.end, *LETTERS.encode("bad"), LETTERS.tokens.index("<space>") + 1):
        scores, state = spelled.step(np.array([token]), state)
    goes_on = 1 - math.exp(log_p_V[0, SPELLED.end])
    assert scores[0, 3] == pytest.approx(math.log(mass("a") / goes_on))
    for prefix in ("a", "ab", "abb", "abba"):
        scores, state = spelled.step(np.array([LETTERS.encode(prefix)[-1]]), state)
        for letter in "'abcd":
            expected = math.log(mass(prefix + letter) / mass(prefix))
            assert scores[0, LETTERS.encode(letter)[0]] == pytest.approx(expected, abs=1e-9)


def test_every_step_is_a_distribution_except_for_unknown_words(words: LanguageModel) -> None:
    spelled = WordsOverCharacters(words, SPELLED, LETTERS)
    state = spelled.start(1)
    for token in (LETTERS.end, *LETTERS.encode("ab cab d'accab a")):
        scores, state = spelled.step(np.array([token]), state)
        assert scores[0, 0] == -np.inf
        assert 0.5 < np.exp(scores).sum() < 1.1


class Flat:
    """A word model without unknown words."""

    def start(self, batch: int) -> tuple[np.ndarray, ...]:
        return (np.zeros(batch),)

    def step(self, tokens_B: np.ndarray, state: tuple[np.ndarray, ...]) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        scores = np.full((len(tokens_B), len(WORDS) + 3), -math.log(len(WORDS) + 1))
        scores[:, :2] = -np.inf
        return scores, (state[0] + 1,)


def test_without_unknown_words_every_step_sums_to_one() -> None:
    spelled = WordsOverCharacters(Flat(), Vocabulary("words", (UNKNOWN, *WORDS)), LETTERS)
    state = spelled.start(1)
    for token in (LETTERS.end, *LETTERS.encode("ab cab d'accab a")):
        scores, state = spelled.step(np.array([token]), state)
        assert np.exp(scores).sum() == pytest.approx(1.0, abs=20 * LEAST_UNKNOWN * len(WORDS))


def test_an_unknown_word_costs_unk_and_a_penalty_per_character(words: LanguageModel) -> None:
    spelled = WordsOverCharacters(words, SPELLED, LETTERS)
    known, unknown = (log_p(words, SPELLED.encode(f"a {word} b"), SPELLED.end) for word in ("cab", UNKNOWN))
    for word in ("cabb", "dd", "abb", "ba"):  # a longer one, one that no word begins like, two beginnings of words
        total = log_p(spelled, LETTERS.encode(f"a {word} b"), LETTERS.end)
        assert total == pytest.approx(unknown - PENALTY * (len(word) + 1), abs=1e-9)
    assert log_p(spelled, LETTERS.encode("a cab b"), LETTERS.end) == pytest.approx(known, abs=1e-9)


@settings(deadline=None, max_examples=60)
@given(ids=st.lists(st.integers(1, len(LETTERS.tokens)), max_size=12))
def test_every_text_has_a_finite_score(words: LanguageModel, ids: list[int]) -> None:
    assert -500 < log_p(WordsOverCharacters(words, SPELLED, LETTERS), ids, LETTERS.end) < 0


def test_a_very_long_word_has_a_low_but_finite_score(words: LanguageModel) -> None:
    ids = LETTERS.encode("abcd" * 200)
    assert -3000 < log_p(WordsOverCharacters(words, SPELLED, LETTERS), ids, LETTERS.end) < -1000


TEXTS = ("ab cab", "abba b", "dd a a", "bad ' ", "d'acca", " a  b ")


def test_a_batch_equals_its_rows_under_any_selection(words: LanguageModel) -> None:
    """Rows in different places of their words, taken, repeated and pickled on the way."""
    spelled = WordsOverCharacters(words, SPELLED, LETTERS)
    tokens_BL = np.array([[LETTERS.end, *(LETTERS.tokens.index("<space>" if c == " " else c) + 1 for c in text)]
                          for text in TEXTS])  # fmt: skip
    alone = []
    for tokens in tokens_BL:
        state, rows = spelled.start(1), []
        for token in tokens:
            scores, state = spelled.step(np.array([token]), state)
            rows.append(scores[0])
        alone.append(rows)
    state, order = spelled.start(len(TEXTS)), list(range(len(TEXTS)))
    source = np.random.default_rng(1)
    for step in range(tokens_BL.shape[1]):
        scores, state = spelled.step(tokens_BL[order, step], state)
        np.testing.assert_allclose(scores, [alone[n][step] for n in order], atol=1e-5)
        rows = source.integers(0, len(order), 6).tolist()
        state, order = take_rows(pickle.loads(pickle.dumps(state)), rows), [order[n] for n in rows]


def test_a_step_does_not_change_its_input_state(words: LanguageModel) -> None:
    spelled = WordsOverCharacters(words, SPELLED, LETTERS)
    _, state = spelled.step(np.array([LETTERS.end]), spelled.start(1))
    _, state = spelled.step(np.array(LETTERS.encode("a")), state)
    for first, second in itertools.permutations(range(1, 7), 2):
        expected, _ = spelled.step(np.array([first]), state)
        spelled.step(np.array([second]), state)
        np.testing.assert_array_equal(spelled.step(np.array([first]), state)[0], expected)


def test_the_word_model_is_queried_only_where_a_word_may_end(words: LanguageModel) -> None:
    class Counting:
        def __init__(self) -> None:
            self.asked: list[int] = []

        def start(self, batch: int) -> object:
            return words.start(batch)

        def step(self, tokens_B: np.ndarray, state: object) -> object:
            self.asked += tokens_B.tolist()
            return words.step(tokens_B, state)  # type: ignore[arg-type]

    counting = Counting()
    log_p(WordsOverCharacters(counting, SPELLED, LETTERS), LETTERS.encode("cab dd ab"), LETTERS.end)  # type: ignore[arg-type]
    named = [SPELLED.tokens[n - 1] if n < SPELLED.end else "<s>" for n in counting.asked]
    assert named == ["<s>", "cab", "<unk>", "a", "ab"]

"""Perplexity: that of a model by hand, per token and per word, and the command that prints it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from arpa_files import random_table, write_arpa
from headsync.errors import DataError
from headsync.evaluation import perplexity as module
from headsync.evaluation.perplexity import perplexity
from headsync.lm import Scores
from headsync.lm.arpa import ArpaModel
from headsync.text.vocabulary import UNKNOWN, Vocabulary
from reference.arpa import log_p

LETTERS = Vocabulary("characters", ("<space>", "a", "b", "c"))
TEXTS = ["ab c", "a", "cab bac", "b", "c c c"]


class Uniform:
    """All tokens and the end alike."""

    def start(self, batch: int) -> tuple[np.ndarray, ...]:
        return (np.zeros(batch),)

    def step(self, tokens_B: np.ndarray, state: tuple[np.ndarray, ...]) -> tuple[Scores, tuple[np.ndarray, ...]]:
        return np.full((len(tokens_B), LETTERS.size), -math.log(LETTERS.size - 1)), state


def test_the_perplexity_of_a_uniform_model_is_the_number_of_classes() -> None:
    told: list[tuple[int, int]] = []
    measured = perplexity(Uniform(), LETTERS, TEXTS, lambda *done: told.append(done))
    assert measured.per_token == pytest.approx(5.0)
    assert (measured.sentences, measured.words, measured.tokens) == (5, 9, 18)
    assert measured.per_word == pytest.approx(5.0 ** ((18 + 5) / (9 + 5)))
    assert told[-1] == (5, 5)


@pytest.mark.parametrize("rows", [1, 2, 32])
def test_sentences_are_scored_to_their_ends_in_batches_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(module, "ROWS", rows)
    table = random_table(LETTERS.tokens, 3, 2)
    model = ArpaModel.load(write_arpa(tmp_path / "a.arpa", table), LETTERS)
    expected = 0.0
    for text in TEXTS:
        said = ["<s>", *("<space>" if c == " " else c for c in text), "</s>"]
        expected += sum(log_p(table, said[:n], said[n]) for n in range(1, len(said)))
    assert perplexity(model, LETTERS, TEXTS, lambda *_: None).log_p == pytest.approx(expected)


def test_sentences_outside_the_vocabulary_and_unknown_words_are_counted() -> None:
    assert perplexity(Uniform(), LETTERS, ["ab", "xy"], lambda *_: None).left_out == 1
    words = Vocabulary("words", (UNKNOWN, "a", "b", "c"))
    measured = perplexity(Uniform(), words, ["a x", "y"], lambda *_: None)
    assert (measured.unknown, measured.tokens, measured.left_out) == (2, 3, 0)
    with pytest.raises(DataError, match="the character 'x'"):
        perplexity(Uniform(), LETTERS, ["xy"], lambda *_: None)


def test_a_text_of_probability_zero_has_infinite_perplexity() -> None:
    class Never(Uniform):
        def step(self, tokens_B: np.ndarray, state: tuple[np.ndarray, ...]) -> tuple[Scores, tuple[np.ndarray, ...]]:
            return np.full((len(tokens_B), LETTERS.size), -np.inf), state

    assert perplexity(Never(), LETTERS, TEXTS, lambda *_: None).per_token == math.inf


def run(*arguments: object) -> dict[str, str]:
    from headsync.cli.app import app

    result = CliRunner().invoke(app, ["perplexity", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return {line[:22].strip(): line[22:].strip() for line in result.stdout.splitlines()}


def test_the_command_prints_the_figures(tmp_path: Path) -> None:
    table = {("<s>",): (-99.0, 0.0), **{(word,): (-math.log10(4), 0.0) for word in ("a", "ab", "</s>", "<unk>")}}
    model = write_arpa(tmp_path / "words.arpa", table)
    text = tmp_path / "text.txt"
    text.write_text("AB A\nA X\n")
    figures = run(model, text, "--case", "lower")
    assert figures["sentences"] == "2"
    assert figures["words"] == "4, and 2 ends of sentences"
    assert figures["tokens"] == "4, 25.00% of them unknown, and 2 ends"
    assert figures["perplexity per token"] == "4.000"
    assert figures["perplexity per word"] == "4.00"


def test_the_command_measures_as_a_recogniser_would_use_the_model(tmp_path: Path) -> None:
    from headsync.config import Config
    from headsync.frontend.features import NUM_MEL, Statistics
    from headsync.model_folder import WEIGHTS, save_folder

    recogniser, text = tmp_path / "recogniser", tmp_path / "text.txt"
    save_folder(recogniser, Config(), LETTERS, Statistics(np.zeros(NUM_MEL, np.float32), np.ones(NUM_MEL, np.float32)))
    (recogniser / WEIGHTS).touch()
    table = {("<s>",): (-99.0, 0.0), **{(word,): (-math.log10(4), 0.0) for word in ("a", "ab", "</s>", "<unk>")}}
    text.write_text("ab a\na\n")
    figures = run(write_arpa(tmp_path / "words.arpa", table), text, "--recogniser", recogniser)
    assert figures["tokens"] == "5, and 2 ends"
    assert figures["perplexity per word"] == "4.00"

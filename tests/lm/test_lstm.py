"""Language models for the search: the LSTM in NumPy equals that of PyTorch, and errors are clear."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from arpa_files import random_table, write_arpa
from headsync.config import Config, LanguageConfig
from headsync.engine.state_tree import take_rows
from headsync.errors import ModelError
from headsync.lm.arpa import ArpaModel
from headsync.lm.lstm import LstmModel, load_language_model, open_language_model
from headsync.lm.word_lm import WordsOverCharacters
from headsync.model_folder import CONFIG, VOCABULARY, WEIGHTS, load_language_folder, save_language_folder
from headsync.nn.lstm_lm import LanguageNetwork
from headsync.text.vocabulary import UNKNOWN, Vocabulary
from random_weights import scrambled

LETTERS = Vocabulary("characters", ("<space>", "a", "b", "c"))
WORDS = Vocabulary("words", (UNKNOWN, "a", "ab", "cab"))


def make(path: Path, vocabulary: Vocabulary, layers: int = 2, seed: int = 1) -> LanguageNetwork:
    """A model folder with random weights, and the network that is in it."""
    config = Config(kind="lm", language=LanguageConfig(layers=layers, width=7))
    model = scrambled(LanguageNetwork(config.language, vocabulary.size), seed).float()
    save_language_folder(path, config, vocabulary)
    save_file(model.state_dict(), path / WEIGHTS)
    return model


@pytest.mark.parametrize("layers", [1, 2, 4])
@torch.no_grad()
def test_the_lstm_in_numpy_equals_that_of_torch(tmp_path: Path, layers: int) -> None:
    network = make(tmp_path, LETTERS, layers)
    model = load_language_model(tmp_path, LETTERS)
    assert isinstance(model, LstmModel)
    tokens_BL = torch.randint(1, LETTERS.size, (3, 40), generator=torch.Generator().manual_seed(1))
    tokens_BL[:, 0] = LETTERS.end
    expected = network(tokens_BL).log_softmax(-1).numpy()
    state = model.start(3)
    for step, tokens_B in enumerate(tokens_BL.numpy().T):
        scores, state = model.step(tokens_B, state)
        np.testing.assert_allclose(scores, expected[:, step], atol=1e-5)
        assert (scores[:, 0] == -np.inf).all()
        assert np.exp(scores).sum(1) == pytest.approx(np.ones(3), abs=1e-9)


def test_selecting_rows_commutes_with_a_step_and_a_state_survives_pickling(tmp_path: Path) -> None:
    make(tmp_path, LETTERS)
    model = load_language_model(tmp_path, LETTERS)
    _, state = model.step(np.array([5, 5, 5]), model.start(3))
    _, state = model.step(np.array([1, 2, 3]), state)
    scores, after = model.step(np.array([3, 2, 1]), state)
    taken, after_taken = model.step(np.array([1, 3, 1]), take_rows(pickle.loads(pickle.dumps(state)), [2, 0, 2]))
    np.testing.assert_allclose(taken, scores[[2, 0, 2]], atol=1e-6)
    for (hidden, cell), (other_hidden, other_cell) in zip(after, after_taken, strict=True):
        np.testing.assert_allclose(other_hidden, hidden[[2, 0, 2]], atol=1e-6)
        np.testing.assert_allclose(other_cell, cell[[2, 0, 2]], atol=1e-6)


def test_large_inputs_do_not_overflow(tmp_path: Path) -> None:
    network = make(tmp_path, LETTERS)
    save_file({name: 1e4 * tensor for name, tensor in network.state_dict().items()}, tmp_path / WEIGHTS)
    model = load_language_model(tmp_path, LETTERS)
    scores, _ = model.step(np.array([1]), model.start(1))
    assert np.exp(scores).sum() == pytest.approx(1.0)


# which file is which model


def test_an_arpa_file_is_read_over_the_recognisers_tokens(tmp_path: Path) -> None:
    path = write_arpa(tmp_path / "letters.arpa", random_table(LETTERS.tokens, 2, 1))
    assert isinstance(load_language_model(path, LETTERS), ArpaModel)


def test_a_model_of_words_is_spelled_over_characters(tmp_path: Path) -> None:
    make(tmp_path / "words", WORDS)
    assert isinstance(load_language_model(tmp_path / "words", LETTERS), WordsOverCharacters)
    path = write_arpa(tmp_path / "words.arpa", random_table(("a", "ab", "cab"), 2, 1))
    assert isinstance(load_language_model(path, LETTERS), WordsOverCharacters)


def test_an_arpa_file_without_a_recogniser_uses_its_own_words(tmp_path: Path) -> None:
    path = write_arpa(tmp_path / "words.arpa", random_table(("cab", "a"), 2, 1))
    _, vocabulary = open_language_model(path)
    assert vocabulary == Vocabulary("words", (UNKNOWN, "a", "cab"))


@pytest.mark.parametrize(
    ("own", "difference"),
    [
        (Vocabulary("characters", ("<space>", "a", "b")), "it lacks 'c'; train it with language.vocabulary_from"),
        (Vocabulary("characters", ("<space>", *"abcdefghij")), "it adds 'd', 'e', 'f', 'g', 'h' and 2 more; train"),
        (Vocabulary("characters", ("<space>", "a", "b", "x")), "it lacks 'c' and it adds 'x'; train"),
        (Vocabulary("characters", ("a", "b", "c", "<space>")), "its tokens are in another order; train"),
        (Vocabulary("bpe", ("▁", "a", "b", "c")), "its tokens are bpe, those of the recogniser are characters; train"),
    ],
)
def test_an_error_names_the_difference_of_vocabularies(tmp_path: Path, own: Vocabulary, difference: str) -> None:
    make(tmp_path, own)
    with pytest.raises(ModelError) as caught:
        load_language_model(tmp_path, LETTERS)
    assert str(caught.value).startswith(f"{tmp_path}: does not fit the recogniser: {difference}")


def test_words_that_cannot_be_spelled_are_an_error(tmp_path: Path) -> None:
    make(tmp_path / "a", Vocabulary("words", ("a", "b")))
    with pytest.raises(ModelError, match="because it has no <unk>"):
        load_language_model(tmp_path / "a", LETTERS)
    make(tmp_path / "b", WORDS)
    with pytest.raises(ModelError, match="because the recogniser has no <space>"):
        load_language_model(tmp_path / "b", Vocabulary("characters", ("a", "b", "c")))
    make(tmp_path / "c", Vocabulary("words", (UNKNOWN, "A", "AB")))
    with pytest.raises(ModelError, match="spell no word of the language model; check upper and lower case"):
        load_language_model(tmp_path / "c", LETTERS)


def test_a_file_that_is_not_a_language_model_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    with pytest.raises(ModelError, match=r"a model folder or a file that ends in \.arpa or \.arpa\.gz"):
        load_language_model(tmp_path / "model.bin", LETTERS)
    with pytest.raises(ModelError, match=r"config\.toml is missing"):
        load_language_model(tmp_path, LETTERS)


def test_damaged_folders_are_errors(tmp_path: Path) -> None:
    network = make(tmp_path, LETTERS)
    weights = load_file(tmp_path / WEIGHTS)
    for damage in (b"", b"x" * 100, (tmp_path / WEIGHTS).read_bytes()[:-1]):
        (tmp_path / WEIGHTS).write_bytes(damage)
        with pytest.raises(ModelError, match=r"weights\.safetensors: damaged"):
            load_language_model(tmp_path, LETTERS)
    save_file({name: tensor for name, tensor in weights.items() if name != "output.bias"}, tmp_path / WEIGHTS)
    with pytest.raises(ModelError, match=r"weights\.safetensors: of another model \('output\.bias'\)"):
        load_language_model(tmp_path, LETTERS)
    save_file(network.state_dict(), tmp_path / WEIGHTS)
    wider = replace(load_language_folder(tmp_path).config, language=LanguageConfig(layers=2, width=8))
    save_language_folder(tmp_path, wider, LETTERS)
    with pytest.raises(ModelError, match=r"does not match its config\.toml"):
        load_language_model(tmp_path, LETTERS)
    for name in (VOCABULARY, WEIGHTS, CONFIG):
        (tmp_path / name).unlink()
        with pytest.raises(ModelError, match=f"{name} is missing"):
            load_language_model(tmp_path, LETTERS)

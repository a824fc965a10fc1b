"""Language models for the search: an LSTM in NumPy, and the function that loads a model of any format.

A model scores the tokens of the recogniser. A model of words scores the characters of the recogniser through
`headsync.lm.word_lm`. Shapes: B rows, E embedding or width of a layer, G = 4 E gates, V classes (0 is blank).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headsync.engine import IntArray, State
from headsync.errors import ModelError, listed
from headsync.frontend.audio import FloatArray
from headsync.lm import LanguageModel, Scores
from headsync.lm.arpa import END, START, ArpaModel, words_of
from headsync.lm.word_lm import WordsOverCharacters
from headsync.model_folder import LanguageFolder, load_language_folder, load_weights
from headsync.text.vocabulary import SPACE, UNKNOWN, Vocabulary

ARPA = (".arpa", ".arpa.gz")


@dataclass(frozen=True)
class Layer:
    """One LSTM layer; input and recurrent weights are concatenated, so that a step is one product."""

    weight_EG: FloatArray
    bias_G: FloatArray

    def step(self, x_BE: FloatArray, hidden_BE: FloatArray, cell_BE: FloatArray) -> tuple[FloatArray, FloatArray]:
        gates = np.concatenate([x_BE, hidden_BE], axis=1) @ self.weight_EG + self.bias_G
        into, forget, new, out = np.split(gates, 4, axis=1)
        cell = _sigmoid(forget) * cell_BE + _sigmoid(into) * np.tanh(new)
        return _sigmoid(out) * np.tanh(cell), cell


@dataclass(frozen=True)
class LstmModel:
    """The network of `headsync.nn.lstm_lm`, step by step; its state holds (hidden, cell) of each layer."""

    embedding_VE: FloatArray
    layers: tuple[Layer, ...]
    output_EV: FloatArray
    bias_V: FloatArray

    @classmethod
    def load(cls, folder: LanguageFolder) -> LstmModel:
        language, classes = folder.config.language, folder.vocabulary.size
        w = load_weights(folder.weights)
        try:
            layers = tuple(_layer(w, number) for number in range(language.layers))
            model = cls(w["embedding.weight"], layers, np.ascontiguousarray(w["output.weight"].T), w["output.bias"])
        except (KeyError, ValueError) as error:
            raise ModelError(f"{folder.weights}: of another model ({error}); copy or train it again") from None
        sizes = [(classes, language.width), *[(2 * language.width, 4 * language.width)] * language.layers]
        found = [model.embedding_VE.shape, *(layer.weight_EG.shape for layer in layers), model.output_EV.shape]
        if found != [*sizes, (language.width, classes)]:
            raise ModelError(f"{folder.weights}: does not match its config.toml; copy or train it again")
        return model

    def start(self, batch: int) -> State:
        width = len(self.output_EV)
        nothing = np.zeros((batch, width), np.float32)
        return tuple((nothing, nothing) for _ in self.layers)

    def step(self, tokens_B: IntArray, state: State) -> tuple[Scores, State]:
        x_BE = self.embedding_VE[tokens_B]
        after = []
        for layer, (hidden_BE, cell_BE) in zip(self.layers, state, strict=True):
            x_BE, cell_BE = layer.step(x_BE, hidden_BE, cell_BE)
            after.append((x_BE, cell_BE))
        return _log_softmax(x_BE @ self.output_EV + self.bias_V), tuple(after)


def load_language_model(path: str | Path, vocabulary: Vocabulary) -> LanguageModel:
    """The model of a folder or an ARPA file, to score the tokens of `vocabulary`."""
    model, own = open_language_model(path, vocabulary)
    if own == vocabulary:
        return model
    if own.kind == "words" and vocabulary.kind == "characters":
        if UNKNOWN not in own.tokens or SPACE not in vocabulary.tokens:
            lacking = f"it has no {UNKNOWN}" if UNKNOWN not in own.tokens else f"the recogniser has no {SPACE}"
            raise ModelError(f"{path}: this word model cannot score characters, because {lacking}")
        return WordsOverCharacters(model, own, vocabulary)
    raise ModelError(f"{path}: does not fit the recogniser: {_difference(own, vocabulary)}")


def open_language_model(path: str | Path, vocabulary: Vocabulary | None = None) -> tuple[LanguageModel, Vocabulary]:
    """A model and the tokens that it scores; an ARPA file scores the tokens of `vocabulary` if possible."""
    path = Path(path)
    if path.is_dir():
        folder = load_language_folder(path)
        return LstmModel.load(folder), folder.vocabulary
    if not path.name.endswith(ARPA):
        raise ModelError(f"{path}: a language model is a model folder or a file that ends in {' or '.join(ARPA)}")
    if vocabulary is None or _is_of_words(words_of(path), vocabulary):
        vocabulary = Vocabulary("words", tuple(sorted({UNKNOWN, *words_of(path)} - {START, END})))
    return ArpaModel.load(path, vocabulary), vocabulary


def _is_of_words(words: set[str], vocabulary: Vocabulary) -> bool:
    """Whether a file is a word model and the recogniser has characters."""
    special = {START, END, UNKNOWN, *vocabulary.tokens}
    return vocabulary.kind == "characters" and any(len(word) > 1 for word in words - special)


def _layer(weights: dict[str, npt.NDArray[np.float32]], number: int) -> Layer:
    both = [weights[f"lstm.weight_{part}_l{number}"] for part in ("ih", "hh")]
    bias = weights[f"lstm.bias_ih_l{number}"] + weights[f"lstm.bias_hh_l{number}"]
    return Layer(np.ascontiguousarray(np.concatenate(both, axis=1).T), bias)


def _sigmoid(x: FloatArray) -> FloatArray:
    half = np.float32(0.5)
    return np.asarray(half + half * np.tanh(half * x))  # does not overflow


def _log_softmax(logits_BV: FloatArray) -> Scores:
    scores = logits_BV.astype(np.float64)
    scores[:, 0] = -np.inf
    scores -= scores.max(axis=1, keepdims=True)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return scores


def _difference(own: Vocabulary, vocabulary: Vocabulary) -> str:
    """The difference between two vocabularies, and the remedy."""
    remedy = "train it with language.vocabulary_from set to the recogniser's folder"
    if own.kind != vocabulary.kind:
        return f"its tokens are {own.kind}, those of the recogniser are {vocabulary.kind}; {remedy}"
    lacks = [token for token in vocabulary.tokens if token not in set(own.tokens)]
    more = [token for token in own.tokens if token not in set(vocabulary.tokens)]
    parts = [
        f"{what} {listed([*map(repr, tokens)], 5)}"
        for what, tokens in (("it lacks", lacks), ("it adds", more))
        if tokens
    ]
    return f"{' and '.join(parts) or 'its tokens are in another order'}; {remedy}"

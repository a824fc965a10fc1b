"""Vocabulary: text to token ids and back. The last stage of the data path, shared with training.

Ids: 0 is the CTC blank, 1 to n are the tokens, n + 1 both starts and ends a sentence. A character vocabulary has the
token "<space>". A vocabulary of subwords marks the start of a word with "▁"; in a BPE vocabulary the order of tokens
is that of the merges, in a unigram vocabulary every token has a log probability, its score. The token "<unk>", where
it exists, stands for every word or character outside the vocabulary. Any other token in angle brackets stands for a
sound, such as "<noise>": the model recognises it, and it is not part of the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, get_args
from unicodedata import category

from headsync._atomic_write import write_atomically
from headsync._parse import parse_json
from headsync.config import DataConfig
from headsync.errors import DataError, ModelError, listed
from headsync.text.bpe import MARK, SUBWORDS, UNKNOWN_PENALTY, learn_pieces, learn_unigrams, merged, most_probable

TokenKind = Literal["characters", "bpe", "unigram", "words"]
SPACE = "<space>"
UNKNOWN = "<unk>"


class Span(NamedTuple):
    """A word and the positions of its tokens: from `first` to `end`, exclusive."""

    text: str
    first: int
    end: int


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model, in the order of its outputs."""

    kind: TokenKind
    tokens: tuple[str, ...]
    scores: tuple[float, ...] = ()  # of every token of a unigram model

    def __post_init__(self) -> None:
        if self.kind not in get_args(TokenKind):
            raise DataError(
                f'vocabulary kind "{self.kind}" is not known; it is one of {", ".join(get_args(TokenKind))}.'
            )
        if not self.tokens:
            raise DataError("a vocabulary requires at least one token; build it from texts that are not empty.")
        if wrong := [token for token in self.tokens if not _is_token(self.kind, token)]:
            raise DataError(f"{wrong[0]!r} cannot be a token of a vocabulary of {self.kind}; build it from texts.")
        if len(self.scores) != (len(self.tokens) if self.kind == "unigram" else 0):
            raise DataError("every token of a unigram vocabulary has a score, and no other token has one.")
        if len(set(self.tokens)) < len(self.tokens):
            raise DataError("a token occurs twice in the vocabulary; tokens must be unique.")

    @property
    def size(self) -> int:
        """The number of tokens plus the blank and the sentence end: the width of the network's output."""
        return len(self.tokens) + 2

    @property
    def blank(self) -> int:
        return 0

    @property
    def end(self) -> int:
        """The one id that starts and ends a sentence."""
        return len(self.tokens) + 1

    @property
    def punctuation(self) -> frozenset[int]:
        """The subwords without a letter, digit or combining mark."""
        if self.kind not in SUBWORDS:
            return frozenset()
        pieces = ((number, token.strip(MARK)) for number, token in enumerate(self.tokens, 1))
        return frozenset(n for n, piece in pieces if piece and not any(category(c)[0] in "LNM" for c in piece))

    @classmethod
    def build(cls, kind: TokenKind, texts: Iterable[str]) -> Vocabulary:
        """Every token of the texts, sorted: a corpus always gives the same ids; subwords: see `build_vocabulary`."""
        return cls(kind, tuple(sorted({token for text in texts for token in _split(kind, text)})))

    def encode(self, text: str) -> list[int]:
        """The ids of a text; runs of white space count as one space."""
        if self.kind in SUBWORDS:
            return [token_id for word in text.split() for token_id in self._word(word, text)]
        return [self._id(token, text) for token in _split(self.kind, text)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without blanks and sentence ends.

        The text of a prefix of the ids is a prefix of the text, so it can be shown while it grows.
        """
        return " ".join(span.text for span in self.words(ids))

    def readable(self, text: str) -> str:
        """A text without its sound tokens."""
        return " ".join(word for word in text.split() if not is_sound(word))

    def words(self, ids: Sequence[int], complete: bool = False) -> list[Span]:
        """The words of `ids`, with their positions; `complete`: without a last word that tokens could extend."""
        spans: list[Span] = []
        joins = False  # whether the next token can continue the last word
        for position, token_id in enumerate(ids):
            token = self._token(token_id)
            if token is None:
                continue
            begins, text = spelled(self.kind, token)
            joins = joins and not begins
            if joins:
                spans[-1] = Span(spans[-1].text + text, spans[-1].first, position + 1)
            elif text:
                spans.append(Span(text, position, position + 1))
                joins = self.kind != "words"
        if complete and joins:
            spans.pop()
        return spans

    def save(self, path: Path) -> None:
        content: dict[str, object] = {"kind": self.kind, "tokens": list(self.tokens)}
        if self.scores:
            content["scores"] = list(self.scores)
        write_atomically(path, (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read the file that `save` wrote; a missing or damaged file raises ModelError."""
        try:
            content = parse_json(Path(path).read_text(encoding="utf-8"))
            if not isinstance(content, dict) or not isinstance(content.get("tokens"), list):
                raise ModelError(f'{path}: expected an object with "kind" and "tokens"; copy the model again.')
            return cls(content.get("kind", ""), tuple(content["tokens"]), tuple(content.get("scores", ())))
        except (OSError, ValueError, TypeError, DataError) as error:
            raise ModelError(f"{path}: the vocabulary cannot be read ({error}); copy the model again.") from None

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens, 1)}

    @cached_property
    def _words(self) -> dict[str, list[int]]:
        """A cache of encoded words: merging is slow and most words occur again."""
        return {}

    def _word(self, word: str, text: str) -> list[int]:
        if word not in self._words:
            if MARK in word:
                raise DataError(f"{MARK!r} in {_shorten(text)!r} marks the start of a word and cannot be part of one.")
            self._words[word] = [self._id(piece, text) for piece in self._pieces(MARK + word)]
        return self._words[word]

    def _pieces(self, word: str) -> list[str]:
        return most_probable(word, self._scores) if self.scores else merged(word, self._ids)

    @cached_property
    def _scores(self) -> dict[str, float]:
        return {token: score for token, score in zip(self.tokens, self.scores, strict=True) if token != UNKNOWN}

    def _id(self, token: str, text: str) -> int:
        if token in self._ids:
            return self._ids[token]
        if UNKNOWN in self._ids:
            return self._ids[UNKNOWN]
        unit = "word" if self.kind == "words" else "character"
        raise DataError(
            f"the {unit} {token!r} in {_shorten(text)!r} is not in the vocabulary, which has {listed(self.tokens, 40)}."
        )

    def _token(self, token_id: int) -> str | None:
        assert 0 <= token_id < self.size, f"token id {token_id} outside 0 to {self.size - 1}"
        return None if token_id in (self.blank, self.end) else self.tokens[token_id - 1]


def build_vocabulary(data: DataConfig, texts: Iterable[str]) -> Vocabulary:
    """The vocabulary of a recipe, from its training texts; all but words have <unk>, for characters not in them."""
    unknown = () if data.tokens == "words" else (UNKNOWN,)
    if data.tokens == "unigram":
        scores = learn_unigrams(texts, data.bpe_size - len(unknown))
        scores |= dict.fromkeys(unknown, min(scores.values()) - UNKNOWN_PENALTY)
        return Vocabulary("unigram", tuple(scores), tuple(scores.values()))
    if data.tokens == "bpe":
        tokens = (*learn_pieces(texts, data.bpe_size - len(unknown)), *unknown)
    else:
        tokens = tuple(sorted({*Vocabulary.build(data.tokens, texts).tokens, *unknown}))
    return Vocabulary(data.tokens, tokens)


def is_sound(token: str) -> bool:
    """Whether a token stands for a sound, which is not part of the text."""
    return len(token) > 2 and token[0] == "<" and token[-1] == ">" and token not in (SPACE, UNKNOWN)


def _split(kind: TokenKind, text: str) -> list[str]:
    assert kind not in SUBWORDS, "subwords are learned: see build_vocabulary"
    words = text.split()
    if kind == "words":
        return words
    spelled = [[word] if is_sound(word) or word == UNKNOWN else list(word) for word in words]
    return [token for n, word in enumerate(spelled) for token in ([SPACE, *word] if n else word)]


def spelled(kind: TokenKind, token: str) -> tuple[bool, str]:
    """Whether a token begins a word, and its text."""
    if is_sound(token):
        return True, ""
    if kind == "words":
        return True, token
    if kind in SUBWORDS:
        return token.startswith(MARK), token.removeprefix(MARK)
    return token == SPACE, "" if token == SPACE else token


def _is_token(kind: TokenKind, token: object) -> bool:
    if not isinstance(token, str) or not token or token.split() != [token]:
        return False
    if kind in SUBWORDS:
        return MARK not in token[1:]
    return kind == "words" or token in (SPACE, UNKNOWN) or len(token) == 1 or is_sound(token)


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."

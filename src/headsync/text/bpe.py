"""Subwords, learned from texts by sentencepiece: byte-pair encoding or a unigram model.

BPE: a word is first split into its characters, after a mark for its start. Then neighbours that form a subword are
merged; the subword that was learned first is merged first, from the left. The ordered list of subwords is the whole
model. Unigram: every subword has a log probability, and a word is split such that their sum is the largest. So
recognition does not need sentencepiece.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np

from headsync.errors import ConfigError, DataError

MARK = "▁"  # the start of a word
SUBWORDS = ("bpe", "unigram")
UNKNOWN_PENALTY = 10.0  # of a character that is no subword, below the least probable one, as in sentencepiece
_LONGEST_BYTES = 1 << 24  # of a text; sentencepiece skips longer ones by default


def merged(word: str, ranks: Mapping[str, int]) -> list[str]:
    """The subwords of a word; `ranks` gives the order in which they were learned."""
    pieces = list(word)
    while len(pieces) > 1:
        joined = [ranks.get(left + right) for left, right in pairwise(pieces)]
        best = min((rank for rank in joined if rank is not None), default=None)
        if best is None:
            break
        place = joined.index(best)
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
    return pieces


def most_probable(word: str, scores: Mapping[str, float]) -> list[str]:
    """The subwords of a word with the largest sum of scores; unknown characters are single subwords."""
    unknown = np.float32(min(scores.values()) - UNKNOWN_PENALTY)
    best, last = [np.float32(0)] + [np.float32(-np.inf)] * len(word), [0] * (len(word) + 1)
    for start in range(len(word)):
        for end in range(start + 1, len(word) + 1):
            score = scores.get(word[start:end], unknown if end == start + 1 else None)
            if score is not None and (total := best[start] + np.float32(score)) > best[end]:
                best[end], last[end] = total, start
    pieces, end = [], len(word)
    while end:
        pieces.append(word[last[end] : end])
        end = last[end]
    return pieces[::-1]


def learn_pieces(texts: Iterable[str], size: int) -> tuple[str, ...]:
    """At most `size` subwords of BPE, including all characters; fewer if the texts have no more pairs to merge."""
    return tuple(piece for piece, _ in _sentencepiece(_lines(texts, size), size, "bpe"))


def learn_unigrams(texts: Iterable[str], size: int) -> dict[str, float]:
    """At most `size` subwords, including all characters, with their log probabilities."""
    return dict(_sentencepiece(_lines(texts, size), size, "unigram"))


def _lines(texts: Iterable[str], size: int) -> list[str]:
    """The texts without superfluous spaces, if they can be learned from."""
    lines = [line for text in texts if (line := " ".join(text.split()))]
    characters = {MARK, *(character for line in lines for character in line if character != " ")}
    if not lines:
        raise DataError("there is no text to learn subwords from; check data.train of the recipe")
    if any(MARK in line for line in lines):
        raise DataError(f"a text contains {MARK!r}, which marks the start of a word; remove it")
    if size < len(characters):
        raise ConfigError(f"data.bpe_size = {size} must be at least {len(characters)}, the characters of the texts")
    return lines


def _sentencepiece(lines: list[str], size: int, kind: str) -> list[tuple[str, float]]:
    """The subwords with their scores."""
    try:
        import sentencepiece
    except ModuleNotFoundError:
        raise ConfigError(
            f"data.tokens = \"{kind}\" requires the package sentencepiece: pip install 'headsync[train]'"
        ) from None
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type=kind,
        vocab_size=size + 1, hard_vocab_limit=False,  # includes its <unk>
        unk_id=0, bos_id=-1, eos_id=-1, pad_id=-1,
        character_coverage=1.0, normalization_rule_name="identity",  # texts are not changed
        max_sentence_length=_LONGEST_BYTES, num_threads=1, minloglevel=2,
    )  # fmt: skip
    learned = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [(learned.id_to_piece(number), learned.get_score(number)) for number in range(1, learned.get_piece_size())]

"""Byte-pair encoding: pieces of words, learned from texts and put together again.

A word is first its characters, behind the mark of its start; then, as long as two neighbours make a piece, those whose
piece was learned first are joined, from the left. So the order of the pieces is the whole model, and recognition needs
no more than their list. Learning them is left to sentencepiece, which is needed for training alone.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from itertools import pairwise

from headsync.errors import ConfigError, DataError

MARK = "▁"  # of the start of a word
LONGEST_BYTES = 1 << 24  # of a text; sentencepiece leaves out longer ones


def merged(word: str, ranks: Mapping[str, int]) -> list[str]:
    """The pieces of a word; `ranks` tells which piece was learned first."""
    pieces = list(word)
    while len(pieces) > 1:
        joined = [ranks.get(left + right) for left, right in pairwise(pieces)]
        best = min((rank for rank in joined if rank is not None), default=None)
        if best is None:
            break
        place = joined.index(best)
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
    return pieces


def learn_pieces(texts: Iterable[str], size: int) -> tuple[str, ...]:
    """At most `size` pieces, all characters of the texts among them; fewer where the texts have no more to join."""
    lines = [line for text in texts if (line := " ".join(text.split()))]
    characters = {MARK, *(character for line in lines for character in line if character != " ")}
    if not lines:
        raise DataError("there is no text to learn BPE from; check data.train of the recipe")
    if any(MARK in line for line in lines):
        raise DataError(f"a text contains {MARK!r}, by which BPE marks the start of a word; take it out")
    if size < len(characters):
        raise ConfigError(f"data.bpe_size = {size} is less than the {len(characters)} characters of the texts")
    return _sentencepiece(lines, size)


def _sentencepiece(lines: list[str], size: int) -> tuple[str, ...]:
    try:
        import sentencepiece
    except ModuleNotFoundError:
        raise ConfigError(
            'data.tokens = "bpe" needs the package sentencepiece to learn its tokens: pip install sentencepiece'
        ) from None
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe",
        vocab_size=size + 1, hard_vocab_limit=False,  # it counts its <unk> as well
        unk_id=0, bos_id=-1, eos_id=-1, pad_id=-1,
        character_coverage=1.0, normalization_rule_name="identity",  # texts are taken as they are
        max_sentence_length=LONGEST_BYTES, num_threads=1, minloglevel=2,
    )  # fmt: skip
    learned = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return tuple(learned.id_to_piece(number) for number in range(1, learned.get_piece_size()))

"""Byte-pair encoding: subwords, learned from texts by sentencepiece.

A word is first split into its characters, after a mark for its start. Then neighbours that form a subword are merged;
the subword that was learned first is merged first, from the left. The ordered list of subwords is the whole model, so
recognition does not need sentencepiece.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from itertools import pairwise

from headsync.errors import ConfigError, DataError

MARK = "▁"  # the start of a word
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


def learn_pieces(texts: Iterable[str], size: int) -> tuple[str, ...]:
    """At most `size` subwords, including all characters; fewer if the texts have no more pairs to merge."""
    lines = [line for text in texts if (line := " ".join(text.split()))]
    characters = {MARK, *(character for line in lines for character in line if character != " ")}
    if not lines:
        raise DataError("there is no text to learn subwords from; check data.train of the recipe")
    if any(MARK in line for line in lines):
        raise DataError(f"a text contains {MARK!r}, which marks the start of a word in BPE; remove it")
    if size < len(characters):
        raise ConfigError(f"data.bpe_size = {size} must be at least {len(characters)}, the characters of the texts")
    return _sentencepiece(lines, size)


def _sentencepiece(lines: list[str], size: int) -> tuple[str, ...]:
    try:
        import sentencepiece
    except ModuleNotFoundError:
        raise ConfigError(
            "data.tokens = \"bpe\" requires the package sentencepiece: pip install 'headsync[train]'"
        ) from None
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe",
        vocab_size=size + 1, hard_vocab_limit=False,  # includes its <unk>
        unk_id=0, bos_id=-1, eos_id=-1, pad_id=-1,
        character_coverage=1.0, normalization_rule_name="identity",  # texts are not changed
        max_sentence_length=_LONGEST_BYTES, num_threads=1, minloglevel=2,
    )  # fmt: skip
    learned = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return tuple(learned.id_to_piece(number) for number in range(1, learned.get_piece_size()))

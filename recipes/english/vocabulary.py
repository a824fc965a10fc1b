"""A pruned vocabulary: the pieces of Moonshine's tokenizer that English text uses, closed under spelling.

    python recipes/english/vocabulary.py             # writes runs/english/vocabulary.json and prints figures

Moonshine has 32,768 pieces for all languages. Kept here are pieces that occur often enough in the training texts (what
the teachers read, Common Voice's sentences, a text of LibriSpeech in lower case), all characters of English text, and
all intermediate pieces of the merges that form a kept piece, so that each kept piece can still be reached. Token 0
of the pruned vocabulary is the blank of CTC, 1 and 2 begin and end a sentence; `rows` is the row of Moonshine's
embedding for each token. One vocabulary serves CTC and the decoder.
"""

from __future__ import annotations

import argparse
import json
import os
import string
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from label import CORPORA, readings
from moonshine import BOS, EOS, Tokenizer
from speech import LABELS, RUNS, read_manifest

FILE = RUNS / "vocabulary.json"
SHARED = Path(__file__).resolve().parents[3] / "shared/data"  # text beside the checkout, if there is any
TEXT = Path(os.environ.get("HEADSYNC_DATA", SHARED)) / "text/librispeech-train-clean-100.txt"
SPACE = "▁"
CHARACTERS = string.ascii_letters + ".,?!'-:;\"" + SPACE
FIRST = 259  # before it: control tokens and bytes
NEVER = 1 << 30  # number of a piece that does not exist


class Merges:
    """Byte-pair merges of a set of pieces; a piece with a smaller number is merged first."""

    def __init__(self, numbers: dict[str, int]) -> None:
        self.numbers = numbers
        self._word = lru_cache(maxsize=200_000)(self._merge)

    def encode(self, text: str) -> list[int]:
        """Numbers of the pieces of a text; characters that the vocabulary lacks are left out."""
        words = text.split()
        return [self.numbers[piece] for word in words for piece in self._word(SPACE + word)]

    def spell(self, word: str) -> tuple[str, ...]:
        """The pieces of a word that begins with the mark of a space."""
        return self._word(word)

    def _merge(self, word: str) -> tuple[str, ...]:
        parts = [c for c in word if c in self.numbers]
        while len(parts) > 1:
            pairs = [(self.numbers.get(a + b, NEVER), i) for i, (a, b) in enumerate(pairwise(parts))]
            number, place = min(pairs)
            if number == NEVER:
                break
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        return tuple(parts)

    def halves(self, piece: str) -> Iterator[str]:
        """All pieces on the way from the characters of a piece to the piece."""
        parts = list(piece)
        while len(parts) > 1:
            pairs = [(self.numbers.get(a + b, NEVER), i) for i, (a, b) in enumerate(pairwise(parts))]
            number, place = min(pairs)
            if number == NEVER:
                return
            yield from (parts[place], parts[place + 1])
            parts[place : place + 2] = [parts[place] + parts[place + 1]]


class Vocabulary:
    """The pruned vocabulary, read from its file."""

    def __init__(self, path: Path = FILE) -> None:
        if not path.is_file():
            raise SystemExit(f"{path}: not found; run `python recipes/english/vocabulary.py` first")
        stored = json.loads(path.read_text())
        self.pieces: list[str] = stored["pieces"]
        self.rows: list[int] = stored["rows"]
        original = dict(zip(self.pieces, self.rows, strict=True))
        self._merges = Merges({piece: row for piece, row in original.items() if row >= FIRST})
        self._token = {row: token for token, row in enumerate(self.rows) if token}

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        return [self._token[row] for row in self._merges.encode(text)]

    def decode(self, tokens: Iterable[int]) -> str:
        return "".join(self.pieces[t] for t in tokens if t > EOS).replace(SPACE, " ").strip()


def all_pieces() -> dict[str, int]:
    """Moonshine's pieces of text and their numbers."""
    pieces = Tokenizer().pieces
    return {piece.decode(): number for number, piece in enumerate(pieces) if number >= FIRST and _is_text(piece)}


def _is_text(piece: bytes) -> bool:
    try:
        return not piece.decode().startswith("<<")
    except UnicodeDecodeError:
        return False


def texts() -> Iterator[str]:
    """All texts that are counted."""
    for corpus in CORPORA:
        yield from (row["text"] for row in readings(LABELS / f"{corpus}-tiny.jsonl").values())
    yield from (u.text for u in read_manifest("commonvoice", "train") if u.text)
    if TEXT.is_file():
        yield from (line.lower() for line in TEXT.read_text().splitlines())


def plain(text: str) -> str:
    """Usual apostrophes and quotation marks."""
    return text.translate(str.maketrans("‘’“”–—", "''\"\"--"))


def build(least: int) -> tuple[list[str], list[int], Counter[str]]:
    """Pieces, their numbers in Moonshine's vocabulary, and their counts."""
    numbers = all_pieces()
    merges, counts = Merges(numbers), Counter[str]()
    words = Counter(word for text in texts() for word in plain(text).split())
    for word, count in words.items():
        for piece in merges.spell(SPACE + word):
            counts[piece] += count
    allowed = set(CHARACTERS)
    kept = {piece for piece, count in counts.items() if count >= least and set(piece) <= allowed}
    kept |= {c for c in CHARACTERS if c in numbers}
    for piece in list(kept):
        kept |= set(merges.halves(piece))
    order = sorted(kept, key=lambda piece: numbers[piece])
    pieces, rows = ["<blank>", "<s>", "</s>", *order], [0, BOS, EOS, *(numbers[piece] for piece in order)]
    return pieces, rows, words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--least", type=int, default=5, help="minimum number of occurrences of a piece")
    pieces, rows, words = build(parser.parse_args().least)
    FILE.write_text(json.dumps({"pieces": pieces, "rows": rows}, ensure_ascii=False))
    vocabulary, full = Vocabulary(), Merges(all_pieces())
    total = sum(words.values())
    for name, encode in (("all", full.encode), ("pruned", vocabulary.encode)):
        print(f"{name}: {sum(n * len(encode(w)) for w, n in words.items()) / total:.3f} pieces per word")
    lost = [w for w in words if vocabulary.decode(vocabulary.encode(w)) != w]
    print(f"{len(pieces)} pieces kept; {sum(words[w] for w in lost)} of {total} words lose a character: {lost[:12]}")
    same = [(row["tokens"], full.encode(row["text"])) for row in readings(LABELS / "librispeech-tiny.jsonl").values()]
    print(f"tokens of tiny's readings equal ours: {sum(a == b for a, b in same)} of {len(same)}")


if __name__ == "__main__":
    main()

"""Mutations of bytes, for runs without a coverage-guided fuzzer: the same seed gives the same inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

NUMBERS = (b"\x00" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80\x00\x00\x00", b"\x01\x00\x00\x00")


def mutations(
    inputs: Sequence[bytes], words: Sequence[bytes], count: int, max_bytes: int, seed: str
) -> Iterator[bytes]:
    """Inputs with one to eight changes each."""
    random = Random(seed)
    for _ in range(count):
        data = bytearray(random.choice(inputs)[:max_bytes])
        for _ in range(random.choice((1, 1, 2, 4, 8))):
            _change(data, inputs, words, random)
        yield bytes(data[:max_bytes])


def _change(data: bytearray, inputs: Sequence[bytes], words: Sequence[bytes], random: Random) -> None:
    first = random.randrange(len(data) + 1)
    end = min(len(data), first + random.choice((1, 2, 4, 16, 256)))
    kind = random.randrange(6)
    if kind == 0:
        data[first:end] = random.randbytes(end - first)
    elif kind == 1:
        del data[first:end]
    elif kind == 2:
        data[first:first] = random.choice([*words, *NUMBERS])
    elif kind == 3:
        new = random.choice([*words, *NUMBERS])
        data[first : first + len(new)] = new
    elif kind == 4:
        data[first:first] = data[first:end] * random.choice((1, 2, 16))
    else:
        other = random.choice(inputs)
        place = random.randrange(len(other) + 1)
        data[first:end] = other[place : place + 64]

"""SPHERE files as the LDC's discs have them, written here: a header of 1024 bytes, then samples, plain or shortened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.int16]
BLOCK = 256
DIFF0, QUIT, BLOCKSIZE, ZERO = 0, 4, 5, 8  # commands of shorten


class Bits:
    """The numbers of shorten: a Rice code, the number's upper part in zeros before a one, its lower bits behind."""

    def __init__(self) -> None:
        self.bits: list[int] = []

    def number(self, value: int, low: int) -> None:
        self.bits += [0] * (value >> low) + [1] + [(value >> n) & 1 for n in reversed(range(low))]

    def parameter(self, value: int) -> None:
        width = max(value.bit_length(), 1)
        self.number(width, 2)
        self.number(value, width)

    def signed(self, value: int, low: int) -> None:
        self.number(2 * value if value >= 0 else -2 * value - 1, low)

    def packed(self) -> bytes:
        return np.packbits(np.array(self.bits + [0] * (-len(self.bits) % 32), np.uint8)).tobytes()


def shortened(samples: Samples) -> bytes:
    """Blocks without prediction, each with a separate Rice parameter; silent blocks are coded as such."""
    bits = Bits()
    for value in (5, 1, BLOCK, 0, 0, 0):  # 16 bits low byte first, one channel, block size, no prediction, mean or skip
        bits.parameter(value)
    for begin in range(0, len(samples), BLOCK):
        block = samples[begin : begin + BLOCK]
        if len(block) < BLOCK:
            bits.number(BLOCKSIZE, 2)
            bits.parameter(len(block))
        if not block.any():
            bits.number(ZERO, 2)
            continue
        low = max(int(np.abs(block.astype(int)).mean()).bit_length() - 1, 0)
        bits.number(DIFF0, 2)
        bits.number(low, 3)
        for value in block:
            bits.signed(int(value), low + 1)
    bits.number(QUIT, 2)
    return b"ajkg\x02" + bits.packed()


def write_sphere(
    path: Path, samples: Samples, *, shorten: bool = True, rate: int = 16_000, checksum: int | None = None
) -> None:
    """A file as it stands on a disc; the checksum is right unless one is given."""
    body = shortened(samples) if shorten else samples.astype("<i2").tobytes()
    coding = "pcm,embedded-shorten-v1.1" if shorten else "pcm"
    right = int(samples.astype(np.int64).sum()) % 65_536
    fields = [
        "database_id -s4 WSJ0", "channel_count -i 1", f"sample_count -i {len(samples)}", f"sample_rate -i {rate}",
        "sample_n_bytes -i 2", "sample_byte_format -s2 01", "sample_sig_bits -i 16",
        f"sample_coding -s{len(coding)} {coding}", f"sample_checksum -i {right if checksum is None else checksum}",
    ]  # fmt: skip
    header = "\n".join(["NIST_1A", "   1024", *fields, "end_head", ""])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header.encode().ljust(1024) + body)

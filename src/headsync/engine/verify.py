"""Comparison of an exported model with PyTorch: both engines on the same random audio.

Halting compares sums with a threshold. If a sum is close to it, rounding decides, and the engines may diverge. Steps
are therefore compared where both have consumed the same frames, and the share of these steps is reported.

Shapes as in `headsync.engine`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from headsync.config import Config
from headsync.engine import Decoded, Encoded, Engine, Memory, Window
from headsync.engine.state_tree import take_rows
from headsync.frontend.audio import FloatArray

WINDOWS, STEPS = 4, 5
ROWS_ON_MEMORIES = ((1, 1), (5, 1), (3, 3))  # hypotheses and memories: a single one, a beam, a batch


class Agreement(NamedTuple):
    difference: float  # the largest of any score, key, value or weight
    steps: float  # share of output steps that consumed the same frames


def compare(one: Engine, other: Engine, config: Config, classes: int, seed: int = 0) -> Agreement:
    """Run both engines on the same audio: every graph, with several numbers of rows, frames and tokens."""
    rng = np.random.default_rng(seed)
    windows = WINDOWS if config.encoder.mode != "full" else 1
    frames = windows * config.encoder.centre_frames + config.encoder.right_frames + 1
    differences, same = [0.0], []
    for rows, memories in ROWS_ON_MEMORIES:
        shape = (memories, config.frame_rate.needed(frames), config.columns)
        features = rng.standard_normal(shape).astype(np.float32)
        embedded = [engine.embed(features, engine.start_front(memories))[0] for engine in (one, other)]
        differences.append(_apart(*embedded))
        encoded = [_encoded(engine, x, config) for engine, x in zip((one, other), embedded, strict=True)]
        differences += [_apart(left.log_ctc_BTV, right.log_ctc_BTV) for left, right in zip(*encoded, strict=True)]
        placed = [_placed(engine, parts) for engine, parts in zip((one, other), encoded, strict=True)]
        differences += [_apart(left, right) for left, right in zip(*placed, strict=True)]
        for left, right in _steps((one, other), placed, rows, classes, rng):
            agree_B = (left.end_BNH == right.end_BNH).all((1, 2)) & (left.ready_B == right.ready_B)
            same.append(float(agree_B.mean()))
            differences.append(_apart(left.log_p_BV[agree_B], right.log_p_BV[agree_B]))
            differences.append(_apart(left.weights_BHT[agree_B], right.weights_BHT[agree_B]))
            if not agree_B.all():
                break  # the engines have diverged
    return Agreement(max(differences), float(np.mean(same)))


def _encoded(engine: Engine, x_BTE: FloatArray, config: Config) -> list[Encoded]:
    """All windows; the last one is incomplete."""
    centre, width = config.encoder.centre_frames, config.encoder.centre_frames + config.encoder.right_frames
    if config.encoder.mode == "full":
        centre = width = x_BTE.shape[1]
    state, parts = engine.start_encoder(len(x_BTE)), []
    for first in range(0, x_BTE.shape[1], centre):
        window_BWE = np.zeros((len(x_BTE), width, x_BTE.shape[2]), np.float32)
        there = x_BTE[:, first : first + width]
        window_BWE[:, : there.shape[1]] = there
        parts.append(engine.encode(window_BWE, np.full(len(x_BTE), there.shape[1]), state, centre))
        state = parts[-1].state
    return parts


def _placed(engine: Engine, parts: list[Encoded]) -> Memory:
    whole = Memory(*(np.concatenate(same, 3) for same in zip(*(part.memory for part in parts), strict=True)))
    return engine.place(whole, 3)


def _steps(
    engines: tuple[Engine, Engine], placed: list[Memory], rows: int, classes: int, rng: np.random.Generator
) -> Iterator[tuple[Decoded, Decoded]]:
    """Steps of some hypotheses, sometimes reordered, on the frames so far."""
    states = [engine.start_decoder(rows) for engine in engines]
    frames = placed[0].keys_BNHTD.shape[3]
    for step in range(STEPS):
        tokens_B, limit_B = rng.integers(1, classes, rows), rng.integers(1, frames + 5, rows)
        there = frames * (step + 1) // STEPS
        window = Window(limit_B, np.full(rows, there), rng.random(rows) < 0.5)
        so_far = [Memory(*(part[:, :, :, :there] for part in memory)) for memory in placed]
        calls = zip(engines, so_far, states, strict=True)
        left, right = (engine.decode(tokens_B, memory, state, window) for engine, memory, state in calls)
        yield left, right
        order = rng.integers(0, rows, rows).tolist()
        states = [take_rows(decoded.state, order) for decoded in (left, right)]


def _apart(left: FloatArray, right: FloatArray) -> float:
    return float(np.abs(left - right).max(initial=0.0))

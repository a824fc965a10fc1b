"""Feature frames to encoder blocks: the same blocks, with the same shapes, for any cutting of the features."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headsync.config import Config, DecoderConfig, EncoderConfig, FeaturesConfig, NetworkConfig
from headsync.decoding.encoder_stream import Block, EncoderStream
from headsync.engine import Encoded, IntArray, Memory, State
from headsync.engine.torch import TorchEngine
from headsync.frontend.audio import FloatArray
from headsync.frontend.features import NUM_MEL, Features, Statistics
from headsync.frontend.frame_rate import LOG_MEL
from headsync.nn.model import Model
from random_weights import scrambled

PLAIN = Statistics(np.zeros(NUM_MEL, np.float32), np.ones(NUM_MEL, np.float32))  # which change nothing

sizes = st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(0, 5))  # left, centre, right


class EchoEngine:
    """An embedded frame is (first feature frame it saw, last one); keys echo the window's centre, values its end."""

    def __init__(self, config: EncoderConfig) -> None:
        self.config = config
        self.shapes: list[tuple[int, ...]] = []

    def start_front(self, batch: int) -> State:
        return ()

    def embed(self, features_BTF: FloatArray, state: State) -> tuple[FloatArray, State]:
        self.shapes.append(features_BTF.shape)
        count, feature = LOG_MEL.embedded(features_BTF.shape[1]), features_BTF[0, :, 0]
        return np.array([[[feature[4 * n], feature[4 * n + 6]] for n in range(count)]], np.float32), state

    def start_encoder(self, batch: int) -> State:
        return (np.zeros((batch, 1), np.float32),)

    def encode(self, x_BWE: FloatArray, length_B: IntArray, state: State, centre: int) -> Encoded:
        self.shapes.append(x_BWE.shape)
        assert centre == (x_BWE.shape[1] if self.config.mode == "full" else self.config.centre_frames)
        keys = x_BWE[:, None, None, :centre]
        seen = np.full_like(keys, x_BWE[0, length_B[0] - 1, 1])
        return Encoded(keys[:, 0, 0] + state[0], Memory(keys, seen), (state[0] + 1000,))


def numbered(frames: int) -> FloatArray:
    return np.repeat(np.arange(frames, dtype=np.float32)[:, None], NUM_MEL, 1)


def push(now: EncoderStream, features: FloatArray, final: bool) -> tuple[list[Block], EncoderStream]:
    """All blocks that these features complete."""
    now, found = now.push(features), []
    while True:
        block, now = now.next_block(final)
        if block is None:
            return found, now
        found.append(block)


def push_all(engine: EchoEngine, config: EncoderConfig, features: FloatArray, cuts: list[int]) -> list[Block]:
    now, found = EncoderStream.start(engine, config, PLAIN), []
    for piece in np.split(features, sorted(cuts)):
        blocks, now = push(now, piece, final=False)
        found += blocks
    blocks, _ = push(now, features[:0], final=True)
    return found + blocks


def as_lists(blocks: list[Block]) -> list[object]:
    return [
        (b.log_ctc_TV.tolist(), b.memory.keys_BNHTD.tolist(), b.memory.values_BNHTD.tolist(), b.time_seconds)
        for b in blocks
    ]


@settings(max_examples=60, deadline=None)
@given(sizes, st.sampled_from(["isolated", "full"]), st.integers(0, 90), st.lists(st.integers(0, 90), max_size=8))
def test_any_cutting_gives_the_same_blocks(
    size: tuple[int, int, int], mode: Literal["isolated", "full"], frames: int, cuts: list[int]
) -> None:
    config = EncoderConfig(1, *size, mode)
    at_once, cut, single = EchoEngine(config), EchoEngine(config), EchoEngine(config)
    blocks = push_all(at_once, config, numbered(frames), [])
    assert as_lists(push_all(cut, config, numbered(frames), [min(c, frames) for c in cuts])) == as_lists(blocks)
    assert as_lists(push_all(single, config, numbered(frames), list(range(frames)))) == as_lists(blocks)
    assert at_once.shapes == cut.shapes == single.shapes  # the arithmetic itself is the same, to the last bit


@settings(max_examples=60, deadline=None)
@given(sizes, st.integers(0, 90))
def test_each_frame_is_in_one_block_with_its_right_context(size: tuple[int, int, int], features: int) -> None:
    config, frames = EncoderConfig(1, *size), LOG_MEL.embedded(features)
    blocks = push_all(EchoEngine(config), config, numbered(features), [])
    first = [int(frame[0]) for block in blocks for frame in block.memory.keys_BNHTD[0, 0, 0]]
    assert first == [4 * n for n in range(frames)]
    assert [len(block.log_ctc_TV) for block in blocks[:-1]] == [config.centre_frames] * (len(blocks) - 1)
    for n, block in enumerate(blocks):
        end = min(frames, (n + 1) * config.centre_frames + config.right_frames)
        assert block.memory.values_BNHTD[0, 0, 0, 0, 0] == 4 * (end - 1) + 6
        assert block.log_ctc_TV[0, 0] == 4 * n * config.centre_frames + 1000 * n  # the state goes from block to block


@pytest.mark.parametrize("size", [(16, 16, 16), (5, 3, 0), (0, 1, 2)], ids=str)
def test_a_block_comes_as_soon_as_its_right_context_is_there(size: tuple[int, int, int]) -> None:
    config = EncoderConfig(1, *size)
    now, total = EncoderStream.start(EchoEngine(config), config, PLAIN), 0
    for count in range(1, 200):
        blocks, now = push(now, numbered(200)[count - 1 : count], final=False)
        total += len(blocks)
        whole = max(0, (LOG_MEL.embedded(count) - config.right_frames) // config.centre_frames)
        assert total == whole
        if blocks:
            # 10 ms a feature frame, of which the last needs 25 ms of sound
            assert blocks[-1].time_seconds == pytest.approx(0.01 * (count - 1) + 0.025, abs=1e-9)


@pytest.mark.parametrize("pitch", [False, True])
def test_a_block_waits_for_what_the_front_end_needs_after_its_frames(pitch: bool) -> None:
    config, features = EncoderConfig(1, 0, 3, 2), Features.of(FeaturesConfig(pitch))
    now, delay = EncoderStream.start(EchoEngine(config), config, PLAIN, features), features.delay_samples
    assert (delay > 0) == pitch
    needed = 160 * (4 * 5 + 3 - 1) + 400 + delay  # 5 frames, of which the last sees 7 feature frames
    assert not now.is_due(needed - 1)
    assert now.is_due(needed)
    (block,), now = push(now, numbered(23), final=False)
    assert block.time_seconds == needed / 16_000
    assert not now.is_due(needed + 3 * 4 * 160 - 1)
    assert now.is_due(needed + 3 * 4 * 160)


def test_blocks_without_their_right_context_need_the_end() -> None:
    config = EncoderConfig(1, 0, 3, 2)
    blocks = push_all(EchoEngine(config), config, numbered(4 * 9 + 3), [])
    assert [block.time_seconds == np.inf for block in blocks] == [False, False, True]


def test_the_state_of_a_stream_is_bounded() -> None:
    config = EncoderConfig(1, 4, 3, 2)
    now = EncoderStream.start(EchoEngine(config), config, PLAIN)
    for _ in range(300):
        _, now = push(now, numbered(5), final=False)
        assert len(now.features_TF) < LOG_MEL.needed(config.centre_frames + config.right_frames)
        assert len(now.ahead_TE) <= config.right_frames


def test_a_stream_too_short_for_a_frame_has_no_block() -> None:
    config = EncoderConfig(1)
    assert push_all(EchoEngine(config), config, numbered(6), []) == []
    assert len(push_all(EchoEngine(config), config, numbered(7), [])) == 1


@pytest.mark.parametrize("mode", ["isolated", "reuse", "contextual", "full"])
@pytest.mark.parametrize("frames", [1, 5, 12, 13, 23])
def test_blocks_of_a_network_are_its_whole_encoder(mode: str, frames: int) -> None:
    config = Config(
        network=NetworkConfig(width=8, heads=2, feedforward=6, kernels=2),
        encoder=EncoderConfig(2, 4, 3, 2, mode),  # type: ignore[arg-type]
        decoder=DecoderConfig(2),
    )
    model = scrambled(Model(config, NUM_MEL, 5))
    features = np.random.default_rng(0).normal(size=(LOG_MEL.needed(frames) + 1, NUM_MEL))
    blocks = push_all(TorchEngine(model), config.encoder, features, [3, 40])
    with torch.inference_mode():
        whole, _ = model.encoder.whole(torch.tensor(features)[None], torch.tensor([len(features)]))
        log_ctc, memory = model.ctc(whole).log_softmax(-1)[0], model.decoder.project(whole)
    np.testing.assert_allclose(np.concatenate([b.log_ctc_TV for b in blocks]), log_ctc, rtol=0, atol=1e-9)
    keys = np.concatenate([b.memory.keys_BNHTD for b in blocks], 3)
    np.testing.assert_allclose(keys, memory.keys_BNHTD, rtol=0, atol=1e-9)
    assert np.concatenate([b.memory.values_BNHTD for b in blocks], 3).shape[3] == frames


def test_an_encoder_of_full_context_gives_one_block_at_the_end() -> None:
    config = EncoderConfig(1, 2, 3, 1, "full")
    now = EncoderStream.start(EchoEngine(config), config, PLAIN)
    for piece in np.split(numbered(400), [1, 20, 350]):
        blocks, now = push(now, piece, final=False)
        assert blocks == []
    (block,), after = push(now, numbered(0), final=True)
    assert [int(frame[0]) for frame in block.memory.keys_BNHTD[0, 0, 0]] == [
        4 * n for n in range(LOG_MEL.embedded(400))
    ]
    assert block.time_seconds == np.inf  # it needs the end of the stream
    assert push(after, numbered(0), final=True)[0] == []


def test_an_encoder_frame_is_forty_milliseconds() -> None:
    assert pytest.approx(0.04) == LOG_MEL.seconds
    for count in range(200):
        assert LOG_MEL.embedded(LOG_MEL.needed(count)) == count
        assert LOG_MEL.embedded(LOG_MEL.needed(count + 1) - 1) == count


def test_without_left_context_a_block_is_that_of_a_new_stream() -> None:
    config = Config(
        network=NetworkConfig(width=8, heads=2, feedforward=6, kernels=2),
        encoder=EncoderConfig(2, 4, 3, 2, "reuse"),
        decoder=DecoderConfig(2),
    )
    engine = TorchEngine(scrambled(Model(config, NUM_MEL, 5)))
    features = np.random.default_rng(0).normal(size=(LOG_MEL.needed(11), NUM_MEL))  # three blocks
    (_, _, third), _ = push(EncoderStream.start(engine, config.encoder, PLAIN), features, False)
    (_, _), now = push(EncoderStream.start(engine, config.encoder, PLAIN), features[: LOG_MEL.needed(8)], False)
    (after,), _ = push(now.without_left_context(), features[LOG_MEL.needed(8) :], False)
    (new,), _ = push(EncoderStream.start(engine, config.encoder, PLAIN), features[6 * LOG_MEL.stride :], False)
    np.testing.assert_allclose(after.log_ctc_TV, new.log_ctc_TV, rtol=0, atol=1e-9)
    assert np.abs(after.log_ctc_TV - third.log_ctc_TV).max() > 1e-6

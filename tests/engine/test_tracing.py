"""The tracing engine: its steps equal the network's, and are separate by utterance and text."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headsync.attention import MECHANISMS
from headsync.config import Config, DecoderConfig, EncoderConfig, NetworkConfig
from headsync.engine import NO_LIMIT, Memory, Window
from headsync.engine.state_tree import take_rows
from headsync.engine.torch import TorchEngine
from headsync.engine.tracing import TracingEngine
from headsync.nn.model import Model
from random_weights import scrambled

CLASSES, FRAMES, WIDTH = 5, 7, 8
SOS = CLASSES - 1


def build(name: str) -> Model:
    network = NetworkConfig(width=WIDTH, heads=2, feedforward=6, kernels=2)
    decoder = DecoderConfig(2, name, energy_bias=-1.0)
    return scrambled(Model(Config(network=network, encoder=EncoderConfig(1), decoder=decoder), 7, CLASSES))


def memory_of(model: Model) -> tuple[torch.Tensor, Memory]:
    frames = torch.randn(1, FRAMES, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.inference_mode():
        placed = model.decoder.place(model.decoder.project(frames), 0)
    return frames, Memory(*(part.numpy() for part in placed))


def window(rows: int, frames: int = FRAMES, final: bool = True) -> Window:
    return Window(np.full(rows, NO_LIMIT), np.full(rows, frames), np.full(rows, final))


@pytest.mark.parametrize("name", MECHANISMS)
def test_tracing_does_not_change_decoding(name: str) -> None:
    model = build(name)
    _, memory = memory_of(model)
    plain, tracing = TorchEngine(model), TracingEngine(model)
    states = plain.start_decoder(2), tracing.start_decoder(2)
    for tokens in ([SOS, SOS], [1, 2], [3, 3]):
        one, other = (
            engine.decode(np.array(tokens), memory, state, window(2))
            for engine, state in zip((plain, tracing), states, strict=True)
        )
        for part in ("log_p_BV", "end_BNH", "ready_B"):
            np.testing.assert_array_equal(getattr(one, part), getattr(other, part))
        states = one.state, other.state


@pytest.mark.parametrize("name", ["softmax", "dacs", "hs-dacs"])
def test_the_weights_of_the_steps_are_those_of_all_steps_at_once(name: str) -> None:
    model = build(name)
    frames, memory = memory_of(model)
    engine, texts = TracingEngine(model), np.array([[1, 2, 3], [1, 3, 1]])
    state = engine.start_decoder(1)
    tokens = np.array([SOS])
    for i in range(4):
        decoded = engine.decode(tokens, memory, state, window(len(tokens)))
        rows = [0, 0] if i == 0 else [0, 1]  # after the first step there are two hypotheses
        state, tokens = take_rows(decoded.state, rows), texts[:, min(i, 2)]
    for text in texts.tolist():
        with torch.inference_mode():
            inputs = torch.tensor([[SOS, *text]])
            _, alignments = model.decoder.whole(inputs, frames, torch.full(inputs.shape, FRAMES))
        for i in range(4):
            looked = engine.steps[1, *text[:i]]
            for layer, aligned in enumerate(alignments):
                np.testing.assert_allclose(looked.weights_NHT[layer], aligned.weights_BHLT[0, :, i], atol=1e-9)
                np.testing.assert_array_equal(looked.end_NH[layer], aligned.end_BHL[0, :, i])


def test_undecided_steps_are_not_recorded_and_utterances_are_separate() -> None:
    model = build("softmax")
    _, memory = memory_of(model)
    engine = TracingEngine(model)
    first = engine.start_decoder(1)
    engine.decode(np.array([SOS]), memory, first, window(1, final=False))
    assert engine.steps == {}
    engine.decode(np.array([SOS]), memory, first, window(1))
    engine.decode(np.array([SOS]), memory, engine.start_decoder(1), window(1, frames=3))
    assert list(engine.steps) == [(1,), (2,)]
    assert [looked.end_NH.max() for looked in engine.steps.values()] == [FRAMES, 3]


def test_tracing_does_not_change_the_model() -> None:
    model = build("hs-dacs")
    engine = TracingEngine(model)
    _, memory = memory_of(model)
    plain = TorchEngine(model)
    plain.decode(np.array([SOS]), memory, plain.start_decoder(1), window(1))
    assert engine.steps == {}
    assert engine._outcomes == []

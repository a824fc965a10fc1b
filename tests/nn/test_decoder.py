"""The decoder: all steps at once against one step at a time, over every mechanism."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from headsync.attention import MECHANISMS
from headsync.attention.base import NO_LIMIT, AttentionWindow
from headsync.attention.softmax import Softmax
from headsync.config import DecoderConfig, NetworkConfig
from headsync.engine.state_tree import take_rows
from headsync.nn.decoder import Decoder, DecoderState, ProjectedFrames, Stepped
from headsync.nn.layers import positions
from headsync.testing import CERTAIN
from random_weights import scrambled

NETWORK = NetworkConfig(width=8, heads=2, feedforward=6, kernels=1)
CLASSES, LAYERS, FRAMES = 6, 3, 12

mechanisms = pytest.mark.parametrize("name", MECHANISMS)


def build(name: str, threshold: float = 1.0, seed: int = 0, **settings: Any) -> Decoder:
    config = DecoderConfig(LAYERS, name, threshold, energy_bias=-1.0, **settings)
    return scrambled(Decoder(config, NETWORK, CLASSES), seed)


def certain(decoder: Decoder) -> Decoder:
    """The same decoder; if its training form is an expectation, with energies at which all probabilities are 0 or 1."""
    for layer in decoder.attending:
        if layer.cross.mechanism.expected:
            for parameter in layer.cross.query.parameters():
                parameter.data *= CERTAIN
    return decoder


def waits(name: str) -> bool:
    """Whether a step always needs all frames before its limit."""
    return issubclass(MECHANISMS[name], Softmax)


def draw(rows: int, steps: int, frames: int = FRAMES, seed: int = 0) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, CLASSES, (rows, steps), generator=source)
    return tokens, torch.randn(rows, frames, NETWORK.width, generator=source, dtype=torch.float64)


def seeing(limit: int, frames: int, rows: int, final: bool = True) -> AttentionWindow:
    return AttentionWindow(torch.full((rows,), limit), torch.full((rows,), frames), torch.full((rows,), final))


def remember(decoder: Decoder, frames: Tensor) -> ProjectedFrames:
    """The memory of a step: frames projected, and placed in their utterance."""
    return decoder.place(decoder.project(frames), 0)


def stream(decoder: Decoder, tokens: Tensor, memory: ProjectedFrames, window: AttentionWindow) -> list[Stepped]:
    state, steps = decoder.start(len(tokens)), []
    for i in range(tokens.shape[1]):
        steps.append(decoder.step(tokens[:, i], memory, state, window))
        state = steps[-1].state
    return steps


def close(one: object, other: object) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


@mechanisms
def test_streaming_with_infinite_lookahead_is_the_training_form(name: str) -> None:
    for seed in range(3):
        decoder, (tokens, frames) = certain(build(name, seed=seed)), draw(2, 5, seed=seed)
        logits, alignments = decoder.whole(tokens, frames, torch.full((2, 1), FRAMES))
        steps = stream(decoder, tokens, remember(decoder, frames), seeing(NO_LIMIT, FRAMES, 2))
        close(torch.stack([step.logits_BV for step in steps], 1), logits)
        ends = torch.stack([step.end_BNH for step in steps], 3)
        if not MECHANISMS[name].expected:  # an expectation looks at everything
            assert torch.equal(ends, torch.stack([a.end_BHL for a in alignments], 1))
        close(torch.stack([step.weights_BHT for step in steps], 2), alignments[-1].weights_BHLT)
        assert all(step.ready_B.all() for step in steps)
        if not waits(name):
            assert len(ends.unique()) > 2  # steps halted, and not all at the same frame


@mechanisms
def test_streaming_with_limits_is_the_whole_with_these_limits(name: str) -> None:
    decoder, (tokens, frames) = certain(build(name)), draw(2, 4)
    limits = torch.tensor([[2, 5, 5, 9], [1, 1, 7, 12]])
    logits, _ = decoder.whole(tokens, frames, limits)
    state, memory = decoder.start(2), remember(decoder, frames)
    for i in range(4):
        window = AttentionWindow(limits[:, i], torch.full((2,), FRAMES), torch.full((2,), False))
        step = decoder.step(tokens[:, i], memory, state, window)
        assert step.ready_B.all()
        close(step.logits_BV, logits[:, i])
        state = step.state


@mechanisms
def test_a_decided_step_never_changes(name: str) -> None:
    """All layers must have decided, and then later frames change nothing: neither scores nor ends nor state."""
    decoder, (tokens, frames) = certain(build(name, seed=2)), draw(1, 4)
    state, early = decoder.start(1), 0
    for i in range(4):
        settled = decoder.step(tokens[:, i], remember(decoder, frames), state, seeing(9, FRAMES, 1))
        for there in range(FRAMES + 1):
            window = seeing(9, there, 1, final=False)
            step = decoder.step(tokens[:, i], remember(decoder, frames[:, :there]), state, window)
            if step.ready_B:
                early += there < 9
                close(step.logits_BV, settled.logits_BV)
                close(step.state.keys_BNHLD, settled.state.keys_BNHLD)
                assert torch.equal(step.end_BNH, settled.end_BNH)
            else:
                assert there < 9
        state = settled.state
    assert (early > 0) == (not waits(name))


@mechanisms
def test_choosing_rows_commutes_with_step(name: str) -> None:
    decoder, (tokens, frames) = build(name), draw(3, 3)
    memory, window, rows = remember(decoder, frames), seeing(7, FRAMES, 3), [2, 0, 0, 1]
    steps = stream(decoder, tokens, memory, window)
    for i in (1, 2):
        state = take_rows(steps[i - 1].state, rows)
        chosen = decoder.step(
            tokens[rows, i], take_rows(memory, rows), state, AttentionWindow(*take_rows(window[:3], rows))
        )
        close(chosen, take_rows(steps[i], rows))


@mechanisms
def test_one_memory_serves_all_hypotheses(name: str) -> None:
    decoder, (tokens, frames) = build(name), draw(3, 3)
    shared, copied = remember(decoder, frames[:1]), remember(decoder, frames[:1].expand(3, -1, -1))
    one, other = (stream(decoder, tokens, memory, seeing(7, FRAMES, 3)) for memory in (shared, copied))
    close([step.logits_BV for step in one], [step.logits_BV for step in other])


@mechanisms
def test_projecting_and_placing_piece_by_piece_is_that_of_the_whole(name: str) -> None:
    """Also if the position is known only after the projection."""
    decoder, (_, frames) = build(name), draw(1, 1)
    whole = remember(decoder, frames)
    pieces = [decoder.place(decoder.project(frames[:, first : first + 5]), first) for first in (0, 5, 10)]
    close(torch.cat([piece.keys_BNHTD for piece in pieces], 3), whole.keys_BNHTD)
    close(torch.cat([piece.values_BNHTD for piece in pieces], 3), whole.values_BNHTD)
    placed = frames + positions(torch.arange(FRAMES), NETWORK.width)
    for n, layer in enumerate(decoder.attending):
        close((whole.keys_BNHTD[:, n], whole.values_BNHTD[:, n]), layer.cross.project(placed))


@mechanisms
def test_nan_padding_is_inert_in_values_and_gradients(name: str) -> None:
    """A padded batch is its rows alone: scores, weights, and the gradients of every parameter."""
    decoder, (tokens, frames) = build(name), draw(3, 4)
    counts = [FRAMES, 5, 1]
    padding = torch.arange(FRAMES) >= torch.tensor(counts)[:, None]
    padded = frames.masked_fill(padding[:, :, None], torch.nan)
    logits, alignments = decoder.whole(tokens, padded, torch.tensor(counts)[:, None])
    alone = [
        decoder.whole(tokens[row : row + 1], frames[row : row + 1, :count], torch.tensor([[count]]))
        for row, count in enumerate(counts)
    ]
    close(logits, torch.cat([one for one, _ in alone]))
    for row, count in enumerate(counts):
        close(alignments[-1].weights_BHLT[row, :, :, :count], alone[row][1][-1].weights_BHLT[0])
    parameters = list(decoder.parameters())
    batched = torch.autograd.grad((logits**3).sum(), parameters, materialize_grads=True)
    summed = torch.autograd.grad(sum((one**3).sum() for one, _ in alone), parameters, materialize_grads=True)
    for one, other in zip(batched, summed, strict=True):
        assert torch.isfinite(one).all()
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@mechanisms
def test_tokens_that_follow_change_nothing_before(name: str) -> None:
    decoder, (tokens, frames) = build(name), draw(1, 5)
    limit = torch.tensor([[FRAMES]])
    before, _ = decoder.whole(tokens, frames, limit)
    tokens[0, 3] = (tokens[0, 3] + 1) % CLASSES
    after, _ = decoder.whole(tokens, frames, limit)
    close(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:])


def test_the_threshold_of_a_trained_model_can_be_changed() -> None:
    tokens, frames = draw(1, 4)
    limit = torch.tensor([[FRAMES]])
    changed, mean = build("hs-dacs", 1.0), []
    for threshold in (0.25, 0.5, 1.0, math.inf):
        for layer in changed.attending:
            layer.cross.mechanism.threshold = threshold
        logits, alignments = changed.whole(tokens, frames, limit)
        if threshold < math.inf:
            close(logits, build("hs-dacs", threshold).whole(tokens, frames, limit)[0])
        mean.append(torch.stack([a.end_BHL for a in alignments]).double().mean().item())
    assert mean == sorted(mean)
    assert mean[0] < mean[2] < mean[3] == FRAMES


def test_a_step_is_ready_when_all_layers_are() -> None:
    decoder, (tokens, frames) = build("hs-dacs"), draw(1, 1)
    memory, window = remember(decoder, frames), seeing(NO_LIMIT, FRAMES, 1, final=False)
    assert decoder.step(tokens[:, 0], memory, decoder.start(1), window).ready_B.all()
    for layer in range(LAYERS):
        before = decoder.layers[layer].cross.mechanism.threshold
        decoder.layers[layer].cross.mechanism.threshold = math.inf  # this one waits for the end of speech
        assert not decoder.step(tokens[:, 0], memory, decoder.start(1), window).ready_B.any()
        decoder.layers[layer].cross.mechanism.threshold = before


@pytest.mark.parametrize(("settings", "attending"), [
    ({"name": "mma-mocha"}, [0, 1, 2]),
    ({"name": "hs-dacs"}, [0, 1, 2]),
    ({"name": "cif"}, [0]),
])  # fmt: skip
def test_some_layers_do_not_attend(settings: dict[str, Any], attending: list[int]) -> None:
    """They have no weights for it and no part in memory, alignments, ends and states; the others are unchanged."""
    decoder, (tokens, frames) = certain(build(**settings, threshold=0.5)), draw(2, 3)
    assert [n for n, layer in enumerate(decoder.layers) if hasattr(layer, "cross")] == attending
    memory = remember(decoder, frames)
    assert memory.keys_BNHTD.shape[1] == memory.values_BNHTD.shape[1] == len(attending)
    logits, alignments = decoder.whole(tokens, frames, torch.full((2, 1), FRAMES))
    steps = stream(decoder, tokens, memory, seeing(NO_LIMIT, FRAMES, 2))
    close(torch.stack([step.logits_BV for step in steps], 1), logits)
    assert len(alignments) == len(steps[-1].state.mechanisms) == steps[-1].end_BNH.shape[1] == len(attending)
    assert steps[-1].state.keys_BNHLD.shape[1] == LAYERS
    names = [name for name, parameter in decoder.named_parameters() if "norm_cross" in name]
    assert names == [f"stack.{n}.norm_cross.{part}" for n in attending for part in ("weight", "bias")]


def test_a_step_does_not_change_its_input_state() -> None:
    decoder, (tokens, frames) = build("hs-dacs"), draw(1, 1)
    state, memory = decoder.start(1), remember(decoder, frames)
    first, second = (decoder.step(tokens[:, 0], memory, state, seeing(5, FRAMES, 1)) for _ in range(2))
    assert torch.equal(first.logits_BV, second.logits_BV)
    assert state.keys_BNHLD.shape[3] == 0
    assert isinstance(first.state, DecoderState)
    assert first.state.keys_BNHLD.shape[3] == 1


def test_frames_without_positions_are_the_projected_frames_in_stream_and_training() -> None:
    decoder, (tokens, frames) = build("hs-dacs", frame_positions=False), draw(1, 2)
    memory = decoder.project(frames)
    assert all(torch.equal(one, other) for one, other in zip(decoder.place(memory, 5), memory, strict=True))
    limit = torch.tensor([[FRAMES]])
    logits, _ = decoder.whole(tokens, frames, limit)
    close(decoder.step(tokens[:, 0], memory, decoder.start(1), seeing(NO_LIMIT, FRAMES, 1)).logits_BV, logits[:, 0])
    with_positions = build("hs-dacs")
    with_positions.load_state_dict(decoder.state_dict())
    assert not torch.allclose(with_positions.whole(tokens, frames, limit)[0], logits)


def test_positions_are_sinusoids() -> None:
    for place in (0, 1, 7, 300):
        row = positions(torch.tensor([place]), 6)[0]
        for n in range(3):
            angle = place / 10_000 ** (2 * n / 6)
            # float32 angles: 300 radians are known to about 3e-5
            assert row[2 * n].item() == pytest.approx(math.sin(angle), abs=1e-4)
            assert row[2 * n + 1].item() == pytest.approx(math.cos(angle), abs=1e-4)

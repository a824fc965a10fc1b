"""The decoder with rotary positions: all steps at once against one at a time, the first and last token, biases."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from headsync.attention import MECHANISMS
from headsync.attention.base import NO_LIMIT
from headsync.config import DecoderConfig
from headsync.nn.rotary import rotate, turns
from headsync.nn.rotary_decoder import RotaryDecoder
from nn.test_decoder import CLASSES, FRAMES, LAYERS, NETWORK, certain, close, draw, remember, seeing, stream
from random_weights import scrambled


def build(name: str, seed: int = 0) -> RotaryDecoder:
    config = DecoderConfig(LAYERS, name, energy_bias=-1.0, frame_positions=False)
    return scrambled(RotaryDecoder(config, replace(NETWORK, family="moonshine"), CLASSES), seed)


@pytest.mark.parametrize("name", MECHANISMS)
def test_streaming_with_infinite_lookahead_is_the_training_form(name: str) -> None:
    for seed in range(3):
        decoder, (tokens, frames) = certain(build(name, seed)), draw(2, 5, seed=seed)
        logits, alignments = decoder.whole(tokens, frames, torch.full((2, 1), FRAMES))
        steps = stream(decoder, tokens, remember(decoder, frames), seeing(NO_LIMIT, FRAMES, 2))
        close(torch.stack([step.logits_BV for step in steps], 1), logits)
        close(torch.stack([step.weights_BHT for step in steps], 2), alignments[-1].weights_BHLT)


def test_frames_have_no_place() -> None:
    decoder, (_, frames) = build("hs-dacs"), draw(1, 3)
    memory = decoder.project(frames)
    assert decoder.place(memory, 7) is memory


def test_the_token_that_starts_a_sentence_is_embedded_apart_from_the_one_that_ends_it() -> None:
    decoder, (_, frames) = build("softmax"), draw(1, 1)
    start, limit = torch.tensor([[CLASSES - 1]]), torch.full((1, 1), FRAMES)
    before, _ = decoder.whole(start, frames, limit)
    with torch.no_grad():
        decoder.embedding.weight[CLASSES - 1] += 1.0  # of the end, as an output
    after, _ = decoder.whole(start, frames, limit)
    close(after[..., :-1], before[..., :-1])
    assert (after - before)[..., -1].abs().item() > 1e-3
    with torch.no_grad():
        decoder.embedding.weight[CLASSES, 0] += 1.0  # of the start, as an input
    assert (decoder.whole(start, frames, limit)[0] - after)[..., :-1].abs().max() > 1e-3


@pytest.mark.parametrize(("name", "biases"), [("hs-dacs", 2), ("dacs", 2), ("acs", 1)])
def test_every_head_has_an_energy_bias(name: str, biases: int) -> None:
    decoder, (tokens, frames) = build(name), draw(1, 3)
    decoder.attending[0].cross.mechanism.threshold = 100.0  # nothing halts
    limit = torch.full((1, 3), FRAMES)
    weights = decoder.whole(tokens, frames, limit)[1][0].weights_BHLT
    bias = decoder.attending[0].cross.mechanism.energy_bias
    assert bias.shape == (biases, 1, 1)
    with torch.no_grad():
        bias[0] += 1.0
    changed = decoder.whole(tokens, frames, limit)[1][0].weights_BHLT
    assert (changed > weights)[:, 0].all()
    assert torch.equal(changed[:, 1:], weights[:, 1:]) == (biases > 1)


def test_the_bias_of_keys_changes_halting_and_that_of_queries_does_not_exist() -> None:
    cross = build("hs-dacs").attending[0].cross
    assert cross.key.bias is not None
    assert [part.bias for part in (cross.query, cross.value, cross.out)] == [None] * 3


def test_products_of_rotated_queries_and_keys_depend_on_distances() -> None:
    q, k = torch.randn(2, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def product(one: int, other: int) -> Tensor:
        by = [turns(torch.tensor(place), 40, torch.float64) for place in (one, other)]
        return rotate(q, by[0]) @ rotate(k, by[1])

    close(product(3, 8), product(10**7 + 3, 10**7 + 8))
    assert abs(product(3, 8) - product(3, 9)) > 1e-3
    assert math.isclose(product(4, 4), q @ k, abs_tol=1e-12)

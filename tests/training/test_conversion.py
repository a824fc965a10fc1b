"""A softmax decoder as the start of decoders with other mechanisms."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headsync.attention import MECHANISMS
from headsync.attention.base import Mechanism, Phase
from headsync.config import Config, DecoderConfig, EncoderConfig, NetworkConfig
from headsync.errors import ConfigError
from headsync.nn.model import Model
from headsync.recipe import load_config
from headsync.training.asr_task import start
from headsync.training.batches import PADDING, Batch
from headsync.training.conversion import fit_energies
from random_weights import scrambled
from training.softmax_start import write_start

CLASSES, WIDTH, HEADS, FRAMES, STEPS = 7, 8, 2, 30, 12


def a_config(attention: str) -> Config:
    return Config(
        network=NetworkConfig(WIDTH, HEADS, 16, dropout=0.0, family="moonshine"),
        encoder=EncoderConfig(1, mode="reuse"),
        decoder=DecoderConfig(2, attention, frame_positions=False),
    )


def two_models(attention: str) -> tuple[Model, Model]:
    """A random model with softmax attention, and one with another mechanism and the same weights."""
    softmax = scrambled(Model(a_config("softmax"), 64, CLASSES))
    other = Model(a_config(attention), 64, CLASSES).double().eval()
    other.load_state_dict(softmax.state_dict(), strict=False)
    for model in (softmax, other):
        model.reads_frames = True
    return softmax, other


def a_batch(spread: float) -> Batch:
    """Two rows of frames near a common one, the second row shorter in frames and steps."""
    source = torch.Generator().manual_seed(3)
    common = torch.randn(WIDTH, generator=source, dtype=torch.float64)
    frames = common + spread * torch.randn(2, FRAMES, WIDTH, generator=source, dtype=torch.float64)
    tokens = torch.randint(1, CLASSES - 1, (2, STEPS), generator=source)
    tokens[:, 0] = CLASSES - 1
    tokens[1, STEPS - 2 :] = CLASSES - 1
    targets = torch.ones(2, STEPS, dtype=torch.long)
    targets[1, STEPS - 2 :] = PADDING
    return Batch(frames, torch.tensor([FRAMES, FRAMES - 5]), tokens, targets)


def queries_and_keys(other: Model, softmax: Model, batch: Batch) -> list[tuple[Tensor, Tensor]]:
    """Queries of each fitted layer and keys before the fit, (B, L, E) and (B, T, E), as the layers compute them."""
    limit = other.limits(batch.tokens_BL, batch.lengths_B)
    x, found = other.decoder.embed(batch.tokens_BL, torch.arange(STEPS)), []
    frames = batch.features_BTF * (torch.arange(FRAMES) < batch.lengths_B[:, None])[..., None]
    for layer, before in zip(other.decoder.layers, softmax.decoder.layers, strict=True):
        y = x + layer.self_attention.whole(layer.norm_self(x))
        found.append((layer.cross.query(layer.norm_cross(y)), before.cross.key(frames)))
        x, _ = layer.whole(x, frames, limit)
    return found


def log_sums(q_BLE: Tensor, k_BTE: Tensor, batch: Batch, energies: int) -> tuple[list[Any], list[Any]]:
    """For each energy of a frame, the queries of all output steps and their log Z, by loops."""
    size = WIDTH // energies
    queries, sums = ([[] for _ in range(energies)] for _ in range(2))
    for g in range(energies):
        for q, keys in steps_of(q_BLE, k_BTE, batch, slice(g * size, (g + 1) * size)):
            total = sum(math.exp(float(q @ key) / math.sqrt(size)) for key in keys)
            queries[g].append([*q.tolist(), 1.0])
            sums[g].append(math.log(total))
    return queries, sums


def steps_of(q_BLE: Tensor, k_BTE: Tensor, batch: Batch, entries: slice) -> list[tuple[Tensor, Tensor]]:
    """For each output step some entries of its query and of all keys."""
    counts = [STEPS, STEPS - 2]
    return [
        (q_BLE[row, step, entries], k_BTE[row, : int(batch.lengths_B[row]), entries])
        for row in range(2)
        for step in range(counts[row])
    ]


@pytest.mark.parametrize(("attention", "energies"), [("hs-dacs", 2), ("acs", 1), ("mta", 2), ("mma-mocha", 2)])
@torch.no_grad()
def test_keys_are_fitted_by_least_squares_and_probabilities_sum_to_one(attention: str, energies: int) -> None:
    softmax, other = two_models(attention)
    batch = a_batch(1.0)
    explained = fit_energies(other, [batch])
    inputs = queries_and_keys(other, softmax, batch)
    layers = zip(inputs, other.decoder.layers, softmax.decoder.layers, explained, strict=True)
    for (q, k), ours, theirs, share in layers:
        queries, sums = log_sums(q, k, batch, energies)
        residual = spread = 0.0
        for g in range(energies):
            x, y = np.array(queries[g]), np.array(sums[g])
            ridge = 1e-3 * len(y) * np.eye(x.shape[1])
            ridge[-1, -1] = 0.0
            slope = np.linalg.solve(x.T @ x + ridge, x.T @ y)
            size = WIDTH // energies
            moved = (ours.cross.key.bias - theirs.cross.key.bias)[g * size : (g + 1) * size]
            np.testing.assert_allclose(moved.numpy() / math.sqrt(size), -slope[:-1], atol=1e-6)
            assert isinstance(ours.cross.mechanism, Mechanism)
            bias = float(ours.cross.mechanism.energy_bias[g])
            sums_of_p = [
                sum(1 / (1 + math.exp(-(float(query @ (key + moved)) / math.sqrt(size) + bias))) for key in keys)
                for query, keys in steps_of(q, k, batch, slice(g * size, (g + 1) * size))
            ]
            assert np.mean(sums_of_p) == pytest.approx(1.0, abs=1e-4)
            residual += float(np.square(y - x @ slope).sum())
            spread += float(np.square(y - y.mean()).sum())
        assert share == pytest.approx(1 - residual / spread, abs=1e-6)


@pytest.mark.parametrize("attention", ["dacs", "hs-dacs"])
@torch.no_grad()
def test_probabilities_are_close_to_the_weights_of_softmax_where_log_z_is_explained(attention: str) -> None:
    softmax, other = two_models(attention)
    batch = a_batch(0.1)._replace(lengths_B=torch.tensor([FRAMES, FRAMES]))  # log Z depends on the number of frames
    limit = softmax.limits(batch.tokens_BL, batch.lengths_B)
    other.decoder.set_phase(Phase(halts=False))
    exists = limit > 0

    def furthest() -> float:
        """Largest distance of a probability from the weight of softmax in the lowest layer, as a share of it."""
        weights = softmax.decoder.whole(batch.tokens_BL, batch.features_BTF, limit)[1][0].weights_BHLT
        found = other.decoder.whole(batch.tokens_BL, batch.features_BTF, limit)[1][0].weights_BHLT
        wanted = weights.transpose(1, 2)[exists]
        apart = (found.transpose(1, 2)[exists] - wanted).abs()
        return float((apart / wanted.clamp(min=1e-3)).max())

    before = furthest()
    explained = fit_energies(other, [batch])
    assert explained[0] > 0.99
    assert furthest() < 0.1
    assert before > 0.5


@pytest.fixture(scope="module")
def recipe(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_start(corpus, tmp_path_factory.mktemp("softmax"))


@pytest.mark.parametrize("attention", MECHANISMS)
def test_every_mechanism_starts_from_a_softmax_decoder(recipe: Path, tmp_path: Path, attention: str) -> None:
    said: list[str] = []
    given = [f"decoder.attention={attention}", f"training.folder={tmp_path}"]
    run = start(load_config(recipe, given), said.append)
    source = Model(load_config(recipe), 64, run.task.vocabulary.size).state_dict()
    model = run.task.model.state_dict()
    new = {name for name in model if name not in source}
    assert all(".mechanism." in name for name in new)
    assert not any("only the encoder" in line for line in said)
    fitted = any("variance of log Z explained" in line for line in said)
    assert fitted == (attention not in ("softmax", "triggered", "bs-dec", "cif"))
    assert bool(model["decoder.stack.0.cross.key.bias"].abs().max() > 0)


def test_a_match_without_a_softmax_decoder_is_refused(recipe: Path, tmp_path: Path) -> None:
    settings = [f"training.folder={tmp_path}", "decoder.layers=1"]
    with pytest.raises(ConfigError, match="match_updates requires a trained decoder with softmax attention"):
        start(load_config(recipe, settings), lambda _: None)

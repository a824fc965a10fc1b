"""Both engines agree for every mechanism and every encoder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file

from headsync.attention import MECHANISMS
from headsync.attention.bernoulli import MMA, MoChA
from headsync.config import Config, DecoderConfig, EncoderConfig, NetworkConfig
from headsync.engine import Memory, Window, load_engine
from headsync.engine.export import export_model, write_graphs
from headsync.engine.state_tree import join_rows
from headsync.engine.verify import compare
from headsync.frontend.features import NUM_MEL, Statistics
from headsync.frontend.frame_rate import WAVEFORM
from headsync.model_folder import WEIGHTS, ModelFolder, load_folder, save_folder
from headsync.nn.model import Model
from headsync.text.vocabulary import Vocabulary
from random_weights import scrambled

VOCABULARY = Vocabulary("characters", ("<space>", *"abcdefgh"))


@pytest.fixture(autouse=True, scope="module")
def _heads_wait() -> Iterator[None]:
    """Heads of MMA-MoChA wait for each other, and chunks end, within the few frames of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MMA, "wait_frames", 3)
        patch.setattr(MoChA, "chunk_frames", 2)
        yield


def exported(path: Path, attention: str = "hs-dacs", encoder: EncoderConfig = EncoderConfig(2, 5, 3, 2)) -> ModelFolder:  # noqa: B008
    """A small model whose every weight is random, with its graphs."""
    config = Config(
        network=NetworkConfig(width=16, heads=2, feedforward=24, kernels=4),
        encoder=encoder,
        decoder=DecoderConfig(layers=2, attention=attention, energy_bias=-1.0),
    )
    model = scrambled(Model(config, NUM_MEL, VOCABULARY.size)).float()
    noise = np.random.default_rng(1).standard_normal((50, NUM_MEL)).astype(np.float32)
    save_folder(path, config, VOCABULARY, Statistics.of([noise]))
    save_file(model.state_dict(), path / WEIGHTS)
    folder = load_folder(path)
    write_graphs(folder, path)
    return folder


def exported_moonshine(
    path: Path,
    attention: str = "hs-dacs",
    encoder: EncoderConfig = EncoderConfig(2, 5, 3, 2, "reuse"),  # noqa: B008
) -> ModelFolder:
    """The same for the other family."""
    config = Config(
        network=NetworkConfig(width=16, heads=2, feedforward=24, family="moonshine"),
        encoder=encoder,
        decoder=DecoderConfig(2, attention, energy_bias=-1.0, frame_positions=False),
    )
    model = scrambled(Model(config, config.columns, VOCABULARY.size)).float()
    save_folder(path, config, VOCABULARY, Statistics.identity(config.columns))
    save_file(model.state_dict(), path / WEIGHTS)
    folder = load_folder(path)
    write_graphs(folder, path)
    return folder


def with_threshold(folder: ModelFolder, threshold: float) -> ModelFolder:
    return replace(folder, config=replace(folder.config, decoder=replace(folder.config.decoder, threshold=threshold)))


def assert_agree(folder: ModelFolder) -> None:
    engines = [load_engine(folder, engine=name) for name in ("torch", "onnx")]
    agreement = compare(*engines, folder.config, folder.vocabulary.size, seed=3)
    assert agreement.steps == 1.0
    assert agreement.difference < 2e-5  # sums in float32, in another order


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism(name: str, tmp_path: Path) -> None:
    folder = exported(tmp_path, name)
    assert_agree(folder)
    assert_agree(with_threshold(folder, 0.5))


@pytest.mark.parametrize("encoder", [
    EncoderConfig(2, 5, 3, 2, mode="reuse"),
    EncoderConfig(2, 5, 3, 2, mode="contextual"),
    EncoderConfig(2, 5, 3, 2, mode="full"),
    EncoderConfig(2, 0, 3, 0),
    EncoderConfig(2, 0, 3, 1, mode="reuse"),
], ids=lambda encoder: f"{encoder.mode}-{encoder.left_frames}")  # fmt: skip
def test_every_encoder(encoder: EncoderConfig, tmp_path: Path) -> None:
    assert_agree(exported(tmp_path, encoder=encoder))


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_of_the_moonshine_family(name: str, tmp_path: Path) -> None:
    folder = exported_moonshine(tmp_path, name)
    assert_agree(folder)
    assert_agree(with_threshold(folder, 0.5))


@pytest.mark.parametrize("encoder", [
    EncoderConfig(2, 5, 3, 2, mode="full"),
    EncoderConfig(2, 0, 3, 0, mode="reuse"),
    EncoderConfig(1, 9, 2, 5, mode="reuse"),
], ids=lambda encoder: f"{encoder.mode}-{encoder.left_frames}")  # fmt: skip
def test_every_encoder_of_the_moonshine_family(encoder: EncoderConfig, tmp_path: Path) -> None:
    assert_agree(exported_moonshine(tmp_path, encoder=encoder))


@pytest.mark.parametrize(("centre", "right"), [(3, 2), (1, 7), (7, 1), (6, 6)])
def test_graphs_of_a_model_with_varied_sizes_compute_all_of_them(centre: int, right: int, tmp_path: Path) -> None:
    folder = exported_moonshine(tmp_path, encoder=EncoderConfig(2, 5, 3, 2, "reuse", varied_frames="1 7"))
    encoder = replace(folder.config.encoder, centre_frames=centre, right_frames=right)
    assert_agree(replace(folder, config=replace(folder.config, encoder=encoder)))


def test_the_level_of_a_stream_is_the_same_in_both_engines(tmp_path: Path) -> None:
    """Consecutive chunks of several sizes, of digital silence, faint and loud audio."""
    engines = [load_engine(exported_moonshine(tmp_path), engine=name) for name in ("torch", "onnx")]
    states, rng = [engine.start_front(2) for engine in engines], np.random.default_rng(1)
    for count, loudness in ((5, 1e-3), (3, 0.0), (3, 1.0), (4, 0.03), (3, 0.03)):
        noise = loudness * rng.standard_normal((2, WAVEFORM.needed(count), WAVEFORM.window)).astype(np.float32)
        (one, left), (other, right) = (
            engine.embed(noise.astype(np.float32), state) for engine, state in zip(engines, states, strict=True)
        )
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
        np.testing.assert_allclose(left[0], right[0], rtol=1e-5, atol=1e-12)
        assert left[0].dtype == right[0].dtype == np.float64
        states = [left, right]


@pytest.mark.parametrize("precision", ["half", "int8"])
def test_the_moonshine_family_in_other_precisions(precision: str, tmp_path: Path) -> None:
    folder = exported_moonshine(tmp_path / "single")
    agreement = export_model(folder, tmp_path / "out", int8=precision == "int8", half=precision == "half")
    assert agreement.steps > 0.8
    assert 1e-6 < agreement.difference < (0.02 if precision == "half" else 0.3)
    weights = sum((folder.weights.stat().st_size, -(tmp_path / "out" / WEIGHTS).stat().st_size))
    assert weights > 0


def test_a_difference_is_noticed(tmp_path: Path) -> None:
    """The comparison can fail: another threshold reads other frames, another weight gives other scores."""
    folder = exported(tmp_path)
    usual, sooner = load_engine(folder), load_engine(with_threshold(folder, 0.3), engine="torch")
    assert compare(usual, sooner, folder.config, folder.vocabulary.size).steps < 1.0
    changed = scrambled(Model(folder.config, NUM_MEL, VOCABULARY.size), seed=1).float()
    save_file(changed.state_dict(), folder.weights)
    assert compare(usual, load_engine(folder), folder.config, folder.vocabulary.size).difference > 0.1
    assert_agree(folder)  # and other weights need no other graphs


@pytest.mark.parametrize("name", ["onnx", "torch"])
@pytest.mark.parametrize("mechanism", ["acs", "dacs", "hs-dacs"])
def test_rows_of_one_batch_have_thresholds_of_their_own(name: str, mechanism: str, tmp_path: Path) -> None:
    folder = exported(tmp_path, mechanism)
    engine, frames, thresholds = load_engine(folder, engine=name), 9, (0.2, 0.6, None)
    rng, heads = np.random.default_rng(1), folder.config.decoder.heads or folder.config.network.heads
    shape = (1, folder.config.decoder.layers, heads, frames, folder.config.network.width // heads)
    memory = Memory(*rng.standard_normal((2, *shape)).astype(np.float32))
    states = [engine.start_decoder(1, threshold) for threshold in thresholds]
    joined, ends = join_rows(*states), []
    one, three = (Window(np.full(n, frames), np.full(n, frames), np.ones(n, bool)) for n in (1, 3))
    for token in (3, 1, 4):
        alone = [engine.decode(np.array([token]), memory, state, one) for state in states]
        together = engine.decode(np.full(3, token), memory, joined, three)
        states, joined = [decoded.state for decoded in alone], together.state
        for row, decoded in enumerate(alone):
            np.testing.assert_array_equal(decoded.end_BNH[0], together.end_BNH[row])
            np.testing.assert_allclose(decoded.log_p_BV[0], together.log_p_BV[row], atol=2e-5)
        ends.append(together.end_BNH.sum((1, 2)))
    assert (np.array(ends)[:, 0] < np.array(ends)[:, 2]).all()  # a lower threshold consumes fewer frames

"""The measure of speed: a stream in which tokens come at a known rate, and the products that bound it."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from contracts.test_engines import exported
from headsync.engine import load_engine
from headsync.model_folder import ModelFolder
from speed import EngineCall, MatrixProducts, Speed, measure, speeds, step_seconds


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return exported(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("beam", [1, 3])
def test_tokens_come_at_their_rate(folder: ModelFolder, beam: int) -> None:
    speed = measure(folder, load_engine(folder), 4.0, 5.0, beam=beam)
    assert speed.tokens == pytest.approx(20, abs=1)
    assert speed.steps >= speed.tokens
    assert 0 < speed.bound < speed.computing
    assert speed.first_token < 2.0


def test_figures_follow_from_times() -> None:
    speed = Speed(seconds=10.0, computing=4.0, bound=2.0, last=0.4, first_token=1.4, tokens=40, steps=41)
    assert (speed.each, speed.ratio) == (0.4, 2.0)


def test_the_products_of_a_step_are_those_of_its_weights(folder: ModelFolder) -> None:
    """Rows times every weight of the decoder, and the products with frames and tokens in both attentions."""
    products = MatrixProducts(folder.config, classes=11)
    rows, frames, written = 3, 7, 4
    found = [np.prod(left) * right[-1] for _, left, right in products._of(EngineCall("decode", rows, frames, written))]
    width, wide, layers = 16, 24, 2
    weights = layers * (6 * width * width + 2 * width * wide) + width * 11
    attention = layers * 2 * width * (frames + written + 1)
    assert sum(found) == rows * (weights + attention)


def test_a_step_takes_time(folder: ModelFolder) -> None:
    assert step_seconds(folder, load_engine(folder), beam=2, frames=9, runs=6) > 0


def test_a_row_is_printed_for_each_stream(folder: ModelFolder, capsys: pytest.CaptureFixture[str]) -> None:
    (figures,) = speeds(folder, beams=[2], lengths=[2.5])
    (row,) = capsys.readouterr().out.splitlines()
    assert row.startswith(f"| {folder.vocabulary.size} | 2 | 2 s | {figures['computing'] / 2.5:.3f} s |")


def test_the_measured_engine_is_unchanged(folder: ModelFolder) -> None:
    engine = load_engine(folder)
    first = measure(folder, engine, 2.5, 5.0)
    assert measure(folder, engine, 2.5, 5.0).tokens == first.tokens


def test_products_are_made_on_one_thread(folder: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that wait for each other cost processor time, and the bound would look slow."""
    threads = list[int]()
    monkeypatch.setattr(MatrixProducts, "seconds", lambda *_: threads.extend(blas_threads()) or 0.1)
    measure(folder, load_engine(folder), 2.5, 5.0)
    assert set(threads) == {1}


def blas_threads() -> list[int]:
    return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]

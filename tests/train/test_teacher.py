"""A teacher: its states by recording, how unlike them an encoder's frames are, and what it reads in them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from headsync.audio import FloatArray
from headsync.data.manifest import Utterance, read_manifest
from headsync.errors import ConfigError
from headsync.features import Features
from headsync.folder import VOCABULARY
from headsync.framing import embedded_frames, needed_features
from headsync.nn.model import Output
from headsync.recipe import load_config
from headsync.tokens import Vocabulary, build_vocabulary
from headsync.train.data import PADDING, Batch, features_of
from headsync.train.loop import train
from headsync.train.losses import reading_loss, teacher_loss
from headsync.train.teacher import INDEX, READINGS, STATES, Teacher

WIDTH, COLUMNS = 6, 9


def rows(*counts: int, columns: int, seed: int = 1) -> Tensor:
    """Rows of noise, as many frames of each as given, NaN behind."""
    source = torch.Generator().manual_seed(seed)
    made = torch.full((len(counts), max(counts), columns), torch.nan)
    for row, count in enumerate(counts):
        made[row, :count] = torch.randn(count, columns, generator=source)
    return made


def unlike(frames_BTE: Tensor, states_BTD: Tensor) -> Tensor:
    nothing = torch.empty(0)
    output = Output(nothing, nothing, nothing, [], frames_BTE)
    return teacher_loss(output, Batch(nothing, nothing, nothing, nothing, states_BTD))


def by_least_squares(frames_NE: Tensor, states_ND: Tensor) -> Tensor:
    """What the best linear map leaves open, all of it open to differentiation."""
    frames, states = frames_NE - frames_NE.mean(0), states_ND - states_ND.mean(0)
    states = states / states.std(0)
    return (states - frames @ torch.linalg.lstsq(frames, states).solution).square().mean()


def test_a_map_of_the_frames_leaves_nothing_open_and_noise_nearly_all() -> None:
    frames = rows(300, 200, columns=WIDTH).nan_to_num(7.0)
    states = torch.einsum("bte,ed->btd", frames, rows(WIDTH, columns=COLUMNS, seed=2)[0]) + 3.0
    states[1, 200:] = torch.nan
    assert float(unlike(frames, states)) < 1e-6
    assert float(unlike(frames, rows(300, 200, columns=COLUMNS, seed=3))) > 0.95


def test_value_and_gradient_are_those_of_least_squares() -> None:
    frames = rows(150, columns=WIDTH).requires_grad_()
    states = rows(150, columns=COLUMNS, seed=2) + frames.detach() @ rows(WIDTH, columns=COLUMNS, seed=3)[0]
    expected = by_least_squares(frames[0].double(), states[0].double())
    (wanted,) = torch.autograd.grad(expected, frames)
    found = unlike(frames, states)
    (slope,) = torch.autograd.grad(found, frames)
    torch.testing.assert_close(found, expected.float(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(slope, wanted, rtol=2e-2, atol=2e-5)


def test_what_lies_behind_a_row_and_rows_without_states_do_not_count() -> None:
    frames, states = rows(80, 60, 70, columns=WIDTH), rows(80, 60, 70, columns=COLUMNS, seed=2)
    states[2] = torch.nan
    alone = unlike(torch.cat([frames[0, :80], frames[1, :60]])[None], torch.cat([states[0, :80], states[1, :60]])[None])
    torch.testing.assert_close(unlike(frames.nan_to_num(1e3), states), alone)


def test_a_batch_without_a_teacher_or_with_too_few_frames_has_no_loss() -> None:
    frames = rows(100, columns=WIDTH)
    assert float(unlike(frames, torch.empty(0))) == 0
    assert float(unlike(frames[:, : 2 * WIDTH], rows(2 * WIDTH, columns=COLUMNS))) == 0


def misread(ctc_BTV: Tensor, readings_BTV: Tensor, targets_BL: Tensor) -> Tensor:
    nothing = torch.empty(0)
    output = Output(ctc_BTV, nothing, nothing, [], nothing)
    return reading_loss(output, Batch(nothing, nothing, nothing, targets_BL, readings_BTV=readings_BTV))


def test_reading_is_the_divergence_of_frames_that_the_teacher_knows_per_output_step() -> None:
    ctc, readings = rows(5, 3, columns=4).nan_to_num(1e3), rows(5, 3, columns=4, seed=2).log_softmax(-1)
    targets = torch.tensor([[1, 2, 9], [3, 9, PADDING]])  # five output steps
    expected = 0.0
    for row, count in ((0, 5), (1, 3)):
        for t in range(count):
            p, q = ctc[row, t].softmax(-1), readings[row, t].exp()
            expected += sum(float(q[v] * (q[v] / p[v]).log()) for v in range(4))
    assert float(misread(ctc, readings, targets)) == pytest.approx(expected / 5, rel=1e-5)
    assert float(misread(readings.nan_to_num(0.0), readings, targets)) == pytest.approx(0.0, abs=1e-6)
    assert float(misread(ctc, torch.empty(0), targets)) == 0


def spoken(name: str, speed: float = 1.0) -> Utterance:
    return Utterance(id=name, audio=Path(name), text="", seconds=1.0, speaker="s", speed=speed)


def features(frames: int) -> FloatArray:
    return np.zeros((needed_features(frames), 80), np.float32)


@pytest.fixture
def teacher(tmp_path: Path) -> Teacher:
    np.save(tmp_path / STATES, np.arange(20, dtype=np.float16).reshape(10, 2))
    (tmp_path / INDEX).write_text(json.dumps({"a.flac": [0, 4], "b.flac": [4, 6]}))
    return Teacher.load(tmp_path)


def test_states_stand_beside_the_frames_of_their_recordings(teacher: Teacher) -> None:
    found = teacher.together([spoken("b.flac"), spoken("a.flac")], [features(6), features(4)])
    assert found.shape == (2, 6, 2)
    assert found[0].tolist() == [[8, 9], [10, 11], [12, 13], [14, 15], [16, 17], [18, 19]]
    assert found[1, :4].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert found[1, 4:].isnan().all()


@pytest.mark.parametrize(
    ("utterance", "frames"),
    [(spoken("other.flac"), 4), (spoken("a.flac", speed=1.1), 4), (spoken("a.flac"), 8)],
    ids=["not heard", "at another speed", "of another length"],
)
def test_other_recordings_have_no_states(teacher: Teacher, utterance: Utterance, frames: int) -> None:
    assert teacher.together([utterance], [features(frames)]).isnan().all()


def test_a_frame_more_or_less_at_the_end_does_no_harm(teacher: Teacher) -> None:
    assert teacher.together([spoken("a.flac")], [features(5)]).isnan().any(2).tolist() == [[False] * 4 + [True]]
    assert teacher.together([spoken("a.flac")], [features(3)])[0].tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("damage", ["no folder", "no index", "not json", "a list", "no array"])
def test_a_folder_that_is_no_teacher_is_named(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "teacher"
    if damage != "no folder":
        folder.mkdir()
        np.save(folder / STATES, np.zeros((1, 2), np.float16))
        (folder / INDEX).write_text({"not json": "{", "a list": "[1]"}.get(damage, "{}"))
    if damage == "no index":
        (folder / INDEX).unlink()
    if damage == "no array":
        (folder / STATES).write_text("no array")
    with pytest.raises(ConfigError, match=r"training\.teacher = .*teacher"):
        Teacher.load(folder)


@pytest.fixture(scope="session")
def listened(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher of the toy corpus, whose states are the log energies of seven feature frames."""
    folder = tmp_path_factory.mktemp("teacher")
    places: dict[str, Any] = {}
    states: list[FloatArray] = []
    data = load_config(recipe).data
    for utterance in read_manifest(Path(data.train)) + read_manifest(Path(data.dev)):
        energies = features_of(utterance, Features())
        count = embedded_frames(len(energies))
        places[str(utterance.audio)] = [sum(len(s) for s in states), count]
        states.append(np.stack([energies[4 * t : 4 * t + 7, ::8].ravel() for t in range(count)]))
    np.save(folder / STATES, np.concatenate(states).astype(np.float16))
    (folder / INDEX).write_text(json.dumps(places))
    return folder


def test_an_encoder_becomes_like_its_teacher(recipe: Path, listened: Path, tmp_path: Path) -> None:
    def last(weight: float) -> tuple[float, float]:
        folder = tmp_path / str(weight)
        settings = [f"training.folder={folder}", f"training.teacher={listened}", f"training.teacher_weight={weight}"]
        train(recipe, [*settings, "training.epochs=4"], say=lambda _: None)
        entries = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        trained = [entry["unlike"] for entry in entries if "unlike" in entry]
        measured = [entry["dev"]["unlike"] for entry in entries if "dev" in entry]
        return float(np.mean(trained[-3:])), measured[-1]

    for taught, alone in zip(last(5.0), last(0.0), strict=True):  # in training, and on the development set
        assert 0 < taught < 0.9 * alone


TOKENS = Vocabulary("words", ("one", "two"))


def reading(folder: Path, readings: NDArray[Any], vocabulary: Vocabulary = TOKENS) -> Path:
    np.save(folder / READINGS, readings.astype(np.float16))
    vocabulary.save(folder / VOCABULARY)
    return folder


def test_readings_stand_beside_states(teacher: Teacher, tmp_path: Path) -> None:
    heard = [spoken("b.flac"), spoken("other.flac")], [features(6), features(4)]
    assert not teacher.read(*heard).numel()
    able = Teacher.load(reading(tmp_path, np.arange(40).reshape(10, 4)), TOKENS)
    found = able.read(*heard)
    assert found[0].tolist() == np.arange(16, 40).reshape(6, 4).tolist()
    assert found[1].isnan().all()


def test_a_teacher_that_reads_something_else_is_named(teacher: Teacher, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.teacher = .*it cannot read"):
        Teacher.load(tmp_path, TOKENS)
    reading(tmp_path, np.zeros((10, 4)), Vocabulary("words", ("one", "three")))
    with pytest.raises(ConfigError, match=r"it reads other tokens, one three"):
        Teacher.load(tmp_path, TOKENS)
    reading(tmp_path, np.zeros((9, 4)))
    with pytest.raises(ConfigError, match=r"readings\.npy is not of its states"):
        Teacher.load(tmp_path, TOKENS)


def test_what_a_teacher_reads_is_learned_without_a_text(recipe: Path, listened: Path, tmp_path: Path) -> None:
    """The teacher reads a token that no text has at that place: the weight decides who is believed."""
    folder = tmp_path / "teacher"
    shutil.copytree(listened, folder)
    data = load_config(recipe).data
    vocabulary = build_vocabulary(data, [u.text for u in read_manifest(Path(data.train))])
    readings = np.full((len(np.load(folder / STATES)), vocabulary.size), -9.0)
    readings[:, 2] = -0.001
    reading(folder, readings, vocabulary)

    def last(weight: float) -> float:
        out = tmp_path / str(weight)
        settings = [f"training.folder={out}", f"training.teacher={folder}", "training.teacher_weight=0"]
        train(recipe, [*settings, f"training.reading_weight={weight}", "training.epochs=3"], say=lambda _: None)
        entries = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        return float(np.mean([entry["misread"] for entry in entries if "misread" in entry][-3:]))

    assert last(1.0) < 0.5 * last(1e-6)


def test_a_weight_of_readings_needs_a_teacher(recipe: Path) -> None:
    with pytest.raises(ConfigError, match=r"name one as training\.teacher"):
        load_config(recipe, ["training.reading_weight=1"])

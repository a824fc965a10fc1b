"""Points of error rate against delay: their cache, the front, and the choice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import run
from headsync.config import Config, DecoderConfig, EncoderConfig, NetworkConfig
from headsync.corpora.manifest import Utterance, write_manifest
from headsync.errors import DataError
from headsync.evaluation.evaluate import EvaluationReport, UtteranceResult, evaluate, summarise
from headsync.evaluation.tuning import Budget, Point, choose, grid, measure_points, pareto_front, with_budget
from headsync.model_folder import find
from headsync.recognizer import Recognizer
from recordings import DIGIT_RECORDINGS

B = Budget(320.0, 1.0, 1.2)
POINTS = [
    Point(B, 0.10, 0.5, 1.0),
    Point(B, 0.05, 0.9, 1.0),
    Point(B, 0.10, 0.6, 1.0),  # later than the first
    Point(B, 0.10, 0.6, 0.8),  # but this one is final sooner
    Point(B, 0.05, 0.9, 1.0),  # as good as the second
]


def test_the_front_has_the_points_that_no_other_beats() -> None:
    assert pareto_front(POINTS) == [POINTS[0], POINTS[1], POINTS[3], POINTS[4]]
    assert pareto_front(POINTS[2:3]) == POINTS[2:3]


def test_the_choice_has_the_fewest_errors_within_the_delay() -> None:
    assert choose(POINTS) == POINTS[1]
    assert choose(POINTS, 0.7) == POINTS[0]
    with pytest.raises(DataError, match=r"at most 0\.1 s; the least is 0\.50 s"):
        choose(POINTS, 0.1)


def test_a_budget_becomes_settings_of_a_model() -> None:
    config = with_budget(Config(), Budget(200.0, 0.5, 0.7))
    assert (config.decoding.lookahead_frames, config.decoder.threshold, config.endpoint.pause_seconds) == (5, 0.5, 0.7)
    assert grid([1, 2], [3], [4, 5]) == [Budget(1, 3, 4), Budget(1, 3, 5), Budget(2, 3, 4), Budget(2, 3, 5)]


def test_a_budget_has_the_sizes_of_the_encoder() -> None:
    network, decoder = NetworkConfig(family="moonshine"), DecoderConfig(frame_positions=False)
    config = Config(network=network, encoder=EncoderConfig(mode="reuse", varied_frames="5 16"), decoder=decoder)
    encoder = with_budget(config, Budget(200.0, 0.5, 0.7, 240.0, 672.0)).encoder
    assert (encoder.centre_frames, encoder.right_frames) == (5, 14)
    assert with_budget(config, B).encoder == config.encoder
    assert grid([1], [2], [3], [4, 5], [6]) == [(1, 2, 3, 4, 6), (1, 2, 3, 5, 6)]


@pytest.fixture(scope="module")
def utterances() -> list[Utterance]:
    paths = sorted(DIGIT_RECORDINGS.glob("*.flac"))[:2]
    return [Utterance(path.stem, path, path.with_suffix(".txt").read_text().strip(), 1.0) for path in paths]


def test_a_measured_point_is_not_measured_again(utterances: list[Utterance], tmp_path: Path) -> None:
    recognizer, asked, seen = Recognizer.load("digits-en"), list[Budget](), list[tuple[int, int]]()

    def measure(budget: Budget, progress: Callable[[int, int], None]) -> EvaluationReport:
        asked.append(budget)
        return evaluate(recognizer.changed(budget._asdict()), utterances, progress=progress)

    def measured(budgets: list[Budget], model: str = "a") -> list[Point]:
        cache = tmp_path / "points.jsonl"
        return measure_points(measure, budgets, cache, {"model": model}, lambda *done: seen.append(done))

    budgets = grid([120.0, 480.0], [1.0], [0.3])
    points = measured(budgets)
    assert asked == budgets
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert points[0].user_perceived < points[1].user_perceived
    with (tmp_path / "points.jsonl").open("a") as file:
        file.write('{"model": "a", "budget": {"lookahead_ms": 1')  # a run was killed here
    assert measured(budgets) == points
    assert len(asked) == 2
    measured(budgets[:1], model="b")
    assert len(asked) == 3


def test_recordings_without_words_cannot_tune(tmp_path: Path) -> None:
    def measure(budget: Budget, progress: Callable[[int, int], None]) -> EvaluationReport:
        return summarise(list[UtteranceResult]())

    with pytest.raises(DataError, match="tuning requires recordings with words"):
        measure_points(measure, [B], tmp_path / "points.jsonl", {}, lambda *done: None)


BUDGET = {"lookahead_ms": 192.0, "threshold": 0.5, "pause_seconds": 0.5, "centre_ms": 384.0, "right_ms": 384.0}


def test_tune_prints_points_draws_them_and_writes_a_copy(utterances: list[Utterance], tmp_path: Path) -> None:
    manifest, out = tmp_path / "dev.jsonl", tmp_path / "tuned"
    write_manifest(manifest, utterances[:1])
    options = ("--lookahead-ms", 192, "--threshold", 0.5, "--pause", 0.5)
    result = run("tune", "digits-en", manifest, *options, "--write", out, "--plot", tmp_path / "a.png")
    assert result.exit_code == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[:3] for line in lines[1:3]] == [["192", "0.5", "0.5"], ["384", "0.5", "1.2"]]  # and as stored
    assert lines[1][-1] == "chosen"
    assert lines[-2][-3:] == ["word", "ends:", "recogniser"]
    assert (tmp_path / "a.png").stat().st_size > 5000
    tuned = Recognizer.load(out)
    assert tuned.budget == BUDGET
    assert tuned.transcribe(utterances[0].audio)
    assert len((tmp_path / "dev.tune.jsonl").read_text().splitlines()) == 2
    again = run("tune", "digits-en", manifest, *options, "--write", tmp_path)
    assert "already exists" in again.stderr
    wrong = run("tune", "digits-en", manifest, "--threshold", 0)
    assert wrong.stderr == "--threshold = 0.0 must be a number above 0, for example 1.0\n"


def test_tune_writes_into_the_model_with_reference_times(utterances: list[Utterance], tmp_path: Path) -> None:
    manifest, times = tmp_path / "dev.jsonl", tmp_path / "known.ctm"
    write_manifest(manifest, utterances[:1])
    spoken = utterances[0].text.split()
    times.write_text("".join(f"{utterances[0].id} 1 {n / 2} 0.5 {word}\n" for n, word in enumerate(spoken)))
    own = shutil.copytree(find("digits-en"), tmp_path / "mine")
    options = ("--lookahead-ms", 192, "--threshold", 0.5, "--pause", 0.5, "--times", times)
    result = run("tune", own, manifest, *options, "--write", own)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-2].split()[-3:] == ["word", "ends:", "reference"]
    assert result.stdout.splitlines()[-1] == f"wrote {own / 'config.toml'}"
    assert Recognizer.load(own).budget == BUDGET
    shipped = run("tune", "digits-en", manifest, *options, "--write", find("digits-en"))
    assert shipped.stderr == "digits-en: shipped models cannot be changed; name a folder for a changed copy.\n"

"""From manifests to batches: nothing lost, nothing twice, nothing over the budget, the same again by seed and epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headsync.config import TrainingConfig
from headsync.corpora.manifest import Utterance, read_manifest
from headsync.errors import AudioError, DataError
from headsync.frontend.features import NUM_MEL, Features, normalise
from headsync.frontend.frame_rate import LOG_MEL
from headsync.text.vocabulary import Vocabulary
from headsync.training.batches import (
    PADDING,
    Batch,
    Batches,
    check_not_empty,
    collate,
    features_of,
    load,
    statistics_of,
    usable,
)
from headsync.training.bucketing import plan

MEL = Features()
WORDS = Vocabulary("words", ("a", "b"))
SOME_SECONDS = st.lists(st.floats(0.05, 30.0), min_size=1, max_size=60)


def utterances(seconds: Sequence[float], text: str = "a") -> list[Utterance]:
    return [Utterance(f"u{i}", Path(f"u{i}.wav"), text, length) for i, length in enumerate(seconds)]


def in_order(batches: list[list[int]]) -> list[int]:
    return sorted(index for batch in batches for index in batch)


@settings(deadline=None)
@given(SOME_SECONDS, st.integers(1, 5000), st.integers(0, 3), st.integers(0, 3))
def test_every_utterance_comes_exactly_once_and_no_batch_is_over_the_budget(
    seconds: list[float], budget: int, seed: int, epoch: int
) -> None:
    batches = plan(utterances(seconds), budget, seed, epoch)
    assert in_order(batches) == list(range(len(seconds)))
    for batch in batches:
        padded = 100 * max(seconds[index] for index in batch) * len(batch)
        assert padded <= budget or len(batch) == 1


@settings(deadline=None)
@given(SOME_SECONDS, st.integers(1, 5000), st.integers(0, 3), st.integers(0, 3))
def test_a_plan_follows_from_seed_and_epoch(seconds: list[float], budget: int, seed: int, epoch: int) -> None:
    assert plan(utterances(seconds), budget, seed, epoch) == plan(utterances(seconds), budget, seed, epoch)


def test_another_seed_or_epoch_is_another_plan() -> None:
    corpus = utterances(np.linspace(1, 5, 50).tolist())
    plans = [plan(corpus, 2000, seed, epoch) for seed in (1, 2) for epoch in (0, 1)]
    assert all(plans[i] != plans[j] for i in range(4) for j in range(i))
    grouped = [{frozenset(batch) for batch in p} for p in plans]
    assert grouped[0] != grouped[1]  # other neighbours too, not only another order of the batches


def test_a_batch_holds_utterances_of_like_length_and_batches_come_in_no_order_of_length() -> None:
    seconds = np.random.default_rng(1).uniform(1, 10, 400)
    batches = plan(utterances(seconds.tolist()), 6000, 1, 0)
    padding = sum(seconds[b].max() * len(b) - seconds[b].sum() for b in batches) / seconds.sum()
    assert padding < 0.25
    lengths = [seconds[b].mean() for b in batches]
    assert lengths != sorted(lengths)
    assert abs(np.corrcoef(lengths, range(len(lengths)))[0, 1]) < 0.5


def test_a_batch_is_filled_up_to_the_last_frame() -> None:
    batches = plan(utterances([1.0] * 10), 500, 1, 0)
    assert [len(batch) for batch in batches] == [5, 5]
    assert sorted(len(batch) for batch in plan(utterances([1.0] * 10), 499, 1, 0)) == [2, 4, 4]


@pytest.mark.parametrize(
    ("text", "encoder_frames"), [("a", 1), ("a b", 2), ("a a", 3), ("a b a", 3), ("b b b", 5), ("", 1)]
)
def test_too_short_is_what_ctc_cannot_align(text: str, encoder_frames: int) -> None:
    """Every token needs a frame, and a repeat one more for the blank in between."""
    enough = (LOG_MEL.needed(encoder_frames) + 2) / 100
    fit, short = utterances([enough, enough - 0.01], text)
    assert usable([fit, short], WORDS) == ([fit], [short])


def test_a_word_that_is_not_in_the_vocabulary_is_named() -> None:
    with pytest.raises(DataError, match="'c' in 'a c' is not in the vocabulary"):
        usable(utterances([1.0], "a c"), WORDS)


def test_rows_of_unequal_length_are_padded_behind() -> None:
    short, long = np.ones((2, NUM_MEL), np.float32), np.full((3, NUM_MEL), 2, np.float32)
    batch = collate([short, long], [[1, 2], []], WORDS.end)
    assert batch.lengths_B.tolist() == [2, 3]
    assert batch.tokens_BL.tolist() == [[3, 1, 2], [3, 3, 3]]
    assert batch.targets_BL.tolist() == [[1, 2, 3], [3, PADDING, PADDING]]
    assert batch.features_BTF[:, :, 0].tolist() == [[1, 1, 0], [2, 2, 2]]


def test_an_empty_manifest_is_an_error() -> None:
    with pytest.raises(DataError, match=r"empty\.jsonl: no usable utterance"):
        check_not_empty([], "empty.jsonl")


@pytest.fixture(scope="module")
def spoken(corpus: Path) -> list[Utterance]:
    return read_manifest(corpus / "train.jsonl")


@pytest.fixture(scope="module")
def batches(spoken: list[Utterance]) -> Batches:
    vocabulary = Vocabulary.build("words", [u.text for u in spoken])
    return Batches(spoken, vocabulary, statistics_of(spoken, MEL), plan(spoken, 600, 1, 0))


def same(first: Batch, second: Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_batch_holds_the_frames_and_texts_of_its_rows(batches: Batches, spoken: list[Utterance]) -> None:
    batch, rows = batches[2], batches.rows[2]
    for row, index in enumerate(rows):
        features = normalise(features_of(spoken[index], MEL), batches.statistics)
        length = int(batch.lengths_B[row])
        assert length == len(features)
        np.testing.assert_array_equal(batch.features_BTF[row, :length].numpy(), features)
        assert not batch.features_BTF[row, length:].any()
        target = [t for t in batch.targets_BL[row].tolist() if t != PADDING]
        assert batches.vocabulary.decode(target) == spoken[index].text
        assert target[-1] == batches.vocabulary.end


def test_no_batch_has_more_frames_than_planned(batches: Batches) -> None:
    sizes = [batches[number].features_BTF.shape[:2] for number in range(len(batches))]
    assert all(rows * frames <= 600 or rows == 1 for rows, frames in sizes)
    assert sum(rows for rows, _ in sizes) == 10


def test_normalised_features_have_zero_mean_and_unit_deviation(batches: Batches, spoken: list[Utterance]) -> None:
    frames = np.concatenate([normalise(features_of(u, MEL), batches.statistics) for u in spoken])
    np.testing.assert_allclose(frames.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(frames.std(0), 1, atol=1e-3)


def test_statistics_of_many_utterances_take_an_even_selection(spoken: list[Utterance]) -> None:
    few = statistics_of(spoken, MEL, most=3)
    np.testing.assert_array_equal(few, statistics_of(spoken[::3], MEL))


def test_masks_change_with_the_epoch_and_follow_from_the_seed(batches: Batches) -> None:
    config = TrainingConfig(time_mask_frames=30, frequency_mask_bins=20)

    def masked(config: TrainingConfig, epoch: int) -> Batch:
        return Batches(
            batches.utterances, batches.vocabulary, batches.statistics, batches.rows, (config, epoch)
        )[0]  # fmt: skip

    assert same(masked(config, 3), masked(config, 3))
    assert not same(masked(config, 3), masked(config, 4))
    assert not same(masked(config, 3), masked(replace(config, seed=2), 3))
    assert not same(masked(config, 3), batches[0])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_come_in_order_from_any_number_and_any_workers(batches: Batches, workers: int) -> None:
    loaded = [share.parts[0] for share in load(batches, 2, workers)]
    assert len(loaded) == len(batches) - 2
    assert all(same(batch, batches[number]) for number, batch in enumerate(loaded, 2))
    assert list(load(batches, len(batches), workers)) == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_recording_that_is_gone_is_one_sentence_from_a_worker_too(batches: Batches, workers: int) -> None:
    gone = [replace(u, audio=Path("gone.flac")) for u in batches.utterances]
    broken = Batches(gone, batches.vocabulary, batches.statistics, batches.rows)
    with pytest.raises(AudioError, match=r"^gone\.flac: ") as caught:
        next(load(broken, 0, workers))
    assert "\n" not in str(caught.value)

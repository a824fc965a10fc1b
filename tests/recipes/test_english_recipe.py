"""The English recipe: vocabulary, forced alignment, texts, the streaming encoder and the conversion."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from aligner import best_path as aligned
from convert import (
    AFTER,
    EARLY,
    EARLY_SUM,
    REACH,
    THRESHOLD,
    Batch,
    OnlineDecoder,
    fit,
    halting_loss,
    padded_batch,
)
from label import formatted
from moonshine import WIDTH, Decoder, Encoder, Shape
from train import CTC, Recogniser, Teacher, ctc_spikes, token_limits, unexplained
from vocabulary import SPACE, Merges

NUMBERS = {piece: n for n, piece in enumerate([SPACE, *"abcdn", "an", SPACE + "b", SPACE + "ban", "and"])}


def test_pieces_with_smaller_numbers_are_merged_first() -> None:
    merges = Merges(NUMBERS)
    assert merges.spell(SPACE + "band") == (SPACE + "ban", "d")
    assert merges.spell(SPACE + "and") == (SPACE, "and")
    assert [NUMBERS[SPACE + "ban"], NUMBERS["d"]] == merges.encode("ban?d")


def test_every_kept_piece_can_be_reached_by_merges() -> None:
    assert set(Merges(NUMBERS).halves(SPACE + "ban")) == {SPACE, "b", "a", "n", "an", SPACE + "b"}


def best_path(log_p_TV: np.ndarray, text: list[int]) -> list[int]:
    """First frames of the tokens on the most likely path, over all paths."""
    T, best, found = len(log_p_TV), -np.inf, list[int]()
    for starts in combinations(range(T), len(text)):
        for ends in combinations(range(1, T + 1), len(text)):
            labels = np.zeros(T, int)
            spans = list(zip(text, starts, ends, strict=True))
            if any(end <= start for _, start, end in spans):
                continue
            if any(b[1] < a[2] + (a[0] == b[0]) for a, b in pairwise(spans)):
                continue
            for token, start, end in spans:
                labels[start:end] = token
            score = log_p_TV[np.arange(T), labels].sum()
            if score > best:
                best, found = score, list(starts)
    return found


@pytest.mark.parametrize("text", [[1], [1, 2], [2, 2], [1, 2, 1]])
def test_spikes_are_those_of_the_most_likely_path(text: list[int]) -> None:
    log_p = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(len(text))).mul(2).log_softmax(-1)
    frames = torch.tensor([6, 5])
    found = ctc_spikes(log_p, torch.tensor([text, text]), frames, torch.full((2,), len(text)))
    for row, count in enumerate(frames.tolist()):
        assert found[row].tolist() == best_path(log_p[row, :count].numpy(), text)


def test_the_last_step_has_no_limit() -> None:
    logits = torch.tensor([2.0, 0.0, 0.0]).repeat(1, 8, 1)
    logits[0, 2, 1] += 5
    logits[0, 5, 2] += 5
    batch = padded_batch([torch.zeros(16, WIDTH)], [[1, 2]])
    limits = token_limits(logits.log_softmax(-1), batch, torch.tensor([8]), 2)
    assert limits.tolist() == [[4, 7, 8]]


@pytest.mark.parametrize(
    ("reference", "teacher", "text"),
    [
        ("HELLO MISTER SMITH", "Hello, Mr. Smith!", "Hello, Mr. Smith!"),
        ("the cat sat", "The hat sat.", "The cat sat."),
        ("unread words", "", "Unread words"),
    ],
)
def test_the_reference_s_words_get_the_teacher_s_formatting(reference: str, teacher: str, text: str) -> None:
    assert formatted(reference, teacher) == text


@pytest.mark.parametrize("shape", [Shape(12, 4, 4), Shape(20, 6, 2), Shape(7, 3, 0)])
@torch.no_grad()
def test_blocks_in_parallel_are_the_steps_of_a_stream(shape: Shape) -> None:
    torch.manual_seed(1)
    encoder, x = Encoder().eval(), torch.randn(1, 30, WIDTH)
    parallel, caches, steps = encoder.blocks(x, shape), None, []
    for start in range(0, 30, shape.centre):
        states, caches = encoder.step(x[:, start : start + shape.centre + shape.right], caches, shape)
        steps.append(states)
    torch.testing.assert_close(torch.cat(steps, 1), parallel, atol=2e-5, rtol=0)


@torch.no_grad()
def test_a_converted_decoder_is_near_the_softmax_decoder() -> None:
    """With energies that are small, log Z is nearly constant, and the fit is nearly exact."""
    torch.manual_seed(2)
    softmax = OnlineDecoder("softmax", 11).eval()
    batch: Batch = padded_batch([torch.randn(24, WIDTH), torch.randn(24, WIDTH)], [[3, 4, 5, 6], [7, 8, 9, 10]])
    online = OnlineDecoder("hs-dacs", 11).eval()
    online.load_state_dict(softmax.state_dict(), strict=False)
    frames, seen = online.stack(batch.states, batch.seen)
    wanted, _ = softmax(batch.inputs, frames, seen, False)
    unfitted, _ = online(batch.inputs, frames, seen, False)
    assert min(fit(online, [batch])) > 0.9
    found, step = online(batch.inputs, frames, seen, False)
    assert (found - wanted).abs().max() < 0.3 * (unfitted - wanted).abs().max()
    sums = THRESHOLD * torch.stack(step.running)[..., -1]
    torch.testing.assert_close(sums, torch.ones_like(sums), atol=0.15, rtol=0)


def test_ctc_and_decoder_share_one_matrix() -> None:
    decoder = OnlineDecoder("hs-dacs", 11)
    ctc = CTC(decoder.embed_tokens)
    assert not any("embed" in name for name in ctc.state_dict())
    ctc(torch.randn(1, 1, WIDTH))[0, 0, 3].backward()
    gradient = decoder.embed_tokens.weight.grad
    assert gradient is not None
    assert gradient.abs().sum(1).nonzero().flatten().tolist() == [3]


def test_the_aligner_s_path_is_the_most_likely_one() -> None:
    log_p = torch.randn(7, 4, generator=torch.Generator().manual_seed(3)).mul(2).log_softmax(-1).numpy()
    path = aligned(log_p, [1, 3, 3])
    assert [path.index(letter) for letter in range(3)] == best_path(log_p, [1, 3, 3])


def test_a_layer_is_trained_on_the_outputs_of_the_teacher_alone() -> None:
    """The loss of a layer has no gradient for the other layers, and none of the teacher."""
    torch.manual_seed(0)
    teacher, model = Teacher(Decoder(), range(20)), Recogniser("hs-dacs", 20)
    batch = padded_batch([torch.randn(14, WIDTH), torch.randn(9, WIDTH)], [[4, 5, 6], [7]])
    losses = model.layer_losses(batch, 4, teacher)
    losses.joint.backward()
    before = [p.grad for p in model.decoder.layers[2].parameters()]
    assert all(torch.isfinite(g).all() for g in before if g is not None)
    assert losses.unexplained.shape == (len(model.decoder.layers),)
    assert all(p.grad is None for p in teacher.decoder.parameters())
    given = teacher.layers(batch)
    with torch.no_grad():
        for p in model.decoder.layers[1].parameters():
            p.mul_(2.0)
    again = model.layer_losses(batch, 4, teacher).unexplained
    assert torch.equal(losses.unexplained[2:], again[2:])
    assert losses.unexplained[1] != again[1]
    assert len(given) == len(model.decoder.layers) + 1


def test_the_teacher_sees_no_state_beyond_the_limit_of_a_step() -> None:
    torch.manual_seed(0)
    teacher, limits = Teacher(Decoder(), range(20)), torch.tensor([[2, 3, 5]])
    batch = padded_batch([torch.randn(10, WIDTH)], [[4, 5]])
    changed = batch._replace(states=torch.cat([batch.states[:, :6], torch.randn(1, 4, WIDTH)], 1))
    before, after = teacher.layers(batch, limits)[-1], teacher.layers(changed, limits)[-1]
    assert torch.equal(before[:, :2], after[:, :2])
    assert not torch.allclose(before[:, 2], after[:, 2])


def test_unexplained_is_zero_for_equal_outputs_and_one_for_their_mean() -> None:
    wanted, counted = (
        torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1)),
        torch.ones(2, 5, dtype=torch.bool),
    )
    mean = wanted.flatten(0, 1).mean(0).expand(2, 5, 8)
    assert unexplained([wanted, mean], [wanted, wanted], counted).tolist() == pytest.approx([0.0, 1.0])


def test_sums_that_are_too_small_after_the_spike_or_too_large_before_have_a_loss() -> None:
    """Layers of one head; the last step is the end of the sentence, which is free."""
    batch = padded_batch([torch.zeros(60, WIDTH)], [[4, 5]])
    spikes, frames = torch.tensor([[20, 20, 30]]), torch.arange(30)

    def sums(from_frame: int) -> torch.Tensor:
        return torch.where(frames >= from_frame, REACH, 0.0).expand(1, 1, 3, 30)

    for from_frame in (20 + EARLY + 1, 20 + AFTER):
        assert halting_loss([sums(from_frame)] * 2, batch, spikes) == 0
    assert halting_loss([0.5 * sums(0)] * 2, batch, spikes) == pytest.approx(0.5 * REACH)
    assert halting_loss([sums(20 + AFTER + 1)] * 2, batch, spikes) == pytest.approx(REACH)
    early = [sums(20 + EARLY)] * 2
    assert halting_loss(early, batch, spikes) == pytest.approx(REACH - EARLY_SUM)
    assert halting_loss(early, batch) == 0

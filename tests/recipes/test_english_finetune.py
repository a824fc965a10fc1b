"""The last training of the English recipe, and checkpoints from a model folder."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf
import torch
from export import build, settings
from finetune import (
    FROZEN,
    LEAD,
    MIXTURE,
    RATE,
    TRAIL,
    Corpora,
    Model,
    Piece,
    Span,
    WholeTeacher,
    batch_losses,
    groups,
    joined,
    stream,
    total,
)
from moonshine import HOP, LAYERS, WIDTH, Decoder, Encoder, Shape
from optimisation import updates_of
from restore import encoder_state, recogniser_state
from speech import Utterance
from train import MECHANISM, Recogniser

from headsync.training.moonshine import token_rows

TOKENS = 12


def test_a_model_folder_s_weights_become_the_checkpoints_again() -> None:
    torch.manual_seed(1)
    encoder, recogniser = Encoder(), Recogniser(MECHANISM, TOKENS)
    for network in (encoder, recogniser):
        for p in network.parameters():
            torch.nn.init.normal_(p)
    weights = build(settings(MECHANISM), TOKENS - 1, encoder, recogniser, token_rows(range(3, TOKENS))).state_dict()
    found = encoder_state(weights) | recogniser_state(weights)
    for name, tensor in (encoder.state_dict() | recogniser.state_dict()).items():
        if name == "ctc.bias":  # nothing begins a sentence in CTC
            assert torch.equal(found[name][[0, *range(2, TOKENS)]], tensor[[0, *range(2, TOKENS)]])
        else:
            assert torch.equal(found[name], tensor), name


def test_a_checkpoint_from_a_model_folder_has_no_updates(tmp_path: Path) -> None:
    assert updates_of(tmp_path) == 0
    (tmp_path / "state.json").write_text('{"updates": 450}')
    assert updates_of(tmp_path) == 450


@pytest.mark.parametrize("seed", range(8))
def test_utterances_do_not_overlap_and_keep_their_texts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    spans, place = list[Span](), 0
    for n in range(6):
        first = place + int(rng.exponential(0.6) * RATE)
        place = first + int(rng.uniform(1, 5) * RATE)
        spans.append(Span(first, place, "" if n == 3 else f"t{n}", np.full(place - first, n, np.float32)))
    found, end = joined(spans, place + RATE, rng), place + RATE
    assert " ".join(s.text for s in found).split() == [s.text for s in spans if s.text]
    assert "" in [s.text for s in found], "background is never a part of an utterance"
    for before, after in pairwise(found):
        assert before.end <= after.first
    for span in found:
        inside = [s for s in spans if s.first < span.end and s.end > span.first]
        assert 0 <= inside[0].first - span.first <= LEAD * RATE
        assert 0 <= span.end - inside[-1].end <= TRAIL * RATE
        assert span.end <= end
        assert len(span.clean) == inside[-1].end - inside[0].first


@pytest.fixture
def corpora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpora:
    """Two seconds of noise in each corpus."""
    noise = np.random.default_rng(0).normal(0, 0.1, 2 * RATE).astype(np.float32)
    sf.write(tmp_path / "noise.flac", noise, RATE)
    one: Any = [(name, Utterance(name, tmp_path / "noise.flac", 2.0, name, name, "", "")) for name in MIXTURE]
    monkeypatch.setattr("finetune.labelled", lambda: one)
    return Corpora()


def test_a_stream_depends_on_the_seed_alone(corpora: Corpora) -> None:
    (a, spans), (b, again), (c, _) = (stream(corpora, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert np.array_equal(a, b)
    assert [s[:3] for s in spans] == [s[:3] for s in again]
    assert len(a) != len(c)
    assert np.abs(a).max() <= 1


def test_all_layers_but_the_lowest_learn_from_both_losses() -> None:
    torch.manual_seed(1)
    model, samples = Model(TOKENS), np.random.default_rng(0).normal(0, 0.1, 3 * RATE).astype(np.float32)
    states = model.states(samples, Shape(40, 16, 16), 5)
    assert states.shape == (3 * RATE // HOP + 1, WIDTH)
    (group,) = groups([Piece(states[:60], [3, 4], samples), Piece(states[60:], [], samples[:RATE])])
    teacher = WholeTeacher(Encoder(), Decoder(), list(range(TOKENS)))
    ctc, text, halting = total([batch_losses(model.recogniser, group, 8, teacher)])
    for loss in (ctc, text + halting):
        model.zero_grad()
        loss.backward(retain_graph=True)
        learned = {
            n.split(".")[2]
            for n, p in model.named_parameters()
            if n.startswith("encoder.layers") and p.grad is not None
        }
        assert learned == {str(n) for n in range(FROZEN, LAYERS)}
        assert model.recogniser.decoder.embed_tokens.weight.grad is None

"""The digit model's vocabulary and its start from the English model."""

from __future__ import annotations

import finetune
import pytest
import torch
from restore import recogniser_state
from vocabulary import Vocabulary

import train_digits
from digit_corpus import DIGITS
from headsync.nn.model import Model as Network


@pytest.fixture
def english() -> Vocabulary:
    """Some pieces; the digits are among them in another order."""
    vocabulary = Vocabulary.__new__(Vocabulary)
    vocabulary.pieces = ["<blank>", "<s>", "</s>", "▁the", *(f"▁{digit}" for digit in reversed(DIGITS)), "▁of"]
    vocabulary.rows = [0, 1, 2, *range(300, 300 + len(vocabulary.pieces) - 3)]
    return vocabulary


@pytest.mark.parametrize(
    ("text", "digits"),
    [("Three one four.", "three one four"), ("Call nine, nine!", "nine nine"), ("Twenty-three people", ""), ("", "")],
)
def test_the_text_of_an_utterance_is_its_digits(english: Vocabulary, text: str, digits: str) -> None:
    vocabulary = train_digits.DigitVocabulary(english)
    assert vocabulary.decode(vocabulary.encode(text)) == digits


def test_the_start_has_the_english_rows_of_the_digits(english: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    source, digits = finetune.Model(len(english)), train_digits.DigitVocabulary(english)
    torch.nn.init.normal_(source.recogniser.ctc.bias)
    monkeypatch.setattr(finetune, "started", lambda tokens: source)
    model = train_digits.started(english, digits)
    frames = torch.randn(1, 7, source.encoder.layer_norm.weight.shape[0])
    assert torch.equal(model.recogniser.ctc(frames), source.recogniser.ctc(frames)[..., digits.tokens])


def test_the_exported_network_gives_the_same_ctc_output(english: Vocabulary) -> None:
    torch.manual_seed(1)
    digits = train_digits.DigitVocabulary(english)
    model = finetune.Model(len(digits)).eval()
    torch.nn.init.normal_(model.recogniser.ctc.bias)
    network: Network = train_digits.network_of(model, digits)
    frames = torch.randn(1, 7, model.encoder.layer_norm.weight.shape[0])
    expected = model.recogniser.ctc(frames)[..., [0, *range(3, len(digits)), 2]]
    assert torch.allclose(network.ctc(frames), expected, atol=1e-4)
    again = recogniser_state(network.state_dict())
    embedded = "decoder.embed_tokens.weight"
    assert torch.equal(again[embedded], model.recogniser.state_dict()[embedded])

"""Train the digit model: the English model of `recipes/english` with ten words, on digits and on other speech.

    python recipes/digits/train_digits.py                # continues from runs/english/digits
    python recipes/digits/train_digits.py export OUT     # the model folder, with graphs for ONNX Runtime

Requires the corpora of `recipes/english` with `local_corpora.py`, and its checkpoints before `finetune.py` (`train.py`,
or `restore.py` with a model folder). The output has a row for each digit and the blank; the rows are those of the
lower-case pieces of English. The text of an utterance is its digits in order; in most of other speech there are none.
Training is that of `recipes/english/finetune.py` without its teacher.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace
from pathlib import Path

import torch

from digit_corpus import DIGITS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "english"))

import export
import finetune
from optimisation import processes
from safetensors.torch import load_file
from speech import RUNS, read_manifest
from train import MECHANISM
from vocabulary import SPACE, Vocabulary

from headsync.config import Config
from headsync.nn.model import Model as Network
from headsync.text import vocabulary as text

FOLDER = RUNS / "digits"
MIXTURE = {
    "digits": 0.25,
    "digits-hard": 0.30,
    "speechocean": 0.12,
    "harpervalley": 0.15,
    "commonvoice": 0.13,
    "librispeech": 0.05,
}
UPDATES = 250


class DigitVocabulary(Vocabulary):
    """Blank, start, end and the digits."""

    def __init__(self, english: Vocabulary) -> None:
        self.tokens = [0, 1, 2, *(english.pieces.index(SPACE + digit) for digit in DIGITS)]
        self.pieces = [english.pieces[token] for token in self.tokens]
        self.rows = [english.rows[token] for token in self.tokens]

    def encode(self, text: str) -> list[int]:
        words = re.findall(r"[a-z']+(?:-[a-z']+)*", text.lower())
        return [3 + DIGITS.index(word) for word in words if word in DIGITS]


def started(english: Vocabulary, digits: DigitVocabulary) -> finetune.Model:
    """The English model with the rows of the digits."""
    source, model = finetune.started(len(english)), finetune.Model(len(digits))
    model.encoder = source.encoder
    weights = source.recogniser.state_dict()
    for name in ("decoder.embed_tokens.weight", "ctc.bias"):
        weights[name] = weights[name][digits.tokens]
    model.recogniser.load_state_dict(weights)
    return model


def settings() -> Config:
    """Settings of the model; CTC's weight was chosen on the first 100 strings of `dev` and `dev-hard`."""
    config = export.settings(MECHANISM)
    decoding = replace(config.decoding, ctc_weight=0.3)
    return replace(config, decoding=decoding, data=replace(config.data, tokens="words"))


def words() -> text.Vocabulary:
    return text.Vocabulary("words", DIGITS)


def network_of(model: finetune.Model, digits: DigitVocabulary) -> Network:
    """The network of the library, in the library's order of tokens."""
    rows = [0, *range(3, len(digits)), 2, 1]
    return export.build(settings(), words().size, model.encoder, model.recogniser, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=["train", "export"], default="train")
    parser.add_argument("out", nargs="?", type=Path, help="folder of the model")
    parser.add_argument("--updates", type=int, default=UPDATES)
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after this time; the same command continues")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    english = Vocabulary()
    digits = DigitVocabulary(english)
    model = started(english, digits)
    if arguments.command == "train":
        with processes():
            hard = [("digits-hard", utterance) for utterance in read_manifest("digits-hard", "train")]
            corpora = finetune.Corpora(MIXTURE, hard)
            finetune.train(finetune.Task(model, digits, corpora, None, FOLDER, arguments.updates), arguments.minutes)
        return
    if arguments.out is None:
        parser.error("export requires the folder of the model")
    model.load_state_dict(load_file(FOLDER / "model.safetensors"))
    export.write(arguments.out, settings(), words(), network_of(model.eval(), digits), half=True)


if __name__ == "__main__":
    main()

"""A small random model of the moonshine family with softmax attention, to start runs from, and a recipe for them."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from headsync.frontend.features import Statistics
from headsync.model_folder import WEIGHTS, save_folder
from headsync.nn.model import Model
from headsync.recipe import load_config
from headsync.text.vocabulary import Vocabulary
from random_weights import scrambled

RECIPE = """
[network]
width = 16
heads = 2
feedforward = 16
family = "moonshine"

[encoder]
layers = 1
left_frames = 8
centre_frames = 4
right_frames = 2
mode = "reuse"

[decoder]
layers = 2
attention = "softmax"
frame_positions = false
reach = 1.1

[decoding]
beam = 2
lookahead_frames = 4

[data]
train = "{corpus}/train.jsonl"
dev = "{corpus}/dev.jsonl"
tokens = "words"
workers = 0

[training]
folder = "{folder}/run"
start_from = "{folder}/start"
frame_cache = "{folder}/frames"
match_updates = 3
ctc_weight = 0.0
epochs = 2
batch_frames = 400
noam_factor = 0.05
warmup_updates = 10
average = 1
"""


def write_start(corpus: Path, folder: Path) -> Path:
    """Write the model to `start` and the recipe; returns the recipe."""
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(corpus=corpus, folder=folder), encoding="utf-8")
    config = load_config(path, ["training.start_from=", "training.frame_cache=", "training.match_updates=0"])
    texts = [line.split('"text": "')[1].split('"')[0] for line in (corpus / "train.jsonl").read_text().splitlines()]
    vocabulary = Vocabulary.build("words", texts)
    model = scrambled(Model(config, config.columns, vocabulary.size))
    with torch.no_grad():
        model.decoder.embedding.weight *= 4.0  # so that the text before a step matters
    save_folder(folder / "start", config, vocabulary, Statistics.identity(config.columns))
    save_file({name: weight.float() for name, weight in model.state_dict().items()}, folder / "start" / WEIGHTS)
    return path

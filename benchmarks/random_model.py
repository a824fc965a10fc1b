"""Models with random weights in the paper's sizes, exported, for measuring speed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from headsync.config import Config, DecoderConfig, EncoderConfig
from headsync.engine.export import write_graphs
from headsync.frontend.features import Statistics
from headsync.model_folder import WEIGHTS, ModelFolder, load_folder, save_folder
from headsync.nn.model import Model
from headsync.text.vocabulary import Vocabulary

ENERGY_BIAS = -2.0  # steps halt after about nine frames, early as in trained models


def untrained(
    path: Path, classes: int, attention: str = "hs-dacs", int8: bool = False, encoder: EncoderConfig | None = None
) -> ModelFolder:
    """A model folder with graphs."""
    torch.manual_seed(0)
    decoder = DecoderConfig(attention=attention, energy_bias=ENERGY_BIAS)
    config = Config(encoder=encoder or EncoderConfig(), decoder=decoder)
    vocabulary = Vocabulary("words", tuple(f"word{number}" for number in range(classes - 2)))
    columns = config.columns
    noise = np.random.default_rng(0).standard_normal((500, columns)).astype(np.float32)
    save_folder(path, config, vocabulary, Statistics.of([noise]))
    save_file(Model(config, columns, classes).state_dict(), path / WEIGHTS)
    write_graphs(load_folder(path), path, int8)
    return load_folder(path)

"""What another network makes of the recordings: states that an encoder learns to be like (`training.teacher`).

A teacher is a folder with two files: `states.npy`, all states one below another, and `index.json`, where those of each
recording begin and how many there are. They lie on the grid of encoder frames, so that frame n of one belongs to frame
n of the other; `recipes/teacher.py` makes such a folder. A teacher that can read has two files more: `readings.npy`,
for every state the logarithms of the probabilities of CTC's classes, and `vocabulary.json`, which classes these are;
`recipes/reader.py` adds them.

Shapes: B rows, T encoder frames, D columns of a state, V output classes, N states of all recordings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headsync.audio import FloatArray
from headsync.data.manifest import Utterance
from headsync.errors import ConfigError, ModelError
from headsync.folder import VOCABULARY
from headsync.framing import embedded_frames
from headsync.tokens import Vocabulary

STATES, INDEX, READINGS = "states.npy", "index.json", "readings.npy"
SLACK = 2  # frames by which a teacher may be off at the end of a recording


@dataclass(frozen=True)
class Teacher:
    """The states of all recordings, read from the disk where they are asked for."""

    states_ND: NDArray[np.float16]
    places: Mapping[str, tuple[int, int]]  # by the path of a recording: the first state, and how many
    readings_NV: NDArray[np.float16] | None = None

    @classmethod
    def load(cls, folder: Path, vocabulary: Vocabulary | None = None) -> Teacher:
        """With a vocabulary the teacher reads, and must read its tokens."""
        try:
            index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
            places = {name: (int(first), int(count)) for name, (first, count) in index.items()}
            states = np.load(folder / STATES, mmap_mode="r")
            readings = None if vocabulary is None else _readings(folder, vocabulary, len(states))
        except (OSError, ValueError, TypeError, AttributeError, ModelError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"training.teacher = {str(folder)!r}: no teacher can be read there ({reason})") from None
        return cls(states, places, readings)

    def together(self, utterances: Sequence[Utterance], features: Sequence[FloatArray]) -> Tensor:
        """The states of a batch's rows; NaN behind their ends, and for recordings that the teacher has not heard."""
        return self._beside(self.states_ND, utterances, features)

    def read(self, utterances: Sequence[Utterance], features: Sequence[FloatArray]) -> Tensor:
        """What it reads in the frames of a batch's rows, NaN where it reads nothing; empty if it cannot read."""
        if self.readings_NV is None:
            return torch.empty(0)
        return self._beside(self.readings_NV, utterances, features)

    def _beside(
        self, all_ND: NDArray[np.float16], utterances: Sequence[Utterance], features: Sequence[FloatArray]
    ) -> Tensor:
        frames = [embedded_frames(len(f)) for f in features]
        found_BTD = np.full((len(frames), max(frames), all_ND.shape[1]), np.nan, np.float32)
        for row, (utterance, count) in enumerate(zip(utterances, frames, strict=True)):
            place = self._place(utterance)
            if place is not None and abs(place[1] - count) <= SLACK:
                known = min(count, place[1])
                found_BTD[row, :known] = all_ND[place[0] : place[0] + known]
        return torch.from_numpy(found_BTD)

    def _place(self, utterance: Utterance) -> tuple[int, int] | None:
        """None at other speeds, too: the teacher has heard recordings as they are."""
        return self.places.get(str(utterance.audio)) if utterance.speed == 1.0 else None


def _readings(folder: Path, vocabulary: Vocabulary, states: int) -> NDArray[np.float16]:
    if not (folder / READINGS).exists():
        raise ValueError("it cannot read, which training.reading_weight needs; see recipes/reader.py")
    tokens = Vocabulary.load(folder / VOCABULARY).tokens
    if tokens != vocabulary.tokens:
        raise ValueError(f"it reads other tokens, {' '.join(tokens)}")
    readings: NDArray[np.float16] = np.load(folder / READINGS, mmap_mode="r")
    if readings.shape != (states, vocabulary.size):
        raise ValueError(f"{READINGS} is not of its states; make it again")
    return readings

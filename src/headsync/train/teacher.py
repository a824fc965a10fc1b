"""What another network makes of the recordings: states that an encoder learns to be like (`training.teacher`).

A teacher is a folder with two files: `states.npy`, all states one below another, and `index.json`, where those of each
recording begin and how many there are. They lie on the grid of encoder frames, so that frame n of one belongs to frame
n of the other; `recipes/teacher.py` makes such a folder.

Shapes: B rows, T encoder frames, D columns of a state.
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
from headsync.errors import ConfigError
from headsync.framing import embedded_frames

STATES, INDEX = "states.npy", "index.json"
SLACK = 2  # frames by which a teacher may be off at the end of a recording


@dataclass(frozen=True)
class Teacher:
    """The states of all recordings, read from the disk where they are asked for."""

    states_ND: NDArray[np.float16]
    places: Mapping[str, tuple[int, int]]  # by the path of a recording: the first state, and how many

    @classmethod
    def load(cls, folder: Path) -> Teacher:
        try:
            index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
            places = {name: (int(first), int(count)) for name, (first, count) in index.items()}
            states = np.load(folder / STATES, mmap_mode="r")
        except (OSError, ValueError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"training.teacher = {str(folder)!r}: no teacher can be read there ({reason})") from None
        return cls(states, places)

    def together(self, utterances: Sequence[Utterance], features: Sequence[FloatArray]) -> Tensor:
        """The states of a batch's rows; NaN behind their ends, and for recordings that the teacher has not heard."""
        frames = [embedded_frames(len(f)) for f in features]
        states_BTD = np.full((len(frames), max(frames), self.states_ND.shape[1]), np.nan, np.float32)
        for row, (utterance, count) in enumerate(zip(utterances, frames, strict=True)):
            found = self._of(utterance)
            if found is not None and abs(len(found) - count) <= SLACK:
                states_BTD[row, : min(count, len(found))] = found[:count]
        return torch.from_numpy(states_BTD)

    def _of(self, utterance: Utterance) -> NDArray[np.float16] | None:
        """None at other speeds, too: the teacher has heard recordings as they are."""
        place = self.places.get(str(utterance.audio))
        if place is None or utterance.speed != 1.0:
            return None
        return self.states_ND[place[0] : place[0] + place[1]]

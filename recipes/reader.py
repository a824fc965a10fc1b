"""Let a teacher read: from its states, what CTC should say in every frame, for `training.reading_weight`.

    python recipes/reader.py runs/teacher runs/data/digits/train-reader.jsonl runs/data/digits/train-unread.jsonl

A small network learns by CTC to read the words of the first manifest's recordings in the states that
`recipes/teacher.py` has written, which stay as they are. What it then reads in the recordings of the second one, which
need no text, is written down beside the states: a network that only hears the recordings can learn from it, where empty
texts would teach it which corpus is silent. The words are written down as well, in two manifests beside the second one:
NAME-told.jsonl, with what is read in each recording, and NAME-surely.jsonl, without those in which something is read
with some doubt. A decoder can learn from them, too.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor, nn

from headsync.data.manifest import Utterance, read_manifest, write_manifest
from headsync.errors import HeadsyncError
from headsync.folder import VOCABULARY
from headsync.tokens import Vocabulary
from headsync.train.teacher import READINGS, Teacher

NARROW, WIDE, SPAN, DROPOUT = 96, 192, 7, 0.2  # a reading comes from 7 states, 280 ms
PASSES, AT_ONCE, RATE, WARMUP = 4, 32, 1e-3, 100
LEAST = -20.0  # the logarithm of a probability that is none
FAINT, DOUBT, SURE = 0.1, 0.3, 0.6  # a word that is read with a probability between the last two may be one, or not
Lesson = tuple[np.ndarray, list[int]]  # states of a recording, and its tokens


class Reader(nn.Module):
    """Two layers over neighbouring states, each brought to mean 0 and deviation 1; there is no class for the end."""

    def __init__(self, lessons: Sequence[Lesson], classes: int) -> None:
        super().__init__()
        some = torch.from_numpy(np.concatenate([states for states, _ in lessons]).astype(np.float32))
        self.mean, self.deviation = some.mean(0), some.std(0) + 1e-5
        self.narrow = nn.Linear(some.shape[1], NARROW)
        self.wide = nn.Conv1d(NARROW, WIDE, SPAN, padding=SPAN // 2)
        self.out = nn.Linear(WIDE, classes)

    def forward(self, states_BTD: Tensor) -> Tensor:
        x = F.dropout((states_BTD - self.mean) / self.deviation, DROPOUT, self.training)
        x = self.wide(F.relu(self.narrow(x)).transpose(1, 2)).transpose(1, 2)
        return self.out(F.dropout(F.relu(x), DROPOUT, self.training)).log_softmax(-1)


def heard(teacher: Teacher, manifest: Path) -> list[Utterance]:
    """What the teacher has heard of a manifest."""
    found = [u for u in read_manifest(manifest) if str(u.audio) in teacher.places]
    if not found:
        raise SystemExit(f"reader.py: the teacher has heard nothing of {manifest}; let it: `python recipes/teacher.py`")
    return found


def lessons_of(teacher: Teacher, manifest: Path, vocabulary: Vocabulary) -> list[Lesson]:
    utterances = heard(teacher, manifest)
    places = [teacher.places[str(u.audio)] for u in utterances]
    states = [teacher.states_ND[first : first + count] for first, count in places]
    return [(each, vocabulary.encode(u.text)) for each, u in zip(states, utterances, strict=True)]


def learn(lessons: list[Lesson], vocabulary: Vocabulary) -> Reader:
    reader = Reader(random.sample(lessons, min(600, len(lessons))), vocabulary.size - 1)
    adam, lessons = torch.optim.Adam(reader.parameters()), sorted(lessons, key=lambda lesson: len(lesson[0]))
    batches = [lessons[n : n + AT_ONCE] for n in range(0, len(lessons), AT_ONCE)]
    course = [batch for _ in range(PASSES) for batch in random.sample(batches, len(batches))]
    for update, batch in enumerate(track(course, "learning to read")):
        rate = RATE * min(1.0, (update + 1) / WARMUP) * (1 - update / len(course))
        for group in adam.param_groups:
            group["lr"] = rate
        adam.zero_grad()
        ctc_loss(reader, batch).backward()
        adam.step()
    return reader.eval()


def ctc_loss(reader: Reader, batch: Sequence[Lesson]) -> Tensor:
    frames, counts = ([len(lesson[part]) for lesson in batch] for part in (0, 1))
    states_BTD = torch.zeros(len(batch), max(frames), batch[0][0].shape[1])
    for row, (states, _) in enumerate(batch):
        states_BTD[row, : len(states)] = torch.from_numpy(states.astype(np.float32))
    tokens = torch.tensor([token for _, tokens in batch for token in tokens], dtype=torch.long)
    log_p_TBV = reader(states_BTD).transpose(0, 1)
    lengths = torch.tensor(frames), torch.tensor(counts)
    return F.ctc_loss(log_p_TBV, tokens, *lengths, reduction="sum", zero_infinity=True) / len(batch)


@torch.no_grad()
def read(reader: Reader, teacher: Teacher, names: Sequence[str], classes: int) -> np.ndarray:
    """The readings of some recordings, where their states are; NaN for all others."""
    readings_NV = np.full((len(teacher.states_ND), classes), np.nan, np.float16)
    for first, count in track([teacher.places[name] for name in names], "reading"):
        readings_NV[first : first + count] = LEAST
        states = torch.from_numpy(teacher.states_ND[first : first + count].astype(np.float32))
        readings_NV[first : first + count, : classes - 1] = reader(states[None])[0].clamp(min=LEAST).numpy()
    return readings_NV


def told(reading_TV: np.ndarray, vocabulary: Vocabulary) -> str:
    """The words of a reading, frame by frame the most probable ones."""
    token_T = reading_TV.argmax(1)
    return " ".join(vocabulary.tokens[token_T[span[0]] - 1] for span in spans(token_T))


def surely(reading_TV: np.ndarray, vocabulary: Vocabulary) -> str | None:
    """The words that are read with certainty; None where some are in doubt."""
    speaks_T = 1 - np.exp(reading_TV[:, 0].astype(np.float32))
    token_T = np.where(speaks_T >= FAINT, 1 + reading_TV[:, 1:].argmax(1), 0)
    found = [(token_T[span[0]], speaks_T[span].max()) for span in spans(token_T)]
    if any(DOUBT <= p < SURE for _, p in found):
        return None
    return " ".join(vocabulary.tokens[token - 1] for token, p in found if p >= SURE)


def spans(token_T: np.ndarray) -> list[np.ndarray]:
    """The frames of each token, one token after another."""
    runs = np.split(np.arange(len(token_T)), np.flatnonzero(np.diff(token_T)) + 1)
    return [run for run in runs if len(run) and token_T[run[0]]]


def write_texts(manifest: Path, readings: Sequence[tuple[Utterance, np.ndarray]], vocabulary: Vocabulary) -> None:
    """Beside the manifest of what was read, with the words."""
    sure = [(u, surely(reading_TV, vocabulary)) for u, reading_TV in readings]
    for name, texts in (("told", [(u, told(r, vocabulary)) for u, r in readings]), ("surely", sure)):
        kept = [replace(u, text=text) for u, text in texts if text is not None]
        write_manifest(manifest.with_name(f"{manifest.stem}-{name}.jsonl"), kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("lessons", type=Path, help="manifest with the words that it shall learn to read")
    parser.add_argument("unread", type=Path, help="manifest of what it shall read then")
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(wanted.seed)
    random.seed(wanted.seed)
    teacher = Teacher.load(wanted.teacher)
    vocabulary = Vocabulary.build("words", [u.text for u in read_manifest(wanted.lessons)])
    unread = heard(teacher, wanted.unread)
    reader = learn(lessons_of(teacher, wanted.lessons, vocabulary), vocabulary)
    unfinished = wanted.teacher / f"{READINGS}.unfinished"
    readings_NV = read(reader, teacher, [str(u.audio) for u in unread], vocabulary.size)
    with unfinished.open("wb") as file:
        np.save(file, readings_NV)
    vocabulary.save(wanted.teacher / VOCABULARY)
    os.replace(unfinished, wanted.teacher / READINGS)
    places = [teacher.places[str(u.audio)] for u in unread]
    readings = [readings_NV[first : first + count] for first, count in places]
    write_texts(wanted.unread, list(zip(unread, readings, strict=True)), vocabulary)
    print(f"{wanted.teacher}: reads {len(vocabulary.tokens)} words in {len(unread)} recordings")


if __name__ == "__main__":
    try:
        main()
    except HeadsyncError as error:
        raise SystemExit(f"reader.py: {error}") from None

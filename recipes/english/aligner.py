"""A CTC aligner on Moonshine's full-context states: reference word times that do not come from the system under test.

    python recipes/english/aligner.py train                       # runs/english/aligner, on train-clean-5
    python recipes/english/aligner.py align MANIFEST              # writes MANIFEST with the suffix .words.json
    python recipes/english/aligner.py check MANIFEST              # against PocketSphinx, which has to be installed
    python recipes/english/aligner.py known MANIFEST              # against MANIFEST's own .words.json, not overwritten

The encoder is Moonshine tiny's original one with full context. CTC over letters has one convolution of 5 states and
one feed-forward layer on top. CTC alone learns short spikes inside words. Subtracting PRIOR times the log of the mean
probability of each class before the loss gives letters their full duration (Huang et al. 2024, "Less peaky and more
accurate CTC forced alignment by label priors"). A word begins with its first letter's first frame and ends after its
last letter's last frame.
"""

from __future__ import annotations

import argparse
import json
import string
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile as sf
import soxr
import torch
import torch.nn.functional as F
from moonshine import HOP, WIDTH, Encoder, frames_of, mixed_precision
from optimisation import Run, Schedule
from safetensors.torch import load_file
from speech import RATE, RUNS, Utterance, batches, levelled, padded, read_manifest, samples_of
from torch import Tensor, nn

FOLDER = RUNS / "aligner"
LETTERS = string.ascii_lowercase + "'"
CLASSES = len(LETTERS) + 2  # blank first, the gap between words last
GAP = CLASSES - 1
PRIOR = 0.3
CENTRE = 0.5 * HOP / RATE  # of a state, after its first sample; the receptive field is about one state long


class Head(nn.Module):
    """Logits of the letters for each state, and the running mean of their probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 5, padding=2)
        self.inner, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.prior: Tensor
        self.register_buffer("prior", torch.full((CLASSES,), 1 / CLASSES))

    def forward(self, states_BTD: Tensor) -> Tensor:
        x = F.gelu(self.conv(states_BTD.transpose(1, 2)).transpose(1, 2))
        return self.out(F.gelu(self.inner(x))).log_softmax(-1)

    def without_prior(self, log_p_BTC: Tensor) -> Tensor:
        return log_p_BTC - PRIOR * self.prior.clamp(min=1e-6).log()


def spelling(words: Sequence[str]) -> tuple[list[int], list[int]]:
    """Classes of the letters with gaps around the words, and for each the word's number (-1: a gap)."""
    classes, owners = [GAP], [-1]
    for number, word in enumerate(words):
        letters = [LETTERS.index(c) + 1 for c in word.lower().replace("’", "'") if c in LETTERS]
        classes += [*letters, GAP]
        owners += [number] * len(letters) + [-1]
    return classes, owners


@torch.no_grad()
def full_states(encoder: Encoder, rows: Sequence[np.ndarray]) -> list[Tensor]:
    """States of whole recordings."""
    samples, lengths = padded([levelled(row) for row in rows])
    with mixed_precision():
        states = encoder.whole(samples, lengths).float()
    return [states[i, : frames_of(int(n))] for i, n in enumerate(lengths)]


def loss(head: Head, states: Sequence[Tensor], texts: Sequence[Sequence[int]]) -> Tensor:
    """CTC per letter with the prior subtracted."""
    frames = torch.tensor([len(s) for s in states])
    batch = torch.stack([F.pad(s, (0, 0, 0, int(frames.max()) - len(s))) for s in states])
    log_p = head(batch)
    inside = torch.arange(log_p.shape[1]) < frames[:, None]
    with torch.no_grad():
        head.prior.lerp_(log_p[inside].exp().mean(0), 0.05)
    lengths = torch.tensor([len(t) for t in texts])
    targets = torch.tensor([c for t in texts for c in t])
    scores = head.without_prior(log_p).transpose(0, 1)
    return F.ctc_loss(scores, targets, frames, lengths, zero_infinity=True, reduction="sum") / lengths.sum()


def train(updates: int) -> None:
    """Passes over train-clean-5; the states stay in memory."""
    encoder, rng = Encoder.pretrained().eval(), np.random.default_rng(1)
    run = Run(Head(), Schedule(1e-3, 50, updates, 0.99), FOLDER)
    utterances = read_manifest("librispeech", "train")
    began, cache = time.monotonic(), dict[str, Tensor]()
    parts = list(batches(utterances, 150.0))
    while not run.is_over:
        for i in rng.permutation(len(parts)):
            if run.is_over:
                break
            if parts[i][0].id not in cache:
                states = full_states(encoder, [samples_of(u) for u in parts[i]])
                cache |= {u.id: s.half() for u, s in zip(parts[i], states, strict=True)}
            texts = [spelling((u.text or "").split())[0] for u in parts[i]]
            value = loss(run.model, [cache[u.id].float() for u in parts[i]], texts)
            value.backward()
            run.update()
            if run.updates % 20 == 0:
                print(f"{run.updates} loss {value.item():.3f} {time.monotonic() - began:.0f} s", flush=True)
    run.average.prior.copy_(run.model.prior)
    run.save()


def best_path(log_p_TC: np.ndarray, classes: Sequence[int]) -> list[int]:
    """For each frame the position in `classes` (letter), or -1 (blank), of the most likely CTC path."""
    extended = [0] + [c for letter in classes for c in (letter, 0)]
    T, S = len(log_p_TC), len(extended)
    emission_TS = log_p_TC[:, extended]
    skips = np.array([s >= 2 and extended[s] not in (0, extended[s - 2]) for s in range(S)])
    score, back = np.full(S, -np.inf), np.zeros((T, S), np.int8)
    score[:2] = emission_TS[0, :2]
    for t in range(1, T):
        moves = np.full((3, S), -np.inf)
        moves[0], moves[1, 1:], moves[2, 2:] = score, score[:-1], score[:-2]
        moves[2, ~skips] = -np.inf
        back[t] = moves.argmax(0)
        score = moves.max(0) + emission_TS[t]
    s, path = S - 1 if score[-1] >= score[-2] else S - 2, []
    for t in range(T - 1, -1, -1):
        path.append(s)
        s -= int(back[t, s])
    return [s // 2 if s % 2 else -1 for s in reversed(path)]


@torch.no_grad()
def align(encoder: Encoder, head: Head, samples: np.ndarray, words: Sequence[str]) -> list[tuple[float, float]] | None:
    """Start and end of each word in seconds; None if a word has no letters or the speech is too short."""
    classes, owners = spelling(words)
    states = full_states(encoder, [samples])[0]
    if len(set(owners)) <= len(words) or len(states) < len(classes):
        return None
    log_p = head.without_prior(head(states[None]))[0].numpy()
    spans: dict[int, tuple[int, int]] = {}
    for frame, place in enumerate(best_path(log_p, classes)):
        if place >= 0 and owners[place] >= 0:
            first = spans.get(owners[place], (frame, frame))[0]
            spans[owners[place]] = (first, frame)
    step = HOP / RATE
    return [(first * step, (last + 1) * step + CENTRE) for first, last in (spans[n] for n in range(len(words)))]


def trained() -> tuple[Encoder, Head]:
    head = Head().eval()
    head.load_state_dict(load_file(FOLDER / "model.safetensors"))
    return Encoder.pretrained().eval(), head


def manifest_rows(path: Path, limit: int | None) -> list[Utterance]:
    rows = [json.loads(line) for line in path.read_text().splitlines()][:limit]
    known = {"speaker": "", "source": "", "licence": ""}
    return [
        Utterance(str(r["id"]), path.parent / r["audio"], float(r.get("seconds", 0)), text=r["text"], **known)
        for r in rows
    ]


def read_16k(path: Path) -> np.ndarray:
    samples, rate = sf.read(path, dtype="float32")
    return samples if rate == RATE else soxr.resample(samples, rate, RATE)


def align_manifest(path: Path, limit: int | None) -> dict[str, list[dict[str, object]]]:
    """Words with times by utterance."""
    (encoder, head), found = trained(), {}
    for utterance in manifest_rows(path, limit):
        words = (utterance.text or "").split()
        times = align(encoder, head, read_16k(utterance.audio), words) if words else None
        if times:
            rows = zip(words, times, strict=True)
            found[utterance.id] = [{"text": w, "start": round(a, 3), "end": round(b, 3)} for w, (a, b) in rows]
    return found


def compare(ours: dict[str, list[dict[str, object]]], theirs: dict[str, list[tuple[str, float, float]]]) -> None:
    """Percentiles of our times minus theirs."""
    for kind, place in (("start", 1), ("end", 2)):
        pairs = [
            (w[kind], t[place]) for name in ours.keys() & theirs for w, t in zip(ours[name], theirs[name], strict=True)
        ]
        d = np.array([float(str(a)) - float(b) for a, b in pairs])
        five = ", ".join(f"{q} %: {np.percentile(d, q):+.3f}" for q in (5, 25, 50, 75, 95))
        print(f"{kind}: {len(d)} words, median absolute difference {np.median(np.abs(d)):.3f} s; {five}")


def pocketsphinx_times(path: Path, limit: int | None) -> dict[str, list[tuple[str, float, float]]]:
    from headsync.evaluation.alignment import load_aligner

    aligner, found = load_aligner("pocketsphinx"), {}
    for utterance in manifest_rows(path, limit):
        words = aligner.align(read_16k(utterance.audio), (utterance.text or "").split())
        if words:
            found[utterance.id] = [(w.text, w.start, w.end) for w in words]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["train", "align", "check", "known"])
    parser.add_argument("manifest", type=Path, nargs="?")
    parser.add_argument("--updates", type=int, default=1600)
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command == "train":
        train(arguments.updates)
        return
    ours = align_manifest(arguments.manifest, arguments.limit)
    beside = arguments.manifest.with_suffix(".words.json")
    if arguments.command == "align":
        beside.write_text(json.dumps(ours, ensure_ascii=False))
        print(f"{beside}: {len(ours)} utterances")
    elif arguments.command == "check":
        compare(ours, pocketsphinx_times(arguments.manifest, arguments.limit))
    else:
        stored = json.loads(beside.read_text())
        compare(ours, {n: [(w["text"], w["start"], w["end"]) for w in words] for n, words in stored.items()})


if __name__ == "__main__":
    main()

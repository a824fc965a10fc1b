"""Train CTC and the online decoder on cached states, first layer by layer, then as a whole.

    python recipes/english/train.py layers            # continues from runs/english/train/layers
    python recipes/english/train.py whole             # starts from it; continues from runs/english/train/last
    torchrun --nproc-per-node 2 recipes/english/train.py layers   # the batches shared by two processes
    python recipes/english/train.py evaluate          # WER of CTC alone and of the decoder alone on cached dev states
    python recipes/english/train.py layers --mechanism dacs --ctc runs/english/train/last     # to compare mechanisms
    python recipes/english/train.py table             # of all mechanisms that were trained, and Moonshine's decoder

The decoder starts from Moonshine's with fitted biases (`convert.fit`). CTC and decoder share the pruned vocabulary and
the frames: pairs of states, one every 48 ms. CTC has one feed-forward block and the decoder's embedding as output
layer. The embedding is not trained.

In both stages the teacher is Moonshine's softmax decoder on the same states. A step of teacher and student sees the
frames up to a look-ahead after its token's CTC spike (forced alignment with the current CTC), as in a gated stream.

`layers` trains CTC, and each layer of the decoder alone: its input is the output of the layer below in the teacher, its
target the teacher's output. This needs no text but the tokens. The first updates have no limits.

`whole` trains CTC and the composed decoder. Its loss has cross-entropy to the text and to the teacher's probabilities,
and the difference of the layers' outputs.

The rate rises, stays constant, and falls to zero over the last third of the updates; the moving average of the weights
is evaluated and saved. The encoder is frozen: its states come from `cache.py`.

With `--mechanism` the folders are runs/english/train/MECHANISM-layers and MECHANISM-whole. With `--ctc`, CTC and the
layer that joins states start from a checkpoint and limits are used from the first update, so that only the decoders of
different mechanisms differ.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from cache import States, length_batches, read_index
from convert import HALTING_WEIGHT, MECHANISMS, Batch, OnlineDecoder, collate, fit, halting_loss, some_batches
from moonshine import FAR, INNER, WIDTH, Decoder, empty_cache, key_mask, mixed_precision
from optimisation import Run, Schedule, processes, updates_of
from safetensors.torch import load_file
from score import word_error_rate
from speech import RUNS
from torch import Tensor, nn
from vocabulary import Vocabulary

STAGES = {"layers": RUNS / "train/layers", "whole": RUNS / "train/last"}
UPDATES = {"layers": 1500, "whole": 700}
RATES = {"layers": 5e-4, "whole": 1.5e-4}
MECHANISM = "hs-dacs"
CTC_WEIGHT, SOFT_WEIGHT, OUTPUT_WEIGHT = 0.2, 0.7, 2.0
UNLIMITED = 600  # first updates without limits: until CTC can align
LOOKAHEADS = (6, 16)  # frames of 48 ms, drawn for each update
FRAMES = 8000  # of a batch, over all processes
CTC_RATE = 1e-3  # of CTC's own layers, in both stages
CTC_SCALE = 0.3  # of CTC's logits at the start
SEED, SAVE_MINUTES, EVALUATE_UPDATES = 1, 3.0, 300
EMA = 0.98
FITTED = 200  # utterances for the biases of the conversion


class CTC(nn.Module):
    """Logits of the pieces and the blank for each frame. The output layer is the decoder's embedding and a bias."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.last = nn.LayerNorm(WIDTH)
        nn.init.constant_(self.last.weight, CTC_SCALE)
        self.bias = nn.Parameter(torch.zeros(embedding.num_embeddings))
        self._embedding = (embedding,)  # in a tuple it is no submodule: the decoder saves its weights

    def forward(self, x_BTD: Tensor) -> Tensor:
        x = x_BTD + self.outer(F.gelu(self.inner(self.norm(x_BTD))))
        return F.linear(self.last(x), self._embedding[0].weight, self.bias)


class Teacher:
    """Moonshine's own softmax decoder on the same states."""

    def __init__(self, decoder: Decoder, rows: Sequence[int]) -> None:
        """`rows`: the rows of its embedding that are tokens here."""
        self.decoder, self.rows = decoder.eval().requires_grad_(False), torch.tensor(rows)

    @torch.no_grad()
    def layers(self, batch: Batch, limits_BL: Tensor | None = None) -> list[Tensor]:
        """The embedded tokens and the layers' outputs, given the text. A step sees the frames before its limit."""
        found, past = [self.decoder.embed_tokens(self.rows[batch.inputs])], empty_cache(len(batch.inputs))
        mask = key_mask(batch.seen)
        if limits_BL is not None:
            beyond = torch.arange(batch.states.shape[1]) >= 2 * limits_BL[:, None, :, None]  # a frame is two states
            mask = mask.expand(beyond.shape).masked_fill(beyond, FAR)
        with mixed_precision():
            for layer in self.decoder.layers:
                x, _ = layer(found[-1], past, layer.memory(batch.states), mask)
                found.append(x.float())
        return found

    @torch.no_grad()
    def probabilities(self, last_BLD: Tensor) -> Tensor:
        """Of the next token, from the output of the last layer; 0 for the blank."""
        with mixed_precision():
            logits = F.linear(self.decoder.norm(last_BLD), self.decoder.embed_tokens.weight[self.rows[1:]])
        return F.pad(logits.float().softmax(-1), (1, 0))


def unexplained(ours: Sequence[Tensor], theirs: Sequence[Tensor], counted_BL: Tensor) -> Tensor:
    """Fraction of the variance of the teacher's outputs that ours leave unexplained, for each layer."""
    parts = []
    for x, y in zip(ours, theirs, strict=True):
        wanted = y[counted_BL].float()
        spread = (wanted - wanted.mean(0)).square().sum()
        parts.append((x[counted_BL].float() - wanted).square().sum() / spread.clamp(min=1e-6))
    return torch.stack(parts)


class Losses(NamedTuple):
    """Losses of a batch; CTC and cross-entropy per token."""

    ctc: Tensor
    decoder: Tensor
    unexplained: Tensor  # of each layer

    @property
    def joint(self) -> Tensor:
        return CTC_WEIGHT * self.ctc + (1 - CTC_WEIGHT) * self.decoder


class Recogniser(nn.Module):
    """CTC and decoder, which are trained on the encoder's states."""

    def __init__(self, mechanism: str, tokens: int) -> None:
        super().__init__()
        self.decoder = OnlineDecoder(mechanism, tokens)
        self.ctc = CTC(self.decoder.embed_tokens)

    @staticmethod
    def converted(mechanism: str, vocabulary: Vocabulary, cache: str) -> Recogniser:
        """Moonshine's decoder with fitted biases."""
        recogniser = Recogniser(mechanism, len(vocabulary))
        recogniser.decoder.load_state_dict(OnlineDecoder.pretrained(mechanism, vocabulary).state_dict())
        explained = fit(recogniser.decoder, some_batches(cache, FITTED, vocabulary))
        print("variance of log Z explained, by layer:", [round(value, 3) for value in explained], flush=True)
        return recogniser

    def ctc_log_probabilities(self, frames_BTD: Tensor) -> Tensor:
        with mixed_precision():
            logits = self.ctc(frames_BTD)
        return logits.float().log_softmax(-1)

    def layer_losses(self, batch: Batch, lookahead: int | None, teacher: Teacher) -> Losses:
        """CTC, and the difference of each layer to the teacher's, given the teacher's inputs of the layer."""
        frames, seen = self.decoder.stack(batch.states, batch.seen)
        log_p = self.ctc_log_probabilities(frames)
        limits = None if lookahead is None else token_limits(log_p.detach(), batch, seen.sum(-1), lookahead)
        visible = seen[:, None]
        if limits is not None:
            visible = visible & (torch.arange(seen.shape[1]) < limits[..., None])
        layers, past = teacher.layers(batch, limits), empty_cache(len(batch.inputs))
        outputs, running = [], []
        for layer, given in zip(self.decoder.layers, layers, strict=False):
            with mixed_precision():
                x, _, found = layer.online(given, past, layer.memory(frames), visible, True)
            outputs.append(x)
            running.append(found.running)
        parts = unexplained(outputs, layers[1:], has_text(batch))
        spikes = None if limits is None or lookahead is None else limits - lookahead
        loss = parts.sum() + HALTING_WEIGHT * halting_loss(running, batch, spikes)
        return Losses(ctc_loss(log_p, batch, seen), loss, parts.detach())

    def whole_losses(self, batch: Batch, lookahead: int, teacher: Teacher) -> Losses:
        """CTC, and the losses of the decoder."""
        frames, seen = self.decoder.stack(batch.states, batch.seen)
        log_p = self.ctc_log_probabilities(frames)
        limits = token_limits(log_p.detach(), batch, seen.sum(-1), lookahead)
        with mixed_precision():
            logits, step = self.decoder(batch.inputs, frames, seen, True, limits)
        layers = teacher.layers(batch, limits)
        parts = unexplained(step.outputs, layers[1:], has_text(batch))
        loss = cross_entropy(logits, batch, teacher.probabilities(layers[-1]))
        loss = (
            loss + HALTING_WEIGHT * halting_loss(step.running, batch, limits - lookahead) + OUTPUT_WEIGHT * parts.mean()
        )
        return Losses(ctc_loss(log_p, batch, seen), loss, parts.detach())

    @torch.no_grad()
    def read_ctc(self, states_TD: Tensor) -> list[int]:
        """Best token of each frame, repetitions and blanks removed."""
        frames, _ = self.decoder.stack(states_TD[None], torch.ones(1, len(states_TD), dtype=torch.bool))
        best = self.ctc(frames)[0].argmax(-1).tolist()
        return [t for t, before in zip(best, [0, *best[:-1]], strict=True) if t and t != before]


def lengths(batch: Batch) -> Tensor:
    """Tokens of each text, without the end."""
    return (batch.targets >= 0).sum(-1) - 1


def has_text(batch: Batch) -> Tensor:
    """Steps of utterances with text: in background the teacher invents words."""
    return (batch.targets >= 0) & (lengths(batch) > 0)[:, None]


def ctc_loss(log_p_BTV: Tensor, batch: Batch, seen_BT: Tensor) -> Tensor:
    """Per token."""
    log_p, targets, counts = log_p_BTV.transpose(0, 1), batch.targets.clamp(min=0), lengths(batch)
    total = F.ctc_loss(log_p, targets, seen_BT.sum(-1), counts, zero_infinity=True, reduction="sum")
    return total / counts.sum().clamp(min=1)


def token_limits(log_p_BTV: Tensor, batch: Batch, frames_B: Tensor, lookahead: int) -> Tensor:
    """For each step the first frame beyond its limit: its token's spike plus `lookahead`; no limit for the end."""
    counts = lengths(batch)
    spikes = ctc_spikes(log_p_BTV, batch.targets.clamp(min=0), frames_B, counts)
    ends = torch.arange(batch.targets.shape[1]) >= counts[:, None]
    return torch.where(ends, frames_B[:, None], spikes + lookahead)


def ctc_spikes(log_p_BTV: Tensor, targets_BL: Tensor, frames_B: Tensor, lengths_B: Tensor) -> Tensor:
    """First frame of each token on the most likely CTC path (forced alignment); 0 after a row's last token."""
    B, T, _ = log_p_BTV.shape
    S = 2 * targets_BL.shape[1] + 1
    labels = torch.zeros(B, S, dtype=torch.long)
    labels[:, 1::2] = targets_BL
    p_TBS = log_p_BTV.gather(2, labels[:, None].expand(B, T, S)).transpose(0, 1).numpy()
    marks = labels.numpy()
    no_skip = np.ones((B, S), bool)
    no_skip[:, 2:] = (marks[:, 2:] == 0) | (marks[:, 2:] == marks[:, :-2])
    score, back = np.full((B, S), -1e30, np.float32), np.zeros((T, B, S), np.int8)
    score[:, :2] = p_TBS[0, :, :2]
    moves = np.full((3, B, S), -1e30, np.float32)
    last = frames_B.numpy() - 1
    for t in range(1, T):
        moves[0], moves[1, :, 1:], moves[2, :, 2:] = score, score[:, :-1], score[:, :-2]
        moves[2][no_skip] = -1e30
        back[t] = moves.argmax(0)
        score = np.where((t <= last)[:, None], moves.max(0) + p_TBS[t], score)
    return torch.from_numpy(_first_frames(score, back, last, lengths_B.numpy()))


def _first_frames(score_BS: np.ndarray, back_TBS: np.ndarray, last_B: np.ndarray, lengths_B: np.ndarray) -> np.ndarray:
    """Follow the best path from the last frame to the first; the frame at which each token begins."""
    B, rows = len(lengths_B), np.arange(len(lengths_B))
    after_last = score_BS[rows, 2 * lengths_B] >= score_BS[rows, np.maximum(2 * lengths_B - 1, 0)]
    state = np.where(after_last | (lengths_B == 0), 2 * lengths_B, 2 * lengths_B - 1)
    first = np.zeros((B, (score_BS.shape[1] - 1) // 2), np.int64)
    for t in range(len(back_TBS) - 1, -1, -1):
        active = t <= last_B
        inside = active & (state % 2 == 1)
        first[rows[inside], state[inside] // 2] = t
        state = np.where(active, state - back_TBS[t, rows, state], state)
    return first


def cross_entropy(logits_BLV: Tensor, batch: Batch, soft_BLV: Tensor | None) -> Tensor:
    """Mean over all tokens, to the text and to the teacher's probabilities; without text to the end alone."""
    log_p = logits_BLV.float().log_softmax(-1)
    text = log_p.gather(-1, batch.targets.clamp(min=0)[..., None])[..., 0]
    if soft_BLV is None:
        return -text[batch.targets >= 0].mean()
    soft = torch.where(has_text(batch), (log_p * soft_BLV).sum(-1), text)
    return -((1 - SOFT_WEIGHT) * text + SOFT_WEIGHT * soft)[batch.targets >= 0].mean()


@torch.no_grad()
def forced(model: Recogniser, batches: Sequence[Batch], lookahead: int, halting: bool = True) -> dict[str, float]:
    """Cross-entropy and accuracy of the next token, given the text, at one look-ahead."""
    total = right = steps = 0.0
    for batch in batches:
        frames, seen = model.decoder.stack(batch.states, batch.seen)
        log_p = model.ctc_log_probabilities(frames)
        limits = token_limits(log_p, batch, seen.sum(-1), lookahead)
        with mixed_precision():
            logits, _ = model.decoder(batch.inputs, frames, seen, halting, limits)
        counted = batch.targets >= 0
        total += float(F.cross_entropy(logits[counted].float(), batch.targets[counted], reduction="sum"))
        right += int((logits.argmax(-1) == batch.targets)[counted].sum())
        steps += int(counted.sum())
    return {"cross-entropy": total / steps, "accuracy": 100 * right / steps}


def evaluate(model: Recogniser, vocabulary: Vocabulary, name: str, count: int) -> dict[str, float]:
    """WER of CTC alone and of the decoder alone (greedy), loss given the text, on the first utterances of each set."""
    states, found = States(name), dict[str, float]()
    for corpus in ("librispeech", "commonvoice", "harpervalley"):
        rows = [row for row in read_index(name) if row["corpus"] == corpus][:count]
        if not rows:
            continue
        batches = [collate(rows[n : n + 10], states, vocabulary) for n in range(0, len(rows), 10)]
        found |= {f"{corpus} {key}": value for key, value in forced(model, batches, LOOKAHEADS[0] + 2).items()}
        texts = [row["text"] for row in rows]
        encoded = [states(row) for row in rows]
        found[f"{corpus} ctc"] = word_error_rate(texts, [vocabulary.decode(model.read_ctc(s)) for s in encoded])
        read = [vocabulary.decode(model.decoder.greedy(s, True)) for s in encoded]
        found[f"{corpus} decoder"] = word_error_rate(texts, read)
    return {key: round(value, 3) for key, value in found.items()}


@torch.no_grad()
def teacher_forced(teacher: Teacher, model: Recogniser, batches: Sequence[Batch], lookahead: int) -> dict[str, float]:
    """As `forced`, of Moonshine's softmax decoder with the limits of a model."""
    total = right = steps = 0.0
    for batch in batches:
        frames, seen = model.decoder.stack(batch.states, batch.seen)
        limits = token_limits(model.ctc_log_probabilities(frames), batch, seen.sum(-1), lookahead)
        p = teacher.probabilities(teacher.layers(batch, limits)[-1])
        counted = batch.targets >= 0
        total -= float(p.gather(-1, batch.targets.clamp(min=0)[..., None])[..., 0][counted].clamp(min=1e-9).log().sum())
        right += int((p.argmax(-1) == batch.targets)[counted].sum())
        steps += int(counted.sum())
    return {"cross-entropy": total / steps, "accuracy": 100 * right / steps}


def table(vocabulary: Vocabulary, name: str) -> None:
    """Loss and accuracy of the next token given the text, of Moonshine's decoder and of each mechanism."""
    lookahead = LOOKAHEADS[0] + 2
    teacher: Teacher | None = Teacher(Decoder.pretrained(), vocabulary.rows)
    sets = {c: some_batches(name, 40, vocabulary, [c]) for c in ("librispeech", "commonvoice")}
    print(f"| mechanism | updates | {' | '.join(sets)} |\n|---|---|---|---|")
    for mechanism in MECHANISMS:
        for stage in STAGES:
            folder = folder_of(stage, mechanism)
            if not (folder / "model.safetensors").is_file():
                continue
            model = Recogniser(mechanism, len(vocabulary)).eval()
            model.load_state_dict(load_file(folder / "model.safetensors"))
            if teacher is not None:
                found = [teacher_forced(teacher, model, batches, lookahead) for batches in sets.values()]
                print(f"| softmax (Moonshine) | | {_cells(found)} |")
                teacher = None
            found = [forced(model, batches, lookahead) for batches in sets.values()]
            print(f"| {mechanism}, {stage} | {updates_of(folder)} | {_cells(found)} |", flush=True)


def _cells(found: Sequence[dict[str, float]]) -> str:
    return " | ".join(f"{one['cross-entropy']:.3f}, {one['accuracy']:.1f} %" for one in found)


def folder_of(stage: str, mechanism: str | None) -> Path:
    return STAGES[stage] if mechanism is None else RUNS / "train" / f"{mechanism}-{stage}"


def start(arguments: argparse.Namespace, folder: Path, vocabulary: Vocabulary) -> Recogniser:
    """The network before the first update of a stage; a run that continues reads its own weights."""
    mechanism = arguments.mechanism or MECHANISM
    recogniser, before = Recogniser(mechanism, len(vocabulary)), folder_of("layers", arguments.mechanism)
    if (folder / "state.json").is_file():
        return recogniser
    if arguments.stage == "whole":
        if not (before / "model.safetensors").is_file():
            raise SystemExit(f"{before}: not found; run `python recipes/english/train.py layers` first")
        recogniser.load_state_dict(load_file(before / "model.safetensors"))
        return recogniser
    recogniser = Recogniser.converted(mechanism, vocabulary, arguments.cache)
    if arguments.ctc:
        given = load_file(arguments.ctc / "model.safetensors")
        recogniser.load_state_dict({n: p for n, p in given.items() if n.startswith(("ctc.", "decoder.stack."))}, False)
    return recogniser


def train(arguments: argparse.Namespace, vocabulary: Vocabulary) -> None:
    """Make all updates of a stage, with as many passes over the cache as needed."""
    stage, folder = arguments.stage, arguments.folder or folder_of(arguments.stage, arguments.mechanism)
    model = start(arguments, folder, vocabulary)
    model.decoder.embed_tokens.requires_grad_(False)
    rate = arguments.rate or RATES[stage]
    schedule = Schedule(rate, 50, arguments.updates or UPDATES[stage], EMA, 0.01)
    run = Run(model, schedule, folder, {"ctc.": CTC_RATE / rate})
    saved, teacher = time.monotonic(), Teacher(Decoder.pretrained(), vocabulary.rows)
    unlimited = 0 if arguments.ctc else UNLIMITED
    for batch in endless(arguments.cache, run.updates, vocabulary):
        if run.is_over:
            break
        lookahead = int(np.random.default_rng([SEED, run.updates]).integers(*LOOKAHEADS, endpoint=True))
        if stage == "layers":
            losses = run.model.layer_losses(batch, lookahead if run.updates >= unlimited else None, teacher)
        else:
            losses = run.model.whole_losses(batch, lookahead, teacher)
        losses.joint.backward()
        run.update()
        if dist.get_rank():
            continue
        if run.updates % 20 == 0:
            parts = [round(part, 3) for part in losses.unexplained.tolist()]
            print(f"{run.updates} ctc {losses.ctc:.3f} decoder {losses.decoder:.3f} unexplained {parts}", flush=True)
        if time.monotonic() - saved > 60 * SAVE_MINUTES:
            run.save()
            saved = time.monotonic()
        if run.updates % EVALUATE_UPDATES == 0:
            run.save()
            print("evaluation", json.dumps(evaluate(run.average, vocabulary, arguments.test, 40)), flush=True)
    if not dist.get_rank():
        run.save()


def endless(name: str, updates: int, vocabulary: Vocabulary) -> Iterator[Batch]:
    """Batches of a cache, pass after pass; a pass includes what was written to the cache before it."""
    states, rng = States(name), np.random.default_rng([SEED, updates])
    rank, ranks = dist.get_rank(), dist.get_world_size()
    while True:
        parts = list(length_batches(read_index(name), FRAMES // ranks, rng))
        for part in parts[rank : len(parts) // ranks * ranks : ranks]:
            batch = collate(part, states, vocabulary)
            if rng.random() < 0.5:  # the other pairs of states
                batch = batch._replace(states=batch.states[:, 1:], seen=batch.seen[:, 1:])
            yield batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=[*STAGES, "evaluate", "table"])
    parser.add_argument("--mechanism", choices=[*MECHANISMS])
    parser.add_argument("--ctc", type=Path, help="folder of a checkpoint with a trained CTC")
    parser.add_argument("--cache", default="train")
    parser.add_argument("--test", default="dev", help="cache to measure on")
    parser.add_argument("--updates", type=int)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    vocabulary = Vocabulary()
    if arguments.stage == "evaluate":
        model = Recogniser(arguments.mechanism or MECHANISM, len(vocabulary)).eval()
        folder = arguments.folder or folder_of("whole", arguments.mechanism)
        model.load_state_dict(load_file(folder / "model.safetensors"))
        print(json.dumps(evaluate(model, vocabulary, arguments.test, 100)))
    elif arguments.stage == "table":
        table(vocabulary, arguments.test)
    else:
        with processes():
            train(arguments, vocabulary)


if __name__ == "__main__":
    main()

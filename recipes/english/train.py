"""Train CTC and the online decoder together on cached states.

    python recipes/english/train.py --minutes 600     # continues from runs/english/train/last
    python recipes/english/train.py --evaluate        # WER of CTC alone and of the decoder alone on cached dev states

The decoder starts from a conversion (`convert.py hs-dacs`). CTC and decoder share the pruned vocabulary and the frames:
pairs of states, one every 48 ms. CTC has one feed-forward block; its output layer starts from the decoder's embedding.
Loss = 0.3 CTC + 0.7 cross-entropy, CTC on every second row of a batch. As in `adapt.py` the rate is constant after a
warm-up and the moving average of the weights is what is evaluated and kept, so that a run can stop and continue at any
time. The encoder stays frozen here: its states come from `cache.py`. The last stage, all layers together at a low
rate, needs the encoder in the loop and is not written yet.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from cache import States, length_batches, read_index
from convert import FOLDER as CONVERTED
from convert import REACH_WEIGHT, Batch, OnlineDecoder, collate, shortfall
from moonshine import INNER, WIDTH, mixed_precision
from safetensors.torch import load_file, save_file
from score import word_error_rate
from speech import RUNS
from torch import Tensor, nn
from vocabulary import Vocabulary

FOLDER = RUNS / "train/last"


@dataclass(frozen=True)
class Config:
    """Settings of a run."""

    mechanism: str = "hs-dacs"
    rate: float = 3e-4
    warmup: int = 50
    ema: float = 0.998
    ctc: float = 0.3
    smoothing: float = 0.1
    frames: int = 6000  # of a batch
    seed: int = 1
    save_minutes: float = 4.0
    evaluate_updates: int = 400


class CTC(nn.Module):
    """Logits of the pieces and the blank for each frame."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.last = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, tokens)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x = x_BTD + self.outer(F.gelu(self.inner(self.norm(x_BTD))))
        return self.out(self.last(x))


class Recogniser(nn.Module):
    """What is trained on the encoder's states."""

    def __init__(self, mechanism: str, tokens: int) -> None:
        super().__init__()
        self.decoder, self.ctc = OnlineDecoder(mechanism, tokens), CTC(tokens)

    @staticmethod
    def converted(mechanism: str, tokens: int) -> Recogniser:
        """The decoder from its conversion, CTC's output layer from the decoder's embedding."""
        recogniser = Recogniser(mechanism, tokens)
        path = CONVERTED / mechanism / "model.safetensors"
        if not path.is_file():
            raise SystemExit(f"{path}: not there; run `python recipes/english/convert.py {mechanism}` first")
        recogniser.decoder.load_state_dict(load_file(path))
        with torch.no_grad():
            recogniser.ctc.out.weight.copy_(0.3 * recogniser.decoder.embed_tokens.weight)
            recogniser.ctc.out.bias.zero_()
        return recogniser

    def losses(self, batch: Batch, smoothing: float) -> tuple[Tensor, Tensor]:
        """CTC of every second row, and cross-entropy with what the sums of the steps lack, both per token."""
        frames, seen = self.decoder.stack(batch.states, batch.seen)
        with mixed_precision():
            logits, step = self.decoder(batch.inputs, frames, seen, True)
            ctc_logits = self.ctc(frames[::2])
        entropy = F.cross_entropy(logits.flatten(0, 1).float(), batch.targets.flatten(), label_smoothing=smoothing)
        entropy = entropy + REACH_WEIGHT * shortfall(step, batch)
        targets = batch.targets[::2]
        lengths = (targets >= 0).sum(-1) - 1
        log_p = ctc_logits.float().log_softmax(-1).transpose(0, 1)
        ctc = F.ctc_loss(log_p, targets.clamp(min=0), seen[::2].sum(-1), lengths, zero_infinity=True, reduction="sum")
        return ctc / lengths.sum(), entropy

    @torch.no_grad()
    def read_ctc(self, states_TD: Tensor) -> list[int]:
        """Best token of each frame, repetitions and blanks removed."""
        frames, _ = self.decoder.stack(states_TD[None], torch.ones(1, len(states_TD), dtype=torch.bool))
        best = self.ctc(frames)[0].argmax(-1).tolist()
        return [t for t, before in zip(best, [0, *best[:-1]], strict=True) if t and t != before]


def evaluate(model: Recogniser, vocabulary: Vocabulary, name: str, count: int) -> dict[str, float]:
    """WER of CTC alone and of the decoder alone (greedy) on the first utterances of each development set."""
    states, found = States(name), {}
    for corpus in ("librispeech", "commonvoice", "harpervalley"):
        rows = [row for row in read_index(name) if row["corpus"] == corpus][:count]
        if not rows:
            continue
        texts = [row["text"] for row in rows]
        heard = [states(row) for row in rows]
        found[f"{corpus} ctc"] = word_error_rate(texts, [vocabulary.decode(model.read_ctc(s)) for s in heard])
        read = [vocabulary.decode(model.decoder.greedy(s, True)) for s in heard]
        found[f"{corpus} decoder"] = word_error_rate(texts, read)
    return {key: round(value, 2) for key, value in found.items()}


class Training:
    """Model, moving average and optimiser; saved and restored without pickles."""

    def __init__(self, config: Config, folder: Path, tokens: int) -> None:
        self.config, self.folder, self.updates = config, folder, 0
        self.model = Recogniser.converted(config.mechanism, tokens)
        self.average = Recogniser.converted(config.mechanism, tokens)
        self.optimiser = torch.optim.AdamW(self.model.parameters(), config.rate, betas=(0.9, 0.98), weight_decay=0.01)
        if (folder / "state.json").is_file():
            self.restore()

    def update(self, batch: Batch) -> tuple[float, float]:
        ctc, entropy = self.model.losses(batch, self.config.smoothing)
        (self.config.ctc * ctc + (1 - self.config.ctc) * entropy).backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.updates += 1
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.rate * min(1.0, self.updates / self.config.warmup)
        if torch.isfinite(norm):
            self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        keep = min(self.config.ema, 1 - 1 / (1 + self.updates))
        with torch.no_grad():
            for mean, new in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(new, 1 - keep)
        return float(ctc.detach()), float(entropy.detach())

    def save(self) -> None:
        """Write the checkpoint; the old one stays until the new one is complete."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for n, p in self.model.named_parameters():
            tensors[f"weight.{n}"] = p.detach()
            if state := self.optimiser.state.get(p):
                tensors |= {f"first.{n}": state["exp_avg"], f"second.{n}": state["exp_avg_sq"]}
        save_file(tensors, self.folder / "training.part")
        save_file({n: p.detach().clone() for n, p in self.average.state_dict().items()}, self.folder / "model.part")
        (self.folder / "training.part").replace(self.folder / "training.safetensors")
        (self.folder / "model.part").replace(self.folder / "model.safetensors")
        (self.folder / "state.json").write_text(json.dumps({"updates": self.updates, "config": self.config.__dict__}))

    def restore(self) -> None:
        self.updates = json.loads((self.folder / "state.json").read_text())["updates"]
        tensors = load_file(self.folder / "training.safetensors")
        self.average.load_state_dict(load_file(self.folder / "model.safetensors"))
        with torch.no_grad():
            for n, p in self.model.named_parameters():
                p.copy_(tensors[f"weight.{n}"])
                moments = {"exp_avg": tensors[f"first.{n}"], "exp_avg_sq": tensors[f"second.{n}"]}
                self.optimiser.state[p] = {"step": torch.tensor(float(self.updates)), **moments}
        print(f"continued from {self.updates} updates", flush=True)


def train(arguments: argparse.Namespace, vocabulary: Vocabulary) -> None:
    """Pass after pass over the cache until the time is over."""
    config = Config(rate=arguments.rate)
    training = Training(config, arguments.folder, len(vocabulary))
    rows, states = [row for row in read_index(arguments.cache) if row["text"]], States(arguments.cache)
    rng, began = np.random.default_rng([config.seed, training.updates]), time.monotonic()
    saved = began
    while time.monotonic() - began < 60 * arguments.minutes:
        for part in length_batches(rows, config.frames, rng):
            ctc, entropy = training.update(collate(part, states, vocabulary))
            if training.updates % 20 == 0:
                print(f"{training.updates} ctc {ctc:.3f} entropy {entropy:.3f}", flush=True)
            if time.monotonic() - saved > 60 * config.save_minutes:
                training.save()
                saved = time.monotonic()
            if training.updates % config.evaluate_updates == 0:
                training.save()
                print("evaluation", json.dumps(evaluate(training.average, vocabulary, arguments.test, 40)), flush=True)
            if time.monotonic() - began > 60 * arguments.minutes:
                break
    training.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", default="train")
    parser.add_argument("--test", default="dev", help="cache to measure on")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--rate", type=float, default=Config.rate)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--evaluate", action="store_true", help="measure only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    vocabulary = Vocabulary()
    if arguments.evaluate:
        model = Recogniser(Config.mechanism, len(vocabulary)).eval()
        model.load_state_dict(load_file(arguments.folder / "model.safetensors"))
        print(json.dumps(evaluate(model, vocabulary, arguments.test, 100)))
    else:
        train(arguments, vocabulary)


if __name__ == "__main__":
    main()

"""Soft targets: the teacher's probabilities of the next token, given the final text.

    python recipes/english/targets.py                # all utterances of LABELS/train.jsonl; continues where it stopped

Moonshine tiny reads the recording with full context and its own softmax decoder, given the previous tokens of the final
text. The probabilities are restricted to the pruned vocabulary. A shard, LABELS/targets/NNNNN.safetensors, has for
each utterance the MOST likely tokens of each step (ID.tokens, L x MOST) and their probabilities (ID.probabilities).
`train.py` mixes them with the text.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from cache import labelled
from moonshine import EOS, Decoder, Encoder, frames_of, mixed_precision
from safetensors import safe_open
from safetensors.torch import save_file
from speech import LABELS, Utterance, batches, levelled, padded, samples_of
from torch import Tensor
from vocabulary import Vocabulary

FOLDER = LABELS / "targets"
SHARD, MOST = 512, 8
SECONDS, ROWS = 200.0, 40  # of a batch
NUMBERS = ("digits",)  # corpora in which the teacher writes figures, for which the vocabulary has no pieces


class Soft(NamedTuple):
    """Likely tokens of each step and their probabilities: (B, L, MOST)."""

    tokens: Tensor
    probabilities: Tensor


class Targets:
    """Random access to the soft targets that exist."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files = [safe_open(path, "pt") for path in sorted(folder.glob("*.safetensors"))]
        self._place = {key: file for file in self._files for key in file.keys()}  # noqa: SIM118

    def __contains__(self, utterance: str) -> bool:
        return f"{utterance}.tokens" in self._place

    @property
    def shards(self) -> int:
        return len(self._files)

    def __call__(self, utterance: str) -> tuple[Tensor, Tensor] | None:
        """Tokens and probabilities of each step of an utterance, (L, MOST) each."""
        file = self._place.get(f"{utterance}.tokens")
        if file is None:
            return None
        tokens, probabilities = (file.get_tensor(f"{utterance}.{kind}") for kind in ("tokens", "probabilities"))
        return tokens.long(), probabilities.float()

    def batch(self, utterances: Sequence[str], targets_BL: Tensor) -> Soft:
        """Soft targets of a batch, probabilities scaled to a sum of 1; the text itself if there are none."""
        tokens = targets_BL.clamp(min=0)[..., None].repeat(1, 1, MOST)
        probabilities = torch.zeros(tokens.shape)
        probabilities[..., 0] = 1
        for row, utterance in enumerate(utterances):
            found = self(utterance)
            if found is not None and len(found[0]) == int((targets_BL[row] >= 0).sum()):
                tokens[row, : len(found[0])] = found[0]
                probabilities[row, : len(found[0])] = found[1] / found[1].sum(-1, keepdim=True)
        return Soft(tokens, probabilities)


@torch.no_grad()
def targets(
    encoder: Encoder, decoder: Decoder, vocabulary: Vocabulary, batch: Sequence[Utterance]
) -> dict[str, Tensor]:
    """Soft targets of a batch of utterances."""
    samples, lengths = padded([levelled(samples_of(u)) for u in batch])
    frames = torch.tensor([frames_of(int(n)) for n in lengths])
    texts = [vocabulary.encode(u.text or "") for u in batch]
    longest, rows = max(map(len, texts)), torch.tensor(vocabulary.rows)
    inputs = rows[torch.tensor([[1, *t] + [EOS] * (longest - len(t)) for t in texts])]
    with mixed_precision():
        states = encoder.whole(samples, lengths)
        hidden = decoder.hidden(inputs, states.float(), torch.arange(states.shape[1]) < frames[:, None])
        logits = F.linear(hidden, decoder.embed_tokens.weight[rows[1:]]).float()
    found = logits.softmax(-1).topk(MOST)
    shard = {}
    for i, (utterance, text) in enumerate(zip(batch, texts, strict=True)):
        steps = len(text) + 1
        shard[f"{utterance.id}.tokens"] = (found.indices[i, :steps] + 1).short()
        shard[f"{utterance.id}.probabilities"] = found.values[i, :steps].half()
    return shard


def main() -> None:
    torch.set_num_threads(1)
    encoder, decoder, vocabulary = Encoder.pretrained().eval(), Decoder.pretrained().eval(), Vocabulary()
    FOLDER.mkdir(parents=True, exist_ok=True)
    existing = Targets()
    known = [u for corpus, u in labelled() if corpus not in NUMBERS and 0.4 <= u.seconds < 30]
    utterances = [u for u in known if u.id not in existing]
    began, done = time.monotonic(), 0.0
    for number, start in enumerate(range(0, len(utterances), SHARD), existing.shards):
        shard: dict[str, Tensor] = {}
        part = utterances[start : start + SHARD]
        for batch in batches(part, SECONDS, ROWS):
            shard |= targets(encoder, decoder, vocabulary, batch)
        path = FOLDER / f"{number:05d}.safetensors"
        save_file(shard, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)
        done += sum(u.seconds for u in part)
        print(f"targets: {done / 3600:.2f} h, {(time.monotonic() - began) / done:.4f} x real time", flush=True)


if __name__ == "__main__":
    main()

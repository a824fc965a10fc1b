"""Checkpoints and vocabulary of this recipe from a model folder: the inverse of `export.py`.

    python recipes/english/restore.py src/headsync/models/english

Writes runs/english/vocabulary.json, adapt/last (encoder) and train/last (CTC and decoder), so that `finetune.py` and
`adapt.py table` can start from a published model. Weights in half precision are read as float32. Existing files are not
overwritten.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from export import CTC
from moonshine import HEADS, Encoder
from safetensors.torch import load_file, save_file
from speech import RUNS
from torch import Tensor
from train import MECHANISM, Recogniser
from vocabulary import FILE, Vocabulary, all_pieces

from headsync.training.moonshine import BLANK, END, OF_DECODER_LAYER, OF_ENCODER_LAYER, OF_FRONT, START

State = dict[str, Tensor]


def write_vocabulary(folder: Path) -> Vocabulary:
    """The recipe's vocabulary with the pieces of a model folder, in their order."""
    pieces = json.loads((folder / "vocabulary.json").read_text())["tokens"]
    numbers = all_pieces()
    stored = {
        "pieces": ["<blank>", "<s>", "</s>", *pieces],
        "rows": [BLANK, START, END, *(numbers[piece] for piece in pieces)],
    }
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps(stored, ensure_ascii=False))
    return Vocabulary()


def renamed(weights: State, ours: str, names: dict[str, str], theirs: str) -> State:
    """Weights under the recipe's names."""
    kinds = [(a, b, kind) for a, b in names.items() for kind in ("weight", "bias")]
    found = {f"{theirs}{a}.{kind}": weights.get(".".join(filter(None, (ours, b, kind)))) for a, b, kind in kinds}
    return {name: value for name, value in found.items() if value is not None}


def split_projection(joined: Tensor, theirs: str) -> State:
    """Query, key and value of one projection; a rotated pair is adjacent again (`moonshine._query_key_value`)."""
    from headsync.nn.rotary import rotated_entries

    q, k, v = joined.chunk(3)
    size = len(q) // HEADS
    rotated = rotated_entries(size)
    order = np.concatenate([np.arange(0, rotated, 2), np.arange(1, rotated, 2), np.arange(rotated, size)])
    rows = torch.from_numpy((np.arange(HEADS)[:, None] * size + order).reshape(-1))
    back = torch.empty_like(rows)
    back[rows] = torch.arange(len(rows))
    return {f"{theirs}.q_proj.weight": q[back], f"{theirs}.k_proj.weight": k[back], f"{theirs}.v_proj.weight": v}


def encoder_state(weights: State) -> State:
    found = renamed(weights, "encoder.front", OF_FRONT, "") | {"layer_norm.weight": weights["encoder.norm.weight"]}
    for n in range(sum(name.endswith(".query_key_value.weight") for name in weights if name.startswith("encoder."))):
        found |= renamed(weights, f"encoder.layers.{n}", OF_ENCODER_LAYER, f"layers.{n}.")
        joined = weights[f"encoder.layers.{n}.query_key_value.weight"]
        found |= split_projection(joined, f"layers.{n}.self_attn")
    return found


def recogniser_state(weights: State) -> State:
    """CTC and decoder; in the embedding the start and the end of a sentence follow the blank."""
    embedding, bias = weights["decoder.embedding.weight"], weights["ctc.bias"]
    found = {
        "decoder.embed_tokens.weight": torch.cat([embedding[:1], embedding[-1:], embedding[-2:-1], embedding[1:-2]]),
        "decoder.norm.weight": weights["decoder.norm.weight"],
        "decoder.stack.pair.weight": weights["encoder.pair.weight"],
        "ctc.bias": torch.cat([bias[:1], torch.full((1,), -30.0), bias[-1:], bias[1:-1]]),
    }
    found |= renamed(weights, "ctc", CTC, "ctc.")
    for n in range(sum(name.endswith(".cross.key.bias") for name in weights)):
        ours, theirs = f"decoder.stack.{n}", f"decoder.layers.{n}."
        found |= renamed(weights, ours, {a: b for a, b in OF_DECODER_LAYER.items() if b != "cross.key"}, theirs)
        found[f"{theirs}encoder_attn.k_proj.weight"] = weights[f"{ours}.cross.key.weight"]
        found[f"{theirs}key_bias"] = weights[f"{ours}.cross.key.bias"].reshape(HEADS, 1, -1)
        found[f"{theirs}energy_bias"] = weights[f"{ours}.cross.mechanism.energy_bias"]
        found |= split_projection(weights[f"{ours}.self_attention.query_key_value.weight"], f"{theirs}self_attn")
    return found


def write(folder: Path, state: State) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "model.safetensors")
    print(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    folder = parser.parse_args().model
    targets = [RUNS / "adapt/last", RUNS / "train/last"]
    if existing := [path for path in (FILE, *targets) if path.exists()]:
        raise SystemExit(f"{existing[0]}: exists; move it away first")
    vocabulary = write_vocabulary(folder)
    weights = {name: tensor.float() for name, tensor in load_file(folder / "weights.safetensors").items()}
    encoder, recogniser = Encoder(), Recogniser(MECHANISM, len(vocabulary))
    encoder.load_state_dict(encoder_state(weights))
    recogniser.load_state_dict(recogniser_state(weights))
    write(targets[0], encoder.state_dict())
    write(targets[1], recogniser.state_dict())


if __name__ == "__main__":
    main()

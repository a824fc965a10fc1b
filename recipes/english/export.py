"""Make a headsync model folder from an adapted encoder and a trained decoder, and compare both with these scripts.

    python recipes/english/export.py OUT --half          # the averaged checkpoints of finetune.py, in half precision
    python recipes/english/export.py OUT --encoder none --decoder none   # Moonshine's weights, for a trial

By default the weights are the mean of those before `finetune.py` and those of its two runs.

The folder has graphs for ONNX Runtime. The comparison is on an utterance of the development set: front end and frames
of the streaming encoder, logits of CTC and of the decoder, given the text.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from convert import REACH, THRESHOLD, OnlineDecoder
from moonshine import HEADS, INNER, LAYERS, WIDTH, Encoder, Shape, _close
from safetensors.torch import load_file
from speech import RUNS, read_manifest, samples_of
from torch import Tensor
from train import Recogniser
from vocabulary import FIRST, Vocabulary

from headsync.config import (
    Config,
    DataConfig,
    DecoderConfig,
    DecodingConfig,
    EncoderConfig,
    EndpointConfig,
    NetworkConfig,
)
from headsync.engine.export import export_model
from headsync.frontend.waveform import Waveform
from headsync.model_folder import Weights, load_folder
from headsync.nn.model import Model
from headsync.text import vocabulary as text
from headsync.training import moonshine

CTC = {"norm": "feedforward.norm", "inner": "feedforward.first", "outer": "feedforward.second", "last": "norm"}
ENCODERS = [str(RUNS / name) for name in ("adapt/last", "finetune-0/encoder", "finetune-2/encoder")]
DECODERS = [str(RUNS / name) for name in ("train/last", "finetune-0/recogniser", "finetune-2/recogniser")]
FRAMES = (215, 8, 8)  # left, centre, right, in frames of 48 ms
VARIED = "5 14"  # least and most centre and right frames of the training of the encoder (`adapt.py`)


def settings(mechanism: str) -> Config:
    """Settings of the model; those of the search were chosen on 60 utterances of dev-clean."""
    return Config(
        network=NetworkConfig(WIDTH, HEADS, INNER, family="moonshine"),
        encoder=EncoderConfig(LAYERS, *FRAMES, "reuse", varied_frames=VARIED),
        decoder=DecoderConfig(LAYERS, mechanism, THRESHOLD, reach=REACH, normalised=True, frame_positions=False),
        decoding=DecodingConfig(beam=5, ctc_weight=0.1, length_bonus=0.3, lookahead_frames=8, token_frames=6),
        endpoint=EndpointConfig(spike_probability=0.35),
        data=DataConfig(tokens="bpe"),
    )


def tokens(vocabulary: Vocabulary) -> tuple[text.Vocabulary, list[int]]:
    """The vocabulary of the library, and the rows of the recipe's embedding in its order."""
    rows = [token for token, row in enumerate(vocabulary.rows) if row >= FIRST]
    return text.Vocabulary("bpe", tuple(vocabulary.pieces[token] for token in rows)), moonshine.token_rows(rows)


def arrays(state: dict[str, Tensor], prefix: str = "") -> Weights:
    return {n.removeprefix(prefix): x.float().numpy() for n, x in state.items() if n.startswith(prefix)}


def build(config: Config, classes: int, encoder: Encoder, recogniser: Recogniser, rows: list[int]) -> Model:
    """The network of the library with the weights of these scripts."""
    model = Model(config, config.columns, classes).eval()
    decoder, ctc = arrays(recogniser.state_dict(), "decoder."), arrays(recogniser.state_dict(), "ctc.")
    weights = moonshine.encoder_weights(arrays(encoder.state_dict()), HEADS)
    weights |= moonshine.decoder_weights(decoder, HEADS, rows)
    weights["encoder.pair.weight"] = decoder["stack.pair.weight"]
    for theirs, ours in CTC.items():
        weights |= {f"ctc.{ours}.{kind}": ctc[f"{theirs}.{kind}"] for kind in ("weight", "bias")}
    weights["ctc.bias"] = ctc["bias"][rows[:-1]]
    if config.decoder.attention == "softmax":  # it has no energy bias
        weights = {name: x for name, x in weights.items() if not name.endswith("energy_bias")}
    moonshine.load(model, weights, RUNS)
    return model


@torch.no_grad()
def compare(model: Model, encoder: Encoder, recogniser: Recogniser, vocabulary: Vocabulary, rows: list[int]) -> None:
    """Check that the library's network equals these scripts on an utterance of the development set."""
    utterance = next(u for u in read_manifest("librispeech", "dev") if 5 < u.seconds < 12)
    blocks = torch.from_numpy(Waveform().whole(samples_of(utterance)))
    samples = blocks.flatten()[None]
    front, _ = encoder.front(samples)
    states = encoder.blocks(front, Shape(*(2 * n for n in FRAMES)))
    frames, seen = recogniser.decoder.stack(states, torch.ones(states.shape[:2], dtype=torch.bool))
    found, counts = model.encoder.whole(blocks[None], torch.tensor([len(blocks)]))
    embedded, _ = model.encoder.embed(blocks[None], model.encoder.start_front(1))
    count = int(counts)
    _close("front end", embedded.reshape(1, -1, WIDTH), front[:, : 2 * count])
    _close("encoder frames", found[:, : count - FRAMES[2]], frames[:, : count - FRAMES[2]], 2e-4)
    theirs = vocabulary.encode(utterance.text or "")
    ours = [rows.index(token) for token in theirs]
    logits, _ = recogniser.decoder(torch.tensor([[1, *theirs]]), frames, seen, True)
    limit = torch.full((1, len(ours) + 1), frames.shape[1])
    own, _ = model.decoder.whole(torch.tensor([[len(rows) - 2, *ours]]), frames, limit)
    scale = float(logits.abs().max())
    _close("decoder, relative", own / scale, logits[..., rows[:-1]] / scale, 1e-3)
    _close("CTC", model.ctc(frames), recogniser.ctc(frames)[..., rows[:-1]], 1e-3)


def mean(checkpoints: Sequence[str]) -> dict[str, Tensor]:
    """The mean of the weights of some checkpoints."""
    states = [load_file(Path(folder) / "model.safetensors") for folder in checkpoints]
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def trained(arguments: argparse.Namespace, vocabulary: Vocabulary) -> tuple[Encoder, Recogniser]:
    """The networks of the checkpoints."""
    encoder = Encoder.pretrained().eval()
    recogniser = Recogniser(arguments.mechanism, len(vocabulary)).eval()
    if arguments.encoder != ["none"]:
        encoder.load_state_dict(mean(arguments.encoder))
    if arguments.decoder != ["none"]:
        recogniser.load_state_dict(mean(arguments.decoder))
    else:
        recogniser.decoder.load_state_dict(OnlineDecoder.pretrained(arguments.mechanism, vocabulary).state_dict())
    return encoder, recogniser


def write(out: Path, config: Config, vocabulary: text.Vocabulary, model: Model, half: bool) -> None:
    """The model folder with graphs."""
    with tempfile.TemporaryDirectory() as folder:
        moonshine.write_model(Path(folder), config, vocabulary, model)
        agreement = export_model(load_folder(Path(folder)), out, half=half)
    size = np.sum([file.stat().st_size for file in out.iterdir()]) / 1e6
    print(f"{out}: {size:.1f} MB; ONNX differs from PyTorch by {agreement.difference:.1e}", agreement.steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--encoder",
        nargs="+",
        default=ENCODERS,
        help="checkpoints to average; none: Moonshine's",
    )
    parser.add_argument(
        "--decoder", nargs="+", default=DECODERS, help="checkpoints of CTC and decoder; none: Moonshine's"
    )
    parser.add_argument("--mechanism", default="hs-dacs")
    parser.add_argument("--half", action="store_true", help="weights in half precision")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    vocabulary = Vocabulary()
    encoder, recogniser = trained(arguments, vocabulary)
    written, rows = tokens(vocabulary)
    config = settings(arguments.mechanism)
    model = build(config, written.size, encoder, recogniser, rows)
    compare(model, encoder, recogniser, vocabulary, rows)
    write(arguments.out, config, written, model, arguments.half)


if __name__ == "__main__":
    main()

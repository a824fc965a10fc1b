"""The states of Moonshine's encoder for the recordings of manifests, as a teacher for `training.teacher`.

    pip install moonshine-voice==0.0.49
    python recipes/teacher.py runs/teacher runs/data/digits/train-taught.jsonl runs/data/digits/dev-told.jsonl

The package carries its small English model (MIT licence), which runs on onnxruntime. Its encoder hears a recording as a
whole and gives a state every 24 ms; between them lies what belongs to an encoder frame of ours, every 40 ms.
Recordings that are in OUT already are not heard again, so that it can be stopped and goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime
from rich.progress import track

from headsync.audio import FloatArray, mix_down, read_audio, resample
from headsync.data.manifest import read_manifest
from headsync.errors import HeadsyncError
from headsync.framing import FRAME_SAMPLES, HOP_SAMPLES, embedded_frames
from headsync.train.teacher import INDEX, STATES

PACKAGE, MODEL = "moonshine_voice", "assets/tiny-en/encoder_model.ort"
STATE_SAMPLES, FIRST_CENTRE = 384, 447  # convolutions of 127, 7 and 3 with strides of 64, 3 and 2
OUR_SAMPLES, OUR_FIRST_CENTRE = 4 * HOP_SAMPLES, 3 * HOP_SAMPLES + FRAME_SAMPLES // 2
PEAK = 0.5  # recordings of the corpora are of very different levels, of which a teacher should tell nothing
SHORTEST = 6_000  # samples; less is filled up with silence


def session(model: Path | None) -> onnxruntime.InferenceSession:
    if model is None:
        found = find_spec(PACKAGE)
        if found is None or found.origin is None:
            raise SystemExit("teacher.py: moonshine-voice is not installed; `pip install moonshine-voice==0.0.49`")
        model = Path(found.origin).parent / MODEL
    if not model.is_file():
        raise SystemExit(f"teacher.py: {model}: there is no such model")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options)


def states_of(samples: FloatArray, encoder: onnxruntime.InferenceSession) -> FloatArray:
    """The encoder's states of 16 kHz samples, between which those of our encoder frames lie."""
    sound = np.pad(samples, (0, max(0, SHORTEST - len(samples))))
    sound = sound / max(1e-4, float(np.abs(sound).max())) * PEAK
    mask = np.ones((1, len(sound)), np.int64)
    states = encoder.run(None, {"input_values": sound[None].astype(np.float32), "attention_mask": mask})[0][0]
    frames = embedded_frames(max(0, 1 + (len(samples) - FRAME_SAMPLES) // HOP_SAMPLES))
    place = (OUR_FIRST_CENTRE - FIRST_CENTRE + OUR_SAMPLES * np.arange(frames)) / STATE_SAMPLES
    place = np.clip(place, 0, len(states) - 1)
    before = np.floor(place).astype(int)
    after, part = np.minimum(before + 1, len(states) - 1), (place - before)[:, None]
    return states[before] * (1 - part) + states[after] * part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("manifest", type=Path, nargs="+")
    parser.add_argument("--model", type=Path, help="encoder_model.ort, where the package is not installed")
    wanted = parser.parse_args()
    places: dict[str, list[int]] = {}
    parts: list[np.ndarray] = []
    if (wanted.out / INDEX).exists():
        places, parts = json.loads((wanted.out / INDEX).read_text()), [np.load(wanted.out / STATES)]
    encoder, count = session(wanted.model), sum(len(part) for part in parts)
    names = dict.fromkeys(str(u.audio) for manifest in wanted.manifest for u in read_manifest(manifest))
    try:
        for name in track([name for name in names if name not in places], "listening"):
            samples, rate = read_audio(Path(name))
            states = states_of(resample(mix_down(samples), rate), encoder).astype(np.float16)
            places[name] = [count, len(states)]
            parts.append(states)
            count += len(states)
    finally:  # stopped before its end, it keeps what it has heard
        save(wanted.out, parts, places)
    print(f"{wanted.out}: {len(places)} recordings, {count} states")


def save(folder: Path, parts: list[np.ndarray], places: dict[str, list[int]]) -> None:
    """The index last, and both in one move each: states without an index are no teacher."""
    if not parts:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in (
        (STATES, lambda file: np.save(file, np.concatenate(parts))),
        (INDEX, lambda file: file.write(json.dumps(places).encode())),
    ):
        with (folder / (name + ".unfinished")).open("wb") as file:
            write(file)
        os.replace(folder / (name + ".unfinished"), folder / name)


if __name__ == "__main__":
    try:
        main()
    except HeadsyncError as error:
        raise SystemExit(f"teacher.py: {error}") from None

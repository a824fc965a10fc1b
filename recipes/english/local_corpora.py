"""Add two corpora of local downloads: speechocean762 (English of Mandarin speakers) and strings of single digits.

    python recipes/english/local_corpora.py SPEECHOCEAN762 runs/data/digits

The second folder is the output of `recipes/digits/prepare_digits.py AUDIOMNIST OUT --speech SPEECHOCEAN762`. The script
writes DATA/CORPUS/train.jsonl for these corpora:

- speechocean: the train part without speakers of natural digit strings and without the development speakers of the
  digit recipe. Sentences of four words or more that occur in its test part are left out.
- digits: strings of training speakers (`train-clean`), written as a sentence ("Three one four.").
- digits-hard: degraded strings (`train-hard`), for the digit model alone: the text leaves out other speech. `label.py`
  does not read them, so the English model is not trained on them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import soundfile as sf
import soxr
from score import normalised
from speech import DATA, RATE

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "digits"))

Row = dict[str, object]


def speechocean(folder: Path) -> Iterator[Row]:
    """Utterances of training speakers, converted to FLAC."""
    from digit_corpus import _speech_of, read_kaldi

    spoken = {part: read_kaldi(folder, part) for part in ("train", "test")}
    held_out = {normalised(one.text) for one in spoken["test"] if len(one.text.split()) >= 4}
    for one in _speech_of(spoken, "train"):
        if normalised(one.text) in held_out:
            continue
        target = DATA / "speechocean/audio" / f"{one.id}.flac"
        if not target.is_file():
            samples, rate = sf.read(one.audio, dtype="float32")
            target.parent.mkdir(parents=True, exist_ok=True)
            sf.write(target, soxr.resample(samples, rate, RATE), RATE)
        row = {"id": f"speechocean-{one.id}", "audio": str(target), "seconds": sf.info(target).duration}
        yield row | {"speaker": f"speechocean-{one.speaker}", "text": one.text, "source": "speechocean762"}


def digits(manifest: Path) -> Iterator[Row]:
    """Strings of training speakers."""
    for line in manifest.read_text().splitlines():
        row = json.loads(line)
        audio = (manifest.parent / row["audio"]).resolve()
        text = f"{row['text'].capitalize()}."
        known = {"id": f"digits-{row['id']}", "audio": str(audio), "seconds": sf.info(audio).duration}
        yield known | {"speaker": f"audiomnist-{row.get('speaker', '')}", "text": text, "source": "AudioMNIST"}


def write(corpus: str, rows: Iterator[Row], licence: str) -> None:
    """DATA/CORPUS/train.jsonl."""
    path = DATA / corpus / "train.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [row | {"licence": licence} for row in rows]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in lines))
    print(f"{corpus}: {len(lines)} utterances, {sum(float(str(r['seconds'])) for r in lines) / 3600:.2f} h")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("speechocean", type=Path)
    parser.add_argument("digits", type=Path)
    arguments = parser.parse_args()
    write("speechocean", speechocean(arguments.speechocean), "free (speechocean762's README)")
    write("digits", digits(arguments.digits / "train-clean.jsonl"), "MIT")
    write("digits-hard", digits(arguments.digits / "train-hard.jsonl"), "MIT")


if __name__ == "__main__":
    main()

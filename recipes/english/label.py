"""Read training speech with the teachers and write texts with case and punctuation.

    python recipes/english/label.py tiny librispeech commonvoice harpervalley commonvoice-v1 unlabelled
    python recipes/english/label.py base librispeech ...
    python recipes/english/label.py merge               # LABELS/train.jsonl from both readings and the references
    python recipes/english/label.py figures             # agreement per corpus
    python recipes/english/label.py tiny librispeech commonvoice harpervalley --dev 100   # to measure with, no training

`tiny` and `base` write LABELS/CORPUS-TEACHER.jsonl (--dev: CORPUS-dev-TEACHER.jsonl): id, tokens and text. A run that
was stopped continues after the last line. The policies of `merge`:

- A corpus whose text has case and punctuation (Common Voice, digits) keeps it, read or not.
- Other references get the formatting of the teacher that is nearer to them: a word of the reference that the teacher
  also has (same letters; "Mr." counts as "mister") is written as the teacher writes it, with its punctuation; every
  other word stays in lower case. The first word is capitalised. An utterance of four words or more of
  which each teacher misses more than 80 % is dropped: its segmentation, text or audio is damaged.
- Speech without reference is kept if the normalised readings of tiny and base differ by at most 10 % of the words;
  base's text is used. Sentences of dev or test are dropped.
- Numbers are written in words ("twenty-three"), never in digits: a reference in words stays in words, and an utterance
  whose final text has a digit is dropped.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from moonshine import BOS, EOS, Decoder, Encoder, Tokenizer, file, frames_of
from score import normalised, word_errors
from speech import LABELS, Utterance, batches, fixed_subset, has_manifest, levelled, padded, read_manifest, samples_of

CORPORA = ("librispeech", "commonvoice", "harpervalley", "commonvoice-v1", "unlabelled", "speechocean", "digits")
FORMATTED = ("commonvoice", "digits")
SHARD = 768  # utterances sorted by length together
AGREEMENT, DAMAGED, FEW = 0.10, 0.80, 4
BASE_LAYERS, BASE_HEADS, BASE_HEAD = 8, 8, 52
TITLES = {"mr": "mister", "mrs": "missus", "dr": "doctor"}  # the teacher's "Mr." is the reference's "mister"
Reader = Callable[[list[np.ndarray]], list[list[int]]]


def tiny_reader() -> Reader:
    """Float tiny in torch; rows are padded and masked, so results do not depend on the batch."""
    encoder, decoder = Encoder.pretrained().eval(), Decoder.pretrained().eval()

    @torch.no_grad()
    def read(rows: list[np.ndarray]) -> list[list[int]]:
        samples, lengths = padded(rows)
        frames = torch.tensor([frames_of(int(n)) for n in lengths])
        return decoder.greedy(encoder.whole(samples, lengths), frames)

    return read


def base_reader() -> Reader:
    """Int8 base in ONNX Runtime. It has no mask: rows are padded with up to some tenths of a second of silence."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    encoder, decoder = (
        ort.InferenceSession(file(f"base/{name}.onnx"), options) for name in ("encoder_model", "decoder_model_merged")
    )
    names = [i.name for i in decoder.get_inputs() if i.name.startswith("past_key_values")]
    outputs = [o.name for o in decoder.get_outputs()]

    def read(rows: list[np.ndarray]) -> list[list[int]]:
        samples, _ = padded(rows)
        states = encoder.run(None, {"input_values": samples.numpy()})[0]
        B, limit = len(rows), max(4, int(6.5 * samples.shape[1] / 16_000))
        past: dict[str, Any] = {n: np.zeros((B, BASE_HEADS, 0, BASE_HEAD), np.float32) for n in names}
        tokens, ended = np.full((B, 1), BOS), np.zeros(B, bool)
        read: list[list[int]] = [[] for _ in range(B)]
        for step in range(limit):
            feed = {"input_ids": tokens, "encoder_hidden_states": states, "use_cache_branch": np.array([step > 0])}
            found = dict(zip(outputs, decoder.run(None, feed | past), strict=True))
            new = {n: found[n.replace("past_key_values", "present")] for n in names}
            past |= {n: value for n, value in new.items() if "decoder" in n or step == 0}
            tokens = found["logits"][:, -1].argmax(-1)[:, None]
            ended |= tokens[:, 0] == EOS
            if ended.all():
                break
            for b in np.flatnonzero(~ended):
                read[b].append(int(tokens[b, 0]))
        return read

    return read


READERS = {"tiny": (tiny_reader, 240.0), "base": (base_reader, 120.0)}


def shards(utterances: Sequence[Utterance], done: set[str], seconds: float) -> Iterator[list[list[Utterance]]]:
    """The utterances left to read, as shards of batches."""
    utterances = [u for u in utterances if u.id not in done and u.seconds >= 0.4]
    for start in range(0, len(utterances), SHARD):
        yield list(batches(utterances[start : start + SHARD], seconds))


def label(teacher: str, corpus: str, dev: int) -> None:
    """Append the readings of a corpus (or of `dev` utterances of its development set) to its file."""
    path = LABELS / (f"{corpus}-dev-{teacher}.jsonl" if dev else f"{corpus}-{teacher}.jsonl")
    utterances = fixed_subset(read_manifest(corpus, "dev"), dev) if dev else read_manifest(corpus, "train")
    path.parent.mkdir(parents=True, exist_ok=True)
    done = set(readings(path))
    build, seconds = READERS[teacher]
    read, tokenizer, processed, began = build(), Tokenizer(), 0.0, time.monotonic()
    with path.open("a") as out:
        for shard in shards(utterances, done, seconds):
            for batch in shard:
                tokens = read([levelled(samples_of(u)) for u in batch])
                for utterance, row in zip(batch, tokens, strict=True):
                    line = {"id": utterance.id, "text": tokenizer.decode(row), "tokens": row}
                    out.write(json.dumps(line, ensure_ascii=False) + "\n")
                processed += sum(u.seconds for u in batch)
            out.flush()
            rate = (time.monotonic() - began) / processed
            print(f"{corpus} {teacher}: {processed / 3600:.2f} h read, {rate:.4f} x real time", flush=True)


def readings(path: Path) -> dict[str, dict[str, Any]]:
    """Lines of a label file by id; a broken last line is left out."""
    found = {}
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[row["id"]] = row
    return found


def _letters(word: str) -> str:
    """The letters by which two words are compared."""
    letters = re.sub(r"[^a-z']", "", word.lower())
    return TITLES.get(letters, letters)


def formatted(reference: str, teacher: str) -> str:
    """The reference's words; those that the teacher also has get its formatting."""
    wanted, given = reference.lower().split(), [w for w in teacher.split() if _letters(w)]
    match = difflib.SequenceMatcher(None, [_letters(w) for w in wanted], [_letters(w) for w in given], autojunk=False)
    words = list(wanted)
    for block in match.get_matching_blocks():
        words[block.a : block.a + block.size] = given[block.b : block.b + block.size]
    text = " ".join(words)
    return text[:1].upper() + text[1:]


def difference(a: str, b: str) -> float:
    """Word differences of two texts relative to the first, after normalisation."""
    errors, words = word_errors(a, b)
    return errors / max(1, words)


def final_text(corpus: str, utterance: Utterance, tiny: str | None, base: str | None) -> tuple[str | None, str]:
    """The training text, or None, and the decision."""
    if tiny is None:
        text, how = utterance.text or "", "reference, not read"
    elif utterance.text is None:
        if base is None or difference(base, tiny) > AGREEMENT or not normalised(base):
            return None, "teachers differ"
        text, how = base, "teachers agree"
    else:
        reference = utterance.text
        nearer = min((t for t in (tiny, base) if t is not None), key=lambda t: difference(reference, t))
        if len(reference.split()) >= FEW and difference(reference, nearer) > DAMAGED:
            return None, "damaged"
        text, how = (reference, "reference") if corpus in FORMATTED else (formatted(reference, nearer), "formatted")
    return (None, "digits") if re.search(r"\d", text) else (text, how)


def held_out_sentences() -> set[str]:
    """Normalised sentences of dev and test with four words or more."""
    found = {normalised(u.text or "") for c in CORPORA[:3] for s in ("dev", "test") for u in read_manifest(c, s)}
    return {text for text in found if len(text.split()) >= 4}


def merge() -> None:
    """Write LABELS/train.jsonl: the manifest's fields with the final text, tokens of tiny and the corpus."""
    held_out, decided = held_out_sentences(), Counter[str]()
    part = LABELS / "train.jsonl.part"
    with part.open("w") as out:
        for corpus in filter(has_manifest, CORPORA):
            tiny, base = (readings(LABELS / f"{corpus}-{t}.jsonl") for t in READERS)
            for utterance in read_manifest(corpus, "train"):
                if utterance.id not in tiny and corpus not in FORMATTED:
                    decided[f"{corpus}: not read yet"] += 1
                    continue
                first, second = (read.get(utterance.id, {}).get("text") for read in (tiny, base))
                text, how = final_text(corpus, utterance, first, second)
                if text is not None and normalised(text) in held_out:
                    text, how = None, "sentence of dev or test"
                decided[f"{corpus}: {how}"] += 1
                if text is not None:
                    row = asdict(utterance) | {"audio": str(utterance.audio), "text": text}
                    row |= {"corpus": corpus, "label": how}
                    out.write(json.dumps(row, ensure_ascii=False) + "\n")
    part.replace(LABELS / "train.jsonl")
    print(json.dumps(decided, indent=1, sort_keys=True))


def figures() -> None:
    """Word differences per corpus: teachers against the reference and against each other."""
    print("| corpus | utterances read | tiny / reference | base / reference | tiny / base |\n|---|---|---|---|---|")
    for corpus in filter(has_manifest, CORPORA):
        tiny, base = (readings(LABELS / f"{corpus}-{t}.jsonl") for t in READERS)
        texts = {u.id: u.text for u in read_manifest(corpus, "train")}
        cells = []
        for first, second in ((texts, tiny), (texts, base), (base, tiny)):
            pairs = []
            for key in list(second)[:3000]:
                wanted = first.get(key)
                wanted = wanted["text"] if isinstance(wanted, dict) else wanted
                if wanted is not None:
                    pairs.append(word_errors(wanted, second[key]["text"]))
            words = sum(n for _, n in pairs)
            cells.append(f"{100 * sum(e for e, _ in pairs) / words:.1f} %" if words else "")
        print(f"| {corpus} | {len(tiny)}, {len(base)} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=[*READERS, "merge", "figures"])
    parser.add_argument("corpora", nargs="*", choices=[[], *CORPORA])
    parser.add_argument("--dev", type=int, default=0, help="read this number of development utterances instead")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command == "merge":
        merge()
    elif arguments.command == "figures":
        figures()
    for corpus in arguments.corpora if arguments.command in READERS else ():
        label(arguments.command, corpus, arguments.dev)


if __name__ == "__main__":
    main()

"""Harnesses of text files: ARPA, recipes, manifests, Kaldi folders, tables, transcripts."""

from __future__ import annotations

import gzip
import shutil
from contextlib import suppress

import numpy as np
import soundfile

from fuzz.harness import Harness, scratch, sections, written
from headsync.config import Config
from headsync.corpora import kaldi, table
from headsync.corpora.manifest import read_manifest
from headsync.lm.arpa import ArpaModel
from headsync.recipe import build, dump, load_config, read_toml
from headsync.text.vocabulary import Vocabulary

ARPA = rb"""\data\
ngram 1=5
ngram 2=2

\1-grams:
-1.0	<s>	-0.3
-0.7	</s>
-0.5	one	-0.2
-0.6	two	-0.1
-2.0	<unk>

\2-grams:
-0.2	<s> one
-0.3	one two

\end\
"""
RECIPE = b"""kind = "recogniser"
[network]
width = 16
heads = 2
dropout = 0.1
[decoder]
energy_bias = "none"
[training]
speeds = "0.9 1.0"
seed = 3
"""
MANIFEST = b"""{"id": "a", "audio": "a.wav", "text": "one two", "seconds": 1.5, "speaker": "s"}
{"id": "b", "audio": "b.wav", "text": "", "seconds": 2}
"""
KALDI = b"""a a.wav
b cat a.wav |
c sox -t wav a.wav - |
%%
u one two
v three
%%
u s1
v s2
%%
u a 0.0 0.2
v b 0.1 0.3
"""
TABLE = b'path,text,speaker\na.wav,"one two",s\nb.wav,three,t\n'


def parse_arpa(data: bytes) -> None:
    """A model that loads also scores: all rows are probabilities."""
    suffix = ".arpa.gz" if data[:2] == b"\x1f\x8b" else ".arpa"
    model = ArpaModel.load(written("model" + suffix, data), Vocabulary("words", ("one", "two")))
    scores, _ = model.step(np.array([1, 2]), model.start(2))
    assert scores.shape == (2, 4)
    assert not np.isnan(scores).any()


def parse_recipe(data: bytes) -> None:
    """A recipe that loads is written and read back as the same."""
    recipe, override = sections(data, 2)
    override_text = override.decode("utf-8", "replace")
    config = load_config(written("recipe.toml", recipe), [override_text] if override_text else [])
    again = build(Config, read_toml(written("again.toml", dump(config).encode()), "missing"), "again")
    assert dump(again) == dump(config)


def parse_manifest(data: bytes) -> None:
    """An utterance that is read can be looked for and shown."""
    for utterance in read_manifest(written("list.jsonl", data)):
        with suppress(OSError):  # the name is too long; the command reports it
            utterance.audio.is_file()
        f"{utterance.id}{utterance.text}{utterance.speaker}".encode()


def prepare_kaldi(data: bytes) -> None:
    names = ("wav.scp", "text", "utt2spk", "segments")
    for name, part in zip(names, sections(data, 4), strict=True):
        written(f"kaldi/{name}", part)
        if name in ("utt2spk", "segments") and not part:
            (scratch() / "kaldi" / name).unlink()
    _recording("kaldi/a.wav")
    shutil.rmtree(scratch() / "out", ignore_errors=True)
    with suppress(OSError):  # the command says it in one sentence
        kaldi.prepare(scratch() / "kaldi", scratch() / "out")


def prepare_table(data: bytes) -> None:
    _recording("a.wav")
    shutil.rmtree(scratch() / "out", ignore_errors=True)
    with suppress(OSError):  # the command says it in one sentence
        table.prepare(written("list.csv", data), scratch() / "out")


def _recording(name: str) -> None:
    if not (scratch() / name).exists():
        soundfile.write(scratch() / name, np.zeros(4000, np.float32), 8000)


TEXTS = {
    "arpa": Harness(
        parse_arpa,
        lambda: [ARPA, gzip.compress(ARPA, mtime=0), ARPA.replace(b"-0.2", b"nan")],
        rb"\data\ \1-grams: \2-grams: \end\ ngram <unk> </s> <s> -inf nan".split(),
    ),
    "recipe": Harness(
        parse_recipe,
        lambda: [RECIPE, RECIPE + b"\n%%\ntraining.seed=2", b'extends = "recipe.toml"\n', b'kind = "lm"\n[language]'],
        b"extends= [endpoint] [decoding] [language] inf nan 1e400 [[ {a= 1979-05-27 pause_seconds=".split(),
    ),
    "manifest": Harness(
        parse_manifest,
        lambda: [MANIFEST, MANIFEST[:-1]],
        [b"[" * 64, *rb'"seconds": 1e400 NaN \u0000 \ud800'.split()],
    ),
    "kaldi": Harness(
        prepare_kaldi,
        lambda: [KALDI, KALDI.split(b"\n%%\n")[0]],
        [b"\n%%\n", b" |", b"flac -cd ", *b"inf nan '".split()],
    ),
    "table": Harness(
        prepare_table,
        lambda: [TABLE, TABLE.replace(b",", b"\t"), b"a.wav;one"],
        [b'"', b"\t", b";", b"\x00", b"audio_filepath"],
    ),
}

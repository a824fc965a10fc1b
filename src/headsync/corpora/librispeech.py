"""LibriSpeech: the public tree PART/SPEAKER/CHAPTER/*.flac with a list of transcripts in each chapter.

Any subset of it, parts of Mini LibriSpeech, and incomplete parts are accepted. Texts are kept as published, in upper
case; the BPE model of the published recipe (5000 pieces) is trained with the recogniser. As in ESPnet, train.jsonl and
dev.jsonl omit the longest utterances; the manifests of the parts contain them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from headsync.corpora.audio_files import check_at_rate
from headsync.corpora.manifest import Progress, read_manifest, write_manifest, write_text
from headsync.corpora.preparation import CorpusEntry, Expected, Part, ProblemKind, write_parts
from headsync.corpora.report import CorpusReport, finish, refuse_other_corpus
from headsync.corpora.transcripts import read_transcripts
from headsync.errors import DataError

_RATE = 16_000
PIECES = 5_000
SECONDS, CHARACTERS = 30.0, 400  # utterances of train.jsonl and dev.jsonl are shorter: ESPnet

_EXPECTED = {
    "train-clean-100": Expected(28_539, 251),
    "train-clean-360": Expected(104_014, 921),
    "train-other-500": Expected(148_688, 1_166),
    "dev-clean": Expected(2_703, 40),
    "dev-other": Expected(2_864, 33),
    "test-clean": Expected(2_620, 40),
    "test-other": Expected(2_939, 33),
}
_NOTE = f"output classes: {PIECES} BPE pieces, learned in training (data.tokens and data.bpe_size of the recipe)."


def prepare(source: Path, out: Path, *, workers: int = 1, progress: Progress | None = None) -> CorpusReport:
    """Write a manifest to `out` for every part found; the audio stays in place."""
    source, out = Path(source).absolute(), Path(out)
    refuse_other_corpus(out, "librispeech")
    parts = [_part(folder) for folder in _folders(source)]
    prepared = write_parts(parts, out, partial(check_at_rate, _RATE), workers=workers, progress=progress)
    for joined in ("train", "dev"):  # all parts of a kind, also those of earlier runs into this folder
        every = [u for path in sorted(out.glob(f"{joined}-*.jsonl")) for u in read_manifest(path)]
        together = [u for u in every if u.seconds < SECONDS and len(u.text) < CHARACTERS]
        write_manifest(out / f"{joined}.jsonl", together)
        write_text(out / f"lm_{joined}.txt", together)
    return finish("librispeech", source, out, parts, prepared, notes=(_NOTE,))


def _folders(source: Path) -> list[Path]:
    root = source / "LibriSpeech" if (source / "LibriSpeech").is_dir() else source
    folders = sorted(folder for folder in root.iterdir() if folder.is_dir()) if root.is_dir() else []
    found = [folder for folder in folders if any(folder.glob("*/*/*.flac")) or any(folder.glob("*/*/*.trans.txt"))]
    if not found:
        raise DataError(
            f"{source}: found no part of LibriSpeech such as train-clean-100/19/198/19-198.trans.txt; "
            "unpack one from https://www.openslr.org/12 and pass the folder LibriSpeech."
        )
    return found


def _part(folder: Path) -> Part:
    part = Part(folder.name, [], [], _EXPECTED.get(folder.name))
    for chapter in sorted(path for path in folder.glob("*/*") if path.is_dir()):
        _add_chapter(part, chapter)
    return part


def _add_chapter(part: Part, chapter: Path) -> None:
    audio = {path.stem: path for path in sorted(chapter.glob("*.flac"))}
    texts, named = read_transcripts(sorted(chapter.glob("*.trans.txt")), part.name, part.problems)
    speaker = chapter.parent.name
    part.entries.extend(CorpusEntry(name, audio[name], text, speaker) for name, text in texts.items() if name in audio)
    again = "download the part again"
    for name in texts.keys() - audio.keys():
        part.omit(ProblemKind.MISSING_AUDIO, name, f"{chapter}: the recording of this transcript is missing; {again}.")
    for name in audio.keys() - named:
        part.omit(ProblemKind.NO_TRANSCRIPT, name, f"{chapter}: this recording is in no list of transcripts; {again}.")

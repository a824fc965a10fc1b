"""Kaldi lists: the folder form in which many corpora are published, {train,test}/{text,wav.scp,utt2spk}."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from headsync.errors import DataError


class Spoken(NamedTuple):
    """An utterance of such a corpus; the text in lower case."""

    id: str
    audio: Path
    text: str
    speaker: str


def read_kaldi(speech: Path, part: str) -> list[Spoken]:
    """The utterances of one part of a corpus with Kaldi lists."""
    texts, audio, speakers = (_kaldi_list(speech / part / name) for name in ("text", "wav.scp", "utt2spk"))
    found = []
    for name, text in texts.items():
        if name not in audio or name not in speakers:
            raise DataError(f"{speech / part}: {name} is in text but not in wav.scp and utt2spk; fetch them again.")
        path = Path(os.path.abspath(speech / audio[name]))
        if not path.is_file():
            raise DataError(f"{speech / part / 'wav.scp'}: {path} is not there; fetch the recordings as well.")
        found.append(Spoken(name, path, text.lower(), speakers[name]))
    return found


def _kaldi_list(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        raise DataError(
            f"{path}: there is no such list; name a folder with {{train,test}}/{{text,wav.scp,utt2spk}}."
        ) from None
    split = (line.split(maxsplit=1) for line in lines if line.strip())
    return {parts[0]: parts[1].strip() if len(parts) > 1 else "" for parts in split}

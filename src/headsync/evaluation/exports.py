"""Results in the formats of other tools: NIST's sclite (CTM, trn), SimulEval and simulstream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headsync._atomic_write import in_one_move
from headsync.decoding.phrase_text import common_prefix
from headsync.evaluation.latency import Moment
from headsync.evaluation.normalise import Normalisation, normaliser

if TYPE_CHECKING:
    from headsync.evaluation.evaluate import UtteranceResult


def write_ctm(path: Path, results: Sequence[UtteranceResult]) -> None:
    """Write the words, sorted by id as sclite requires: ID CHANNEL START DURATION WORD CONFIDENCE."""
    lines = [
        f"{_name(one.id)} 1 {word.start_seconds:.3f} {max(0.0, word.end_seconds - word.start_seconds):.3f} "
        f"{word.text} {word.confidence:.3f}\n"
        for one in sorted(results, key=lambda one: _name(one.id))
        for word in one.final_words
    ]
    _write(path, lines)


def write_trn(folder: Path, results: Sequence[UtteranceResult], normalisation: Normalisation = "none") -> None:
    """Write ref.trn and hyp.trn to a folder, normalised, for `sclite -r ref.trn -h hyp.trn -i rm`."""
    normalise = normaliser(normalisation)
    for name in ("reference", "hypothesis"):
        lines = [f"{normalise(getattr(one, name))} ({_speaker(one)}-{_name(one.id)})\n".lstrip() for one in results]
        _write(folder / f"{name[:3]}.trn", lines)


def write_simuleval(folder: Path, results: Sequence[UtteranceResult]) -> None:
    """Write instances.log and config.yaml, for `simuleval --score-only --output FOLDER`; times in milliseconds."""
    lines = [
        {
            "index": index,
            "prediction": one.hypothesis,
            "delays": [1000 * moment.audio_seconds for moment in one.settled],
            "elapsed": [1000 * moment.wall_seconds for moment in one.settled],
            "prediction_length": len(one.settled),
            "reference": one.reference,
            "source": [one.id],
            "source_length": 1000 * one.audio_seconds,
        }
        for index, one in enumerate(results)
    ]
    _write(folder / "instances.log", [json.dumps(line) + "\n" for line in lines])
    _write(folder / "config.yaml", ["source_type: speech\n", "target_type: text\n"])


def write_simulstream(folder: Path, results: Sequence[UtteranceResult]) -> None:
    """Write metrics.jsonl, config.yaml, audio.yaml and reference.txt, for simulstream's scorers."""
    lines = [line for number, one in enumerate(results) for line in _simulstream_lines(number, one)]
    audio = [{"wav": f"{_name(one.id)}.wav", "offset": 0.0, "duration": one.audio_seconds} for one in results]
    _write(folder / "metrics.jsonl", [json.dumps(line) + "\n" for line in lines])
    _write(folder / "config.yaml", ["detokenizer_type: simuleval\n", "latency_unit: word\n"])
    _write(folder / "audio.yaml", [json.dumps(audio, indent=1) + "\n"])  # JSON is YAML
    _write(folder / "reference.txt", [one.reference + "\n" for one in results])


def _simulstream_lines(number: int, one: UtteranceResult) -> list[dict[str, object]]:
    """The file name, then for each change of the text the words that it removes and adds."""
    lines: list[dict[str, object]] = [{"id": number, "metadata": {"wav_name": f"{_name(one.id)}.wav"}}]
    before: tuple[str, ...] = ()
    for moment, words in (*one.displayed, (Moment(one.audio_seconds, one.audio_seconds), None)):
        after = before if words is None else words
        kept = len(common_prefix([before, after]))
        lines.append({
            "id": number,
            "total_audio_processed": moment.audio_seconds,
            "computation_time": max(0.0, moment.wall_seconds - moment.audio_seconds),
            "generated_tokens": list(after[kept:]),
            "deleted_tokens": list(before[kept:]),
        })  # fmt: skip
        before = after
    return lines


def _speaker(one: UtteranceResult) -> str:
    return _name(one.speaker).replace("-", "_") or "unknown"


def _name(text: str) -> str:
    """An id without spaces and parentheses, which separate fields."""
    return "".join("_" if sign.isspace() or sign in "()" else sign for sign in text)


def _write(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with in_one_move(path) as unfinished:
        unfinished.write_text("".join(lines), encoding="utf-8")

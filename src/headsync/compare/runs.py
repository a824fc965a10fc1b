"""Train and measure, as far as that has not been done: every result is a file, and a finished one is not repeated.

All systems have the same recipe, data and number of updates, and begin with one encoder, which was trained first with
CTC alone; so what differs between them is the decoder's attention.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from headsync.compare.plan import ENCODER, Comparison, Settings, System, overrides
from headsync.data.manifest import Utterance, read_manifest
from headsync.errors import ConfigError
from headsync.folder import WEIGHTS, write_atomically
from headsync.measure.errors import ErrorCounts
from headsync.measure.evaluate import Report, evaluate, readable
from headsync.recognizer import Recognizer
from headsync.train.loop import train
from headsync.train.placing import placed_words

ALONE = 0.01  # weight of CTC that leaves the decoder to itself; triggered attention needs some

Say = Callable[[str], None]


@dataclass(frozen=True)
class Measured:
    """What a system made of a test: figures, and for each utterance its errors and when its words stood."""

    error_rate: float
    errors: int
    words: int
    cost_ratio: float | None
    real_time_factor: float
    counts: tuple[tuple[int, int], ...]  # errors and words of each utterance
    delays_seconds: tuple[float, ...]  # of words in utterances without an error, against forced alignment
    alone: float | None = None  # error rate of the decoder alone

    @property
    def error_counts(self) -> list[ErrorCounts]:
        return [ErrorCounts(substitutions=errors, words=words) for errors, words in self.counts]


class Runs:
    """The folder of a comparison."""

    def __init__(self, plan: Comparison, say: Say) -> None:
        self.plan, self.say = plan, say
        self.references = cache(self._references)

    def trained(self, name: str, settings: Settings, seed: int = 1) -> Path:
        """The model folder of a system, trained now or earlier."""
        run = self.plan.folder / name / f"seed-{seed}"
        done = run / "done.json"
        wanted = {"settings": dict(settings), "seed": seed}
        if not done.exists() or json.loads(done.read_text(encoding="utf-8"))["run"] != wanted:
            self.say(f"training {name}, seed {seed}")
            began = time.monotonic()
            own = {"training.folder": run, "training.seed": seed, **self._start(name)}
            train(self.plan.recipe, overrides({**settings, **own}), self.say)
            told = {"run": wanted, "seconds": round(time.monotonic() - began, 1)}
            write_atomically(done, json.dumps(told, indent=1).encode())
        return run / "model"

    def encoder(self) -> Path | None:
        """The encoder that all systems begin with, if the plan has one."""
        return None if self.plan.encoder is None else self.trained(ENCODER, self.plan.encoder)

    def measured(self, name: str, model: Path, test: str, settings: Settings, alone: bool = False) -> Measured:
        """A model on a test, streamed; with the decoder alone beside it, if wanted."""
        label = "".join(f"-{key}-{value}" for key, value in settings.items()).replace("/", "_")
        path = model.parent / f"{test}{label}.json"
        stamp = {
            "weights": _stamp(model / WEIGHTS),
            "manifest": _stamp(self.plan.tests[test]),
            "limit": self.plan.limit,
        }
        if self.plan.unit != "words":
            stamp["unit"] = self.plan.unit
        if path.exists():
            told = json.loads(path.read_text(encoding="utf-8"))
            if told.pop("of") == stamp and (told["alone"] is not None or not alone):
                return _measured(told)
        self.say(f"measuring {name} on {test}{label.replace('-', ' ')}")
        result = self._measure(model, test, settings)
        if alone:
            report = self._report(model, test, {**settings, "ctc_weight": ALONE})
            result = replace(result, alone=report.error_rate)
        write_atomically(path, json.dumps({"of": stamp, **vars(result)}).encode())
        return result

    def _start(self, name: str) -> Settings:
        if name == ENCODER or self.plan.encoder is None:
            return {}
        return {"training.encoder_from": self.encoder()}

    def _measure(self, model: Path, test: str, settings: Settings) -> Measured:
        report = self._report(model, test, settings)
        delays: list[float] = []
        for outcome in report.outcomes:
            aligned = self.references(test).get(outcome.id)
            if outcome.counts.errors == 0 and aligned and len(aligned) == len(outcome.settled_seconds):
                delays += [stood - said for stood, said in zip(outcome.settled_seconds, aligned, strict=True)]
        counts = report.counts
        return Measured(
            error_rate=report.error_rate or 0.0,
            errors=counts.errors,
            words=counts.words,
            cost_ratio=report.cost_ratio,
            real_time_factor=report.real_time_factor,
            counts=tuple((outcome.counts.errors, outcome.counts.words) for outcome in report.outcomes),
            delays_seconds=tuple(round(delay, 3) for delay in delays),
        )

    def _report(self, model: Path, test: str, settings: Settings) -> Report:
        recognizer = Recognizer.load(model, **settings)
        return evaluate(recognizer, readable(self._utterances(test), recognizer.vocabulary), unit=self.plan.unit)

    def _utterances(self, test: str) -> list[Utterance]:
        return read_manifest(self.plan.tests[test])[: self.plan.limit or None]

    def _references(self, test: str) -> Mapping[str, tuple[float, ...]]:
        """When each word was said, by the shared encoder's CTC forced to the right text: one judge for all systems."""
        encoder = self.encoder()
        placed = placed_words(encoder, self._utterances(test)) if encoder else {}
        return {name: tuple(word.end_seconds for word in words) for name, words in placed.items()}


def seeds_of(runs: Runs, system: System) -> Iterator[Path]:
    """The models of a system, one for each seed."""
    return (runs.trained(system.name, system.settings, seed) for seed in system.seeds)


def run_only(plan: Comparison, runs: Runs, names: Sequence[str], seeds: Sequence[int] | None = None) -> None:
    """Some systems or choices alone, so that several processes can share the work."""
    known = {system.name: system for system in (*plan.systems, *plan.choices)}
    if lost := [name for name in names if name not in known]:
        raise ConfigError(f'"{lost[0]}" is not the name of a system; there are {", ".join(known)}')
    for system in map(known.__getitem__, names):
        settings = plan.settings_of(system) if system.of else system.settings
        for seed in seeds or system.seeds:
            model = runs.trained(system.name, settings, seed)
            for test in plan.tests:
                runs.measured(system.name, model, test, system.decoding, alone=not system.of)


def _measured(told: dict[str, Any]) -> Measured:
    pairs = {
        name: tuple(tuple(x) if isinstance(x, list) else x for x in told[name]) for name in ("counts", "delays_seconds")
    }
    return Measured(**{**told, **pairs})


def _stamp(path: Path) -> list[int]:
    """Enough to notice that a file is another one."""
    state = path.stat()
    return [state.st_size, state.st_mtime_ns]

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

from headsync.compare.kept import Kept, length, searched, settings_of, write_done
from headsync.compare.plan import ENCODER, Comparison, Settings, System, Training, overrides
from headsync.data.manifest import Utterance, read_manifest
from headsync.errors import ConfigError, TrainingError
from headsync.folder import CONFIG, WEIGHTS
from headsync.measure.errors import ErrorCounts
from headsync.measure.evaluate import Report, evaluate, readable
from headsync.recipe import load_config
from headsync.recognizer import Recognizer
from headsync.train.loop import train
from headsync.train.placing import placed_words
from headsync.writing import write_atomically

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

    def check(self, systems: Sequence[System], seeds: Sequence[int] | None = None) -> None:
        """Before hours of training: what the plan names is there, and the runs that are there are of the plan."""
        for test in self.plan.tests:
            self._utterances(test)
        for system in systems:
            if "lm" in system.decoding and not Path(system.decoding["lm"]).exists():
                raise ConfigError(f'"{system.name}": lm = {system.decoding["lm"]!r}: there is no such language model')
        for training in (training for system in systems for training in self.plan.trainings(system, seeds)):
            self._kept(training)
        if self.plan.encoder is not None:
            self._check_encoder(self._kept(Training(ENCODER, self.plan.encoder)))

    def trained(self, training: Training) -> Path:
        """The model folder of a system, trained now or earlier."""
        kept, model = self._kept(training), self._run(training) / "model"
        if not kept or not kept.is_done:
            self._train(training, kept)
        elif training.name != ENCODER and kept.search_as_wanted():
            self.say(f"{model}: from now on searched as the recipe says now")
        return model

    def encoder(self) -> Path | None:
        """The encoder that all systems begin with, if the plan has one."""
        return None if self.plan.encoder is None else self.trained(Training(ENCODER, self.plan.encoder))

    def measured(self, name: str, model: Path, test: str, settings: Settings, alone: bool = False) -> Measured:
        """A model on a test, streamed; with the decoder alone beside it, if wanted."""
        label = "".join(f"-{key}-{value}" for key, value in settings.items()).replace("/", "_")
        path = model.parent / f"{test}{label}.json"
        stamp = self._stamp(model, test)
        if (found := _found(path, stamp, model / CONFIG)) and (found.alone is not None or not alone):
            return found
        self.say(f"measuring {name} on {test}{label.replace('-', ' ')}")
        result = self._measure(model, test, settings)
        if alone:
            report = self._report(model, test, {**settings, "ctc_weight": ALONE})
            result = replace(result, alone=report.error_rate)
        write_atomically(path, json.dumps({"of": stamp, **vars(result)}).encode())
        return result

    def _run(self, training: Training) -> Path:
        return self.plan.folder / training.name / f"seed-{training.seed}"

    def _train(self, training: Training, kept: Kept | None) -> None:
        if training.name == ENCODER:
            self._check_encoder(kept)
        else:
            self.encoder()
        self.say(f"training {training.name}, seed {training.seed}")
        if kept:
            kept.note_length()
        began, changes = time.monotonic(), self._overrides(training, self.plan.folder)
        train(self.plan.recipe, changes, self.say)
        run = {"settings": dict(training.settings), "seed": training.seed}
        seconds, reached = round(time.monotonic() - began, 1), length(load_config(self.plan.recipe, changes))
        write_done(self._run(training), {"run": run, "seconds": seconds, "length": reached})

    def _overrides(self, training: Training, folder: Path) -> list[str]:
        """What a run has in place of the settings of the recipe, where this is the folder of the comparison."""
        own: dict[str, Any] = {
            "training.folder": folder / training.name / f"seed-{training.seed}",
            "training.seed": training.seed,
        }
        if self.plan.encoder is not None and training.name != ENCODER:
            own["training.encoder_from"] = folder / ENCODER / "seed-1" / "model"
        return overrides({**training.settings, **own})

    def _kept(self, training: Training) -> Kept | None:
        """What there is of a run, which must be of this plan; a comparison may have been moved."""
        run = self._run(training)
        had = settings_of(run)
        if had is None:
            return None
        depth = len(run.relative_to(self.plan.folder).parts)
        folder = Path(*Path(had.training.folder).parts[:-depth])
        kept = Kept(run, had, load_config(self.plan.recipe, self._overrides(training, folder)))
        kept.check()
        return kept

    def _check_encoder(self, kept: Kept | None) -> None:
        """Refuse to train an encoder that systems have begun with already: it would become another one."""
        systems = (*self.plan.systems, *self.plan.choices)
        runs = [self._run(training) for system in systems for training in self.plan.trainings(system)]
        begun = [run for run in runs if settings_of(run)]
        if begun and not (kept and kept.is_done):
            raise TrainingError(
                f"{begun[0]}: began with an encoder that is gone, or is to be trained for longer; give the comparison "
                "another folder, or remove this one and all others that began with it"
            )

    def _stamp(self, model: Path, test: str) -> dict[str, Any]:
        """What a result depends on, beside the settings in its name."""
        stamp = {
            "weights": _file(model / WEIGHTS),
            "manifest": _file(self.plan.tests[test]),
            "limit": self.plan.limit,
            "decoding": searched(model),
        }
        return stamp if self.plan.unit == "words" else {**stamp, "unit": self.plan.unit}

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
    """The models of a system or choice, one for each seed."""
    return map(runs.trained, runs.plan.trainings(system))


def run_only(plan: Comparison, runs: Runs, names: Sequence[str], seeds: Sequence[int] | None = None) -> None:
    """Some systems or choices alone, so that several processes can share the work."""
    known = {system.name: system for system in (*plan.systems, *plan.choices)}
    if lost := [name for name in names if name not in known]:
        raise ConfigError(f'"{lost[0]}" is not the name of a system; there are {", ".join(known)}')
    systems = [known[name] for name in names]
    runs.check(systems, seeds)
    for system in systems:
        for training in plan.trainings(system, seeds):
            model = runs.trained(training)
            for test in plan.tests:
                runs.measured(system.name, model, test, system.decoding, alone=not system.of)


def _found(path: Path, stamp: dict[str, Any], config: Path) -> Measured | None:
    """A result that was written earlier, if it is of the same model and test."""
    if not path.exists():
        return None
    told = json.loads(path.read_text(encoding="utf-8"))
    of = told.pop("of")
    if "decoding" not in of and path.stat().st_mtime_ns >= config.stat().st_mtime_ns:  # as results were once told
        of["decoding"] = stamp["decoding"]
    return _measured(told) if of == stamp else None


def _measured(told: dict[str, Any]) -> Measured:
    pairs = {
        name: tuple(tuple(x) if isinstance(x, list) else x for x in told[name]) for name in ("counts", "delays_seconds")
    }
    return Measured(**{**told, **pairs})


def _file(path: Path) -> list[int]:
    """Enough to notice that a file is another one."""
    state = path.stat()
    return [state.st_size, state.st_mtime_ns]

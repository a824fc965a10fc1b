"""Training and evaluation of the systems of a comparison; finished runs and results are reused.

All systems share recipe, data and number of updates, and start from one encoder trained with CTC alone. They differ in
the attention of the decoder.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from headsync._atomic_write import write_atomically
from headsync.corpora.manifest import Utterance, read_manifest
from headsync.errors import ConfigError, DataError, TrainingError
from headsync.evaluation.alignment import aligned_times, load_aligner
from headsync.evaluation.error_rate import ErrorCounts
from headsync.evaluation.evaluate import EvaluationReport, UtteranceResult, evaluate, readable
from headsync.evaluation.reference_times import WordTimes
from headsync.experiments.plan import ENCODER, Comparison, Settings, System, Training, overrides
from headsync.experiments.reuse import DONE, ExistingRun, length, searched, settings_of
from headsync.model_folder import WEIGHTS
from headsync.recipe import load_config
from headsync.recognizer import Recognizer
from headsync.training import Say, train
from headsync.training.forced_alignment import align_words
from headsync.training.warm_start import write_without_decoder

Curve = Sequence[tuple[int, float]]  # updates and losses

LOG, WITHOUT_DECODER = "log.jsonl", "without-decoder"
ALONE = 0.01  # CTC weight of "decoder alone"; triggered attention requires a weight above 0


@dataclass(frozen=True)
class SystemResult:
    error_rate: float
    errors: int
    words: int
    cost_ratio: float | None
    real_time_factor: float
    counts: tuple[tuple[int, int], ...]  # errors and words of each utterance
    delays_seconds: tuple[float, ...]  # of words, against forced alignment
    alone: float | None = None  # error rate of the decoder alone
    speakers: tuple[str, ...] = ()  # of each utterance
    stops: Mapping[str, float] | None = None  # shares of output steps by what stopped them

    @property
    def error_counts(self) -> list[ErrorCounts]:
        """Errors of each speaker if there are several, else of each utterance: the units of bootstrap intervals."""
        each = [ErrorCounts(substitutions=errors, words=words) for errors, words in self.counts]
        if len(set(self.speakers)) < 2:
            return each
        pairs = list(zip(self.speakers, each, strict=True))
        return [sum((n for who, n in pairs if who == one), ErrorCounts()) for one in dict.fromkeys(self.speakers)]


class Runs:
    """The folder of a comparison."""

    def __init__(self, plan: Comparison, say: Say) -> None:
        self.plan, self.say = plan, say
        self.references = cache(self._references)
        self.word_times = cache(self._word_times)

    def check(self, systems: Sequence[System], seeds: Sequence[int] | None = None) -> None:
        """Check before training that manifests and language models exist, and that existing runs match the plan."""
        for test in self.plan.tests:
            self._utterances(test)
        for system in systems:
            if "lm" in system.decoding and not Path(system.decoding["lm"]).exists():
                lm = system.decoding["lm"]
                raise ConfigError(f'"{system.name}": lm = {lm!r}: no such language model; check the path')
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
            self.say(f"{model}: decoding settings updated from the recipe")
        return model

    def encoder(self) -> Path | None:
        return None if self.plan.encoder is None else self.trained(Training(ENCODER, self.plan.encoder))

    def measured(self, name: str, model: Path, test: str, settings: Settings, alone: bool = False) -> SystemResult:
        """The result of a model on a test set, optionally with that of the decoder alone."""
        label = "".join(f"-{key}-{value}" for key, value in settings.items()).replace("/", "_")
        path = model.parent / f"{test}{label}.json"
        stamp = self._stamp(model, test)
        if (found := _found(path, stamp)) and (found.alone is not None or not alone):
            return found
        self.say(f"measuring {name} on {test}{label.replace('-', ' ')}")
        result = self._measure(model, test, settings)
        if alone:
            report = self._report(model, test, {**settings, "ctc_weight": ALONE})
            result = replace(result, alone=report.error_rate)
        write_atomically(path, json.dumps({"of": stamp, **vars(result)}).encode())
        return result

    def can_tune(self, system: System) -> bool:
        """Whether `tuned` requires no training: another process may be training the first seed."""
        base = self.plan.system(system.of) if system.of else system
        kept = self._kept(self.plan.trainings(base)[0])
        return not self.plan.tune or (kept is not None and kept.is_done)

    def tuned(self, system: System) -> Settings:
        """The decoding settings of a system or choice, from `[tune]`: one after the other, on the first test."""
        if not self.plan.tune:
            return system.decoding
        base = self.plan.system(system.of) if system.of else system
        model, chosen = self.trained(self.plan.trainings(base)[0]), dict[str, Any]()
        for name, values in self.plan.tune.items():
            rates = [
                self.measured(base.name, model, next(iter(self.plan.tests)), {**chosen, name: value}).error_rate
                for value in values
            ]
            chosen[name] = values[rates.index(min(rates))]
        return {**chosen, **system.decoding}

    def _run(self, training: Training) -> Path:
        return self.plan.folder / training.name / f"seed-{training.seed}"

    def _train(self, training: Training, kept: ExistingRun | None) -> None:
        if training.name == ENCODER:
            self._check_encoder(kept)
        elif (encoder := self.encoder()) and training.random_decoder:
            write_without_decoder(encoder, encoder.parent / WITHOUT_DECODER)
        self.say(f"training {training.name}, seed {training.seed}")
        began, changes = time.monotonic(), self._overrides(training, self.plan.folder)
        train(self.plan.recipe, changes, self.say)
        run = {"settings": dict(training.settings), "seed": training.seed}
        seconds, reached = round(time.monotonic() - began, 1), length(load_config(self.plan.recipe, changes))
        done = {"run": run, "seconds": seconds, "length": reached}
        write_atomically(self._run(training) / DONE, json.dumps(done, indent=1).encode())

    def _overrides(self, training: Training, folder: Path) -> list[str]:
        """The settings of a run that override the recipe, for this folder of the comparison."""
        own: dict[str, Any] = {
            "training.folder": folder / training.name / f"seed-{training.seed}",
            "training.seed": training.seed,
        }
        if self.plan.encoder is not None and training.name != ENCODER:
            start = WITHOUT_DECODER if training.random_decoder else "model"
            own["training.start_from"] = folder / ENCODER / "seed-1" / start
        if training.random_decoder:
            own["training.match_updates"] = 0  # there is no decoder to match
        return overrides({**training.settings, **own})

    def _kept(self, training: Training) -> ExistingRun | None:
        """The existing run, checked against the plan; the folder of a comparison may have been moved."""
        run = self._run(training)
        had = settings_of(run)
        if had is None:
            return None
        depth = len(run.relative_to(self.plan.folder).parts)
        folder = Path(*Path(had.training.folder).parts[:-depth])
        kept = ExistingRun(run, had, load_config(self.plan.recipe, self._overrides(training, folder)))
        kept.check()
        return kept

    def _check_encoder(self, kept: ExistingRun | None) -> None:
        """Refuse to train an encoder from which systems have started: it would change."""
        systems = (*self.plan.systems, *self.plan.choices)
        runs = [self._run(training) for system in systems for training in self.plan.trainings(system)]
        begun = [run for run in runs if settings_of(run)]
        if begun and not (kept and kept.is_done):
            raise TrainingError(
                f"{begun[0]}: was trained from an encoder that is missing or would be trained further; set another "
                "folder for the comparison, or delete all runs that started from that encoder"
            )

    def _stamp(self, model: Path, test: str) -> dict[str, Any]:
        """Everything that a result depends on, apart from the settings in its name."""
        stamp = {
            "weights": _file(model / WEIGHTS),
            "manifest": _file(self.plan.tests[test]),
            "limit": self.plan.limit,
            "decoding": searched(model),
        }
        method = {name: getattr(self.plan, name) for name in ("unit", "normalise", "align")}
        return stamp | {name: value for name, value in method.items() if value != getattr(Comparison, name)}

    def _measure(self, model: Path, test: str, settings: Settings) -> SystemResult:
        report = self._report(model, test, settings)
        delays = [delay for outcome in report.outcomes for delay in self._delays(outcome, test)]
        counts = report.counts
        return SystemResult(
            error_rate=report.error_rate or 0.0,
            errors=counts.errors,
            words=counts.words,
            cost_ratio=report.cost_ratio,
            real_time_factor=report.real_time_factor,
            counts=tuple((outcome.counts.errors, outcome.counts.words) for outcome in report.outcomes),
            delays_seconds=tuple(round(delay, 3) for delay in delays),
            speakers=tuple(outcome.speaker for outcome in report.outcomes),
            stops=report.stops,
        )

    def _delays(self, outcome: UtteranceResult, test: str) -> Sequence[float]:
        """User-perceived latencies against an aligner; else, without errors, delays of final words against CTC."""
        if self.plan.align:
            return outcome.delays.user_perceived
        aligned = self.references(test).get(outcome.id)
        if outcome.counts.errors or not aligned or len(aligned) != len(outcome.settled):
            return ()
        return [stays.audio_seconds - said for stays, said in zip(outcome.settled, aligned, strict=True)]

    def _report(self, model: Path, test: str, settings: Settings) -> EvaluationReport:
        recognizer = Recognizer.load(model, **settings)
        utterances = readable(self._utterances(test), recognizer.vocabulary)
        times = self.word_times(test) if self.plan.align else None
        return evaluate(recognizer, utterances, unit=self.plan.unit, normalise=self.plan.normalise, word_times=times)

    def _utterances(self, test: str) -> list[Utterance]:
        return read_manifest(self.plan.tests[test])[: self.plan.limit or None]

    def _word_times(self, test: str) -> WordTimes:
        """The words of a test set by the aligner of the plan, cached beside its manifest."""
        manifest = self.plan.tests[test]
        return aligned_times(
            self._utterances(test), load_aligner(self.plan.align), manifest.with_suffix(f".{self.plan.align}.json")
        )

    def _references(self, test: str) -> Mapping[str, tuple[float, ...]]:
        """The end of each reference word, by forced alignment with the CTC of the shared encoder, for all systems."""
        encoder = self.encoder()
        try:
            placed = align_words(encoder, self._utterances(test)) if encoder else {}
        except DataError as error:
            raise DataError(f"{self.plan.tests[test]}: {error}") from None
        return {name: tuple(word.end_seconds for word in words) for name, words in placed.items()}


def seeds_of(runs: Runs, system: System) -> Iterator[Path]:
    """The models of a system or choice, one for each seed."""
    return map(runs.trained, runs.plan.trainings(system))


def dev_losses(runs: Runs) -> dict[str, Curve]:
    """Updates and dev losses of the first seed of each trained row; runs without a decoder loss are omitted."""
    trained = [s for s in (*runs.plan.systems, *runs.plan.choices) if s.is_trained]
    models = {system.name: next(seeds_of(runs, system)) for system in trained}
    curves = {name: _dev_losses(model.parent / LOG) for name, model in models.items()}
    return {name: curve for name, curve in curves.items() if curve}


def _dev_losses(log: Path) -> Curve:
    entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    found = ((entry["update"], entry.get("dev", {}).get("attention_loss")) for entry in entries)
    return [(update, loss) for update, loss in found if loss is not None]


def run_only(plan: Comparison, runs: Runs, names: Sequence[str], seeds: Sequence[int] | None = None) -> None:
    """Train and evaluate only these systems or choices; several processes can share the work."""
    known = {system.name: system for system in (*plan.systems, *plan.choices)}
    if lost := [name for name in names if name not in known]:
        raise ConfigError(f'"{lost[0]}" is not the name of a system; known here: {", ".join(known)}')
    systems = [known[name] for name in names]
    runs.check(systems, seeds)
    for system in systems:
        for training in plan.trainings(system, seeds):
            model = runs.trained(training)
            if not runs.can_tune(system):
                runs.say(f"{model}: not measured; the search is tuned with the first seed, which is not trained yet")
                continue
            for test in plan.tests:
                runs.measured(system.name, model, test, runs.tuned(system), alone=not system.of)


def _found(path: Path, stamp: dict[str, Any]) -> SystemResult | None:
    """An earlier result, if it is of the same model and test set."""
    if not path.exists():
        return None
    result = json.loads(path.read_text(encoding="utf-8"))
    if result.pop("of") != stamp:
        return None
    lists: dict[str, Any] = {name: tuple(result.pop(name, ())) for name in ("delays_seconds", "speakers")}
    return SystemResult(counts=tuple(tuple(pair) for pair in result.pop("counts")), **lists, **result)


def _file(path: Path) -> list[int]:
    """Size and time of a file, to detect changes."""
    state = path.stat()
    return [state.st_size, state.st_mtime_ns]

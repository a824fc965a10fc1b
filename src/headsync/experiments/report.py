"""The tables of a comparison, in text and in files."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headsync._atomic_write import write_atomically
from headsync.corpora.manifest import Utterance, read_manifest
from headsync.evaluation.error_rate import ErrorCounts, bootstrap_interval
from headsync.evaluation.latency import percentiles
from headsync.evaluation.normalise import normaliser
from headsync.evaluation.plots import AttentionMaps, attention_of
from headsync.experiments.plan import Comparison, Settings, System
from headsync.experiments.runs import Runs, SystemResult, seeds_of
from headsync.experiments.statistics import HeadUsage, head_usage, paired_difference
from headsync.frontend.audio import stream_audio

_SHARED = "All systems start from one encoder, trained with CTC alone, and share data and number of updates."
_DELAY = "Delay: from the end of a word, by forced alignment with the CTC of that encoder, until the word is final."
_PERCEIVED = "Delay: user-perceived latency, from the end of a word by forced alignment with {}."
_ALONE = "Decoder alone: a CTC weight of 0.01 in the search."
_LOOKED_AT = 20  # utterances for the table of heads


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        lines = [self.columns, ("---",) * len(self.columns), *self.rows]
        notes = "".join(f"\n- {note}" for note in self.notes)
        rows = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        return f"### {self.title}\n\n{rows}" + (notes and notes + "\n")

    def csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue()


class Row(NamedTuple):
    """A system on one test set, with all of its seeds."""

    system: System
    seeds: Sequence[SystemResult]

    @property
    def rate(self) -> float:
        return statistics.mean(one.error_rate for one in self.seeds)

    @property
    def counts(self) -> list[ErrorCounts]:
        """Errors of each utterance, summed over seeds."""
        return [sum(these, ErrorCounts()) for these in zip(*(one.error_counts for one in self.seeds), strict=True)]


def _systems_table(plan: Comparison, runs: Runs, test: str) -> Table:
    """Systems and their errors, as in Tables 1 to 3 of the paper."""
    rows = [_measured(runs, system, test, runs.tuned(system), alone=True) for system in plan.systems]
    columns = ("system", "errors", "95 %", "seeds", "decoder alone", "r", "delay, median / 95 %", "RTF", "the paper's")
    notes = [_SHARED, _PERCEIVED.format(plan.align) if plan.align else _DELAY] if plan.encoder is not None else []
    notes += [_ALONE, *_search_notes(plan, runs)]
    notes += ["Errors are character errors without spaces."] if plan.unit == "characters" else []
    return Table(
        f"systems-{test}", f"{plan.title}: systems on {test}", columns, tuple(_row(row) for row in rows),
        (*notes, *differences(rows)),
    )  # fmt: skip


def _sweep_table(plan: Comparison, runs: Runs, test: str) -> Table:
    """Lower thresholds without training, as in Table 4 of the paper."""
    cells: list[tuple[str, ...]] = []
    for name in plan.sweep:
        system = plan.system(name)
        for share in plan.shares:
            settings = {**runs.tuned(system), **({} if share == 1 else {"threshold": share})}
            row = _measured(runs, system, test, settings, share == 1)
            cells.append((name, f"{share:g}", _percent(row.rate), _interval(row), _ratio(row), _stops(row)))
    columns = ("system", "share of the full threshold", "errors", "95 %", "r", "steps ended by threshold / M / end")
    return Table(f"sweep-{test}", f"{plan.title}: lower thresholds on {test}", columns, tuple(cells))


def _choices_table(plan: Comparison, runs: Runs, test: str) -> Table:
    """A system and its variants, with one seed each."""
    cells = []
    for base in dict.fromkeys(choice.of for choice in plan.choices):
        plain = next(seeds_of(runs, plan.system(base)))
        own = runs.measured(base, plain, test, runs.tuned(plan.system(base)), alone=True)
        cells.append(_choice(System(f"{base} as above"), own, own))
        for choice in (choice for choice in plan.choices if choice.of == base):
            model = next(seeds_of(runs, choice))
            cells.append(_choice(choice, runs.measured(choice.name, model, test, runs.tuned(choice)), own))
    columns = ("choice", "errors", "fewer than the first row (95 %)", "r", "delay, median / 95 %")
    note = "One seed each. A difference whose interval contains 0 may be chance."
    return Table(f"choices-{test}", f"{plan.title}: choices on {test}", columns, tuple(cells), (note,))


def _heads_table(plan: Comparison, runs: Runs, test: str) -> tuple[Table, list[AttentionMaps]]:
    """How the heads of the top layer share attention, and one utterance to draw."""
    utterances = read_manifest(plan.tests[test])[:_LOOKED_AT]
    maps = {name: _heads(runs, plan.system(name), utterances) for name in plan.figure}
    cells = [
        (name, *_shares([head_usage(one.weights_NHLT[-1]) for one in found.values()]), str(len(found)))
        for name, found in maps.items()
        if found
    ]
    both = [u.id for u in utterances if all(u.id in found for found in maps.values())]
    chosen = max(both, key=lambda name: len(maps[plan.figure[0]][name].labels), default=None)
    drawn = [found[chosen] for found in maps.values()] if chosen else []
    columns = ("system", "mass of each head", "evenness", "overlap of two heads", "utterances")
    notes = (
        "Evenness: 1 if all heads have the same share of the attention, 1/H if one head has all of it.",
        "Overlap: 1 if two heads attend to the same frames, 0 if they have no frame in common.",
    )
    return Table(
        f"heads-{test}", f"{plan.title}: heads of the top layer on {test}", columns, tuple(cells), notes
    ), drawn


def _heads(runs: Runs, system: System, utterances: Sequence[Utterance]) -> dict[str, AttentionMaps]:
    """Attention of the first seed, for utterances that it recognised without error as one utterance."""
    model = str(next(seeds_of(runs, system)))
    found = {u.id: attention_of(model, stream_audio(u.audio)) for u in utterances}
    normalise = normaliser(runs.plan.normalise)
    texts = {u.id: normalise(u.text) for u in utterances}
    return {name: those[0] for name, those in found.items() if [normalise(one.text) for one in those] == [texts[name]]}


def _measured(runs: Runs, system: System, test: str, settings: Settings, alone: bool) -> Row:
    return Row(system, [runs.measured(system.name, model, test, settings, alone) for model in seeds_of(runs, system)])


def _search_notes(plan: Comparison, runs: Runs) -> list[str]:
    """The settings that were chosen for each system."""
    if not plan.tune:
        return []
    settings = {system.name: runs.tuned(system).items() for system in plan.systems}
    chosen = [f"{name} " + " ".join(f"{key} {value}" for key, value in found) for name, found in settings.items()]
    return [f"Search settings with the lowest error rate on {next(iter(plan.tests))}: {'; '.join(chosen)}."]


def _row(row: Row) -> tuple[str, ...]:
    delays = [delay for one in row.seeds for delay in one.delays_seconds]
    return (
        row.system.name,
        _percent(row.rate),
        _interval(row),
        ", ".join(_percent(one.error_rate) for one in row.seeds) if len(row.seeds) > 1 else "1",
        _percent(statistics.mean(one.alone or 0.0 for one in row.seeds)),
        _ratio(row),
        _delays(delays),
        f"{statistics.mean(one.real_time_factor for one in row.seeds):.3f}",
        row.system.paper or "-",
    )


def _choice(choice: System, measured: SystemResult, base: SystemResult) -> tuple[str, ...]:
    gap = paired_difference(measured.error_counts, base.error_counts)
    difference = "-" if measured is base else f"{_change(gap.points)} ({_change(gap.low)} to {_change(gap.high)})"
    ratio = "-" if measured.cost_ratio is None else f"{measured.cost_ratio:.2f}"
    return choice.name, _percent(measured.error_rate), difference, ratio, _delays(measured.delays_seconds)


def differences(rows: Sequence[Row]) -> list[str]:
    """The last system against each of the others."""
    *others, subject = rows
    lines = []
    for other in others:
        same = min(len(subject.seeds), len(other.seeds))
        ours, theirs = (Row(row.system, row.seeds[:same]).counts for row in (subject, other))
        gap = paired_difference(ours, theirs)
        verdict = "more than chance" if gap.is_more_than_chance else "may be chance"
        points, low, high = (-gap.points, -gap.high, -gap.low)  # negative is better
        lines.append(
            f"{subject.system.name} against {other.system.name}: {_change(points)} errors "
            f"({_change(low)} to {_change(high)}; {verdict})"
        )
    return lines


def _shares(these: Sequence[HeadUsage]) -> tuple[str, str, str]:
    mass = [statistics.mean(one.mass_H[h] for one in these) for h in range(len(these[0].mass_H))]
    return (
        " ".join(f"{m:.2f}" for m in mass),
        f"{statistics.mean(one.spread for one in these):.2f}",
        f"{statistics.mean(one.overlap for one in these):.2f}",
    )


def _interval(row: Row) -> str:
    interval = bootstrap_interval(row.counts)
    return f"{interval.low:.2%} to {interval.high:.2%}" if interval else "-"


def _ratio(row: Row) -> str:
    ratios = [one.cost_ratio for one in row.seeds if one.cost_ratio is not None]
    return f"{statistics.mean(ratios):.2f}" if ratios else "-"


def _stops(row: Row) -> str:
    found = [one.stops for one in row.seeds if one.stops]
    names = list(found[0]) if found else []
    return " / ".join(f"{statistics.mean(one[name] for one in found):.0%}" for name in names) or "-"


def _delays(delays: Sequence[float]) -> str:
    found = percentiles(delays)
    return f"{found.p50:.2f} / {found.p95:.2f} s" if found else "-"


def _percent(rate: float) -> str:
    return f"{rate:.2%}"


def _change(points: float) -> str:
    return f"{points:+z.2%}"  # z: no minus for zero


def report(plan: Comparison, runs: Runs) -> tuple[list[Table], list[AttentionMaps]]:
    runs.check((*plan.systems, *plan.choices))
    first = next(iter(plan.tests))
    tables = [_systems_table(plan, runs, test) for test in plan.tests]
    if plan.sweep:
        tables += [_sweep_table(plan, runs, test) for test in plan.tests]
    if plan.choices:
        tables.append(_choices_table(plan, runs, first))
    if not plan.figure:
        return tables, []
    heads, drawn = _heads_table(plan, runs, first)
    return [*tables, heads], drawn


def write_tables(tables: Sequence[Table], folder: Path) -> Path:
    """Write all tables to `tables.md`, and each to a CSV file."""
    for table in tables:
        write_atomically(folder / f"{table.name}.csv", table.csv().encode())
    path = folder / "tables.md"
    write_atomically(path, "\n".join(table.markdown() for table in tables).encode())
    return path

"""ARPA files written for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reference.arpa import Table


def write_arpa(path: Path, table: Table) -> Path:
    """The file of a table of n-grams; the longest ones get no back-off."""
    orders = max(len(gram) for gram in table)
    lines = ["made for a test", "", "\\data\\"]
    lines += [f"ngram {n}={sum(len(gram) == n for gram in table)}" for n in range(1, orders + 1)]
    for n in range(1, orders + 1):
        lines += ["", f"\\{n}-grams:"]
        for gram, (log_p, back_off) in table.items():
            if len(gram) == n:
                lines.append(f"{log_p!r}\t{' '.join(gram)}" + (f"\t{back_off!r}" if n < orders else ""))
    path.write_text("\n".join([*lines, "", "\\end\\", ""]), encoding="utf-8")
    return path


def random_table(words: Sequence[str], orders: int, seed: int) -> Table:
    """A normalised model: after each known context, all probabilities, including back-off, sum to one."""
    rng = np.random.default_rng(seed)
    said = [*words, "</s>"]
    table: dict[tuple[str, ...], tuple[float, float]] = {}
    table |= {
        (word,): (float(np.log10(p)), 0.0) for word, p in zip(said, rng.dirichlet(np.ones(len(said))), strict=True)
    }
    table["<s>",] = (-99.0, 0.0)
    known = [("<s>",), *((word,) for word in words)]
    for _ in range(1, orders):
        longer = []
        for context in known:
            chosen = rng.choice(len(said), rng.integers(1, len(said)), replace=False)
            _add_context(table, context, [said[n] for n in chosen], rng)
            longer += [(*context, said[n]) for n in chosen if said[n] != "</s>"]
        known = [longer[n] for n in rng.permutation(len(longer))[:12]]
    return table


def _add_context(
    table: dict[tuple[str, ...], tuple[float, float]],
    context: tuple[str, ...],
    said: list[str],
    rng: np.random.Generator,
) -> None:
    from reference.arpa import log_p

    seen = rng.dirichlet(np.ones(len(said))) * rng.uniform(0.3, 0.9)
    shorter = sum(np.exp(log_p(table, context[1:], word)) for word in said)
    table[context] = (table[context][0], float(np.log10((1 - seen.sum()) / (1 - shorter))))
    for word, p in zip(said, seen, strict=True):
        table[*context, word] = (float(np.log10(p)), 0.0)

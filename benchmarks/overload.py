"""A server that is offered more streams than it can serve: how many are refused, how soon, and the delay of the others.

    python benchmarks/overload.py [--model NAME_OR_FOLDER] [--workers 2] [--seconds 30] [--out FILE.jsonl] [--plot FILE]

First the capacity is measured: the largest number of streams whose added delay has a 95th percentile of at most 0.3 s,
found by doubling from --first and then by bisection to 10 %. Then a server with this limit is offered 0.5, 1, 2, 5 and
10 times as many streams. `load.py` describes the measurement; run it on an idle computer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from load import LATE_SECONDS, Script, late, measure, print_row, scripts, server, warm_up

MOST_STREAMS = 1000  # files that a process may open
Row = dict[str, float]


def capacity(given: argparse.Namespace, made: list[Script]) -> int:
    """The largest number of streams without delay; 0 if the first number is too large."""
    good, bad, first = 0, MOST_STREAMS, True
    with server(given.model, MOST_STREAMS, not given.no_batching, given.workers) as served:
        warm_up(served, made)
        while bad - good > max(1, good // 10):
            row = measure(served, made, min(given.first if not good else 2 * good, (good + bad) // 2))
            print_row(row, first)
            count, first = int(row["streams"]), False
            good, bad = (good, count) if late(row) else (count, bad)
            if not good:
                break
    return good


def offer(given: argparse.Namespace, made: list[Script], limit: int) -> list[Row]:
    """The rows of a server with this limit of streams in each process."""
    rows: list[Row] = []
    with server(given.model, limit, not given.no_batching, given.workers) as served:
        warm_up(served, made)
        for factor in given.factors:
            rows.append(measure(served, made, max(1, round(factor * limit * given.workers))))
            print_row(rows[-1], len(rows) == 1)
            if given.out:
                with given.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"limit": limit * given.workers, **rows[-1]}) + "\n")
    return rows


def plot(rows: Sequence[Row], limit: int, path: Path) -> None:
    """Streams offered against the delay of accepted streams and the share of refusals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    delay = figure.subplots()
    offered = [row["streams"] for row in rows]
    for name, label in {"added delay, median": "median", "95th percentile": "95th percentile"}.items():
        delay.plot(offered, [row[name] for row in rows], "o-", label=f"added delay, {label}")
    delay.axhline(LATE_SECONDS, color="grey", linewidth=0.8)
    delay.axvline(limit, color="grey", linewidth=0.8, linestyle=":", label="limit")
    delay.set(xscale="log", xlabel="streams offered", ylabel="seconds", ylim=(0, None), xticks=offered)
    delay.set_xticklabels([f"{count:g}" for count in offered])
    delay.minorticks_off()
    refused = delay.twinx()
    refused.plot(
        offered, [100 * row["refused"] / row["streams"] for row in rows], "s--", color="#c8102e", label="refused"
    )
    refused.set(ylabel="refused, %", ylim=(0, 100))
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize="small")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--no-batching", action="store_true")
    parser.add_argument("--seconds", type=float, default=30.0, help="audio of each stream")
    parser.add_argument("--first", type=int, default=10, help="the first number of streams")
    parser.add_argument("--capacity", type=int, help="do not measure it")
    parser.add_argument("--factors", type=float, nargs="+", default=[0.5, 1, 2, 5, 10])
    parser.add_argument("--out", type=Path, help="append the rows to this file, one JSON object each")
    parser.add_argument("--plot", type=Path, help="write the curve to this file")
    given = parser.parse_args()
    made = scripts(given.model, given.seconds)
    found = given.capacity or capacity(given, made)
    if not found:
        sys.exit(f"{given.first} streams are already late; choose a smaller --first, or wait for an idle computer")
    limit = max(1, found // given.workers)
    print(f"\ncapacity {found} streams; limit {limit} in each of {given.workers} processes\n")
    rows = offer(given, made, limit)
    if given.plot:
        plot(rows, limit * given.workers, given.plot)


if __name__ == "__main__":
    main()

"""The number of live streams that one server process can serve without delay, with and without batching.

    python benchmarks/load.py [--model NAME_OR_FOLDER] [--streams 10 20 40 60 80 120] [--seconds 30] [--only batching]
                              [--workers 2] [--limit 40]

The server runs in its own processes. Clients in this process send the bundled recordings in real time over loopback, in
chunks of 0.1 s, each client in a different order. The added delay of an event is the time from when the last audio that
it needed was due to be sent until the event arrives: network, queues and computing, not the delay of the method. The
number of streams grows until the 95th percentile of the added delay exceeds 0.3 s. The text of every stream is compared
with the text of the same audio recognised alone.

With --limit the server accepts this many streams, and every number of --streams is offered, also beyond the limit: how
many are refused, how soon, and whether accepted streams keep their delay.

Delays are meaningful only on an idle computer: `load before` is the load average of the last minute when a row began.
The cost, processor seconds of all server processes per second of audio, hardly depends on it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import websockets

import headsync
from headsync.frontend.audio import mix_down, read_audio, resample

RATE = 16_000
PIECE_SECONDS = 0.1
PAUSE_SECONDS = 1.6  # ends an utterance
LATE_SECONDS = 0.3
TIMEOUT_SECONDS = 60.0  # for the last events after the last audio


class Script(NamedTuple):
    """The audio of a client, and its text when recognised alone."""

    samples: np.ndarray
    texts: list[str]


class Outcome(NamedTuple):
    """The result of one stream."""

    added_seconds: list[float]
    texts: list[str]
    done: bool
    refused_seconds: float | None = None  # from connecting to the refusal


def scripts(model: str | None, seconds: float) -> list[Script]:
    """The recordings repeated with pauses; each script starts with another recording."""
    folder = Path(headsync.__file__).parent / "demo"
    takes = [resample(mix_down(samples), rate) for samples, rate in map(read_audio, sorted(folder.glob("*.flac")))]
    pause = np.zeros(int(PAUSE_SECONDS * RATE), np.float32)
    recognizer, made = headsync.Recognizer.load(model), []
    for first in range(len(takes)):
        pieces: list[np.ndarray] = []
        while sum(map(len, pieces)) < seconds * RATE:
            pieces += [takes[(first + len(pieces) // 2) % len(takes)], pause]
        samples = np.round(np.concatenate(pieces)[: int(seconds * RATE)] * 32767).astype("<i2")
        made.append(Script(samples, [final.text for final in recognizer.transcribe(samples, RATE)]))
    return made


class Served(NamedTuple):
    """A running server."""

    host: str
    pid: int


@contextmanager
def server(model: str | None, streams: int, batching: bool, workers: int, *options: str) -> Iterator[Served]:
    """Run a server in other processes."""
    command = [sys.executable, "-m", "headsync", "serve", "--port", "0", "--streams", str(streams)]
    command += ["--workers", str(workers), *options]
    command += [] if batching else ["--no-batching"]
    command += ["--model", model] if model else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        found = re.search(r"http://(\S+)", process.stdout.readline())
        assert found, "the server did not start"
        try:
            yield Served(found[1], process.pid)
        finally:
            process.terminate()


class Used(NamedTuple):
    """Resources used by the processes of a server."""

    cpu_seconds: float
    resident_bytes: int


def used(pid: int) -> Used:
    """The resources of a process and its children, from /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    resident = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    parts = [Used(seconds, resident), *(used(int(child)) for child in children)]
    return Used(sum(part.cpu_seconds for part in parts), sum(part.resident_bytes for part in parts))


async def client(host: str, script: Script, wait_seconds: float) -> Outcome:
    """One stream in real time."""
    await asyncio.sleep(wait_seconds)
    added: list[float] = []
    texts: list[str] = []
    begun = time.monotonic()
    try:
        async with websockets.connect(f"ws://{host}/v1/stream", compression=None, ping_interval=None) as connection:
            with suppress(websockets.ConnectionClosed):  # a refusal does not wait for the message
                await connection.send('{"type": "start"}')
            if json.loads(await connection.recv()).get("code") == "busy":
                return Outcome(added, texts, False, time.monotonic() - begun)
            start = time.monotonic()
            sending = asyncio.create_task(send(connection, script.samples, start))
            async with asyncio.timeout(len(script.samples) / RATE + TIMEOUT_SECONDS):
                async for text in connection:
                    message = json.loads(text)
                    if message["type"] in ("partial", "final"):
                        due = start + math.ceil(round(message["time_seconds"] / PIECE_SECONDS, 3)) * PIECE_SECONDS
                        added.append(time.monotonic() - due)
                    if message["type"] == "final":
                        texts.append(message["text"])
                    if message["type"] == "done":
                        await sending
                        return Outcome(added, texts, True)
    except (websockets.WebSocketException, OSError, TimeoutError) as error:
        print(f"a stream was lost: {error!r}", file=sys.stderr)
    return Outcome(added, texts, False)


async def send(connection: Any, samples: np.ndarray, start: float) -> None:
    piece = int(PIECE_SECONDS * RATE)
    for first in range(0, len(samples), piece):
        due = start + (first + piece) / RATE
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        await connection.send(samples[first : first + piece].tobytes())
    await connection.send('{"type": "finish"}')


async def crowd(served: Served, made: list[Script], count: int) -> tuple[list[Outcome], Used]:
    """Run `count` streams, started within a second; also returns the resources used while they are open."""
    clients = [client(served.host, made[n % len(made)], n / count) for n in range(count)]
    together = asyncio.gather(*clients)
    seconds = len(made[0].samples) / RATE
    await asyncio.sleep(0.9 * seconds)
    middle = used(served.pid)
    return await together, middle


def figures(host: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{host}/metrics") as answer:
        lines = re.findall(r"^(\w+) (\S+)$", answer.read().decode(), re.MULTILINE)
    return {name: float(value) for name, value in lines}


def measure(served: Served, made: list[Script], count: int) -> dict[str, float]:
    """One row of the table."""
    load, start, before = os.getloadavg()[0], used(served.pid), figures(served.host)
    outcomes, middle = asyncio.run(crowd(served, made, count))
    cpu_seconds, after = used(served.pid).cpu_seconds - start.cpu_seconds, figures(served.host)
    added = np.array([second for outcome in outcomes for second in outcome.added_seconds] or [math.inf])
    wrong = sum(outcome.texts != made[n % len(made)].texts for n, outcome in enumerate(outcomes) if outcome.done)
    calls, batches = (
        after.get(f"headsync_batch_calls_{part}", 0) - before.get(f"headsync_batch_calls_{part}", 0)
        for part in ("sum", "count")
    )
    grown = middle.resident_bytes - start.resident_bytes
    refused = [outcome.refused_seconds for outcome in outcomes if outcome.refused_seconds is not None]
    audio_seconds = (count - len(refused)) * len(made[0].samples) / RATE
    return {
        "streams": count,
        "added delay, median": float(np.median(added)),
        "95th percentile": float(np.percentile(added, 95, method="higher")),
        "longest": float(added.max()),
        "refused": len(refused),
        "refused after": max(refused, default=math.nan),
        "lost": sum(not outcome.done for outcome in outcomes) - len(refused),
        "other text": wrong,
        "memory per stream": grown / (count - len(refused)) / 2**20,
        "cost": cpu_seconds / audio_seconds,
        "load before": load,
        "calls per batch": calls / batches if batches else math.nan,
    }


FORMATS = {
    **dict.fromkeys(("added delay, median", "95th percentile", "longest", "refused after"), "{:.3f} s"),
    "memory per stream": "{:.1f} MB",
    "cost": "{:.4f}",
    "load before": "{:.1f}",
    "calls per batch": "{:.2f}",
}


def late(row: dict[str, float]) -> bool:
    return row["95th percentile"] > LATE_SECONDS


def print_row(row: dict[str, float], first: bool) -> None:
    if first:
        print("| " + " | ".join(row) + " |\n|" + "---|" * len(row))
    cells = ("-" if math.isnan(value) else FORMATS.get(name, "{}").format(value) for name, value in row.items())
    print("| " + " | ".join(cells) + " |", flush=True)


def warm_up(served: Served, made: list[Script]) -> None:
    asyncio.run(crowd(served, [Script(one.samples[: 2 * RATE], []) for one in made], 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--streams", type=int, nargs="+", default=[10, 20, 40, 60, 80, 120, 160])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--only", choices=["batching", "no batching"])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--limit", type=int, help="streams that the server accepts; default: all that are offered")
    given = parser.parse_args()
    made = scripts(given.model, given.seconds)
    for name in [given.only] if given.only else ["batching", "no batching"]:
        print(f"\n{name}\n")
        with server(given.model, given.limit or max(given.streams), name == "batching", given.workers) as served:
            warm_up(served, made)
            for number, count in enumerate(given.streams):
                row = measure(served, made, count)
                print_row(row, number == 0)
                if late(row) and not given.limit:
                    break


if __name__ == "__main__":
    main()

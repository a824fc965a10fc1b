"""A server under load for hours of audio, faster than real time: memory, cost and open files stay constant.

    python benchmarks/server_soak.py [--model NAME_OR_FOLDER] [--hours 8] [--out runs/server-soak.jsonl]

Two parts, each with --hours of audio: `session` is one stream of speech and noise (`soak.py` describes the audio),
`short` are streams of one recording each, four at a time. Every 5 minutes of audio a JSON object is appended to --out:
resident memory of the server, its processor seconds per second of audio, its open files, and streams whose text was
wrong. A part that is complete in --out is not repeated. The last tenth of the rows of a part is compared with its first
tenth, without the very first row: memory may grow by 3 % and cost by 10 %; the number of open files must be constant.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import websockets

import headsync
from headsync.frontend.audio import FloatArray

sys.path.append(str(Path(__file__).parent))

from load import RATE, Served, server, used
from soak import pieces, recordings, sound

ROW_SECONDS = 300.0  # audio between two rows
TOGETHER = 4  # short streams
MOST_MEMORY, MOST_COST = 1.03, 1.10
PAUSE = np.zeros(RATE, np.float32)
Row = dict[str, Any]


class Monitor:
    """Writes a row for every few minutes of audio."""

    def __init__(self, served: Served, part: str, row_seconds: float, write: Callable[[Row], None]) -> None:
        self._served, self._part, self._row_seconds, self._write = served, part, row_seconds, write
        self._audio, self._cpu = 0.0, used(served.pid).cpu_seconds

    def reached(self, audio_seconds: float, wrong: int = 0) -> None:
        """This much audio was recognised so far."""
        if audio_seconds < self._audio + self._row_seconds:
            return
        now = used(self._served.pid)
        cost = (now.cpu_seconds - self._cpu) / (audio_seconds - self._audio)
        self._write({
            "part": self._part, "audio_minutes": round(audio_seconds / 60, 1), "cost": round(cost, 5),
            "resident_mb": round(now.resident_bytes / 2**20, 1), "open_files": open_files(self._served.pid),
            "wrong": wrong,
        })  # fmt: skip
        self._audio, self._cpu = audio_seconds, now.cpu_seconds


def open_files(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    return len(os.listdir(f"/proc/{pid}/fd")) + sum(open_files(int(child)) for child in children)


async def stream(host: str, audio: Iterator[FloatArray], progress: Callable[[float], None]) -> list[str]:
    """Send audio as fast as the server takes it; the final texts."""
    texts = []
    async with websockets.connect(f"ws://{host}/v1/stream", compression=None, ping_interval=None) as connection:
        await connection.send('{"type": "start", "progress": true}')

        async def send() -> None:
            for piece in audio:
                await connection.send(np.round(piece * 32767).astype("<i2").tobytes())
            await connection.send('{"type": "finish"}')

        sending = asyncio.create_task(send())
        async for text in connection:
            message = json.loads(text)
            if message["type"] == "final":
                texts.append(message["text"])
            if message["type"] == "progress":
                progress(message["audio_seconds"])
            if message["type"] == "error":
                sys.exit(f"the stream ended: {message['message']}")
        await sending
    return texts


async def session(served: Served, monitor: Monitor, seconds: float, _: str | None) -> None:
    await stream(served.host, pieces(recordings(None), seconds), monitor.reached)


async def short(served: Served, monitor: Monitor, seconds: float, model: str | None) -> None:
    takes = [np.concatenate([sound(path), PAUSE]) for path in recordings(None)]
    recognizer = headsync.Recognizer.load(model)
    rounded = [np.round(take * 32767).astype("<i2") for take in takes]
    alone = [[final.text for final in recognizer.transcribe(take, RATE)] for take in rounded]
    rng, done, wrong = np.random.default_rng(1), 0.0, 0
    while done < seconds:
        chosen = rng.integers(len(takes), size=TOGETHER)
        texts = await asyncio.gather(*(stream(served.host, iter([takes[n]]), lambda _: None) for n in chosen))
        wrong += sum(text != alone[n] for text, n in zip(texts, chosen, strict=True))
        done += sum(len(takes[n]) for n in chosen) / RATE
        await asyncio.sleep(0.05)  # for the server to close its sockets
        monitor.reached(done, wrong)


PARTS = {"session": session, "short": short}


def verdict(rows: list[Row]) -> tuple[str, bool]:
    """One line of a table, and whether all bounds are kept."""
    tenth = max(1, len(rows) // 10)
    first, last = rows[1 : tenth + 1], rows[-tenth:]
    memory, cost = (median(row[name] for row in last) / median(row[name] for row in first)
                    for name in ("resident_mb", "cost"))  # fmt: skip
    files = sorted({row["open_files"] for row in rows})
    good = memory <= MOST_MEMORY and cost <= MOST_COST and len(files) == 1 and not rows[-1]["wrong"]
    cells = [rows[0]["part"], rows[-1]["audio_minutes"], f"{first[0]['resident_mb']} MB, {memory - 1:+.1%}",
             f"{first[0]['cost']}, {cost - 1:+.1%}", " to ".join(map(str, files)), rows[-1]["wrong"]]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |", good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--row-seconds", type=float, default=ROW_SECONDS)
    parser.add_argument("--out", type=Path, default=Path("runs/server-soak.jsonl"))
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    seconds, lines, good = 3600 * given.hours, list[str](), True
    for part, run in PARTS.items():
        if not complete(rows_of(given.out, part), seconds - given.row_seconds):
            keep_other_parts(given.out, part)
            with given.out.open("a", encoding="utf-8") as file:

                def write(row: Row, file: Any = file) -> None:
                    print(json.dumps(row), file=file, flush=True)

                with server(given.model, 2 * TOGETHER, False, 1, "--stream-seconds", str(2 * seconds)) as served:
                    asyncio.run(run(served, Monitor(served, part, given.row_seconds, write), seconds, given.model))
        line, kept = verdict(rows_of(given.out, part))
        lines, good = [*lines, line], good and kept
    print("| part | audio minutes | memory | cost | open files | wrong texts |\n|---|---|---|---|---|---|")
    print("\n".join(lines))
    sys.exit(not good)


def rows_of(path: Path, part: str) -> list[Row]:
    if not path.exists():
        return []
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row["part"] == part]


def complete(rows: list[Row], seconds: float) -> bool:
    return len(rows) > 1 and 60 * rows[-1]["audio_minutes"] >= seconds


def keep_other_parts(path: Path, part: str) -> None:
    others = [row for name in PARTS if name != part for row in rows_of(path, name)]
    path.write_text("".join(json.dumps(row) + "\n" for row in others), encoding="utf-8")


if __name__ == "__main__":
    main()

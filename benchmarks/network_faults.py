"""Live streams over a bad network, and on a server that is disturbed: words lost, duplicated or swapped.

    python benchmarks/network_faults.py [FAULT ...] [--model NAME_OR_FOLDER] [--streams 30] [--rounds 3] [--seconds 20]

Requires root, for network namespaces. `headsync serve` with two processes runs in one namespace, and clients that
reconnect (`reconnecting.py`) in another; `bad_network.py` is the link between them. Each fault begins after a third of
the audio. Columns of the table:

- connections lost: each was followed by another one
- lost, added, other: words, compared with the same audio recognised alone in one session
- wrong: connections whose text differs from that of the same audio recognised alone, from the first sample of the
  connection on. A connection that begins in the middle of the audio may recognise a word differently; this is not a
  fault of the server, and is counted only as lost, added or other
- open: streams that the server still counts after the clients have ended and the idle time is over
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import headsync
from headsync.evaluation.error_rate import count_errors

sys.path.append(str(Path(__file__).parent))

from bad_network import SERVER, Link, Quality, namespaces
from load import RATE, Script, scripts

PORT = 8080
IDLE_SECONDS = 10.0  # of the server
LONG_SECONDS = 15.0  # longer than the clients and the server wait
SHORT_SECONDS = 3.0


class Scene(NamedTuple):
    """What a fault may disturb."""

    link: Link
    server: Server
    client: subprocess.Popen[str]


class Server:
    """`headsync serve` in a namespace."""

    def __init__(self, namespace: str, model: str | None, streams: int, log: Path) -> None:
        self._log = log
        self._command = ["ip", "netns", "exec", namespace, sys.executable, "-m", "headsync", "serve"]
        self._command += ["--host", SERVER, "--port", str(PORT), "--workers", "2", "--streams", str(streams)]
        self._command += ["--idle-seconds", str(IDLE_SECONDS), *(["--model", model] if model else [])]
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with self._log.open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        assert self.process.stdout is not None
        assert "Serving at" in self.process.stdout.readline(), "the server did not start"

    @property
    def workers(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="utf-8")
        return [pid for pid in map(int, children.split()) if b"spawn_main" in _command_line(pid)]

    def kill(self) -> None:
        for pid in [self.process.pid, *self.workers]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def _command_line(pid: int) -> bytes:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def over(quality: Quality, seconds: float | None = None) -> Callable[[Scene], None]:
    """The link has this quality until the streams end, or for some seconds."""

    def disturb(scene: Scene) -> None:
        scene.link.quality = quality
        if seconds is not None:
            time.sleep(seconds)
            scene.link.quality = Quality()

    return disturb


def nothing(_: Scene) -> None: ...


def stop_clients(scene: Scene) -> None:
    scene.client.send_signal(signal.SIGSTOP)
    time.sleep(LONG_SECONDS)
    scene.client.send_signal(signal.SIGCONT)


def kill_worker(scene: Scene) -> None:
    os.kill(scene.server.workers[0], signal.SIGKILL)


def stop_worker(scene: Scene) -> None:
    worker = scene.server.workers[0]
    os.kill(worker, signal.SIGSTOP)
    time.sleep(LONG_SECONDS)
    os.kill(worker, signal.SIGCONT)


def restart_server(scene: Scene) -> None:
    scene.server.kill()
    scene.server.start()


def limit_memory(scene: Scene) -> None:
    """No process of a server that has just started can allocate more address space for some seconds."""
    restart_server(scene)
    limited = scene.server.workers
    for pid in limited:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[0])
        resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize(), resource.RLIM_INFINITY))
    time.sleep(LONG_SECONDS)
    for pid in limited:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


FAULTS: dict[str, Callable[[Scene], None]] = {
    "none": nothing,
    "loss": over(Quality(loss=0.02)),
    "heavy-loss": over(Quality(loss=0.1, delay=0.02)),
    "delay": over(Quality(delay=0.2, jitter=0.1)),
    "mixed": over(Quality(loss=0.02, duplicates=0.02, delay=0.1, jitter=0.08)),
    "short-outage": over(Quality(loss=1.0), SHORT_SECONDS),
    "half-open": over(Quality(loss=1.0), LONG_SECONDS),
    "client-stopped": stop_clients,
    "worker-killed": kill_worker,
    "worker-stopped": stop_worker,
    "memory": limit_memory,
    "restart": restart_server,
}


class Counts(NamedTuple):
    """The sums of some streams."""

    streams: int = 0
    unfinished: int = 0
    connections_lost: int = 0
    words: int = 0
    lost: int = 0
    added: int = 0
    other: int = 0
    wrong: int = 0
    open: int = 0

    def plus(self, more: Counts) -> Counts:
        return Counts(*(one + another for one, another in zip(self, more, strict=True)))


def count(outcome: dict[str, Any], script: Script, recognizer: headsync.Recognizer) -> Counts:
    """The figures of one stream; the audio of a connection is recognised again only if the text is not as expected."""
    connections = outcome["connections"]
    texts = [text for _, found in connections for text in found]
    errors = count_errors(" ".join(script.texts), " ".join(texts))
    wrong = 0
    if texts != script.texts:
        for base, found in connections:
            alone = [final.text for final in recognizer.transcribe(script.samples[base:], RATE)]
            wrong += found != alone[: len(found)]
    return Counts(1, not outcome["finished"], len(connections) - 1, errors.words,
                  errors.deletions, errors.insertions, errors.substitutions, wrong)  # fmt: skip


@contextmanager
def clients(namespace: str, made: list[Script], streams: int) -> Iterator[subprocess.Popen[str]]:
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "scripts", *[script.samples for script in made])
        script = str(Path(__file__).with_name("reconnecting.py"))
        command = ["ip", "netns", "exec", namespace, sys.executable, script, f"{SERVER}:{PORT}"]
        command += [f"{folder}/scripts.npz", "--streams", str(streams)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"of {', '.join(FAULTS)}; default: all")
    parser.add_argument("--model")
    parser.add_argument("--streams", type=int, default=30, help="at the same time")
    parser.add_argument("--rounds", type=int, default=3, help="of each fault")
    parser.add_argument("--seconds", type=float, default=20.0, help="audio of each stream")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, default=Path(os.devnull), help="file for the log of the server")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that the namespaces are deleted
    made, recognizer = scripts(given.model, given.seconds), headsync.Recognizer.load(given.model)
    print("| fault | " + " | ".join(name.replace("_", " ") for name in Counts._fields) + " | packets lost |")
    print("|" + "---|" * (len(Counts._fields) + 2), flush=True)
    with namespaces(given.seed) as (of_server, of_clients, link):
        server = Server(of_server, given.model, given.streams, given.log)
        try:
            for name in given.faults or FAULTS:
                total, before = Counts(), (link.packets, link.lost)
                for _ in range(given.rounds):
                    total = total.plus(
                        one_round(FAULTS[name], of_clients, link, server, made, recognizer, given.streams)
                    )
                packets, lost = link.packets - before[0], link.lost - before[1]
                print(f"| {name} | " + " | ".join(map(str, total)) + f" | {lost} of {packets} |", flush=True)
        finally:
            server.kill()


def one_round(
    fault: Callable[[Scene], None],
    namespace: str,
    link: Link,
    server: Server,
    made: list[Script],
    recognizer: headsync.Recognizer,
    streams: int,
) -> Counts:
    with clients(namespace, made, streams) as client:
        time.sleep(len(made[0].samples) / RATE / 3)
        fault(Scene(link, server, client))
        output, errors = client.communicate()
        link.quality = Quality()
    *lines, still_open = output.splitlines() or [""]
    if client.returncode:
        sys.exit(f"the clients failed: {errors}")
    for kind, times in sorted(_kinds(errors).items()):
        print(f"{times} times: {kind}", file=sys.stderr)
    total = Counts(open=int(still_open))
    for outcome in map(json.loads, lines):
        total = total.plus(count(outcome, made[outcome["number"] % len(made)], recognizer))
    return total


def _kinds(errors: str) -> dict[str, int]:
    found = re.findall(r"^a connection was lost: (.*)$", errors, re.MULTILINE)
    return {kind: found.count(kind) for kind in found}


if __name__ == "__main__":
    main()

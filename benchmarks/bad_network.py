"""Two network namespaces joined by a link that loses, delays, reorders and duplicates packets; requires root.

The link is a pair of TUN devices and a thread that copies packets between them, so it needs no kernel module (`tc` with
`netem` is often missing). TCP on both sides is that of the kernel.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import selectors
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

SERVER, CLIENT = "10.77.0.1", "10.77.0.2"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
PACKET_BYTES = 65_536


@dataclass(frozen=True)
class Quality:
    """What happens to packets: shares, and seconds. Packets with different delays overtake each other."""

    loss: float = 0.0
    duplicates: float = 0.0
    delay: float = 0.0
    jitter: float = 0.0  # at most this much more or less

    def __str__(self) -> str:
        return f"loss {self.loss:.0%}, duplicates {self.duplicates:.0%}, delay {self.delay:g} s ± {self.jitter:g} s"


class Link:
    """Copies packets between two devices; `quality` may change at any time."""

    def __init__(self, one: int, other: int, seed: int) -> None:
        self.quality = Quality()
        self.packets = self.lost = 0
        self._to = {one: other, other: one}
        self._random = random.Random(seed)
        self._waiting: list[tuple[float, int, int, bytes]] = []  # due time, number, device, packet
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for device in self._to:
                selector.register(device, selectors.EVENT_READ)
            while not self._stopped.is_set():
                until_due = self._waiting[0][0] - time.monotonic() if self._waiting else 0.1
                for key, _ in selector.select(min(0.1, max(0.0, until_due))):
                    self._accept(os.read(key.fd, PACKET_BYTES), self._to[key.fd])
                while self._waiting and self._waiting[0][0] <= time.monotonic():
                    _, _, device, packet = heapq.heappop(self._waiting)
                    os.write(device, packet)

    def _accept(self, packet: bytes, device: int) -> None:
        self.packets += 1
        quality, draw = self.quality, self._random.random
        if draw() < quality.loss:
            self.lost += 1
            return
        for copy in range(2 if draw() < quality.duplicates else 1):
            delay = max(0.0, quality.delay + quality.jitter * (2 * draw() - 1))
            heapq.heappush(self._waiting, (time.monotonic() + delay, 2 * self.packets + copy, device, packet))


@contextmanager
def namespaces(seed: int) -> Iterator[tuple[str, str, Link]]:
    """The namespaces of the server and of the clients, and the link between them."""
    names = (f"headsync-server-{os.getpid()}", f"headsync-client-{os.getpid()}")
    devices: list[int] = []
    try:
        for number, (name, own, peer) in enumerate(zip(names, (SERVER, CLIENT), (CLIENT, SERVER), strict=True)):
            _ip("netns", "add", name)
            device = f"hs{number}-{os.getpid()}"
            devices.append(_open_tun(device))
            _ip("link", "set", device, "netns", name)
            _ip("-n", name, "address", "add", own, "peer", peer, "dev", device)
            _ip("-n", name, "link", "set", device, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        link = Link(devices[0], devices[1], seed)
        try:
            yield (*names, link)
        finally:
            link.stop()
    finally:
        for fd in devices:
            os.close(fd)
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _open_tun(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return fd


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)

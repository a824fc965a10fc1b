"""Several server processes on one address. The supervisor starts them, replaces those that die, and stops them all."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from types import FrameType

from prometheus_client.multiprocess import mark_process_dead

from headsync.errors import ConfigError, HeadsyncError
from headsync.server.access_log import configure_logging
from headsync.server.metrics import SHARED_FOLDER
from headsync.server.single_process import Listeners, ServeOptions, run_process

log = logging.getLogger("headsync.server")

READY = "ready"  # report of a worker that serves; any other report is the reason why it cannot start


class Worker:
    def __init__(self, context: SpawnContext, options: ServeOptions, listeners: Listeners) -> None:
        self._reports, sender = context.Pipe(duplex=False)
        self._report: str | None = None
        self.process = context.Process(target=_run_worker, args=(options, listeners, sender))
        with _interrupts_blocked():
            self.process.start()
        sender.close()  # the process has its own copy

    @property
    def report(self) -> str | None:
        """READY, or the reason why the process cannot start; None until it reports."""
        if self._report is None and self._reports.poll():
            with suppress(EOFError):  # it died before it reported
                self._report = self._reports.recv()
        return self._report


class Supervisor:
    """Runs several workers. A worker that dies is replaced if all workers have been ready before."""

    def __init__(self, options: ServeOptions, listeners: Listeners) -> None:
        self._options, self._listeners = options, listeners
        self._context = multiprocessing.get_context("spawn")
        self._all_ready = self._stopping = False
        self._error: str | None = None
        self._workers: list[Worker] = []

    def run(self, ready: Callable[[], None]) -> None:
        """Start all workers and wait for the last one to end. If a worker cannot start, raise its error once."""
        configure_logging(self._options.log_level, self._options.log_format)
        with tempfile.TemporaryDirectory() as folder:
            os.environ[SHARED_FOLDER] = folder
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._stop)
            for _ in range(self._options.workers):
                self._start_worker()
            while self._workers:
                wait([worker.process.sentinel for worker in self._workers], timeout=0.2)
                self._replace_dead()
                if not (self._all_ready or self._stopping) and all(w.report == READY for w in self._workers):
                    ready()
                    self._all_ready = True
        if self._error:
            raise ConfigError(self._error)

    def _replace_dead(self) -> None:
        for worker in [worker for worker in self._workers if not worker.process.is_alive()]:
            self._workers.remove(worker)
            if self._stopping:
                continue
            if error := self._startup_error(worker):
                self._error = error
                self._stop()
            else:
                log.error("worker %s died (exit code %s); replacing it", worker.process.pid, worker.process.exitcode)
                mark_process_dead(worker.process.pid)  # type: ignore[no-untyped-call]
                self._start_worker()

    def _startup_error(self, worker: Worker) -> str | None:
        """Why a dead worker must not be replaced; None if it must."""
        if worker.report not in (None, READY):
            return worker.report
        if self._all_ready:
            return None
        code = worker.process.exitcode
        return f"a worker process died (exit code {code}) while loading; if memory is short, use fewer --workers"

    def _start_worker(self) -> None:
        self._workers.append(Worker(self._context, self._options, self._listeners))
        if self._stopping:  # a signal arrived during the start
            self._workers[-1].process.terminate()

    def _stop(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        self._stopping = True
        for worker in self._workers:
            worker.process.terminate()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT. A process started here never gets it: Ctrl-C reaches the supervisor, which sends SIGTERM."""
    resource_tracker.ensure_running()  # starting it would unblock the signal
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _run_worker(options: ServeOptions, listeners: Listeners, reports: Connection[str, str]) -> None:
    try:
        run_process(options, listeners, lambda: reports.send(READY))
    except HeadsyncError as error:
        reports.send(str(error))
        sys.exit(1)

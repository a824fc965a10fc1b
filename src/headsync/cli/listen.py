from __future__ import annotations

import queue
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headsync.cli import load_model, options
from headsync.cli.display import Screen, open_screen, print_dim
from headsync.cli.output import print_error
from headsync.errors import AudioError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headsync.evaluation.timed_session import SessionFactory

_PIECE_SECONDS = 0.1
_POLL_SECONDS = 0.2  # between two checks whether to stop


@options.grouped
def listen(
    search: options.SearchOptions,
    model: options.ModelName = None,
    device: Annotated[str | None, typer.Option(help="Microphone: a number or part of its name.")] = None,
) -> None:
    """Recognise speech from the microphone until Ctrl-C."""
    sounddevice = _import_sounddevice()
    microphone = _Microphone(sounddevice, device)
    recognizer = load_model.load_recognizer(model, **search.arguments())
    if sys.stdout.isatty():
        print_dim("Listening; Ctrl-C stops.")
    with _stop_on_interrupt() as stopped, microphone, open_screen() as screen:
        _recognise(recognizer, microphone, screen, stopped)
    if microphone.overflows:
        times = "once" if microphone.overflows == 1 else f"{microphone.overflows} times"
        print_error(f"Audio was lost {times}, because this computer is too slow for the model.")
    if not stopped.is_set():
        raise AudioError("The microphone was disconnected; check its cable and start again.")


class _Microphone:
    """An input stream of the sound system; its pieces wait in a queue until they are read."""

    def __init__(self, sounddevice: Any, device: str | None) -> None:
        self.overflows = 0
        self._pieces: queue.Queue[NDArray[np.float32]] = queue.Queue()
        self._errors = (sounddevice.PortAudioError, ValueError)
        self._name = f'"{device}"' if device else "any microphone"
        chosen = int(device) if device and device.isdecimal() else device
        with self._readable_errors():
            self.sample_rate = int(sounddevice.query_devices(chosen, "input")["default_samplerate"])
            self._stream = sounddevice.InputStream(
                device=chosen,
                samplerate=self.sample_rate,
                blocksize=round(self.sample_rate * _PIECE_SECONDS),
                channels=1,
                dtype="float32",
                callback=self._take,
            )

    def __enter__(self) -> _Microphone:
        with self._readable_errors():
            self._stream.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stream.close()

    def pieces(self, stopped: threading.Event) -> Iterator[NDArray[np.float32]]:
        """Yield audio until stopped, then the rest of the queue; ends early if the microphone is disconnected."""
        while not stopped.is_set():
            try:
                yield self._pieces.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                if not self._stream.active:
                    return
        self._stream.stop()
        while not self._pieces.empty():
            yield self._pieces.get()

    @contextmanager
    def _readable_errors(self) -> Iterator[None]:
        """Turn errors of the sound system into a sentence with the remedy."""
        try:
            yield
        except self._errors as error:
            reason = str(error).rstrip(". ")
            raise AudioError(
                f"Cannot open {self._name}: {reason}; python -m sounddevice lists devices, --device chooses one."
            ) from error

    def _take(self, samples: NDArray[np.float32], _frames: int, _time: object, status: Any) -> None:
        """Called by the sound system in its own thread; the array is only valid during the call."""
        self.overflows += bool(status.input_overflow)
        self._pieces.put(samples.copy())


@contextmanager
def _stop_on_interrupt() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event, so that the recogniser can finish; the second interrupts."""
    stopped = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


def _recognise(recognizer: SessionFactory, microphone: _Microphone, screen: Screen, stopped: threading.Event) -> None:
    session = recognizer.session()
    for samples in microphone.pieces(stopped):
        for event in session.push(samples, microphone.sample_rate):
            screen.show(event)
    for event in session.finish():
        screen.show(event)


def _import_sounddevice() -> Any:
    try:
        import sounddevice
    except ModuleNotFoundError as error:
        raise AudioError("headsync listen requires the package sounddevice: pip install 'headsync[mic]'.") from error
    except OSError as error:
        raise AudioError(
            f"headsync listen requires PortAudio ({error}); on Debian and Ubuntu: apt install libportaudio2."
        ) from error
    return sounddevice

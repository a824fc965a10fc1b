"""`headsync listen`: the microphone in, text out while it is spoken."""

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

from headsync.cli import loading, options
from headsync.cli.complain import complain
from headsync.cli.screen import Screen, open_screen, say
from headsync.errors import AudioError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headsync.measure.timing import Listener

PIECE_SECONDS = 0.1
PATIENCE_SECONDS = 0.2  # how long to wait for sound before looking whether to stop


def listen(
    model: options.ModelName = None,
    device: Annotated[str | None, typer.Option(help="Microphone: a number or part of its name.")] = None,
    beam: options.Beam = None,
    ctc_weight: options.CtcWeight = None,
    lm: options.Lm = None,
    lm_weight: options.LmWeight = None,
    hotwords: options.Hotwords = None,
    endpoint: options.EndpointRules = None,
    engine: options.EngineChoice = options.EngineName.auto,
) -> None:
    """Recognise speech from the microphone until Ctrl-C."""
    sounddevice = _import_sounddevice()
    microphone = Microphone(sounddevice, device)
    settings = {"beam": beam, "ctc_weight": ctc_weight, "lm_weight": lm_weight, **options.endpoint_settings(endpoint)}
    recognizer = loading.load_recognizer(
        model, engine=engine.value, lm=lm, hotwords=options.read_hotwords(hotwords), **settings
    )
    if sys.stdout.isatty():
        say("Listening; Ctrl-C stops.")
    with stop_on_interrupt() as stopped, microphone, open_screen() as screen:
        _recognise(recognizer, microphone, screen, stopped)
    if microphone.overflows:
        complain(f"Sound was lost {microphone.overflows} times, because this computer could not keep up.")
    if not stopped.is_set():
        raise AudioError("The microphone went away; check its cable and start again.")


class Microphone:
    """An input stream of the sound system; its pieces wait in a queue until they are asked for."""

    def __init__(self, sounddevice: Any, device: str | None) -> None:
        self.overflows = 0
        self._pieces: queue.Queue[NDArray[np.float32]] = queue.Queue()
        self._trouble = (sounddevice.PortAudioError, ValueError)
        self._name = f'"{device}"' if device else "any microphone"
        chosen = int(device) if device and device.isdecimal() else device
        with self._telling_people():
            self.sample_rate = int(sounddevice.query_devices(chosen, "input")["default_samplerate"])
            self._stream = sounddevice.InputStream(
                device=chosen,
                samplerate=self.sample_rate,
                blocksize=round(self.sample_rate * PIECE_SECONDS),
                channels=1,
                dtype="float32",
                callback=self._take,
            )

    def __enter__(self) -> Microphone:
        with self._telling_people():
            self._stream.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stream.close()

    def pieces(self, stopped: threading.Event) -> Iterator[NDArray[np.float32]]:
        """Yield sound until stopped, and then what had been heard before; ends early if the microphone goes away."""
        while not stopped.is_set():
            try:
                yield self._pieces.get(timeout=PATIENCE_SECONDS)
            except queue.Empty:
                if not self._stream.active:
                    return
        self._stream.stop()
        while not self._pieces.empty():
            yield self._pieces.get()

    @contextmanager
    def _telling_people(self) -> Iterator[None]:
        """Turn what the sound system says into a sentence with the remedy."""
        try:
            yield
        except self._trouble as error:
            reason = str(error).rstrip(". ")
            raise AudioError(
                f"Cannot open {self._name}: {reason}; python -m sounddevice lists what there is, --device chooses."
            ) from error

    def _take(self, samples: NDArray[np.float32], _frames: int, _time: object, status: Any) -> None:
        """Called by the sound system in a thread of its own; the array is only lent."""
        self.overflows += bool(status.input_overflow)
        self._pieces.put(samples.copy())


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event, so that no step of the recogniser is torn; the second interrupts."""
    stopped = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


def _recognise(recognizer: Listener, microphone: Microphone, screen: Screen, stopped: threading.Event) -> None:
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
        raise AudioError("Listening needs the package sounddevice: pip install '.[mic]'.") from error
    except OSError as error:
        raise AudioError(
            f"Listening needs the library PortAudio ({error}); on Debian and Ubuntu: apt install libportaudio2."
        ) from error
    return sounddevice

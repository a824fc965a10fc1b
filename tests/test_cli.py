"""The command line as a person meets it: what is printed where, and with which exit code."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import threading
import time
import wave
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
from rich.console import Console
from safetensors.numpy import save_file
from typer.testing import CliRunner, Result

from fakes import FakeRecognizer
from headsync.cli import demo as demo_command
from headsync.cli import loading
from headsync.cli.app import app
from headsync.cli.screen import Growing, Lines
from headsync.cli.standard_input import stream_wav
from headsync.cli.streaming import paced
from headsync.data.manifest import Utterance, write_manifest
from headsync.errors import AudioError, ModelError
from headsync.events import Endpoint, Final, Partial, Word

Say = Callable[..., None]


def run(*arguments: object, **options: Any) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], **options)


def one_line(text: str) -> bool:
    return text.endswith("\n") and text.count("\n") == 1 and "Traceback" not in text


@pytest.fixture
def wav(tmp_path: Path) -> Path:
    path = tmp_path / "a.wav"
    soundfile.write(path, np.zeros(16_000, dtype=np.float32), 8000)  # two seconds
    return path


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Say:
    """Let the commands load a fake recogniser that says the given texts, and keep what they asked for."""

    def install(*texts: str) -> None:
        def load(model: str | None, **settings: object) -> FakeRecognizer:
            install.asked = {"model": model, **settings}  # type: ignore[attr-defined]
            return FakeRecognizer(*texts)

        monkeypatch.setattr(loading, "load_recognizer", load)

    return install


# help


def test_help_names_every_command_without_heavy_imports() -> None:
    script = (
        "import sys\nfrom headsync.cli.app import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'sounddevice', 'jiwer', 'tensorboard'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    for command in ("transcribe", "listen", "demo", "models", "prepare", "train", "evaluate"):
        assert command in done.stdout


def test_python_m_headsync_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headsync", "--help"], capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 0
    assert "headsync [OPTIONS] COMMAND" in done.stdout


def environment() -> dict[str, str]:
    """The tests' own import path, for children."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "COLUMNS": "100"}


# transcribe


def test_transcribe_prints_plain_final_lines_in_a_pipe(wav: Path, says: Say) -> None:
    says("one two three")
    result = run("transcribe", wav)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "one two three\n", "")


def test_transcribe_hands_model_and_beam_on(wav: Path, says: Any) -> None:
    says("one")
    assert run("transcribe", wav, "--model", "some-model", "--beam", 4).exit_code == 0
    assert says.asked["model"] == "some-model"
    assert says.asked["beam"] == 4


def test_transcribe_names_the_files_when_there_are_several(wav: Path, says: Say) -> None:
    says("one two", "", "three")
    result = run("transcribe", wav, wav, wav)
    assert result.stdout == f"{wav}: one two\n{wav}:\n{wav}: three\n"


def test_a_bad_file_gets_one_sentence_and_the_others_are_still_done(wav: Path, tmp_path: Path, says: Say) -> None:
    says("one two", "of missing.wav", "of text.wav", "three")
    text = tmp_path / "text.wav"
    text.write_text("this is no sound")
    result = run("transcribe", wav, tmp_path / "missing.wav", text, wav)
    assert result.exit_code == 1
    assert result.stdout == f"{wav}: one two\n{wav}: three\n"
    sentences = result.stderr.splitlines()
    assert len(sentences) == 2
    assert "missing.wav" in sentences[0]
    assert "text.wav" in sentences[1]


def test_brackets_in_names_and_long_sentences_are_printed_as_they_are(tmp_path: Path, says: Say) -> None:
    says()
    missing = tmp_path / ("[red]" + "long" * 50 + ".wav")
    result = run("transcribe", missing)
    assert one_line(result.stderr)
    assert str(missing) in result.stderr


def test_transcribe_json(wav: Path, says: Say) -> None:
    says("one two")
    document = json.loads(run("transcribe", wav, "--format", "json").stdout)
    assert document["file"] == str(wav)
    assert document["text"] == "one two"
    assert document["audio_seconds"] == 2.0
    assert [word["text"] for word in document["utterances"][0]["words"]] == ["one", "two"]


def test_transcribe_srt_and_vtt(wav: Path, says: Say) -> None:
    says("one two")
    assert run("transcribe", wav, "--format", "srt").stdout == "1\n00:00:00,000 --> 00:00:00,600\none two\n"
    says("one two")
    assert run("transcribe", wav, "--format", "vtt").stdout.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:00.600\n")
    assert run("transcribe", wav, wav, "--format", "srt").exit_code == 2
    assert run("transcribe", wav, "--format", "xml").exit_code == 2


def test_transcribe_reads_a_wav_from_standard_input(wav: Path, says: Say) -> None:
    says("one two")
    assert run("transcribe", "-", input=wav.read_bytes()).stdout == "one two\n"


def test_standard_input_that_is_no_wav_gets_one_sentence(says: Say) -> None:
    says("one two")
    result = run("transcribe", "-", input=b"fLaC" + bytes(100))
    assert result.exit_code == 1
    assert one_line(result.stderr)
    assert "standard input" in result.stderr


def test_realtime_takes_as_long_as_the_recording(tmp_path: Path, says: Say) -> None:
    says("one")
    soundfile.write(tmp_path / "short.wav", np.zeros(4800, dtype=np.float32), 16_000)
    start = time.monotonic()
    assert run("transcribe", tmp_path / "short.wav", "--realtime").stdout == "one\n"
    assert time.monotonic() - start >= 0.3


def test_pieces_come_when_they_have_been_spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    times = []
    for _ in paced([(np.zeros((800, 1), dtype=np.float32), 8000)] * 4):
        times.append(now[0])
        now[0] += 0.25 if len(times) == 2 else 0.0  # the recogniser is late once, and then catches up
    assert times == pytest.approx([100.1, 100.2, 100.45, 100.45])


def test_transcribe_on_a_terminal_shows_text_growing_and_the_figures(wav: Path) -> None:
    script = (
        "import sys\nfrom fakes import FakeRecognizer\nfrom headsync.cli import loading, main\n"
        "loading.load_recognizer = lambda *a, **k: FakeRecognizer('one two')\n"
        f"sys.argv = ['headsync', 'transcribe', {str(wav)!r}]\nmain()"
    )
    shown = on_a_terminal(script)
    assert "one\r" in shown or "one\x1b" in shown, shown  # a partial, replaced by what follows
    assert "one two" in shown
    assert "delay 0.20 s · r 0.50 · real-time factor 0.0" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1, "the cursor comes back"


def on_a_terminal(script: str) -> str:
    """Run Python with a pseudo-terminal as its standard output."""
    ours, theirs = pty.openpty()
    variables = {**environment(), "TERM": "xterm-256color"}
    child = subprocess.Popen([sys.executable, "-c", script], stdout=theirs, stderr=theirs, env=variables)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:  # how Linux says that the other side has closed
        pass
    os.close(ours)
    assert child.wait(timeout=10) == 0, shown.decode()
    return shown.decode()


def test_lines_show_finals_only(capsys: pytest.CaptureFixture[str]) -> None:
    words = (Word("one", 0.0, 0.3),)
    with Lines("a: ") as screen:
        screen.show(Partial(0, "one", words, 0.2, 0.5))
        screen.show(Final(0, "one", words, 0.2, 0.5, (3,), 0.5))
    assert capsys.readouterr().out == "a: one\n"


def test_growing_text_ends_with_each_final_once() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=40, color_system=None)
    words = (Word("one", 0.0, 0.3),)
    with Growing(console) as screen:
        for utterance in range(2):
            screen.show(Partial(utterance, "one [b]", (*words, Word("[b]", 0.3, 0.4)), 0.2, 0.5, 1))
            screen.show(Endpoint(utterance, "pause", 0.5))
            screen.show(Final(utterance, f"one {utterance}", words, 0.2, 0.5, (3,), 0.5))
    assert out.getvalue().count("one 0") == out.getvalue().count("one 1") == 1
    assert "one [b]" in out.getvalue()


# WAV from a pipe


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"])
@pytest.mark.parametrize("kind", ["WAV", "WAVEX"])
def test_a_piped_wav_has_the_samples_of_the_file(tmp_path: Path, subtype: str, kind: str) -> None:
    path = tmp_path / "a.wav"
    sound = np.random.default_rng(0).uniform(-0.9, 0.9, size=(1000, 3)).astype(np.float32)
    soundfile.write(path, sound, 11_025, subtype=subtype, format=kind)
    pieces = list(stream_wav(io.BytesIO(path.read_bytes()), 0.01))
    assert {rate for _, rate in pieces} == {11_025}
    assert len(pieces) > 5
    expected, _ = soundfile.read(path, dtype="float32")
    np.testing.assert_array_equal(np.concatenate([samples for samples, _ in pieces]), expected)


def test_a_wav_of_unknown_length_is_read_to_its_end(wav: Path) -> None:
    raw = bytearray(wav.read_bytes())
    data = raw.index(b"data") + 4
    raw[4:8] = raw[data : data + 4] = b"\xff\xff\xff\xff"
    assert sum(len(samples) for samples, _ in stream_wav(io.BytesIO(bytes(raw)))) == 16_000


def test_bytes_after_the_samples_are_not_sound(wav: Path) -> None:
    raw = wav.read_bytes() + b"LIST" + struct.pack("<I", 4) + b"abcd"
    assert sum(len(samples) for samples, _ in stream_wav(io.BytesIO(raw))) == 16_000


def test_samples_come_while_the_pipe_is_still_open() -> None:
    reader, writer = os.pipe()
    header = io.BytesIO()
    with wave.open(header, "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(16_000))
    os.write(writer, header.getvalue()[: 44 + 1600])
    with os.fdopen(reader, "rb") as source:
        samples, _ = next(iter(stream_wav(source, 0.1)))
        assert samples.shape == (800, 1)
        os.close(writer)


@pytest.mark.parametrize("size", [0, 3, 11, 14, 30, 40, 44])
def test_a_wav_that_ends_in_its_header_is_refused(wav: Path, size: int) -> None:
    with pytest.raises(AudioError, match="standard input"):
        list(stream_wav(io.BytesIO(wav.read_bytes()[:size])))


def test_a_wav_of_an_unknown_kind_is_refused(wav: Path) -> None:
    raw = bytearray(wav.read_bytes())
    raw[20:22] = struct.pack("<H", 85)  # MP3 in WAV
    with pytest.raises(AudioError, match="format 85"):
        list(stream_wav(io.BytesIO(bytes(raw))))


# trouble


@pytest.mark.parametrize(
    ("trouble", "exit_code", "told"),
    [
        (ModelError("m: weights.safetensors is missing;\ncopy the folder again."), 1, "missing; copy the folder"),
        (FileNotFoundError(2, "No such file or directory", "recipe.toml"), 1, "recipe.toml: No such file"),
        (PermissionError(13, "Permission denied", "secret"), 1, "secret: Permission denied"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 1, "pip install 'headsync[train]'"),
    ],
)
def test_trouble_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, wav: Path, trouble: Exception, exit_code: int, told: str
) -> None:
    def load(*arguments: object, **settings: object) -> None:
        raise trouble

    monkeypatch.setattr(loading, "load_recognizer", load)
    result = run("transcribe", wav)
    assert result.exit_code == exit_code
    assert one_line(result.stderr)
    assert told in result.stderr
    assert result.stdout == ""


def test_interrupt_exits_as_shells_expect(monkeypatch: pytest.MonkeyPatch, wav: Path) -> None:
    def load(*arguments: object, **settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loading, "load_recognizer", load)
    result = run("transcribe", wav)
    assert (result.exit_code, result.stderr) == (130, "")


def test_ctrl_c_in_the_middle_of_a_recording(wav: Path) -> None:
    soundfile.write(wav, np.zeros(60 * 8000, dtype=np.float32), 8000)  # a minute: it does not end before Ctrl-C
    script = (
        "import signal, sys\nfrom fakes import FakeRecognizer\nfrom headsync.cli import loading, main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # which shells take from what they run behind
        "loading.load_recognizer = lambda *a, **k: print('loaded', flush=True) or FakeRecognizer('one')\n"
        f"sys.argv = ['headsync', 'transcribe', '--realtime', {str(wav)!r}]\nmain()"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], text=True, env=environment(), **pipes) as child:  # type: ignore[call-overload]
        assert child.stdout.readline() == "loaded\n"
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=10) == ("", "")
    assert child.returncode == 130


def test_a_mistake_in_the_program_is_not_hidden(monkeypatch: pytest.MonkeyPatch, wav: Path) -> None:
    def load(*arguments: object, **settings: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(loading, "load_recognizer", load)
    assert isinstance(run("transcribe", wav).exception, ZeroDivisionError)


def test_a_reader_that_leaves_early_is_no_trouble(wav: Path) -> None:
    script = (
        "import sys\nfrom fakes import FakeRecognizer\nfrom headsync.cli import loading, main\n"
        "loading.load_recognizer = lambda *a, **k: FakeRecognizer('one', 'two')\n"
        f"sys.argv = ['headsync', 'transcribe', {str(wav)!r}, {str(wav)!r}]\nmain()"
    )
    command = f'{sys.executable} -c "$SCRIPT" | true'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env={**environment(), "SCRIPT": script})
    assert done.stderr == ""


# listen


class FakeSound(ModuleType):
    """A sound system with one microphone that speaks for a second."""

    class PortAudioError(Exception):
        pass

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__("sounddevice")
        self.then = then
        self.asked: list[object] = []

    def query_devices(self, device: object, kind: str) -> dict[str, float]:
        self.asked.append(device)
        if device == "none":
            raise ValueError("No input device matching 'none'")
        return {"default_samplerate": 44_100.0}

    def InputStream(self, *, callback: Any, blocksize: int, **settings: Any) -> Any:  # noqa: N802
        def speak() -> None:
            for _ in range(10):
                callback(np.zeros((blocksize, 1), np.float32), blocksize, None, SimpleNamespace(input_overflow=False))
            self.then()

        stream = SimpleNamespace(active=True, start=lambda: threading.Thread(target=speak).start())
        stream.stop = stream.close = lambda: None
        self.stream = stream
        return stream


def test_listen_ends_with_the_last_words_on_interrupt(monkeypatch: pytest.MonkeyPatch, says: Say) -> None:
    says("one two three four")
    sound = FakeSound(then=lambda: os.kill(os.getpid(), signal.SIGINT))
    monkeypatch.setitem(sys.modules, "sounddevice", sound)
    before = signal.getsignal(signal.SIGINT)
    result = run("listen", "--device", "2")
    assert (result.exit_code, result.stdout) == (0, "one two three\n")  # what was said within the second
    assert sound.asked == [2]
    assert signal.getsignal(signal.SIGINT) == before


def test_listen_says_when_the_microphone_goes_away(monkeypatch: pytest.MonkeyPatch, says: Say) -> None:
    says("one two")
    sound = FakeSound(then=lambda: setattr(sound.stream, "active", False))
    monkeypatch.setitem(sys.modules, "sounddevice", sound)
    result = run("listen")
    assert (result.exit_code, result.stdout) == (1, "one two\n")
    assert one_line(result.stderr)
    assert "went away" in result.stderr


def test_listen_without_the_device(monkeypatch: pytest.MonkeyPatch, says: Say) -> None:
    says()
    monkeypatch.setitem(sys.modules, "sounddevice", FakeSound(then=lambda: None))
    result = run("listen", "--device", "none")
    assert result.exit_code == 1
    assert one_line(result.stderr)
    assert "--device" in result.stderr


def test_listen_to_a_device_that_is_taken(monkeypatch: pytest.MonkeyPatch, says: Say) -> None:
    class Taken(FakeSound):
        def InputStream(self, **settings: Any) -> Any:  # noqa: N802
            stream = super().InputStream(**settings)

            def start() -> None:
                raise self.PortAudioError("Device unavailable")

            stream.start = start
            return stream

    says()
    monkeypatch.setitem(sys.modules, "sounddevice", Taken(then=lambda: None))
    result = run("listen")
    assert result.exit_code == 1
    assert one_line(result.stderr)
    assert "Device unavailable" in result.stderr


def test_listen_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    result = run("listen")
    assert result.exit_code == 1
    assert one_line(result.stderr)
    assert "pip install 'headsync[mic]'" in result.stderr


def test_listen_without_portaudio(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sounddevice.py").write_text("raise OSError('PortAudio library not found')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    result = run("listen")
    assert result.exit_code == 1
    assert one_line(result.stderr)
    assert "libportaudio2" in result.stderr


# models


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "digits-xx"
    folder.mkdir()
    save_file({"a": np.zeros((1000, 12), np.float32), "b": np.zeros(34, np.float32)}, folder / "weights.safetensors")
    (folder / "README.md").write_text(
        "---\nlicense: mit\n---\n# digits-xx\n\nEnglish digits, streaming. More.\n\nEnd.\n"
    )
    return folder


def test_models_lists_name_purpose_parameters_and_size(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    monkeypatch.setattr(loading, "shipped_models", lambda: {"digits-xx": model})
    result = run("models")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[1].split() == [
        "digits-xx",
        "English",
        "digits,",
        "streaming",
        "0.01",
        "M",
        "0.0",
        "MB",
    ]


def test_models_tells_of_damaged_weights(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    (model / "weights.safetensors").write_bytes(b"broken")
    monkeypatch.setattr(loading, "shipped_models", lambda: {"digits-xx": model})
    result = run("models")
    assert result.exit_code == 1
    assert one_line(result.stderr)
    assert "weights.safetensors" in result.stderr


# prepare and train


def test_prepare_toy_writes_manifests(tmp_path: Path) -> None:
    result = run("prepare", "toy", tmp_path / "toy")
    assert result.exit_code == 0, result.stderr
    assert {path.name for path in (tmp_path / "toy").glob("*.jsonl")} >= {"train.jsonl", "dev.jsonl", "test.jsonl"}


def test_prepare_audiomnist_hands_everything_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from headsync.data import audiomnist

    asked: dict[str, Any] = {}
    monkeypatch.setattr(audiomnist, "prepare", lambda source, out, **rest: asked.update(source=source, out=out, **rest))
    numbers = ("--train", 5, "--dev", 3, "--test", 2, "--seed", 9, "--workers", 2)
    others = ("--speech", tmp_path / "speech", "--foreign", tmp_path / "a.jsonl", "--foreign", tmp_path / "b.jsonl")
    result = run("prepare", "audiomnist", tmp_path, tmp_path / "out", *others, *numbers)
    assert result.exit_code == 0, result.stderr
    assert callable(asked.pop("progress"))
    assert asked == {
        "source": tmp_path,
        "out": tmp_path / "out",
        "strings": audiomnist.Counts(train=5, dev=3, test=2),
        "speech": tmp_path / "speech",
        "foreign": [tmp_path / "a.jsonl", tmp_path / "b.jsonl"],
        "seed": 9,
        "workers": 2,
    }


def test_prepare_audiomnist_of_a_wrong_folder_gets_one_sentence(tmp_path: Path) -> None:
    result = run("prepare", "audiomnist", tmp_path, tmp_path / "out")
    assert result.exit_code == 1
    assert one_line(result.stderr)


@pytest.mark.parametrize(("kind", "module"), [("recogniser", "loop"), ("lm", "lm")])
def test_train_hands_recipe_and_overrides_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, module: str
) -> None:
    asked: list[object] = []
    trainer = ModuleType(f"headsync.train.{module}")
    trainer.train = lambda recipe, overrides: asked.extend([recipe, overrides])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, trainer.__name__, trainer)
    (tmp_path / "r.toml").write_text(f'kind = "{kind}"')
    assert run("train", tmp_path / "r.toml", "training.seed=3", "training.epochs=2").exit_code == 0
    assert asked == [tmp_path / "r.toml", ["training.seed=3", "training.epochs=2"]]


# evaluate and demo


@pytest.fixture
def manifest(wav: Path, tmp_path: Path) -> Path:
    path = tmp_path / "test.jsonl"
    write_manifest(path, [Utterance("a", wav, "one two", 2.0), Utterance("b", wav, "three", 2.0)])
    return path


def test_evaluate_prints_a_table_and_writes_json(manifest: Path, tmp_path: Path, says: Any) -> None:
    says("one nine", "three")
    settings = ("--beam", 2, "--lookahead", 8, "--threshold", 0.5, "--ctc-weight", 0.4)
    result = run("evaluate", "some-model", manifest, "--json", tmp_path / "out.json", *settings)
    assert result.exit_code == 0, result.stderr
    figures = {line[:26].strip(): line[26:].strip() for line in result.stdout.splitlines()}
    assert figures["error rate"].startswith("33.33%")
    assert "95 %" in figures["error rate"]
    assert figures["substitutions"] == "1"
    assert figures["deletions"] == "0"
    assert figures["insertions"] == "0"
    assert figures["cost ratio r"] == "0.500"
    assert figures["delay, median"] == "0.20 s"
    decoding = {"beam": 2, "lookahead_frames": 8, "threshold": 0.5, "ctc_weight": 0.4}
    decoding |= {"lm": None, "lm_weight": None, "hotwords": [], "engine": "auto"}
    assert says.asked == {"model": "some-model", **decoding}
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["error_rate"] == pytest.approx(1 / 3, abs=1e-4)
    assert document["model"] == "some-model"
    assert document["threshold"] == 0.5


def test_evaluate_limit(manifest: Path, says: Say) -> None:
    says("one two", "nine")
    assert "0.00%" in run("evaluate", "some-model", manifest, "--limit", 1).stdout


def test_evaluate_refuses_at_once_what_cannot_be_written_or_read(manifest: Path, tmp_path: Path, says: Say) -> None:
    says()
    result = run("evaluate", "some-model", manifest, "--json", tmp_path / "no" / "out.json")
    assert result.exit_code == 1
    assert one_line(result.stderr)
    assert "out.json" in result.stderr
    result = run("evaluate", "some-model", tmp_path / "missing.jsonl")
    assert result.exit_code == 1
    assert one_line(result.stderr)
    assert "missing.jsonl" in result.stderr
    (tmp_path / "empty.jsonl").write_text("")
    assert "empty" in run("evaluate", "some-model", tmp_path / "empty.jsonl").stderr


@pytest.fixture
def recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in [("1", "one two\n"), ("2", "three")]:
        soundfile.write(tmp_path / f"{name}.flac", np.zeros(16_000, dtype=np.float32), 16_000)
        (tmp_path / f"{name}.txt").write_text(text)
    monkeypatch.setattr(demo_command, "RECORDINGS", tmp_path)
    return tmp_path


def test_demo_compares_with_what_is_expected(recordings: Path, says: Say) -> None:
    says("one two", "three")
    result = run("demo", "--fast")
    assert result.exit_code == 0, result.stderr
    growing = "    0.50 s  one\n    0.80 s  one two\n    1.00 s  one two.\n  delay 0.20 s · r 0.50"
    assert growing in result.stdout  # a pipe sees it grow, too
    assert "2 of 2 recordings as expected" in result.stdout
    says("one two", "nine")
    result = run("demo", "--fast")
    assert result.exit_code == 1
    assert "expected: three" in result.stdout
    assert "1 of 2" in result.stdout


def test_demo_without_recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_command, "RECORDINGS", tmp_path)
    result = run("demo", "--fast")
    assert result.exit_code == 1
    assert one_line(result.stderr)

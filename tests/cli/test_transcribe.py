"""`headsync transcribe`: output and exit codes."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from rich.console import Console

from commands import Say, environment, one_line, run
from headsync.cli.display import Growing, Lines, paced
from headsync.events import Endpoint, Final, Partial, Word


def test_transcribe_prints_plain_final_lines_in_a_pipe(wav: Path, says: Say) -> None:
    says("one two three")
    result = run("transcribe", wav)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "one two three\n", "")


def test_transcribe_passes_model_and_beam(wav: Path, says: Any) -> None:
    says("one")
    assert run("transcribe", wav, "--model", "some-model", "--beam", 4).exit_code == 0
    assert says.asked["model"] == "some-model"
    assert says.asked["beam"] == 4


def test_transcribe_names_the_files_when_there_are_several(wav: Path, says: Say) -> None:
    says("one two", "", "three")
    result = run("transcribe", wav, wav, wav)
    assert result.stdout == f"{wav}: one two\n{wav}:\n{wav}: three\n"


def test_a_bad_file_is_an_error_and_the_others_are_transcribed(wav: Path, tmp_path: Path, says: Say) -> None:
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


def test_brackets_in_names_and_long_sentences_are_printed_unchanged(tmp_path: Path, says: Say) -> None:
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


@pytest.mark.parametrize("options", [["--workers", 2], ["--address", "auto"], ["--cluster", "ray"]])
def test_manifest_options_are_refused_for_files(wav: Path, says: Say, options: list[object]) -> None:
    says("one")
    result = run("transcribe", wav, *options)
    assert result.exit_code == 2
    assert "manifest" in result.stderr


@pytest.mark.parametrize("options", [["--realtime"], ["--format", "srt"], ["--workers", 2]])
def test_file_and_cluster_options_are_refused_for_a_manifest(tmp_path: Path, options: list[object]) -> None:
    assert run("transcribe", "--manifest", tmp_path / "m.jsonl", *options).exit_code == 2


@pytest.mark.parametrize("value", ["true", "False"])
def test_the_value_of_a_flag_is_not_read_as_a_file(wav: Path, says: Say, value: str) -> None:
    says("one")
    result = run("transcribe", wav, "--realtime", value)
    assert result.exit_code == 2
    assert "--realtime takes no value" in result.stderr
    assert result.stdout == ""


def test_transcribe_reads_a_wav_from_standard_input(wav: Path, says: Say) -> None:
    says("one two")
    assert run("transcribe", "-", input=wav.read_bytes()).stdout == "one two\n"


def test_standard_input_that_is_not_a_wav_is_an_error(says: Say) -> None:
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


def test_paced_pieces_arrive_at_the_speed_of_speech(monkeypatch: pytest.MonkeyPatch) -> None:
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
        "import sys\nfrom fakes import FakeRecognizer\nfrom headsync.cli import load_model, main\n"
        "load_model.load_recognizer = lambda *a, **k: FakeRecognizer('one two')\n"
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
    except OSError:  # Linux: the other side has closed
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

"""Figures of attention: they show the weights of the search."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from headsync.cli.app import app
from headsync.engine.tracing import TracedStep
from headsync.errors import ConfigError, HeadsyncError
from headsync.evaluation.plots import END, AttentionMaps, _keys_of, attention_of, draw, picture
from headsync.events import Final
from headsync.frontend.audio import read_audio, stream_audio
from headsync.recognizer import Recognizer
from headsync.text.vocabulary import Vocabulary
from recordings import DIGIT_RECORDINGS

RECORDING = sorted(DIGIT_RECORDINGS.glob("*.flac"))[0]


@cache
def recognised() -> str:
    """The text of the recording."""
    (final,) = Recognizer.load("digits-en").transcribe(*read_audio(RECORDING))
    return final.text


@pytest.fixture(scope="module")
def seen() -> AttentionMaps:
    (attention,) = attention_of("digits-en", stream_audio(RECORDING))
    return attention


@pytest.fixture
def invented() -> AttentionMaps:
    """Two layers of two heads, three steps, five frames; the utterance begins two seconds into the recording."""
    weights = np.arange(2 * 2 * 3 * 5, dtype=np.float32).reshape(2, 2, 3, 5) / 60
    end = np.array([[[1, 2, 5], [1, 3, 4]], [[1, 2, 5], [0, 3, 5]]])
    return AttentionMaps("dacs", "ba di", ("ba", "di", END), weights, end, 50, 0.04)


def test_the_steps_are_those_that_wrote_the_text(seen: AttentionMaps) -> None:
    assert seen.text == recognised()
    assert seen.labels == (*seen.text.split(), END)
    layers, heads, steps, frames = seen.weights_NHLT.shape
    assert steps == len(seen.labels)
    assert seen.end_NHL.shape == (layers, heads, steps)
    beyond = np.arange(frames) >= seen.end_NHL[..., None]
    assert (seen.weights_NHLT[beyond] == 0).all()
    assert (seen.weights_NHLT.sum(-1) > 0).all()


def test_texts_and_halts_are_those_of_the_recogniser_in_every_utterance() -> None:
    """A recording twice, with a pause between."""
    pieces = list(stream_audio(RECORDING))
    rate = pieces[0][1]
    silence = np.zeros((3 * rate, *pieces[0][0].shape[1:]), np.float32)
    pieces = [*pieces, (silence, rate), *pieces]
    finals = Recognizer.load("digits-en").transcribe(np.concatenate([samples for samples, _ in pieces]), rate)
    found = attention_of("digits-en", pieces)
    assert len(finals) == 2
    for final, attention in zip(finals, found, strict=True):
        assert attention.text == final.text
        halts = attention.first_frame + np.maximum.accumulate(attention.end_NHL.max((0, 1)))
        assert tuple(halts[:-1]) == final.halts
    assert found[1].first_frame * 0.04 > 3


def test_two_utterances_with_the_same_text_have_separate_steps() -> None:
    vocabulary = Vocabulary("words", ("ba", "di"))
    nothing = TracedStep(np.zeros((1, 1, 1), np.float32), np.zeros((1, 1), np.int64))
    steps = dict.fromkeys([(1,), (1, 1), (1, 2), (1, 1, 1), (3,), (3, 1), (4,), (4, 2)], nothing)
    finals = [Final(n, "ba", (), 0.0, 0.0, (1,), 0.5) for n in range(2)]
    assert _keys_of(finals, steps, vocabulary) == [(1, 1), (3, 1)]


def test_heads_are_drawn_side_by_side_on_the_time_of_the_recording(invented: AttentionMaps) -> None:
    figure = picture(invented, layer=2)
    assert [axis.get_title() for axis in figure.axes] == ["head 1", "head 2"]
    for head, axis in enumerate(figure.axes):
        (image,) = axis.get_images()
        np.testing.assert_array_equal(image.get_array(), invented.weights_NHLT[1, head])
        assert image.get_extent() == pytest.approx([2.0, 2.2, 2.5, -0.5])
        assert image.get_clim() == pytest.approx((0.0, 59 / 60))  # all heads of a layer on one scale
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["ba", "di", END]
    assert figure.get_suptitle() == "dacs, decoder layer 2 of 2"


def test_halts_are_marked_in_the_last_frame_that_was_consumed(invented: AttentionMaps) -> None:
    first, second = (axis.get_lines()[0] for axis in picture(invented, layer=2).axes)
    assert first.get_xdata() == pytest.approx([2.02, 2.06, 2.18])
    assert first.get_ydata() == pytest.approx([0, 1, 2])
    assert second.get_xdata() == pytest.approx([2.10, 2.18])  # the first step consumed nothing
    assert second.get_ydata() == pytest.approx([1, 2])


@pytest.mark.parametrize(("name", "begin"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
def test_the_same_picture_is_the_same_file(invented: AttentionMaps, tmp_path: Path, name: str, begin: bytes) -> None:
    draw(invented, tmp_path / name)
    first = (tmp_path / name).read_bytes()
    assert first.startswith(begin)
    draw(invented, tmp_path / name, layer=2)  # which is the top one
    assert (tmp_path / name).read_bytes() == first
    draw(invented, tmp_path / name, layer=1)
    assert (tmp_path / name).read_bytes() != first


def test_errors_of_figures_are_clear(invented: AttentionMaps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="cross-attention are 1 to 2"):
        draw(invented, tmp_path / "a.png", layer=3)
    with pytest.raises(ConfigError, match=r"a\.jpg: figures are written as PNG or SVG"):
        draw(invented, tmp_path / "a.jpg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(HeadsyncError, match=r"figures require matplotlib: pip install 'headsync\[plot\]'"):
        draw(invented, tmp_path / "a.png")


def test_the_command_draws_a_recording(tmp_path: Path) -> None:
    out = tmp_path / "heads.svg"
    result = CliRunner().invoke(app, ["plot", "attention", "digits-en", str(RECORDING), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert result.output == f"{out}: {recognised()}\n"
    assert "head 4" in out.read_text()


def test_a_recording_without_words_is_an_error(tmp_path: Path) -> None:
    silence = tmp_path / "silence.wav"
    soundfile.write(silence, np.zeros(16_000), 16_000)
    out = tmp_path / "heads.png"
    result = CliRunner().invoke(app, ["plot", "attention", "digits-en", str(silence), "--out", str(out)])
    assert result.exit_code == 1
    assert "recognises no words" in result.output
    assert not out.exists()

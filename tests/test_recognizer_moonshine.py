"""A recogniser of the moonshine family: neither chunking nor later audio changes an event."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from headsync import ConfigError, Event, Final, ModelError, Recognizer
from headsync.config import Config, DecoderConfig, DecodingConfig, EncoderConfig, EndpointConfig, NetworkConfig
from headsync.engine.export import export_model
from headsync.frontend.features import Statistics
from headsync.frontend.waveform import Waveform
from headsync.model_folder import WEIGHTS, load_folder, save_folder
from headsync.nn.model import Model
from headsync.nn.rotary import CtcHead
from random_weights import scrambled
from test_recognizer import VOCABULARY, listen, sound


@pytest.fixture(autouse=True, scope="module")
def short_lead() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headsync.endpointing.endpointer.LEAD_SECONDS", 0.16)
        yield


def save_random_model(folder: Path) -> None:
    """An untrained model whose CTC has tokens in one half of `sound`."""
    config = Config(
        network=NetworkConfig(width=16, heads=2, feedforward=16, family="moonshine"),
        encoder=EncoderConfig(2, left_frames=7, centre_frames=3, right_frames=2, mode="reuse", varied_frames="1 6"),
        decoder=DecoderConfig(2, energy_bias=-2.0, frame_positions=False),
        decoding=DecodingConfig(beam=3, lookahead_frames=5),
        endpoint=EndpointConfig(pause_seconds=0.24, longest_seconds=0.8),
    )
    model = scrambled(Model(config, config.columns, VOCABULARY.size), 5)
    blocks = torch.from_numpy(Waveform().whole(sound(16_000))[None]).double()
    with torch.inference_mode():
        frames, _ = model.encoder.whole(blocks, torch.tensor([blocks.shape[1]]))
        logits = model.ctc(frames)[0]
        assert isinstance(model.ctc, CtcHead)
        model.ctc.bias[0] += (logits[:, 1:].logsumexp(-1) - logits[:, 0]).median()
    save_folder(folder, config, VOCABULARY, Statistics.identity(config.columns))
    save_file({name: weight.float() for name, weight in model.state_dict().items()}, folder / WEIGHTS)


@pytest.fixture(scope="module", params=["torch", "onnx"])
def recognizer(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Recognizer:
    folder = tmp_path_factory.mktemp("model")
    save_random_model(folder)
    export_model(load_folder(folder), folder)
    return Recognizer.load(folder, engine=request.param)


@pytest.fixture(scope="module")
def whole(recognizer: Recognizer) -> list[Event]:
    return listen(recognizer, sound(16_000), 16_000)


def test_the_random_model_writes_text(whole: list[Event]) -> None:
    finals = [event for event in whole if isinstance(event, Final)]
    assert len({final.text for final in finals}) > 1
    assert any(len(final.halts) > 1 for final in finals)


def test_times_are_those_of_frames_of_48_ms(whole: list[Event]) -> None:
    times = [w.start_seconds for e in whole if isinstance(e, Final) for w in e.words]
    assert times
    assert all(abs(time / 0.048 - round(time / 0.048)) < 0.02 for time in times)
    delays = {e.time_seconds for e in whole[:-2]}
    assert min(delays) >= (12 * 5 + 8) * 64 / 16_000  # centre, right, and what the front end sees beyond


@settings(max_examples=15, deadline=None, phases=[Phase.generate])
@given(st.data())
def test_chunking_never_changes_an_event(recognizer: Recognizer, whole: list[Event], data: st.DataObject) -> None:
    samples = sound(16_000)
    cuts = data.draw(st.lists(st.integers(0, len(samples)), max_size=40))
    first = data.draw(st.integers(0, len(samples)))
    single = range(first, min(first + data.draw(st.integers(0, 150)), len(samples)))
    assert listen(recognizer, samples, 16_000, sorted([*cuts, *single])) == whole


def test_later_audio_does_not_change_earlier_events(recognizer: Recognizer, whole: list[Event]) -> None:
    samples, cut = sound(16_000).copy(), 20_000
    samples[cut:] = 0.9 * np.random.default_rng(2).standard_normal(len(samples) - cut).astype(np.float32).clip(-1, 1)
    before = [event for event in whole if event.time_seconds <= cut / 16_000]
    assert before
    assert listen(recognizer, samples, 16_000)[: len(before)] == before


@pytest.mark.parametrize("decibels", [-45, 30])
def test_faint_and_clipped_speech_are_recognised(recognizer: Recognizer, decibels: float) -> None:
    samples = (sound(16_000) * 10 ** (decibels / 20)).clip(-1, 1).astype(np.float32)
    assert any(isinstance(event, Final) and event.text for event in listen(recognizer, samples, 16_000))


def test_recordings_too_short_for_a_frame_and_silence(recognizer: Recognizer) -> None:
    for count in (0, 1, 63, 1279, 1280, 2000):
        listen(recognizer, np.zeros(count, np.float32), 16_000)


# sizes of the encoder's blocks, chosen for a stream

SIZES: list[tuple[dict[str, Any], tuple[int, int]]] = [  # in milliseconds, and in encoder frames
    ({"centre_ms": 240, "right_ms": 48}, (5, 1)),
    ({"right_ms": 250.0}, (3, 5)),
    ({"centre_ms": 288}, (6, 2)),
    ({"centre_ms": 40, "right_ms": 288}, (1, 6)),
]


@pytest.mark.parametrize(("sizes", "frames"), SIZES)
def test_a_stream_chooses_sizes_as_if_stored_and_chunking_changes_nothing(
    recognizer: Recognizer, whole: list[Event], sizes: dict[str, Any], frames: tuple[int, int], tmp_path: Path
) -> None:
    chosen, samples = recognizer.changed(sizes), sound(16_000)
    events = listen(chosen, samples, 16_000)
    assert events != whole
    assert listen(chosen, samples, 16_000, [1, 2, 700, 7_000, *range(12_000, 12_100), 30_001]) == events
    assert listen(recognizer, samples, 16_000) == whole
    budget = {"centre_ms": 48.0 * frames[0], "right_ms": 48.0 * frames[1]}
    assert chosen.budget == {**recognizer.budget, **budget}
    assert chosen.changed({"beam": 3}).budget == chosen.budget
    assert min(event.time_seconds for event in events[:-2]) >= (12 * sum(frames) + 8) * 64 / 16_000
    stored = copied(recognizer, tmp_path, centre_frames=frames[0], right_frames=frames[1])
    engine = "onnx" if type(recognizer.engine).__name__ == "OnnxEngine" else "torch"
    assert listen(Recognizer.load(stored, engine=engine), samples, 16_000) == events
    assert listen(Recognizer.load(recognizer.folder.path, engine=engine, **sizes), samples, 16_000) == events


def copied(recognizer: Recognizer, path: Path, **encoder: Any) -> Path:
    """A copy of the model with other settings of the encoder."""
    source = recognizer.folder
    for file in source.path.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    config = replace(source.config, encoder=replace(source.config.encoder, **encoder))
    save_folder(path, config, source.vocabulary, source.statistics)
    return path


@pytest.mark.parametrize(("wrong", "sentence"), [
    ({"centre_ms": 20}, "centre_ms = 20 must be from 48 to 288, the sizes that this model was trained with"),
    ({"right_ms": 313.0}, "right_ms = 313.0 must be from 48 to 288, the sizes that this model was trained with"),
    ({"right_ms": float("inf")}, "right_ms = inf must be from 48 to 288, the sizes that this model was trained with"),
    ({"centre_ms": "240"}, "centre_ms = '240' must be a number above 0, for example 384"),
    ({"right_ms": 0}, "right_ms = 0 must be a number above 0, for example 384"),
])  # fmt: skip
def test_sizes_beyond_training_are_refused(recognizer: Recognizer, wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recognizer.session(**wrong)
    assert str(caught.value) == sentence


def test_a_model_of_one_size_has_no_choice(recognizer: Recognizer, tmp_path: Path) -> None:
    fixed = Recognizer.load(copied(recognizer, tmp_path, varied_frames=""), engine="torch")
    assert set(fixed.budget) == {"lookahead_ms", "threshold", "pause_seconds"}
    with pytest.raises(ConfigError, match="centre_ms = 144 is not possible: this model was trained with one size of"):
        fixed.session(centre_ms=144)
    with pytest.raises(ModelError, match=r"graphs have encoder\.centre_frames = 'any', the rest of the model has 3"):
        Recognizer.load(tmp_path, engine="onnx")

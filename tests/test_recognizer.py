"""From sound to events: no cutting of the audio, at any rate and with any channels, changes anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from headsync import Attention, AudioError, ConfigError, Endpoint, Event, Final, Partial, Recognizer, shipped_models
from headsync.config import (
    Config,
    DecoderConfig,
    DecodingConfig,
    EncoderConfig,
    EndpointConfig,
    FeaturesConfig,
    NetworkConfig,
)
from headsync.engine.tracing import TracingEngine
from headsync.frontend.audio import resample
from headsync.frontend.features import Features, Statistics, normalise
from headsync.model_folder import WEIGHTS, save_folder
from headsync.nn.model import Model
from headsync.text.vocabulary import Vocabulary
from random_weights import scrambled

RATES = [4000, 8000, 11_025, 16_000, 22_050, 44_100, 48_000, 192_000]
SECONDS = 2.4
VOCABULARY = Vocabulary("characters", ("<space>", *"abcdefgh"))


@pytest.fixture(autouse=True, scope="module")
def short_lead() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headsync.endpointing.endpointer.LEAD_SECONDS", 0.16)
        yield


@cache
def sound(rate: int, channels: int = 1, kind: str = "float32") -> np.ndarray:
    """Four different tones with pauses between, in faint noise; every channel a little different."""
    time = np.arange(round(SECONDS * rate)) / rate
    loud = np.sin(2 * np.pi * 1.25 * time - 0.5) > 0.2
    tone = np.sin(2 * np.pi * 300 * time * (1 + np.floor(1.25 * time)))
    noise = 0.003 * np.random.default_rng(1).standard_normal((len(time), channels))
    samples = 0.3 * (loud * tone)[:, None] * np.linspace(1, 0.5, channels) + noise
    samples = samples[:, 0] if channels == 1 else samples
    return (samples * 32767).astype(np.int16) if kind == "int16" else samples.astype(kind)


def save_random_model(folder: Path, attention: str = "hs-dacs", seed: int = 5, pitch: bool = False) -> None:
    """An untrained model whose CTC has tokens in the louder half of `sound`."""
    config = Config(
        features=FeaturesConfig(pitch),
        network=NetworkConfig(width=16, heads=2, feedforward=16, kernels=4),
        encoder=EncoderConfig(2, left_frames=5, centre_frames=3, right_frames=2),
        decoder=DecoderConfig(2, attention, energy_bias=-2.0),
        decoding=DecodingConfig(lookahead_frames=5, length_bonus=3.0),
        endpoint=EndpointConfig(pause_seconds=0.24, longest_seconds=0.8),
    )
    model = scrambled(Model(config, config.columns, VOCABULARY.size), seed)
    features = Features.of(config.features).whole(sound(16_000))
    statistics = Statistics.of([features])
    with torch.inference_mode():
        known = torch.tensor(normalise(features, statistics)[None], dtype=torch.float64)
        frames, _ = model.encoder.whole(known, torch.tensor([len(features)]))
        logits = model.ctc(frames)[0]
        model.ctc.bias[0] += (logits[:, 1:].logsumexp(-1) - logits[:, 0]).median()
        model.decoder.out.bias[-1] -= 0.5  # of <eos>
    save_folder(folder, config, VOCABULARY, statistics)
    save_file({name: weight.float() for name, weight in model.state_dict().items()}, folder / WEIGHTS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_random_model(path)
    return path


@pytest.fixture(scope="module")
def recognizer(folder: Path) -> Recognizer:
    return Recognizer.load(folder)


def listen(
    recognizer: Recognizer, samples: np.ndarray, rate: int, cuts: list[int] | None = None, attention: bool = False
) -> list[Event]:
    """All events of a stream that is cut at the given places."""
    session = recognizer.session(attention)
    events = [event for piece in np.split(samples, cuts or []) for event in session.push(piece, rate)]
    return events + session.finish()


@pytest.fixture(scope="module")
def whole(recognizer: Recognizer) -> Callable[..., list[Event]]:
    """The events of a sound that is pushed as a whole; each computed once."""
    return cache(lambda *kind: listen(recognizer, sound(*kind), kind[0]))


def finals(events: list[Event]) -> list[Final]:
    return [event for event in events if isinstance(event, Final)]


@settings(max_examples=25, deadline=None, phases=[Phase.generate])  # a smaller example would take minutes to find
@given(st.data())
def test_chunking_never_changes_an_event(
    recognizer: Recognizer, whole: Callable[..., list[Event]], data: st.DataObject
) -> None:
    """Texts, times, words, halts, costs, partial and final, to the last bit."""
    draw = data.draw
    rate, channels, kind = (
        draw(st.sampled_from(RATES)),
        draw(st.integers(1, 8)),
        draw(st.sampled_from(["float32", "int16"])),
    )
    samples = sound(rate, channels, kind)
    cuts = draw(st.lists(st.integers(0, len(samples)), max_size=40))
    first = draw(st.integers(0, len(samples)))
    single = list(range(first, min(first + draw(st.integers(0, 150)), len(samples))))  # a run of single samples
    assert listen(recognizer, samples, rate, sorted([*cuts, *single])) == whole(rate, channels, kind)


@pytest.mark.parametrize("rate", [4000, 16_000])
def test_single_samples_are_enough(recognizer: Recognizer, rate: int) -> None:
    samples = sound(rate)[: round(1.2 * rate)]
    assert listen(recognizer, samples, rate, list(range(1, len(samples)))) == listen(recognizer, samples, rate)


@pytest.mark.parametrize("rate", RATES)
def test_pieces_of_a_tenth_of_a_second(recognizer: Recognizer, whole: Callable[..., list[Event]], rate: int) -> None:
    samples = sound(rate, 2)
    cuts = list(range(0, len(samples), rate // 10))
    assert listen(recognizer, samples, rate, cuts) == whole(rate, 2)


@pytest.mark.parametrize("rate", RATES)
def test_the_random_model_writes_text(whole: Callable[..., list[Event]], rate: int) -> None:
    """So that these tests do not compare nothing with nothing."""
    events = whole(rate)
    assert finals(events)
    assert len(finals(whole(16_000))) >= 2
    assert sum(isinstance(event, Partial) for event in whole(16_000)) >= 2
    assert len("".join(final.text for final in finals(events))) >= 10
    assert len({halt for final in finals(whole(16_000)) for halt in final.halts}) >= 3


def test_utterances_are_numbered_in_order(recognizer: Recognizer, whole: Callable[..., list[Event]]) -> None:
    events, number, text, time = whole(16_000), 0, "", 0.0
    for event in events:
        if isinstance(event, Endpoint):
            assert event.utterance in (number - 1, number)  # the one that ended, or silence
            continue
        assert event.utterance == number
        assert event.text
        assert event.time_seconds >= time
        assert event.delay_seconds >= 0
        assert event.text.startswith(text)  # with a beam of one nothing is removed
        assert isinstance(event, Final) or event.text != text  # and nothing is said twice
        assert [word.text for word in event.words] == event.text.split()
        time, text = event.time_seconds, event.text
        if isinstance(event, Final):
            number, text = number + 1, ""
    assert not events or isinstance(events[-1], Final | Endpoint)


def test_words_lie_in_order_within_the_sound(recognizer: Recognizer, whole: Callable[..., list[Event]]) -> None:
    words = [word for final in finals(whole(16_000)) for word in final.words]
    for word in words:
        assert 0 <= word.start_seconds < word.end_seconds
    for final in finals(whole(16_000)):
        starts = [word.start_seconds for word in final.words]
        assert starts == sorted(starts)
        assert list(final.halts) == sorted(final.halts)
        assert 0 < final.cost_ratio <= 1
        assert max(final.halts) * 0.04 <= final.time_seconds


def test_integer_samples_equal_float_samples(recognizer: Recognizer) -> None:
    integers = sound(16_000, 2, "int16")
    floats = integers.astype(np.float32) / 32768
    assert listen(recognizer, integers, 16_000) == listen(recognizer, floats, 16_000)
    assert listen(recognizer, floats.astype(np.float64), 16_000) == listen(recognizer, floats, 16_000)


def test_two_equal_channels_are_one(recognizer: Recognizer, whole: Callable[..., list[Event]]) -> None:
    assert listen(recognizer, np.stack([sound(8000)] * 2, 1), 8000) == whole(8000)


def test_a_stream_at_another_rate_is_the_resampled_one(recognizer: Recognizer) -> None:
    """Up to when the last event came: resampling rounds the length of the sound."""
    one, other = (
        finals(listen(recognizer, samples, rate))
        for samples, rate in ((sound(48_000), 48_000), (resample(sound(48_000), 48_000), 16_000))
    )
    assert [(f.text, f.words, f.halts) for f in one] == [(f.text, f.words, f.halts) for f in other]


def test_transcribe_is_the_finals_of_a_stream(recognizer: Recognizer, whole: Callable[..., list[Event]]) -> None:
    assert recognizer.transcribe(sound(16_000), 16_000) == finals(whole(16_000))


def test_streams_are_independent(recognizer: Recognizer, whole: Callable[..., list[Event]]) -> None:
    sessions = {rate: recognizer.session() for rate in (8000, 44_100)}
    events: dict[int, list[Event]] = {rate: [] for rate in sessions}
    for tenth in range(24):
        for rate, session in sessions.items():
            events[rate] += session.push(sound(rate)[tenth * rate // 10 : (tenth + 1) * rate // 10], rate)
    for rate, session in sessions.items():
        assert events[rate] + session.finish() == whole(rate)


def test_chunking_never_changes_an_event_with_a_wider_beam(folder: Path) -> None:
    recognizer = Recognizer.load(folder, beam=4, lookahead_frames=3)
    samples = sound(16_000)
    cut = listen(recognizer, samples, 16_000, [1, 5000, 5001, 20_000, 33_333])
    assert cut == listen(recognizer, samples, 16_000)
    assert finals(cut) != finals(listen(Recognizer.load(folder), samples, 16_000))  # it is another search


@pytest.mark.parametrize("attention", ["dacs", "softmax"])
def test_chunking_never_changes_an_event_with_other_mechanisms(tmp_path: Path, attention: str) -> None:
    save_random_model(tmp_path, attention, seed=5)
    recognizer = Recognizer.load(tmp_path)
    cut = listen(recognizer, sound(16_000), 16_000, [1, 5000, 5001, 20_000, 33_333])
    assert cut == listen(recognizer, sound(16_000), 16_000)
    assert finals(cut)


@pytest.mark.parametrize("name", shipped_models())
@pytest.mark.parametrize(("rate", "channels"), [(8000, 1), (44_100, 2), (192_000, 1)])
def test_chunking_never_changes_an_event_of_shipped_models(name: str, rate: int, channels: int) -> None:
    recognizer, samples = Recognizer.load(name), sound(rate, channels)
    cuts = np.random.default_rng(rate).integers(0, len(samples), 30)
    assert listen(recognizer, samples, rate, sorted(cuts)) == listen(recognizer, samples, rate)


LOOKING = [("hs-dacs", 1), ("hs-dacs", 4), ("mocha", 2), ("cif", 2), ("softmax", 2), ("triggered", 3), ("bs-dec", 3)]


@pytest.mark.parametrize(("attention", "beam"), LOOKING)
def test_attention_events_are_optional(tmp_path: Path, attention: str, beam: int) -> None:
    """With any search: once for every token of the final texts, in order, before the text is final; the rest is as it
    is without asking, and no cutting changes any of it."""
    save_random_model(tmp_path, attention, seed=1 if attention == "triggered" else 5)  # with which it writes text
    recognizer, samples = Recognizer.load(tmp_path, beam=beam), sound(16_000)
    events = listen(recognizer, samples, 16_000, attention=True)
    assert listen(recognizer, samples, 16_000, [1, 5000, 5001, 20_000, 33_333], attention=True) == events
    looks = [event for event in events if isinstance(event, Attention)]
    assert [event for event in events if event not in looks] == listen(recognizer, samples, 16_000)
    told: list[Attention] = []
    for event in events:
        if isinstance(event, Attention):
            told.append(event)
        elif isinstance(event, Final):
            text = "".join(" " if look.token == "<space>" else look.token for look in told)
            assert " ".join(text.split()) == event.text
            assert [(look.utterance, look.number) for look in told] == [(event.utterance, n) for n in range(len(told))]
            assert len(told) == len(event.halts)
            told = []
    assert told == []
    for look in looks:
        assert len(look.weights) == len(look.halts_seconds) == 2
        for weights, halt in zip(look.weights, look.halts_seconds, strict=True):
            looked = [look.start_seconds + n * look.frame_seconds for n, weight in enumerate(weights) if weight]
            assert max(looked, default=-1.0) < halt <= look.time_seconds  # 0: this head found nothing
    assert max(w for look in looks for head in look.weights for w in head) > 0.05


def test_attention_events_equal_the_weights_of_the_network(folder: Path) -> None:
    plain = Recognizer.load(folder)
    engine = TracingEngine(plain.engine.model)  # type: ignore[attr-defined]
    recognizer = Recognizer(plain.folder, engine, plain.search.config)
    events = listen(recognizer, sound(16_000), 16_000, attention=True)
    first = [event for event in events if isinstance(event, Attention) and event.utterance == 0]
    tokens = [VOCABULARY.tokens.index(look.token) + 1 for look in first]
    assert len(first) > 2
    begins = finals(events)[0].halts[0] - int(engine.steps[1,].end_NH.max())  # of the utterance, in the stream
    for n, look in enumerate(first):
        known = engine.steps[1, *tokens[:n]]
        start = round(look.start_seconds / 0.04) - begins
        kept = known.weights_NHT[-1][:, start : start + len(look.weights[0])]
        np.testing.assert_allclose(np.array(look.weights), kept, atol=5.1e-4)
        assert known.weights_NHT[-1].sum() == pytest.approx(kept.sum(), abs=0.01 * known.weights_NHT[-1].size)
        np.testing.assert_allclose(look.halts_seconds, (begins + known.end_NH[-1]) * 0.04)


def test_the_threshold_can_be_changed(folder: Path) -> None:
    ratios = []
    for threshold in (0.25, None, 100.0):
        events = listen(Recognizer.load(folder, threshold=threshold), sound(16_000), 16_000)
        ratios.append(np.mean([final.cost_ratio for final in finals(events)]))
    assert ratios[0] < ratios[1] < ratios[2]


def test_audio_seconds_count_samples(recognizer: Recognizer) -> None:
    session = recognizer.session()
    for samples in np.split(sound(44_100), range(0, 44_100, 441)):
        session.push(samples, 44_100)
    assert session.audio_seconds == len(sound(44_100)) / 44_100


@pytest.mark.parametrize("pitch", [False, True])
def test_an_event_comes_with_the_sample_that_its_time_names(tmp_path: Path, pitch: bool) -> None:
    """Before the end of a stream: exactly when so much audio has arrived, and not one sample later or earlier."""
    save_random_model(tmp_path, pitch=pitch)
    recognizer, samples = Recognizer.load(tmp_path), sound(16_000)
    session = recognizer.session()
    times = sorted({round(event.time_seconds * 16_000) for event in session.push(samples, 16_000)})
    assert len(times) >= 3
    session, pushed = recognizer.session(), 0
    for time in times:
        assert session.push(samples[pushed : time - 1], 16_000) == []
        events = session.push(samples[time - 1 : time], 16_000)
        assert {round(event.time_seconds * 16_000) for event in events} == {time}
        pushed = time


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100])
def test_events_at_the_end_need_all_of_the_audio(recognizer: Recognizer, rate: int) -> None:
    found = 0
    for seconds in np.arange(0.6, 2.4, 0.0153 if rate != 16_000 else 0.153):
        session = recognizer.session()
        session.push(sound(rate)[: round(seconds * rate)], rate)
        events = session.finish()
        assert {event.time_seconds for event in events} <= {session.audio_seconds}
        found += len(events)
    assert found > 5


def test_a_session_in_use_by_another_thread_is_refused(recognizer: Recognizer) -> None:
    session = recognizer.session()
    with session._exclusively(), ThreadPoolExecutor(1) as other:
        for call in (lambda: session.push(sound(16_000), 16_000), session.finish):
            with pytest.raises(AudioError, match="in use by another thread"):
                other.submit(call).result()
    events = session.push(sound(16_000), 16_000) + session.finish()
    assert events == listen(recognizer, sound(16_000), 16_000)  # and nothing is lost


def test_finishing_twice_returns_no_events(recognizer: Recognizer) -> None:
    session = recognizer.session()
    session.push(sound(16_000), 16_000)
    session.finish()
    assert session.finish() == []


def test_pushing_after_the_end_is_refused(recognizer: Recognizer) -> None:
    session = recognizer.session()
    session.finish()
    with pytest.raises(AudioError, match="finished"):
        session.push(sound(16_000), 16_000)


def test_no_audio_gives_no_event(recognizer: Recognizer) -> None:
    assert recognizer.session().finish() == []
    assert recognizer.transcribe(np.zeros(0, np.float32), 16_000) == []
    assert recognizer.transcribe(np.zeros(0, np.int16), 44_100) == []
    assert recognizer.transcribe(np.zeros((0, 2), np.float32), 8000) == []
    assert recognizer.transcribe(sound(16_000)[:100], 16_000) == []


@pytest.mark.parametrize("rate", [8000, 16_000])
def test_empty_pushes_change_nothing(recognizer: Recognizer, whole: Callable[..., list[Event]], rate: int) -> None:
    session, samples = recognizer.session(), sound(rate)
    events = session.push(samples[:0], rate) + session.push(samples[:999], rate) + session.push(samples[:0], rate)
    events += session.push(samples[999:], rate) + session.push(samples[:0], rate)
    assert events + session.finish() == whole(rate)


@pytest.mark.parametrize("wrong", [
    np.array([0.0, np.nan, 0.0], np.float32), np.array([np.inf], np.float32), np.zeros((2, 2, 2), np.float32),
    np.zeros(5, np.uint8), np.zeros((5, 65), np.float32), np.float32(1.0), np.array(["a"]),
], ids=["nan", "infinite", "three axes", "bytes", "65 channels", "a number", "text"])  # fmt: skip
def test_invalid_samples_are_refused_and_the_stream_continues(
    recognizer: Recognizer, whole: Callable[..., list[Event]], wrong: np.ndarray
) -> None:
    session, samples = recognizer.session(), sound(8000)
    events = session.push(samples[:7777], 8000)
    with pytest.raises(AudioError):
        session.push(wrong, 8000)
    events += session.push(samples[7777:], 8000)
    assert events + session.finish() == whole(8000)


def test_a_changed_rate_is_refused_and_the_stream_continues(
    recognizer: Recognizer, whole: Callable[..., list[Event]]
) -> None:
    session, samples = recognizer.session(), sound(8000)
    events = session.push(samples[:7777], 8000)
    with pytest.raises(AudioError, match="began at 8000 Hz and cannot continue at 16000"):
        session.push(samples[7777:], 16_000)
    events += session.push(samples[7777:], 8000)
    assert events + session.finish() == whole(8000)


@pytest.mark.parametrize("rate", [0, -16_000, 3999, 192_001, 16_000.5, True, "16000"])
def test_invalid_rates_are_refused(recognizer: Recognizer, rate: object) -> None:
    session = recognizer.session()
    with pytest.raises(AudioError, match="sample rate"):
        session.push(sound(16_000), rate)  # type: ignore[arg-type]
    assert session.audio_seconds == 0


@pytest.mark.parametrize(
    "wrong", [{"beam": 0}, {"lookahead_frames": 0}, {"threshold": 0.0}, {"threshold": float("nan")}, {"lm_weight": 0.5}]
)
def test_invalid_settings_are_refused_by_load(folder: Path, wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Recognizer.load(folder, **wrong)  # type: ignore[arg-type]


def test_a_session_has_its_own_delay_budget(folder: Path, recognizer: Recognizer) -> None:
    """Settings of a session are those of a model loaded with them, and change no other session."""
    before = listen(recognizer, sound(16_000), 16_000)
    budgets = ({"lookahead_ms": 80}, {"threshold": 0.25}, {"pause_seconds": 0.08})
    for budget in budgets:
        session = recognizer.session(**budget)  # type: ignore[arg-type]
        events = session.push(sound(16_000), 16_000) + session.finish()
        loaded = Recognizer.load(folder, **budget)  # type: ignore[arg-type]
        assert events == listen(loaded, sound(16_000), 16_000)
        assert events != before
    assert listen(recognizer, sound(16_000), 16_000) == before


@pytest.mark.parametrize(("ms", "frames"), [(1, 1), (80, 2), (99, 2), (101, 3), (float("inf"), 25_000_000_000)])
def test_lookahead_is_rounded_to_frames(recognizer: Recognizer, ms: float, frames: int) -> None:
    assert recognizer.changed({"lookahead_ms": ms}).search.config.lookahead_frames == frames


@pytest.mark.parametrize(
    "wrong", [{"lookahead_ms": 0}, {"lookahead_ms": True}, {"threshold": "1"}, {"pause_seconds": -1.0}, {"beem": 3}]
)
def test_invalid_session_settings_are_refused(recognizer: Recognizer, wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        recognizer.session(**wrong)  # type: ignore[arg-type]


def test_changed_settings_are_kept_where_others_change(recognizer: Recognizer) -> None:
    twice = recognizer.changed({"threshold": 0.25}).changed({"lookahead_ms": 80})
    both = recognizer.changed({"threshold": 0.25, "lookahead_ms": 80})
    assert listen(twice, sound(16_000), 16_000) == listen(both, sound(16_000), 16_000)
    assert recognizer.changed({}) is recognizer
    assert twice.budget == {"lookahead_ms": 80.0, "threshold": 0.25, "pause_seconds": 0.24}
    assert recognizer.budget == {"lookahead_ms": 200.0, "threshold": 1.0, "pause_seconds": 0.24}

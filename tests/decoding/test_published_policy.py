"""The published policy of every mechanism, from audio to events, against literal searches over the whole decoder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from fakes_engine import Bigrams, ReadingEngine, TableEngine, nothing_heard, spoken
from headsync import Final, Partial, Recognizer
from headsync.attention import MECHANISMS
from headsync.attention.bernoulli import MMA
from headsync.config import Config, DecoderConfig, DecodingConfig, EncoderConfig, EndpointConfig, NetworkConfig
from headsync.corpora import toy
from headsync.corpora.manifest import read_manifest
from headsync.decoding import build
from headsync.decoding.hotwords import Hotwords
from headsync.decoding.hypothesis import Beam, SpeechFrames
from headsync.decoding.lookahead import LIMITS
from headsync.decoding.published_policy import PublishedSearch
from headsync.endpointing.ctc_spikes import NO_SPIKES
from headsync.engine.torch import TorchEngine
from headsync.frontend.audio import mix_down, read_audio, resample
from headsync.frontend.features import NUM_MEL, Features, Statistics, normalise
from headsync.frontend.waveform import build_features
from headsync.model_folder import WEIGHTS, ModelFolder, load_folder, save_folder
from headsync.nn.model import Model
from headsync.text.vocabulary import Vocabulary
from headsync.training import train
from random_weights import scrambled
from reference.ctc import prefix_scores
from reference.decoding import BlockByBlock, FrameByFrame, LabelByLabel, Published

VOCABULARY = Vocabulary("characters", ("<space>", *"abcd"))
WHOLE = EndpointConfig(whole_recording=True)
ENCODER = EncoderConfig(2, left_frames=5, centre_frames=3, right_frames=2)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def noise(seconds: float = 1.5) -> np.ndarray:
    """Audio that changes continuously."""
    rng = np.random.default_rng(0)
    loudness = np.repeat(rng.uniform(0.001, 0.3, round(seconds * 10)), 1600)
    return (loudness * rng.standard_normal(len(loudness))).astype(np.float32)


def random_model(
    folder: Path, attention: str, seed: int, encoder: EncoderConfig = ENCODER, **decoder: Any
) -> tuple[ModelFolder, Model]:
    config = Config(
        network=NetworkConfig(width=16, heads=2, feedforward=16, kernels=4),
        encoder=encoder,
        decoder=DecoderConfig(2, attention, **{"energy_bias": -2.0, **decoder}),
        endpoint=WHOLE,
    )
    model = scrambled(Model(config, NUM_MEL, VOCABULARY.size), seed)
    model.decoder.out.bias[-1] -= 1.0  # of <eos>, or texts would be short
    save_folder(folder, config, VOCABULARY, Statistics.of([Features.of(config.features).whole(noise())]))
    save_file({name: weight.float() for name, weight in model.state_dict().items()}, folder / WEIGHTS)
    return load_folder(folder), model


def both(
    folder: ModelFolder,
    model: Model,
    samples: np.ndarray,
    decoding: DecodingConfig,
    cuts: tuple[int, ...] = (),
    most: float = 1.0,
) -> tuple[Final, Published]:
    """The one Final of a recording, and the literal search of the paper."""
    recognizer = Recognizer(folder, TorchEngine(model), decoding, endpoint=WHOLE)
    recognizer.search = replace(recognizer.search, most_tokens_per_frame=most)
    session = recognizer.session()
    events = [event for piece in np.split(samples, cuts) for event in session.push(piece, 16_000)]
    assert not any(isinstance(event, Final) for event in events)
    finals = [event for event in events + session.finish() if isinstance(event, Final)]
    assert len(finals) == 1
    features = normalise(build_features(folder.config).whole(samples), folder.statistics)
    frames, _ = model.encoder.whole(torch.tensor(features, dtype=torch.float64)[None], torch.tensor([len(features)]))
    settings = (
        model, folder.config.decoder.attention, frames[0], model.ctc(frames).log_softmax(-1)[0].numpy(),
        decoding.lookahead_frames, decoding.ctc_weight, decoding.beam, most,
    )  # fmt: skip
    paper: Published = LabelByLabel(*settings)
    if folder.config.decoder.attention == "triggered":
        paper = FrameByFrame(*settings, ahead=build.TRIGGER_FRAMES)
    elif folder.config.decoder.attention == "bs-dec":
        paper = BlockByBlock(*settings, block=folder.config.encoder.centre_frames)
    return finals[0], paper


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("attention", ["hs-dacs", "dacs", "acs"])
@pytest.mark.parametrize(("beam", "ctc"), [(1, 0.0), (1, 0.3), (3, 0.0), (3, 0.4)])
def test_alg1_from_audio_to_events(tmp_path: Path, attention: str, seed: int, beam: int, ctc: float) -> None:
    """Tokens, halting positions and r of a random model, pushed at once and in pieces."""
    folder, model = random_model(tmp_path, attention, seed)
    decoding = DecodingConfig(
        policy="published", beam=beam, ctc_weight=ctc, lookahead_frames=4,
    )  # fmt: skip
    final, paper = both(folder, model, noise(), decoding, most=0.3)
    expected = paper.decode()
    assert final.text == VOCABULARY.decode(expected.y)
    assert final.halts == expected.t
    assert final.cost_ratio == pytest.approx(paper.r(expected), abs=1e-12)
    assert sum(final.stops) == expected.steps * 2 * len(model.decoder.attending)  # of 2 heads
    assert both(folder, model, noise(), decoding, (1, 3000, 3001, 9999, 20_000), 0.3)[0] == final


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("attention", ["hs-dacs", "dacs"])
@pytest.mark.parametrize(("beam", "ctc"), [(1, 0.0), (3, 0.4)])
def test_alg1_with_the_network_of_the_corpus_recipes(
    tmp_path: Path, attention: str, seed: int, beam: int, ctc: float
) -> None:
    """No bias of the energies, no positions of frames in the decoder, sinusoids in the encoder."""
    published = {"energy_bias": None, "frame_positions": False, "threshold": 3.0}  # or steps would halt at once
    folder, model = random_model(tmp_path, attention, seed, replace(ENCODER, positions="sinusoids"), **published)
    decoding = DecodingConfig(policy="published", beam=beam, ctc_weight=ctc, lookahead_frames=4)
    final, paper = both(folder, model, noise(), decoding, most=0.3)
    expected = paper.decode()
    assert (final.text, final.halts) == (VOCABULARY.decode(expected.y), expected.t)
    assert final.cost_ratio == pytest.approx(paper.r(expected), abs=1e-12)
    assert both(folder, model, noise(), decoding, (1, 3000, 3001, 9999, 20_000), 0.3)[0] == final


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("attention", sorted({*MECHANISMS} - {"hs-dacs", "dacs", "acs"}))
@pytest.mark.parametrize(("beam", "ctc"), [(1, 0.3), (3, 0.0), (3, 0.4)])
def test_the_published_policy_of_the_other_mechanisms(
    tmp_path: Path, attention: str, seed: int, beam: int, ctc: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Monotonic, triggered, blockwise and offline attention; pushed at once and in chunks."""
    monkeypatch.setattr(MMA, "wait_frames", 3)
    monkeypatch.setattr(build, "TRIGGER_FRAMES", 2)
    folder, model = random_model(tmp_path, attention, seed)
    ctc = 0.2 if attention == "triggered" and not ctc else ctc  # which cannot do without
    decoding = DecodingConfig(
        policy="published", beam=beam, ctc_weight=ctc, lookahead_frames=4,
    )  # fmt: skip
    final, paper = both(folder, model, noise(), decoding, most=0.3)
    expected = paper.decode()
    assert final.text == VOCABULARY.decode(expected.y)
    assert final.halts == expected.t
    assert final.cost_ratio == pytest.approx(paper.r(expected), abs=1e-12)
    assert sum(final.stops) == expected.steps * 2 * len(model.decoder.attending)  # of 2 heads
    assert both(folder, model, noise(), decoding, (1, 3000, 3001, 9999, 20_000), 0.3)[0] == final


@pytest.mark.slow
def test_alg1_of_the_toy_model(tmp_path: Path) -> None:
    """A model that has been trained on the toy corpus, greedy and with a beam, with and without CTC."""
    toy.prepare(tmp_path / "data")
    overrides = [f"data.{part}={tmp_path}/data/{part}.jsonl" for part in ("train", "dev")]
    with torch.inference_mode(False), torch.enable_grad():
        recipe = Path(__file__).parents[2] / "recipes" / "toy" / "toy.toml"
        path = train(recipe, [*overrides, f"training.folder={tmp_path}/run", "training.epochs=6"])
    folder = load_folder(path)
    model = TorchEngine.load(folder, 1).model.double()
    steps = 0
    for utterance in read_manifest(tmp_path / "data" / "test.jsonl")[:4]:
        samples, rate = read_audio(utterance.audio)
        mono = resample(mix_down(samples), rate)
        for beam, ctc in ((1, 0.0), (1, 0.5), (3, 0.3)):
            decoding = DecodingConfig(policy="published", beam=beam, ctc_weight=ctc, lookahead_frames=12)
            final, paper = both(folder, model, mono, decoding)
            expected = paper.decode()
            assert (final.text, final.halts) == (folder.vocabulary.decode(expected.y), expected.t)
            assert final.cost_ratio == pytest.approx(paper.r(expected), abs=1e-12)
            steps += expected.steps
    assert steps > 20


@pytest.mark.parametrize("attention", MECHANISMS)
def test_every_mechanism_decodes_a_recording_for_any_cutting(tmp_path: Path, attention: str) -> None:
    """One Final of one utterance; an ended text is not changed by what follows."""
    folder, model = random_model(tmp_path, attention, 4)
    decoding = DecodingConfig(policy="published", beam=3, lookahead_frames=4)
    final, _ = both(folder, model, noise(), decoding, most=0.3)
    assert both(folder, model, noise(), decoding, (1, 3000, 3001, 9999, 20_000), 0.3)[0] == final
    assert 0 < final.cost_ratio <= 1


FRAMES, CLASSES = 40, 5


def some_ctc(seed: int) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(size=(FRAMES, CLASSES))
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def searched(searching: PublishedSearch, log_ctc: np.ndarray, arrivals: list[int]) -> Beam:
    beam = searching.start()
    for frames in arrivals:
        speech = SpeechFrames(nothing_heard(frames), log_ctc[:frames], NO_SPIKES)
        beam = searching.advance(beam, speech, final=False)
    return searching.advance(beam, SpeechFrames(nothing_heard(FRAMES), log_ctc, NO_SPIKES), final=True)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.lists(st.integers(0, FRAMES), max_size=6).map(sorted),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.4]),
    st.sampled_from(["hs-dacs", "mocha", "softmax"]),
)
def test_the_arrival_of_frames_changes_nothing(
    seed: int, arrivals: list[int], beam: int, ctc: float, attention: str
) -> None:
    config = DecodingConfig(
        policy="published", beam=beam, ctc_weight=ctc, lookahead_frames=5, nbest=2,
        lm_weight=0.3, length_bonus=0.2,
    )  # fmt: skip
    hotwords, engine = Hotwords.build([((1, 2), 2.0), ((2, 2, 3), 1.0)], CLASSES), TableEngine(seed, CLASSES, 1.0)
    searching = PublishedSearch(engine, LIMITS[attention], config, CLASSES - 1, Bigrams(seed, CLASSES), hotwords)
    searching = replace(searching, most_tokens_per_frame=0.2)
    at_once = searched(searching, some_ctc(seed), [])
    for pieces in (arrivals, list(range(0, FRAMES + 1, 2))):
        by_pieces = searched(searching, some_ctc(seed), pieces)
        assert (by_pieces.live, by_pieces.ended) == (at_once.live, at_once.ended)


@pytest.mark.parametrize("seed", range(5))
def test_texts_that_ended_early_are_scored_on_all_frames(seed: int) -> None:
    config = DecodingConfig(policy="published", beam=3, ctc_weight=0.4, lookahead_frames=5)
    searching = PublishedSearch(TableEngine(seed, CLASSES, 5.0), LIMITS["hs-dacs"], config, CLASSES - 1)
    log_ctc = some_ctc(seed)
    early = searching.advance(
        searching.start(), SpeechFrames(nothing_heard(30), log_ctc[:30], NO_SPIKES), final=False
    ).ended
    assert early
    scores = {h.tokens: h for h in searched(searching, log_ctc, [30]).ended}
    for h in early:
        exact = float(prefix_scores(h.tokens, log_ctc)[1])
        assert scores[h.tokens].ctc == pytest.approx(exact, abs=1e-9)
        assert scores[h.tokens].score == pytest.approx(0.6 * h.attention + 0.4 * exact, abs=1e-9)
        assert h.ctc != pytest.approx(exact, abs=1e-3)


def test_eos_ends_the_text_before_the_audio_ends() -> None:
    """In 20 frames of silence after a word, Algorithm 1 reaches its limit, and the decoder prefers <eos>."""
    script = np.array([0, 0, 1, 0, 0, 2] + [0] * 20 + [1, 0, 0])
    log_ctc, memory = spoken(script, CLASSES - 1)
    engine = ReadingEngine(CLASSES)
    config = DecodingConfig(policy="published", ctc_weight=0.0, lookahead_frames=6)
    searching = PublishedSearch(engine, LIMITS["hs-dacs"], config, CLASSES - 1)
    speech = SpeechFrames(engine.place(memory, 0), log_ctc, NO_SPIKES)
    before = searching.advance(searching.start(), speech.up_to(11), final=False)
    assert (before.best.tokens, len(before.ended)) == ((1, 2), 0)
    ended = searching.advance(before, speech.up_to(12), final=False)  # 6 frames after frame 6
    assert (ended.live, ended.best.tokens) == ((), (1, 2))
    assert searching.advance(ended, speech, final=True).best.tokens == (1, 2)


def test_a_recording_without_a_spike_has_one_final(tmp_path: Path) -> None:
    folder, model = random_model(tmp_path, "hs-dacs", 1)
    model.ctc.bias[0] += 1e3  # CTC emits only blanks
    model.decoder.out.bias[-1] += 1e3  # and the decoder <eos>
    final, _ = both(folder, model, noise(), DecodingConfig(policy="published", ctc_weight=0.0))
    assert (final.text, final.words, final.halts) == ("", (), ())
    assert 0 < final.cost_ratio <= 1


def test_a_recording_shorter_than_a_frame_has_none(tmp_path: Path) -> None:
    folder, model = random_model(tmp_path, "hs-dacs", 1)
    recognizer = Recognizer(folder, TorchEngine(model), DecodingConfig(policy="published"), endpoint=WHOLE)
    assert recognizer.transcribe(noise()[:800], 16_000) == []


def test_a_whole_recording_is_one_utterance_with_the_gated_policy_too(tmp_path: Path) -> None:
    folder, model = random_model(tmp_path, "hs-dacs", 1)
    recognizer = Recognizer(folder, TorchEngine(model), DecodingConfig(), endpoint=WHOLE)
    samples = np.concatenate([noise(), np.zeros(48_000, np.float32), noise()])
    session = recognizer.session()
    events = session.push(samples, 16_000) + session.finish()
    assert [type(event) for event in events].count(Final) == 1
    assert all(isinstance(event, Partial | Final) for event in events)

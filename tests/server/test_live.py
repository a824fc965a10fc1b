"""A real server on a free port, and typical clients."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import websockets

from audio_files import encode
from fakes import FakeSession
from headsync.errors import ConfigError
from headsync.events import Final
from headsync.frontend.audio import read_audio
from headsync.model_folder import find
from headsync.server.base_stream import SessionOptions
from headsync.server.limits import Limits
from headsync.server.model_service import ModelOptions, ModelService
from headsync.server.single_process import load_services
from isolated_client import IsolatedClient
from serving import FakeService, Running, finals, run, stream

Recordings = list[tuple[Path, np.ndarray, int]]


def expected(service: ModelService, samples: np.ndarray, rate: int) -> list[str]:
    session = service.open_session()
    events = session.push(samples, rate) + session.finish()
    return [event.text for event in events if isinstance(event, Final)]


def get(address: str) -> tuple[int, str]:
    with urllib.request.urlopen(address) as answer:
        return answer.status, answer.read().decode()


def test_concurrent_streams_equal_transcribe(running: Running, recordings: Recordings) -> None:
    async def all_of_them() -> list[list[dict[str, Any]]]:
        pieces = (3200, 999, 40_000)
        streams = [
            stream(running.ws("/v1/stream"), samples, rate, piece)
            for (_, samples, rate), piece in zip(recordings, pieces, strict=False)
        ]
        return await asyncio.gather(*streams)

    for (_, samples, rate), messages in zip(recordings, asyncio.run(all_of_them()), strict=False):
        assert messages[0]["type"] == "ready"
        assert messages[-1]["type"] == "done"
        assert messages[-1]["audio_seconds"] == pytest.approx(len(samples) / rate, abs=1e-3)
        assert finals(messages) == expected(running.state.service(), samples, rate)
        assert finals(messages)


def test_the_client_of_the_guide(running: Running, recordings: Recordings) -> None:
    """The unchanged example, without a warning."""
    guide = Path(__file__).parents[2] / "docs" / "how-to" / "serve.md"
    (code,) = re.findall(r"^```python\n(.*?)^```", guide.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    _, samples, rate = recordings[0]
    assert rate == 16_000
    pieces = [piece.tobytes() for piece in np.array_split(samples, 20)]
    text = " ".join(expected(running.state.service(), samples, rate))
    assert names["recognise"](pieces, running.ws("/v1/stream")) == text


def test_the_delay_of_a_stream_in_its_address(running: Running, recordings: Recordings) -> None:
    _, samples, rate = recordings[0]

    def messages(query: str, **fields: Any) -> list[dict[str, Any]]:
        received = asyncio.run(stream(running.ws(f"/v1/stream{query}"), samples, rate, **fields))
        return [{**message, "computing_seconds": None} for message in received]

    chosen = messages("", settings={"lookahead_ms": 80, "pause_seconds": 0.3})
    assert messages("?lookahead_ms=80&pause_seconds=0.3") == chosen != messages("")
    assert chosen[-1]["type"] == "done"
    (error,) = messages("?pause_seconds=soon")
    assert error["message"] == 'query: pause_seconds = "soon" must be a number above 0, for example 0.8'


def test_float_samples_and_choices_of_a_stream(running: Running, recordings: Recordings) -> None:
    _, samples, rate = recordings[0]
    floats = (samples / 32768).astype("<f4")
    options: dict[str, Any] = {"format": "float32", "settings": {"beam": 3, "nbest": 2}, "hotwords": ["nine"]}
    messages = asyncio.run(stream(running.ws("/v1/stream"), floats, rate, **options))
    (final,) = [message for message in messages if message["type"] == "final"]
    session = running.state.open_session(SessionOptions("", options["settings"], [("nine", 2.0)]))
    (same,) = [event for event in session.push(samples, rate) + session.finish() if isinstance(event, Final)]
    assert (final["text"], tuple(final["halts"])) == (same.text, same.halts)
    assert len(final["alternatives"]) == 1


def test_a_stream_can_send_attention_and_progress(running: Running, recordings: Recordings) -> None:
    """Beside other streams without it, which share the network."""

    async def all_of_them() -> list[list[dict[str, Any]]]:
        asking = {"attention": True, "progress": True}
        return await asyncio.gather(*(
            stream(running.ws("/v1/stream"), samples, rate, 3200, **(asking if number < 2 else {}))
            for number, (_, samples, rate) in enumerate(recordings)
        ))  # fmt: skip

    outcomes = asyncio.run(all_of_them())
    for (_, samples, rate), messages in list(zip(recordings, outcomes, strict=True))[:2]:
        session = running.state.open_session(SessionOptions(attention=True))
        alone = [event.to_dict() for event in session.push(samples, rate) + session.finish()]
        looks = [message for message in messages if message["type"] == "attention"]
        expected = [event for event in alone if event["type"] == "attention"]
        names = ("utterance", "number", "token", "halts_seconds")
        assert [[look[name] for name in names] for look in looks] == [[one[name] for name in names] for one in expected]
        for look, one in zip(looks, expected, strict=True):
            assert abs(np.array(look["weights"]) - np.array(one["weights"])).max() <= 0.01
        assert " ".join(look["token"] for look in looks) == " ".join(finals(messages))
        heard = [message["audio_seconds"] for message in messages if message["type"] == "progress"]
        assert heard == sorted(heard)
        assert len(heard) >= 5
    assert {message["type"] for message in outcomes[2]} <= {"ready", "partial", "final", "endpoint", "done"}


def test_several_models(service: ModelService, recordings: Recordings) -> None:
    """Each stream and recording gets the one that it names, the first without a name."""

    class Other(FakeService):
        name = "other"

        def open_session(self, *_: Any) -> Any:
            return FakeSession("not a digit at all")

    _, samples, rate = recordings[0]
    with run([service, Other()], Limits()) as server:  # type: ignore[list-item]
        models = httpx.get(f"{server.http}/v1/models").json()["data"]
        assert [model["id"] for model in models] == ["digits-en", "other"]
        said = [asyncio.run(stream(server.ws("/v1/stream"), samples, rate, **fields)) for fields in (
            {}, {"model": "other"}, {"model": "third"},
        )]  # fmt: skip
        assert finals(said[0]) == expected(service, samples, rate)
        assert finals(said[1]) == ["not a digit at all"]
        assert said[2][0]["message"] == 'There is no model "third"; this server has "digits-en", "other".'
        answer = httpx.post(
            f"{server.http}/v1/audio/transcriptions",
            data={"model": "other"},
            files={"file": recordings[0][0].read_bytes()},
        )
        assert answer.json()["text"] == "not a digit at all"


def test_two_folders_of_the_same_name_are_served_under_given_names(tmp_path: Path) -> None:
    folders = [tmp_path / run / "model" for run in ("first", "second")]
    for folder in folders:
        shutil.copytree(find(), folder)
    with pytest.raises(ConfigError, match=r'two models are named "model"; .*--model NAME=FOLDER'):
        load_services([ModelOptions(str(folder)) for folder in folders])
    services = load_services([ModelOptions(f"first={folders[0]}"), ModelOptions(f"second={folders[1]}")])
    with run(services, Limits()) as server:
        models = httpx.get(f"{server.http}/v1/models").json()["data"]
        assert [model["id"] for model in models] == ["first", "second"]
        (ready, *_) = asyncio.run(stream(server.ws("/v1/stream"), np.zeros(0, "<i2"), model="second"))
        assert ready["model"] == "second"


@pytest.mark.parametrize(("fields", "said"), [
    ({"settings": {"beam": 21}}, "at most 20"),
    ({"settings": {"evidence": 0.1}}, "cannot set"),
    ({"settings": {"beam": "wide"}}, "whole number"),
    ({"hotwords": ["ночь"]}, "ночь"),
    ({"phrases": ["nine", "ночь"]}, "ночь"),
    ({"phrases": ["nine"] * 1001}, "phrases: at most 1000 phrases of at most 200 characters"),
    ({"phrases": ["nine " * 41]}, "phrases: at most 1000 phrases of at most 200 characters"),
    ({"sample_rate": 100}, "sample rate"),
])  # fmt: skip
def test_options_that_are_not_possible(running: Running, fields: dict[str, Any], said: str) -> None:
    (error,) = asyncio.run(stream(running.ws("/v1/stream"), np.zeros(0, "<i2"), **{"rate": 16_000, **_renamed(fields)}))
    assert error["type"] == "error"
    assert said in error["message"]


def _renamed(fields: dict[str, Any]) -> dict[str, Any]:
    return {"rate" if name == "sample_rate" else name: value for name, value in fields.items()}


async def send_as_vosk(url: str, samples: np.ndarray, config: str) -> list[dict[str, Any]]:
    async with websockets.connect(url) as connection:
        await connection.send(config)
        answers = []
        for piece in np.array_split(samples, len(samples) // 1600):
            await connection.send(piece.tobytes())
            answers.append(json.loads(await connection.recv()))
        await connection.send('{"eof" : 1}')
        answers.append(json.loads(await connection.recv()))
        await asyncio.wait_for(connection.wait_closed(), 60)
        return answers


def test_the_phrase_list_of_a_stream(running: Running, recordings: Recordings) -> None:
    """As `/v1/stream` and as Vosk's clients take it; other streams are not restricted."""
    _, samples, rate = recordings[0]
    phrases = ["one", "three", "[unk]"]
    text = " ".join(expected(running.state.service(), samples, rate))
    session = running.state.open_session(SessionOptions(phrases=phrases))
    finals_alone = [event for event in session.push(samples, rate) + session.finish() if isinstance(event, Final)]
    restricted = " ".join(final.text for final in finals_alone)
    assert {*restricted.split()} == {*phrases}
    assert restricted != text
    messages = asyncio.run(stream(running.ws("/v1/stream"), samples, rate, phrases=phrases))
    assert " ".join(finals(messages)) == restricted
    config = json.dumps({"config": {"sample_rate": rate, "phrase_list": ["three one", "[unk]"]}})
    answers = asyncio.run(send_as_vosk(running.ws("/vosk"), samples, config))
    assert " ".join(answer["text"] for answer in answers if answer.get("text")) == restricted
    assert " ".join(finals(asyncio.run(stream(running.ws("/v1/stream"), samples, rate)))) == text


@pytest.mark.parametrize("path", ["/", "/vosk"])
def test_a_client_written_for_vosk_server(running: Running, recordings: Recordings, path: str) -> None:
    _, samples, rate = recordings[0]

    answers = asyncio.run(send_as_vosk(running.ws(path), samples, f'{{ "config" : {{ "sample_rate" : {rate} }} }}'))
    results = [answer for answer in answers if "text" in answer]
    assert all(answer.keys() == {"partial"} for answer in answers if answer not in results)
    assert [answer["text"] for answer in results if answer["text"]] == expected(running.state.service(), samples, rate)
    words = [word for answer in results for word in answer.get("result", [])]
    assert [word["word"] for word in words] == " ".join(answer["text"] for answer in results).split()
    assert all(word["start"] < word["end"] <= len(samples) / rate + 1 for word in words)


def test_the_vosk_client(running: Running, recordings: Recordings, vosk_client: IsolatedClient, tmp_path: Path) -> None:
    """The client of the package vosk, which sends the rate as a decimal number."""
    _, samples, rate = recordings[0]
    assert rate == 16_000
    samples.tofile(tmp_path / "a.raw")
    text, size = vosk_client.call("vosk_client.py", "transcribe", tmp_path / "a.raw", running.ws(""))[0]
    assert (text.splitlines(), size) == (expected(running.state.service(), samples, rate), samples.nbytes)


def test_the_openai_client_gets_every_form(
    running: Running, recordings: Recordings, openai_client: IsolatedClient
) -> None:
    path, samples, rate = recordings[0]
    texts = expected(running.state.service(), samples, rate)
    forms, _ = openai_client.call("openai_client.py", "every_form", path, f"{running.http}/v1")
    assert forms["json"] == forms["text"].strip() == " ".join(texts)
    assert " --> " in forms["srt"]
    assert forms["vtt"].startswith("WEBVTT")
    long = forms["verbose_json"]
    assert long["duration"] == pytest.approx(len(samples) / rate, abs=0.01)
    assert [word["word"] for word in long["words"]] == " ".join(texts).split()
    assert [segment["text"] for segment in long["segments"]] == texts
    assert (forms["models"], forms["owner"]) == (["digits-en"], "headsync")


@pytest.mark.parametrize("suffix", ["mp3", "m4a", "webm", "ogg"])
def test_an_uploaded_recording_of_any_format_gives_the_text_of_its_samples(
    running: Running, recordings: Recordings, tmp_path: Path, suffix: str
) -> None:
    path = encode(tmp_path / f"a.{suffix}", *read_audio(recordings[0][0]))
    files = {"file": (path.name, path.read_bytes())}
    answer = httpx.post(f"{running.http}/v1/audio/transcriptions", data={"model": "digits-en"}, files=files, timeout=60)
    samples, rate = read_audio(path)
    assert answer.json()["text"] == " ".join(expected(running.state.service(), samples, rate)) != ""


def test_the_openai_client_streams(running: Running, recordings: Recordings, openai_client: IsolatedClient) -> None:
    path, samples, rate = recordings[1]
    events, _ = openai_client.call("openai_client.py", "stream", path, f"{running.http}/v1")
    assert {event["type"] for event in events[:-1]} == {"transcript.text.delta"}
    assert len(events) > 2
    assert events[-1]["type"] == "transcript.text.done"
    assert events[-1]["text"] == " ".join(expected(running.state.service(), samples, rate))
    assert "".join(event["delta"] for event in events[:-1]) == events[-1]["text"]


def test_the_openai_client_gets_errors(running: Running, recordings: Recordings, openai_client: IsolatedClient) -> None:
    errors, _ = openai_client.call("openai_client.py", "errors", recordings[0][0], f"{running.http}/v1")
    assert [kind for kind, _ in errors] == ["NotFoundError", *["BadRequestError"] * 3]
    said = [
        "digits-en",
        "notes.txt: cannot be decoded as audio",
        "log probabilities are not available",
        "response_format",
    ]
    assert all(part in message for part, (_, message) in zip(said, errors, strict=True))


def test_health_and_figures(running: Running, recordings: Recordings) -> None:
    assert get(f"{running.http}/healthz") == (200, '{"status":"ok"}')
    assert get(f"{running.http}/readyz") == (200, '{"status":"ready"}')
    before = _figure(running, 'headsync_ended_streams_total{outcome="done",protocol="stream"}')
    _, samples, rate = recordings[0]
    asyncio.run(stream(running.ws("/v1/stream"), samples[:16_000], rate))
    assert _figure(running, 'headsync_ended_streams_total{outcome="done",protocol="stream"}') == before + 1
    assert _figure(running, 'headsync_streams{protocol="stream"}') == 0
    assert _figure(running, "headsync_batch_calls_count") > 0
    assert _figure(running, "headsync_audio_seconds_total") >= 1
    for name in ("waiting_calls", "real_time_factor_count", "added_delay_seconds_count", "word_delay_seconds_count"):
        assert _figure(running, f"headsync_{name}") >= 0


def _figure(running: Running, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", get(f"{running.http}/metrics")[1], re.MULTILINE)
    return float(found[1]) if found else 0.0


@pytest.mark.parametrize(("method", "path", "allowed"), [
    ("GET", "/v1/audio/transcriptions", "POST"), ("POST", "/v1/models", "GET"), ("PUT", "/healthz", "GET"),
])  # fmt: skip
def test_a_wrong_method_is_405(running: Running, method: str, path: str, allowed: str) -> None:
    answer = httpx.request(method, running.http + path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_an_unknown_path_is_404_for_every_method(running: Running, method: str) -> None:
    answer = httpx.request(method, f"{running.http}/v1/audio/translations")
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_file_of_the_page_is_405_for_other_methods(running: Running) -> None:
    for path in ("/", "/main.js"):
        answer = httpx.post(running.http + path)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


def test_the_page_is_at_the_root_if_there_is_one(service: ModelService, tmp_path: Path) -> None:
    from headsync.server.app import build_app
    from headsync.server.app_state import AppState
    from headsync.server.limits import Limits

    (tmp_path / "index.html").write_text("<p>Speak.", encoding="utf-8")
    app = build_app(AppState([service], Limits(), "secret"), tmp_path)

    async def fetch() -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            page = await client.get("/")
            assert page.text == "<p>Speak."
            return [(await client.get(path)).status_code for path in ("/healthz", "/v1/models", "/nothing")]

    assert asyncio.run(fetch()) == [200, 401, 404]

"""The page in a real browser, with recordings as the microphone. Skipped where there is no Chromium.

With HEADSYNC_PICTURES=1 the pictures of the documentation are made as well.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from fakes import FakeSession
from headsync import Final, Partial, Word
from headsync.cli.app import app
from headsync.events import Event
from headsync.frontend.audio import mix_down, read_audio
from headsync.recognizer import Recognizer
from headsync.server.limits import Limits
from headsync.server.model_service import ModelService
from headsync.text.subtitles import FORMATS
from serving import FakeService, Running, run

playwright = pytest.importorskip("playwright.sync_api", reason="the page is tested with playwright")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PICTURES = Path(__file__).parents[2] / "docs" / "how-to" / "pictures"
PATIENCE = 60_000  # milliseconds; machines that run tests are busy

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the page is tested in Chromium, and none was found")

Recordings = list[tuple[Path, np.ndarray, int]]
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        yield started


@contextmanager
def chromium(driver: Any, *options: str) -> Iterator[Any]:
    usual = ["--no-sandbox", "--mute-audio", "--autoplay-policy=no-user-gesture-required"]
    browser = driver.chromium.launch(executable_path=CHROMIUM, args=[*usual, *options])
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def browser(driver: Any) -> Iterator[Any]:
    with chromium(driver) as started:
        yield started


@contextmanager
def listening(driver: Any, recording: Path) -> Iterator[Any]:
    """A browser whose microphone plays a recording."""
    file = f"--use-file-for-fake-audio-capture={recording}%noloop"
    with chromium(driver, "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream", file) as started:
        yield started


@contextmanager
def opened(browser: Any, address: str, quiet: bool = True, allowed: str = "\n", **options: Any) -> Iterator[Any]:
    """A page; `quiet`: its console must have no error or warning but those that contain `allowed`."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE)
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(address)
    if quiet:
        page.wait_for_selector("#model option", state="attached")
    yield page
    context.close()
    assert not (quiet and [one for one in said if allowed not in one]), said


def lines(page: Any) -> list[str]:
    """The text on the page, line by line, without the times."""
    script = "all => all.map(line => [...line.querySelectorAll('.word')].map(word => word.textContent).join(' '))"
    return page.eval_on_selector_all(".line", script)  # type: ignore[no-any-return]


def settled(page: Any, state: str = "done") -> None:
    page.wait_for_selector(f"body[data-state={state}]")


@cache
def transcribed(path: Path, form: str = "text") -> str:
    result = CliRunner().invoke(app, ["transcribe", str(path), "--format", form, "--model", "digits-en"])
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory, recordings: Recordings) -> Path:
    """Half a second of silence and a recording whose text does not depend on its position in a block."""
    _, samples, rate = recordings[1]
    return written(tmp_path_factory.mktemp("sound") / "one.wav", rate, 0.5, samples, 0.3)


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory, recordings: Recordings) -> Path:
    """Two utterances, a pause apart."""
    (_, first, rate), (_, second, _) = recordings[1:3]
    return written(tmp_path_factory.mktemp("sound") / "two.wav", rate, 0.5, first, 1.8, second, 0.3)


def written(path: Path, rate: int, *parts: np.ndarray | float) -> Path:
    """A WAV file of samples, and of silences in seconds."""
    samples = [np.zeros(round(part * rate), "<i2") if isinstance(part, float) else part for part in parts]
    soundfile.write(path, np.concatenate(samples), rate, subtype="PCM_16")
    return path


def hand_over(page: Any, path: Path, along: bool = False) -> None:
    """Choose a recording, and wait for its last word."""
    page.set_checked("#along", along)
    page.set_input_files("#file", path)
    settled(page)


# the microphone


def test_speech_into_the_microphone_is_what_transcribing_gives(driver: Any, running: Running, spoken: Path) -> None:
    """Where a computer is too busy, sound is lost before the page has it; so the browser may try three times."""
    expected = transcribed(spoken).splitlines()
    for attempt in range(3):
        with listening(driver, spoken) as browser, opened(browser, running.http) as page:
            page.click("#speak")
            page.wait_for_selector("body[data-state=listening]")
            assert page.inner_text("#speak-label") == "Stop"
            page.locator("#elapsed", has_text="0:05").wait_for()  # all of it
            page.click("#speak")
            settled(page)
            if lines(page) != expected and attempt < 2:
                continue
            assert lines(page) == expected
            assert page.inner_text("#speak-label") == "Speak"
            for figure in ("#delay", "#factor", "#ratio"):
                assert re.match(r"\d+\.\d+", page.inner_text(figure))
            assert page.locator("#tokens th").all_text_contents() == expected[0].split()
            assert page.locator("#legend li").all_inner_texts() == [
                *(f"head {n}" for n in range(1, 9)),
                "halting position",
            ]
            return


def test_a_restart_of_the_server_loses_nothing(driver: Any, service: ModelService, twice: Path) -> None:
    """Speech during the outage is kept, and recognised after reconnection, each utterance once."""
    expected = transcribed(twice).splitlines()
    assert len(expected) == 2
    with ExitStack() as first, listening(driver, twice) as browser:
        server = first.enter_context(run(service, Limits()))
        with opened(browser, server.http, allowed="ERR_CONNECTION_REFUSED") as page:  # while the server is away
            page.click("#speak")
            page.locator("#tokens tr").nth(1).wait_for(state="attached")  # two words are certain, the utterance is not
            first.close()
            settled(page, "waiting")
            assert "trying again" in page.inner_text("#state")
            with run(service, Limits(), port=server.port):
                settled(page, "listening")
                page.locator(".line").nth(1).locator(".word").nth(len(expected[1].split()) - 2).wait_for()
                page.click("#speak")
                settled(page)
                assert lines(page) == expected
                assert page.locator("#tokens th").all_text_contents() == " ".join(expected).split()
                starts = page.eval_on_selector_all(".word", "all => all.map(word => Number(word.dataset.start))")
                assert starts == sorted(starts)
                assert starts[-1] > 5  # seconds of the recording, not of the connection


def test_errors_are_displayed_in_plain_language(driver: Any, browser: Any, running: Running) -> None:
    with opened(browser, running.http, permissions=["microphone"]) as page:
        page.click("#speak")
        assert "No microphone was found" in complaint(page)
    names = "--host-resolver-rules=MAP elsewhere.example 127.0.0.1"
    with chromium(driver, "--use-fake-device-for-media-stream", names) as other:
        with opened(other, running.http) as page:  # no permission prompt, no permission
            page.click("#speak")
            assert "microphone is blocked" in complaint(page)
            assert page.is_enabled("#speak")
        with opened(other, f"http://elsewhere.example:{running.port}") as page:
            page.click("#speak")
            assert "over https" in complaint(page)


def complaint(page: Any) -> str:
    page.wait_for_selector("#error:not([hidden])")
    return str(page.inner_text("#error"))


def test_a_file_that_is_no_sound(browser: Any, running: Running, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not sound at all", encoding="utf-8")
    with opened(browser, running.http) as page:
        page.set_input_files("#file", tmp_path / "notes.txt")
        assert complaint(page).startswith("notes.txt: cannot be decoded as audio")
        assert page.is_enabled("#speak")


# the delay budget


def test_a_delay_budget_is_for_one_stream(browser: Any, running: Running, twice: Path) -> None:
    """A short pause cuts the recording into more utterances; a wrong value is an error of the server's."""
    with opened(browser, running.http) as page:
        page.click("#budget summary")
        assert page.get_attribute("#lookahead_ms", "placeholder") == "384"
        assert page.get_attribute("#pause_seconds", "placeholder") == "1.2"
        page.fill("#pause_seconds", "0.1")
        hand_over(page, twice)
        short = lines(page)
        page.fill("#pause_seconds", "")
        page.evaluate("delete document.body.dataset.state")
        hand_over(page, twice)
        assert lines(page) == transcribed(twice).splitlines()
        assert len(short) > len(lines(page))
        page.fill("#threshold", "-1")
        page.set_input_files("#file", twice)
        assert complaint(page) == "threshold = -1 must be a number above 0, for example 1.0"


def test_sizes_of_the_encoder_are_for_one_stream(browser: Any, spoken: Path) -> None:
    """The page offers them for a model trained with varying sizes; the server checks the range."""
    recognizer = Recognizer.load("english")
    with run(ModelService(recognizer, (), batching=True), Limits()) as server, opened(browser, server.http) as page:
        page.click("#budget summary")
        assert page.get_attribute("#centre_ms", "placeholder") == f"{recognizer.budget['centre_ms']:g}"
        page.fill("#centre_ms", "240")
        page.fill("#right_ms", "240")
        hand_over(page, spoken)
        samples, rate = read_audio(spoken)
        chosen = recognizer.changed({"centre_ms": 240, "right_ms": 240})
        assert lines(page) == [final.text for final in chosen.transcribe(mix_down(samples), rate) if final.text]
        page.evaluate("delete document.body.dataset.state")
        page.fill("#right_ms", "4800")
        page.set_input_files("#file", spoken)
        assert complaint(page).startswith("right_ms = 4800 must be from ")


# recordings


def test_a_dropped_recording(browser: Any, running: Running, recordings: Recordings) -> None:
    """Its text and its downloads equal those of `headsync transcribe`."""
    path = recordings[1][0]
    options = {"permissions": ["clipboard-read", "clipboard-write"], "accept_downloads": True}
    with opened(browser, running.http, **options) as page:
        page.uncheck("#along")
        page.evaluate(
            """([name, content]) => {
                const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
                const dataTransfer = new DataTransfer();
                dataTransfer.items.add(new File([bytes], name));
                for (const kind of ["dragover", "drop"]) {
                  document.body.dispatchEvent(new DragEvent(kind, { dataTransfer, bubbles: true, cancelable: true }));
                }
            }""",
            [path.name, base64.b64encode(path.read_bytes()).decode()],
        )
        settled(page)
        assert lines(page) == transcribed(path).splitlines()
        for name, form in (("txt", "text"), ("srt", "srt"), ("vtt", "vtt")):
            with page.expect_download() as download:
                page.click(f"#save-{name}")
            assert download.value.suggested_filename == f"{path.stem}.{name}"
            assert Path(download.value.path()).read_text(encoding="utf-8") == transcribed(path, form)
        page.click("#copy")
        page.get_by_text("Copied.").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == transcribed(path)
        page.click("#clear")
        assert lines(page) == []


def test_an_endpoint_starts_a_new_line(browser: Any, running: Running, twice: Path) -> None:
    with opened(browser, running.http) as page:
        hand_over(page, twice)
        assert lines(page) == transcribed(twice).splitlines()
        assert page.locator(".line time").all_inner_texts() == ["0:00", "0:06"]


def test_words_light_up_while_a_recording_plays(browser: Any, running: Running, spoken: Path) -> None:
    with opened(browser, running.http) as page:
        page.set_input_files("#file", spoken)
        page.wait_for_selector(".word")
        settled(page)  # the sound went out as it was played
        assert lines(page) == transcribed(spoken).splitlines()
        page.click(".word:nth-of-type(3)")
        lit = page.wait_for_selector(".word.lit")  # it may have gone out again when it is looked at
        third = page.locator(".word").nth(2).get_attribute("data-start")
        assert lit.evaluate("word => Number(word.dataset.start)") >= float(third)


# models, tokens, and what may still change


class Scripted(FakeService):
    """A fake model whose session returns all events at once."""

    name = "scripted"

    def __init__(self, *events: Event, name: str = "scripted") -> None:
        self.events, self.name = list(events), name

    def open_session(self, *_: Any) -> FakeSession:
        scripted = self

        class Session(FakeSession):
            def push(self, samples: Any, sample_rate: int) -> list[Event]:
                said, scripted.events = (scripted.events, []) if len(samples) else ([], scripted.events)
                return said

        return Session("")


WORDS = (Word("nine", 0.1, 0.4, 0.9), Word("<eight>", 0.4, 0.9, 0.4), Word("& five", 0.9, 1.2, 0.7))


def test_a_choice_of_models(browser: Any, service: ModelService, spoken: Path) -> None:
    other = Scripted(
        Final(0, "quite another", (Word("quite", 0.0, 0.5), Word("another", 0.5, 1.0)), 0.1, 1.0, (1, 2), 0.5)
    )
    with run([service, other], Limits()) as server, opened(browser, server.http) as page:  # type: ignore[list-item]
        assert page.locator("#model option").all_inner_texts() == ["digits-en", "scripted"]
        page.select_option("#model", "scripted")
        hand_over(page, spoken)
        assert lines(page) == ["quite another"]
        page.reload()
        page.wait_for_selector("#model option", state="attached")
        assert page.input_value("#model") == "scripted"  # remembered


def test_tentative_text_is_grey_and_not_announced(browser: Any, spoken: Path) -> None:
    partial = Partial(0, "nine <eight> & five", WORDS, 0.2, 1.4, committed_words=1)
    with run(Scripted(partial), Limits()) as server, opened(browser, server.http) as page:  # type: ignore[arg-type]
        hand_over(page, spoken)
        assert page.inner_text(".line > span:not(.tentative)") == "nine"
        assert page.inner_text(".tentative").strip() == "<eight> & five"
        assert page.get_attribute(".tentative", "aria-hidden") == "true"
        black, grey = (page.eval_on_selector(one, "e => getComputedStyle(e).color") for one in (".line", ".tentative"))
        assert black != grey


def test_subtitles_are_escaped_and_cut_as_on_the_command_line(browser: Any, running: Running) -> None:
    words = tuple(
        Word(f"w{n}<&>", 0.5 * n + (3 if n > 7 else 0), 0.5 * n + 0.4 + (3 if n > 7 else 0)) for n in range(20)
    )
    finals = [Final(0, "", words, 0, 0, (), 0.5), Final(1, "", WORDS, 0, 0, (), 0.5)]
    given = [[word.to_dict() for word in final.words] for final in finals]
    with opened(browser, running.http) as page:
        script = "async (all) => { const m = await import('/subtitles.js'); return [m.toSrt(all), m.toVtt(all)]; }"
        assert page.evaluate(script, given) == [FORMATS["srt"](finals), FORMATS["vtt"](finals)]


def test_the_page_requests_a_token(browser: Any, service: ModelService, spoken: Path) -> None:
    with run(service, Limits(), token="secret") as server, opened(browser, server.http, quiet=False) as page:
        assert "requires a token" in complaint(page)
        page.fill("#token", "wrong")
        page.press("#token", "Enter")
        page.get_by_text("The token is wrong").wait_for()
        page.fill("#token", "secret")
        page.press("#token", "Enter")
        page.wait_for_selector("#model option", state="attached")
        assert page.is_hidden("#token-form")
        hand_over(page, spoken)
        assert lines(page) == transcribed(spoken).splitlines()


def test_a_busy_server_is_retried(browser: Any, service: ModelService, spoken: Path) -> None:
    with run(service, Limits(streams=1)) as server, opened(browser, server.http) as page:
        with server.state.limiter.slot():
            page.uncheck("#along")
            page.set_input_files("#file", spoken)
            settled(page, "waiting")
            assert "in use" in page.inner_text("#state")
        settled(page)
        assert lines(page) == transcribed(spoken).splitlines()


# for all people


def test_with_the_keyboard_alone(browser: Any, running: Running, spoken: Path) -> None:
    with opened(browser, running.http) as page:
        page.on("filechooser", lambda chooser: chooser.set_files(spoken))
        seen = []
        for _ in range(8):
            page.keyboard.press("Tab")
            seen.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
            if seen[-1] == "choose":
                break
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid", f"the focus on {seen[-1]} cannot be seen"
        assert seen == ["skip", "model", "speak", "choose"]
        page.keyboard.press("Enter")
        page.wait_for_selector("body[data-state=listening]")
        page.keyboard.press("Escape")
        settled(page)
        page.uncheck("#along")
        hand_over(page, spoken)
        page.focus("#along")
        wanted = {"copy", "save-txt", "save-srt", "save-vtt", "clear", "SUMMARY"}
        wanted |= set() if page.is_hidden("#back") else {"back"}
        for _ in range(100):  # words and the parts of the player are stops, too; how many words, Escape has decided
            page.keyboard.press("Tab")
            wanted.discard(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
        assert not wanted


def test_words_of_a_recording_play_with_the_keyboard(browser: Any, running: Running, spoken: Path) -> None:
    """One word is a Tab stop, arrow keys move between words, Enter plays."""
    with opened(browser, running.http) as page:
        hand_over(page, spoken)
        words = page.locator(".word").all_inner_texts()
        focused = "document.activeElement.className.includes('word') && document.activeElement.textContent"
        page.focus("#player")
        for _ in range(20):  # the parts of the player are Tab stops as well
            page.keyboard.press("Tab")
            if page.evaluate(focused):
                break
        assert page.evaluate(focused) == words[0]
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        for key, word in (("ArrowRight", words[1]), ("End", words[-1]), ("Home", words[0]), ("ArrowRight", words[1])):
            page.keyboard.press(key)
            assert page.evaluate(focused) == word
        start = float(page.locator(".word").nth(1).get_attribute("data-start"))
        assert page.evaluate("document.getElementById('player').currentTime") < start
        page.keyboard.press("Enter")
        page.wait_for_function(f"document.getElementById('player').currentTime >= {start - 0.01}")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "copy"
        assert page.get_attribute(".scroll", "tabindex") == "0"  # a scrolling region, reachable without a mouse


@pytest.mark.parametrize("width", [360, 1100])
def test_touch_targets_are_large_enough(browser: Any, running: Running, spoken: Path, width: int) -> None:
    with opened(browser, running.http, viewport={"width": width, "height": 740}, has_touch=True) as page:
        hand_over(page, spoken)
        script = """all => all.filter(e => e.checkVisibility()).map(e => {
            const box = (e.type === "checkbox" ? e.closest("label") : e).getBoundingClientRect();
            return [e.id || e.tagName, box.width, box.height];
        })"""
        targets = page.eval_on_selector_all("button, select, input, summary, audio", script)
        assert len(targets) >= 10
        assert not [target for target in targets if min(target[1:]) < 44]


def test_the_first_screen_has_the_model_and_no_empty_picture(browser: Any, running: Running, spoken: Path) -> None:
    with opened(browser, running.http) as page:
        page.locator("#about", has_text="It recognises only these words: zero, one, two").wait_for()
        assert "digit" in page.inner_text("#about")
        assert page.is_hidden("#view")
        hand_over(page, spoken)
        assert page.is_visible("#canvas")
        page.click("#clear")
        assert page.is_hidden("#view")


@pytest.mark.parametrize(("scheme", "colour"), [("light", "Black"), ("dark", "White")])
def test_the_legend_names_the_colour_of_final_text(browser: Any, running: Running, scheme: str, colour: str) -> None:
    with opened(browser, running.http, color_scheme=scheme) as page:
        assert f"{colour} text is final, grey text may still change." in page.inner_text("#empty")
        red = page.eval_on_selector(".text", "e => Number(getComputedStyle(e).color.match(/\\d+/)[0])")
        assert (red > 200) == (colour == "White")


def test_tokens_are_not_clipped_at_the_left_edge(browser: Any, running: Running, twice: Path) -> None:
    with opened(browser, running.http, viewport={"width": 360, "height": 740}) as page:
        hand_over(page, twice)
        page.evaluate("""() => {
            const original = CanvasRenderingContext2D.prototype.fillText;
            window.lefts = [];
            CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
              if (this.textAlign === "right") window.lefts.push([text, x - this.measureText(text).width]);
              return original.call(this, text, x, y);
            };
            const back = document.getElementById("back");
            for (let end = Number(back.min); end <= Number(back.max); end += 0.05) {
              back.value = end;
              back.dispatchEvent(new Event("input"));
            }
        }""")
        lefts = page.evaluate("window.lefts")
        assert len({text for text, _ in lefts}) >= 5
        assert not [one for one in lefts if one[1] < 0]


def test_live_text_is_saved_under_the_time(driver: Any, running: Running, spoken: Path) -> None:
    with listening(driver, spoken) as browser, opened(browser, running.http, accept_downloads=True) as page:
        page.click("#speak")
        page.wait_for_selector(".word")
        page.click("#speak")
        settled(page)
        with page.expect_download() as download:
            page.click("#save-srt")
        assert re.fullmatch(r"speech-\d{4}-\d\d-\d\d-\d{6}\.srt", download.value.suggested_filename)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_has_a_name_and_can_be_read(browser: Any, running: Running, scheme: str) -> None:
    with opened(browser, running.http, color_scheme=scheme) as page:
        assert page.get_attribute("html", "lang") == "en"
        names = page.eval_on_selector_all(
            "button, input, select, canvas, audio, [role]",
            """all => all.map(e => [e.id, e.getAttribute("aria-label") || e.labels?.[0]?.innerText || e.innerText
                || (e.hidden ? "hidden" : "")])""",
        )
        assert not [one for one, name in names if not name.strip() and one not in ("error", "text")]
        assert page.get_attribute("#text", "aria-live") == "polite"
        assert page.get_attribute("#text", "role") == "log"
        for one in (".text", ".empty", ".speak", ".quiet", ".state", ".figures .what"):
            assert page.evaluate(CONTRAST, one) >= 4.5, one


CONTRAST = """(one) => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
  const element = document.querySelector(one);
  let below = element;
  while ((parse(getComputedStyle(below).backgroundColor)[3] ?? 1) === 0) below = below.parentElement;
  const pair = [light(parse(getComputedStyle(element).color)), light(parse(getComputedStyle(below).backgroundColor))];
  return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
}"""


def test_the_page_fits_a_phone_and_respects_reduced_motion(browser: Any, running: Running, spoken: Path) -> None:
    phone = {"viewport": {"width": 360, "height": 740}, "reduced_motion": "reduce", "has_touch": True}
    with opened(browser, running.http, **phone) as page:
        hand_over(page, spoken)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.eval_on_selector(".word", "word => getComputedStyle(word).animationName") == "none"


def test_the_page_loads_nothing_from_other_hosts(browser: Any, running: Running, spoken: Path) -> None:
    asked: list[str] = []
    with opened(browser, running.http) as page:
        page.on("request", lambda request: asked.append(request.url))
        page.reload()
        page.wait_for_selector("#model option", state="attached")
        hand_over(page, spoken)
        headers = page.request.get(running.http).headers
    assert asked
    assert all(address.startswith((running.http, "blob:")) for address in asked)
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]


# what is computed on the page


def test_the_transform_of_the_spectrogram(browser: Any, running: Running) -> None:
    re_, im = np.random.default_rng(1).standard_normal((2, 256))
    script = """async ([re, im]) => {
      const { Fourier } = await import("/spectrogram.js");
      new Fourier(re.length).transform(re, im);
      return [re, im];
    }"""
    with opened(browser, running.http) as page:
        real, imaginary = page.evaluate(script, [re_.tolist(), im.tolist()])
    np.testing.assert_allclose(np.array(real) + 1j * np.array(imaginary), np.fft.fft(re_ + 1j * im), atol=1e-9)


def test_live_audio_is_kept_up_to_a_limit(browser: Any, running: Running) -> None:
    script = """async () => {
      const { LiveBuffer } = await import("/audio_buffer.js");
      const tape = new LiveBuffer(100);
      for (let n = 0; n < 70; n++) tape.append(Int16Array.from({ length: 100 }, (_, k) => 100 * n + k));
      const kept = [tape.start, tape.end];
      tape.forget(2550);
      return [kept, tape.start, [...tape.read(2598, 2603)], [...tape.read(6998, 9000)]];
    }"""
    with opened(browser, running.http) as page:
        kept, start, across, last = page.evaluate(script)
    assert kept == [1000, 7000]
    assert start == 2500
    assert across == [2598, 2599, 2600, 2601, 2602]
    assert last == [6998, 6999]


@pytest.mark.skipif("HEADSYNC_PICTURES" not in os.environ, reason="pictures are made with HEADSYNC_PICTURES=1")
def test_pictures_for_the_documentation(browser: Any, running: Running, twice: Path) -> None:
    PICTURES.mkdir(exist_ok=True)
    desk, phone = {"width": 1100, "height": 940}, {"width": 390, "height": 844}
    for name, scheme, size in (("page", "light", desk), ("page-dark", "dark", desk), ("page-phone", "light", phone)):
        with opened(browser, running.http, color_scheme=scheme, viewport=size) as page:
            hand_over(page, twice)
            page.wait_for_timeout(2000)  # new words lose their colour
            page.screenshot(path=PICTURES / f"{name}.png", full_page=True)

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headsync.events import Final, Word
from headsync.text.subtitles import CUE_SECONDS, FORMATS, LINE_CHARACTERS, cut_cues, to_json, to_srt, to_text, to_vtt


def final(utterance: int, *words: Word) -> Final:
    return Final(utterance, " ".join(word.text for word in words), words, 0.2, words[-1].end_seconds + 0.2, (), 0.4)


FIRST = final(0, Word("one", 0.5, 0.9), Word("two", 1.0, 1.25))
SECOND = final(1, Word("three", 59.9, 59.9996), Word("four", 3661.5, 3662.007))


def test_text_has_one_line_per_utterance() -> None:
    assert to_text([FIRST, SECOND]) == "one two\nthree four\n"


def test_json_is_one_line_with_words_and_metadata() -> None:
    document = to_json([FIRST, SECOND], file="a.wav")
    assert document.endswith("\n")
    assert document.count("\n") == 1
    assert json.loads(document) == {
        "file": "a.wav",
        "text": "one two three four",
        "utterances": [FIRST.to_dict(), SECOND.to_dict()],
    }


def test_a_pause_of_a_second_ends_a_cue() -> None:
    words = [Word("one", 0.0, 0.3), Word("two", 1.2, 1.5), Word("three", 2.5, 2.9)]
    assert [cue.text for cue in cut_cues([final(0, *words)])] == ["one two", "three"]


def test_srt() -> None:
    assert to_srt([FIRST, SECOND]) == (
        "1\n00:00:00,500 --> 00:00:01,250\none two\n\n"
        "2\n00:00:59,900 --> 00:01:00,000\nthree\n\n"
        "3\n01:01:01,500 --> 01:01:02,007\nfour\n"
    )


def test_vtt() -> None:
    assert to_vtt([FIRST]) == "WEBVTT\n\n00:00:00.500 --> 00:00:01.250\none two\n"


def test_vtt_escapes_markup() -> None:
    assert "\na&lt;b&gt; &amp; c\n" in to_vtt([final(0, Word("a<b>", 0, 1), Word("&", 1, 2), Word("c", 2, 3))])


@pytest.mark.parametrize(("name", "nothing"), [("text", ""), ("srt", ""), ("vtt", "WEBVTT\n")])
def test_no_speech_gives_a_valid_file(name: str, nothing: str) -> None:
    assert FORMATS[name]([]) == nothing
    assert json.loads(FORMATS["json"]([])) == {"text": "", "utterances": []}


@given(st.lists(st.tuples(st.integers(1, 30), st.floats(0, 3), st.floats(0.1, 4)), min_size=1, max_size=40))
def test_cues_are_short_in_order_and_lose_no_word(shapes: list[tuple[int, float, float]]) -> None:
    words, now_seconds = [], 0.0
    for characters, gap_seconds, seconds in shapes:
        start_seconds = now_seconds + gap_seconds
        now_seconds = start_seconds + seconds
        words.append(Word("x" * characters, start_seconds, now_seconds))
    cues = cut_cues([final(0, *words)])
    assert " ".join(cue.text for cue in cues) == " ".join(word.text for word in words)
    assert all(len(cue.text) <= LINE_CHARACTERS for cue in cues)
    assert all(0 < cue.end_seconds - cue.start_seconds <= CUE_SECONDS for cue in cues)
    assert all(earlier.end_seconds <= later.start_seconds for earlier, later in pairwise(cues))


def test_all_srt_times_are_well_formed() -> None:
    times = re.findall(r"^(\S+) --> (\S+)$", to_srt([FIRST, SECOND]), re.MULTILINE)
    assert len(times) == 3
    assert all(re.fullmatch(r"\d\d:[0-5]\d:[0-5]\d,\d{3}", time) for pair in times for time in pair)

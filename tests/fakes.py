"""Small fakes: a recogniser with scripted words."""

from __future__ import annotations

from typing import Any

from headsync.events import Event, Final, Partial, Word
from headsync.text.vocabulary import Vocabulary

WORD_SECONDS = 0.3  # every word takes this long, one after the other
WAIT_SECONDS = 0.2  # how much more has to arrive before a word is shown
COST_RATIO = 0.5


class FakeRecognizer:
    """Its sessions recognise the given texts in turn, word by word as audio arrives; without texts, nothing."""

    vocabulary = Vocabulary("words", ("any",))  # the fake also writes other words

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)

    def session(self) -> FakeSession:
        return FakeSession(self.texts.pop(0) if self.texts else "")


class FakeSession:
    """One stream: a Partial for every word, and at the end a Final with the words so far."""

    def __init__(self, text: str) -> None:
        ends = [(word, (i + 1) * WORD_SECONDS) for i, word in enumerate(text.split())]
        self.words = tuple(Word(word, end - WORD_SECONDS, end) for word, end in ends)
        self.shown = 0
        self.audio_seconds = 0.0

    def push(self, samples: Any, sample_rate: int) -> list[Event]:
        self.audio_seconds += len(samples) / sample_rate
        heard = sum(word.end_seconds + WAIT_SECONDS <= self.audio_seconds + 1e-9 for word in self.words)
        events: list[Event] = [self._partial(count) for count in range(self.shown + 1, heard + 1)]
        self.shown = heard
        return events

    def finish(self) -> list[Event]:
        words = tuple(word for word in self.words if word.end_seconds <= self.audio_seconds + 1e-9)
        if not words:
            return []
        text = " ".join(word.text for word in words)
        delay_seconds = self.audio_seconds - words[-1].end_seconds
        return [Final(0, text, words, delay_seconds, self.audio_seconds, tuple(range(len(words))), COST_RATIO)]

    def _partial(self, count: int) -> Partial:
        words = self.words[:count]
        text = " ".join(word.text for word in words)
        return Partial(0, text, words, WAIT_SECONDS, words[-1].end_seconds + WAIT_SECONDS)

"""Feeds recordings to one recogniser in real time; runs in that recogniser's own environment.

    python drive_live.py NAME FOLDER [MODEL]

FOLDER contains recordings as raw 16 kHz 16-bit samples, which are pushed in real time in chunks of 0.1 s. Prints one
JSON object: for each recording the displayed texts and their times, by pushed audio and with computing time. Computing
time is CPU time, so that other programs on the computer do not count: a call begins when its audio has arrived and the
previous call has ended.
"""

import json
import sys
import time
from pathlib import Path

RATE, PIECE = 16_000, 3_200  # bytes: 0.1 s
DIGITS = "zero oh one two three four five six seven eight nine"


class Headsync:
    def __init__(self, model):
        import numpy

        import headsync

        self.headsync, self.numpy = headsync, numpy
        self.recognizer = headsync.Recognizer.load(model)

    def start(self):
        self.session = self.recognizer.session()

    def push(self, piece):
        return self._texts(self.session.push(self.numpy.frombuffer(piece, "<i2"), RATE))

    def finish(self):
        return self._texts(self.session.finish())

    def _texts(self, events):
        kinds = (self.headsync.Partial, self.headsync.Final)
        return [(e.utterance, e.text, isinstance(e, kinds[1])) for e in events if isinstance(e, kinds)]


class Vosk:
    def __init__(self, model, grammar=None):
        import vosk

        vosk.SetLogLevel(-1)
        self.model, self.grammar, self.kind = vosk.Model(model), grammar, vosk.KaldiRecognizer

    def start(self):
        self.recognizer = self.kind(self.model, RATE, *([self.grammar] if self.grammar else []))
        self.utterance = 0

    def push(self, piece):
        if self.recognizer.AcceptWaveform(piece):
            return self._final(self.recognizer.Result())
        return [(self.utterance, json.loads(self.recognizer.PartialResult())["partial"], False)]

    def finish(self):
        return self._final(self.recognizer.FinalResult())

    def _final(self, result):
        self.utterance += 1
        return [(self.utterance - 1, json.loads(result)["text"], True)]


class PocketSphinx:
    def __init__(self, model):
        from pocketsphinx import Decoder

        self.decoder = Decoder(samprate=RATE, loglevel="FATAL")

    def start(self):
        self.decoder.start_utt()

    def push(self, piece):
        self.decoder.process_raw(piece, no_search=False, full_utt=False)
        return self._text(False)

    def finish(self):
        self.decoder.end_utt()
        return self._text(True)

    def _text(self, final):
        found = self.decoder.hyp()
        return [(0, found.hypstr if found else "", final)]


class Moonshine:
    """Decodes the growing audio again every half second."""

    def __init__(self, model):
        import array

        from moonshine_voice import ModelArch, Transcriber, get_model_path

        self.array = array.array
        self.transcriber = Transcriber(model_path=str(get_model_path("tiny-en")), model_arch=ModelArch.TINY)

    def start(self):
        self.lines, self.texts, self.stream = [], [], self.transcriber.create_stream()
        self.stream.add_listener(self._hear)
        self.stream.start()

    def push(self, piece):
        self.stream.add_audio([sample / 32768 for sample in self.array("h", piece)], RATE)
        return self._taken()

    def finish(self):
        self.stream.stop()
        self.stream.close()
        return self._taken()

    def _hear(self, event):
        line = getattr(event, "line", None)
        if line is not None:
            if line.start_time not in self.lines:
                self.lines.append(line.start_time)
            self.texts.append((self.lines.index(line.start_time), line.text, line.is_complete))

    def _taken(self):
        texts, self.texts = self.texts, []
        return texts


PEERS = {
    "headsync": Headsync,
    "vosk": Vosk,
    "vosk-grammar": lambda model: Vosk(model, json.dumps([*DIGITS.split(), "[unk]"])),
    "pocketsphinx": PocketSphinx,
    "moonshine": Moonshine,
}


def drive(peer, sound):
    """The texts of one recording: utterance, text, whether final, seconds pushed, and seconds with computing."""
    peer.start()
    shown, computing, free, began = [], 0.0, 0.0, time.perf_counter()
    for first in range(0, len(sound) + PIECE, PIECE):
        pushed = min(first + PIECE, len(sound)) / 2 / RATE
        time.sleep(max(0.0, began + pushed - time.perf_counter()))
        cpu = time.process_time()
        texts = peer.push(sound[first : first + PIECE]) if first < len(sound) else peer.finish()
        took = time.process_time() - cpu
        computing, free = computing + took, max(free, pushed) + took
        shown += [(*text, pushed, free) for text in texts]
    return {"shown": shown, "seconds": len(sound) / 2 / RATE, "computing": computing}


def main():
    name, folder, model = sys.argv[1], Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None
    peer, results = PEERS[name](model), {}
    for path in sorted(folder.glob("*.raw")):
        results[path.stem] = drive(peer, path.read_bytes())
    print(json.dumps(results))


if __name__ == "__main__":
    main()

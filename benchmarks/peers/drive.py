"""Streams recordings through one recogniser in chunks of 0.1 s; runs in that recogniser's own environment.

    python drive.py NAME FOLDER

FOLDER contains recordings as raw 16 kHz 16-bit samples. Prints one JSON object: for each recording the text, its CPU
seconds, and those after its end; and the loading time and memory.
"""

import json
import resource
import sys
import time
from pathlib import Path

RATE, PIECE = 16_000, 3_200  # bytes: 0.1 s
DIGITS = "zero oh one two three four five six seven eight nine"


class Headsync:
    def __init__(self, model=None):
        import numpy

        import headsync

        self.final, self.numpy = headsync.Final, numpy
        self.recognizer = headsync.Recognizer.load(model)

    def start(self):
        self.session, self.texts = self.recognizer.session(), []

    def push(self, piece):
        self._take(self.session.push(self.numpy.frombuffer(piece, "<i2"), RATE))

    def finish(self):
        self._take(self.session.finish())
        return " ".join(self.texts)

    def _take(self, events):
        self.texts += [event.text for event in events if isinstance(event, self.final)]


class Pocketsphinx:
    def __init__(self, grammar=None):
        from pocketsphinx import Decoder

        settings = {"lm": None, "jsgf": grammar} if grammar else {}
        self.decoder = Decoder(samprate=RATE, loglevel="FATAL", **settings)

    def start(self):
        self.decoder.start_utt()

    def push(self, piece):
        self.decoder.process_raw(piece, no_search=False, full_utt=False)

    def finish(self):
        self.decoder.end_utt()
        found = self.decoder.hyp()
        return found.hypstr if found else ""


class Vosk:
    def __init__(self, model):
        import drive_live

        self.live = drive_live.Vosk(str(model))

    def start(self):
        self.live.start()
        self.texts = []

    def push(self, piece):
        self._take(self.live.push(piece))

    def finish(self):
        self._take(self.live.finish())
        return " ".join(self.texts)

    def _take(self, shown):
        self.texts += [text for _, text, is_final in shown if is_final]


class Moonshine:
    def __init__(self):
        import array

        from moonshine_voice import ModelArch, Transcriber, get_model_path

        self.array = array.array
        self.transcriber = Transcriber(model_path=str(get_model_path("tiny-en")), model_arch=ModelArch.TINY)

    def start(self):
        self.lines, self.stream = {}, self.transcriber.create_stream()
        self.stream.add_listener(self._hear)
        self.stream.start()

    def push(self, piece):
        samples = self.array("h", piece)
        self.stream.add_audio([sample / 32768 for sample in samples], RATE)

    def finish(self):
        self.stream.stop()
        self.stream.close()
        return " ".join(text for _, text in sorted(self.lines.items()))

    def _hear(self, event):
        line = getattr(event, "line", None)
        if line is not None:
            self.lines[line.start_time] = line.text


def grammar_file(folder):
    path = folder / "digits.gram"
    path.write_text(f"#JSGF V1.0;\ngrammar digits;\npublic <digits> = ({' | '.join(DIGITS.split())})+;\n")
    return str(path)


PEERS = {
    "headsync": lambda folder: Headsync(),
    "headsync-int8": lambda folder: Headsync(folder.parent / "digits-int8"),
    "moonshine": lambda folder: Moonshine(),
    "pocketsphinx": lambda folder: Pocketsphinx(),
    "vosk": lambda folder: Vosk(folder.parent / "vosk-model/package/model/english"),
    "pocketsphinx-grammar": lambda folder: Pocketsphinx(grammar_file(folder)),
}


def main():
    name, folder = sys.argv[1], Path(sys.argv[2])
    peer = PEERS[name](folder)
    loading, results = time.process_time(), []  # since the process began
    for path in sorted(folder.glob("*.raw")):
        sound = path.read_bytes()
        cpu = time.process_time()
        peer.start()
        for first in range(0, len(sound), PIECE):
            peer.push(sound[first : first + PIECE])
        ended = time.process_time()
        text = peer.finish()
        delay = time.process_time() - ended
        took = time.process_time() - cpu
        seconds = len(sound) / 2 / RATE
        results.append({"id": path.stem, "text": text, "computing": took, "delay": delay, "seconds": seconds})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"name": name, "loading": loading, "peak_mb": peak, "results": results}))


if __name__ == "__main__":
    main()

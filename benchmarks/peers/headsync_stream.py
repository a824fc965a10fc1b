"""A live stream through a headsync model with random weights, paced like ESPnet's; requires no PyTorch.

    python headsync_stream.py MODEL --beam 10 --seconds 10 [--rate 4]

Noise arrives in chunks of 0.1 s. Prints one JSON object, as `espnet_stream.py` does.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from peak import peak_mb

from headsync.engine import load_engine
from headsync.events import Final, Partial
from headsync.model_folder import load_folder
from headsync.recognizer import Recognizer

sys.path.append(str(Path(__file__).parent.parent))

from speed import PacedEngine

RATE, PIECE = 16_000, 1_600
WARM_UP_SECONDS = 3.0


def stream(folder, engine, beam, seconds, rate):
    """CPU seconds, and seconds of audio before the first token."""
    paced = PacedEngine(engine, rate, folder)
    session = Recognizer(folder, paced, replace(folder.config.decoding, beam=beam)).session()
    sound = 0.1 * np.random.default_rng(1).standard_normal(round(seconds * RATE)).astype(np.float32)
    first, began = None, time.process_time()
    for start in range(0, len(sound), PIECE):
        events = session.push(sound[start : start + PIECE], RATE)
        events += session.finish() if start + PIECE >= len(sound) else []
        paced.done.clear()
        if first is None and any(isinstance(event, Partial | Final) and event.text for event in events):
            first = (start + PIECE) / RATE
    return time.process_time() - began, first


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--beam", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=4.0)
    given = parser.parse_args()
    folder = load_folder(given.model)
    engine = load_engine(folder)
    stream(folder, engine, given.beam, WARM_UP_SECONDS, given.rate)
    computing, first = stream(folder, engine, given.beam, given.seconds, given.rate)
    figures = {"computing": computing, "processed": given.seconds, "total_cpu_rtf": computing / given.seconds}
    print(json.dumps({**figures, "first_token": first, "peak_rss_mb": peak_mb()}))


if __name__ == "__main__":
    main()

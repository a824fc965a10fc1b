"""Training steps of ESPnet's streaming Transformer and their matrix products alone; runs in ESPnet's own environment.

    python espnet_train.py --classes 5000 --rounds 5 [--rows 8 --frames 1000 --tokens 40]

Prints a JSON list, in the order of `Times` in `benchmarks/training_step.py`, which calls it.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from espnet_network import MEL, ESPnetASRModel, networks

sys.path.append(str(Path(__file__).parent.parent))
from products import measure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("classes", 5000), ("rounds", 5), ("rows", 8), ("frames", 1000), ("tokens", 40)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    torch.set_num_threads(1)
    encoder, decoder, ctc = networks(given.classes)
    names = ["<blank>", *map(str, range(1, given.classes - 1)), "<sos/eos>"]
    settings = {"ctc_weight": 0.3, "lsm_weight": 0.1, "report_cer": False, "report_wer": False}
    before = [None] * 4  # no front end, augmentation, normalisation, layers before the encoder
    model = ESPnetASRModel(given.classes, names, *before, encoder, None, decoder, ctc, None, **settings).train()
    adam = torch.optim.Adam(model.parameters(), lr=1e-4)
    features = torch.randn(given.rows, given.frames, MEL)
    tokens = torch.randint(1, given.classes - 1, (given.rows, given.tokens))
    frames_each, tokens_each = torch.full((given.rows,), given.frames), torch.full((given.rows,), given.tokens)

    def gradient():
        adam.zero_grad()
        model(features, frames_each, tokens, tokens_each)[0].backward()

    print(json.dumps(measure(gradient, adam.step, given.rounds)))


if __name__ == "__main__":
    main()

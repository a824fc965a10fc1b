"""A live stream through ESPnet's streaming Transformer; runs in ESPnet's own environment.

    python espnet_stream.py --classes 5000 --beam 10 --seconds 10 [--rate 4] [--timeout 30]

Random features arrive in chunks of 0.64 s and pass through the contextual block encoder and the blockwise synchronous
beam search, which uses the scores of decoder and CTC. Random weights would end a text immediately or never, so the
decoder is paced: all its operations run, and then its scores are changed. Hypotheses grow while they have fewer tokens
than the rate requires for the frames so far; otherwise they prefer <eos>, by which ESPnet detects that the block is
exhausted.

Prints one JSON object. Times are CPU seconds on one thread; after `timeout` minutes of them it stops, and reports the
audio processed so far.
"""

import argparse
import json
import time

import torch
from espnet_network import AHEAD, BLOCK, HOP, MEL, BatchBeamSearchOnline, CTCPrefixScorer, networks
from peak import peak_mb

PIECE_FRAMES = 64  # of 10 ms
ENCODER_FRAME_SECONDS = 0.04
NEVER = -1e12  # below the score of impossible tokens in ESPnet's CTC, -1e10
WARM_UP_SECONDS = 3.0


def pace(decoder, rate, end):
    """Make the decoder emit `rate` tokens per second."""
    unpaced = decoder.batch_score

    def paced(texts, states, frames, *more):
        scores, states = unpaced(texts, states, frames, *more)
        written = texts.shape[1] - 1
        if written < int(rate * ENCODER_FRAME_SECONDS * frames.shape[1]):
            scores[:, 0] = scores[:, end] = NEVER  # neither blank nor the end
            scores[torch.arange(len(texts)), texts[:, -1]] = NEVER  # nor a token twice: CTC may have no room for it
        else:
            scores += NEVER
            scores[:, end] = 0.0
        return scores, states

    decoder.batch_score = paced


def recogniser(classes, beam, rate):
    """The encoder and the search."""
    encoder, decoder, ctc = (network.eval() for network in networks(classes))
    end = classes - 1
    pace(decoder, rate, end)
    search = BatchBeamSearchOnline(
        scorers={"decoder": decoder, "ctc": CTCPrefixScorer(ctc, end)},
        weights={"decoder": 0.7, "ctc": 0.3},
        beam_size=beam,
        vocab_size=classes,
        sos=end,
        eos=end,
        token_list=[str(number) for number in range(classes)],
        pre_beam_score_key="full",
        block_size=BLOCK,
        hop_size=HOP,
        look_ahead=AHEAD,
        disable_repetition_detection=True,
    )
    return encoder, search.eval()


@torch.no_grad()
def stream(encoder, search, seconds, most):
    """CPU seconds, seconds of audio processed, seconds of audio before the first token, number of tokens."""
    features = torch.randn(1, round(100 * seconds), MEL)
    search.reset()
    state, first, texts, began = None, None, [], time.process_time()
    for start in range(0, features.shape[1], PIECE_FRAMES):
        piece = features[:, start : start + PIECE_FRAMES]
        processed = (start + piece.shape[1]) / 100
        final = start + PIECE_FRAMES >= features.shape[1]
        frames, _, state = encoder(
            piece.clone(), torch.tensor([piece.shape[1]]), state, is_final=final, infer_mode=True
        )
        texts = search(frames[0], is_final=final)
        if first is None and texts and len(texts[0].yseq) > 2:  # the start, a token, the end
            first = processed
        if time.process_time() - began > most:
            break
    return time.process_time() - began, processed, first, len(texts[0].yseq) - 2 if texts else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=5000)
    parser.add_argument("--beam", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=4.0)
    parser.add_argument("--timeout", type=float, default=30.0, help="minutes of processor time")
    given = parser.parse_args()
    torch.set_num_threads(1)
    encoder, search = recogniser(given.classes, given.beam, given.rate)
    stream(encoder, search, WARM_UP_SECONDS, given.timeout * 60)
    computing, processed, first, tokens = stream(encoder, search, given.seconds, given.timeout * 60)
    figures = {
        "computing": computing,
        "processed": processed,
        "total_cpu_rtf": computing / processed,
        "first_token": first,
    }
    ended = processed >= round(given.seconds, 2)
    print(json.dumps({**figures, "peak_rss_mb": peak_mb(), "tokens": tokens, "ended": ended}))


if __name__ == "__main__":
    main()

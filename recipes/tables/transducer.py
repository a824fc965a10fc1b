"""A transducer (RNN-T) on the stored frames of recipes/tables/english.toml, for comparison.

    headsync compare recipes/tables/english.toml --only HS-DACS   # trains the shared CTC and stores the frames
    python recipes/tables/transducer.py                           # trains, or continues, and measures

The prediction network is stateless: it sees the last two tokens. The joiner is additive: the logits of node (t, u) are
the sum of logits of frame t and logits of the text before token u, so the normaliser of all nodes is one product of
matrices and no logits of nodes are stored. Both logits have the decoder's embedding as output layer, which is not
trained. A joiner with a nonlinear layer after the sum may have lower error rates. Batches, updates and rate are those
of the recipe. The search is greedy, with at most three tokens in a frame. r does not apply: every frame is read once.

Shapes: B rows, T encoder frames, U tokens of a text plus 1, V classes, E width, N diagonals of the lattice.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from headsync.config import Config
from headsync.corpora.manifest import Utterance, read_manifest
from headsync.evaluation.alignment import aligned_times, load_aligner
from headsync.evaluation.error_rate import ErrorCounts, bootstrap_interval, count_errors
from headsync.evaluation.formatting import bare, equal_words
from headsync.evaluation.latency import TimedWord, percentiles
from headsync.evaluation.normalise import normaliser
from headsync.frontend.audio import SAMPLE_RATE
from headsync.frontend.features import Statistics
from headsync.frontend.waveform import build_features
from headsync.model_folder import STATISTICS, WEIGHTS
from headsync.recipe import load_config
from headsync.training.asr_task import AsrTask, build_model
from headsync.training.batches import PADDING, Batch, usable
from headsync.training.bucketing import Share, Split
from headsync.training.checkpoint import TrainingProgress
from headsync.training.distributed import ALONE, Ranks
from headsync.training.losses import Losses
from headsync.training.optimisation import DTYPES
from headsync.training.report import Style
from headsync.training.trainer import MODEL, Task, Trainer
from headsync.training.warm_start import start_vocabulary, take_weights

ROOT = Path(__file__).parent
BLANK, CONTEXT, MOST_TOKENS = 0, 2, 3  # context: tokens that the prediction network sees; most tokens of a frame
NEVER = -1e30  # a finite log probability of nothing: gradients of -inf are not numbers
FIRST_SCALE = 0.3  # of the logits


class Branch(nn.Module):
    """A feed-forward layer before the shared output layer."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(inputs, 2 * width), nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)
        nn.init.constant_(self.norm.weight, FIRST_SCALE)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.second(F.gelu(self.first(x))))


class Transducer(nn.Module):
    """Logits of frames and of texts; their sum is that of the nodes of the lattice."""

    def __init__(self, embedding_VE: Tensor) -> None:
        super().__init__()
        width = embedding_VE.shape[1]
        self.embedding = nn.Parameter(embedding_VE.clone(), requires_grad=False)
        self.frames, self.texts = Branch(width, width), Branch(CONTEXT * width, width)
        self.bias = nn.Parameter(torch.zeros(len(embedding_VE)))

    def of_frames(self, frames_BTE: Tensor) -> Tensor:
        return F.linear(self.frames(frames_BTE), self.embedding, self.bias)

    def of_texts(self, before_BUC: Tensor) -> Tensor:
        """Logits after the last tokens, (..., C): blanks before the first token."""
        return F.linear(self.texts(F.embedding(before_BUC, self.embedding).flatten(-2)), self.embedding)

    def forward(self, batch: Batch) -> Tensor:
        """Negative log probability of each text, (B,)."""
        tokens_BU, counts_B = texts_of(batch)
        frames_BTV = self.of_frames(batch.features_BTF)
        texts_BUV = self.of_texts(contexts(tokens_BU))
        with torch.autocast("cpu", enabled=False):
            blank_BTU, token_BTU = log_probabilities(frames_BTV.float(), texts_BUV.float(), tokens_BU)
            return transducer_loss(blank_BTU, token_BTU, batch.lengths_B, counts_B)


def log_probabilities(frames_BTV: Tensor, texts_BUV: Tensor, tokens_BU: Tensor) -> tuple[Tensor, Tensor]:
    """Log probabilities of the blank, (B, T, U), and of the next token, (B, T, U - 1), at the nodes of the lattice."""
    total_BTU = log_normaliser(frames_BTV, texts_BUV)
    blank_BTU = frames_BTV[..., BLANK, None] + texts_BUV[:, None, :, BLANK] - total_BTU
    of_text_BU = texts_BUV[:, :-1].gather(2, tokens_BU.unsqueeze(-1)).squeeze(2)
    index_BTU = tokens_BU[:, None].expand(-1, frames_BTV.shape[1], -1)
    return blank_BTU, frames_BTV.gather(2, index_BTU) + of_text_BU[:, None] - total_BTU[..., :-1]


def texts_of(batch: Batch) -> tuple[Tensor, Tensor]:
    """Tokens without the end, followed by blanks, and their number."""
    counts_B = (batch.targets_BL != PADDING).sum(1) - 1
    tokens_BU = batch.targets_BL[:, :-1]
    return tokens_BU.masked_fill(torch.arange(tokens_BU.shape[1]) >= counts_B[:, None], BLANK), counts_B


def contexts(tokens_BU: Tensor) -> Tensor:
    """The last tokens before each place of the text, (B, U + 1, C)."""
    padded = F.pad(tokens_BU, (CONTEXT, 0), value=BLANK)
    return padded.unfold(1, CONTEXT, 1)


def log_normaliser(frames_BTV: Tensor, texts_BUV: Tensor) -> Tensor:
    """log of the sum over classes of exp(frame + text), for all nodes (B, T, U)."""
    most_BT1, most_BU1 = frames_BTV.detach().amax(-1, keepdim=True), texts_BUV.detach().amax(-1, keepdim=True)
    sums = (frames_BTV - most_BT1).exp() @ (texts_BUV - most_BU1).exp().transpose(1, 2)
    return sums.clamp(min=torch.finfo(sums.dtype).tiny).log() + most_BT1 + most_BU1.transpose(1, 2)


def transducer_loss(blank_BTU: Tensor, token_BTU: Tensor, frames_B: Tensor, counts_B: Tensor) -> Tensor:
    """Negative log of the sum over all paths, (B,).

    A path goes from node (0, 0) by blanks, to the next frame, and tokens, to the next place in the text; it ends with a
    blank after the last frame and token. Nodes on a diagonal t + u = n depend on those of the diagonal before.
    """
    rows, _, places = blank_BTU.shape
    blank_NBU, token_NBU = _diagonals(blank_BTU), _diagonals(F.pad(token_BTU, (0, 1), value=NEVER))
    alpha_BU = torch.full((rows, places), NEVER, dtype=blank_BTU.dtype)
    alpha_BU[:, 0] = 0.0
    alphas = [alpha_BU]
    for blank_BU, token_BU in zip(blank_NBU[:-1], token_NBU[:-1], strict=True):
        moved_BU = F.pad((alpha_BU + token_BU)[:, :-1], (1, 0), value=NEVER)
        alpha_BU = torch.logaddexp(alpha_BU + blank_BU, moved_BU)
        alphas.append(alpha_BU)
    row, last_B = torch.arange(rows), frames_B - 1
    return -(torch.stack(alphas)[last_B + counts_B, row, counts_B] + blank_BTU[row, last_B, counts_B])


def _diagonals(x_BTU: Tensor) -> Tensor:
    """Entries by diagonal, (T + U - 1, B, U): place u of diagonal n is node (n - u, u); NEVER if there is none."""
    _, frames, places = x_BTU.shape
    n, u = torch.arange(frames + places - 1)[:, None], torch.arange(places)
    t = n - u
    found = x_BTU[:, t.clamp(0, frames - 1), u].transpose(0, 1)
    return found.masked_fill(((t < 0) | (t >= frames))[:, None], NEVER)


class Emitted(NamedTuple):
    """A token and the frame at which it was emitted."""

    token: int
    frame: int


@torch.inference_mode()
def greedy(model: Transducer, frames_TE: Tensor) -> list[Emitted]:
    """The most probable class of each node on one path."""
    found: list[Emitted] = []
    text_V = model.of_texts(torch.full((CONTEXT,), BLANK))
    for frame, logits_V in enumerate(model.of_frames(frames_TE)):
        for _ in range(MOST_TOKENS):
            best = int((logits_V + text_V).argmax())
            if best == BLANK:
                break
            found.append(Emitted(best, frame))
            last = [BLANK] * CONTEXT + [one.token for one in found]
            text_V = model.of_texts(torch.tensor(last[-CONTEXT:]))
    return found


class Evaluation(NamedTuple):
    """Means over the development set."""

    loss: float


class TransducerTask(Task[Batch, Evaluation]):
    """The training of a transducer with the batches and the rate of a recogniser."""

    remedy = "lower training.noam_factor"

    def __init__(self, asr: AsrTask, model: Transducer) -> None:
        self.asr, self.config, self.vocabulary, self.model = asr, asr.config, asr.vocabulary, model
        self.optimiser = torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9)
        self.style = Style(lambda means: f"loss {means['loss']:.3f}", lambda _: "", "s/s", asr.style.per_unit)

    def batches(self, progress: TrainingProgress, split: Split) -> tuple[int, Iterator[Share[Batch]]]:
        return self.asr.batches(progress, split)

    def rate(self, progress: TrainingProgress) -> float:
        return self.asr.rate(progress)

    def loss(self, network: nn.Module, part: Batch, update: int) -> Losses:
        return Losses(network(part).sum() / (part.targets_BL != PADDING).sum(), {})

    def evaluate(self, update: int, ranks: Ranks) -> Evaluation:
        batches, total, steps = self.asr.dev_batches(), 0.0, 0
        for number in range(len(batches)):
            batch = batches[number]
            total += float(self.model(batch).sum())
            steps += int((batch.targets_BL != PADDING).sum())
        return Evaluation(total / steps)

    def card(self, progress: TrainingProgress, result: Evaluation) -> str:
        return f"# Transducer\n\nFor recipes/tables/transducer.py; dev loss {result.loss:.3f} per token.\n"

    def next_command(self, model: Path) -> str:
        return "python recipes/tables/transducer.py"


def recogniser_task(config: Config, tests: Sequence[Utterance]) -> AsrTask:
    """Data and stored frames of the comparison; frames of test utterances are stored too."""
    vocabulary = start_vocabulary(config, ())
    model = build_model(config, vocabulary)
    take_weights(model, vocabulary, config.training.start_from, print)
    train, dev = (
        usable(read_manifest(Path(path)), vocabulary, config.frame_rate)[0]
        for path in (config.data.train, config.data.dev)
    )
    statistics_of_start = Statistics.load(Path(config.training.start_from) / STATISTICS, config.columns)
    adam = torch.optim.Adam(model.parameters())
    task = AsrTask(config, vocabulary, model, adam, train, [*dev, *tests], statistics_of_start)
    task.store_frames(lambda: precision(config), print)
    task.dev = dev
    return task


def trainer_of(asr: AsrTask) -> Trainer[Batch, Evaluation]:
    """A run with initial weights, or with those of its last checkpoint."""
    torch.manual_seed(asr.config.training.seed)
    (Path(asr.config.training.folder) / MODEL).mkdir(parents=True, exist_ok=True)
    return Trainer(TransducerTask(asr, Transducer(embedding_of(asr))), ALONE, print)


def embedding_of(asr: AsrTask) -> Tensor:
    """The embedding of the decoder to start from, without the row of the sentence start."""
    return asr.model.decoder.embedding.weight[: asr.vocabulary.size].detach()


def precision(config: Config) -> AbstractContextManager[Any]:
    dtype = DTYPES.get(config.training.precision)
    return torch.autocast("cpu", dtype) if dtype else nullcontext()


def available_seconds(frame: int, config: Config, seconds: float) -> float:
    """When a frame of the streaming encoder is available: after its chunk and the frames behind it."""
    centre = config.encoder.centre_frames
    frames = (frame // centre + 1) * centre + config.encoder.right_frames
    samples = config.frame_rate.needed_samples(frames) + build_features(config).delay_samples
    return min(seconds, samples / SAMPLE_RATE)


def delays(found: Sequence[Emitted], said: Sequence[TimedWord], task: AsrTask, seconds: float) -> list[float]:
    """From the end of each correct word by an aligner until its last token is emitted."""
    ids = [one.token for one in found]
    spans = task.vocabulary.words(ids)
    written = [bare(task.vocabulary.decode(ids[span.first : span.end])) or "-" for span in spans]
    pairs = equal_words([bare(word.text) or "-" for word in said], written)
    ends = [available_seconds(found[span.end - 1].frame, task.config, seconds) for span in spans]
    return [ends[m] - said[n].end for n, m in pairs]


def measure(model: Transducer, task: AsrTask, manifest: Path) -> dict[str, Any]:
    """Error rate with its interval over speakers, and delays."""
    normalise, utterances = normaliser("english"), read_manifest(manifest)
    times = aligned_times(utterances, load_aligner("pocketsphinx"), manifest.with_suffix(".pocketsphinx.json"))
    counts: dict[str, ErrorCounts] = {}
    found_delays: list[float] = []
    assert task.frames is not None
    for utterance in utterances:
        found = greedy(model, torch.from_numpy(task.frames.read(utterance)))
        text = task.vocabulary.decode([one.token for one in found])
        errors = count_errors(normalise(utterance.text), normalise(text))
        counts[utterance.speaker] = counts.get(utterance.speaker, ErrorCounts()) + errors
        found_delays += delays(found, times.get(utterance.id, []), task, utterance.seconds)
    total, interval, spread = sum(counts.values(), ErrorCounts()), bootstrap_interval([*counts.values()]), None
    if measured := percentiles(found_delays):
        spread = [measured.p50, measured.p95]
    return {"errors": total.rate, "95 %": interval and [interval.low, interval.high], "delay, median / 95 %": spread}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, default=ROOT / "english-recipe.toml")
    parser.add_argument("--start", default="runs/tables/english/encoder/seed-1/model", help="the shared encoder")
    parser.add_argument("--out", type=Path, default=Path("runs/tables/english/transducer/seed-1"))
    parser.add_argument("--tests", type=Path, nargs="*", help="manifests to measure on", default=[
        Path("runs/english/sets/dev-clean-300.jsonl"), Path("runs/tables/english/test-clean.jsonl"),
    ])  # fmt: skip
    parser.add_argument("settings", nargs="*", help="settings of the recipe, such as training.epochs=1")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    given = [f"training.folder={arguments.out}", f"training.start_from={arguments.start}", "training.match_updates=0"]
    config = load_config(arguments.recipe, [*arguments.settings, *given])
    asr = recogniser_task(config, [u for path in arguments.tests for u in read_manifest(path)])
    model = trainer_of(asr).train()
    transducer = Transducer(embedding_of(asr)).eval()
    transducer.load_state_dict(load_file(model / WEIGHTS))
    results = {path.stem: measure(transducer, asr, path) for path in arguments.tests}
    (arguments.out / "results.json").write_text(json.dumps(results, indent=1))
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

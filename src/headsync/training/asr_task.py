"""Training of recognisers: utterances, joint loss, and the evaluation on the development set.

Shapes: B rows, T encoder frames, L output steps, V output classes.
"""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import jiwer
import torch
from torch import Tensor, nn

from headsync.attention import mechanism_of
from headsync.attention.base import Mechanism, Phase
from headsync.config import Config, TrainingConfig
from headsync.corpora.manifest import Utterance, read_manifest
from headsync.corpora.shards import is_sharded, read_shards
from headsync.errors import ConfigError, DataError, listed
from headsync.frontend.features import Statistics
from headsync.frontend.waveform import build_features
from headsync.model_folder import STATISTICS, checksummed, save_folder
from headsync.nn.decoder import Decoder
from headsync.nn.model import Model, Output
from headsync.nn.rotary import CtcHead
from headsync.text.vocabulary import Vocabulary
from headsync.training import Say
from headsync.training.batches import PADDING, Batch, Batches, check_not_empty, load, usable
from headsync.training.bucketing import Share, Split, at_speeds, plan, plan_shards
from headsync.training.checkpoint import Optimiser, TrainingProgress
from headsync.training.conversion import fit_energies, has_energies
from headsync.training.distributed import ALONE, Ranks
from headsync.training.forced_alignment import trigger_limits
from headsync.training.frame_cache import FrameCache, encoder_name, fill
from headsync.training.losses import Losses, LossTerm, Quantity, count_errors, joint_loss, loss_terms, teacher_states
from headsync.training.model_card import recogniser_card
from headsync.training.optimisation import align_in_float32
from headsync.training.report import Style
from headsync.training.schedule import noam
from headsync.training.trainer import CHECKPOINT, Task, Trainer, check_folder, part_of_pass
from headsync.training.warm_start import (
    OF_DECODER_TOKENS,
    softmax_decoder,
    start_vocabulary,
    take_statistics,
    take_weights,
)

FITTED = 200  # utterances to which the energies of a converted decoder are fitted
SHARPEN = 2  # times the warm-up: updates in which sharpness rises


class DevResult(NamedTuple):
    """Means over the development set, which select epochs."""

    loss: float
    attention_error: float | None  # of output steps, given the true tokens before; None if the encoder learns alone
    ctc_error: float  # token error rate of greedy CTC
    attention_loss: float | None = None  # cross-entropy of the decoder, a mean over output steps


@dataclass
class AsrTask(Task[Batch, DevResult]):
    config: Config
    vocabulary: Vocabulary
    model: Model
    optimiser: Optimiser
    train: list[Utterance]
    dev: list[Utterance]
    statistics: Statistics
    teacher: Decoder | None = None  # the decoder whose layers are matched
    frames: FrameCache | None = None  # of an encoder that is not trained

    remedy = "lower training.noam_factor or raise training.warmup_updates"

    def __post_init__(self) -> None:
        self.features = build_features(self.config)
        self.terms = [term for term in loss_terms(self.config.training) if self._applies(term)]
        self.layerwise_terms = loss_terms(self.config.training, layerwise=True)
        rate = self.features.rate
        per_second = 1 / rate.seconds if self.config.training.frame_cache else rate.features_per_second
        self.style = Style(_figures, _dev_figures, "s/s", per_second)

    def _applies(self, term: LossTerm) -> bool:
        """Whether a term is used: heads that count tokens from the first update learn to stop at the first frame."""
        settings = self.config.training
        from_scratch = not settings.untruncated_updates and not settings.start_from
        return not (isinstance(term, Quantity) and from_scratch and mechanism_of(self.config.decoder).counts_late)

    def batches(self, progress: TrainingProgress, split: Split) -> tuple[int, Iterator[Share[Batch]]]:
        batches = self.train_batches(progress.epoch)
        return len(batches), load(batches, progress.batch, self.config.data.workers, split)

    def rate(self, progress: TrainingProgress) -> float:
        settings = self.config.training
        return noam(progress.update + 1, self.config.network.width, settings.noam_factor, settings.warmup_updates)

    def loss(self, network: nn.Module, part: Batch, update: int) -> Losses:
        batch, per = part.to(next(self.model.parameters()).device), self.config.training.loss_per
        layerwise = self.teacher is not None and update <= self.config.training.match_updates
        terms = self.layerwise_terms if layerwise else self.terms
        return joint_loss(self._output(network, batch, update, layerwise), batch, terms, per)

    def evaluate(self, update: int, ranks: Ranks) -> DevResult:
        """Evaluate in the phase of the last update; several processes divide the batches."""
        sums = torch.zeros(7, dtype=torch.float64)
        batches, per = self.dev_batches(), self.config.training.loss_per
        for number in range(ranks.rank, len(batches), ranks.count):
            batch = batches[number].to(ranks.device)
            output = self._output(self.model, batch, update)
            losses = joint_loss(output, batch, self.terms, per)
            steps = int((batch.targets_BL != PADDING).sum())
            count = steps if per == "token" else len(batch.lengths_B)
            wrong = 0 if output.decoder_BLV is None else int(count_errors(output, batch)[0])
            assert output.ctc_BTV is not None, "evaluation computes CTC even if it is not trained"
            ctc = ctc_errors(output.ctc_BTV, output.frames_B, batch)
            entropy = float(losses.figures.get("attention", 0.0)) * steps
            found = float(losses.joint) * count, count, steps, wrong, *ctc, entropy
            sums += torch.tensor(found, dtype=torch.float64)
        loss, count, steps, wrong, edits, tokens, entropy = ranks.total(sums).tolist()
        loss = loss / count if math.isfinite(loss) else math.inf
        decoder = (None, None) if self.config.training.alone else (wrong / steps, entropy / steps)
        return DevResult(loss, decoder[0], edits / max(1, tokens), decoder[1])

    def card(self, progress: TrainingProgress, result: DevResult) -> str:
        return recogniser_card(
            self.config, self.vocabulary, self.model, len(self.train), progress, (result.loss, _dev_figures(result))
        )

    def next_command(self, model: Path) -> str:
        return shlex.join(["headsync", "evaluate", str(model), self.config.data.dev])

    def score(self, result: DevResult) -> float:
        """The loss; if the last epochs are averaged, the token errors of the decoder, by which ESPnet stops."""
        by_loss = self.config.training.average_of == "best" or result.attention_error is None
        return result.loss if by_loss else cast(float, result.attention_error)

    def candidates(self, progress: TrainingProgress) -> list[tuple[float, int]]:
        """Empty in the first epoch with halting: losses with and without halting are not comparable."""
        last_untruncated = self.config.training.untruncated_updates
        begins = progress.update - progress.batch <= last_untruncated < progress.update
        return [] if begins else progress.best

    def may_stop(self, progress: TrainingProgress) -> bool:
        """Not in the first phase."""
        return self.phase(progress.update).halts

    def phase(self, update: int) -> Phase:
        """The phase of an update: no halting at first, then sharpness rises linearly."""
        training, sharpness = self.config.training, self.config.decoder.sharpness
        since = update - training.untruncated_updates
        if since <= 0:
            return Phase(halts=False)
        risen = min(1.0, since / (SHARPEN * training.warmup_updates))
        return Phase(sharpness=1.0 + (sharpness - 1.0) * risen)

    def rows(self, epoch: int) -> list[list[int]]:
        """The batches of an epoch, which is a whole pass over the corpus or an even part of one."""
        settings, parts = self.config.training, self.config.training.epochs_per_pass
        whole_pass, part = divmod(epoch, parts)
        if is_sharded(Path(self.config.data.train)):
            rows = plan_shards(self.train, settings.batch_frames, settings.seed, whole_pass)
        else:
            rows = plan(self.train, settings.batch_frames, settings.seed, whole_pass)
        return part_of_pass(rows, part, parts)

    def train_batches(self, epoch: int) -> Batches:
        return self._batches(self.train, self.rows(epoch), (self.config.training, epoch))

    def dev_batches(self) -> Batches:
        """The development set, always in the same batches."""
        return self._batches(self.dev, plan(self.dev, self.config.training.batch_frames, 0, 0))

    def _batches(
        self, utterances: list[Utterance], rows: list[list[int]], augment: tuple[TrainingConfig, int] | None = None
    ) -> Batches:
        return Batches(utterances, self.vocabulary, self.statistics, rows, augment, self.features, self.frames)

    def store_frames(self, precision: Callable[[], AbstractContextManager[Any]], say: Say) -> None:
        """Compute the frames that are not stored yet; batches consist of stored frames from now on."""
        settings = self.config.training
        cache = FrameCache(Path(settings.frame_cache) / encoder_name(self.model, self.config))

        def batches(part: list[Utterance]) -> Batches:
            return self._batches(part, plan(part, settings.batch_frames, 0, 0))

        fill(cache, self.model, [*self.train, *self.dev], batches, precision, say)
        self.frames = cache

    def convert(self, say: Say) -> None:
        """Fit the energies of the mechanism, if it has any, after loading the weights of a softmax decoder."""
        if not has_energies(self.model.decoder):
            return
        batches, device = self.train_batches(0), next(self.model.parameters()).device
        seen = itertools.accumulate((len(rows) for rows in batches.rows[:-1]), initial=0)
        chosen = [batches[n].to(device) for n, before in enumerate(seen) if before < FITTED]
        explained = fit_energies(self.model.eval(), chosen)
        shares = " ".join(f"{share:.3f}" for share in explained)
        say(f"energies fitted to softmax attention; variance of log Z explained, by layer: {shares}")

    def _output(self, network: nn.Module, batch: Batch, update: int, layerwise: bool = False) -> Output:
        """The output of the network; `layerwise`: of each layer on the input of the teacher's layer."""
        phase = self.phase(update)
        self.model.decoder.set_phase(phase)
        limit_BL = trigger_limits(self.model, batch, self.config) if phase.halts else None
        inputs = batch.features_BTF, batch.lengths_B, batch.tokens_BL, limit_BL
        if not self.teacher:
            return cast(Output, network(*inputs))
        theirs = teacher_states(self.teacher, *self.model.encode(batch.features_BTF, batch.lengths_B), batch)
        with _without_dropout(self.model.decoder) if layerwise else nullcontext():
            output = network(*inputs, theirs[:-1] if layerwise else None)
        return cast(Output, output._replace(wanted_NBLE=theirs[1:]))


def start(config: Config, say: Say, ranks: Ranks = ALONE) -> Trainer[Batch, DevResult]:
    """Read the data, build the network, and load the last checkpoint if there is one."""
    train_set, dev_set = (_utterances(config, name) for name in ("train", "dev"))
    vocabulary = ranks.shared(lambda: start_vocabulary(config, [u.text for u in train_set]))
    train_set = _usable(at_speeds(train_set, config.training.all_speeds), vocabulary, config, "train", say)
    dev_set = _usable(dev_set, vocabulary, config, "dev", say)
    model = build_model(config, vocabulary)
    resumes = (Path(config.training.folder) / CHECKPOINT).exists()
    taken = not resumes and take_weights(model, vocabulary, config.training.start_from, say)
    softmax = softmax_decoder(config, vocabulary) if taken or config.training.match_updates else None
    folder = check_folder(config, vocabulary)
    statistics = ranks.shared(lambda: take_statistics(folder / STATISTICS, config, train_set, say))
    adam = torch.optim.Adam(model.to(ranks.device).parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9)
    teacher = _teacher(config, model, softmax, say)
    task = AsrTask(config, vocabulary, model, adam, train_set, dev_set, statistics, teacher)
    trainer = Trainer(task, ranks, say)
    if config.training.frame_cache:
        task.store_frames(trainer.updater.precision, say)
    if softmax and taken:
        task.convert(say)
    if ranks.first:
        with checksummed(trainer.model_folder):  # a resumed run has weights there already
            save_folder(trainer.model_folder, config, vocabulary, statistics)
    _introduce(task, say)
    return trainer


def build_model(config: Config, vocabulary: Vocabulary) -> Model:
    """The network with its initial weights."""
    torch.manual_seed(config.training.seed)
    model = Model(config, config.columns, vocabulary.size)
    if config.training.alone:
        model.decodes = False
        model.decoder.requires_grad_(False)
        model.decoder.embedding.requires_grad_(isinstance(model.ctc, CtcHead))  # then it is the output layer of CTC
    if config.training.ctc_weight == 0:
        model.trains_ctc = False
        model.ctc.requires_grad_(False)
    if config.training.frame_cache:
        model.reads_frames = True
        model.encoder.requires_grad_(False)
        if isinstance(model.ctc, CtcHead) and not (model.trains_ctc and model.decodes):
            model.decoder.embedding.requires_grad_(False)  # CTC and decoder, trained one after the other, share it
    if config.training.match_updates:
        for name, weight in model.named_parameters():
            weight.requires_grad_(weight.requires_grad and not name.startswith(OF_DECODER_TOKENS))
    if config.training.precision != "float32":
        align_in_float32([layer.cross.mechanism for layer in model.decoder.attending])
    return model


def _teacher(config: Config, model: Model, softmax: Decoder | None, say: Say) -> Decoder | None:
    """The decoder whose layers are matched, if the recipe requires one."""
    if not config.training.match_updates or config.training.alone:
        return None
    if len(model.decoder.attending) < len(model.decoder.layers):
        say(f"layers are not matched: not all layers of {config.decoder.attention} attend to frames")
        return None
    if softmax is None or len(softmax.layers) != len(model.decoder.layers):
        raise ConfigError(
            f"training.start_from = {config.training.start_from!r}: training.match_updates requires a trained decoder "
            f"with softmax attention, the same tokens and {config.decoder.layers} layers; set it to 0"
        )
    return softmax.to(next(model.parameters()).device)


@contextmanager
def _without_dropout(decoder: Decoder) -> Iterator[None]:
    """Disable dropout, whose noise the outputs of a teacher lack; mechanisms stay in training mode."""
    decoder.eval()
    for mechanism in (module for module in decoder.modules() if isinstance(module, Mechanism)):
        mechanism.train()
    try:
        yield
    finally:
        decoder.train()


def ctc_errors(ctc_BTV: Tensor, frames_B: Tensor, batch: Batch) -> tuple[int, int]:
    """Edits and reference tokens of greedy CTC."""
    edits = tokens = 0
    best_BT, targets_BL = ctc_BTV.argmax(-1).cpu(), batch.targets_BL.cpu()
    for best, frames, target in zip(best_BT, frames_B.tolist(), targets_BL, strict=True):
        labels = torch.unique_consecutive(best[:frames])
        hypothesis = " ".join(str(int(label)) for label in labels if label != 0)
        reference = [str(int(t)) for t in target[target != PADDING][:-1]]
        tokens += len(reference)
        edits += _edits(" ".join(reference), hypothesis)
    return edits, tokens


def _utterances(config: Config, name: str) -> list[Utterance]:
    path = getattr(config.data, name)
    if not path:
        raise ConfigError(f"data.{name} is not set; name a manifest, which `headsync prepare` makes")
    if is_sharded(Path(path)) and name == "dev":
        raise ConfigError(f"data.dev = {path!r} is a folder; name a manifest, shards are for data.train")
    utterances = read_shards(Path(path)) if is_sharded(Path(path)) else read_manifest(Path(path))
    check_not_empty(utterances, path)
    return utterances


def _usable(
    utterances: list[Utterance], vocabulary: Vocabulary, config: Config, name: str, say: Say
) -> list[Utterance]:
    path = getattr(config.data, name)
    try:
        fit, short = usable(utterances, vocabulary, config.frame_rate)
    except DataError as error:
        source = "that of training.start_from" if config.training.frame_cache else "built from data.train"
        remedy = f"Correct the texts: the vocabulary is {source}"
        raise DataError(f"data.{name} = {path!r}: {error} {remedy}") from None
    check_not_empty(fit, path)
    if short:
        say(f"{path}: left out {len(short)} utterances, too short for their text: {listed([u.id for u in short], 5)}")
    return fit


def _introduce(task: AsrTask, say: Say) -> None:
    settings, parameters = task.config.training, sum(p.numel() for p in task.model.parameters())
    sizes = f"{parameters / 1e6:.2f} M parameters, {len(task.train)} utterances, {task.vocabulary.size} classes"
    say(f"{sizes}, in {settings.folder}")
    updates = len(task.rows(0)) * settings.epochs
    if updates <= settings.untruncated_updates:
        say(
            f"no step will halt: the run has about {updates} updates, training.untruncated_updates = "
            f"{settings.untruncated_updates}; raise training.epochs or lower training.untruncated_updates"
        )


def _figures(means: Mapping[str, float]) -> str:
    error = f" error {means['error']:.1%}" if "error" in means else ""
    return f"loss {means['loss']:.3f}{error}"


def _dev_figures(result: DevResult) -> str:
    error = "" if result.attention_error is None else f"attention error {result.attention_error:.2%}, "
    return f"{error}CTC error {result.ctc_error:.2%}"


def _edits(reference: str, hypothesis: str) -> int:
    if not reference:
        return len(hypothesis.split())
    counts = jiwer.process_words(reference, hypothesis)
    return counts.substitutions + counts.deletions + counts.insertions

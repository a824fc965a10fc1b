from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headsync.cli import load_model, options
from headsync.cli.output import progress_bar
from headsync.errors import DataError, ModelError

if TYPE_CHECKING:
    from headsync.config import Config
    from headsync.decoding.confidence import ScoredWord
    from headsync.model_folder import ModelFolder


def calibrate(
    model: options.ModelArgument,
    manifest: Annotated[Path, typer.Argument(help="Development speech: neither trained on nor tested on.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for a calibrated copy; without it MODEL itself is changed.")
    ] = None,
    limit: options.UtteranceLimit = None,
) -> None:
    """Fit the confidences of a model to how often its words are right."""
    from headsync.cli.evaluate import read_utterances
    from headsync.decoding.confidence import ScoredWord, calibrated, fit
    from headsync.evaluation.evaluate import evaluate, readable

    folder = check_folders(model, out)
    recognizer = load_model.load_recognizer(model, confidence_scale=1.0, confidence_offset=0.0)
    with progress_bar(manifest.name) as progress:
        utterances = readable(read_utterances(manifest, limit), recognizer.vocabulary)
        report = evaluate(recognizer, utterances, progress=progress)
    words = [word for outcome in report.outcomes for word in outcome.words]
    if len({word.right for word in words}) < 2:
        raise DataError(f"{manifest}: calibration requires both right and wrong words; choose more difficult speech.")
    scale, offset = fit(words)
    after = [ScoredWord(calibrated(word.confidence, scale, offset), word.right) for word in words]
    _print_tables(words, after)
    decoding = replace(folder.config.decoding, confidence_scale=scale, confidence_offset=offset)
    path = write_config(folder, out, replace(folder.config, decoding=decoding))
    typer.echo(f"{path}: confidence_scale = {scale:.3f}, confidence_offset = {offset:.3f}")


def check_folders(model: str, out: Path | None) -> ModelFolder:
    """The model's folder; raises if the result cannot be written. `out` is None, the model's own or a new folder."""
    from headsync.model_folder import SHIPPED, find, load_folder

    folder = load_folder(find(model))
    if _is_own(folder, out):
        if folder.path.resolve().is_relative_to(SHIPPED.resolve()):
            raise ModelError(f"{model}: shipped models cannot be changed; name a folder for a changed copy.")
    elif out is not None and out.exists():
        raise ModelError(f"{out}: already exists; name a new folder.")
    return folder


def _is_own(folder: ModelFolder, out: Path | None) -> bool:
    return out is None or out.resolve() == folder.path.resolve()


def write_config(folder: ModelFolder, out: Path | None, config: Config) -> Path:
    """Write the settings into the model's config.toml, or that of a copy."""
    from headsync._atomic_write import write_atomically
    from headsync.model_folder import CONFIG
    from headsync.recipe import dump

    path = folder.path if out is None or _is_own(folder, out) else Path(shutil.copytree(folder.path, out))
    write_atomically(path / CONFIG, dump(config).encode())
    return path / CONFIG


def _print_tables(before: Sequence[ScoredWord], after: Sequence[ScoredWord]) -> None:
    from rich.console import Console

    from headsync.cli.evaluate import reliability_table
    from headsync.decoding.confidence import reliability

    for title, words in (("before", before), ("after", after)):
        Console().print(reliability_table(title, reliability(words)))

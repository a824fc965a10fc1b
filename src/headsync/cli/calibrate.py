"""`headsync calibrate`: make a model's confidences probabilities, by development speech."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headsync.cli import loading
from headsync.cli.progress import progress_bar
from headsync.errors import DataError

if TYPE_CHECKING:
    from headsync.measure.confidence import Judged


def calibrate(
    model: Annotated[str, typer.Argument(help="A model folder; its config.toml will hold the result.")],
    manifest: Annotated[Path, typer.Argument(help="Development speech: neither trained on nor tested on.")],
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many utterances.")] = None,
) -> None:
    """Fit the confidences of a model to how often its words are right."""
    from headsync.data.manifest import read_manifest
    from headsync.folder import CONFIG, find, load_folder
    from headsync.measure.confidence import Judged, calibrated, fit
    from headsync.measure.evaluate import evaluate, readable
    from headsync.recipe import dump
    from headsync.writing import write_atomically

    folder = load_folder(find(model))
    recognizer = loading.load_recognizer(model, confidence_scale=1.0, confidence_offset=0.0)
    with progress_bar(manifest.name) as progress:
        utterances = readable(read_manifest(manifest)[:limit], recognizer.vocabulary)
        report = evaluate(recognizer, utterances, progress=progress)
    words = [word for outcome in report.outcomes for word in outcome.words]
    if len({word.right for word in words}) < 2:
        raise DataError(
            f"{manifest}: calibrating needs words that are right and some that are wrong; name harder speech."
        )
    scale, offset = fit(words)
    after = [Judged(calibrated(word.confidence, scale, offset), word.right) for word in words]
    _print_tables(words, after)
    decoding = replace(folder.config.decoding, confidence_scale=scale, confidence_offset=offset)
    write_atomically(folder.path / CONFIG, dump(replace(folder.config, decoding=decoding)).encode())
    typer.echo(f"{folder.path / CONFIG}: confidence_scale = {scale:.3f}, confidence_offset = {offset:.3f}")


def _print_tables(before: Sequence[Judged], after: Sequence[Judged]) -> None:
    from rich.console import Console

    from headsync.cli.evaluate import reliability_table
    from headsync.measure.confidence import reliability

    for title, words in (("before", before), ("after", after)):
        Console().print(reliability_table(title, reliability(words)))

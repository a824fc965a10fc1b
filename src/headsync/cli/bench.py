"""`headsync bench`: the speed of recognition on this computer, compared with its matrix products alone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headsync.cli.output import check_writable, write_json

if TYPE_CHECKING:
    from headsync.model_folder import ModelFolder

_TOKENS_PER_SECOND = {52: 15.0}  # of characters
_DEFAULT_TOKENS_PER_SECOND = 4.0  # of larger vocabularies: words or subwords
_FRAMES = (50, 100, 250, 500, 1000)  # 2 to 40 s
_HEADER = (
    "| classes | beam | audio | computing per second | in the last fifth | products | ratio | first token |",
    "|---|---|---|---|---|---|---|---|",
)
_MECHANISMS = ("hs-dacs", "dacs", "softmax")


def bench(
    classes: Annotated[list[int], typer.Option(min=4, help="Number of output classes; may be repeated.")] = [52, 5000],  # noqa: B006
    beam: Annotated[list[int], typer.Option(min=1, help="Beam width; may be repeated.")] = [1, 10],  # noqa: B006
    seconds: Annotated[list[float], typer.Option(min=2.0, help="Length of a stream; may be repeated.")] = [10.0],  # noqa: B006
    int8: Annotated[bool, typer.Option("--int8", help="Use 8-bit weights.")] = False,
    mechanisms: Annotated[bool, typer.Option("--mechanisms", help="Also time the steps of each mechanism.")] = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Measure the speed of recognition, with random weights of the paper's size, on one thread."""
    check_writable(json_out)
    figures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        models = [_model(Path(folder) / str(number), number, int8=int8) for number in classes]
        typer.echo("\n".join(_HEADER))
        for model in models:
            for row in _speeds(model, beam, seconds):
                typer.echo(row.pop("row"))
                figures.append({"int8": int8, **row})
        if mechanisms:
            typer.echo("\n| mechanism | " + " | ".join(f"{frames} frames" for frames in _FRAMES) + " |")
            typer.echo("|---|" + "---|" * len(_FRAMES))
            for name in _MECHANISMS:
                model = _model(Path(folder) / name, classes[0], name, int8)
                steps = [_step_seconds(model, max(beam), frames) for frames in _FRAMES]
                typer.echo(f"| {name} | " + " | ".join(f"{1e3 * step:.1f} ms" for step in steps) + " |")
                figures.append({"mechanism": name, "step_seconds": dict(zip(_FRAMES, steps, strict=True))})
    if json_out:
        write_json(json_out, figures)


def _model(path: Path, classes: int, attention: str = "hs-dacs", int8: bool = False) -> ModelFolder:
    from headsync.engine.random_model import untrained

    return untrained(path, classes, attention, int8)


def _speeds(model: ModelFolder, beams: list[int], lengths: list[float]) -> Iterator[dict[str, Any]]:
    from headsync.engine import load_engine
    from headsync.evaluation.speed import measure

    engine, classes = load_engine(model), model.vocabulary.size
    rate = _TOKENS_PER_SECOND.get(classes, _DEFAULT_TOKENS_PER_SECOND)
    measure(model, engine, 3.0, rate)  # warm-up
    for beam in beams:
        for length in lengths:
            s = measure(model, engine, length, rate, beam=beam)
            cells = f"{classes} | {beam} | {length:.0f} s | {s.each:.3f} s | {s.last:.3f} s | {s.bound / length:.3f} s"
            row = f"| {cells} | {s.ratio:.2f} | {s.first_token:.1f} s |"
            yield {"classes": classes, "beam": beam, **s._asdict(), "row": row}


def _step_seconds(model: ModelFolder, beam: int, frames: int) -> float:
    from headsync.engine import load_engine
    from headsync.evaluation.speed import step_seconds

    return step_seconds(model, load_engine(model), beam, frames)

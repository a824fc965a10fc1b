"""`headsync bench`: how fast recognition is on this computer, against its matrix products alone."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headsync.cli.printing import refuse_unwritable

if TYPE_CHECKING:
    from headsync.folder import ModelFolder

RATES = {52: 15.0}  # tokens in a second: characters; of larger vocabularies words and pieces
RATE = 4.0
FRAMES = (50, 100, 250, 500, 1000)  # 2 to 40 s
HEADER = (
    "| classes | beam | sound | computing for a second | of the last fifth | products | ratio | first token |",
    "|---|---|---|---|---|---|---|---|",
)
MECHANISMS = ("hs-dacs", "dacs", "softmax")


def bench(
    classes: Annotated[list[int], typer.Option(min=4, help="Output classes; may be repeated.")] = [52, 5000],  # noqa: B006
    beam: Annotated[list[int], typer.Option(min=1, help="Hypotheses; may be repeated.")] = [1, 10],  # noqa: B006
    seconds: Annotated[list[float], typer.Option(min=2.0, help="Sound in a stream; may be repeated.")] = [10.0],  # noqa: B006
    int8: Annotated[bool, typer.Option("--int8", help="With weights of 8 bits.")] = False,
    mechanisms: Annotated[bool, typer.Option("--mechanisms", help="Also compare the steps of mechanisms.")] = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="Also write the figures here.")] = None,
) -> None:
    """Measure recognition at the paper's size with random weights, on one thread."""
    refuse_unwritable(json_out)
    figures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        models = [_model(Path(folder) / str(number), number, int8=int8) for number in classes]
        typer.echo("\n".join(HEADER))
        for model in models:
            for row in _speeds(model, beam, seconds):
                typer.echo(row.pop("row"))
                figures.append({"int8": int8, **row})
        if mechanisms:
            typer.echo("\n| mechanism | " + " | ".join(f"{frames} frames" for frames in FRAMES) + " |")
            typer.echo("|---|" + "---|" * len(FRAMES))
            for name in MECHANISMS:
                model = _model(Path(folder) / name, classes[0], name, int8)
                steps = [_step_seconds(model, max(beam), frames) for frames in FRAMES]
                typer.echo(f"| {name} | " + " | ".join(f"{1e3 * step:.1f} ms" for step in steps) + " |")
                figures.append({"mechanism": name, "step_seconds": dict(zip(FRAMES, steps, strict=True))})
    if json_out:
        json_out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _model(path: Path, classes: int, attention: str = "hs-dacs", int8: bool = False) -> ModelFolder:
    from headsync.engine.untrained import untrained

    return untrained(path, classes, attention, int8)


def _speeds(model: ModelFolder, beams: list[int], lengths: list[float]) -> Iterator[dict[str, Any]]:
    from headsync.engine import load_engine
    from headsync.measure.speed import measure

    engine, classes = load_engine(model), model.vocabulary.size
    rate = RATES.get(classes, RATE)
    measure(model, engine, 3.0, rate)  # warms up
    for beam in beams:
        for length in lengths:
            s = measure(model, engine, length, rate, beam=beam)
            cells = f"{classes} | {beam} | {length:.0f} s | {s.each:.3f} s | {s.last:.3f} s | {s.bound / length:.3f} s"
            row = f"| {cells} | {s.ratio:.2f} | {s.first_token:.1f} s |"
            yield {"classes": classes, "beam": beam, **s._asdict(), "row": row}


def _step_seconds(model: ModelFolder, beam: int, frames: int) -> float:
    from headsync.engine import load_engine
    from headsync.measure.speed import step_seconds

    return step_seconds(model, load_engine(model), beam, frames)

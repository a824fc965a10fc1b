from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

importing = typer.Typer(help="Make a model folder from the weights of another project.", no_args_is_help=True)


@importing.command()
def moonshine(
    weights: Annotated[
        Path, typer.Argument(help="Folder with encoder_model.onnx, decoder_model_merged.onnx and tokenizer.bin.")
    ],
    out: Annotated[Path, typer.Argument(help="Model folder to write.")],
) -> None:
    """Moonshine tiny or base, float graphs: a start for training."""
    from headsync.training.moonshine import import_moonshine

    difference = import_moonshine(weights, out)
    typer.echo(f"{out}: states and logits differ from those of the graphs by at most {difference:.1e}")

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from headsync.cli import load_model, options

models = typer.Typer(invoke_without_command=True)


@models.callback()
def _list(context: typer.Context) -> None:
    """List the shipped and the downloaded models; pull downloads a model, push prepares one for download."""
    if context.invoked_subcommand is not None:
        return
    from rich.console import Console
    from rich.table import Table

    from headsync.model_folder import card_summary

    table = Table("name", "recognises", box=None, header_style="bold")
    table.add_column("parameters", justify="right")
    table.add_column("size", justify="right")
    for name, folder in sorted(load_model.known_models().items()):
        size_megabytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
        recognises = (card_summary(folder) or "").split(". ")[0].rstrip(".")
        table.add_row(name, recognises, f"{count_parameters(folder) / 1e6:.2f} M", f"{size_megabytes:.1f} MB")
    Console().print(table)


@models.command()
def pull(
    source: Annotated[str, typer.Argument(help="https:// address of a model folder, or OWNER/NAME on Hugging Face.")],
    name: Annotated[str | None, typer.Option(help="Name of the model; the last part of SOURCE by default.")] = None,
    offline: Annotated[bool, typer.Option("--offline", envvar="HEADSYNC_OFFLINE", help="Use only the cache.")] = False,
) -> None:
    """Download a model into the cache; a download that was stopped continues."""
    from rich.console import Console

    from headsync.model_download import pull as download

    with Console(stderr=True).status(source) as status:
        folder = download(source, name, offline, lambda file, count: status.update(f"{file}: {count / 1e6:.1f} MB"))
    typer.echo(f"{folder}: use it with --model {folder.name}")


@models.command()
def push(
    model: options.ModelArgument,
    folder: Annotated[Path, typer.Argument(help="Folder to write; it must not exist or be empty.")],
) -> None:
    """Write a model as a folder for a web server or a Hugging Face repository, from which pull downloads it."""
    from headsync.model_download import push as write

    write(model, folder)
    typer.echo(f"{folder}: copy its files to a web server or a repository")


def count_parameters(folder: Path) -> int:
    """The number of parameters, from the header of the weights file."""
    from safetensors import SafetensorError, safe_open

    from headsync.errors import ModelError
    from headsync.model_folder import WEIGHTS

    weights = folder / WEIGHTS
    try:
        with safe_open(weights, framework="numpy") as tensors:
            names = tensors.keys()
            return sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)
    except SafetensorError as error:
        raise ModelError(f"{weights}: the weights are damaged ({error}); install or pull the model again.") from error

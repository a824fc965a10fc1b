"""`headsync models`: what came with the package."""

from __future__ import annotations

import math
from pathlib import Path

from headsync.cli import loading


def models() -> None:
    """List the models that came with the package."""
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "what it hears", box=None, header_style="bold")
    table.add_column("parameters", justify="right")
    table.add_column("size", justify="right")
    for name, folder in sorted(loading.shipped_models().items()):
        size_megabytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
        table.add_row(name, card_summary(folder), f"{count_parameters(folder) / 1e6:.2f} M", f"{size_megabytes:.1f} MB")
    Console().print(table)


def card_summary(folder: Path) -> str:
    """The first sentence of the model card: what comes after front matter and headings."""
    from headsync.folder import CARD

    lines = (folder / CARD).read_text(encoding="utf-8").splitlines()
    if lines and lines[0] == "---" and "---" in lines[1:]:
        lines = lines[lines.index("---", 1) + 1 :]
    text = "\n".join(line for line in lines if not line.startswith("#")).strip()
    first_paragraph = " ".join(text.split("\n\n")[0].split())
    return first_paragraph.split(". ")[0].rstrip(".")


def count_parameters(folder: Path) -> int:
    """Count from the header of the weights, without reading them."""
    from safetensors import SafetensorError, safe_open

    from headsync.errors import ModelError
    from headsync.folder import WEIGHTS

    weights = folder / WEIGHTS
    try:
        with safe_open(weights, framework="numpy") as tensors:
            names = tensors.keys()
            return sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)
    except SafetensorError as error:
        raise ModelError(f"{weights}: the weights are damaged ({error}); install headsync again.") from error

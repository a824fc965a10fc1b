"""Figures as files: PNG or SVG, the same bytes for the same figure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headsync.errors import ConfigError, HeadsyncError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE: dict[Any, Any] = {"font.size": 9, "axes.edgecolor": "0.6", "svg.fonttype": "none", "svg.hashsalt": "headsync"}
# Metadata without date and program, so that equal figures are equal files.
FORMATS: dict[str, dict[str, str | None]] = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}


def check_figure(path: Path | None) -> None:
    """Raise an error before the work if a figure cannot be drawn."""
    if path is None:
        return
    if path.suffix not in FORMATS:
        raise ConfigError(f"{path}: figures are written as PNG or SVG; use a name that ends in .png or .svg")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise HeadsyncError("figures require matplotlib: pip install 'headsync[plot]'") from None


def save_figure(draw: Callable[[], Figure], path: Path) -> None:
    """Draw a figure in the common style and write it."""
    check_figure(path)
    import matplotlib

    with matplotlib.rc_context(STYLE):
        draw().savefig(path, dpi=140, metadata=FORMATS[path.suffix])

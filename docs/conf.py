"""The documentation site: `make docs` builds it from the Markdown pages of the repository into build/site."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))

import headsync  # noqa: E402

project = "headsync"
copyright = "the headsync authors, MIT licence"
version = release = headsync.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/**.md",
    "results/*.md",
    "recipes/**.md",
    "src/headsync/demo/*.md",
    "src/headsync/models/*/*.md",
]
exclude_patterns = ["build", ".venv"]

myst_heading_anchors = 4  # links to headings, as repository browsers write them
suppress_warnings = ["myst.header"]  # a model card may start below its first level
default_role = "code"  # single backticks in docstrings
nitpick_ignore_regex = [("py:.*", r"(?!headsync\.).*")]  # names of other packages, which are not resolved here

autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
add_module_names = False

html_theme = "furo"
html_title = f"headsync {release}"
html_extra_path = ["site"]  # index.html, which leads to docs/index.html
html_copy_source = False


class _Annotation(str):
    __slots__ = ()
    __repr__ = str.__str__


def _signature_as_written(_app: Any, what: str, _name: str, obj: Any, *_: Any) -> tuple[str, str] | None:
    """Annotations as the source has them: `npt.ArrayLike`, not the union behind it."""
    if what not in ("method", "function"):
        return None
    signature = inspect.signature(obj)
    parameters = [
        parameter.replace(annotation=_Annotation(parameter.annotation))
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    written = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    return str(written), str(signature.return_annotation)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-signature", _signature_as_written)

"""`headsync perplexity`: a language model and a text in, how well the one foretells the other out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headsync.cli.printing import print_rows
from headsync.cli.progress import progress_bar

if TYPE_CHECKING:
    from headsync.measure.perplexity import Perplexity


def perplexity(
    model: Annotated[Path, typer.Argument(help="A language model: a model folder, or an .arpa or .arpa.gz file.")],
    text: Annotated[Path, typer.Argument(help="A text, one sentence a line.")],
    recogniser: Annotated[str | None, typer.Option(help="Measure as this model would use it: over its tokens.")] = None,
    case: Annotated[Literal["keep", "lower", "upper"], typer.Option(help="Change the text's case before.")] = "keep",
) -> None:
    """Measure a language model on a text."""
    from headsync.data.text import read_sentences
    from headsync.folder import find, load_folder
    from headsync.measure.perplexity import perplexity as measure
    from headsync.search.lm import load_language_model, open_language_model

    sentences = read_sentences(text, case)
    if recogniser is None:
        scorer, vocabulary = open_language_model(model)
    else:
        vocabulary = load_folder(find(recogniser)).vocabulary
        scorer = load_language_model(model, vocabulary)
    with progress_bar(text.name) as progress:
        measured = measure(scorer, vocabulary, sentences, progress)
    print_rows(rows(measured))


def rows(measured: Perplexity) -> list[tuple[str, str]]:
    """The figures in the order and the form in which people read them."""
    left_out = f", {measured.left_out} left out" if measured.left_out else ""
    unknown = f", {measured.unknown / max(1, measured.tokens):.2%} of them unknown" if measured.unknown else ""
    return [
        ("sentences", f"{measured.sentences}{left_out}"),
        ("words", f"{measured.words}, and {measured.sentences} ends of sentences"),
        ("tokens", f"{measured.tokens}{unknown}, and {measured.sentences} ends"),
        ("perplexity per token", _told(measured.per_token, 3)),
        ("perplexity per word", _told(measured.per_word, 2)),
    ]


def _told(perplexity: float, digits: int) -> str:
    if math.isinf(perplexity):
        return "infinite: the model holds something in the text for impossible"
    return f"{perplexity:.{digits}f}"

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headsync.cli.output import print_rows, progress_bar

if TYPE_CHECKING:
    from headsync.evaluation.perplexity import Perplexity


def perplexity(
    model: Annotated[Path, typer.Argument(help="Language model: a model folder, or an .arpa or .arpa.gz file.")],
    text: Annotated[Path, typer.Argument(help="Text, one sentence per line.")],
    recogniser: Annotated[str | None, typer.Option(help="Measure over the tokens of this recogniser.")] = None,
    case: Annotated[
        Literal["keep", "lower", "upper"], typer.Option(help="Change the case of the text first.")
    ] = "keep",
) -> None:
    """Measure a language model on a text."""
    from headsync.corpora.lm_text import read_sentences
    from headsync.evaluation.perplexity import perplexity as measure
    from headsync.lm.lstm import load_language_model, open_language_model
    from headsync.model_folder import find, load_folder

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
    left_out = f", {measured.left_out} left out" if measured.left_out else ""
    unknown = f", {measured.unknown / max(1, measured.tokens):.2%} of them unknown" if measured.unknown else ""
    return [
        ("sentences", f"{measured.sentences}{left_out}"),
        ("words", f"{measured.words}, and {measured.sentences} ends of sentences"),
        ("tokens", f"{measured.tokens}{unknown}, and {measured.sentences} ends"),
        ("perplexity per token", _format(measured.per_token, 3)),
        ("perplexity per word", _format(measured.per_word, 2)),
    ]


def _format(perplexity: float, digits: int) -> str:
    if math.isinf(perplexity):
        return "infinite: the model assigns zero probability to part of this text"
    return f"{perplexity:.{digits}f}"

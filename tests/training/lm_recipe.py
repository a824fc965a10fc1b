"""A text and a tiny language model's recipe, for the tests that train one."""

from __future__ import annotations

from pathlib import Path

SENTENCES = [
    "the cat sat on the mat", "a dog sat on the log", "the dog saw a cat", "a cat on a log", "the mat the dog the log",
    "on the mat sat a dog", "a cat saw the dog", "dog on log cat on mat", "the cat", "saw the mat sat on it",
]  # fmt: skip

TINY = """
kind = "lm"

[language]
layers = 2
width = 12
dropout = 0.1
rate = 0.02
batch_tokens = 100

[data]
train = "{text}"

[training]
epochs = 2
average = 2
"""


def write_recipe(folder: Path, times: int = 3) -> Path:
    """The recipe, with its text beside it."""
    text = folder / "text.txt"
    text.write_text("\n".join(SENTENCES * times) + "\n", encoding="utf-8")
    recipe = folder / "lm.toml"
    recipe.write_text(TINY.format(text=text), encoding="utf-8")
    return recipe

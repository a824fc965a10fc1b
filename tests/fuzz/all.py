"""All harnesses by name, and the inputs that are kept in the tree."""

from __future__ import annotations

from pathlib import Path

from fuzz.found import FOUND
from fuzz.messages import MESSAGES
from fuzz.models import MODELS
from fuzz.sounds import SOUNDS
from fuzz.texts import TEXTS

HARNESSES = {**TEXTS, **MESSAGES, **SOUNDS, **MODELS}
CORPUS = Path(__file__).parent / "corpus"  # inputs that once were faults; those of text are in `found`


def inputs(name: str) -> list[bytes]:
    """What a harness starts from."""
    files = (path.read_bytes() for path in sorted((CORPUS / name).glob("*")))
    return [*HARNESSES[name].seeds(), *FOUND.get(name, ()), *files]

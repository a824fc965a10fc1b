"""One fault and the tests that must notice it."""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """A line of the package replaced by a faulty one."""

    name: str  # what the fault does
    file: str  # relative to src/headsync
    before: str  # the line without its indentation; it occurs once in the file
    after: str  # the faulty line; several lines are indented relative to the first
    tests: tuple[str, ...]  # pytest arguments relative to the checkout, files or single tests, the quickest first
